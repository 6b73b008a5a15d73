"""Leases: locks that a process holds for its whole life, so that others can see whether it is alive.

Open-file-description locks (Linux only), called directly through `fcntl` (docs/decisions/0002-own-file-locks.md):

- The kernel releases one when its holder ends, however it ends.
- `F_OFD_GETLK` probes without taking anything. Probing with a shared `flock` made 743 of 2,000 concurrent takers fail,
  and filelock and portalocker can only probe by taking the lock.
- Closing another descriptor of the same file does not release it, as it would a POSIX `lockf` lock.
"""

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import TypeVar

from crewboard.records import BadDataError, Lease, LostLeaseError, Record, StorageError
from crewboard.store import codec, files

R = TypeVar("R", bound=Record)

_FLOCK_FORMAT = "hhqqi4x"

_MAX_HOLDER = 4096
"""Bytes that the text of a lease may have."""


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK_FORMAT, kind, os.SEEK_SET, 0, 0, 0)


def take(path: Path) -> int | None:
    """Take the lease at `path` for as long as this process lives; return None if another process holds it.

    Return the descriptor that holds the lease: keep it open. Programs that are started do not inherit it. What the
    last holder wrote is erased, so that it is not taken for the identity of this one.

    Raises:
        StorageError: The file cannot be opened or locked.
    """
    while (fd := _take(path)) is not None:
        if is_at(fd, path):
            return fd
        # The file was removed or replaced between opening and locking it.
        _close(fd)
    return None


def _take(path: Path) -> int | None:
    try:
        fd = files.open_private(path, os.O_RDWR)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {files.reason(error)}") from error
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
        os.ftruncate(fd, 0)
    except (BlockingIOError, PermissionError):
        _close(fd)
        return None
    except OSError as error:
        _close(fd)
        raise StorageError(f"cannot lock {path}: {files.reason(error)}") from error
    return fd


def _close(fd: int) -> None:
    # The descriptor is closed even if close() fails.
    with contextlib.suppress(OSError):
        os.close(fd)


def sign(fd: int, holder: Record) -> bytes:
    """Write the identity of the holder into a lease that this process holds; return what was written.

    Raises:
        StorageError: The write failed.
    """
    try:
        os.ftruncate(fd, 0)
        text = codec.encode(holder)
        files.write_at(fd, text, 0)
    except OSError as error:
        raise StorageError(f"cannot write the holder of a lease: {error.strerror}") from error
    return text


def is_at(fd: int, path: Path) -> bool:
    """Return True if the file at `path` is the one that `fd` has open: not removed, moved, restored or replaced.

    Return True also if the path cannot be examined, as on a failing disk: a lease is lost only if its file is certainly
    gone.
    """
    try:
        there, here = os.stat(path), os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def require(fd: int, path: Path, holder: Lease | None = None, signed: bytes = b"") -> None:
    """Raise LostLeaseError unless this process holds the lease at `path`; if `holder` is given, the lease must name it.

    Copying files in place over a running team keeps the lease's inode, but replaces its text with that of another run.
    `signed` is the text that `sign` wrote for `holder`; it need not be parsed.

    Raises:
        LostLeaseError: The lease was removed or replaced, or names another run.
    """
    if not is_at(fd, path):
        raise LostLeaseError(f"{path} was removed, moved or replaced; this process used it and ends")
    if holder is None:
        return
    try:
        text = os.pread(fd, _MAX_HOLDER, 0)
        said = holder if text == signed else codec.decode(text, Lease)
    except (OSError, BadDataError):
        # Damage says nothing about another run.
        return
    if (said.pid, said.run) != (holder.pid, holder.run):
        raise LostLeaseError(f"{path} names run {said.run} of process {said.pid}; this is run {holder.run} and ends")


def is_held(path: Path) -> bool:
    """Return True if a process holds the lease at `path`. Does not take the lease.

    Raises:
        StorageError: The file exists but cannot be examined, so it is unknown whether its holder is alive.
    """
    try:
        fd = files.open_existing(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {files.reason(error)}") from error
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {files.reason(error)}") from error
    finally:
        _close(fd)
    return bool(struct.unpack(_FLOCK_FORMAT, answer)[0] != fcntl.F_UNLCK)


def last_holder(path: Path) -> Lease | None:
    """Return what a worker's lease says, held or not: None if there is no such file, no run if it is damaged."""
    try:
        data = files.read_file(path)
        return None if data is None else codec.decode(data, Lease)
    except (StorageError, BadDataError):
        return Lease(pid=0)


def holder(path: Path, model: type[R]) -> R | None:
    """Return what the holder of a lease wrote into it, or None if it is free or not signed yet."""
    if not is_held(path):
        return None
    try:
        return codec.decode(files.read_file(path) or b"", model)
    except (StorageError, BadDataError):
        return None
