"""Records that are one JSON file each: read whole, replaced whole, changed under a lock.

A damaged file is never overwritten: whoever would change it copies it aside and is told, so that a person can mend it.
"""

import hashlib
import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from crewboard.errors import BadDataError, CrewboardError
from crewboard.records import Record
from crewboard.store import codec, files

R = TypeVar("R", bound=Record)

_TICK = 50_000_000
"""Nanoseconds within which two changes of a file may bear the same time, generously."""


def load(path: Path, model: type[R]) -> R | None:
    """The record at `path`, or None where there is none.

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
    """The record at `path`, or None where there is none or it is damaged: for those who can do without.

    Raises:
        StorageError: It cannot be read.
    """
    try:
        return load(path, model)
    except BadDataError:
        return None


def save(path: Path, record: Record, *, durable: bool = False) -> None:
    """Put `record` in the place of `path`.

    Raises:
        StorageError: The disk refused; the old file stands.
    """
    files.replace_file(path, codec.encode(record, indent=1), durable=durable)


def change(path: Path, lock: Path, model: type[R], edit: Callable[[R | None], R], *, renew: bool = False) -> R:
    """Replace the record at `path` by what `edit` makes of it, with nobody else in between.

    `edit` may raise to leave everything as it is. With `renew`, a damaged file counts as none, once a copy of it is
    kept: for records that are known from elsewhere.

    Raises:
        BadDataError: The file is damaged, and a copy was kept aside; or what `edit` made could not be read again, and
            the old file stands.
        StorageError: The disk refused; the old file stands.
    """
    with files.locked(lock):
        try:
            old = load(path, model)
        except BadDataError as error:
            aside = quarantine(path)
            if not renew:
                raise BadDataError(f"{error}; a copy is kept as {aside.name}; mend the file by hand") from error
            old = None
        record = edit(old)
        codec.decode(codec.encode(record), model)  # fields that `edit` assigned were never looked at
        save(path, record)
        return record


def quarantine_if_damaged(path: Path, model: type[Record]) -> None:
    """Keep a copy of the file at `path` if it is damaged, before what is known from elsewhere takes its place."""
    try:
        load(path, model)
    except BadDataError:
        quarantine(path)


def quarantine(path: Path) -> Path:
    """Copy a damaged file, once, to where nobody overwrites it; returns where.

    Raises:
        StorageError: The disk refused.
    """
    data = files.read_file(path) or b""
    aside = path.with_name(f"{path.name}.damaged-{hashlib.sha256(data).hexdigest()[:8]}")
    if not aside.exists():
        files.replace_file(aside, data)
    return aside


def is_young(changed: int, now: int) -> bool:
    """Whether what changed at `changed` may change once more and bear the same time; both in nanoseconds."""
    return now - changed <= _TICK


class Cached(Generic[R]):
    """One record file: read again only when it was replaced. Its last good state stays in use when it is damaged."""

    def __init__(self, path: Path, model: type[R]) -> None:
        self.path = path
        self.damaged = False
        self._model = model
        self._signature: tuple[int, int, int] | None = None
        self._record: R | None = None

    def get(self) -> R | None:
        """The record, or None where there is none."""
        now = time.time_ns()
        try:
            stat = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self._signature, self._record, self.damaged = None, None, False
            return None
        except OSError:
            self._signature, self.damaged = None, True  # the same file is read anew once it can be looked at
            return self._record
        signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if signature != self._signature:
            self._load()
            # A file this young may be replaced by one with the same time, size and even inode.
            self._signature = None if is_young(stat.st_mtime_ns, now) else signature
        return self._record

    @property
    def known(self) -> R | None:
        """The record as it was when last looked at."""
        return self._record

    def _load(self) -> None:
        try:
            self._record = load(self.path, self._model)
            self.damaged = False
        except CrewboardError:
            self.damaged = True


_RECHECK = 60.0
"""Seconds after which each file is looked at although its folder stayed the same.

Records are replaced, which changes the folder; a person may have edited one in place.
"""

_TEAMS = 16
"""Folders that a process keeps in mind; a worker has two."""


class Folder(Generic[R]):
    """The records of one folder. Whoever gets them shares them with the next who asks, and changes none."""

    def __init__(self, path: Path, model: type[R]) -> None:
        self._path = path
        self._model = model
        self._files: dict[str, Cached[R]] = {}
        self._sound: dict[str, R] = {}
        self._changed: int | None = None
        """When the folder had last changed as everything was read, if that was long enough ago to be the last time."""
        self._looked = 0.0

    def all(self) -> list[R]:
        """Every record that can be read; of a damaged one, its last good state."""
        self._refresh()
        return [record for file in self._files.values() if (record := file.known) is not None]

    def sound(self) -> dict[str, R]:
        """Every record whose file is not damaged, by the name of its file."""
        self._refresh()
        return self._sound

    @property
    def damaged(self) -> list[Path]:
        """The files that could not be read."""
        return [file.path for file in self._files.values() if file.damaged]

    def _refresh(self) -> None:
        now = time.time_ns()
        try:
            changed = os.stat(self._path).st_mtime_ns
            if changed == self._changed and time.monotonic() - self._looked < _RECHECK:
                return
            names = os.listdir(self._path)
        except OSError:
            self._files, self._sound, self._changed = {}, {}, None
            return
        self._read(sorted(name for name in names if name.endswith(".json") and not name.startswith(".")))
        self._changed = None if is_young(changed, now) else changed
        self._looked = time.monotonic()

    def _read(self, names: list[str]) -> None:
        files = {name: self._files.get(name) or Cached(self._path / name, self._model) for name in names}
        found = {name: file.get() for name, file in files.items()}
        self._sound = {name: record for name, record in found.items() if record is not None and not files[name].damaged}
        self._files = files


@lru_cache(maxsize=_TEAMS)
def folder(path: Path, model: type[R]) -> Folder[R]:
    """The folder at `path`, as this process knows it already."""
    return Folder[Any](path, model)
