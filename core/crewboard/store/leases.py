"""Locks that say who lives: held for the life of a process, probed without taking anything.

Open-file-description locks: they die with their holder whatever it did, a probe (`F_OFD_GETLK`) never makes a taker
fail, and closing another descriptor of the same file does not drop them. Linux only.
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

_FLOCK = "hhqqi4x"


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def take(path: Path) -> int | None:
    """Take the lease at `path` for as long as this process lives; None if somebody has it.

    Returns the descriptor that holds it: keep it open. It does not pass to other programs. What the last holder wrote
    into it is gone, so that nobody takes them for this one.

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
    with contextlib.suppress(OSError):  # it is closed whatever the answer
        os.close(fd)


def sign(fd: int, holder: Record) -> None:
    """Write into a lease that is held who holds it.

    Raises:
        StorageError: The disk refused.
    """
    try:
        os.ftruncate(fd, 0)
        files.write_at(fd, codec.encode(holder), 0)
    except OSError as error:
        raise StorageError(f"cannot sign a lease: {error.strerror}") from error


def is_held(path: Path) -> bool:
    """Whether somebody holds the lease at `path`. Takes nothing.

    Raises:
        StorageError: The file is there but cannot be looked at, so that nobody may call its holder dead.
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
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def holder(path: Path, model: type[R]) -> R | None:
    """What the holder of a lease wrote into it, or None if nobody holds it or it is not signed yet."""
    if not is_held(path):
        return None
    try:
        return codec.decode(files.read_file(path) or b"", model)
    except (StorageError, BadDataError):
        return None
