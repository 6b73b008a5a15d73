"""Wakes workers whose mail, requests or tasks changed.

A worker also looks by itself every second or two, so a missed event only costs that time.
"""

import asyncio
import json
import logging
import queue
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
from crewboard.protocol import wake_worker
from crewboard.store import TeamDirectory, files

_EVENTS: list[type[FileSystemEvent]] = [FileCreatedEvent, FileModifiedEvent, FileMovedEvent]

log = logging.getLogger(__name__)


class _PathHandler(FileSystemEventHandler):
    def __init__(self, on_path: Callable[[str], None]) -> None:
        self._on_path = on_path

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._on_path(str(event.dest_path or event.src_path))


class ChangeNotifier:
    """Watches mailboxes, requests and tasks, and wakes the workers that a change concerns."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        # The observer's thread puts paths in, the event loop takes them out.
        self._changed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._observer: BaseObserver | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start to watch. If the kernel allows no watches, log that: workers then find their mail by themselves."""

        def note(path: str) -> None:
            self._changed.put(path)
            loop.call_soon_threadsafe(self._wake_workers)

        try:
            # Its constructor already asks the kernel for an inotify instance.
            self._observer = Observer()
            for folder in (self._team.inboxes, self._team.requests, self._team.tasks):
                self._observer.schedule(_PathHandler(note), str(folder), recursive=False, event_filter=_EVENTS)
            self._observer.start()
        except OSError as error:
            log.warning("no file events, so workers look for mail themselves: %s", error)
            self.stop()

    def stop(self) -> None:
        """Stop the watching threads."""
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

    def _wake_workers(self) -> None:
        paths = set()
        while not self._changed.empty():
            paths.add(self._changed.get_nowait())
        for name in sorted({name for path in paths for name in self._concerned(Path(path))}):
            wake_worker(self._team, name)

    def _concerned(self, path: Path) -> set[str]:
        """Return the agents that the file at `path` concerns."""
        if path.parent == self._team.inboxes:
            return {path.stem} if path.suffix == ".jsonl" else set()
        if path.suffix != ".json":
            return set()
        keys = ("from", "to") if path.parent == self._team.requests else ("owner", "last_owner")
        record = _read_object(path)
        if record is None:
            return set()
        named = {str(record[key]) for key in keys if record.get(key)}
        # Any agent may claim a task without an owner.
        return named or {agent.name for agent in self._team.agents.iterdir()}


def _read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file without further checks, so that a damaged record still wakes its agents."""
    try:
        value = json.loads(files.read_file(path) or b"")
    except (StorageError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
