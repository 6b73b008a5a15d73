"""The watcher, which says when to read again: file events are hints, a sweep is the guarantee.

watchdog's thread only notes what changed. The thread of the `Watcher` publishes at once after a quiet time, and then
gathers further changes for a while, so that a burst costs a few reads and not one for each event.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from crewboard.store import TeamDirectory

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, WatchDescriptor

GATHER = 0.01
"""Seconds for which further changes are gathered after one was published."""

SWEEP = 1.0
"""Seconds without file events after which a reader reads anyway."""

CALM_SWEEP = 5.0
"""The same while file events arrive and the reader says that nothing else is to be expected."""


Folders = Callable[[], dict[int, str | Path]]


def gather() -> float:
    """Return how long to gather changes before the next is published."""
    return GATHER


def never() -> bool:
    """Return that there may always be something which no file event tells."""
    return False


class Watcher:
    """Calls `publish`, in its own thread, when the team may have changed, and at least every `SWEEP` seconds.

    `pace` returns, after each call, how many seconds to gather further changes. `answer` is called instead if only a
    `look` asks for something else about the team, and the team was read within `SWEEP` seconds. `is_calm` returns True
    if nothing can change now without a file event: then `CALM_SWEEP` is enough. The team need not exist yet.
    """

    def __init__(
        self,
        path: Path,
        publish: Callable[[], None],
        *,
        answer: Callable[[], None] = lambda: None,
        pace: Callable[[], float] = gather,
        is_calm: Callable[[], bool] = never,
    ) -> None:
        self._path = path
        self._publish = publish
        self._answer = answer
        self._pace = pace
        self._is_calm = is_calm
        self._wake = threading.Event()
        self._changed = _Change(self._wake)
        self._poked = threading.Event()
        self._is_poked = False
        """Whether the whole team is to be read, and not only what is asked to be answered."""
        self._ended = threading.Event()
        self._events: FileEvents | None = None
        self._watched: int | None = None
        # What happened before the events began, they do not tell.
        self._all_changed = True
        self.refusal: str | None = None
        """Why the system grants no file events."""
        self._thread = threading.Thread(target=self._run, name="crewboard-watch", daemon=True)

    @property
    def hinted(self) -> bool:
        """Return True if file events arrive, or no team exists yet. A network file system has none."""
        return self._watched is None or self._has_events

    @property
    def _has_events(self) -> bool:
        return self._events is not None and self._events.is_alive()

    def start(self) -> None:
        """Start to watch. If the kernel grants no watches, only the sweep works."""
        self._thread.start()

    def poke(self) -> None:
        """Read and publish at once, without waiting for the rate limit."""
        self._all_changed = True
        self._is_poked = True
        self.look()

    def look(self) -> None:
        """Answer at once, without waiting for the rate limit: not the team changed, but what is asked about it."""
        self._poked.set()
        self._wake.set()

    def take_changed(self) -> frozenset[str] | None:
        """Return the agents whose files changed since the last call; None if any file of the team may have."""
        events, everything = self._events, self._all_changed
        self._all_changed = False
        if events is None or not events.is_alive():
            return None
        changed = events.take_changed()
        return None if everything else changed

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
        self._all_changed = True
        try:
            self._events = FileEvents(TeamDirectory(self._path), self._changed)
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
        is_question, published = False, 0.0
        while not self._ended.is_set():
            self._wake.clear()
            self._poked.clear()
            if is_question:
                self._answer()
            else:
                self._changed.clear()
                self._is_poked = False
                published = time.monotonic()
                self._publish()
                self._gather(self._pace())
            if self._changed.is_set() or self._is_poked:
                is_question = False
            elif self._wake.wait(CALM_SWEEP if self._has_events and self._is_calm() else SWEEP):
                # Questions that keep coming do not put off the sweep.
                is_recent = time.monotonic() - published < SWEEP
                is_question = is_recent and not (self._changed.is_set() or self._is_poked)
            else:
                is_question = False
                self._arm()
        self._disarm()

    def _gather(self, seconds: float) -> None:
        """Gather further changes, unless the whole team is to be read at once; what is asked meanwhile is answered."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self._poked.wait(left):
            if self._is_poked:
                return
            self._poked.clear()
            self._answer()


class _Change(threading.Event):
    """Set by file events. It sets `wake`, too, which is also set for other reasons."""

    def __init__(self, wake: threading.Event) -> None:
        super().__init__()
        self._wakes = wake

    def set(self) -> None:
        super().set()
        self._wakes.set()


class FileEvents:
    """File events of the folders of a team, each watched once. They arrive in watchdog's thread, and set `wake`.

    `folders` returns other folders to watch instead, by inode; it is called in both threads.

    watchdog's own recursive watch adds a folder twice if it appears while its parent is walked, and warns of that.

    Raises:
        OSError: The system grants no file events, or no more of them.
    """

    def __init__(self, team: TeamDirectory, wake: threading.Event, folders: Folders | None = None) -> None:
        # watchdog is loaded here, because the first paint of the screen need not wait for it.
        from watchdog.observers.inotify_c import InotifyConstants as Kind
        from watchdog.observers.inotify_c import InotifyFD, Mask

        # Without the opening of files and the closing after reading, which our own reading causes.
        self._changes = Mask(
            Kind.IN_CREATE
            | Kind.IN_MODIFY
            | Kind.IN_CLOSE_WRITE
            | Kind.IN_ATTRIB
            | Kind.IN_MOVE
            | Kind.IN_DELETE
            | Kind.IN_ONLYDIR
        )
        self._leases = {os.fsencode(name) for name in team.lease_names}
        self._agents, self._inboxes = team.agents, team.inboxes
        self._folders = folders or functools.partial(_folders, team)
        self._wake = wake
        self._lock = threading.Lock()
        # By inode: a folder that is moved within the team keeps its watch.
        self._watches: dict[int, WatchDescriptor] = {}
        self._paths: dict[WatchDescriptor, Path] = {}
        self._noting = threading.Lock()
        self._changed: set[str] = set()
        self._all_changed = False
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
            self._note_all()
            self.follow()
        elif event.name.startswith(b"."):
            # Half of a file that will be renamed, or a lock.
            return
        # A killed process leaves no trace but its lease, which the kernel closes. Other files were modified before.
        if event.is_close_write and event.name not in self._leases:
            return
        self._note(event)
        self._wake.set()

    def _note(self, event: "InotifyEvent") -> None:
        """Note the agent whose file changed. The files that belong to no agent are few: they are always read."""
        folder = self._paths.get(event.wd)
        if folder is None:
            self._note_all()
        elif folder == self._inboxes or folder.parent == self._agents:
            name = folder.name if folder != self._inboxes else os.fsdecode(event.name).rpartition(".")[0]
            with self._noting:
                self._changed.add(name)

    def _note_all(self) -> None:
        with self._noting:
            self._all_changed = True

    def take_changed(self) -> frozenset[str] | None:
        """Return the agents whose files changed since the last call; None if all may have."""
        with self._noting:
            everything, self._all_changed = self._all_changed, False
            changed, self._changed = self._changed, set()
        return None if everything else frozenset(changed)

    def on_queue_overflow(self) -> None:
        """Read everything again, because events were lost."""
        self._note_all()
        self.follow()
        self._wake.set()

    def on_watch_deleted(self, wd: "WatchDescriptor") -> None:
        """Forget a folder that is gone, because its inode may be reused."""
        with self._lock:
            self._watches = {inode: watch for inode, watch in self._watches.items() if watch != wd}
            self._paths.pop(wd, None)
            deleted = not self._watches
        # The team may come back with the same inode: only a new instance would notice.
        if deleted:
            self.stop()

    def follow(self) -> None:
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
            present = self._folders()
            for inode in self._watches.keys() - present.keys():
                gone = self._watches.pop(inode)
                self._paths.pop(gone, None)
                self._inotify.remove_callbacks([(gone, CallbackId(inode))])
            for inode in present.keys() - self._watches.keys():
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._watches[inode] = self._inotify.add_callback(
                        os.fsencode(present[inode]), self._changes, self, CallbackId(inode)
                    )
            # A folder that was renamed keeps its watch, but has another path.
            self._paths = {watch: Path(present[inode]) for inode, watch in self._watches.items()}


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
