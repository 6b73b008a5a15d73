"""The engine: team files, commands, the supervisor, the workers and the read model. Draws nothing.

`__all__` lists the public names. The dashboard and the command line also use the packages, as in
`crewboard.store.leases`. Each name is loaded when it is first used, because every process of a team imports this
package and most need little of it.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard import agent_types as agent_types
    from crewboard import attach as attach
    from crewboard import commands as commands
    from crewboard import env as env
    from crewboard import linux as linux
    from crewboard import mcp_servers as mcp_servers
    from crewboard import media as media
    from crewboard import models as models
    from crewboard import pricing as pricing
    from crewboard import protocol as protocol
    from crewboard import readmodel as readmodel
    from crewboard import records as records
    from crewboard import redaction as redaction
    from crewboard import sandbox as sandbox
    from crewboard import store as store
    from crewboard import type_files as type_files
    from crewboard import web as web
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
else:
    __getattr__ = lazy(
        __name__,
        {
            "commands.answers": "answer approve reject",
            "commands.context": "Team choose_team create_team=create",
            "commands.control": "interrupt pause unpause",
            "commands.hire": "Assignment Hire resume spawn",
            "commands.messages": "acknowledge broadcast send",
            "commands.stop": "delete_team=delete remove stop stop_now",
            "commands.tasks": "add_task update_task",
            "errors": "BadDataError CredentialsError CrewboardError ExitCode LimitError LostLeaseError NoSandboxError "
            "StorageError TryLaterError UntrustedError UsageError",
            "readmodel": "AgentView Need NeedKind TeamReader TeamView read_team",
            "records": "LEAD OPERATOR HireOptions Message Request Status Task",
        },
        modules=(
            "agent_types attach commands env linux mcp_servers media models pricing protocol readmodel "
            "records redaction sandbox store type_files web"
        ),
    )

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
