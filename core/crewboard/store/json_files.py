"""Records stored as one JSON file each: read whole, replaced whole, changed under a lock.

A damaged file is never overwritten silently. A change of it copies the file aside and fails, so that the user can
repair it.
"""

import hashlib
import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from crewboard.records import BadDataError, CrewboardError, Record
from crewboard.store import codec, files

R = TypeVar("R", bound=Record)

_TIMESTAMP_RESOLUTION = 50_000_000
"""Nanoseconds within which two changes of a file may get the same modification time; a generous upper bound."""


def load(path: Path, model: type[R]) -> R | None:
    """Return the record at `path`, or None if there is no file.

    Raises:
        BadDataError: The file is damaged.
        StorageError: It cannot be read.
    """
    data = files.read_file(path)
    if data is None:
        return None
    try:
        return codec.decode(data, model)
    except BadDataError as error:
        raise BadDataError(f"{path} is damaged: {error}") from error


def load_or_none(path: Path, model: type[R]) -> R | None:
    """Return the record at `path`, or None if there is no file or it is damaged: for callers that can do without it.

    Raises:
        StorageError: It cannot be read.
    """
    try:
        return load(path, model)
    except BadDataError:
        return None


def save(path: Path, record: Record, *, durable: bool = False) -> None:
    """Replace the file at `path` by `record`.

    Raises:
        StorageError: The write failed; the old file is unchanged.
    """
    files.replace_file(path, codec.encode(record, indent=1), durable=durable)


def change(
    path: Path,
    lock: Path,
    model: type[R],
    edit: Callable[[R | None], R],
    *,
    replace_damaged: bool = False,
    durable: bool = False,
) -> R:
    """Replace the record at `path` by what `edit` returns for it, while holding the lock.

    `edit` may raise to leave everything as it is. With `replace_damaged`, a damaged file is copied aside and then
    treated as missing: for records that can be rebuilt from other files.

    Raises:
        BadDataError: The file is damaged and was copied aside; or the record that `edit` returned is invalid, and the
            old file is unchanged.
        StorageError: The write failed; the old file is unchanged.
    """
    with files.locked(lock):
        try:
            old = load(path, model)
        except BadDataError as error:
            aside = quarantine(path)
            if not replace_damaged:
                raise BadDataError(f"{error}; a copy is kept as {aside.name}; repair the file by hand") from error
            old = None
        record = edit(old)
        # Pydantic does not validate fields that `edit` assigned.
        codec.decode(codec.encode(record), model)
        save(path, record, durable=durable)
        return record


def quarantine_if_damaged(path: Path, model: type[Record]) -> None:
    """Copy the file at `path` aside if it is damaged, before it is rebuilt from other files."""
    try:
        load(path, model)
    except BadDataError:
        quarantine(path)


def quarantine(path: Path) -> Path:
    """Copy a damaged file, once, to a name that is never overwritten, and return that path.

    Raises:
        StorageError: The copy could not be written.
    """
    data = files.read_file(path) or b""
    aside = path.with_name(f"{path.name}.damaged-{hashlib.sha256(data).hexdigest()[:8]}")
    if not aside.exists():
        files.replace_file(aside, data)
    return aside


def is_recent(changed: int, now: int) -> bool:
    """Return True if a file that was modified at `changed` could change again without a new modification time.

    Both times are in nanoseconds.
    """
    return now - changed <= _TIMESTAMP_RESOLUTION


class CachedFile(Generic[R]):
    """A record file that is read again only after it was replaced. While it is damaged, the last good state is used."""

    def __init__(self, path: Path, model: type[R]) -> None:
        self.path = path
        self.damaged = False
        self._model = model
        self._signature: tuple[int, int, int] | None = None
        self._record: R | None = None

    def get(self) -> R | None:
        """Return the record, or None if there is no file."""
        now = time.time_ns()
        try:
            stat = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self._signature, self._record, self.damaged = None, None, False
            return None
        except OSError:
            # Forget the signature, so that the same file is read again once it is accessible.
            self._signature, self.damaged = None, True
            return self._record
        signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if signature != self._signature:
            self._load()
            # A file this recent may be replaced by one with the same time, size and even inode.
            self._signature = None if is_recent(stat.st_mtime_ns, now) else signature
        return self._record

    @property
    def last_good(self) -> R | None:
        """Return the record as it was at the last call of `get`."""
        return self._record

    def _load(self) -> None:
        try:
            self._record = load(self.path, self._model)
            self.damaged = False
        except CrewboardError:
            self.damaged = True


_RECHECK_INTERVAL = 60.0
"""Seconds after which each file is checked although its folder did not change.

Replacing a record changes the folder; editing one in place by hand does not.
"""

_MAX_CACHED_FOLDERS = 16
"""Folders that a process keeps in memory; a worker has two."""


class CachedFolder(Generic[R]):
    """The records of one folder, such as tasks or requests, re-read at the cost of what changed.

    Workers check the task board and open requests every second or two, and closed ones are never removed. Reading all
    of them each time, at 80 µs a file, would keep an idle team as busy as a working one.

    The records are shared between all callers: do not change them.
    """

    def __init__(self, path: Path, model: type[R]) -> None:
        self._path = path
        self._model = model
        self._files: dict[str, CachedFile[R]] = {}
        self._intact: dict[str, R] = {}
        self._changed: int | None = None
        """Modification time of the folder when everything was read; None if the folder was modified too recently."""
        self._looked = 0.0
        self._unreadable = False

    def all(self) -> list[R]:
        """Return every readable record; for a damaged file, its last good state."""
        self._refresh()
        return [record for file in self._files.values() if (record := file.last_good) is not None]

    def intact(self) -> dict[str, R]:
        """Return every record whose file is not damaged, by file name."""
        self._refresh()
        return self._intact

    @property
    def damaged(self) -> list[Path]:
        """Return the files that cannot be read, and the folder itself if its files cannot be listed."""
        folder = [self._path] if self._unreadable else []
        return [*folder, *(file.path for file in self._files.values() if file.damaged)]

    def _refresh(self) -> None:
        now = time.time_ns()
        try:
            changed = os.stat(self._path).st_mtime_ns
            if changed == self._changed and time.monotonic() - self._looked < _RECHECK_INTERVAL:
                return
            names = os.listdir(self._path)
        except FileNotFoundError:
            self._files, self._intact, self._changed, self._unreadable = {}, {}, None, False
            return
        except OSError:
            # What was read before is better than nothing.
            self._changed, self._unreadable = None, True
            return
        self._unreadable = False
        self._read(sorted(name for name in names if name.endswith(".json") and not name.startswith(".")))
        self._changed = None if is_recent(changed, now) else changed
        self._looked = time.monotonic()

    def _read(self, names: list[str]) -> None:
        files = {name: self._files.get(name) or CachedFile(self._path / name, self._model) for name in names}
        found = {name: file.get() for name, file in files.items()}
        self._intact = {
            name: record for name, record in found.items() if record is not None and not files[name].damaged
        }
        self._files = files


@lru_cache(maxsize=_MAX_CACHED_FOLDERS)
def cached_folder(path: Path, model: type[R]) -> CachedFolder[R]:
    """Return this process's shared `CachedFolder` for `path`."""
    return CachedFolder[Any](path, model)
