"""`config.json`: who is on the team, and its settings."""

from collections.abc import Callable
from pathlib import Path

from crewboard.errors import CrewboardError, UsageError
from crewboard.records import Config, Member, Removed
from crewboard.store import json_files
from crewboard.store.layout import TeamDirectory, team_directories

_CACHE: dict[TeamDirectory, json_files.CachedFile[Config]] = {}


def load(team: TeamDirectory) -> Config:
    """Return the team's roster and settings; while the file is damaged, the last state that this process read.

    Do not change the returned record: it is shared.

    Raises:
        UsageError: There is no such team.
        BadDataError: The file is damaged, and this process has not read it before.
        StorageError: It cannot be read.
    """
    known = _CACHE.setdefault(team, json_files.CachedFile(team.config, Config))
    config = known.get() or json_files.load(team.config, Config)
    if config is None:
        raise UsageError(f"there is no team in {team.path}")
    return config


def create(team: TeamDirectory, description: str, now: float) -> Config:
    """Write the roster of a new team.

    Raises:
        UsageError: The team exists.
    """

    def fresh(old: Config | None) -> Config:
        if old is not None:
            raise UsageError(f"the team {team.path.name} exists")
        return Config(name=team.path.name, description=description, created_at=now)

    return json_files.change(team.config, team.lock("roster"), Config, fresh)


def ensure(team: TeamDirectory, now: float) -> Config:
    """Write the roster of a new team if there is none yet."""
    if not team.exists():
        json_files.change(
            team.config,
            team.lock("roster"),
            Config,
            lambda old: old or Config(name=team.path.name, created_at=now),
        )
    return load(team)


def change(team: TeamDirectory, edit: Callable[[Config], None]) -> Config:
    """Let `edit` change the roster in place and save it, while holding the lock."""

    def apply(config: Config | None) -> Config:
        if config is None:
            raise UsageError(f"there is no team in {team.path}")
        edit(config)
        config.rev += 1
        return config

    return json_files.change(team.config, team.lock("roster"), Config, apply)


def put(team: TeamDirectory, member: Member) -> Config:
    """Add `member`, or replace the member of that name."""

    def edit(config: Config) -> None:
        names = [old.name for old in config.members]
        if member.name in names:
            config.members[names.index(member.name)] = member
        else:
            config.members.append(member)

    return change(team, edit)


def drop(team: TeamDirectory, name: str, left: Removed | None = None) -> Config:
    """Remove `name` from the roster, with its standing permissions: another agent may get the name.

    Add `left`, the agent's last run and what it used, to that of earlier agents of the name.
    """

    def edit(config: Config) -> None:
        if left is not None and config.member(name) is not None:
            config.removed = {**config.removed, name: config.removed.get(name, Removed()) + left}
        config.members = [member for member in config.members if member.name != name]
        config.rules = [rule for rule in config.rules if rule.agent != name]

    return change(team, edit)


def find_team(root: Path, name: str) -> TeamDirectory | None:
    """Return the team called `name`, else the team in the directory `name`, else None."""
    teams = team_directories(root)
    for team in teams:
        try:
            if load(team).name == name:
                return team
        except CrewboardError:
            continue
    return next((team for team in teams if team.path.name == name), None)
