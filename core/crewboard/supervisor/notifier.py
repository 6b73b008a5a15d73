"""Tells workers that there is something to read, so that they need not look all the time.

A worker looks by itself every second or two; a bell only makes it look now.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchdog.events import (
    FileCreatedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from crewboard.errors import StorageError
from crewboard.protocol.supervisor_client import wake_worker
from crewboard.store import files
from crewboard.store.layout import TeamDirectory

_EVENTS: list[type[FileSystemEvent]] = [FileCreatedEvent, FileModifiedEvent, FileMovedEvent]

log = logging.getLogger(__name__)


class _Notes(FileSystemEventHandler):
    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._note(str(event.dest_path or event.src_path))


class ChangeNotifier:
    """Watches mailboxes and requests, and rings whom they concern."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._dirty: set[str] = set()
        self._observer: BaseObserver | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to watch; where the kernel grants no watches, workers find their mail by themselves."""

        def note(path: str) -> None:
            self._dirty.add(path)
            loop.call_soon_threadsafe(self._ring)

        try:
            # Its constructor already asks the kernel for an inotify instance.
            self._observer = Observer()
            for folder in (self._team.inboxes, self._team.requests, self._team.tasks):
                self._observer.schedule(_Notes(note), str(folder), recursive=False, event_filter=_EVENTS)
            self._observer.start()
        except OSError as error:
            log.warning("no file events, so workers look for mail themselves: %s", error)
            self.stop()

    def stop(self) -> None:
        """End the watching threads."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    def _ring(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for name in sorted({name for path in dirty for name in self._concerned(Path(path))}):
            wake_worker(self._team, name)

    def _concerned(self, path: Path) -> set[str]:
        if path.parent == self._team.inboxes:
            return {path.stem} if path.suffix == ".jsonl" else set()
        if path.suffix != ".json":
            return set()
        keys = ("from", "to") if path.parent == self._team.requests else ("owner", "last_owner")
        record = _object(path)
        if record is None:
            return set()
        named = {str(record[key]) for key in keys if record.get(key)}
        return named or {agent.name for agent in self._team.agents.iterdir()}  # an open task may be anybody's


def _object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, whatever else is wrong with it; None where there is none."""
    try:
        value = json.loads(files.read_file(path) or b"")
    except (StorageError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
