"""File systems that other machines write to, too: locks and file events of one machine mean little there."""

import os
import re
from pathlib import Path

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

_ESCAPED = re.compile(r"\\([0-7]{3})")


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
        place = Path(_ESCAPED.sub(lambda escape: chr(int(escape[1], 8)), left.split(" ")[4]))
        # Of two at one place, the later one covers the other.
        if real.is_relative_to(place) and len(place.parts) >= depth:
            depth, found = len(place.parts), right.partition(" ")[0]
    return found
