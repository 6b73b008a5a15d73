"""The engine of crewboard: team files, commands, supervisor, workers and read model, without any user interface.

`__all__` lists the public names; `__init__.py` files of other packages pass no names on. Each public name is imported
at its first use, because every process of a team imports this package and most need few of the names.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crewboard.commands.answers import answer, approve, reject
    from crewboard.commands.context import Team, choose_team
    from crewboard.commands.context import create as create_team
    from crewboard.commands.control import interrupt
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
    from crewboard.names import LEAD, OPERATOR
    from crewboard.operations import pause, unpause
    from crewboard.readmodel.reader import TeamReader, read_team
    from crewboard.readmodel.team import AgentView, Need, NeedKind, TeamView
    from crewboard.records.agents import HireOptions, Status
    from crewboard.records.messages import Message
    from crewboard.records.requests import Request
    from crewboard.records.team import Task
else:
    _MODULES = {
        "commands.answers": "answer approve reject",
        "commands.context": "Team choose_team create",
        "commands.control": "interrupt",
        "commands.hire": "Assignment Hire resume spawn",
        "commands.messages": "acknowledge broadcast send",
        "commands.stop": "delete remove stop stop_now",
        "commands.tasks": "add_task update_task",
        "errors": "BadDataError CredentialsError CrewboardError ExitCode LimitError LostLeaseError NoSandboxError "
        "StorageError TryLaterError UntrustedError UsageError",
        "names": "LEAD OPERATOR",
        "operations": "pause unpause",
        "readmodel.reader": "TeamReader read_team",
        "readmodel.team": "AgentView Need NeedKind TeamView",
        "records.agents": "HireOptions Status",
        "records.messages": "Message",
        "records.requests": "Request",
        "records.team": "Task",
    }
    _PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
    _OWN_NAMES = {"create_team": "create", "delete_team": "delete"}

    # Any: whatever the package publishes.
    def __getattr__(name: str) -> Any:  # noqa: ANN401
        """Return the object that has a public name, from the module that defines it (PEP 562).

        Raises:
            AttributeError: `name` is not a public name.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        own = _OWN_NAMES.get(name, name)
        # Unlike importlib.import_module, this is seen by `python -X importtime`.
        module = __import__(f"{__name__}.{_PLACES[own]}", fromlist=[own])
        # From now on Python finds it without this function.
        return globals().setdefault(name, getattr(module, own))


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
