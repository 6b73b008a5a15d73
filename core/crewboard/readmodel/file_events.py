"""The kernel's word that something in a directory changed."""

import logging
import threading
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)  # fmt: skip
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

_EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent, FileModifiedEvent, FileMovedEvent, FileDeletedEvent, DirCreatedEvent,
]  # fmt: skip
"""Without the opening and closing of files, which our own reading causes."""

log = logging.getLogger(__name__)


class _Hint(FileSystemEventHandler):
    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002  which file it was does not matter
        self._wake.set()


def observe(path: Path, wake: threading.Event) -> BaseObserver | None:
    """Set `wake` whenever something below `path` changes; None where the kernel grants no watches."""
    observer = Observer()
    try:
        observer.schedule(_Hint(wake), str(path), recursive=True, event_filter=_EVENTS)
        observer.start()
    except OSError as error:
        log.warning("no file events for %s: %s", path, error)
        return None
    return observer
