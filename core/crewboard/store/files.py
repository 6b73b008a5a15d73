"""Bytes to disk and back, so that neither a kill nor a full disk loses or doubles anything.

The rules and the measurements behind them: a line is appended under a lock file that is never renamed, after sealing
what a killed writer left unterminated; a whole file is replaced, never rewritten; a reader consumes whole lines only.
Other programs append without our lock, so that what failed is blanked in place and nothing is ever cut off: between a
look at the end of the file and a truncation, a whole line of theirs could come to stand there.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crewboard.errors import BadDataError, StorageError

MAX_LINE = 16 * 1024 * 1024
"""Longest line in bytes that a reader takes; what is longer is set aside."""

_CHUNK = 1 << 20
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_WRITE_BY_OTHERS = 0o022

_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags of each open: O_NONBLOCK so that a named pipe in a file's place makes no process wait."""

_TRIES = 8
"""How often a line is written anew because somebody else's came to stand in the middle of it."""

_LEFTOVER_AGE = 600.0
"""Seconds after which a temporary file is what a killed writer left."""

_Span = tuple[int, int]
"""Where in a file bytes of ours stand: offset and length."""


def open_existing(path: str | Path, flags: int) -> int:
    """Open the file at `path`, which no symbolic link stands for: the file behind it would be one outside the team.

    The folders above it need no such care: `TeamDirectory.require_own` looked at them when the team was opened.

    Raises:
        OSError: It cannot be opened, or is a symbolic link (ELOOP).
    """
    return os.open(path, flags | _ALWAYS)


def open_private(path: str | Path, flags: int) -> int:
    """Open the file at `path`; one that is not there yet is made, for its owner alone whatever the umask says.

    Raises:
        OSError: It can neither be opened nor made, or is a symbolic link.
    """
    try:
        return open_existing(path, flags & ~os.O_CREAT)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT | _ALWAYS, _FILE_MODE)
        _make_private(fd, _FILE_MODE)
        return fd


def _make_private(made: int | Path, mode: int) -> None:
    with contextlib.suppress(OSError):  # not every file system has modes
        os.chmod(made, mode)


def reason(error: OSError) -> str:
    """Return why a file of a team could not be opened, in words."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, and crewboard follows none in a team directory; remove it"
    return error.strerror or str(error)


def make_folder(path: Path) -> None:
    """Make the folder `path` if it is not there yet, for its owner alone whatever the umask says.

    Raises:
        OSError: It cannot be made, or something else stands there: a file, a symbolic link.
    """
    try:
        os.mkdir(path, _FOLDER_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
    else:
        _make_private(path, _FOLDER_MODE)


def unsafe_folder(path: Path) -> str | None:
    """Return why another user, or a cloned repository, may have a hand in the folder `path`; None if none has.

    None also where there is no folder, as the next one who opens it will say.

    Raises:
        OSError: It cannot be looked at.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return None
    if found.st_uid != os.geteuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & _WRITE_BY_OTHERS:
        return f"can be written to by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` exclusively; waits for whoever has it.

    Raises:
        StorageError: The lock file cannot be opened: the team is gone or read-only.
    """
    try:
        fd = open_private(path, os.O_RDWR)
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {reason(error)}") from error
    try:
        _wait_for_lock(fd, path)
        yield
    finally:
        with contextlib.suppress(OSError):  # it is closed whatever the answer, and the lock with it
            os.close(fd)


def _wait_for_lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {reason(error)}") from error


def append_line(path: Path, lock: Path, line: bytes, *, durable: bool = False) -> None:
    """Append `line`, which ends with a newline, whole or not at all.

    `durable` also waits for the disk, which only a power failure makes necessary.

    Raises:
        StorageError: The disk refused; nothing of the line is left.
        BadDataError: The line is longer than any reader takes.
    """
    with locked(lock):
        append_unlocked(path, line, durable=durable)


def append_unlocked(path: Path, line: bytes, *, durable: bool = False) -> None:
    """`append_line` for a file with one writer, which needs no lock."""
    if len(line) > MAX_LINE:
        raise BadDataError(f"a line of {len(line)} bytes for {path} is longer than any reader takes ({MAX_LINE})")
    ours: list[_Span] = []
    try:
        fd = open_private(path, os.O_RDWR | os.O_APPEND)
        try:
            _write_line(fd, path, line, ours)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        _blank(path, ours)
        raise StorageError(f"cannot write {path}: {reason(error)}; nothing was added") from error


def _write_line(fd: int, path: Path, line: bytes, ours: list[_Span]) -> None:
    """Write `line` in one piece; `ours` says, whatever happens, which bytes of the file are it."""
    for _ in range(_TRIES):
        _seal(fd)
        left = line
        while left:
            count = _write_some(fd, left)
            ours.append((os.lseek(fd, 0, os.SEEK_CUR) - count, count))
            left = left[count:]
        if _in_one_piece(ours):
            return
        _blank(path, ours)
        ours.clear()
    raise OSError(errno.EAGAIN, "others keep writing in between")


def _seal(fd: int) -> None:
    """End a line that a killed writer left open. Its own write, never taken back, so that the next line is whole."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        _write_some(fd, b"\n")


def seal(path: Path) -> None:
    """End a line that a killed writer left open in a file with one writer, so that it counts from now on, or never.

    A writer that goes by what it read must do so before it reads: the line may be whole but for its newline, and would
    come to count when the next one is appended.

    Raises:
        StorageError: The disk refused.
    """
    try:
        fd = open_existing(path, os.O_RDWR | os.O_APPEND)
        try:
            _seal(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot write {path}: {reason(error)}") from error


def _write_some(fd: int, data: bytes) -> int:
    count = os.write(fd, data)
    if count == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return count


def _in_one_piece(spans: list[_Span]) -> bool:
    """Whether nobody else's bytes stand between ours: a short write lets others in, if they take no lock."""
    return all(start + count == after for (start, count), (after, _) in itertools.pairwise(spans))


def _blank(path: Path, spans: list[_Span]) -> None:
    """Turn bytes of ours into empty lines, which readers pass over. Needs no room on the disk, and moves nothing."""
    if not spans:
        return
    with contextlib.suppress(OSError):  # what stays is half a line, which the next writer seals
        fd = open_existing(path, os.O_WRONLY)
        try:
            for start, count in spans:
                write_at(fd, b"\n" * count, start)
        finally:
            os.close(fd)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`.

    Raises:
        OSError: The disk refused; a part of it may stand there.
    """
    while data:
        count = os.pwrite(fd, data, offset)
        if count == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, offset = data[count:], offset + count


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put `data` in the place of `path` in one step: readers see the old file or the new one.

    Raises:
        StorageError: The disk refused; the old file stands.
    """
    temporary = path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")
    try:
        _write_whole(temporary, data, durable=durable)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise StorageError(f"cannot write {path}: {reason(error)}; the old file stands") from error
    if durable:
        _sync_folder(path.parent)


def _write_whole(path: Path, data: bytes, *, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _ALWAYS, _FILE_MODE)
    try:
        _make_private(fd, _FILE_MODE)
        while data:
            data = data[_write_some(fd, data) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folder(path: Path) -> None:
    """Make a rename survive a power failure, where the file system can: the file stands there in any case."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def clear_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed writers left in `folder` and below."""
    oldest = time.time() - _LEFTOVER_AGE
    for path in folder.rglob(".*.tmp"):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < oldest:
                os.unlink(path)


def read_file(path: Path) -> bytes | None:
    """The bytes of `path`, or None where there is no such file.

    Raises:
        StorageError: It is there but cannot be read.
    """
    try:
        with open(path, "rb", opener=open_existing) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error


def size(path: Path) -> int:
    """How many bytes `path` has; 0 where there is no such file.

    Raises:
        StorageError: It is there but cannot be looked at.
    """
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
    """Yield each whole line from byte `offset` on, without its newline, and the offset behind it.

    A line beyond `MAX_LINE` comes as None. What has no newline yet is left for later.

    Raises:
        StorageError: The file is there but cannot be read.
    """
    try:
        with open(path, "rb", opener=open_existing) as file:
            file.seek(offset)
            yield from _lines(file.read, offset)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error


def _lines(read: Callable[[int], bytes], offset: int) -> Iterator[tuple[bytes | None, int]]:
    pieces: list[bytes] = []
    held = 0
    too_long = False
    while chunk := read(_CHUNK):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            length = held + len(line)
            offset += length + 1
            yield (None if too_long or length > MAX_LINE else b"".join((*pieces, line)), offset)
            pieces, held, too_long = [], 0, False
        held += len(rest)
        too_long = too_long or held > MAX_LINE
        pieces = [] if too_long else [*pieces, rest]


def tail_offset(path: Path, tail: int) -> int:
    """Where the whole lines begin that the last `tail` bytes of `path` hold; 0 bytes: where the next line will begin.

    Reads a few blocks of the file, however long it is.

    Raises:
        StorageError: The file is there but cannot be read.
    """
    try:
        fd = open_existing(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error
    try:
        end = _last_newline(fd, os.fstat(fd).st_size) + 1
        start = end - tail
        return 0 if start <= 0 else _first_newline(fd, start - 1, end) + 1
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error
    finally:
        os.close(fd)


def _last_newline(fd: int, end: int) -> int:
    """Where the last newline before `end` stands, -1 if there is none."""
    while end > 0:
        start = max(0, end - _CHUNK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1


def _first_newline(fd: int, start: int, end: int) -> int:
    """Where the first newline from `start` on stands; there is one before `end`."""
    while start < end:
        block = os.pread(fd, _CHUNK, start)
        found = block.find(b"\n")
        if found >= 0:
            return start + found
        start += len(block) or end
    return end - 1
