"""The global options: workspace, team and model."""

import os
from dataclasses import dataclass
from pathlib import Path

from crewboard import env
from crewboard.commands.context import Team, choose_team
from crewboard.errors import UntrustedError
from crewboard.protocol import supervisor_client
from crewboard.store.layout import TeamDirectory, find_root
from crewboard_tui.cli.output import note


@dataclass(frozen=True)
class Session:
    """The global options of one call."""

    root_option: str | None = None
    team_option: str | None = None
    offline: bool = False

    @property
    def root(self) -> Path:
        """Return the workspace.

        Raises:
            UsageError: The named one is not a directory.
        """
        return find_root(self.root_option)

    @property
    def team(self) -> Team:
        """Return the team. The default team need not exist yet.

        Raises:
            UsageError: The named one does not exist.
        """
        environment = dict(os.environ)
        if self.offline:
            environment[env.OFFLINE] = "1"
        return Team(choose_team(self.root, self.team_option), environment=environment)


def revive(team: TeamDirectory) -> None:
    """Start a supervisor if none is running. If that fails, report it and continue."""
    try:
        supervisor_client.ensure_running(team)
    except (UntrustedError, OSError) as error:
        note(f"no supervisor can be started: {error}")
