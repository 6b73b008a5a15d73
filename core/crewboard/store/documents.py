"""Records that are one JSON file each: read whole, replaced whole, changed under a lock.

A damaged file is never overwritten: whoever would change it copies it aside and is told, so that a person can mend it.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from crewboard.errors import BadDataError, CrewboardError
from crewboard.records import Record
from crewboard.store import codec, files

R = TypeVar("R", bound=Record)


def load(path: Path, model: type[R]) -> R | None:
    """The record at `path`, or None where there is none.

    Raises:
        BadDataError: The file is damaged.
        StorageError: It cannot be read.
    """
    data = files.read_file(path)
    if data is None:
        return None
    try:
        return codec.decode(data, model)
    except BadDataError as error:
        raise BadDataError(f"{path} is damaged: {error}") from error


def save(path: Path, record: Record, *, durable: bool = False) -> None:
    """Put `record` in the place of `path`.

    Raises:
        StorageError: The disk refused; the old file stands.
    """
    files.replace_file(path, codec.encode(record, indent=1), durable=durable)


def change(path: Path, lock: Path, model: type[R], edit: Callable[[R | None], R]) -> R:
    """Replace the record at `path` by what `edit` makes of it, with nobody else in between.

    `edit` may raise to leave everything as it is.

    Raises:
        BadDataError: The file is damaged; a copy was kept aside.
    """
    with files.locked(lock):
        try:
            record = edit(load(path, model))
        except BadDataError as error:
            aside = _keep_aside(path)
            raise BadDataError(f"{error}; a copy is kept as {aside.name}") from error
        save(path, record)
        return record


class Cached(Generic[R]):
    """One record file: read again only when it was replaced. Its last good state stays in use when it is damaged."""

    def __init__(self, path: Path, model: type[R]) -> None:
        self.path = path
        self.damaged = False
        self._model = model
        self._signature: tuple[int, int, int] | None = None
        self._record: R | None = None

    def get(self) -> R | None:
        """The record, or None where there is none."""
        try:
            stat = self.path.stat()
        except OSError:
            self._signature, self._record, self.damaged = None, None, False
            return None
        signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if signature != self._signature:
            self._signature = signature
            self._load()
        return self._record

    def _load(self) -> None:
        try:
            self._record = load(self.path, self._model)
            self.damaged = False
        except CrewboardError:
            self.damaged = True


def _keep_aside(path: Path) -> Path:
    data = files.read_file(path) or b""
    aside = path.with_name(f"{path.name}.damaged-{hashlib.sha256(data).hexdigest()[:8]}")
    if not aside.exists():
        files.replace_file(aside, data)
    return aside
