"""Crash-safe reading and writing of files: locks, appended lines, atomic replacement.

A process may be killed, or the disk may fill up, between any two system calls. No line is lost or doubled, because

- a line is appended under a lock file that is never renamed or removed, after a line that a killed writer left
  unterminated was ended (`seal`), with one `write` of the whole line;
- a failed append is overwritten with newlines, never truncated: other programs append without this lock, and
  truncating could remove a whole line that one of them added in the meantime;
- a whole file is written beside its place and renamed over it (`replace_file`);
- a reader consumes whole lines only.

Why no library does this:

- Locks: `fcntl.flock` takes 3.9 µs, portalocker 20 µs, filelock 58 µs. filelock also falls back silently to a lock
  that protects nothing where `flock` is missing (docs/decisions/0002-own-file-locks.md).
- Atomic files: `os.replace` does the work. Around it a library would have to refuse symbolic links, set mode 0600
  whatever the umask is, call fsync only on request, use temporary names that `remove_stale_files` recognises, and
  expose each system call to `tests/crash`, which kills the process or fills the disk there. Rewriting `config.json`
  in place instead gave readers torn contents in 9 to 13 % of their reads.
"""

import contextlib
import errno
import fcntl
import functools
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crewboard.errors import BadDataError, LostLeaseError, StorageError, UntrustedError
from crewboard.names import TEAMS_FOLDER
from crewboard.store import team_marks

MAX_LINE = 16 * 1024 * 1024
"""Most bytes of a line that a reader accepts; a longer line counts as damaged."""

_CHUNK = 1 << 18
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700

_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags for every open. With O_NONBLOCK a named pipe in the place of a file does not block the process."""

_MAX_ATTEMPTS = 8
"""Attempts to write a line in one piece, if other programs keep writing into the middle of it."""

_STALE_AGE = 600.0
"""Seconds after which a temporary file is certainly one that a killed writer left."""

StrPath = str | Path
"""A path. The store uses texts: making a `Path` from one takes longer than a system call."""

_Span = tuple[int, int]
"""A part of a file that this process wrote: offset and length."""

_checks_before_writing: list[Callable[[], None]] = []


def require_before_writing(check: Callable[[], None]) -> None:
    """Call `check` before each later change of a file by this process; `check` raises an error to refuse the change."""
    _checks_before_writing.append(check)


def check_before_writing() -> None:
    """Call the checks of `require_before_writing`.

    Raises:
        LostLeaseError: This process may no longer write: the directory was removed, moved or replaced.
    """
    for check in _checks_before_writing:
        check()


_own_teams: set[str] = set()


def require_own_team(path: StrPath) -> None:
    """Refuse to change a file of a team that this user neither made nor adopted.

    Every change of a file calls this, so scripts that use `crewboard.commands` or this package are refused like the
    command line. The file with the marks of ownership may be written.

    Raises:
        UntrustedError: The team is foreign.
        StorageError: The marks cannot be read.
    """
    above, found, below = str(path).partition(f"/{TEAMS_FOLDER}/")
    name, _, rest = below.partition("/")
    team = f"{above}{found}{name}"
    if not rest or team in _own_teams or rest == team_marks.MARKS or rest.startswith(f".{team_marks.MARKS}."):
        return
    try:
        if team_marks.is_marked(Path(team)):
            _own_teams.add(team)
        elif os.path.lexists(team):
            raise UntrustedError(
                f"the team in {team!r} is foreign, so nothing in it is changed: `crewboard team adopt`"
            )
    except OSError as error:
        raise StorageError(f"cannot tell who made {team}: {reason(error)}") from error


def open_existing(path: StrPath, flags: int) -> int:
    """Return a descriptor of the file at `path`; refuse a symbolic link, which could point to a file outside the team.

    The folders above it need no check here: `TeamDirectory.require_own` checked them when the team was opened.

    Raises:
        OSError: The file cannot be opened, or is a symbolic link (ELOOP).
    """
    return os.open(path, flags | _OPEN_FLAGS)


def open_private(path: StrPath, flags: int) -> int:
    """Return a descriptor of the file at `path`, which is created if missing, for its owner only with any umask.

    Raises:
        OSError: It can neither be opened nor created, or is a symbolic link.
        UntrustedError: The team is foreign.
    """
    try:
        require_own_team(path)
        return open_existing(path, flags & ~os.O_CREAT)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT | _OPEN_FLAGS, _FILE_MODE)
        _make_private(fd, _FILE_MODE)
        return fd


def _make_private(made: int | Path, mode: int) -> None:
    # Some file systems have no modes.
    with contextlib.suppress(OSError):
        os.chmod(made, mode)


def reason(error: OSError) -> str:
    """Return in words why an operation on a file of a team failed."""
    if error.errno == errno.ELOOP:
        return "it is a symbolic link, and crewboard follows none in a team directory; remove it"
    return error.strerror or str(error)


@contextmanager
def storage_errors(failed: str) -> Iterator[None]:
    """Raise a `StorageError` for each `OSError` in the block: the text `failed`, such as `cannot read /x`, and why."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{failed}: {reason(error)}") from error


_TROUBLES = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EROFS: "disk is read-only",
    errno.EFBIG: "limit of file sizes reached (ulimit -f)",
    errno.EMFILE: "limit of open files reached (ulimit -n)",
    errno.ENFILE: "too many open files on this machine",
    errno.EIO: "disk error",
}


def trouble(error: BaseException) -> str | None:
    """Return the state of the machine that caused a `StorageError`, such as `disk full`; None for another cause."""
    cause = error.__cause__
    return _TROUBLES.get(cause.errno or 0) if isinstance(cause, OSError) else None


MIN_FREE = 64 * 1024
"""Free bytes below which a disk counts as full: the next changes of a few records would fail."""


_MOUNTS = Path("/proc/self/mountinfo")

_MOUNTS_INTERVAL = 2.0
"""Seconds between two looks at the mounts: readers ask often, and some machines have thousands of mounts."""


def disk_state(path: Path) -> str | None:
    """Return `disk full` or `disk is read-only` if that is the state of the disk that holds `path`; else None.

    None as well if the state is not known. A disk with fewer than `MIN_FREE` free bytes counts as full.
    """
    try:
        found, device = os.statvfs(path), os.stat(path).st_dev
    except OSError:
        return None
    if found.f_flag & os.ST_RDONLY or _takes_no_writes(device, int(time.monotonic() / _MOUNTS_INTERVAL)):
        return _TROUBLES[errno.EROFS]
    is_full = found.f_bavail * found.f_frsize < MIN_FREE or (found.f_files and not found.f_favail)
    return _TROUBLES[errno.ENOSPC] if is_full else None


@functools.lru_cache(maxsize=4)
def _takes_no_writes(device: int, _period: int) -> bool:
    """Return True if the kernel made a file system read-only, as after an error of the disk, by its mount's options.

    Newer kernels do not set the flag of `statvfs` then, but show `emergency_ro`.
    """
    number = b"%d:%d" % (os.major(device), os.minor(device))
    try:
        mounts = [line.split(b" ") for line in _MOUNTS.read_bytes().splitlines() if number in line]
    except OSError:
        return False
    # The last field has the options of the file system itself; those of each mount are in the flags of `statvfs`.
    return any(fields[2] == number and b"emergency_ro" in fields[-1].split(b",") for fields in mounts)


def make_folder(path: Path) -> None:
    """Create the folder `path` durably if it does not exist, accessible to its owner only with any umask.

    Raises:
        OSError: It cannot be created, or something else is there: a file, a symbolic link.
    """
    try:
        os.mkdir(path, _FOLDER_MODE)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
    else:
        _make_private(path, _FOLDER_MODE)
        sync_folder(path.parent)


def make_private_folders(folder: Path) -> None:
    """Create a folder and its missing parents, accessible to the user only.

    Raises:
        OSError: It cannot be created.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(path: StrPath) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path` during the block; first wait for its present holder.

    Raises:
        StorageError: The lock file cannot be opened: the team is gone or read-only.
        LostLeaseError: This process may no longer write.
        UntrustedError: The team is foreign.
    """
    check_before_writing()
    with storage_errors(f"cannot lock {path}"):
        fd = open_private(path, os.O_RDWR)
    try:
        with storage_errors(f"cannot lock {path}"):
            fcntl.flock(fd, fcntl.LOCK_EX)
        check_before_writing()
        yield
    finally:
        # The descriptor is closed even if close() fails, and the lock is released with it.
        with contextlib.suppress(OSError):
            os.close(fd)


def append_line(
    path: StrPath, lock: StrPath | None, line: bytes, *, at: int | None = None, durable: bool = False
) -> int:
    """Append `line`, which ends with a newline, completely or not at all. Return the offset after it.

    Without a `lock`, the file has a single writer. If that writer knows where the file ends, it gives this as `at`;
    then nothing is added if the line is already there.

    With `durable`, wait until the line is on the disk. This protects against a power cut; a killed process needs no
    fsync (docs/decisions/0011-power-cuts.md). Others may append meanwhile, and share the sync of the disk.

    Raises:
        StorageError: The write failed; nothing of the line remains.
        LostLeaseError: The file does not end at `at`, and has another line there.
        BadDataError: The line is longer than `MAX_LINE`.
    """
    with locked(lock) if lock is not None else contextlib.nullcontext():
        fd, ours, end = _append(path, line, at)
    try:
        try:
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise _undo(path, ours, error) from error
    # Only a file's first line needs this: later ones are in a file that the folder on the disk already contains.
    if durable and not (ours and ours[0][0]):
        sync_folder(os.path.dirname(path) or ".")
    return end


def _append(path: StrPath, line: bytes, at: int | None) -> tuple[int, list[_Span], int]:
    """Write `line`; return a descriptor of the file, its parts that were written, and the offset after the line."""
    if len(line) > MAX_LINE:
        raise BadDataError(f"a line of {len(line)} bytes for {path} is longer than the limit of {MAX_LINE} bytes")
    ours: list[_Span] = []
    check_before_writing()
    try:
        fd = open_private(path, os.O_RDWR | os.O_APPEND)
        try:
            # Again, because only now the file is certain to be in the directory that was checked.
            check_before_writing()
            end = _find_at(fd, path, at, line) if at is not None else None
            if end is None:
                _write_line(fd, path, line, ours)
                end = sum(ours[-1])
        except BaseException:
            os.close(fd)
            raise
    except OSError as error:
        raise _undo(path, ours, error) from error
    return fd, ours, end


def _find_at(fd: int, path: StrPath, at: int, line: bytes) -> int | None:
    """Return the offset after `line` if the file has that line at `at`; None if the file ends at `at`.

    Blank or torn text there is from a failed attempt, and is no line of another writer.

    Raises:
        LostLeaseError: The file is shorter, or another line is there.
    """
    size = os.fstat(fd).st_size
    if size < at:
        raise LostLeaseError(f"{path} was replaced by an older one; this run ends")
    there = os.pread(fd, size - at, at) if size > at else b""
    if there == line:
        return size
    if any(each.startswith(b"{") and each.endswith(b"}") for each in there.split(b"\n")):
        raise LostLeaseError(f"another process wrote into {path}; this run ends")
    return None


def _undo(path: StrPath, ours: list[_Span], error: OSError) -> StorageError:
    _blank(path, ours)
    return StorageError(f"cannot write {path}: {reason(error)}; nothing was added")


def _write_line(fd: int, path: StrPath, line: bytes, ours: list[_Span]) -> None:
    """Write `line` in one piece. Add to `ours`, also on an error, the parts of the file that were written.

    Raises:
        OSError: The write failed, or other programs keep writing into the middle of the line.
    """
    for _ in range(_MAX_ATTEMPTS):
        _seal(fd)
        left = line
        while left:
            count = _write_some(fd, left)
            ours.append((os.lseek(fd, 0, os.SEEK_CUR) - count, count))
            left = left[count:]
        # After a short write, a program that takes no lock can append before the rest is written.
        if all(start + count == after for (start, count), (after, _) in itertools.pairwise(ours)):
            return
        _blank(path, ours)
        ours.clear()
    raise OSError(errno.EAGAIN, "other programs keep writing into the middle of the line")


def _seal(fd: int) -> None:
    """End a line that a killed writer left without a newline.

    This is a write of its own, and never undone, so that the next line is whole even if writing it fails.
    """
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        _write_some(fd, b"\n")


def seal(path: StrPath) -> int:
    """End a line that a killed writer left without a newline, in a file with a single writer; return the file's size.

    A writer that acts on the contents must call this before it reads them. Otherwise a line that lacks only its newline
    is not read now, but becomes valid when the next line is appended.

    Raises:
        StorageError: The write failed.
    """
    with storage_errors(f"cannot write {path}"), contextlib.suppress(FileNotFoundError):
        fd = open_existing(path, os.O_RDWR | os.O_APPEND)
        try:
            _seal(fd)
            return os.fstat(fd).st_size
        finally:
            os.close(fd)
    return 0


def _write_some(fd: int, data: bytes) -> int:
    count = os.write(fd, data)
    if count == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return count


def _blank(path: StrPath, spans: list[_Span]) -> None:
    """Overwrite the parts that this process wrote with newlines, which readers ignore. This needs no disk space."""
    if not spans:
        return
    # If this fails too, half a line remains, which the next writer terminates.
    with contextlib.suppress(OSError):
        fd = open_existing(path, os.O_WRONLY)
        try:
            for start, count in spans:
                write_at(fd, b"\n" * count, start)
        finally:
            os.close(fd)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at the byte `offset` of an open file.

    Raises:
        OSError: The write failed; a part of `data` may have been written.
    """
    while data:
        count = os.pwrite(fd, data, offset)
        if count == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, offset = data[count:], offset + count


def replace_file(path: StrPath, data: bytes, *, durable: bool = False) -> None:
    """Replace the file at `path` in one step, or create it: readers see the old file or the new one.

    With `durable`, wait until the new file is on the disk, so that it survives a power cut.

    Raises:
        StorageError: The write failed; the old file is unchanged.
        LostLeaseError: This process may no longer write.
        UntrustedError: The team is foreign.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{threading.get_native_id()}.tmp")
    require_own_team(path)
    check_before_writing()
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _OPEN_FLAGS, _FILE_MODE)
        try:
            _make_private(fd, _FILE_MODE)
            while data:
                data = data[_write_some(fd, data) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        check_before_writing()
        os.replace(temporary, path)
    except (OSError, LostLeaseError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, LostLeaseError):
            raise
        raise StorageError(f"cannot write {path}: {reason(error)}; the old file is unchanged") from error
    if durable:
        sync_folder(folder or ".")


def sync_folder(path: StrPath) -> None:
    """Make the creation and renaming of files in a folder survive a power cut, if the file system supports it."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def remove_stale_files(folder: Path) -> None:
    """Remove the temporary files that killed writers left in `folder` and below."""
    oldest = time.time() - _STALE_AGE
    for path in folder.rglob(".*.tmp"):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < oldest:
                os.unlink(path)


def read_file(path: StrPath) -> bytes | None:
    """Return the contents of the file at `path`; None if there is no such file.

    Raises:
        StorageError: The file exists but cannot be read.
    """
    try:
        with open(path, "rb", opener=open_existing) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error


def changed_at(path: StrPath) -> float:
    """Return when a file was last changed, in epoch seconds; 0 if that is unknown."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def size(path: StrPath) -> int:
    """Return the size of the file at `path` in bytes; 0 if there is no such file.

    Raises:
        StorageError: The file exists but cannot be examined.
    """
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot read {path}: {reason(error)}") from error


def read_lines(path: StrPath, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
    """Yield each complete line from byte `offset` on, without its newline, and the offset after it.

    For a line longer than `MAX_LINE`, None is yielded. A last line without a newline is not yielded: it may not be
    complete.

    Raises:
        StorageError: The file exists but cannot be read.
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
        start = 0
        # One line at a time: a list of all lines of the block would not stay in the processor's cache.
        while (newline := chunk.find(b"\n", start)) >= 0:
            line = chunk[start:newline]
            held += len(line)
            if pieces:
                line = b"".join((*pieces, line))
                pieces = []
            start = newline + 1
            yield (None if too_long or held > MAX_LINE else line), offset + start
            held, too_long = 0, False
        offset += len(chunk)
        held += len(chunk) - start
        too_long = too_long or held > MAX_LINE
        pieces = [] if too_long else [*pieces, chunk[start:]]


def tail_offset(path: StrPath, tail: int) -> int:
    """Return the offset of the first line that begins within the last `tail` bytes of the file at `path`.

    With `tail` 0, return where the next line will begin. A missing file has the offset 0. Only a few blocks are read,
    however long the file is.

    Raises:
        StorageError: The file exists but cannot be read.
    """
    with (
        storage_errors(f"cannot read {path}"),
        contextlib.suppress(FileNotFoundError),
        open(path, "rb", opener=open_existing) as file,
    ):
        end = _last_newline(file.fileno(), os.fstat(file.fileno()).st_size) + 1
        # A line that begins there has a newline before it.
        if (before := end - tail - 1) >= 0:
            file.seek(before)
            return next((after for _, after in _lines(file.read, before)), end)
    return 0


def _last_newline(fd: int, end: int) -> int:
    """Return the offset of the last newline before `end`; -1 if there is none."""
    while end > 0:
        start = max(0, end - _CHUNK)
        found = os.pread(fd, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found
        end = start
    return -1
