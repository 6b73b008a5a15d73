"""File events: hints of what changed in the folders of a team, by watchdog with inotify or its other means."""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import InotifyEvent, WatchDescriptor

Folders = Callable[[], dict[int, str | Path]]


class FileEvents:
    """File events of all folders of a team, by inotify; each folder is watched once.

    `heard` is called in watchdog's thread with the name of a changed file, relative to `root`, or with "" if anything
    may have changed. `leases` are names of files whose closing is reported as well: the kernel closes what a killed
    process held. `folders` returns other folders to watch instead, by inode; both threads call it.

    watchdog's own recursive watch adds a folder twice if it appears while its parent is walked, and warns about it.

    Raises:
        OSError: The system grants no file events, or no more of them.
    """

    def __init__(
        self, root: str, heard: Callable[[str], None], leases: Collection[str] = (), folders: Folders | None = None
    ) -> None:
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
        self._leases = {os.fsencode(name) for name in leases}
        self._root = f"{root}/"
        self._folders = folders or (lambda: _folders(Path(root)))
        self._heard = heard
        self._lock = threading.Lock()
        # By inode: a folder that is moved within the team keeps its watch.
        self._watches: dict[int, WatchDescriptor] = {}
        self._paths: dict[WatchDescriptor, str] = {}
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
        """Report the name of a changed file, in watchdog's thread.

        After an event of a folder, watch the folders that exist now, and report that anything may have changed. Hidden
        files, and the closing of files that are no lease, are ignored.
        """
        if event.is_directory:
            self.follow()
            self._heard("")
            return
        # Half of a file that will be renamed, or a lock.
        if event.name.startswith(b"."):
            return
        # A killed process leaves no trace but its lease, which the kernel closes. Other files were modified before.
        if event.is_close_write and event.name not in self._leases:
            return
        path = f"{self._paths.get(event.wd, '')}/{os.fsdecode(event.name)}"
        self._heard(path.removeprefix(self._root) if path.startswith(self._root) else "")

    def on_queue_overflow(self) -> None:
        """Report that anything may have changed, because events were lost."""
        self.follow()
        self._heard("")

    def on_watch_deleted(self, wd: "WatchDescriptor") -> None:
        """Forget a folder that no longer exists, because its inode may be reused; stop if none is left."""
        with self._lock:
            self._watches = {inode: watch for inode, watch in self._watches.items() if watch != wd}
            self._paths.pop(wd, None)
            deleted = not self._watches
        # The team may come back with the same inode: only a new instance would notice.
        if deleted:
            self.stop()

    def follow(self) -> None:
        """Watch the folders that exist now; stop if the system grants no more watches."""
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
            self._paths = {watch: os.fspath(present[inode]) for inode, watch in self._watches.items()}


def _folders(root: Path) -> dict[int, str | Path]:
    """Return the folders that readers of a team read from, by inode.

    Raises:
        OSError: The team's folder cannot be read.
    """
    found: dict[int, str | Path] = {root.stat().st_ino: root}
    found |= _subfolders(root)
    # A team without agents yet has no folder for them.
    with contextlib.suppress(FileNotFoundError):
        found |= _subfolders(root / "agents")
    return found


def _subfolders(folder: Path) -> dict[int, str | Path]:
    """Return the folders in `folder` by inode, except hidden ones, which hold locks."""
    with os.scandir(folder) as entries:
        return {
            entry.inode(): entry.path
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        }


class ObservedFolder:
    """File events of a folder and all below it, by the means that watchdog has for this system.

    `heard` is called in watchdog's thread with the name of a changed file, relative to `root`, or with "" if anything
    may have changed. Unlike `FileEvents`, it reports neither that the kernel closed the lease of a killed process, nor
    that the folder moved.

    Raises:
        OSError: The system grants no file events, or the folder is missing.
    """

    def __init__(self, root: str, heard: Callable[[str], None]) -> None:
        from watchdog.events import (
            DirModifiedEvent,
            FileClosedNoWriteEvent,
            FileOpenedEvent,
            FileSystemEvent,
            FileSystemEventHandler,
        )
        from watchdog.observers import Observer

        # Its inotify warns of each folder that is moved within the root: the kernel gives the same watch again.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        # What comes or goes in a folder has an event of its own.
        ignored = (DirModifiedEvent, FileOpenedEvent, FileClosedNoWriteEvent)

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if isinstance(event, ignored):
                    return
                for path in filter(None, (os.fsdecode(event.src_path), os.fsdecode(event.dest_path))):
                    name = path.removeprefix(f"{root}/")
                    if event.is_directory or name == path:
                        heard("")
                    elif not os.path.basename(name).startswith("."):
                        heard(name)

        self._root, self._inode = root, os.stat(root).st_ino
        self._observer = Observer()
        self._observer.daemon = True
        self._observer.schedule(Handler(), root, recursive=True)
        self._observer.start()

    def is_alive(self) -> bool:
        """Return True if events still arrive for the folder that is at the path now."""
        try:
            is_there = os.stat(self._root).st_ino == self._inode
        except OSError:
            return False
        return is_there and self._observer.should_keep_running() and self._observer.is_alive()

    def stop(self) -> None:
        """End watchdog's threads without waiting for them."""
        self._observer.stop()


class BoardEvents:
    """File events of mailboxes, requests, tasks and settings alone, which need few watches.

    `heard` is called in watchdog's thread with the name of a changed file, relative to `root`, or with "" if a folder
    was removed or moved, or events were lost.

    Raises:
        OSError: The system grants no file events, or a folder is missing.
    """

    def __init__(self, root: str, heard: Callable[[str], None]) -> None:
        from watchdog.observers.inotify_c import CallbackId, InotifyFD, Mask
        from watchdog.observers.inotify_c import InotifyConstants as Kind

        content = Mask(Kind.IN_CREATE | Kind.IN_MODIFY | Kind.IN_MOVED_TO)
        loss = Mask(Kind.IN_DELETE | Kind.IN_MOVED_FROM)
        gone = Mask(Kind.IN_DELETE_SELF | Kind.IN_MOVE_SELF | Kind.IN_ONLYDIR)
        team = Path(root)
        wanted: dict[Path, Mask] = {
            **dict.fromkeys((team / "inbox", team / "requests", team / "tasks"), Mask(content | gone)),
            team: Mask(loss | Kind.IN_MOVED_TO | gone),
            team / "agents": Mask(loss | gone),
            # If one of these is moved, so is the team.
            team.parent: gone,
            team.parent.parent: gone,
        }
        self._heard = heard
        self._names: dict[WatchDescriptor, str] = {}
        self._inotify = InotifyFD()
        self._inotify.start()
        try:
            for folder, mask in wanted.items():
                watch = self._inotify.add_callback(os.fsencode(folder), mask, self, CallbackId(0))
                self._names[watch] = f"{folder.name}/" if folder.parent == team else ""
        except OSError:
            self.stop()
            raise

    def is_alive(self) -> bool:
        """Return True if events still arrive."""
        return bool(self._names) and self._inotify.is_alive()

    def stop(self) -> None:
        """End watchdog's thread without waiting for it."""
        self._names = {}
        self._inotify.stop()

    def on_event(self, event: "InotifyEvent") -> None:
        """Report the file of an event, in watchdog's thread."""
        folder = self._names.get(event.wd)
        if folder is not None:
            self._heard(f"{folder}{os.fsdecode(event.name)}" if event.name else "")

    def on_queue_overflow(self) -> None:
        """Report that anything may have changed, because events were lost."""
        self._heard("")

    def on_watch_deleted(self, wd: "WatchDescriptor") -> None:
        """Report that anything may have changed, because a folder was removed."""
        # Empty after `stop`, which removes all watches.
        if wd in self._names:
            self._heard("")
