"""Tells a reader when to read again: file events as a hint, a sweep as the guarantee.

watchdog's thread does nothing but note that something changed. One thread of ours publishes at once when it was
quiet, then gathers what comes for a while, so that a burst costs a few reads and not one an event.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

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
        self._observer: BaseObserver | None = None
        self._watched: int | None = None
        self._thread = threading.Thread(target=self._run, name="crewboard-watch", daemon=True)

    @property
    def hinted(self) -> bool:
        """Whether file events arrive; of a team that is not there yet, none are missing."""
        return self._watched is None or (self._observer is not None and self._observer.is_alive())

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
        """See that the directory that stands there now is watched: it may be new, or the observer may have died."""
        from crewboard.readmodel.file_events import observe  # watchdog, which the first picture need not wait for

        inode = self._inode()
        if inode is None or (inode == self._watched and (self._observer is None or self.hinted)):
            return
        self._disarm()
        self._watched = inode
        self._observer = observe(self._path, self._wake)

    def _disarm(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer = None

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
