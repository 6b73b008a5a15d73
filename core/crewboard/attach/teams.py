"""Find Claude Code's teams, sessions and processes, and attach to a team: make the team directory that mirrors it."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from crewboard.attach import formats, places
from crewboard.errors import CrewboardError
from crewboard.records.team import AttachedTeam, Config
from crewboard.store import files
from crewboard.store import roster as store_roster
from crewboard.store.layout import HOME, TeamDirectory
from crewboard.unix import process as unix_process

_CLOCK_ERROR = 0.5
"""Seconds by which a computed start time of a process may be later than the real one."""


class Process(NamedTuple):
    """A process by its pid and its start time, in clock ticks since boot: pids are reused."""

    pid: int
    ticks: int

    @property
    def lives(self) -> bool:
        """Return True if the process runs."""
        return bool(self.ticks) and unix_process.start_ticks(self.pid) == self.ticks


class FoundTeam(NamedTuple):
    """A team of Claude Code: its name, its configuration directory and roster, the folder in which its lead works.

    `alive` is True if its lead runs. `cwd` is empty if it is not known.
    """

    name: str
    config_dir: Path
    roster: formats.Roster
    cwd: str
    alive: bool

    @property
    def directory_name(self) -> str:
        """Return the name of the team directory that mirrors this team."""
        return places.directory_name(self.config_dir, self.name)


def find_teams(config: Path) -> list[FoundTeam]:
    """Return the teams in a configuration directory of Claude Code, those whose lead runs first, newer ones first."""
    here = places.Places(config)
    sessions = read_sessions(here.sessions)
    found = []
    for name in here.team_names():
        roster = formats.roster(read_file(here.roster(name)) or b"")
        if roster is None:
            continue
        lead = lead_process(roster, sessions)
        cwd = next((member.cwd for member in roster.members if member.is_lead), "")
        found.append(FoundTeam(name, config, roster, cwd, lead is not None and lead.lives))
    return sorted(found, key=lambda team: (not team.alive, -team.roster.created_at))


def find_teams_below(root: Path) -> list[FoundTeam]:
    """Return the teams of this user whose lead runs and works in the folder `root` or below it.

    Those without a teammate are returned only if there are no others.
    """
    found = find_teams(places.config_dir())
    here = [each for each in found if each.alive and each.cwd and Path(each.cwd).resolve().is_relative_to(root)]
    return [each for each in here if len(each.roster.members) > 1] or here


def attach(root: Path, found: FoundTeam, now: float) -> TeamDirectory:
    """Return the team directory below `root` that mirrors a team; create it if there is none yet.

    Raises:
        StorageError: The root cannot be written to.
        UntrustedError: Another user controls the directory, or this user did not create or adopt it.
    """
    team = TeamDirectory(root / HOME / found.directory_name)
    if not team.exists():
        team.make()
    team.require_adopted()
    # Also where it was removed: all of a mirror is made from Claude Code's files.
    if not team.config.exists():
        team.config.edit(lambda old: old or Config(name=team.path.name, created_at=now), durable=True)

    def edit(config: Config) -> None:
        config.attached = AttachedTeam(
            program=places.PROGRAM, team=found.name, config_dir=str(found.config_dir), cwd=found.cwd,
            session_ids=[found.roster.lead_session] if found.roster.lead_session else [],
        )  # fmt: skip
        config.description = found.roster.description or f"Claude Code team {found.name}"

    if store_roster.load(team).attached is None:
        store_roster.change(team, edit)
    return team


def read_file(path: Path) -> bytes | None:
    """Return the contents of a file, None if it cannot be read."""
    try:
        return files.read_file(path)
    except CrewboardError:
        return None


def read_sessions(folder: Path) -> list[formats.Session]:
    """Return the sessions in a folder of Claude Code; of some, the process was killed and only the file is left."""
    found = (formats.session(read_file(path) or b"") for path in formats.files_in(folder, "*.json"))
    return [session for session in found if session is not None]


def lead_process(roster: formats.Roster, sessions: Iterable[formats.Session]) -> Process | None:
    """Return the process of a team's lead, which may have ended; None if it is not known or not certain.

    Before version 2.1.330 of Claude Code, only the file of its session names it.
    """
    if roster.lead_pid and roster.lead_ticks:
        return Process(roster.lead_pid, roster.lead_ticks)
    known = list(sessions)
    meant = [each for each in known if each.ident == roster.lead_session]
    if not meant:
        # With `--session-id`, the roster of 2.1.197 names a session that never is. The session meant works in the
        # folder of the lead, and made the team after its process began and before it was ready.
        cwd = next((member.cwd for member in roster.members if member.is_lead), "")
        meant = [
            each
            for each in known
            if cwd
            and each.cwd == cwd
            and unix_process.started_at(each.ticks) - _CLOCK_ERROR <= roster.created_at <= each.started_at
        ]
        if len(meant) > 1:
            return None
    return max((Process(each.pid, each.ticks) for each in meant), key=lambda process: process.lives, default=None)


def find_teammate(name: str, team: str) -> Process | None:
    """Return the process of this machine whose arguments name this teammate; None if there is none."""
    wanted = [b"--agent-id", f"{name}@{team}".encode()]
    for entry in os.listdir("/proc"):  # noqa: PTH208  a third of the time
        if not entry.isdigit():
            continue
        try:
            arguments = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        at = arguments.index(wanted[0]) if wanted[0] in arguments else -1
        if at > 0 and arguments[at + 1 : at + 2] == wanted[1:]:
            return Process(int(entry), unix_process.start_ticks(int(entry)))
    return None
