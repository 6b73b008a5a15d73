"""Bytes to disk and back, so that neither a kill nor a full disk loses or doubles anything.

The rules and the measurements behind them: a line is appended under a lock file that is never renamed, after sealing
what a killed writer left unterminated; a whole file is replaced, never rewritten; a reader consumes whole lines only.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crewboard.errors import StorageError

MAX_LINE = 16 * 1024 * 1024
"""Longest line in bytes that a reader takes; what is longer is set aside."""

_CHUNK = 1 << 20
_FILE_MODE = 0o600


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` exclusively; waits for whoever has it.

    Raises:
        StorageError: The lock file cannot be opened: the team is gone or read-only.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    except OSError as error:
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def append_line(path: Path, lock: Path, line: bytes, *, durable: bool = False) -> None:
    """Append `line`, which ends with a newline, whole or not at all.

    `durable` also waits for the disk, which only a power failure makes necessary.

    Raises:
        StorageError: The disk refused; nothing of the line is left.
    """
    with locked(lock):
        append_unlocked(path, line, durable=durable)


def append_unlocked(path: Path, line: bytes, *, durable: bool = False) -> None:
    """`append_line` for a file with one writer, which needs no lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    try:
        _seal(fd)
        start = os.fstat(fd).st_size
        try:
            _write_all(fd, line)
            if durable:
                os.fsync(fd)
        except OSError:
            _take_back(fd, start, line)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}; nothing was added") from error
    finally:
        os.close(fd)


def _seal(fd: int) -> None:
    """End a line that a killed writer left open. Its own write, never taken back, so that the next line is whole."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        _write_all(fd, b"\n")


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _take_back(fd: int, start: int, line: bytes) -> None:
    """Remove the beginning of `line` that was written at `start`, unless somebody has appended behind it."""
    written = os.fstat(fd).st_size - start
    if 0 < written <= len(line) and os.pread(fd, written, start) == line[:written]:
        os.ftruncate(fd, start)


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put `data` in the place of `path` in one step: readers see the old file or the new one.

    Raises:
        StorageError: The disk refused; the old file stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        try:
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}; the old file stands") from error


def read_file(path: Path) -> bytes | None:
    """The bytes of `path`, or None where there is no such file.

    Raises:
        StorageError: It is there but cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


def read_lines(path: Path, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
    """Yield each whole line from byte `offset` on, without its newline, and the offset behind it.

    A line beyond `MAX_LINE` comes as None. What has no newline yet is left for later.

    Raises:
        StorageError: The file is there but cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            yield from _lines(file.read, offset)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error


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
