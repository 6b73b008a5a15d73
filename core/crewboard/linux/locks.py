"""The locks of leases: held by an open file, until it is closed or its process ends; and disks where they mean little.

They are open-file-description locks, called directly through `fcntl` (docs/decisions/0002-own-file-locks.md):

- `F_OFD_GETLK` probes without taking anything; filelock and portalocker can only probe by taking the lock.
- Closing another descriptor of the same file does not release it, as it would a POSIX `lockf` lock.

Where there are none, `flock` does the same, but a probe takes the lock for a moment: with 2,000 concurrent takers, 743
failed because of that. So a taker tries again for a while.

File systems that other machines write to are told from others: the locks of one machine mean little there.
"""

import fcntl
import os
import re
import struct
import time
from pathlib import Path

_FLOCK_FORMAT = "hhqqi4x"

_HAS_OWN = hasattr(fcntl, "F_OFD_SETLK")
"""True on Linux, whatever is asked for: the two kinds do not exclude each other, and a team needs one."""

_PROBE_TIMEOUT = 0.1
"""Seconds after which a lock that is still taken is not one of a probe, which takes microseconds."""

_POLL = 0.002

NETWORK = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.davfs2",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.moosefs", "fuse.rclone", "fuse.s3fs",
    "fuse.seaweedfs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2",
    "smb3", "smbfs",
})  # fmt: skip
"""File systems over a network.

A machine that is cut off there loses its locks without being told, and may write later; appending is not atomic on
most of them.
"""

OF_THE_HOST = frozenset({
    "9p", "fakeowner", "fuse.grpcfuse", "fuse.osxfs", "fuse.vmhgfs-fuse", "prl_fs", "vboxsf", "virtiofs", "vmhgfs",
})  # fmt: skip
"""Folders that a virtual machine or container is given by the machine that it runs on.

Locks hold between the processes inside, which cannot be cut off from their disk, but changes made outside cause no
events.
"""


def take(fd: int) -> None:
    """Lock the file of an open descriptor.

    Raises:
        BlockingIOError: Another open file has the lock. Some systems raise PermissionError.
        OSError: The file system has no locks.
    """
    if _HAS_OWN:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file())
        return
    deadline = time.monotonic() + _PROBE_TIMEOUT
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
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


def file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that holds `path`, or will hold it; "" if that is unknown."""
    real = Path(os.path.realpath(path))
    depth, found = -1, ""
    try:
        lines = os.fsdecode(mounts.read_bytes()).splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        # The sixth field ends what each line has; optional ones follow.
        place = Path(re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), left.split(" ")[4]))
        # Of two at one place, the later one covers the other.
        if real.is_relative_to(place) and len(place.parts) >= depth:
            depth, found = len(place.parts), right.partition(" ")[0]
    return found
