"""File events: the kernel's notice that files of a team changed."""

import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Protocol

from crewboard.store.layout import TeamDirectory


class FileEvents(Protocol):
    """Events that arrive in a thread of their own."""

    def is_alive(self) -> bool:
        """Return True if events still arrive."""

    def stop(self) -> None:
        """End the thread without waiting for it."""


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


if sys.platform == "linux":
    from watchdog.observers.inotify_c import (
        CallbackId,
        InotifyConstants,
        InotifyEvent,
        InotifyFD,
        Mask,
        WatchDescriptor,
    )

    _CHANGES = Mask(
        InotifyConstants.IN_CREATE | InotifyConstants.IN_MODIFY | InotifyConstants.IN_ATTRIB
        | InotifyConstants.IN_MOVE | InotifyConstants.IN_DELETE | InotifyConstants.IN_ONLYDIR
    )  # fmt: skip
    """Without the opening and closing of files, which our own reading causes."""

    class _InotifyEvents:
        """Watches the folders of a team, each once.

        watchdog's own recursive watch adds a folder twice if it appears while its parent is walked, and warns of that.
        """

        def __init__(self, team: TeamDirectory, wake: threading.Event) -> None:
            self._team = team
            self._wake = wake
            self._lock = threading.Lock()
            self._watches: dict[int, WatchDescriptor] = {}
            """By inode: a folder that is moved within the team keeps its watch."""
            self._stopped = False
            self._inotify = InotifyFD()
            self._inotify.start()
            try:
                self._watch_folders()
            except OSError:
                self.stop()
                raise

        def is_alive(self) -> bool:
            return not self._stopped and self._inotify.is_alive()

        def stop(self) -> None:
            with self._lock:
                self._stopped = True
            self._inotify.stop()

        def on_event(self, event: InotifyEvent) -> None:
            """Take an event in watchdog's thread."""
            if event.is_directory:
                self._follow()
            self._wake.set()

        def on_queue_overflow(self) -> None:
            """Look at everything again, because events were lost."""
            self._follow()
            self._wake.set()

        def on_watch_deleted(self, wd: WatchDescriptor) -> None:
            """Forget a folder that is gone; its inode may be used again."""
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
                            os.fsencode(present[inode]), _CHANGES, self, CallbackId(inode)
                        )

    def observe(path: Path, wake: threading.Event) -> FileEvents:
        """Set `wake` whenever a file of the team at `path` changes.

        Raises:
            OSError: The system grants no file events, or no more of them.
        """
        return _InotifyEvents(TeamDirectory(path), wake)

else:
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers import Observer

    class _Handler(FileSystemEventHandler):
        def __init__(self, wake: threading.Event) -> None:
            self._wake = wake

        def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002  which file it was does not matter
            self._wake.set()

    def observe(path: Path, wake: threading.Event) -> FileEvents:
        """Set `wake` whenever a file of the team at `path` changes.

        Raises:
            OSError: The system grants no file events, or no more of them.
        """
        observer = Observer()
        observer.schedule(_Handler(wake), str(path), recursive=True)
        observer.start()
        return observer
