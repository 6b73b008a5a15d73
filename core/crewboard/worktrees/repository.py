"""Run git on the user's repository, outside every sandbox: with the user's settings, but without hooks.

Also make the repositories that borrow its objects: those of checkouts, and crewboard's own on a host.
"""

import contextlib
import os
import re
import resource
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from crewboard.errors import BadDataError, CrewboardError, ExitCode, UsageError
from crewboard.records.agents import Worktree
from crewboard.store.layout import TeamDirectory
from crewboard.unix import programs

OLDEST = (2, 38)
"""The first version of git with `merge-tree --write-tree`, which merges without touching a working tree."""

TIMEOUT = 600.0
"""Seconds that one call of git may take. A checkout of a huge repository takes minutes."""

MAX_MEMORY = 2 << 30
"""Bytes of memory that git may use to check and unpack objects of an agent. It reads files over 512 MiB in parts."""

_OPTIONS = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
    "-c", "submodule.recurse=false", "-c", "protocol.allow=never", "-c", "core.quotePath=false",
    "-c", "commit.gpgSign=false", "-c", "log.showSignature=false", "-c", "advice.detachedHead=false", "--no-pager",
)  # fmt: skip
"""Options of each call, with which git runs no program, asks no other machine, and cleans up nothing by itself."""

_VARIABLES = (
    "XDG_CONFIG_HOME", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL",
    "USER", "LOGNAME",
)  # fmt: skip
"""Variables that git gets from the user: where settings are, and the author of commits."""


COPIED_SETTINGS = ("core.autocrlf", "core.eol", "core.ignorecase", "core.sparseCheckout", "core.sparseCheckoutCone")
"""Settings of the user's repository that decide about the files of a checkout, and are copied to it."""

UNTOUCHED = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_LFS_SKIP_SMUDGE": "1"}
"""Variables that switch off the filters of the user: files are checked out as they are stored."""


PACK_HEADER = 12
"""Bytes of the header at the beginning of a pack: `PACK`, version, number of objects."""

_LOOSE = 100
"""Most objects of a pack that are stored one by one instead of as a pack; like git's `fetch.unpackLimit`."""

_PLACES = 4
"""Number of lines that `open_repository` asks git for, before the one with the commit."""

_OF_GIT = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"})
"""Variables that would make git use another repository."""


class GitFailedError(CrewboardError):
    """git refused or failed. `code` is its exit code, -1 if it did not run to its end; `output` its standard output."""

    exit_code = ExitCode.BAD_DATA

    def __init__(self, text: str, code: int, output: bytes = b"") -> None:
        super().__init__(text)
        self.code = code
        self.output = output


class NoRepositoryError(CrewboardError):
    """There is no repository that agents can have worktrees of.

    `missing` is True if there is no repository or no commit in it, False if git is missing or cannot use it.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


@dataclass(frozen=True)
class Repository:
    """A git repository. All paths are real paths. That of a host (`open_workspace`) is bare: it has no working tree."""

    top: Path
    """The folder of the working tree, which contains the team's root."""
    directory: Path
    """The git directory of this working tree."""
    common: Path
    """The directory with objects and refs. It differs from `directory` in a linked worktree."""
    hash_name: str
    """`sha1` or `sha256`."""
    program: Path

    def git(self, *arguments: str, environment: Mapping[str, str] | None = None, stdin: str = "") -> str:
        """Run git on the objects and refs, without the working tree; return its output without the last newline.

        Attributes and filters of files have no effect.

        Raises:
            GitFailedError: git ended with another code than 0.
        """
        # git looks for attributes below the folder where it stands, and in the index: there are none for either.
        alone = {"GIT_INDEX_FILE": str(self.directory / "crewboard-has-no-index"), **(environment or {})}
        return self._text(("-c", "core.bare=true", *arguments), alone, stdin, place=self.directory)

    def in_working_tree(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        keep: tuple[int, ...] = (),
        instead: Path | None = None,
    ) -> str:
        """Run git on the working tree, or on the folder `instead`; return its output without the last newline.

        The process inherits the descriptors `keep`.

        Raises:
            GitFailedError: git ended with another code than 0.
        """
        return self._text((f"--work-tree={instead or self.top}", *arguments), environment, stdin, keep)

    def commit(self, name: str) -> str:
        """Return the id of the commit that `name` means, such as a branch, a tag or an id.

        Raises:
            UsageError: There is no such commit.
        """
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except GitFailedError:
            raise UsageError(f"{name!r} is no commit of the repository {self.top}") from None

    def tree(self, commit: str) -> str:
        """Return the id of the tree of a commit.

        Raises:
            GitFailedError: The commit is missing.
        """
        return self.git("rev-parse", f"{commit}^{{tree}}")

    def branch(self) -> str | None:
        """Return the name of the branch that is checked out, without `refs/heads/`; None if HEAD is detached."""
        try:
            return self.git("symbolic-ref", "--quiet", "HEAD").removeprefix("refs/heads/")
        except GitFailedError:
            return None

    def ref(self, name: str) -> str | None:
        """Return the id of the object that a ref or another name of git means; None if there is none."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        except GitFailedError:
            return None

    def has(self, commit: str) -> bool:
        """Return True if the repository has a commit, perhaps without its history."""
        return self.ref(f"{commit}^{{commit}}") is not None

    def keep(self, ref: str, commit: str, before: str = "") -> None:
        """Set a ref of crewboard, below `refs/crew/`, to a commit. Call this under a lock for that ref.

        With `before`, do it only if the ref is that commit now; all zeros mean that it must not exist.

        Raises:
            GitFailedError: The ref is not `before`, or cannot be written.
        """
        # Left by a git that was killed. No other git writes these refs.
        (self.common / f"{ref}.lock").unlink(missing_ok=True)
        self.git("update-ref", "--create-reflog", "-m", "snapshot", ref, commit, *([before] if before else []))

    def remote_of(self, branch: str) -> str:
        """Return the remote that a branch is pushed to: its own, else the only one, else `origin`.

        Raises:
            UsageError: There is no such remote.
        """
        with contextlib.suppress(GitFailedError):
            own = self.git("config", "--get", f"branch.{branch}.remote")
            if own != ".":
                return own
        known = self.git("remote").split()
        if len(known) == 1 or "origin" in known:
            return known[0] if len(known) == 1 else "origin"
        why = "no remote" if not known else f"several remotes, and {branch} is pushed to none of them"
        raise UsageError(f"{self.top} has {why}; `git push -u REMOTE {branch}` sets one")

    def as_user(self, environment: Mapping[str, str], program: Path, *arguments: str) -> str:
        """Run git or gh with the user's `environment`, settings and hooks, as the user does; return its output.

        Raises:
            BadDataError: The program failed; the message has the last lines of its error output.
        """
        kept = {name: value for name, value in environment.items() if name not in _OF_GIT}
        # Programs that it starts, such as ssh, must not come from a place where agents write.
        kept["PATH"] = programs.path_outside_workspaces()
        what = f"{program.name} {arguments[0]}"
        try:
            done = subprocess.run(
                [str(program), *arguments], cwd=self.top, env=kept, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=TIMEOUT, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadDataError(f"{what} cannot be run: {error}") from error
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise BadDataError(f"{what} failed: {'; '.join(lines[-3:]) or f'exit code {done.returncode}'}")
        return done.stdout.decode("utf-8", "replace").strip()

    @property
    def objects(self) -> Path:
        """Return the folder of the repository's objects."""
        return self.common / "objects"

    @property
    def borrows(self) -> bool:
        """Return True if the repository borrows objects of another one."""
        return (self.objects / "info/alternates").exists()

    def take_in(self, pack: int, header: bytes, limit: int, *, seconds: float) -> None:
        """Add the objects of a pack, read from the descriptor `pack`, after git has checked them.

        `header` are the first `PACK_HEADER` bytes of the pack, which were read already. The pack may have at most
        `limit` bytes.

        Raises:
            GitFailedError: git refused the pack, or took longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        version, count = int.from_bytes(header[4:8], "big"), int.from_bytes(header[8:], "big")
        options = (f"--max-input-size={limit}", f"--pack_header={version},{count}")
        check = ("index-pack", "--stdin", "--fix-thin", "--strict", *options)
        if count > _LOOSE:
            self._receive(*check, stdin=pack, deadline=deadline)
            return
        # Checked elsewhere first, because single objects are written before the last of them was checked.
        with tempfile.TemporaryDirectory(prefix="crewboard-pack-") as folder:
            self._receive(*check, f"{folder}/checked.pack", stdin=pack, deadline=deadline)
            with Path(folder, "checked.pack").open("rb") as checked:
                self._receive("unpack-objects", "-q", stdin=checked.fileno(), deadline=deadline)

    def _receive(self, *arguments: str, stdin: int, deadline: float) -> None:
        receiver = subprocess.Popen(
            [str(self.program), *_OPTIONS, f"--git-dir={self.directory}", "-c", "core.bare=true", *arguments],
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.directory, env=git_environment(),
        )  # fmt: skip
        # A pack of some kilobytes can describe objects of any size, which git makes in memory.
        with contextlib.suppress(ProcessLookupError, AttributeError):
            # AttributeError: only Linux limits another process.
            resource.prlimit(receiver.pid, resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
        try:
            _, said = receiver.communicate(timeout=max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            receiver.kill()
            receiver.communicate()
            raise GitFailedError("it took too long", -1) from None
        if receiver.returncode:
            lines = said.decode("utf-8", "replace").strip().splitlines()
            raise GitFailedError("; ".join(line.removeprefix("fatal: ") for line in lines), receiver.returncode)

    def _text(
        self,
        arguments: tuple[str, ...],
        environment: Mapping[str, str] | None,
        stdin: str,
        keep: tuple[int, ...] = (),
        place: Path | None = None,
    ) -> str:
        # File names need not be UTF-8.
        arguments = (f"--git-dir={self.directory}", *arguments)
        done = _run(self.program, arguments, place or self.top, environment, os.fsencode(stdin), keep)
        return os.fsdecode(done).removesuffix("\n")


def find_gh(root: Path) -> Path:
    """Return the path of the program gh.

    Raises:
        UsageError: gh is not installed, or other users or agents can change it.
    """
    found = programs.find_program("gh", root)
    if found is None:
        raise UsageError(programs.passed_over("gh") or "gh is not installed; a pull request needs it")
    return found


def git_environment() -> dict[str, str]:
    """Return the environment for git outside every sandbox, without credentials and most variables of the user."""
    return {**programs.clean_environment(*_VARIABLES), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


def find_git(root: Path) -> Path:
    """Return the program git.

    Raises:
        NoRepositoryError: It is missing or too old.
    """
    program = programs.find_program("git", root)
    if program is None:
        raise NoRepositoryError(programs.passed_over("git") or "git is not installed")
    found = _version(program)
    if found < OLDEST:
        raise NoRepositoryError(
            f"git is version {'.'.join(map(str, found))}; worktrees need {'.'.join(map(str, OLDEST))}"
        )
    return program


def open_repository(root: Path) -> Repository:
    """Return the repository whose working tree contains the folder `root`.

    Raises:
        NoRepositoryError: There is no such repository, it has no commit yet, or git is missing or too old.
    """
    program = find_git(root)
    # If there is no commit, the rest is printed, and the exit code is 1.
    ask = ("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir",
           "--show-object-format", "--verify", "--quiet", "HEAD^{commit}")  # fmt: skip
    try:
        lines = os.fsdecode(_run(program, ask, root)).rstrip("\n").split("\n")
    except GitFailedError as error:
        if "dubious ownership" in (said := str(error)):
            path = shlex.quote(said.partition("'")[2].rpartition("'")[0])
            raise NoRepositoryError(
                f"{said}: another user owns it; `env -u GIT_CONFIG_GLOBAL git config --global --add safe.directory "
                f"{path}` lets git use it"
            ) from None
        if "not a git repository" in str(error):
            raise NoRepositoryError(
                f"{root} is not in a git repository; run `git init` there, and commit something", missing=True
            ) from None
        lines = os.fsdecode(error.output).rstrip("\n").split("\n")
        if error.code == 1 and len(lines) == _PLACES:
            where = os.path.realpath(lines[0])
            raise NoRepositoryError(
                f"the repository {where} has no commit yet; commit something first", missing=True
            ) from None
        if error.code != 1 or len(lines) < _PLACES:
            raise NoRepositoryError(f"the git repository of {root} cannot be used: {error}") from None
    if len(lines) != _PLACES + 1:
        raise NoRepositoryError(f"the path {str(root)!r} has a line break: no worktree can be made of its repository")
    top, directory, common = (Path(os.path.realpath(line)) for line in lines[:3])
    return Repository(top, directory, common, lines[3], program)


def open_workspace(team: TeamDirectory) -> Repository:
    """Return crewboard's repository on a host, whose objects the checkouts of the host's agents borrow.

    Raises:
        NoRepositoryError: The repository was not made yet, or git is missing or too old.
    """
    path = Path(os.path.realpath(team.path)) / team.workspace_repository.name
    if not path.is_dir():
        raise NoRepositoryError(f"no pushed workspace was brought to {path}")
    return _workspace_at(path, path.stat().st_ino, find_git(team.root))


@lru_cache(maxsize=4)
def _workspace_at(path: Path, _inode: int, program: Path) -> Repository:
    said = _run(program, (f"--git-dir={path}", "rev-parse", "--show-object-format"), path)
    return Repository(path, path, path, os.fsdecode(said).strip(), program)


def make_workspace(team: TeamDirectory, hash_name: str) -> Repository:
    """Make the repository that `open_workspace` returns, which is missing, and return it. Call this under a lock.

    `hash_name` is `sha1` or `sha256`.

    Raises:
        NoRepositoryError: git is missing or too old.
        GitFailedError: The repository cannot be made.
    """
    path = Path(os.path.realpath(team.path)) / team.workspace_repository.name
    new = path.with_name(f".{path.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    _initialize(find_git(team.root), hash_name, new, "--bare", "--initial-branch=base")
    new.rename(path)
    return open_workspace(team)


def repository_of(team: TeamDirectory, worktree: Worktree) -> Repository:
    """Return the repository whose objects a checkout on this machine borrows, and that has its snapshots.

    Raises:
        NoRepositoryError: There is no such repository.
    """
    return open_workspace(team) if worktree.carried else open_repository(team.root)


def _run(
    program: Path,
    arguments: Iterable[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    keep: tuple[int, ...] = (),
) -> bytes:
    try:
        done = subprocess.run(
            [str(program), *_OPTIONS, *arguments], input=stdin, capture_output=True, cwd=folder,
            env={**git_environment(), **(environment or {})}, timeout=TIMEOUT, check=False, pass_fds=keep,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitFailedError(f"git cannot be run: {error}", -1) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        # At the top of a mounted disk, a line about that follows.
        fatal = next((line for line in said if line.startswith("fatal: ")), None)
        text = fatal or (said[-1] if said else f"git ended with {done.returncode}")
        raise GitFailedError(text.removeprefix("fatal: ").removeprefix("error: "), done.returncode, done.stdout)
    return done.stdout


@lru_cache
def _version(program: Path) -> tuple[int, ...]:
    said = _run(program, ["--version"], Path("/")).decode("utf-8", "replace")
    found = re.search(r"(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _initialize(program: Path, hash_name: str, folder: Path, *options: str) -> Repository:
    """Make an empty repository in `folder`, without templates of the user, and return it."""
    command = ("init", "--quiet", "--template=", f"--object-format={hash_name}", *options, str(folder))
    _run(program, command, folder.parent, UNTOUCHED)
    directory = folder if "--bare" in options else folder / ".git"
    (directory / "info").mkdir(exist_ok=True)
    return Repository(folder, directory, directory, hash_name, program)


def make_borrower(
    repository: Repository, folder: Path, borrowed: Iterable[str | os.PathLike[str]], *options: str
) -> Repository:
    """Make an empty repository in `folder` that borrows the objects in the folders `borrowed`, and return it.

    Settings and files of `repository` that decide about a checkout are copied: line endings, ignored files, sparse
    patterns, where a shallow history ends. `options` are those of `git init`.
    """
    own = _initialize(repository.program, repository.hash_name, folder, *options)
    if lines := b"".join(os.fsencode(path) + b"\n" for path in borrowed):
        (own.objects / "info/alternates").write_bytes(lines)
    pattern = f"^({'|'.join(map(re.escape, COPIED_SETTINGS))})$".lower()
    with contextlib.suppress(GitFailedError):
        listed = repository.in_working_tree("config", "--null", "--get-regexp", pattern)
        entries = (entry.partition("\n") for entry in listed.removesuffix("\0").split("\0"))
        # A name without a value means true. If a name comes several times, the last one counts.
        settings = {name: value if separator else "true" for name, separator, value in entries}
        for name, value in settings.items():
            own.git("config", name, value)
    # The user's own patterns of ignored files that are not in the repository.
    for source, file in ((repository.common, "info/exclude"), (repository.directory, "info/sparse-checkout"),
                         (repository.common, "shallow")):  # fmt: skip
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(source / file, own.directory / file)
    return own
