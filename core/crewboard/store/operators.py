"""The operators of a team: what they did (`audit.jsonl`), and which of them have the dashboard open (`presence/`)."""

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from crewboard.records import Act, BadDataError, Presence, StorageError
from crewboard.store import codec, files, leases
from crewboard.store.layout import TeamDirectory


def note_act(team: TeamDirectory, act: Act) -> None:
    """Append one act.

    Raises:
        StorageError: It could not be written.
    """
    files.append_line(team.audit, team.lock("audit"), codec.encode(act))


def acts(team: TeamDirectory) -> tuple[list[Act], int]:
    """Return every act, oldest first, and the number of damaged lines.

    Raises:
        StorageError: The file cannot be read.
    """
    found, damaged = [], 0
    for line, _ in files.read_lines(team.audit):
        if line is not None and not line.strip():
            continue
        try:
            found.append(codec.decode(line or b"", Act))
        except BadDataError:
            damaged += 1
    return found, damaged


class OpenDashboard:
    """A lease that shows that its user has the dashboard open. It ends with the process, also if that is killed.

    If the folder is not writable, others do not see this dashboard; nothing else fails.
    """

    def __init__(self, team: TeamDirectory, who: str, now: float) -> None:
        self.id = secrets.token_hex(8)
        self._path = team.presence / f"{self.id}.lease"
        self._presence = Presence(id=self.id, who=who, since=now)
        self._lease: int | None = None

    def look_at(self, request_id: str | None) -> None:
        """Record which request is on the screen. The first call records that the dashboard is open."""
        if self._lease is not None and request_id == self._presence.looking_at:
            return
        self._presence = self._presence.model_copy(update={"looking_at": request_id})
        with contextlib.suppress(OSError, StorageError):
            if self._lease is None:
                files.make_folder(self._path.parent)
                _remove_left(self._path.parent)
                self._lease = leases.take(self._path)
            if self._lease is not None:
                leases.sign(self._lease, self._presence)

    def close(self) -> None:
        """Remove the lease when the dashboard is closed or shows another team."""
        if self._lease is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._lease)
            self._lease = None


def present(team: TeamDirectory) -> tuple[Presence, ...]:
    """Return who has the dashboard open, in the order in which they opened it."""
    found = (leases.holder(path, Presence) for path in _leases(team.presence))
    return tuple(sorted((each for each in found if each is not None), key=lambda each: (each.since, each.id)))


def _leases(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == ".lease"]
    except OSError:
        return []


def _remove_left(folder: Path) -> None:
    """Remove the leases of dashboards that were killed."""
    for path in _leases(folder):
        with contextlib.suppress(OSError, StorageError):
            if not leases.is_held(path):
                path.unlink()


def file_for(folder: Path | None, team: Path, user: str = "") -> Path | None:
    """Return the file of a team below `folder`, a folder of the user, such as that of drafts; None if there is none.

    With `user`, the file is this user's: several people may share an account.
    """
    if folder is None:
        return None
    place = hashlib.sha256((f"{team}\0{user}" if user else str(team)).encode()).hexdigest()[:12]
    return folder / f"{team.name}-{place}.json"
