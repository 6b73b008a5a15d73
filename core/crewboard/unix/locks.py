"""File locks, for leases: an open file holds its lock until it is closed or its process ends.

They are open-file-description locks, called directly through `fcntl` (docs/decisions/0002-own-file-locks.md):

- `F_OFD_GETLK` probes without taking anything; filelock and portalocker can only probe by taking the lock.
- Closing another descriptor of the same file does not release it, as it would a POSIX `lockf` lock.

On systems that have none, `flock` is used, with which a probe takes the lock for a moment: with 2,000 concurrent
takers, 743 failed because of that. So `take` tries several times there.
"""

import fcntl
import os
import struct
import time

_FLOCK_FORMAT = "hhqqi4x"

_HAS_OWN = hasattr(fcntl, "F_OFD_SETLK")
"""True on Linux, whatever `CREWBOARD_PLATFORM` says: locks of the two kinds do not exclude each other."""

_TRIES = 50
"""Attempts to take a lock, after which it must be a real holder that has it, not a probe, which takes microseconds.

It is not a time, because on a busy machine a process may run for only two attempts in a tenth of a second.
"""

_POLL = 0.002
"""Seconds between two attempts."""


def take(fd: int) -> None:
    """Take the lock of the file of an open descriptor, without waiting for another holder.

    Raises:
        BlockingIOError: Another open file has the lock. Some systems raise PermissionError.
        OSError: The file system has no locks.
    """
    if _HAS_OWN:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file())
        return
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise
            time.sleep(_POLL)
        else:
            return


def is_taken(fd: int) -> bool:
    """Return True if another open file of the same file has the lock.

    Raises:
        OSError: The file system has no locks.
    """
    if _HAS_OWN:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file())
        return bool(struct.unpack(_FLOCK_FORMAT, answer)[0] != fcntl.F_UNLCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _whole_file() -> bytes:
    return struct.pack(_FLOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
