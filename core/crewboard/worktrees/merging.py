"""Merge the work of an agent into a branch of the user's repository, and revert such merges.

The new commit is made first, from objects alone. Then a `Mover` moves the branch to it; if the branch is checked out,
the working tree and the index follow. The move is recorded on the disk before it begins (`acceptances.json`), so that
after a kill the next merge or undo finishes it or takes it back:

- `index.lock` is held meanwhile, so that no other git changes the index. It is a hard link to a file of crewboard, by
  which a later process knows whose lock it is. git works on a copy of the index, which then replaces it in one step.
- No file of the working tree is ever half-written: git writes each new content into a folder of crewboard, from where
  it is renamed. So any content other than the old and the new one is the user's.
- The branch moves last. While it has not moved, the move is taken back.
- git inherits the lease of this process. If the lease is free, no git that crewboard started is left.
"""

import contextlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crewboard.errors import BadDataError, CrewboardError, TryLaterError, UsageError
from crewboard.records.team import Acceptance, Acceptances, How, Move
from crewboard.store import files as store_files
from crewboard.store import leases
from crewboard.store.interface import Held
from crewboard.store.layout import HOME, TeamDirectory
from crewboard.worktrees.changes import (
    ABSENT,
    SUBMODULE,
    Changes,
    Entry,
    entries_between,
    index_lines,
    is_ancestor,
    lacks_base,
    merged,
    name_some,
    synthetic_commit,
)
from crewboard.worktrees.put_back import Tree
from crewboard.worktrees.repository import Repository
from crewboard.worktrees.snapshot import Snapshot, ref_of

_UNDER_WAY = {
    "MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection", "rebase-merge": "a rebase", "rebase-apply": "a rebase",
}  # fmt: skip
"""Files in a git directory that show that git is in the middle of something, and what it is."""

_MOMENT = 0.1
"""Seconds after which a lock of HEAD that another, running git holds is gone."""

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
    r"|[\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Characters that show nothing, break lines, or change the direction of a text."""

_TRAILER = re.compile(r"(?<=\n)[ \t]*(?=[a-z0-9]+(?:-[a-z0-9]+)+[ \t]*:)", re.IGNORECASE)
_ACTS = re.compile(
    r"(?P<mention>(?<![\w`])@\w[\w/-]*|<!--|-->)"
    r"|(?P<word>\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?)[ \t:]+)(?P<issue>[\w./-]*#\d+|https?://\S+/issues/\d+)",
    re.IGNORECASE,
)
"""Texts on which GitHub and others act: a mention, the mark of a comment, an issue after a word that closes it."""


@dataclass(frozen=True)
class Target:
    """The branch to merge into. `ref` is its full name, or `HEAD` if no branch is checked out; `tip` is its commit."""

    ref: str
    tip: str
    checked_out: bool

    @property
    def name(self) -> str:
        """Return the name of the branch without `refs/heads/`; `HEAD` if no branch is checked out."""
        return self.ref.removeprefix("refs/heads/")


def load(team: TeamDirectory) -> Acceptances:
    """Return the record of merges, and of the move that is under way on this machine, if there is one.

    Raises:
        BadDataError: The record is damaged.
        StorageError: The record cannot be read.
    """
    record = team.acceptances.load() or Acceptances()
    if team.store == team.local:
        return record
    # A move of another machine is in a clone that this one cannot reach.
    own = team.acceptances_here.load() or Acceptances()
    return record.replace(move=own.move)


def accepted_base(team: TeamDirectory, repository: Repository, name: str, tip: str, snapshot: Snapshot) -> str | None:
    """Return the commit to compare an agent's work with, if work of it was merged into a branch with this `tip`.

    That is usually the last snapshot that was merged. Return None if none was, or if the agent has merged the result
    into its own branch: then git's own merge base is right.
    """
    known = _merges_in(team, repository, name, tip)
    for each in reversed(known):
        if each.undone is not None:
            # After a revert, commits that were merged are in the branch, and yet their changes are not.
            if each.how == "merge" and repository.has(each.base):
                return each.base
            continue
        if is_ancestor(repository, each.result, snapshot.commit):
            return None
        if repository.has(each.commit):
            return each.commit
        # Only another clone has that snapshot. In its place comes the commit at which the agent began, with the changes
        # of its merges.
        commit = snapshot.begin
        for merge in known[: known.index(each) + 1]:
            if merge.undone is None:
                replayed = merged(repository, commit, merge.result, merge.before)
                if replayed.conflicts:
                    return None
                commit = synthetic_commit(repository, replayed.tree)
        return commit
    return None


def _merges_in(team: TeamDirectory, repository: Repository, name: str, tip: str) -> list[Acceptance]:
    """Return the merges of an agent's work that a branch with this `tip` has in its history, oldest first."""
    return [
        each
        for each in load(team).acceptances
        if each.agent == name and not each.discarded and is_ancestor(repository, each.result, tip)
    ]


def last_merge_at(team: TeamDirectory, repository: Repository, name: str, tip: str) -> float:
    """Return when an agent's work was last merged into a branch with this `tip`, in epoch seconds; 0 for never."""
    merges = (each.at for each in _merges_in(team, repository, name, tip) if each.undone is None)
    return max(merges, default=0)


def merges_of(team: TeamDirectory, name: str) -> tuple[tuple[str, str], ...]:
    """Return the commits of the branch before and after each merge of an agent's work that was not undone."""
    return tuple(
        (each.before, each.result) for each in load(team).acceptances if each.agent == name and not each.undone
    )


def full_name(repository: Repository, branch: str) -> str:
    """Return the full name of a branch; if it is a symbolic ref, the full name of its target."""
    ref = f"refs/heads/{branch}"
    try:
        return repository.git("symbolic-ref", "--quiet", ref)
    except CrewboardError:
        return ref


def find_target(repository: Repository, into: str | None) -> Target:
    """Return the branch called `into`, or the branch or commit that is checked out.

    Raises:
        UsageError: There is no such branch, or it is checked out in another worktree of the user.
    """
    branch = repository.branch()
    current = f"refs/heads/{branch}" if branch is not None else "HEAD"
    ref = full_name(repository, into) if into is not None else current
    if not ref.startswith("refs/heads/") and ref != "HEAD":
        raise UsageError(f"{into} stands for {ref}, which is no branch; name a branch")
    if ref == current:
        return Target(ref, repository.commit("HEAD"), checked_out=True)
    try:
        tip = repository.git("show-ref", "--verify", "--hash", "--", ref)
    except CrewboardError:
        raise UsageError(f"there is no branch {into!r} in {repository.top}; `git branch` makes one") from None
    blocks = repository.in_working_tree("worktree", "list", "--porcelain", "-z").split("\0\0")
    for block in blocks:
        lines = block.split("\0")
        if f"branch {ref}" in lines:
            raise UsageError(f"{into} is checked out in {lines[0].removeprefix('worktree ')}; merge it there")
    return Target(ref, tip, checked_out=False)


def make_commit(
    repository: Repository,
    target: Target,
    changes: Changes,
    snapshot: Snapshot,
    how: How,
    message: str | None = None,
) -> str | None:
    """Make the commit that brings the changes into a branch, and return it; None if they are all in it already.

    No branch and no file is changed. The user is the author of all new commits, and the agent their co-author.

    Raises:
        BadDataError: The changes conflict, or are in the folder of teams; a merge commit would bring in commits of
            others; or git cannot commit.
    """
    by = changes.agent
    merge = merged(repository, target.tip, snapshot.commit, changes.base)
    if merge.conflicts:
        raise BadDataError(
            f"the work of {by} conflicts with {target.name} in {name_some(merge.conflicts)}; nothing was changed"
        )
    if merge.tree == repository.tree(target.tip):
        return None
    if how == "merge" and lacks_base(repository, snapshot, target.tip):
        # The commits before it would be in the branch without their changes: git would never merge these again.
        raise BadDataError(
            f"{target.name} lacks the commit {snapshot.base[:12]}, at which the work of {by} began, so that a merge "
            "commit would bring in commits of others; use --squash or --rebase"
        )
    _require_allowed(changes.agent, entries_between(repository, target.tip, merge.tree))
    if how != "squash":
        # A checkout of one of the commits would write what it has in the folder of teams.
        commits = repository.git("rev-list", snapshot.head, f"^{target.tip}", f"^{snapshot.base}")
        listed = ("diff-tree", "--stdin", "--root", "-m", "-r", "-z", "--name-only", "--no-renames", "--no-commit-id")
        _require_allowed(changes.agent, filter(None, repository.git(*listed, stdin=f"{commits}\n").split("\0")))
    known = [f"^{target.tip}", f"^{changes.base}", f"^{snapshot.base}"]
    own = repository.git("rev-list", "--reverse", "--topo-order", "--no-merges", snapshot.head, *known).split()
    said = _clean(message) if message is not None else None
    if how == "rebase":
        return _replayed(repository, target, changes, snapshot, own, merge.tree, said)
    said = said or _subject_of(repository, by, own)
    if how == "merge":
        theirs = snapshot.head
        if repository.tree(theirs) != snapshot.tree:
            theirs = _commit(repository, snapshot.tree, [theirs], f"Uncommitted work of {changes.agent}", by)
        return _commit(repository, merge.tree, [target.tip, theirs], said, by)
    return _commit(repository, merge.tree, [target.tip], said, by)


def is_elsewhere(team: TeamDirectory, repository: Repository, name: str, snapshot: Snapshot) -> bool:
    """Return True if exactly the work in a snapshot was merged into a branch or tag that still has the merge."""
    if repository.ref(ref_of(team, name, "merged")) is None:
        return False
    for each in load(team).acceptances:
        mine = each.agent == name and each.undone is None and not each.discarded
        if mine and repository.ref(f"{each.commit}^{{tree}}") == snapshot.tree:
            branches = ("refs/heads", "refs/remotes", "refs/tags")
            # It fails if the commit is gone.
            with contextlib.suppress(CrewboardError):
                if repository.git("for-each-ref", "--count=1", "--contains", each.result, *branches):
                    return True
    return False


def _replayed(
    repository: Repository, target: Target, changes: Changes, snapshot: Snapshot, commits: list[str], tree: str,
    message: str | None,
) -> str:  # fmt: skip
    """Make the agent's `commits` again on top of the branch, and one more for what is left to reach `tree`.

    Return the last one. With `message`, it is the message of all.

    Raises:
        BadDataError: One of the commits conflicts.
    """
    by, tip = changes.agent, target.tip
    # Of an earlier merge, `base` is a snapshot, and its parent the last commit of the agent that it contained.
    for commit in commits:
        parent = repository.ref(f"{commit}^1") or snapshot.base
        new = merged(repository, tip, commit, parent)
        if new.conflicts:
            subject = _clean(repository.git("log", "-1", "--format=%s", commit))
            raise BadDataError(
                f"the commit {commit[:12]} ({subject}) of {changes.agent} conflicts with {target.name} in "
                f"{name_some(new.conflicts)}, although all of its work together does not; use --squash or --merge"
            )
        if new.tree != repository.tree(tip):
            said = message or quoted(repository.git("log", "-1", "--format=%B", commit))
            tip = _commit(repository, new.tree, [tip], said, by)
    if tree != repository.tree(tip):
        said = message or f"Uncommitted work of {changes.agent}"
        return _commit(repository, tree, [tip], said, by)
    return tip


def make_revert(repository: Repository, target: Target, old: Acceptance) -> str | None:
    """Make a commit on top of the branch that takes the merge `old` back, and return it.

    Return None if the branch has nothing of that merge any more.

    Raises:
        BadDataError: Later commits changed the same lines, or git cannot commit.
    """
    merge = merged(repository, target.tip, old.before, old.result)
    if merge.conflicts:
        raise BadDataError(
            f"later commits changed what {old.agent} did in {name_some(merge.conflicts)}; nothing was changed"
        )
    if merge.tree == repository.tree(target.tip):
        return None
    said = _clean(repository.git("log", "--reverse", "--format=* %H %s", f"{old.before}..{old.result}"))
    what = f"the work of {old.agent}" if "\n" in said else f'"{said.split(" ", 2)[-1]}"'
    return _commit(repository, merge.tree, [target.tip], f"Revert {what}\n\nTakes back what {old.agent} did:\n\n{said}")


def _subject_of(repository: Repository, agent: str, commits: list[str]) -> str:
    """Return the message for a squash or a merge: that of the agent's commit if it made one, else a list of them."""
    if len(commits) == 1:
        return quoted(repository.git("log", "-1", "--format=%B", commits[0]))
    subjects = [quoted(repository.git("log", "-1", "--format=%s", commit)) for commit in commits]
    return "\n".join([f"Add the work of {agent}", *([""] if subjects else []), *(f"* {s}" for s in subjects)])


def _commit(repository: Repository, tree: str, parents: list[str], message: str, by: str | None = None) -> str:
    """Make a commit as the user, with the agent `by` as a co-author if it is given, and return it.

    Raises:
        BadDataError: git cannot commit.
    """
    trailer = f"\nCo-authored-by: {by} (crewboard) <{by}@crewboard.invalid>\n" if by else ""
    ours = [word for parent in parents for word in ("-p", parent)]
    try:
        return repository.git("commit-tree", tree, *ours, "-F", "-", stdin=f"{message.rstrip()}\n{trailer}")
    except CrewboardError as error:
        raise BadDataError(f"git cannot commit: {error}; set user.name and user.email with `git config`") from error


def quoted(text: str) -> str:
    """Return a message of an agent with trailers, mentions and words that close issues quoted, and cleaned.

    So neither git nor a site such as GitHub acts on them as if the user had written them.
    """

    def quote(found: re.Match[str]) -> str:
        return f"{found['word'] or ''}`{found['issue'] or found['mention']}`"

    return _ACTS.sub(quote, _TRAILER.sub("> ", _clean(text)))


def _clean(text: str) -> str:
    """Return a message with control and invisible characters replaced by `?`; `No message` if it is empty."""
    return _CONTROL.sub("?", text.replace("\r\n", "\n")).strip() or "No message"


def _locked(repository: Repository, lock: Path) -> str:
    """Return the error text for an index or a branch that another git has locked."""
    return f"git is at work in {repository.top}; try again when it has ended, or remove {lock} if no git runs there"


def _require_allowed(agent: str, paths: Iterable[str]) -> None:
    """Raise BadDataError if one of the paths is in the folder of teams, which no agent may change."""
    bad = list(dict.fromkeys(path for path in paths if HOME in path.lower().split("/")))
    if bad:
        raise BadDataError(f"{agent} changed {name_some(bad)}; agents may not change {HOME}")


@contextmanager
def open_mover(team: TeamDirectory, repository: Repository) -> Iterator["Mover"]:
    """Yield a mover while this process holds the team's lease for moving branches.

    A move that was interrupted is finished or taken back first.

    Raises:
        TryLaterError: Another process has the lease, or the index is locked by another git.
        BadDataError: The record of acceptances is damaged.
    """
    lease = leases.take(team.lease("acceptance"))
    if lease is None:
        raise TryLaterError("another merge or undo is under way; try again when it is done")
    try:
        mover = Mover(team, repository, lease)
        mover.recover()
        yield mover
    finally:
        leases.release(lease)


class Mover:
    """Moves a branch from one commit to another, with the working tree and the index if it is checked out."""

    def __init__(self, team: TeamDirectory, repository: Repository, lease: Held) -> None:
        self._team = team
        self._repository = repository
        self._lease = lease
        self.record = load(team)

    def discard(self, name: str) -> None:
        """Record that the worktree of an agent is gone, so that later work is not compared with its merges.

        Raises:
            StorageError: The record could not be written.
        """
        for each in self.record.acceptances:
            if each.agent == name and not each.discarded:
                self._record(each.replace(discarded=True))

    def require_clean(self, target: Target, new: str) -> None:
        """Check that a move to the commit `new` overwrites nothing that the user did not commit.

        Raises:
            BadDataError: It would; the message names the files.
            TryLaterError: git is in the middle of something, or has the index locked.
        """
        if not target.checked_out:
            return
        directory = self._repository.directory
        for name, what in _UNDER_WAY.items():
            if (directory / name).exists():
                raise TryLaterError(f"{what} is under way in {self._repository.top}; finish or abort it first")
        if os.path.lexists(directory / "index.lock"):
            raise TryLaterError(_locked(self._repository, directory / "index.lock"))
        entries = entries_between(self._repository, target.tip, new)
        # Files that differ from HEAD, in the index or in the working tree.
        said = self._repository.in_working_tree(
            "status", "--porcelain", "-z", "--untracked-files=no", "--no-renames", "--ignore-submodules=dirty",
            environment={"GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
        dirty = {line[3:] for line in said.split("\0") if line} & set(entries)
        # It leaves out edited files that the user marked as unchanged.
        listed = self._repository.in_working_tree("ls-files", "-v", "-z").split("\0")
        marked = {line[2:] for line in listed if line[:1].islower() or line.startswith("S")}
        top = self._repository.top
        there = {path: entries[path] for path in marked & set(entries) if os.path.lexists(top / path)}
        if there:
            with tempfile.TemporaryDirectory(prefix="crewboard-index-") as folder:
                dirty |= set(there) - self._unchanged(Path(folder, "index"), there, 0)
        hindered = sorted(dirty | {path for each in entries for path in self._in_the_way(each, entries)})
        if hindered:
            raise BadDataError(
                f"not committed, and would be overwritten: {name_some(hindered)}; commit or stash it first"
            )

    def _in_the_way(self, path: str, entries: dict[str, tuple[Entry, Entry]]) -> Iterator[str]:
        """Yield the untracked files that are in the place of the file `path`, which a move makes."""
        (old_mode, _), (new_mode, _) = entries[path]
        top = self._repository.top
        if new_mode == ABSENT:
            return
        parts = path.split("/")
        for count in range(1, len(parts)):
            parent = "/".join(parts[:count])
            there = top / parent
            if os.path.lexists(there) and not _is_folder(there) and parent not in entries:
                yield parent
        there = top / path
        if old_mode == SUBMODULE != new_mode and _is_folder(there) and any(there.iterdir()):
            # git would remove it with everything in it, committed there or not.
            yield path
        if old_mode != ABSENT or not os.path.lexists(there):
            return
        if not _is_folder(there):
            # A link that the old tree has above this path is no file of its own.
            if there.parent.resolve() == there.parent:
                yield path
            return
        for folder, folders, names in os.walk(there):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            found = (os.path.relpath(Path(folder, name), top) for name in (*names, *links))
            yield from (name for name in found if name not in entries)

    def move(self, target: Target, new: str, acceptance: Acceptance) -> None:
        """Move the branch to the commit `new`, and record `acceptance`. Call `require_clean` before.

        Raises:
            BadDataError: The working tree changed meanwhile; nothing was changed.
            TryLaterError: The branch or the index changed meanwhile; nothing was changed.
        """
        move = Move(
            id=secrets.token_hex(8), ref=target.ref, old=target.tip, new=new, files=target.checked_out,
            acceptance=acceptance,
        )  # fmt: skip
        self._save(move=move)
        try:
            if move.files:
                self._lock_index(move)
        except BaseException:
            self._remove_files_of(move)
            self._save(move=None)
            raise
        try:
            if move.files:
                # The working tree and the index follow the branch. All else in them stays as it is.
                copy, staging = self._copy_of_index(move), self._staging(move)
                # What is missing in a working tree is no reason to refuse, and only what is new is written.
                self._git("read-tree", "-m", "-u", move.old, move.new, index=copy, instead=staging)
                check = self._copy_of_index(move, "check")
                self._git("read-tree", "-m", "-u", "-n", move.old, move.new, index=check)
                changed = {
                    path: new for path, (_, new) in entries_between(self._repository, move.old, move.new).items()
                }
                self._unlink(path for path, (mode, _) in changed.items() if mode == ABSENT)
                self._put(staging, changed)
                self._refresh(copy)
                copy.replace(self._repository.directory / "index")
            self._change_ref(move)
        except BaseException:
            self.recover(failed=True)
            raise
        self._finish(move)

    def _staging(self, move: Move) -> Path:
        """Make a folder next to the index, in which git writes files before they are moved, and return it."""
        staging = self._path(move, "files")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        return staging

    def _put(self, staging: Path, wanted: dict[str, Entry]) -> None:
        """Move the wanted files from the folder `staging` to the working tree.

        Files that git did not write there, as in a sparse working tree, are left as they are.
        """
        top = self._repository.top
        with store_files.storage_errors(f"cannot write the files of {top}"), Tree(top) as files:
            for path, (mode, _) in wanted.items():
                if mode == SUBMODULE:
                    (top / path).mkdir(parents=True, exist_ok=True)
                elif os.path.lexists(staging / path):
                    files.put(path, staging / path)

    def recover(self, *, failed: bool = False) -> None:
        """Finish a move that was interrupted if its branch has moved, else take it back. This may be interrupted, too.

        If the branch is neither where it was nor where it was to be, the user has changed it since, and the working
        tree is left as it is; but if the move has just `failed` in this process, it is taken back.

        Raises:
            TryLaterError: The index is locked by another git.
        """
        move = self.record.move
        if move is None:
            return
        tip = self._repository.ref(f"{move.ref}^{{commit}}")
        if not failed:
            # Remove the locks that our git left when it was killed. Another git's are left. Git writes the new commit
            # into the lock of the branch, so that ours is known by it. That of HEAD is empty, and ours is there until
            # just after the branch has moved; another git's is gone in a moment.
            lock, head = self._ref_locks(move)
            is_ours = tip == move.new
            with contextlib.suppress(OSError):
                if lock.read_text().strip() in (move.new, move.old):
                    is_ours = True
                    lock.unlink()
            with contextlib.suppress(OSError):
                found = head.stat()
                if is_ours and not found.st_size:
                    time.sleep(_MOMENT)
                    if os.path.samestat(found, head.stat()):
                        head.unlink()
        if tip is not None and is_ancestor(self._repository, move.new, tip) and (tip != move.old):
            self._finish(move)
            return
        branch = self._repository.branch()
        checked_out = "HEAD" if branch is None else f"refs/heads/{branch}"
        if move.files and (failed or tip == move.old) and move.ref == checked_out:
            self._lock_index(move)
            # Restore the old content of each file that is new or missing. Another content is the user's: it stays.
            entries = entries_between(self._repository, move.old, move.new)
            as_old = self._unchanged(self._path(move, "old"), entries, 0)
            as_new = self._unchanged(self._path(move, "new"), entries, 1)
            restore = {
                path: old
                for path, (old, _) in entries.items()
                if path not in as_old and (path in as_new or self._is_missing(path, entries))
            }
            self._unlink(path for path, (mode, _) in restore.items() if mode == ABSENT)
            # A folder is left only if it has files of the user.
            present = {path: old for path, old in restore.items() if not _is_folder(self._repository.top / path)}
            # The attributes of all files say how these are written.
            whole, staging = self._path(move, "whole"), self._staging(move)
            whole.unlink(missing_ok=True)
            self._git("read-tree", move.old, index=whole)
            names = "".join(f"{path}\0" for path, (mode, _) in present.items() if mode not in (ABSENT, SUBMODULE))
            self._git("checkout-index", "-f", "-z", "--stdin", index=whole, stdin=names, instead=staging)
            self._put(staging, present)
            self._restore_index(move, entries)
        self._remove_files_of(move)
        self._save(move=None)

    def _ref_locks(self, move: Move) -> tuple[Path, Path]:
        """Return the paths of the locks that git holds while it moves the branch: of the branch and of HEAD."""
        place = self._repository.directory if move.ref == "HEAD" else self._repository.common
        return place / f"{move.ref}.lock", self._repository.directory / "HEAD.lock"

    def _finish(self, move: Move) -> None:
        self._remove_files_of(move)
        each = move.acceptance
        # What later changes are compared with must not be collected as garbage.
        if not each.discarded:
            mine = [other for other in _with(self.record.acceptances, each) if other.agent == each.agent]
            own = [other for other in mine if other.undone is None and not other.discarded]
            keep, ref = own[-1].commit if own else each.base, ref_of(self._team, each.agent, "merged")
            # What another clone merged is kept there.
            self._repository.git("update-ref", *((ref, keep) if self._repository.has(keep) else ("-d", ref)))
        self._record(each)
        self._save(move=None)

    def _record(self, acceptance: Acceptance) -> None:
        """Add a merge to the record, or replace its entry. Users on other machines may do so at the same time."""
        changed = self._team.acceptances.edit(lambda old: (old or Acceptances()).replace(
                acceptances=_with(old.acceptances if old is not None else [], acceptance)
            ), durable=True)  # fmt: skip
        self.record = changed.replace(move=self.record.move)

    def _save(self, *, move: Move | None) -> None:
        self.record = self.record.replace(move=move)
        self._team.acceptances_here.edit(lambda old: (old or Acceptances()).replace(move=move), durable=True)

    def _path(self, move: Move, what: str) -> Path:
        """Return the path of a file that only this move uses, next to the index."""
        return self._repository.directory / f"crewboard-{move.id}.{what}"

    def _remove_files_of(self, move: Move) -> None:
        lock, ours = self._repository.directory / "index.lock", self._path(move, "mark")
        with contextlib.suppress(FileNotFoundError):
            if lock.samefile(ours):
                lock.unlink()
        shutil.rmtree(self._path(move, "files"), ignore_errors=True)
        for path in self._repository.directory.glob(f"crewboard-{move.id}.*"):
            path.unlink(missing_ok=True)

    def _lock_index(self, move: Move) -> None:
        """Make the `index.lock` that keeps every other git from changing the index.

        Raises:
            TryLaterError: Another git has the lock.
        """
        lock, ours = self._repository.directory / "index.lock", self._path(move, "mark")
        with store_files.storage_errors(f"cannot lock the index of {self._repository.top}"):
            ours.touch()
            if lock.exists() and lock.samefile(ours):
                return
            try:
                os.link(ours, lock)
            except FileExistsError:
                raise TryLaterError(_locked(self._repository, lock)) from None

    def _git(self, *arguments: str, index: Path, stdin: str = "", instead: Path | None = None) -> str:
        """Run git on the working tree, or the folder `instead`, with another `index`; return its output.

        The process inherits the lease, so that the lease is held as long as it runs.
        """
        return self._repository.in_working_tree(
            *arguments, environment={"GIT_INDEX_FILE": str(index)}, stdin=stdin, keep=(self._lease.descriptor,),
            instead=instead,
        )  # fmt: skip

    def _refresh(self, index: Path) -> None:
        """Update the file times and sizes in an index, by which git sees which files are unchanged."""
        # It reports files that the user changed.
        with contextlib.suppress(CrewboardError):
            self._git("update-index", "-q", "--refresh", index=index)

    def _copy_of_index(self, move: Move, what: str = "index") -> Path:
        copy, index = self._path(move, what), self._repository.directory / "index"
        copy.with_name(copy.name + ".lock").unlink(missing_ok=True)
        copy.write_bytes(index.read_bytes() if index.exists() else b"")
        if not copy.stat().st_size:
            copy.unlink()
        return copy

    def _change_ref(self, move: Move) -> None:
        each = move.acceptance
        text = f"crewboard: {'undo' if each.undone is not None else each.how} {each.agent}"
        try:
            self._repository.in_working_tree(
                "update-ref", "--create-reflog", "-m", text, move.ref, move.new, move.old,
                keep=(self._lease.descriptor,),
            )  # fmt: skip
        except CrewboardError as error:
            for lock in self._ref_locks(move):
                if lock.exists():
                    raise TryLaterError(_locked(self._repository, lock)) from error
            raise TryLaterError(f"{move.ref} was changed by another program meanwhile: {error}") from error

    def _restore_index(self, move: Move, entries: dict[str, tuple[Entry, Entry]]) -> None:
        copy = self._copy_of_index(move)
        listed = self._git("ls-files", "-z", "--stage", index=copy).split("\0")
        found: dict[str, Entry] = {}
        for line in filter(None, listed):
            about, _, path = line.partition("\t")
            mode, ident, _ = about.split(" ")
            found[path] = (mode, ident)
        gone = (ABSENT, "0" * len(move.old))
        wrong = {path: old for path, (old, new) in entries.items() if found.get(path, gone) == new}
        self._git("update-index", "-z", "--index-info", index=copy, stdin=index_lines(wrong))
        self._refresh(copy)
        if copy.exists():
            copy.replace(self._repository.directory / "index")

    def _unchanged(self, index: Path, entries: dict[str, tuple[Entry, Entry]], side: int) -> set[str]:
        """Return the files that are in the working tree as they are on one `side` of the move: before (0) or after (1).

        A file that does not exist on that side must be missing. `index` is the path of a temporary index.
        """
        for left in (index, index.with_name(f"{index.name}.lock")):
            left.unlink(missing_ok=True)
        chosen = {path: each[side] for path, each in entries.items() if each[side][0] != ABSENT}
        self._git("update-index", "-z", "--index-info", index=index, stdin=index_lines(chosen))
        self._refresh(index)
        differing = set(self._git("diff-files", "-z", "--name-only", index=index).split("\0"))
        top = self._repository.top
        return {
            path
            for path, each in entries.items()
            if (path not in differing if each[side][0] != ABSENT else not os.path.lexists(top / path))
        }

    def _is_missing(self, path: str, entries: dict[str, tuple[Entry, Entry]]) -> bool:
        """Return True if a file is not there, or a folder of other files of the move is in its place."""
        there = self._repository.top / path
        return not os.path.lexists(there) or (
            _is_folder(there) and any(other.startswith(f"{path}/") for other in entries)
        )

    def _unlink(self, paths: Iterable[str]) -> None:
        """Remove files of the working tree, and the folders that are empty after that."""
        top = self._repository.top
        with store_files.storage_errors(f"cannot write the files of {top}"), Tree(top) as files:
            for path in paths:
                # Behind a link, or in a folder with other files, nothing is removed. What is left of a repository in
                # the working tree is an empty folder.
                with contextlib.suppress(BadDataError, OSError):
                    files.remove(path)


def _with(known: list[Acceptance], each: Acceptance) -> list[Acceptance]:
    """Return the list with an acceptance in place of the entry with its id, or at the end."""
    changed = [each if other.id == each.id else other for other in known]
    return changed if each in changed else [*changed, each]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
