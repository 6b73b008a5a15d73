"""The engine: team files, commands, the supervisor, the workers and the read model. Draws nothing.

`__all__` names what a script may rely on. Each name is loaded when it is first used, because every process of a team
imports this package and most need little of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crewboard.commands.answers import answer, approve, reject
    from crewboard.commands.context import Team, choose_team
    from crewboard.commands.context import create as create_team
    from crewboard.commands.control import interrupt, pause, unpause
    from crewboard.commands.hire import Assignment, Hire, resume, spawn
    from crewboard.commands.messages import acknowledge, broadcast, send
    from crewboard.commands.stop import delete as delete_team
    from crewboard.commands.stop import remove, stop, stop_now
    from crewboard.commands.tasks import add_task, update_task
    from crewboard.errors import (
        BadDataError,
        CredentialsError,
        CrewboardError,
        ExitCode,
        LimitError,
        LostLeaseError,
        NoSandboxError,
        StorageError,
        TryLaterError,
        UntrustedError,
        UsageError,
    )
    from crewboard.readmodel.reader import TeamReader, read_team
    from crewboard.readmodel.team import AgentView, Need, TeamView
    from crewboard.records import HireOptions

__version__ = "0.2.0"

__all__ = [
    "AgentView",
    "Assignment",
    "BadDataError",
    "CredentialsError",
    "CrewboardError",
    "ExitCode",
    "Hire",
    "HireOptions",
    "LimitError",
    "LostLeaseError",
    "Need",
    "NoSandboxError",
    "StorageError",
    "Team",
    "TeamReader",
    "TeamView",
    "TryLaterError",
    "UntrustedError",
    "UsageError",
    "__version__",
    "acknowledge",
    "add_task",
    "answer",
    "approve",
    "broadcast",
    "choose_team",
    "create_team",
    "delete_team",
    "interrupt",
    "pause",
    "read_team",
    "reject",
    "remove",
    "resume",
    "send",
    "spawn",
    "stop",
    "stop_now",
    "unpause",
    "update_task",
]

_PLACES = {
    "commands.answers": ("answer", "approve", "reject"),
    "commands.context": ("Team", "choose_team", "create_team"),
    "commands.control": ("interrupt", "pause", "unpause"),
    "commands.hire": ("Assignment", "Hire", "resume", "spawn"),
    "commands.messages": ("acknowledge", "broadcast", "send"),
    "commands.stop": ("delete_team", "remove", "stop", "stop_now"),
    "commands.tasks": ("add_task", "update_task"),
    "errors": (
        "BadDataError", "CredentialsError", "CrewboardError", "ExitCode", "LimitError", "LostLeaseError",
        "NoSandboxError", "StorageError", "TryLaterError", "UntrustedError", "UsageError",
    ),
    "readmodel.reader": ("TeamReader", "read_team"),
    "readmodel.team": ("AgentView", "Need", "TeamView"),
    "records": ("HireOptions",),
}  # fmt: skip
"""The module that defines each public name."""

_OTHERWISE = {"create_team": "create", "delete_team": "delete"}
"""Names that are shorter in their own module."""


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever is public
    import importlib

    place = next((place for place, names in _PLACES.items() if name in names), None)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{place}"), _OTHERWISE.get(name, name))
