"""The commands that a user, a script or a lead gives to a team.

Each module is a namespace (`messages.send`, `stop.remove`). It is loaded when it is first used, because most commands
need only one of them. The names imported here select the team of a command.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.commands import (
        answers,
        changes,
        context,
        control,
        hire,
        hosts,
        messages,
        profiles,
        stop,
        tasks,
        transfer,
        undo,
        workspace,
    )
    from crewboard.commands.context import (
        POLL_INTERVAL,
        CommandLine,
        Team,
        check_credentials,
        choose_team,
        command_for,
        create_command,
        name_team,
        wait_until,
    )
else:
    __getattr__ = lazy(
        __name__,
        {
            "context": "CommandLine POLL_INTERVAL Team check_credentials choose_team command_for create_command "
            "name_team wait_until",
        },
        modules="answers changes context control hire hosts messages profiles stop tasks transfer undo workspace",
    )

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
    "hosts",
    "messages",
    "name_team",
    "profiles",
    "stop",
    "tasks",
    "transfer",
    "undo",
    "wait_until",
    "workspace",
]
