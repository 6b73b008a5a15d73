"""Make and remove the scratch folders of runs, for temporary files and caches of an agent's commands.

A folder is locked while its worker runs. The supervisor or the next worker removes the folders of killed workers, and
ends the processes that these left.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import tempfile
import time
from pathlib import Path

from crewboard import env
from crewboard.unix import process

_PREFIX = "crewboard-run-"
_NAME = re.compile(_PREFIX + r"(\d+)-(\d+)-")
_MOVED = "crewboard-moved-"
"""The beginning of the names of folders that are moved while a folder is removed."""

REMOVAL_TIMEOUT = 5.0
"""Seconds for removing one folder, so that no start waits long. A later `sweep` removes what is left."""


class Scratch:
    """The scratch folder of one run, locked by an open descriptor."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> "Scratch":
        """Make a scratch folder for this process, after a `sweep`."""
        sweep()
        me = os.getpid()
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{me}-{process.start_ticks(me)}-", dir=_place()))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder with everything in it, and the lock. What cannot be removed is left to a later `sweep`."""
        # What cannot be removed now is left to the next sweep; it must not turn an orderly end into a crash.
        with contextlib.suppress(OSError):
            remove_tree(self.path)
        os.close(self._lock)


def sweep() -> None:
    """Kill the processes that killed workers of this user left, and remove the scratch folders of these workers."""
    for path in _place().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            named, found = _NAME.match(path.name), path.lstat()
            if named is None or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            # Else it lives, and may be about to take its lock.
            if process.start_ticks(int(named[1])) != int(named[2]):
                lock = _open(path)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # First, so that as long as there is such a process, there is the folder that names it.
                    process.kill_marked([process.mark(int(named[1]), int(named[2]))])
                    remove_tree(path)
                finally:
                    os.close(lock)


def _place() -> Path:
    return Path(os.path.realpath(tempfile.gettempdir()))


def remove_tree(path: Path, timeout: float | None = None) -> None:
    """Remove the folder `path`, however deep it is, or as much of it as fits in `timeout` seconds.

    Without `timeout`, it has `REMOVAL_TIMEOUT`. A command may leave folders nested deeper than a recursion or a path of
    4,096 bytes can reach, so each folder is moved up to `path` before its entries are removed.
    """
    deadline = time.monotonic() + (REMOVAL_TIMEOUT if timeout is None else timeout)
    top = _open(path)
    try:
        waiting = _folders_left(top, top)
        while waiting and time.monotonic() < deadline:
            name = waiting.pop()
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                waiting += _folders_left(below, top)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    if not waiting:
        path.rmdir()


def _open(path: Path) -> int:
    """Return a descriptor of a folder, which is no link, also if a command took away its owner's permissions.

    Raises:
        OSError: There is no such folder, or it is a link.
    """
    if env.is_posix():
        # No descriptor of a folder without permissions can be had there, so its name is used.
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise NotADirectoryError(f"{path} is no folder")
        path.chmod(0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # By its descriptor, because chmod of a name would follow a link that was put there meanwhile.
        same = f"/proc/self/fd/{found}"
        os.chmod(same, 0o700)  # noqa: PTH101
        return os.open(same, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def _folders_left(folder: int, top: int) -> list[str]:
    """Remove the files in the open `folder`, and move its folders to the open folder `top`; return the names there."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(name, dir_fd=folder)
                continue
            # A folder without its owner's permissions can be neither moved nor listed.
            os.chmod(name, 0o700, dir_fd=folder)
            if folder != top:
                name = f"{_MOVED}{secrets.token_hex(8)}"
                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
            found.append(name)
    return found
