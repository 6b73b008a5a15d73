"""The commands that a user, a script or a lead gives to a team.

Each module is a namespace (`messages.send`, `stop.remove`). It is loaded when it is first used, because most commands
need only one of them. The names imported here select the team of a command.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from crewboard.commands import answers, changes, context, control, hire, messages, stop, tasks

__all__ = [
    "POLL_INTERVAL",
    "CommandLine",
    "Team",
    "answers",
    "changes",
    "check_credentials",
    "choose_team",
    "command_for",
    "context",
    "control",
    "create_command",
    "hire",
    "messages",
    "name_team",
    "runs_offline",
    "stop",
    "tasks",
    "wait_until",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
