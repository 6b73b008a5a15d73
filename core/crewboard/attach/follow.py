"""The thread that keeps a mirror up to date: file events are hints, a sweep every second is the guarantee."""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from crewboard.attach.mirror import Mirror
from crewboard.errors import CrewboardError
from crewboard.readmodel.watcher import GATHER, SWEEP
from crewboard.store.file_events import FileEvents
from crewboard.store.layout import TeamDirectory

log = logging.getLogger(__name__)


class MirrorThread:
    """Mirrors a team in a thread of its own, from `start` until `stop` or the end of the process."""

    def __init__(self, team: TeamDirectory, *, on_error: Callable[[str], None] = log.warning) -> None:
        self.mirror = Mirror(team)
        self._on_error = on_error
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._events: FileEvents | None = None
        self._watched: dict[int, str | Path] = {}
        self._failure = ""
        self._thread = threading.Thread(target=self.run, name="crewboard-mirror", daemon=True)

    def start(self) -> None:
        """Start to mirror."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread without waiting: it releases the lock when it has written what it read."""
        self._ended.set()
        self._wake.set()

    def refresh(self) -> None:
        """Mirror once, in the thread of the caller. Report an error once, until there is none or another one."""
        self._wake.clear()
        failure = ""
        try:
            self.mirror.refresh()
        except CrewboardError as error:
            failure = str(error)
        if failure and failure != self._failure:
            self._on_error(failure)
        self._failure = failure

    def run(self) -> None:
        """Mirror until `stop` is called."""
        while not self._ended.is_set():
            self.refresh()
            self._arm()
            self._ended.wait(GATHER)
            self._wake.wait(SWEEP)
        if self._events is not None:
            self._events.stop()
        self.mirror.close()

    def _arm(self) -> None:
        """Watch the folders that are there now. If the system grants no file events, only the sweep works."""
        folders = self.mirror.folders()
        if self._events is None or not self._events.is_alive():
            with contextlib.suppress(OSError, ImportError):
                self._events = FileEvents(
                    str(self.mirror.team.path), lambda _: self._wake.set(), folders=self.mirror.folders
                )
        elif folders != self._watched:
            self._events.follow()
        self._watched = folders
