"""The interface of a team's store (`Store`), and the keys of what it keeps (`Key`).

No code outside of this package knows whether a store keeps files or rows. A key is a store and a name below the team's
folder, as in docs/reference/files.md, such as `agents/scout/journal.jsonl`.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from msgspec import Struct

from crewboard.errors import StorageError

T = TypeVar("T")

SCHEMA_VERSION = 2
"""The version of the tables of a store in PostgreSQL (`schema.sql`)."""


class Version(Struct, frozen=True):
    """The version of a record, log or folder. Two versions are equal only if nothing changed between them.

    `at` is the time of the last change in epoch seconds, `size` a size in bytes. `origin` differs if the thing was
    removed and another one was created under its name. `mark` differs if it changed although these three are equal.
    """

    at: float
    size: int
    origin: int
    mark: object


class Held(Struct, frozen=True):
    """A lease that this process holds. `token` is a number that grows from holder to holder.

    Children that inherit the file `descriptor` hold the lease, too.
    """

    store: "Store"
    name: str
    token: int
    descriptor: int


class Listener(Protocol):
    """A subscription to hints of changes, which `Store.listen` returns."""

    def is_alive(self) -> bool:
        """Return True if hints still arrive."""

    def stop(self) -> None:
        """End the hints, without waiting for the thread that brings them."""


class Glance(Protocol):
    """A pass over many names of a store, during which reading them is cheap (`Store.glance`)."""

    def news(self, mark: int | None) -> tuple[int, Collection[str] | None]:
        """Return a new mark, and the names that changed since the given mark; None for the names if any may have.

        A store whose hints cover all changes (`listen` with `deep`) returns no names.
        """

    def next_end(self) -> float:
        """Return the seconds until the first lease ends unless it is renewed; infinity if none ends by time alone."""

    def read_ahead(self, logs: Mapping[str, int]) -> None:
        """Prepare one `read` of each of these logs, from its offset on.

        A store in which a single read is cheap does nothing, and a log with much to read is left out.
        """


class Store(Protocol):
    """The records, logs and leases of one team. Every call blocks.

    A *record* is read and replaced whole. A *log* is appended to; offsets in it are in bytes, so that a cursor means
    the same in each store. A *lease* shows that its holder is alive.

    A write is done completely, or raises an error and changes nothing. Each method raises StorageError if the storage
    fails, and each one that writes raises LostLeaseError if this process may no longer write
    (`files.require_before_writing`).
    """

    def now(self) -> float:
        """Return the time of the store's own clock in epoch seconds."""

    def append(self, log: str, line: bytes, *, at: int | None = None, durable: bool = False) -> int:
        """Append a line, which ends with a newline, and return the offset after it.

        `at` is for a log with a single writer, which knows where the log ends (`end`). The line is added only there. If
        the line is already there, because the answer to the last attempt was lost, nothing is added.

        `durable` waits until the line and all lines before it survive a power cut.

        Raises:
            LostLeaseError: Something else is at `at`: another process wrote, or the log was replaced.
            BadDataError: The line is too long.
        """

    def end(self, log: str) -> int:
        """Return where the single writer of a log appends next; first end a line that a killed writer left."""

    def read(self, log: str, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
        """Yield each complete line from `offset` on, and the offset after it.

        The line is without its newline; it is None if it is too long.
        """

    def tail_offset(self, log: str, length: int) -> int:
        """Return the offset of the first line in the last `length` bytes; with 0, where the next line will begin."""

    def get(self, record: str) -> bytes | None:
        """Return the contents of a record, None if there is none; of a lease, what its last holder wrote into it."""

    def put(self, record: str, data: bytes, *, durable: bool = False) -> None:
        """Replace a record, or create it: readers see the old or the new contents.

        With `durable`, wait until the new contents survive a power cut.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in no order; empty if there is no such folder."""

    def make_folder(self, folder: str) -> None:
        """Create a folder, unless it exists; the folder above it must exist."""

    def move(self, name: str, to: str) -> None:
        """Move a record, a log, or a folder with all that is in it to another name; do nothing if it does not exist."""

    def claim(self, queue: str, to: str, labels: Collection[str], most: int) -> list[str]:
        """Move up to `most` records of the folder `queue`, the oldest first, to the folder `to`; return their names.

        Only records are moved whose `needs`, a list in the JSON object, are all among the `labels`. Of processes that
        claim at the same time, only one gets a record. If the call was repeated after a lost answer, some names may be
        missing, but their records are in `to`, a folder of this process alone. A store of a single machine has no such
        queue, and returns none.
        """

    def purge(self) -> None:
        """Remove all that the store keeps of the team."""

    def take(self, lease: str) -> Held | None:
        """Take a lease for as long as this process lives; return None if another process holds it.

        What the last holder wrote into the lease is erased.
        """

    def say(self, held: Held, about: bytes) -> None:
        """Write the text that a held lease shows to other processes, in place of an earlier one."""

    def renew(self, held: Held) -> bytes | None:
        """Renew a lease that this process holds; return the text in it, None if it was removed, moved or replaced."""

    def is_held(self, lease: str) -> bool:
        """Return True if a process holds a lease, without taking it."""

    def remove(self, name: str) -> None:
        """Remove a record or a lease if it exists."""

    def fence(self, held: Held, check: Callable[[], None], lost: Callable[[], None]) -> None:
        """Refuse every later write of this process once it has lost a lease.

        `check` raises LostLeaseError if the lease is lost; a store may know that without calling it. `lost` is called
        in another thread if the lease was lost, or could not be renewed for so long that another process may soon take
        it.
        """

    def release(self, held: Held) -> None:
        """Let others take a lease that this process holds."""

    def free(self, lease: str, said: bytes) -> None:
        """Free a lease whose holder has certainly ended. `said` is what that holder wrote into it."""

    def glance(self, folder: str | None = None) -> AbstractContextManager[Glance]:
        """Return a context for a pass over many names, in which reading them is cheap.

        In it, `changed`, `get`, `names` and `is_held` of this thread may return the state at its beginning. They
        include all that was committed before it, and what this process wrote in it. A context inside another one reads
        anew. Under a lock, nothing is older than the lock.

        With a `folder`, it is for a pass over the direct contents of this folder, and inside another context it changes
        nothing.

        Raises:
            StorageError: The store is out of reach.
        """

    def changed(self, name: str) -> Version | None:
        """Return the version of a record, log or folder; None if it does not exist. No change is missed.

        A folder changes when something in it is added, replaced or removed.
        """

    def listen(self, heard: Callable[[str], None], *, deep: bool = False, leases: Collection[str] = ()) -> Listener:
        """Call `heard`, in another thread, with names that may have changed, or with "" if any may have.

        The hints are of changes of mailboxes, requests, tasks and settings. With `deep` they are also of all other
        changes that the store can report cheaply, such as the ends of holders of `leases`, which are last parts of
        names. A hint may be lost, doubled, or merged with another.

        Raises:
            StorageError: There are no hints.
        """

    def locked(self, lock: str, work: Callable[[], T]) -> T:
        """Call `work` while no other process works under this lock, and return its result.

        `work` may be called again if the storage fails, so it may change nothing but the store.
        """

    def describe(self, name: str) -> str:
        """Return how error messages name a thing in the store, such as by the path of its file."""


class Key(Struct, frozen=True):
    """The key of a record, log, lease or folder: its store and its name there. Its methods are those of `Store`."""

    store: Store
    name: str

    def __str__(self) -> str:
        return self.store.describe(self.name)

    def read(self, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
        return self.store.read(self.name, offset)

    def size(self) -> int:
        """Return the size of a log in bytes; 0 if there is none."""
        found = self.changed()
        return found.size if found is not None else 0

    def tail_offset(self, length: int) -> int:
        return self.store.tail_offset(self.name, length)

    def get(self) -> bytes | None:
        return self.store.get(self.name)

    def put(self, data: bytes, *, durable: bool = False) -> None:
        self.store.put(self.name, data, durable=durable)

    def remove(self) -> None:
        self.store.remove(self.name)

    def names(self) -> list[str]:
        return self.store.names(self.name)

    def locked(self, work: Callable[[], T]) -> T:
        return self.store.locked(self.name, work)

    def exists(self) -> bool:
        return self.changed() is not None

    def beside(self, name: str) -> "Key":
        """Return the key of another name in the folder of this one."""
        folder, slash, _ = self.name.rpartition("/")
        return Key(self.store, f"{folder}{slash}{name}")

    def below(self, name: str) -> "Key":
        """Return the key of a name in this folder."""
        return Key(self.store, f"{self.name}/{name}")

    def quarantine(self) -> "Key":
        """Copy what is damaged aside unless the copy exists; return the key of the copy.

        The name of the copy has a digest of the contents, so copies of other damage are not overwritten.

        Raises:
            StorageError: The copy could not be written.
        """
        data = self.get() or b""
        aside = Key(self.store, f"{self.name}.damaged-{hashlib.sha256(data).hexdigest()[:8]}")
        if not aside.exists():
            aside.put(data)
        return aside

    def changed(self) -> Version | None:
        return self.store.changed(self.name)

    def changed_at(self) -> float:
        """Return the time of the last change in epoch seconds; 0 if it is not known."""
        try:
            found = self.changed()
        except StorageError:
            return 0.0
        return found.at if found is not None else 0.0

    @property
    def on_disk(self) -> Path:
        """Return the path of a key in a store of files. Only for this package and tests."""
        return Path(str(self))
