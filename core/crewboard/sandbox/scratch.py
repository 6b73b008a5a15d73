"""Private folders for runs: temporary files and caches of an agent's commands, gone with the run.

A folder is locked for as long as its worker lives. The supervisor, or the next worker, removes those of the killed.
"""

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

from crewboard.linux import process

_PREFIX = "crewboard-run-"
_NAME = re.compile(_PREFIX + r"(\d+)-(\d+)-")


class Scratch:
    """The folder of one run."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls) -> "Scratch":
        """Make a folder for this process."""
        sweep()
        me = os.getpid()
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{me}-{process.start_ticks(me)}-", dir=_place()))
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder, whatever its user left in it."""
        _remove(self.path)
        os.close(self._lock)


def sweep() -> None:
    """Remove the folders of this user's workers that were killed."""
    for path in _place().glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            _remove_if_left(path)


def _place() -> Path:
    return Path(os.path.realpath(tempfile.gettempdir()))


def _remove_if_left(path: Path) -> None:
    named, found = _NAME.match(path.name), path.lstat()
    if named is None or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    if process.start_ticks(int(named[1])) == int(named[2]):
        return  # it lives, and may be about to take its lock
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(path)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    for folder, folders, _ in os.walk(path):
        for name in folders:
            below = Path(folder, name)
            if not below.is_symlink():
                below.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
