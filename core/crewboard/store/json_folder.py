"""Folders of record files, such as tasks and requests, read again and again at the price of what changed.

Workers look at the board and at open requests every second or two for as long as they live, and closed ones are never
removed: reading them all each time, at 80 µs a file, would keep an idle team as busy as a working one.
"""

import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from crewboard.records import Record
from crewboard.store.json_files import Cached, is_young

R = TypeVar("R", bound=Record)

_RECHECK = 60.0
"""Seconds after which each file is looked at although its folder stayed the same.

Records are replaced, which changes the folder; a person may have edited one in place.
"""

_TEAMS = 16
"""Folders that a process keeps in mind; a worker has two."""


class Folder(Generic[R]):
    """The records of one folder. Whoever gets them shares them with the next who asks, and changes none."""

    def __init__(self, path: Path, model: type[R]) -> None:
        self._path = path
        self._model = model
        self._files: dict[str, Cached[R]] = {}
        self._sound: dict[str, R] = {}
        self._changed: int | None = None
        """When the folder had last changed as everything was read, if that was long enough ago to be the last time."""
        self._looked = 0.0

    def all(self) -> list[R]:
        """Every record that can be read; of a damaged one, its last good state."""
        self._refresh()
        return [record for file in self._files.values() if (record := file.known) is not None]

    def sound(self) -> dict[str, R]:
        """Every record whose file is not damaged, by the name of its file."""
        self._refresh()
        return self._sound

    @property
    def damaged(self) -> list[Path]:
        """The files that could not be read."""
        return [file.path for file in self._files.values() if file.damaged]

    def _refresh(self) -> None:
        now = time.time_ns()
        try:
            changed = os.stat(self._path).st_mtime_ns
            if changed == self._changed and time.monotonic() - self._looked < _RECHECK:
                return
            names = os.listdir(self._path)
        except OSError:
            self._files, self._sound, self._changed = {}, {}, None
            return
        self._read(sorted(name for name in names if name.endswith(".json") and not name.startswith(".")))
        self._changed = None if is_young(changed, now) else changed
        self._looked = time.monotonic()

    def _read(self, names: list[str]) -> None:
        files = {name: self._files.get(name) or Cached(self._path / name, self._model) for name in names}
        found = {name: file.get() for name, file in files.items()}
        self._sound = {name: record for name, record in found.items() if record is not None and not files[name].damaged}
        self._files = files


@lru_cache(maxsize=_TEAMS)
def folder(path: Path, model: type[R]) -> Folder[R]:
    """The folder at `path`, as this process knows it already."""
    return Folder[Any](path, model)
