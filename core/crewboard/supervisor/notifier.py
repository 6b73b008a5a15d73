"""Notify workers, and the supervisor, of changes to the team's files.

A worker also looks at its files by itself, so a missed event only costs time (`worker/interrupts.py` says how much).
"""

import asyncio
import contextlib
import json
import logging
import queue
import time
from collections.abc import Mapping
from typing import Any, Protocol

from crewboard.errors import StorageError
from crewboard.store import leases, tasks
from crewboard.store.interface import Held, Key, Listener
from crewboard.store.layout import TeamDirectory

RETRY_INTERVAL = 30.0
"""Seconds between two attempts to get hints from the store after it refused them."""

_ROSTER = ("members", "rev")
"""Fields of `config.json` that change with each hire, and are no settings."""

log = logging.getLogger(__name__)


class ChangeHandler(Protocol):
    """The supervisor of the agents on this machine, which a notifier tells about changes.

    Only a team in a database reports changed specs and wanted runs (`on_spec`, `on_start`), for which hosts wait.
    """

    def wake_all(self) -> None:
        """Wake every worker."""

    def wake_one(self, name: str) -> None:
        """Wake an agent's worker, if it is on this machine."""

    def claims_tasks(self, name: str) -> bool:
        """Return True if an agent claims tasks by itself (autoclaim)."""

    def on_board(self) -> None:
        """Handle a change of a request or a task."""

    def wake(self) -> None:
        """Make the supervisor look at all agents now.

        The settings, a folder of the team, or a folder above the team changed.
        """

    def on_spec(self, name: str) -> None:
        """Handle a change of an agent's spec."""

    def on_start(self) -> None:
        """Handle that a run was put into the queue."""


class ChangeNotifier:
    """Watches mailboxes, requests, tasks and settings, and wakes the workers that a change concerns.

    While it holds `notifier_lock`, workers rely on it and rarely look by themselves.
    """

    def __init__(self, team: TeamDirectory, handler: ChangeHandler) -> None:
        self._team = team
        self._handler = handler
        # The thread of the hints puts names in, the event loop takes them out. "" means that anything may be changed.
        self._changed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listener: Listener | None = None
        self._lease: Held | None = None
        self._tried = 0.0
        self._settings: dict[str, Any] = {}

    @property
    def is_working(self) -> bool:
        """Return True if hints arrive, so that workers rely on this notifier."""
        return self._lease is not None

    def start(self) -> None:
        """Start to watch, in the running loop. If the store gives no hints, log that; workers look by themselves."""
        loop, self._tried = asyncio.get_running_loop(), time.monotonic()
        self._settings = self._read_settings()

        def note(name: str) -> None:
            self._changed.put(name)
            # The loop is closed when the supervisor ends.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._tell)

        try:
            self._listener = self._team.listen(note)
            self._lease = leases.take(self._team.notifier_lock)
        except StorageError as error:
            log.warning("no file events, so workers look for mail themselves: %s", error)
            self.stop()

    def stop(self) -> None:
        """Stop watching, and wake all workers, which then look by themselves more often."""
        listener, self._listener, lease, self._lease = self._listener, None, self._lease, None
        if listener is not None:
            listener.stop()
        if lease is not None:
            leases.release(lease)
            self._handler.wake_all()

    def check(self) -> None:
        """Stop if hints no longer arrive, and try from time to time to get them again."""
        if self.is_working and (self._listener is None or not self._listener.is_alive()):
            log.warning("file events ended, so workers look for mail themselves")
            self.stop()
        if not self.is_working and time.monotonic() - self._tried > RETRY_INTERVAL:
            self._begin_again()

    def _tell(self) -> None:
        """Wake the workers, and tell the supervisor, that the changes so far concern."""
        names = set()
        while not self._changed.empty():
            names.add(self._changed.get_nowait())
        if self._listener is None or not names:
            return
        if "" in names:
            self._begin_again()
            return
        team = self._team
        folders = {name.rpartition("/")[0] for name in names}
        if not folders.isdisjoint((team.requests.name, team.tasks.name)):
            self._handler.on_board()
        if "agents" in folders or team.supervisor_lock.name in names:
            self._handler.wake_all()
            self._handler.wake()
        if team.config.name in names and (settings := self._read_settings()) != self._settings:
            self._settings = settings
            self._handler.wake_all()
            self._handler.wake()
        if team.starts_queue.name in folders:
            self._handler.on_start()
        for name in [folder.removeprefix("agents/") for folder in folders if folder.startswith("agents/")]:
            self._handler.on_spec(name)
        found = set[str]()
        # However many tasks there are, a database is asked once.
        is_mail = all(name.startswith("inbox/") for name in names)
        try:
            with contextlib.nullcontext() if is_mail else self._team.store.glance():
                for name in names:
                    found |= self._concerned(name)
        except StorageError as error:
            log.warning("all workers look at what changed: %s", error)
            self._handler.wake_all()
        for agent in sorted(found):
            self._handler.wake_one(agent)

    def _begin_again(self) -> None:
        """Watch the folders that exist now, and wake all workers: events were lost, or a folder is gone."""
        self.stop()
        self.start()
        if self.is_working:
            # What changed while nothing was watched is told by no hint.
            self._handler.wake_all()
        self._handler.wake()

    def _read_settings(self) -> dict[str, Any]:
        return {key: value for key, value in (_read_object(self._team.config) or {}).items() if key not in _ROSTER}

    def _concerned(self, name: str) -> set[str]:
        """Return the names of the agents that a changed name in the store concerns."""
        folder, _, last = name.rpartition("/")
        stem, dot, kind = last.rpartition(".")
        if folder == "inbox":
            return {stem} if dot and kind == "jsonl" else set()
        if kind != "json" or folder not in (self._team.requests.name, self._team.tasks.name):
            return set()
        record = _read_object(self._team.key(name))
        if record is None:
            return set()
        if folder == self._team.requests.name:
            return {str(record[key]) for key in ("from", "to") if record.get(key)}
        found = self._concerned_by_task(record)
        if record.get("status") == "completed":
            for task in tasks.load_all(self._team):
                if record.get("id") in task.blocked_by:
                    found |= self._concerned_by_task({"status": task.status, "owner": task.owner})
        return found

    def _concerned_by_task(self, task: Mapping[str, Any]) -> set[str]:
        named = {str(task[key]) for key in ("owner", "last_owner") if task.get(key)}
        if task.get("status") != "pending" or task.get("owner"):
            return named
        return named | {name for name in self._team.agent_names() if self._handler.claims_tasks(name)}


def _read_object(record: Key) -> dict[str, Any] | None:
    """Return the JSON object in a record without validation, so that a damaged record still wakes its agents.

    None if there is no such object.
    """
    try:
        value = json.loads(record.get() or b"")
    except (StorageError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
