"""The store in files: each name is a path below the folder of the store, as described in docs/reference/files.md.

Leases are locks that the kernel releases whenever their holder ends (`unix/locks.py`). No other process can take a
lease while its holder lives, even if the holder stands still, so writes do not check the token of a lease.
"""

import contextlib
import math
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from crewboard import env
from crewboard.errors import StorageError
from crewboard.store import files
from crewboard.store.interface import Held, Listener, T, Version
from crewboard.unix import locks

_MAX_SAID = 4096
"""Most bytes of the text in a lease."""

_TIMESTAMP_RESOLUTION = 50_000_000
"""Nanoseconds within which two changes of a file may get the same modification time: an upper bound."""


class FileStore(Struct, frozen=True):
    """A store in the folder `root`."""

    root: str

    def describe(self, name: str) -> str:
        return f"{self.root}/{name}"

    def now(self) -> float:
        return time.time()

    # Logs.

    def append(self, log: str, line: bytes, *, at: int | None = None, durable: bool = False) -> int:
        lock = self.describe(f".locks/{log.removesuffix('.jsonl').replace('/', '-')}") if at is None else None
        return files.append_line(self.describe(log), lock, line, at=at, durable=durable)

    def end(self, log: str) -> int:
        return files.seal(self.describe(log))

    def read(self, log: str, offset: int = 0) -> Iterator[tuple[bytes | None, int]]:
        return files.read_lines(self.describe(log), offset)

    def tail_offset(self, log: str, length: int) -> int:
        return files.tail_offset(self.describe(log), length)

    # Records.

    def get(self, record: str) -> bytes | None:
        return files.read_file(self.describe(record))

    def put(self, record: str, data: bytes, *, durable: bool = False) -> None:
        files.replace_file(self.describe(record), data, durable=durable)

    def remove(self, name: str) -> None:
        path = self.describe(name)
        with files.storage_errors(f"cannot remove {path}"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def names(self, folder: str) -> list[str]:
        path = self.describe(folder)
        with files.storage_errors(f"cannot list {path}"), contextlib.suppress(FileNotFoundError):
            return os.listdir(path)
        return []

    def make_folder(self, folder: str) -> None:
        path = Path(self.describe(folder))
        with files.storage_errors(f"cannot create {path}"):
            files.make_folder(path)

    def move(self, name: str, to: str) -> None:
        path = self.describe(name)
        with files.storage_errors(f"cannot move {path}"), contextlib.suppress(FileNotFoundError):
            os.rename(path, self.describe(to))

    def claim(self, queue: str, to: str, labels: Collection[str], most: int) -> list[str]:
        # A team in files has no hosts.
        return []

    def purge(self) -> None:
        import shutil

        shutil.rmtree(self.root)

    # Changes.

    def glance(self, folder: str | None = None) -> contextlib.AbstractContextManager["FileStore"]:
        # A look at a file costs microseconds, so this is what a glance does, too.
        return contextlib.nullcontext(self)

    def news(self, mark: int | None) -> tuple[int, Collection[str] | None]:
        return 0, ()

    def next_end(self) -> float:
        # The kernel ends one with its holder.
        return math.inf

    def read_ahead(self, logs: Mapping[str, int]) -> None:
        """Do nothing: a read costs microseconds."""

    def changed(self, name: str) -> Version | None:
        path, now = f"{self.root}/{name}", time.time_ns()
        try:
            # A link in the place of a record or a log is there itself: reading it is refused.
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) and os.path.isdir(path):
                found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"cannot look at {path}: {files.reason(error)}") from error
        changed = found.st_mtime_ns
        # A file this recent may be replaced by one with the same time, size and even inode.
        mark = object() if now - changed <= _TIMESTAMP_RESOLUTION else changed
        return Version(found.st_mtime, found.st_size, found.st_ino, mark)

    def locked(self, lock: str, work: Callable[[], T]) -> T:
        with files.locked(self.describe(lock)):
            return work()

    def listen(self, heard: Callable[[str], None], *, deep: bool = False, leases: Collection[str] = ()) -> Listener:
        # watchdog is loaded here, because the first paint of the screen need not wait for it.
        from crewboard.store.file_events import BoardEvents, FileEvents, ObservedFolder

        try:
            if env.is_posix():
                return ObservedFolder(self.root, heard)
            return FileEvents(self.root, heard, leases) if deep else BoardEvents(self.root, heard)
        except OSError as error:
            raise StorageError(f"no file events of {self.root}: {error.strerror or error}") from error

    # Leases.

    def take(self, lease: str) -> Held | None:
        path = self.describe(lease)
        while True:
            with files.storage_errors(f"cannot open {path}"):
                fd = files.open_private(path, os.O_RDWR)
            try:
                locks.take(fd)
                # Its holders change the file. So the time grows, even if the clock was set back.
                token = max(time.time_ns(), os.fstat(fd).st_mtime_ns + 1)
                os.ftruncate(fd, 0)
            except (BlockingIOError, PermissionError):
                _close(fd)
                return None
            except OSError as error:
                _close(fd)
                raise StorageError(f"cannot lock {path}: {files.reason(error)}") from error
            held = Held(self, lease, token, fd)
            if _is_at(fd, path):
                return held
            # The file was removed or replaced between opening and locking it.
            self.release(held)

    def say(self, held: Held, about: bytes) -> None:
        with files.storage_errors("cannot write the holder of a lease"):
            # In one write, with blanks over the rest of a longer text: a reader in between finds the new text.
            files.write_at(held.descriptor, about.ljust(os.fstat(held.descriptor).st_size), 0)
            os.ftruncate(held.descriptor, len(about))

    def renew(self, held: Held) -> bytes | None:
        if not _is_at(held.descriptor, self.describe(held.name)):
            return None
        try:
            return os.pread(held.descriptor, _MAX_SAID, 0)
        except OSError:
            # As on a failing disk: a lease is lost only if its file is certainly gone.
            return b""

    def is_held(self, lease: str) -> bool:
        path = self.describe(lease)
        try:
            fd = files.open_existing(path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(f"cannot look at {path}: {files.reason(error)}") from error
        try:
            return locks.is_taken(fd)
        except OSError as error:
            raise StorageError(f"cannot look at {path}: {files.reason(error)}") from error
        finally:
            _close(fd)

    def fence(self, held: Held, check: Callable[[], None], lost: Callable[[], None]) -> None:
        files.require_before_writing(check)

    def release(self, held: Held) -> None:
        _close(held.descriptor)

    def free(self, lease: str, said: bytes) -> None:
        """Do nothing: the kernel has freed the lease."""


def _close(fd: int) -> None:
    # The descriptor is closed even if close() fails.
    with contextlib.suppress(OSError):
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    """Return True if the file at `path` is the one that is open as `fd`: not removed, moved, restored or replaced.

    Also return True if the path cannot be examined, as on a failing disk: a lease is lost only if its file is certainly
    gone.
    """
    try:
        there, here = os.stat(path), os.fstat(fd)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
