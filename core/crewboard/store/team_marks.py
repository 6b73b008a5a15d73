"""Marks in team directories, by which a user's own teams are known, and the secret of the user that makes them.

A mark is bound to the folder's inode or to its path. Each team has both, and one of them is enough: a project may be
moved, and some file systems give new inodes. In a copy of the folder neither fits, so marks that came with it are worth
nothing.
"""

import hashlib
import hmac
import os
import stat
from pathlib import Path

MARKS = "owners"
"""The file in a team directory with the marks of the users who made or adopted the team."""

_BYTES = 32
_MOST = 64 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def marks(folder: Path, place: Path | None = None) -> tuple[bytes, bytes]:
    """Return the two marks of this user for a folder: the one for its inode and the one for its path.

    `place` is the path that the folder will have, if it is not at that path yet.

    Raises:
        OSError: There is no secret and none can be kept, or the folder does not exist.
    """
    secret = _secret()
    real = os.path.realpath(place or folder)
    names = (b"inode %d" % os.stat(folder).st_ino, b"path " + os.fsencode(real))
    inode, path = (hmac.new(secret, name, hashlib.sha256).hexdigest().encode() for name in names)
    return inode, path


def is_marked(folder: Path) -> bool:
    """Return True if the team directory `folder` has a mark of this user.

    Raises:
        OSError: Its marks or the secret cannot be read.
    """
    try:
        fd = os.open(folder / MARKS, _READ)
    except FileNotFoundError:
        return False
    with os.fdopen(fd, "rb") as file:
        known = file.read(_MOST).split()
    return bool(known) and not set(known).isdisjoint(marks(folder))


def secret_file() -> Path:
    """Return the path of the secret, below `$XDG_STATE_HOME`, else below `~/.local/state`."""
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    return folder / "crewboard" / "secret"


def _secret() -> bytes:
    path = secret_file()
    try:
        return _read(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(os.urandom(_BYTES))
        # Another process may make one at the same time; the first stays.
        if not path.exists():
            os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
    return _read(path)


def _read(path: Path) -> bytes:
    fd = os.open(path, _READ)
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{path} must be a file of yours alone (mode 600)")
        secret = file.read(_BYTES)
    if len(secret) != _BYTES:
        raise OSError(f"{path} is damaged; remove it, and adopt your teams again")
    return secret
