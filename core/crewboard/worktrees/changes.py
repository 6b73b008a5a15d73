"""What an agent with a worktree changed, and whether that applies to the user's branch. Only objects are read.

File names need not be UTF-8: other bytes are surrogates, as in `os.fsdecode`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from crewboard.worktrees.repository import GitFailedError, Repository
from crewboard.worktrees.snapshot import Snapshot, ref_of

if TYPE_CHECKING:
    from crewboard.store import TeamDirectory

FileStatus = Literal["added", "modified", "deleted", "renamed", "type"]

_STATUS: dict[str, FileStatus] = {"A": "added", "D": "deleted", "R": "renamed", "T": "type"}

_CONFLICT = 1
"""Exit code of `git merge-tree` for a merge with conflicts."""

_SYNTHETIC = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "crewboard"), ("EMAIL", "crewboard@crewboard.invalid"), ("DATE", "@0 +0000"))
}
"""The same author and date each time, so that the same merge makes the same objects."""


@dataclass(frozen=True)
class FileChange:
    """One changed file. `type` is a change between file, symbolic link and submodule.

    `added` and `removed` count lines; None for a binary file. `old_path` is the name before a renaming.
    """

    path: str
    status: FileStatus
    added: int | None
    removed: int | None
    old_path: str | None = None


@dataclass(frozen=True)
class Changes:
    """What an agent changed from `base` to the snapshot `commit`.

    `base` is the commit at which the agent and the user's branch `head` parted, or the last snapshot that was merged.
    `behind` counts the commits of `head` that the agent does not have. `conflicts` are the files for which the changes
    do not apply to `head`. `missing` describes what the snapshot could not take in.
    `collides_with` are the other agents whose work does not merge with this one's.
    """

    agent: str
    branch: str
    base: str
    commit: str
    head: str
    files: tuple[FileChange, ...]
    behind: int
    applies: bool
    conflicts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    collides_with: tuple[str, ...] = ()

    @property
    def added(self) -> int:
        """Return the number of added lines in all text files."""
        return sum(each.added or 0 for each in self.files)

    @property
    def removed(self) -> int:
        """Return the number of removed lines in all text files."""
        return sum(each.removed or 0 for each in self.files)


@dataclass(frozen=True)
class Merge:
    """The outcome of a merge without a working tree: its tree, with marks in the files of `conflicts`."""

    tree: str
    conflicts: tuple[str, ...]


def changes_of(
    repository: Repository,
    snapshot: Snapshot,
    agent: str,
    branch: str,
    *,
    head: str | None = None,
    accepted: str | None = None,
) -> Changes:
    """Return what an agent changed, compared with the commit `head`, or with the one that the user has checked out.

    `accepted` is the last snapshot that was merged: what it contained is no change any more.

    Raises:
        GitFailedError: An object is missing.
    """
    head = head or repository.commit("HEAD")
    base = accepted or merge_base(repository, head, snapshot.commit) or snapshot.base
    merge = merged(repository, head, snapshot.commit, base)
    return Changes(
        agent=agent,
        branch=branch,
        base=base,
        commit=snapshot.commit,
        head=head,
        files=_files(repository, base, snapshot.commit),
        behind=_count(repository, snapshot.commit, head),
        applies=not merge.conflicts,
        conflicts=merge.conflicts,
        missing=snapshot.missing,
    )


def with_collisions(repository: Repository, found: list[Changes]) -> list[Changes]:
    """Return the changes of several agents, each with the others that it collides with.

    Only two agents that changed a file of the same name are compared, and each pair of snapshots once.

    Raises:
        GitFailedError: An object is missing.
    """
    names = {each.agent: {path for file in each.files for path in (file.path, file.old_path) if path} for each in found}
    pairs = [
        (one, other)
        for one, other in combinations(found, 2)
        if not names[one.agent].isdisjoint(names[other.agent]) and _collide(repository, one, other)
    ]
    return [
        replace(each, collides_with=tuple(b.agent if a is each else a.agent for a, b in pairs if each in (a, b)))
        for each in found
    ]


def _collide(repository: Repository, one: Changes, other: Changes) -> bool:
    base = merge_base(repository, one.commit, other.commit)
    return base is None or bool(merged(repository, one.commit, other.commit, base).conflicts)


def diff_of(repository: Repository, changes: Changes, path: str | None = None) -> str:
    """Return the changes, or those of one file, as a unified diff. No program of the user or an agent is run.

    Raises:
        GitFailedError: An object is missing.
    """
    names = [path] if path is not None else []
    names += [each.old_path for each in changes.files if each.path == path and each.old_path]
    return repository.git(
        "diff-tree", "-p", "-r", "-M", "--no-textconv", "--no-ext-diff", "--no-color", changes.base, changes.commit,
        "--", *names, environment={"GIT_LITERAL_PATHSPECS": "1"},
    )  # fmt: skip


def merged_ref_of(team: "TeamDirectory", name: str) -> str:
    """Return the full name of the ref that keeps the last accepted snapshot of an agent."""
    return f"refs/crew/+merged/{ref_of(team, name).removeprefix('refs/crew/')}"


@lru_cache(maxsize=256)
def merge_base(repository: Repository, ours: str, theirs: str) -> str | None:
    """Return the commit at which two commits parted; None if they have no history in common."""
    try:
        return repository.git("merge-base", ours, theirs)
    except GitFailedError:
        return None


@lru_cache(maxsize=256)
def is_ancestor(repository: Repository, older: str, newer: str) -> bool:
    """Return True if the commit `newer` is `older` or has it in its history. False also if one is gone."""
    try:
        repository.git("merge-base", "--is-ancestor", older, newer)
    except GitFailedError:
        return False
    return True


@lru_cache(maxsize=256)
def merged(repository: Repository, ours: str, theirs: str, base: str) -> Merge:
    """Merge two commits as if they had parted at the commit `base`. The result does not depend on anything else.

    Raises:
        GitFailedError: An object is missing.
    """
    if base != merge_base(repository, ours, theirs):
        # `merge-tree --merge-base` needs git 2.40. Commits with these trees have the wanted base in every version.
        base = _synthetic(repository, base)
        ours, theirs = (_synthetic(repository, each, "-p", base) for each in (ours, theirs))
    command = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, theirs)
    try:
        answer = repository.git(*command)
    except GitFailedError as error:
        if error.code != _CONFLICT:
            raise
        answer = os.fsdecode(error.output)
    tree, *conflicts = answer.split("\0")
    return Merge(tree, tuple(dict.fromkeys(name for name in conflicts if name)))


def _synthetic(repository: Repository, commit: str, *options: str) -> str:
    """Return a commit with the tree of `commit`, and with nothing else from it."""
    return repository.git("commit-tree", f"{commit}^{{tree}}", *options, environment=_SYNTHETIC)


@lru_cache(maxsize=256)
def _count(repository: Repository, without: str, of: str) -> int:
    return int(repository.git("rev-list", "--count", of, f"^{without}"))


@lru_cache(maxsize=256)
def _files(repository: Repository, base: str, commit: str) -> tuple[FileChange, ...]:
    return tuple(_parse(repository.git("diff-tree", "-r", "-z", "-M", "--raw", "--numstat", base, commit)))


def _parse(answer: str) -> Iterator[FileChange]:
    """Parse `--raw --numstat -z`: first a record for each file about its kind of change, then one about its lines."""
    kinds: dict[str, FileStatus] = {}
    fields = iter(answer.split("\0"))
    for field in fields:
        if field.startswith(":"):
            letter = field.rsplit(" ", 1)[1][0]
            path = next(fields)
            kinds[next(fields) if letter == "R" else path] = _STATUS.get(letter, "modified")
        elif field:
            added, removed, path = field.split("\t", 2)
            old = None if path else next(fields)
            path = path or next(fields)
            yield FileChange(path, kinds[path], _lines(added), _lines(removed), old)


def _lines(count: str) -> int | None:
    return None if count == "-" else int(count)
