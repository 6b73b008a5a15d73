"""Tells a reader when to read again: file events as a hint, a sweep as the guarantee.

watchdog's thread does nothing but note that something changed. One thread of ours publishes at once when it was
quiet, then gathers what comes for a while, so that a burst costs a few reads and not one an event.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crewboard.readmodel.file_events import FileEvents

GATHER = 0.04
"""Seconds during which further changes are gathered after one was published."""

SWEEP = 1.0
"""Seconds without a hint after which a reader looks anyway."""


def gather() -> float:
    """How long to gather changes before the next is published."""
    return GATHER


class Watcher:
    """Calls `publish` in a thread of its own whenever the team may have changed, and at least every `SWEEP` seconds.

    `pace` says, after each call, how many seconds to gather further changes. The team need not exist yet. `hinted`
    says whether file events arrive at all; on a network file system only the sweep works.
    """

    def __init__(self, path: Path, publish: Callable[[], None], *, pace: Callable[[], float] = gather) -> None:
        self._path = path
        self._publish = publish
        self._pace = pace
        self._wake = threading.Event()
        self._poked = threading.Event()
        self._ended = threading.Event()
        self._events: FileEvents | None = None
        self._watched: int | None = None
        self.complaint: str | None = None
        """Why the system grants no file events."""
        self._thread = threading.Thread(target=self._run, name="crewboard-watch", daemon=True)

    @property
    def hinted(self) -> bool:
        """Return True if file events arrive, or if there is no team yet whose events could."""
        return self._watched is None or (self._events is not None and self._events.is_alive())

    def start(self) -> None:
        """Begin to watch. Where the kernel grants no watches, the sweep alone works."""
        self._thread.start()

    def poke(self) -> None:
        """Look now, whatever the pace."""
        self._poked.set()
        self._wake.set()

    def stop(self) -> None:
        """End both threads; waits for neither, they are daemons and may be in a call to the reader."""
        self._ended.set()
        self.poke()

    def _arm(self) -> None:
        """Watch the directory that is at the path now: it may be new, or its file events may have ended."""
        # Loads watchdog, which the first picture need not wait for.
        from crewboard.readmodel.file_events import observe

        inode = self._inode()
        if inode is None or (inode == self._watched and (self._events is None or self.hinted)):
            return
        self._disarm()
        self._watched = inode
        try:
            self._events = observe(self._path, self._wake)
            self.complaint = None
        except OSError as error:
            self.complaint = error.strerror or str(error)

    def _disarm(self) -> None:
        if self._events is not None:
            self._events.stop()
            self._events = None

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None

    def _run(self) -> None:
        self._arm()
        while not self._ended.is_set():
            self._wake.clear()
            self._poked.clear()
            self._publish()
            self._poked.wait(self._pace())
            if not self._wake.wait(SWEEP):
                self._arm()
        self._disarm()
