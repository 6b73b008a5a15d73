"""Take snapshots of worktrees: an agent's whole checkout as a commit of the user's repository, kept by a ref.

A git in a sandbox, which can read the checkout and write only in a scratch folder, makes the commit. It uses settings,
index and ignore patterns of crewboard, so nothing that the agent put into its `.git` has an effect. The objects come
out of the sandbox as a pack, which a git outside checks strictly.
"""

import contextlib
import hashlib
import os
import re
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.records.agents import Spec, Worktree
from crewboard.sandbox.sandbox import Sandbox, open_reader
from crewboard.store import files
from crewboard.store.layout import DEFAULT_TEAM, TeamDirectory
from crewboard.unix import programs
from crewboard.worktrees.repository import PACK_HEADER, GitFailedError, Repository, make_borrower, repository_of

TIMEOUT = 600.0
"""Seconds that a snapshot may take. The first one of a huge checkout reads all of its files."""

MAX_PACK = 4 << 30
"""Most bytes of new objects in one snapshot."""

_LONGEST_LINE = 300
_MAX_INDEX = 256 << 20
_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_SCRIPT = """
set -u
checkout=$1 base=$2 before=$3 same=$4 name=$5
export GIT_DIR="$TMPDIR/snapshot.git" GIT_WORK_TREE="$checkout" GIT_AUTHOR_NAME="$name" GIT_COMMITTER_NAME="$name"
export GIT_AUTHOR_EMAIL="$name@crewboard.invalid" GIT_COMMITTER_EMAIL="$name@crewboard.invalid"
cd "$checkout" || exit 1
# git starts itself in nested repositories, and to fetch objects that one lacks. Their settings would run programs.
export GIT_EXEC_PATH="$TMPDIR/no-git"
add() { git add --all --sparse --ignore-errors . ; [ $? -le 1 ]; }
[ -e "$GIT_DIR/index" ] || git read-tree -m "$base" || exit 1
add || { rm -f "$GIT_DIR/index"; git read-tree -m "$base" && add; } || exit 1
tree=$(git write-tree) || exit 1
head=$(git --git-dir="$checkout/.git" rev-parse --verify --quiet HEAD 2>/dev/null) || head=$base
head=$(git rev-parse --verify --quiet "$head^{commit}" 2>/dev/null) || head=$base
[ "$tree $head" != "$same" ] || { echo same; exit 0; }
commit=$(echo "Snapshot of $name" | git commit-tree "$tree" -p "$head") || exit 1
git cat-file -e "$before^{commit}" 2>/dev/null || before=$base
echo "$commit $head $tree"
printf '%s\\n' "$commit" "^$base" "^$before" | git pack-objects --quiet --revs --thin --stdout --delta-base-offset
"""
"""Prints `COMMIT HEAD TREE` and a pack, or `same` if tree and head are those of the snapshot before."""


@dataclass(frozen=True)
class Snapshot:
    """A checkout at one moment. `commit` has its whole `tree`, committed or not, and the one parent `head`.

    `head` is the commit that the agent itself has checked out, `base` the one at which its worktree began. `setup` is
    the snapshot after the setup of the checkout, empty if there was no setup. `missing` describes what could not be
    taken in, such as files that cannot be read.
    """

    commit: str
    head: str
    tree: str
    base: str
    setup: str = ""
    missing: tuple[str, ...] = ()

    @property
    def begin(self) -> str:
        """Return the commit with the files that the agent began with: after the setup, if there was one."""
        return self.setup or self.base

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of `head` and `tree`, by which a merge can be limited to exactly this work."""
        return hashlib.sha256(f"{self.head} {self.tree}".encode()).hexdigest()


def branch_of(team: TeamDirectory, name: str) -> str:
    """Return the branch of an agent: `crew/NAME`, and in a team other than the default one `crew/@TEAM/NAME`."""
    return f"crew/{name}" if team.path.name == DEFAULT_TEAM else f"crew/@{team.path.name}/{name}"


def ref_of(team: TeamDirectory, name: str, kind: str = "") -> str:
    """Return the full name of the ref of an agent for its newest snapshot, or for another commit by `kind`.

    The kinds are `base`, the commit at which the agent's worktree began; `setup`, the snapshot of a new checkout after
    its setup; `merged`, the last snapshot that was merged; `carried`, the snapshot that the worker puts into the store;
    and `fetched`, the commit at which `crewboard fetch` left the user's branch with the agent's work.
    """
    of_agent = branch_of(team, name).removeprefix("crew/")
    return f"refs/crew/+{kind}/{of_agent}" if kind else f"refs/crew/{of_agent}"


def index_of(team: TeamDirectory, name: str) -> Path:
    """Return the path of the git index of an agent's last snapshot, by which the next one reads only changed files."""
    return team.worktrees / f"{name}.index"


def exclude_of(team: TeamDirectory, name: str) -> Path:
    """Return the path of the file with patterns that snapshots ignore, in addition to those in the checkout's files."""
    return team.worktrees / f"{name}.exclude"


def missing_of(team: TeamDirectory, name: str) -> Path:
    """Return the path of the file that describes what the last snapshot could not take in, separated by NULs."""
    return team.worktrees / f"{name}.missing"


def exists(team: TeamDirectory, repository: Repository, name: str) -> bool:
    """Return True if there is a snapshot of an agent."""
    return repository.ref(ref_of(team, name)) is not None


def kept(team: TeamDirectory, repository: Repository, name: str, base: str) -> Snapshot | None:
    """Return the newest snapshot of an agent, whose worktree began at `base`; None if there is none yet."""
    ref = ref_of(team, name)
    asked = (f"{ref}^{{commit}}", f"{ref}^1", f"{ref}^{{tree}}", ref_of(team, name, "setup"))
    # At once, because a worker asks this after each tool.
    said = repository.git("cat-file", "--batch-check=%(objectname)", stdin="\n".join(asked)).splitlines()
    commit, head, tree, setup = ("" if line.endswith(" missing") else line for line in said)
    if not (commit and tree):
        return None
    # In a damaged repository the commit that an agent was at can be missing, where its work is whole.
    head = head or repository.git("rev-parse", f"{ref}^1").strip()
    missing: tuple[str, ...] = ()
    with contextlib.suppress(OSError):
        missing = tuple(filter(None, os.fsdecode(missing_of(team, name).read_bytes()).split("\0")))
    return Snapshot(commit, head, tree, base, setup, missing)


def beginning(repository: Repository, commit: str, base: str = "") -> Snapshot:
    """Return a commit as the snapshot of a new checkout. Its `base` is the given one, or the commit itself."""
    return Snapshot(commit, commit, repository.tree(commit), base or commit)


def note_missing(team: TeamDirectory, name: str, missing: Sequence[str]) -> None:
    """Write to the file `missing_of` what an agent's newest snapshot lacks; remove the file if nothing is missing."""
    path = missing_of(team, name)
    if missing:
        files.make_folder(path.parent)
        files.replace_file(path, os.fsencode("\0".join(missing)))
    else:
        path.unlink(missing_ok=True)


def take(team: TeamDirectory, name: str, spec: Spec) -> Snapshot:
    """Take a snapshot of what is in an agent's checkout now, and return it.

    If nothing changed since the last snapshot, return that one.

    Raises:
        UsageError: The agent has no worktree.
        NoRepositoryError: There is no repository for the snapshot.
        BadDataError: git refused the checkout or its objects.
        StorageError: The checkout is gone, or there is no room.
    """
    with files.locked(team.local_lock(f"worktree-{name}")):
        return take_locked(team, name, spec)


def take_locked(team: TeamDirectory, name: str, spec: Spec) -> Snapshot:
    """Take a snapshot, as `take` does, while the caller holds the lock of the worktree."""
    if spec.worktree is None:
        raise UsageError(f"{name} works in the shared tree; hire it with --worktree for a checkout of its own")
    repository = repository_of(team, spec.worktree)
    if not team.worktree(name).is_dir():
        raise StorageError(f"the worktree {team.worktree(name)} is gone; `crewboard resume {name}` makes it again")
    with open_reader(team, name, spec) as sandbox:
        return _Taking(team, name, spec.worktree, repository, sandbox).run()


def take_after_setup(team: TeamDirectory, name: str, spec: Spec) -> None:
    """Take a snapshot of a new checkout after its setup, and set the ref `setup`, if the agent has no snapshot yet.

    What the setup changed then does not count as work of the agent.

    Raises:
        CrewboardError: The errors of `take`.
    """
    if spec.worktree is None:
        return
    repository = repository_of(team, spec.worktree)
    if kept(team, repository, name, spec.worktree.base) is None:
        repository.keep(ref_of(team, name, "setup"), take(team, name, spec).commit)


class _Taking:
    """Takes one snapshot: runs git in the sandbox, and brings the objects into the repository."""

    def __init__(
        self, team: TeamDirectory, name: str, worktree: Worktree, repository: Repository, sandbox: Sandbox
    ) -> None:
        self._ref = ref_of(team, name)
        self._name = name
        self._worktree = worktree
        self._repository = repository
        self._sandbox = sandbox
        self._index = index_of(team, name)
        self._exclude = exclude_of(team, name)
        self._team = team
        self._before = kept(team, repository, name, worktree.base)
        self._deadline = time.monotonic() + TIMEOUT
        self._scratch = sandbox.policy.scratch or sandbox.policy.root

    def run(self) -> Snapshot:
        borrowed = [self._sandbox.policy.root / ".git/objects", *self._sandbox.policy.borrowed]
        own = make_borrower(self._repository, self._scratch / "snapshot.git", borrowed, "--bare")
        with (own.directory / "config").open("a", encoding="ascii") as settings:
            # They only repeat what objects and packs say, and those of the agent may be damaged.
            settings.write("[core]\n\tcommitGraph = false\n\tmultiPackIndex = false\n")
        no_git = self._scratch / "no-git"
        no_git.mkdir()
        (no_git / "git").symlink_to(programs.system_program("true", self._sandbox.policy.root))
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(self._exclude, own.directory / "info/exclude")
        _copy_index(self._index, own.directory / "index")
        with tempfile.TemporaryFile() as complaints, self._reading(complaints) as output:
            header = self._line(output)
            found = self._receive(header.split(), output) if header else None
            complaints.seek(0)
            said = complaints.read(100_000).decode("utf-8", "replace").strip().splitlines()
        if found is None:
            why = said[-1].removeprefix("fatal: ") if said else "git gave no reason"
            raise BadDataError(f"no snapshot of {self._name}: {why}")
        _copy_index(own.directory / "index", self._index)
        # What git could not read.
        unread = [line.removeprefix("error: ") for line in said if line.startswith("error: ")][:20]
        missing = (*unread, *_nested(self._repository, found.base, found.tree))
        note_missing(self._team, self._name, missing)
        return replace(found, missing=missing)

    @contextmanager
    def _reading(self, complaints: IO[bytes]) -> Iterator[int]:
        """Run the script in the sandbox, and yield a descriptor to read its output from; end the script after that."""
        # Imported here because most hires make no checkout.
        import asyncio

        before = self._before
        arguments = [
            programs.system_program("bash", self._sandbox.policy.root), "-c", _SCRIPT, "snapshot",
            str(self._sandbox.policy.root), self._worktree.base, before.commit if before else self._worktree.base,
            f"{before.tree} {before.head}" if before else "", self._name,
        ]  # fmt: skip
        output, into = os.pipe()
        with os.fdopen(output, "rb", buffering=0):
            try:
                child = self._sandbox.start_program(arguments, into, complaints.fileno())
            finally:
                os.close(into)
            try:
                yield output
            finally:
                asyncio.run(child.end())

    def _line(self, output: int) -> str:
        """Return the first line of the script's output; empty if there is none."""
        line = b""
        while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            byte = self._read(output, 1)
            if not byte:
                return ""
            line += byte
        return line.decode("ascii", "replace").strip()

    def _read(self, output: int, count: int) -> bytes:
        data = b""
        while len(data) < count:
            left = self._deadline - time.monotonic()
            if not any(select.select([output], [], [], max(left, 0))):
                raise BadDataError(f"no snapshot of {self._name}: it took longer than {TIMEOUT:.0f} s")
            more = os.read(output, count - len(data))
            if not more:
                break
            data += more
        return data

    def _receive(self, header: list[str], output: int) -> Snapshot:
        """Check the objects of a snapshot, add them to the repository, set the agent's ref, and return the snapshot.

        `header` are the words of the script's first line. `output` is the descriptor with the rest, a pack.

        Raises:
            BadDataError: The objects are not complete, or git refused them.
        """
        if header == ["same"] and self._before is not None:
            return self._before
        if len(header) != 3 or not all(map(_ID.fullmatch, header)):  # noqa: PLR2004  commit, head, tree
            raise BadDataError(f"no snapshot of {self._name}: git printed something unexpected")
        commit = header[0]
        start = self._read(output, PACK_HEADER)
        if len(start) < PACK_HEADER or start[:4] != b"PACK":
            raise BadDataError(f"no snapshot of {self._name}: its objects did not arrive")
        try:
            self._repository.take_in(output, start, MAX_PACK, seconds=self._deadline - time.monotonic())
            # The repository must have every object of its history and its tree.
            known = [self._worktree.base, *([self._before.commit] if self._before else [])]
            self._repository.git("rev-list", "--objects", "--quiet", commit, "--not", *known)
            # What the agent's git says of its commits is not relied upon.
            head, tree = self._repository.git("rev-parse", f"{commit}^1", f"{commit}^{{tree}}").split()
            old = self._before.commit if self._before else "0" * len(commit)
            self._repository.keep(self._ref, commit, old)
        except GitFailedError as error:
            raise BadDataError(f"the snapshot of {self._name} was refused: {error}") from error
        before = self._before
        setup = before.setup if before else self._repository.ref(ref_of(self._team, self._name, "setup")) or ""
        return Snapshot(commit, head, tree, self._worktree.base, setup)


@lru_cache(maxsize=64)
def _nested(repository: Repository, base: str, tree: str) -> tuple[str, ...]:
    """Return a sentence for each nested repository in a tree that `base` does not have: a snapshot lacks its files."""
    listed = repository.git("diff-tree", "-r", "-z", "--no-renames", base, tree)
    parts = iter(listed.split("\0"))
    found = [(about.split()[1:2], next(parts, "")) for about in parts]
    return tuple(
        f"{path} is a repository of its own: its files are not in the snapshot"
        for mode, path in found
        if mode == ["160000"]
    )


def _copy_index(source: Path, target: Path) -> None:
    """Copy a git index. If it is missing, too large or, because of an agent, something else than a file, do nothing."""
    try:
        folder = os.open(
            source.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        try:
            fd = os.open(source.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_size <= _MAX_INDEX:
            new = target.with_name(f"{target.name}.new")
            with new.open("wb") as copy:
                shutil.copyfileobj(file, copy)
            # By its time git knows which files may have changed in the same second, and compares their content.
            os.utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
            new.replace(target)
