"""The commands that a user, a script or a lead gives to a team.

Each module is imported as a namespace (`messages.send`, `stop.remove`), because most commands need one of them. The
names here say for which team a command is.
"""

from crewboard.commands.context import (
    POLL_INTERVAL,
    CommandLine,
    Team,
    check_credentials,
    choose_team,
    command_for,
    create_command,
    name_team,
    runs_offline,
    wait_until,
)

__all__ = [
    "POLL_INTERVAL",
    "CommandLine",
    "Team",
    "check_credentials",
    "choose_team",
    "command_for",
    "create_command",
    "name_team",
    "runs_offline",
    "wait_until",
]
