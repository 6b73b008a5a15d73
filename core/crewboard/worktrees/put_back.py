"""Put files of an agent's checkout back as they were: find the new tree by a three-way merge, and change the files.

No git runs in the checkout. git writes the files into a folder of crewboard, as for a new checkout, and a `Tree` moves
them from there to their places, without following a link. A merge into a branch of the user is undone in `merging.py`;
which one, and how, `commands/changes.py` decides.
"""

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from crewboard.errors import BadDataError, UsageError
from crewboard.records.base import counted
from crewboard.store import files as store_files
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees.changes import (
    ABSENT,
    HUNK,
    SUBMODULE,
    Entry,
    diff_between,
    entries_between,
    files_between,
    index_lines,
    merged,
    name_some,
)
from crewboard.worktrees.checkout import remove_unfinished
from crewboard.worktrees.repository import UNTOUCHED, Repository, make_borrower

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_ALL = 1 << 16
"""More folders than a path can have, for a removal of all empty ones."""


class Tree:
    """Reads and changes the files below the folder `top`; a context manager. Paths are relative to `top`.

    Each file is opened folder by folder from `top`, without following links. So even if an agent replaces a folder with
    a link, nothing outside of `top` is read or changed.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = os.open(self._top, _FOLDER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of the file, link or folder at a path; None if there is nothing.

        Raises:
            BadDataError: The path is not valid, or a part of it is no folder, but a link, for example.
        """
        try:
            with self._folder(path) as folder:
                return os.stat(_name(path), dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is nothing.

        Raises:
            BadDataError: It is no regular file, the path is not valid, or a part of it is no folder.
        """
        found = self.stat(path)
        if found is None:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise BadDataError(f"{path} is no regular file any more")
        with self._folder(path) as folder, os.fdopen(os.open(_name(path), _FILE, dir_fd=folder), "rb") as file:
            return file.read()

    def is_folder_with(self, path: str, allowed: set[str]) -> bool:
        """Return True if a folder has files, in it or below, and all of them are in `allowed`, a set of paths."""
        with self._opened(path.split("/"), path, make=False) as folder, os.scandir(folder) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        return bool(names) and all(
            self.is_folder_with(f"{path}/{name}", allowed) if is_folder else f"{path}/{name}" in allowed
            for name, is_folder in names
        )

    def put(self, path: str, source: Path) -> None:
        """Move the file or link `source` to a path, in place of what is there. Make missing folders.

        Raises:
            BadDataError: The path is not valid, or a part of it is no folder.
        """
        with self._folder(path, make=True) as folder:
            try:
                os.rename(source, _name(path), dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # Into another file system.
                temporary = f".{secrets.token_hex(4)}.crewboard-tmp"
                try:
                    if source.is_symlink():
                        os.symlink(source.readlink(), temporary, dir_fd=folder)
                    else:
                        with os.fdopen(os.open(temporary, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
                            file.write(source.read_bytes())
                            os.fchmod(file.fileno(), stat.S_IMODE(source.stat().st_mode))
                    os.replace(temporary, _name(path), src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
                source.unlink()

    def remove(self, path: str, folders: int = _ALL, keep: str = "") -> None:
        """Remove a file, a link or an empty folder, if it exists, and folders above it that are empty after that.

        At most `folders` of these are removed, and not the folder `keep`.

        Raises:
            BadDataError: The path is not valid, or a part of it is no folder.
        """
        with contextlib.suppress(FileNotFoundError), self._folder(path) as folder:
            found = os.stat(_name(path), dir_fd=folder, follow_symlinks=False)
            (os.rmdir if stat.S_ISDIR(found.st_mode) else os.unlink)(_name(path), dir_fd=folder)
        for _ in range(min(folders, path.count("/"))):
            path = path.rpartition("/")[0]
            if path == keep:
                return
            try:
                with self._folder(path) as folder:
                    os.rmdir(_name(path), dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError:
                return

    def _folder(self, path: str, *, make: bool = False) -> AbstractContextManager[int]:
        return self._opened(path.split("/")[:-1], path, make=make)

    @contextmanager
    def _opened(self, steps: list[str], path: str, *, make: bool) -> Iterator[int]:
        # A part leads down, and not into a repository's own files.
        if any(step in ("", ".", "..") or step.lower() == ".git" or "\0" in step for step in path.split("/")):
            raise BadDataError(f"{path!r} is no name of a file to put back")
        fd = os.dup(self._fd)
        try:
            for step in steps:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=fd)
                try:
                    deeper = os.open(step, _FOLDER, dir_fd=fd)
                except OSError as error:
                    if error.errno in (errno.ENOTDIR, errno.ELOOP):
                        raise BadDataError(f"{path}: {step} is no folder any more, but a link or a file") from None
                    raise
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@dataclass(frozen=True)
class PutBackFile:
    """A file that is put back as it was; `removed` is True if it did not exist then."""

    path: str
    removed: bool = False


@dataclass(frozen=True)
class Plan:
    """The changes that make a checkout have the tree `tree`: by path, what is there before and after."""

    tree: str
    entries: dict[str, tuple[Entry, Entry]]

    @property
    def files(self) -> tuple[PutBackFile, ...]:
        """Return the files that change, in the form that is shown to the user."""
        return tuple(PutBackFile(path, removed=new[0] == ABSENT) for path, (_, new) in self.entries.items())


def reverse(
    repository: Repository, present: str, old: str, new: str, path: str | None = None, hunk: int | None = None
) -> str:
    """Return the tree of the commit `present` with the change from the commit `old` to `new` taken back.

    With `path`, only the change of that file is taken back, and with `hunk`, numbered from 1, only that hunk of it.

    Raises:
        UsageError: There is no such file or hunk in that change.
        BadDataError: Later changes are in the same lines.
    """
    wanted = old if path is None else _without(repository, old, new, path, hunk)
    merge = merged(repository, present, wanted, new)
    if merge.conflicts:
        raise BadDataError(
            f"it was changed later in the same places: {name_some(merge.conflicts)}; nothing was put back"
        )
    return merge.tree


def _without(repository: Repository, old: str, new: str, path: str, hunk: int | None) -> str:
    """Return the tree of `new` with the file `path`, or one hunk of it, as it is in `old`.

    Raises:
        UsageError: There is no such file or hunk in the change.
    """
    change = next((each for each in files_between(repository, old, new) if each.path == path), None)
    if change is None:
        raise UsageError(f"{path} is not among the changed files; `crewboard changes` lists them")
    names = {path, change.old_path or path}
    entries = {name: each for name, each in entries_between(repository, old, new).items() if name in names}
    chosen = {name: before for name, (before, _) in entries.items()}
    if hunk is not None:
        chosen = _without_hunk(repository, old, new, path, change.old_path or path, hunk) or chosen
    with tempfile.TemporaryDirectory(prefix="crewboard-index-") as folder:
        environment = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        repository.git("read-tree", new, environment=environment)
        # Removals first: a file may take the place of a folder.
        ordered = dict(sorted(chosen.items(), key=lambda each: each[1][0] != ABSENT))
        repository.git("update-index", "-z", "--index-info", environment=environment, stdin=index_lines(ordered))
        return repository.git("write-tree", environment=environment)


def _without_hunk(
    repository: Repository, old: str, new: str, path: str, old_path: str, hunk: int
) -> dict[str, Entry] | None:
    """Return the file `path` of `new` with one hunk as in `old`; None if the file is new or deleted, so has only one.

    Raises:
        UsageError: There is no such hunk.
    """
    diff = diff_between(repository, old, new, {path, old_path}).split("\n")
    hunks = [found for line in diff if (found := HUNK.match(line))]
    if not 1 <= hunk <= len(hunks):
        count = counted(len(hunks), "hunk")
        raise UsageError(f"there is no hunk {hunk} of {path}: its change has {count}")
    (mode, ident), before = _entry(repository, new, path), _entry(repository, old, old_path)
    if ABSENT in (mode, before[0]):
        return None
    lines, old_lines = (_lines(repository, each) for each in (ident, before[1]))
    start, length, new_start, new_length = (int(number or 1) for number in hunks[hunk - 1].groups())
    # Of an empty side, git names the line before.
    first, new_first = start - (length > 0), new_start - (new_length > 0)
    lines[new_first : new_first + new_length] = old_lines[first : first + length]
    text = os.fsdecode(b"".join(lines))
    return {path: (mode, repository.git("hash-object", "-w", "--stdin", stdin=text))}


def _entry(repository: Repository, commit: str, path: str) -> Entry:
    listed = repository.git(
        "ls-tree", "-z", "--full-tree", commit, "--", path, environment={"GIT_LITERAL_PATHSPECS": "1"}
    )
    if not listed:
        return ABSENT, ""
    mode, _, ident = listed.partition("\t")[0].split(" ")
    return mode, ident


def _lines(repository: Repository, ident: str) -> list[bytes]:
    """Return the lines of the file with the object id `ident`, split at newlines only, as git does."""
    # `--batch` adds a newline of its own, so that the last one of the file is kept.
    content = os.fsencode(repository.git("cat-file", "--batch", stdin=f"{ident}\n")).partition(b"\n")[2]
    *whole, rest = content.split(b"\n")
    return [*(line + b"\n" for line in whole), *([rest] if rest else [])]


def plan(repository: Repository, checkout: Path, present: str, tree: str) -> Plan:
    """Return the changes that make a checkout have the tree `tree`; `present` is a snapshot of it taken just now.

    Raises:
        BadDataError: Files that git ignores are in the way, or a nested repository would have to change.
    """
    entries = entries_between(repository, present, tree)
    gone = {path for path, (_, new) in entries.items() if new[0] == ABSENT}
    hindered = []
    with store_files.storage_errors(f"cannot put files back in {checkout}"), Tree(checkout) as files:
        for path, (old, new) in entries.items():
            if SUBMODULE in (old[0], new[0]):
                raise BadDataError(f"{path} is a repository of its own, and cannot be put back; nothing was put back")
            if old[0] == ABSENT and _is_in_the_way(files, path, gone):
                hindered.append(path)
    if hindered:
        raise BadDataError(
            f"something that git ignores is in the way of {name_some(hindered)}; nothing was put back, move it first"
        )
    return Plan(tree, entries)


def _is_in_the_way(files: Tree, path: str, gone: set[str]) -> bool:
    """Return True if something that no snapshot contains is where the file `path` has to go.

    `gone` are the files that the same plan removes.
    """
    parts = path.split("/")
    if not gone.isdisjoint("/".join(parts[:count]) for count in range(1, len(parts))):
        return False
    try:
        found = files.stat(path)
    except BadDataError:
        return True
    return found is not None and not (stat.S_ISDIR(found.st_mode) and files.is_folder_with(path, gone))


def write(team: TeamDirectory, repository: Repository, name: str, planned: Plan, folder: str = "") -> None:
    """Change the files of an agent's checkout as planned. Call it under the lock of the worktree.

    `folder`, in which the agent works, is not removed even if it is empty.

    Raises:
        BadDataError: A folder of the checkout became something else meanwhile.
        StorageError: The files cannot be written.
    """
    checkout = team.worktree(name)
    target = Path(os.path.realpath(team.path)) / team.worktrees.name / name
    wanted = {path: new for path, (_, new) in planned.entries.items() if new[0] != ABSENT}
    with store_files.storage_errors(f"cannot put files back in {checkout}"):
        remove_unfinished(target)
        # Here git writes the files, as in a new checkout.
        staging = target.with_name(f".{name}.{secrets.token_hex(4)}")
        own = make_borrower(repository, staging, [repository.objects])
        own.git("config", "core.sparseCheckout", "false")
        # By their attributes files get their line ends.
        listed = repository.git("ls-tree", "-r", "-z", "--full-tree", "--name-only", planned.tree).split("\0")
        attributes = [path for path in listed if path.rpartition("/")[2] == ".gitattributes"]
        found = {path: _entry(repository, planned.tree, path) for path in attributes}
        own.git("update-index", "-z", "--index-info", stdin=index_lines({**found, **wanted}))
        part = own.git("write-tree")
        own.git("read-tree", "--empty")
        own.in_working_tree("read-tree", "-m", "-u", part, environment=UNTOUCHED)
        try:
            with Tree(checkout) as files:
                for path in planned.entries:
                    if path not in wanted:
                        files.remove(path, keep=folder)
                for path in wanted:
                    files.put(path, staging / path)
        finally:
            remove_unfinished(target)
