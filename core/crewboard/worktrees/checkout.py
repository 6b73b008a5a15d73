"""Make and remove the checkout of an agent: a repository of its own, on the agent's branch, that borrows objects.

It is no linked worktree of git: there, an agent could change hooks, settings and refs of the user's repository. In its
own repository it has only its own ones, and can only read the user's objects.
"""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crewboard.errors import UsageError
from crewboard.records.agents import Worktree
from crewboard.records.base import counted
from crewboard.sandbox import scratch
from crewboard.store import files as store_files
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees.repository import (
    UNTOUCHED,
    NoRepositoryError,
    Repository,
    make_borrower,
    open_repository,
)
from crewboard.worktrees.snapshot import Snapshot, beginning, branch_of, exclude_of, index_of, kept, missing_of, ref_of

REMOVAL_TIMEOUT = 120.0
"""Seconds for removing a checkout. What is left of a huge one is removed when the next one is made or removed."""


@dataclass(frozen=True)
class Prepared:
    """The worktree that a hired agent gets, None for the shared tree; `note` says what the hirer should know of it."""

    worktree: Worktree | None
    note: str = ""


def require_repository(root: Path, name: str, otherwise: str) -> None:
    """Check that the root is in a repository, for the worktree of an agent that must have one.

    `otherwise` is the part of the error text that says how to hire the agent without a worktree.

    Raises:
        UsageError: There is no repository; the message says what to do.
    """
    try:
        open_repository(root)
    except NoRepositoryError as error:
        raise UsageError(
            f"{name} was not hired, as it cannot have a worktree: {error}; {otherwise}, "
            "to let it work in your own files"
        ) from None


def prepare(
    team: TeamDirectory, name: str, before: Worktree | None, base: str | None, copy: Sequence[str] = ()
) -> Prepared:
    """Return the worktree of an agent; make it, unless the one from `before`, of its earlier hire, is still there.

    A new one begins at the commit `base`, or HEAD, and has copies of the files and folders `copy` of the root. If there
    is no repository, the worktree is None, and the note says why.

    Raises:
        UsageError: There is no such commit, or the existing worktree began at another one.
        StorageError: The worktree cannot be written.
    """
    try:
        repository = open_repository(team.root)
    except NoRepositoryError as error:
        return Prepared(None, f"{name} works in the shared tree: {error}")
    if before is None or not team.worktree(name).is_dir():
        saved = kept(team, repository, name, before.base) if before else None
        made = make(team, name, base, saved, copy)
        note = f"{name} works on {made.branch} in {team.worktree(name)}, at {made.base[:10]}"
        if base is None:
            # A worktree that begins at HEAD does not have the uncommitted changes of the user.
            changed = repository.in_working_tree("status", "--porcelain", "--untracked-files=no").splitlines()
            if changed:
                note += f"; your uncommitted changes in {counted(len(changed), 'file')} are not in it"
        return Prepared(made if before is None or saved is None else before, note)
    if base is not None and repository.commit(base) != before.base:
        raise UsageError(
            f"the worktree of {name} began at {before.base[:10]}; discard it first, or choose another name"
        )
    return Prepared(before)


def prepare_again(team: TeamDirectory, name: str, worktree: Worktree, copy: Sequence[str] = ()) -> None:
    """Make the checkout of an agent that is resumed, unless it is still there, as `prepare` does.

    Raises:
        UsageError: There is no repository, or it lacks the commit at which the agent began, as that of another project.
        StorageError: The checkout cannot be written.
    """
    try:
        repository = open_repository(team.root)
    except NoRepositoryError as error:
        raise UsageError(f"{name} was not resumed, as it cannot have its worktree: {error}") from None
    if not repository.has(worktree.base):
        raise UsageError(
            f"{name} was not resumed: the repository {repository.top} lacks commit {worktree.base[:10]}, at which "
            f"{name} began; fetch it from the repository where {name} worked, or hire another agent"
        )
    # At HEAD: at its first commit it would lack its own work that was merged before a discard, and conflict with that.
    prepare(team, name, worktree, None, copy)


def make(
    team: TeamDirectory,
    name: str,
    base: str | None = None,
    saved: Snapshot | None = None,
    copy: Sequence[str] = (),
) -> Worktree:
    """Make the checkout of an agent at the commit that `base` means, or at HEAD, and return its worktree.

    It does not have the user's uncommitted changes. With a `saved` snapshot, the checkout is as it was then. Those
    files and folders in `copy` that the root has are copied, too; git ignores the copies. If this is killed, there is
    no checkout, and it can be called again.

    Raises:
        NoRepositoryError: The root is in no repository.
        UsageError: There is no such commit, or there is a checkout of that name.
        StorageError: The checkout cannot be written.
    """
    repository = open_repository(team.root)
    begin = saved or beginning(repository, repository.commit(base or "HEAD"))
    # The root may be a folder of the repository.
    below = Path(os.path.realpath(team.root)).relative_to(repository.top)
    make_of(team, repository, name, begin, below, copy, first=saved is None)
    return find(team, repository, name, begin.head)


def find(team: TeamDirectory, repository: Repository, name: str, base: str) -> Worktree:
    """Return the worktree of an agent whose checkout was made from the user's repository, at the commit `base`."""
    root = Path(os.path.realpath(team.root))
    below = root.relative_to(repository.top)
    # Relative, so that it holds after the whole folder was moved.
    objects = "" if repository.borrows else os.path.relpath(repository.objects, root)
    folder = "" if below == Path() else str(below)
    return Worktree(branch=branch_of(team, name), base=base, objects=objects, folder=folder)


def make_of(
    team: TeamDirectory, repository: Repository, name: str, begin: Snapshot, below: Path, copy: Sequence[str], *,
    first: bool,
) -> None:  # fmt: skip
    """Make a checkout from a repository's objects: it borrows them, or has copies if the repository borrows itself.

    Its branch is at `begin.head`, and its files are those of `begin`. The agent works in the folder `below` of it, to
    which `copy` is copied as in `make`. If it is the `first` one of an agent, the ref `base` is set.

    Raises:
        UsageError: There is a checkout of that name.
        StorageError: The checkout cannot be written.
    """
    target = Path(os.path.realpath(team.path)) / team.worktrees.name / name
    with store_files.storage_errors(f"cannot make the worktree {target}"):
        store_files.make_folder(target.parent)
        with store_files.locked(team.local_lock(f"worktree-{name}")):
            if target.exists():
                raise UsageError(f"there is a worktree in {target} already")
            remove_unfinished(target)
            # Before anything refers to the commit, so that no garbage collection removes it.
            if first:
                repository.keep(ref_of(team, name, "base"), begin.head)
            new = target.with_name(f".{name}.{secrets.token_hex(4)}")
            try:
                branch = branch_of(team, name)
                objects = None if repository.borrows else repository.objects
                borrowed = [os.path.relpath(objects, target / ".git/objects")] if objects else []
                own = make_borrower(repository, new, borrowed, "--initial-branch", branch)
                if objects is None:
                    # The folders that a repository borrows from are not shown to agents: one could have named any
                    # folder there.
                    into, wanted = str(own.objects / "pack/pack"), f"{begin.head}\n{begin.tree}\n"
                    repository.git("pack-objects", "--quiet", "--revs", into, stdin=wanted)
                own.git("update-ref", f"refs/heads/{branch}", begin.head)
                own.in_working_tree("read-tree", "-m", "-u", begin.tree, environment=UNTOUCHED)
                # A link in the place of the folder, which a snapshot could contain, is left.
                if (inside := new / below).resolve() == inside:
                    with contextlib.suppress(FileExistsError):
                        inside.mkdir(parents=True)
                _copy(team.root, new, below, copy)
                team.worktree_ready(name).unlink(missing_ok=True)
                index_of(team, name).unlink(missing_ok=True)
                shutil.copyfile(new / ".git/index", index_of(team, name))
                shutil.copyfile(new / ".git/info/exclude", exclude_of(team, name))
                new.rename(target)
            finally:
                shutil.rmtree(new, ignore_errors=True)


def remove(team: TeamDirectory, name: str) -> None:
    """Remove the checkout of an agent that is not running, with everything in it. Its snapshots stay.

    Raises:
        StorageError: A part of it cannot be removed.
    """
    failure = f"cannot remove the worktree of {name}"
    with store_files.storage_errors(failure), store_files.locked(team.local_lock(f"worktree-{name}")):
        for each in (index_of, exclude_of, missing_of):
            each(team, name).unlink(missing_ok=True)
        team.worktree_ready(name).unlink(missing_ok=True)
        team.worktree_run(name).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            # If the removal is cut short, what is left is no checkout, and the next call removes it.
            team.worktree(name).rename(team.worktrees / f".{name}.{secrets.token_hex(4)}")
        remove_unfinished(team.worktree(name))


def remove_unfinished(target: Path) -> None:
    """Remove the folders that were left of the checkout `target` when a process was killed or had too little time."""
    for path in target.parent.glob(f".{target.name}.*"):
        if path.is_symlink():
            # The user moved the checkout and left a link: what that names is not removed.
            path.unlink()
        else:
            scratch.remove_tree(path, REMOVAL_TIMEOUT)


def _copy(root: Path, new: Path, below: Path, paths: Sequence[str]) -> None:
    """Copy files and folders of the root to the folder `below` of `new`, if missing there, and make git ignore them.

    Links are copied as links, and none is followed: an agent could have made one to a file that agents must not see, in
    the root or in the snapshot from which the checkout is made again.
    """
    ignored = ""
    for path in paths:
        source = os.open(root, _FOLDER)
        try:
            *folders, name = Path(path).parts
            for step in folders:
                deeper = os.open(step, _FOLDER, dir_fd=source)
                os.close(source)
                source = deeper
            target = new / below / path
            if not os.path.lexists(target) and target.parent.resolve() == target.parent:
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy_entry(source, name, target)
                ignored += f"/{below / path}\n"
        except (FileNotFoundError, FileExistsError, NotADirectoryError):
            continue
        finally:
            os.close(source)
    with (new / ".git/info/exclude").open("a", encoding="utf-8") as exclude:
        exclude.write(ignored)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _copy_entry(folder: int, name: str, target: Path) -> None:
    """Copy the entry `name` of an open folder, with everything in it. Pipes, sockets and devices are left out."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        target.symlink_to(os.readlink(name, dir_fd=folder))
    elif stat.S_ISDIR(found.st_mode):
        target.mkdir(mode=0o700)
        inner = os.open(name, _FOLDER, dir_fd=folder)
        try:
            for each in os.listdir(inner):  # noqa: PTH208  a descriptor
                _copy_entry(inner, each, target / each)
        finally:
            os.close(inner)
        target.chmod(stat.S_IMODE(found.st_mode))
    elif stat.S_ISREG(found.st_mode):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(fd, "rb") as content, target.open("wb") as copy:
            shutil.copyfileobj(content, copy)
        target.chmod(stat.S_IMODE(found.st_mode))
