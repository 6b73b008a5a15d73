"""The watcher, which says when to read again: file events are hints, a sweep every second is the guarantee.

watchdog's thread only notes that something changed. The thread of the `Watcher` publishes at once after a quiet time,
and then gathers further changes for a while, so that a burst costs a few reads and not one for each event.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from crewboard.store import TeamDirectory

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, WatchDescriptor

GATHER = 0.04
"""Seconds for which further changes are gathered after one was published."""

SWEEP = 1.0
"""Seconds without file events after which a reader reads anyway."""


def gather() -> float:
    """Return how long to gather changes before the next is published."""
    return GATHER


class Watcher:
    """Calls `publish`, in its own thread, when the team may have changed, and at least every `SWEEP` seconds.

    `pace` returns, after each call, how many seconds to gather further changes. The team need not exist yet.
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
        self.refusal: str | None = None
        """Why the system grants no file events."""
        self._thread = threading.Thread(target=self._run, name="crewboard-watch", daemon=True)

    @property
    def hinted(self) -> bool:
        """Return True if file events arrive, or no team exists yet. A network file system has none."""
        return self._watched is None or (self._events is not None and self._events.is_alive())

    def start(self) -> None:
        """Start to watch. If the kernel grants no watches, only the sweep works."""
        self._thread.start()

    def poke(self) -> None:
        """Read and publish at once, without waiting for the rate limit."""
        self._poked.set()
        self._wake.set()

    def stop(self) -> None:
        """End both threads without waiting: they are daemons, and may be in a call to the reader."""
        self._ended.set()
        self.poke()

    def _arm(self) -> None:
        """Watch the directory that is at the path now. It may be new, or its file events may have ended."""
        inode = self._inode()
        if inode is None or (inode == self._watched and (self._events is None or self.hinted)):
            return
        self._disarm()
        self._watched = inode
        try:
            self._events = FileEvents(TeamDirectory(self._path), self._wake)
            self.refusal = None
        except OSError as error:
            self.refusal = error.strerror or str(error)

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


class FileEvents:
    """File events of the folders of a team, each watched once. They arrive in watchdog's thread, and set `wake`.

    watchdog's own recursive watch adds a folder twice if it appears while its parent is walked, and warns of that.

    Raises:
        OSError: The system grants no file events, or no more of them.
    """

    def __init__(self, team: TeamDirectory, wake: threading.Event) -> None:
        # watchdog is loaded here, because the first paint of the screen need not wait for it.
        from watchdog.observers.inotify_c import InotifyConstants as Kind
        from watchdog.observers.inotify_c import InotifyFD, Mask

        # Without the opening and closing of files, which our own reading causes.
        self._changes = Mask(
            Kind.IN_CREATE | Kind.IN_MODIFY | Kind.IN_ATTRIB | Kind.IN_MOVE | Kind.IN_DELETE | Kind.IN_ONLYDIR
        )
        self._team = team
        self._wake = wake
        self._lock = threading.Lock()
        # By inode: a folder that is moved within the team keeps its watch.
        self._watches: dict[int, WatchDescriptor] = {}
        self._stopped = False
        self._inotify = InotifyFD()
        self._inotify.start()
        try:
            self._watch_folders()
        except OSError:
            self.stop()
            raise

    def is_alive(self) -> bool:
        """Return True if events still arrive."""
        return not self._stopped and self._inotify.is_alive()

    def stop(self) -> None:
        """End watchdog's thread without waiting for it."""
        with self._lock:
            self._stopped = True
        self._inotify.stop()

    def on_event(self, event: "InotifyEvent") -> None:
        """Handle an event, in watchdog's thread."""
        if event.is_directory:
            self._follow()
        self._wake.set()

    def on_queue_overflow(self) -> None:
        """Read everything again, because events were lost."""
        self._follow()
        self._wake.set()

    def on_watch_deleted(self, wd: "WatchDescriptor") -> None:
        """Forget a folder that is gone, because its inode may be reused."""
        with self._lock:
            self._watches = {inode: watch for inode, watch in self._watches.items() if watch != wd}
            deleted = not self._watches
        # The team may come back with the same inode: only a new instance would notice.
        if deleted:
            self.stop()

    def _follow(self) -> None:
        """Watch the folders that are there now; end if the system grants no more watches."""
        try:
            self._watch_folders()
        except OSError:
            self.stop()

    def _watch_folders(self) -> None:
        from watchdog.observers.inotify_c import CallbackId

        with self._lock:
            # The descriptor of a stopped instance may already be another file's.
            if self._stopped:
                return
            present = _folders(self._team)
            for inode in self._watches.keys() - present.keys():
                self._inotify.remove_callbacks([(self._watches.pop(inode), CallbackId(inode))])
            for inode in present.keys() - self._watches.keys():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._watches[inode] = self._inotify.add_callback(
                        os.fsencode(present[inode]), self._changes, self, CallbackId(inode)
                    )


def _folders(team: TeamDirectory) -> dict[int, str | Path]:
    """Return the folders whose files a reader reads, by inode.

    Raises:
        OSError: The team's folder cannot be read.
    """
    found: dict[int, str | Path] = {team.path.stat().st_ino: team.path}
    found |= _subfolders(team.path)
    # A team without agents yet has no folder for them.
    with contextlib.suppress(FileNotFoundError):
        found |= _subfolders(team.agents)
    return found


def _subfolders(folder: Path) -> dict[int, str | Path]:
    """Return the folders in `folder`, without hidden ones: those hold locks."""
    with os.scandir(folder) as entries:
        return {
            entry.inode(): entry.path
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        }
