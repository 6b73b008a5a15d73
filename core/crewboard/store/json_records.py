"""Records that are stored as one JSON object each: read whole, replaced whole, changed under a lock.

A `RecordKey` is the key of one and knows its type; `store/layout.py` has the table of all. A damaged record is never
overwritten silently: an attempt to change it copies the file aside and fails, so that the user can repair it.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

from crewboard.errors import BadDataError, CrewboardError, StorageError
from crewboard.records.base import Record
from crewboard.store import codec
from crewboard.store.interface import Key, Store, Version

R = TypeVar("R", bound=Record)


class RecordKey(Key, Generic[R], frozen=True):
    """The key of a record of the type `model`.

    Changes of it hold `lock`, a name in the same store; empty for none. With `ident`, a record that says that it is
    another one is damaged: its file was copied or renamed.
    """

    model: type[R]
    lock: str = ""
    ident: str = ""

    def in_store(self, store: Store) -> "RecordKey[R]":
        """Return the key of the record with the same name and type in another store."""
        return RecordKey(store, self.name, self.model, self.lock, self.ident)

    def load(self) -> R | None:
        """Return the record; None if there is none.

        Raises:
            BadDataError: It is damaged.
            StorageError: It cannot be read.
        """
        data = self.get()
        if data is None:
            return None
        try:
            record = codec.decode(data, self.model)
            # Some records have no id.
            says = str(getattr(record, "id", self.ident))
            if self.ident and says != self.ident:
                raise BadDataError(f"it says that it is {self.model.__name__.lower()} {says}")
        except BadDataError as error:
            raise BadDataError(f"{self} is damaged: {error}; repair it by hand") from error
        return record

    def load_or_none(self) -> R | None:
        """Return the record; None if there is none or it is damaged.

        Raises:
            StorageError: It cannot be read.
        """
        try:
            return self.load()
        except BadDataError:
            return None

    def save(self, record: R, *, durable: bool = False) -> None:
        """Replace the record, or create it. A damaged record is copied aside first.

        Raises:
            StorageError: The write failed; the old record is unchanged.
            BadDataError: The record is invalid; the old one is unchanged.
        """
        try:
            self.load()
        except BadDataError:
            self.quarantine()
        except StorageError:
            # What cannot be read at all, such as a link, cannot be copied either.
            pass
        self.overwrite(record, durable=durable)

    def overwrite(self, record: R, *, durable: bool = False) -> None:
        """Replace the record without a look at it: for what was just read, and what its writer writes all the time.

        Raises:
            StorageError: The write failed; the old record is unchanged.
            BadDataError: The record is invalid; the old one is unchanged.
        """
        self.put(codec.encode(record, indent=1), durable=durable)

    def edit(self, edit: Callable[[R | None], R], *, replace_damaged: bool = False, durable: bool = False) -> R:
        """Replace the record by the one that `edit` returns for it, while holding its lock; return the new record.

        `edit` may raise an error to leave everything as it is. It may be called again, so it may change nothing but the
        record. With `replace_damaged`, a damaged record is copied aside and then treated as missing; this is for
        records that can be rebuilt from others.

        Raises:
            ValueError: The record has no lock: only one process writes it.
            BadDataError: The record is damaged and was copied aside; or the one that `edit` returned is invalid, and
                the old one is unchanged.
            StorageError: The write failed; the old record is unchanged.
        """

        def work() -> R:
            try:
                old = self.load()
            except BadDataError as error:
                aside = self.quarantine()
                if not replace_damaged:
                    name = aside.name.rpartition("/")[2]
                    raise BadDataError(f"{error}; a copy is kept as {name}") from error
                old = None
            record = edit(old)
            self.overwrite(record, durable=durable)
            return record

        if not self.lock:
            raise ValueError(f"{self} has no lock, so two processes could change it at once")
        return self.store.locked(self.lock, work)

    def quarantine_if_damaged(self) -> None:
        """Copy the record aside if it is damaged."""
        try:
            self.load()
        except BadDataError:
            self.quarantine()

    def watch(self) -> "CachedFile[R]":
        """Return a reader that reads the record again only after it was changed."""
        return CachedFile(self)


class RecordFolder(Key, Generic[R], frozen=True):
    """The key of a folder with records of the type `model`, each in a file `<name>.json`; its `id`, if any, is that."""

    model: type[R]

    def record(self, name: object) -> RecordKey[R]:
        """Return the key of the record with this name or number."""
        return RecordKey(self.store, f"{self.name}/{name}.json", self.model, ident=str(name))

    def watch(self) -> "CachedFolder[R]":
        """Return a reader that reads a record again only after it was changed."""
        return CachedFolder(self)


class CachedFile(Generic[R]):
    """A record that is read again only after it was changed. While it is `damaged`, its last good state is returned."""

    def __init__(self, key: RecordKey[R]) -> None:
        self.key = key
        self.damaged = False
        self._version: Version | None = None
        self._record: R | None = None

    def get(self) -> R | None:
        """Return the record, or its last good state while it cannot be read; None if there is none."""
        try:
            version = self.key.store.changed(self.key.name)
            if version is None:
                self._version, self._record, self.damaged = None, None, False
            elif version != self._version:
                self._version = version
                self._record, self.damaged = self.key.load(), False
        except StorageError:
            # Without a version, the same record is read again once it is accessible.
            self._version, self.damaged = None, True
        except CrewboardError:
            self.damaged = True
        return self._record

    @property
    def last_good(self) -> R | None:
        """Return what the last call of `get` returned, without reading."""
        return self._record


_RECHECK_INTERVAL = 60.0
"""Seconds after which each file of a folder is checked although the folder did not change.

Replacing a record changes its folder; editing a file in place by hand does not.
"""

_MAX_CACHED_FOLDERS = 16
_MAX_CACHED_FILES = 2048
"""Most folders and records that a process keeps in memory; a worker has two folders, and some records of each agent."""


class CachedFolder(Generic[R]):
    """The records of one folder, such as tasks or requests, of which only changed ones are read again.

    Workers check the task board and open requests every second or two, and closed ones are never removed. Reading all
    of them each time, at 80 µs a file, would keep an idle team as busy as a working one.

    All callers share the records: do not change them.
    """

    def __init__(self, folder: RecordFolder[R]) -> None:
        self._folder = folder
        self._files: dict[str, CachedFile[R]] = {}
        self._version: Version | None = None
        """The version of the folder when all records were last read."""
        self._looked = 0.0
        self._unreadable = False

    def all(self) -> list[R]:
        """Return every record; of a damaged one its last good state, if there is one."""
        self._refresh()
        return [record for file in self._files.values() if (record := file.last_good) is not None]

    def intact(self) -> dict[str, R]:
        """Return every record that is not damaged, by file name."""
        self._refresh()
        known = ((name, file.last_good) for name, file in self._files.items() if not file.damaged)
        return {name: record for name, record in known if record is not None}

    @property
    def damaged(self) -> list[Key]:
        """Return the keys of records that cannot be read, and of the folder itself if it cannot be listed."""
        folder = [self._folder] if self._unreadable else []
        return [*folder, *(file.key for file in self._files.values() if file.damaged)]

    def _refresh(self) -> None:
        try:
            with self._folder.store.glance(self._folder.name):
                version = self._folder.changed()
                if version is None:
                    self._files, self._version, self._unreadable = {}, None, False
                elif version != self._version or time.monotonic() - self._looked >= _RECHECK_INTERVAL:
                    names = sorted(
                        name for name in self._folder.names() if name.endswith(".json") and not name.startswith(".")
                    )
                    self._unreadable = False
                    records = {name: self._folder.record(name.removesuffix(".json")) for name in names}
                    files = {name: self._files.get(name) or record.watch() for name, record in records.items()}
                    for file in files.values():
                        file.get()
                    self._files, self._version, self._looked = files, version, time.monotonic()
        except StorageError:
            # What was read before is better than nothing.
            self._version, self._unreadable = None, True


@lru_cache(maxsize=_MAX_CACHED_FILES)
def cached_file(key: RecordKey[R]) -> CachedFile[R]:
    """Return the `CachedFile` of a record. There is one in each process, which all callers share."""
    return key.watch()


@lru_cache(maxsize=_MAX_CACHED_FOLDERS)
def cached_folder(folder: RecordFolder[R]) -> CachedFolder[R]:
    """Return the `CachedFolder` of a folder. There is one in each process, which all callers share."""
    return folder.watch()
