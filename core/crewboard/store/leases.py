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

from crewboard.errors import BadDataError, StorageError
from crewboard.records import Record
from crewboard.store import codec, files

R = TypeVar("R", bound=Record)

_FLOCK_FORMAT = "hhqqi4x"


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK_FORMAT, kind, os.SEEK_SET, 0, 0, 0)


def take(path: Path) -> int | None:
    """Take the lease at `path` for as long as this process lives; return None if another process holds it.

    Return the descriptor that holds the lease: keep it open. Programs that are started do not inherit it. What the
    last holder wrote is erased, so that it is not taken for the identity of this one.

    Raises:
        StorageError: The file cannot be opened or locked.
    """
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


def sign(fd: int, holder: Record) -> None:
    """Write the identity of the holder into a lease that this process holds.

    Raises:
        StorageError: The write failed.
    """
    try:
        os.ftruncate(fd, 0)
        files.write_at(fd, codec.encode(holder), 0)
    except OSError as error:
        raise StorageError(f"cannot write the holder of a lease: {error.strerror}") from error


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


def holder(path: Path, model: type[R]) -> R | None:
    """Return what the holder of a lease wrote into it, or None if it is free or not signed yet."""
    if not is_held(path):
        return None
    try:
        return codec.decode(files.read_file(path) or b"", model)
    except (StorageError, BadDataError):
        return None
