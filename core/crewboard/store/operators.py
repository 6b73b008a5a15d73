"""The operators of a team: what they did (`audit.jsonl`), and who of them has the dashboard open (`presence/`)."""

import contextlib
import hashlib
import os
import threading
from pathlib import Path

from crewboard.errors import BadDataError, StorageError
from crewboard.records.team import Act, Presence
from crewboard.store import codec, leases
from crewboard.store.interface import Held, Key
from crewboard.store.layout import TeamDirectory


def note_act(team: TeamDirectory, act: Act) -> None:
    """Append one act to the log.

    Raises:
        StorageError: It could not be written.
    """
    team.audit.store.append(team.audit.name, codec.encode(act))


def acts(team: TeamDirectory) -> tuple[list[Act], int]:
    """Return every act, oldest first, and the number of damaged lines.

    Raises:
        StorageError: The log cannot be read.
    """
    found, damaged = [], 0
    for line, _ in team.audit.read():
        if line is not None and not line.strip():
            continue
        try:
            found.append(codec.decode(line or b"", Act))
        except BadDataError:
            damaged += 1
    return found, damaged


class OpenDashboard:
    """A lease that shows that a user has the dashboard open. It ends with the process, even if that is killed.

    If the folder is not writable, other users do not see this dashboard; nothing else fails.
    """

    def __init__(self, team: TeamDirectory, who: str, now: float) -> None:
        self.id = os.urandom(8).hex()
        self._team = team
        self._key = team.key(f"presence/{self.id}.lease")
        self._presence = Presence(id=self.id, who=who, since=now)
        self._lease: Held | None = None
        self._is_closed = False
        self._writes = threading.Lock()
        """A lock that is held while the lease is written or removed."""

    @property
    def is_shown(self) -> bool:
        """Return True if other users see this dashboard."""
        return self._lease is not None

    def says(self, request_id: str | None) -> bool:
        """Return True if other users see that this request is on the screen; None stands for no request."""
        return self._lease is not None and request_id == self._presence.looking_at

    def look_at(self, request_id: str | None) -> None:
        """Record which request is on the screen, None for none. The first call takes the lease.

        If the team is in a database that is away, this takes seconds: the screen calls it in a thread.
        """
        with self._writes, contextlib.suppress(StorageError):
            if self._is_closed or self.says(request_id) or not self._team.exists():
                return
            self._presence = self._presence.replace(looking_at=request_id)
            if self._lease is None:
                self._team.store.make_folder(self._team.presence.name)
                # Those of dashboards that were killed.
                for key in _leases(self._team):
                    with contextlib.suppress(StorageError):
                        if not leases.is_held(key):
                            key.remove()
                self._lease = leases.take(self._key)
            if self._lease is not None:
                leases.sign(self._lease, self._presence)

    def close(self) -> None:
        """Remove the lease for good, because the dashboard is closed or shows another team."""
        self._is_closed = True
        self.forget()

    def forget(self) -> None:
        """Remove the lease, because the team was deleted; the next `look_at` takes a new one."""
        with self._writes:
            if self._lease is not None:
                with contextlib.suppress(StorageError):
                    self._key.remove()
                leases.release(self._lease)
                self._lease = None


def present(team: TeamDirectory) -> tuple[Presence, ...]:
    """Return who has the dashboard open, in the order in which they opened it; empty if that cannot be read."""
    try:
        found = [leases.holder(key, Presence) for key in _leases(team)]
    except StorageError:
        return ()
    return tuple(sorted((each for each in found if each is not None), key=lambda each: (each.since, each.id)))


def _leases(team: TeamDirectory) -> list[Key]:
    try:
        return [team.presence.below(name) for name in team.presence.names() if name.endswith(".lease")]
    except StorageError:
        return []


def file_for(folder: Path | None, team: Path, user: str = "") -> Path | None:
    """Return the path of a team's file below `folder`, such as that of drafts; None if `folder` is None.

    With `user`, it is the file of this user: several users may share an account.
    """
    if folder is None:
        return None
    place = hashlib.sha256((f"{team}\0{user}" if user else str(team)).encode()).hexdigest()[:12]
    return folder / f"{team.name}-{place}.json"
