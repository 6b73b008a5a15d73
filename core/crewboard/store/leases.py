"""Leases: locks that a process holds for its whole life, so that others can see whether it is alive, and who it is.

A process that lost its lease can no longer write: `fence` sees to that. In PostgreSQL `may_write` in `schema.sql`
refuses each of its writes. Which host may start a run is no lease, but a row: `store/hosts.py`.
"""

from collections.abc import Callable
from typing import TypeVar

from crewboard.errors import BadDataError, LostLeaseError, StorageError
from crewboard.records.base import Record
from crewboard.records.processes import Lease
from crewboard.store import codec
from crewboard.store.interface import Held, Key

R = TypeVar("R", bound=Record)


def take(lease: Key) -> Held | None:
    """Take a lease for as long as this process lives; return None if another process holds it.

    Programs that this process starts do not inherit the lease. What its last holder wrote is erased, so that it is not
    taken for the identity of this process.

    Raises:
        StorageError: The lease cannot be examined.
    """
    return lease.store.take(lease.name)


def release(held: Held) -> None:
    """Let others take a lease that this process holds."""
    held.store.release(held)


def sign(held: Held, holder: Record) -> bytes:
    """Write the identity of the holder into a lease that this process holds; return what was written.

    Raises:
        StorageError: The write failed.
    """
    text = codec.encode(holder)
    held.store.say(held, text)
    return text


def unsign(held: Held) -> None:
    """Erase the identity of the holder of a lease.

    Raises:
        StorageError: The write failed.
    """
    held.store.say(held, b"")


def has(held: Held) -> bool:
    """Return True if this process still has a lease that it took: it was not removed, moved or replaced."""
    return held.store.renew(held) is not None


def require(held: Held, holder: Lease | None = None, signed: bytes = b"") -> None:
    """Refuse to go on unless this process has the lease; if `holder` is given, the lease must also name it.

    Copying files in place over a running team keeps the lease, but replaces its text by that of another run. `signed`
    is the text that `sign` wrote for `holder`: if the lease still has it, it is not parsed.

    Raises:
        LostLeaseError: The lease was removed or replaced, or names another run.
    """
    text = held.store.renew(held)
    place = Key(held.store, held.name)
    if text is None:
        raise LostLeaseError(f"{place} was removed, moved or replaced; this process used it and ends")
    if holder is None or text == signed:
        return
    try:
        said = codec.decode(text, Lease)
    except BadDataError:
        # Damage says nothing about another run.
        return
    if (said.pid, said.run) != (holder.pid, holder.run):
        raise LostLeaseError(f"{place} names run {said.run} of process {said.pid}; this is run {holder.run} and ends")


def fence(held: Held, holder: Lease | None, signed: bytes, lost: Callable[[], None]) -> None:
    """Refuse each later write of this process once `require` would refuse to go on.

    `holder` and `signed` are as for `require`. `lost` is called in another thread if the store takes the lease away, or
    may soon.
    """
    held.store.fence(held, lambda: require(held, holder, signed), lost)


def free(lease: Key, pid: int, start_ticks: int) -> None:
    """Free a lease if the process with this pid and start, which was seen to end, held it.

    In a store of files, the kernel has done that already.

    Raises:
        StorageError: It is not known whether that succeeded.
    """
    said = lease.get()
    try:
        holder = codec.decode(said or b"", Lease)
    except BadDataError:
        return
    if (holder.pid, holder.start_ticks) == (pid, start_ticks):
        lease.store.free(lease.name, said or b"")


def is_held(lease: Key) -> bool:
    """Return True if a process holds the lease, without taking it.

    Raises:
        StorageError: The lease cannot be examined, so it is not known whether its holder is alive.
    """
    return lease.store.is_held(lease.name)


def last_holder(lease: Key) -> Lease | None:
    """Return the identity in a worker's lease, whether the lease is held or not; None if there is no lease.

    If the lease is damaged or cannot be read, the identity has the pid 0.
    """
    try:
        data = lease.get()
        return None if data is None else codec.decode(data, Lease)
    except (StorageError, BadDataError):
        return Lease(pid=0)


def holder(lease: Key, model: type[R]) -> R | None:
    """Return what the holder of a lease wrote into it; None if it is not held, not signed yet, or cannot be read.

    Raises:
        StorageError: It is not known whether the lease is held.
    """
    return last_said(lease, model) if is_held(lease) else None


def last_said(lease: Key, model: type[R]) -> R | None:
    """Return what the last holder of a lease wrote into it, whether it is held or not; None if that cannot be read."""
    try:
        return codec.decode(lease.get() or b"", model)
    except (StorageError, BadDataError):
        return None
