"""Which team a command is for, and who gives it."""

import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from crewboard import env
from crewboard.errors import CredentialsError, CrewboardError, UsageError
from crewboard.names import OPERATOR, check_team
from crewboard.records import Config, Member
from crewboard.store import roster
from crewboard.store.layout import DEFAULT_TEAM, AgentDirectory, TeamDirectory, find_root, find_team, team_directories

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_VALID_KEY = re.compile(r"[!-~]+")
"""What an HTTP header carries as it stands."""

POLL_INTERVAL = 0.02
"""Seconds between two looks at something that is waited for."""


@dataclass(frozen=True)
class Team:
    """One team, to be changed by `by`; workers that are started get `environment`."""

    directory: TeamDirectory
    by: str = OPERATOR
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    now: Callable[[], float] = time.time

    @property
    def offline(self) -> bool:
        """Whether who is hired from here works on the embedded model."""
        return env.is_offline(self.environment)

    @property
    def config(self) -> Config:
        """The roster and settings; a team that is not there yet has nobody on it."""
        if not self.directory.exists():
            return Config(name=self.directory.path.name)
        return roster.load(self.directory)

    def member(self, name: str) -> Member:
        """The agent called `name`.

        Raises:
            UsageError: There is none; the message lists who there is.
        """
        config = self.config
        member = config.member(name)
        if member is None:
            known = ", ".join(m.name for m in config.members)
            who = f"there are {known}" if known else "nobody is hired yet"
            raise UsageError(f"there is no agent {name!r} on this team; {who}")
        return member

    def agent(self, name: str) -> AgentDirectory:
        """The files of the agent called `name`, who must be on the roster."""
        return self.directory.agent(self.member(name).name)

    def ensure(self) -> "Team":
        """Make the default team if it is not there yet."""
        if not self.directory.exists():
            self.directory.make()
            roster.ensure(self.directory, self.now())
        return self


def create(root: Path, name: str, description: str = "") -> Team:
    """Make a new team.

    Raises:
        UsageError: The name cannot be, or is taken.
        StorageError: The root cannot be written to.
    """
    directory = TeamDirectory(root / ".crewboard" / check_team(name))
    if find_team(root, name) is not None:
        raise UsageError(f"the team {name} exists in {root}")
    directory.make()
    roster.create(directory, description, time.time())
    return Team(directory)


def choose_team(root: Path, explicit: str | None) -> TeamDirectory:
    """The team to work on: `explicit`, else `$CREWBOARD_TEAM`, else the only one there is, else `default`.

    The default need not exist yet.

    Raises:
        UsageError: The team that was named does not exist.
        UntrustedError: The team is not this user's own.
    """
    team = _find_chosen(root, explicit)
    team.require_own()
    return team


def _find_chosen(root: Path, explicit: str | None) -> TeamDirectory:
    name = explicit or env.team()
    if name:
        found = find_team(root, check_team(name))
        if found is None:
            TeamDirectory(root / ".crewboard" / name).require_own()
            known = ", ".join(team.path.name for team in team_directories(root)) or "none yet"
            raise UsageError(f"there is no team {name!r} in {root} (teams: {known}); `{create_command(root, name)}`")
        return found
    existing = team_directories(root)
    return existing[0] if len(existing) == 1 else TeamDirectory(root / ".crewboard" / DEFAULT_TEAM)


def root_options(root: Path) -> list[str]:
    """The global options with which a command typed here works in `root`; none where it does so by itself."""
    try:
        found: Path | None = find_root()
    except (CrewboardError, OSError):  # what the environment names is not there, or this directory is gone
        found = None
    return [] if found == root.resolve() else ["--root", str(root.resolve())]


def create_command(root: Path, name: str = "NAME") -> str:
    """The command, as it is typed here, that makes a team in `root`."""
    return shlex.join(["crewboard", *root_options(root), "team", "create", name])


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for `condition`, at most so long; whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether there is a key for the Messages API, whatever it is worth."""
    return bool(_keys_in(environment))


def _keys_in(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in _KEYS if environment.get(name)}


def check_credentials(environment: Mapping[str, str]) -> None:
    """Make sure that a worker with this environment could reach a model.

    Raises:
        CredentialsError: There is no key, or none that can be sent; says how to get one.
    """
    if environment.get("CREWBOARD_OFFLINE") == "1":
        return
    keys = _keys_in(environment)
    if not keys:
        raise CredentialsError(
            "no API key: set ANTHROPIC_API_KEY (keys are made in the Anthropic Console), "
            "or try the embedded model with --offline"
        )
    for name, key in keys.items():
        if not _VALID_KEY.fullmatch(key):
            raise CredentialsError(f"{name} holds what no key does, such as a space or a line break; set it again")
