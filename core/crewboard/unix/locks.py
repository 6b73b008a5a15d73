"""The locks of leases: held by an open file, until it is closed or its process ends.

They are open-file-description locks, called directly through `fcntl` (docs/decisions/0002-own-file-locks.md):

- `F_OFD_GETLK` probes without taking anything; filelock and portalocker can only probe by taking the lock.
- Closing another descriptor of the same file does not release it, as it would a POSIX `lockf` lock.

Where there are none, `flock` does the same, but a probe takes the lock for a moment: with 2,000 concurrent takers, 743
failed because of that. So a taker tries again for a while.
"""

import fcntl
import os
import struct
import time

_FLOCK_FORMAT = "hhqqi4x"

_HAS_OWN = hasattr(fcntl, "F_OFD_SETLK")
"""True on Linux, whatever is asked for: the two kinds do not exclude each other, and a team needs one."""

_TRIES = 50
"""Attempts after which a lock that is still taken is not one of a probe, which takes microseconds.

Not a time: on a busy machine a process may be awake for two attempts in a tenth of a second.
"""

_POLL = 0.002
"""Seconds between two attempts."""


def take(fd: int) -> None:
    """Lock the file of an open descriptor.

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
    """Return True if another open file has the lock of this one.

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
