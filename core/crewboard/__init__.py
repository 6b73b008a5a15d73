"""The engine: team files, commands, the supervisor, the workers and the read model. Draws nothing.

`__all__` lists the public names. The dashboard and the command line also use the packages, as in
`crewboard.store.leases`. Each name is loaded when it is first used, because every process of a team imports this
package and most need little of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crewboard import agent_types as agent_types
    from crewboard import commands as commands
    from crewboard import env as env
    from crewboard import linux as linux
    from crewboard import pricing as pricing
    from crewboard import protocol as protocol
    from crewboard import readmodel as readmodel
    from crewboard import records as records
    from crewboard import redaction as redaction
    from crewboard import sandbox as sandbox
    from crewboard import store as store
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
    from crewboard.readmodel import AgentView, Need, NeedKind, TeamReader, TeamView, read_team
    from crewboard.records import LEAD, OPERATOR, HireOptions, Message, Request, Status, Task

__version__ = "0.2.0"

__all__ = [
    "LEAD",
    "OPERATOR",
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
    "Message",
    "Need",
    "NeedKind",
    "NoSandboxError",
    "Request",
    "Status",
    "StorageError",
    "Task",
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
    "readmodel": ("AgentView", "Need", "NeedKind", "TeamReader", "TeamView", "read_team"),
    "records": ("LEAD", "OPERATOR", "HireOptions", "Message", "Request", "Status", "Task"),
}  # fmt: skip
"""The module that defines each public name."""

_PACKAGES = (
    "agent_types", "commands", "env", "linux", "pricing", "protocol", "readmodel", "records", "redaction", "sandbox",
    "store",
)  # fmt: skip
"""Packages and modules that are reached as attributes."""

_OTHERWISE = {"create_team": "create", "delete_team": "delete"}
"""Names that are shorter in their own module."""


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever is public
    import importlib

    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    place = next((place for place, names in _PLACES.items() if name in names), None)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{place}"), _OTHERWISE.get(name, name))
