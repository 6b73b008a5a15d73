"""Every file and every message of a team, as a model; nothing else knows the names of their fields.

Models keep fields that they do not know, so that a file written by a later version survives being replaced by this
one. Times are epoch seconds, sizes are bytes, paths are relative to the team directory.
"""

from crewboard.records.agents import (
    Context,
    Cursor,
    Definition,
    HireOptions,
    Profile,
    Spec,
    State,
    Status,
    Tokens,
    Want,
)
from crewboard.records.base import MAX_DEPTH, Record, Time
from crewboard.records.ends import (
    ASKED_FOR,
    EXIT_REASONS,
    VANISHED,
    Exit,
    describe_exit,
    has_vanished,
    is_orderly,
    signal_name,
)
from crewboard.records.events import (
    Answer,
    Cleared,
    Event,
    Gate,
    Intake,
    Reply,
    Retry,
    RunEnded,
    RunStarted,
    Sent,
    Summary,
    ToolResult,
    ToolStart,
)
from crewboard.records.messages import JOINS_NEXT_TURN, MAX_MESSAGE_ID, STARTS_WORK, Message, Unsent
from crewboard.records.processes import Lease, ModelServerInfo, Supervisor
from crewboard.records.requests import REQUEST_ID_RULE, Request, RequestStatus, RequestType, payload_sha256
from crewboard.records.tasks import Task, TaskStatus
from crewboard.records.team import Config, Cooldown, Member, OperatorState, Rule

__all__ = [
    "ASKED_FOR",
    "EXIT_REASONS",
    "JOINS_NEXT_TURN",
    "MAX_DEPTH",
    "MAX_MESSAGE_ID",
    "REQUEST_ID_RULE",
    "STARTS_WORK",
    "VANISHED",
    "Answer",
    "Cleared",
    "Config",
    "Context",
    "Cooldown",
    "Cursor",
    "Definition",
    "Event",
    "Exit",
    "Gate",
    "HireOptions",
    "Intake",
    "Lease",
    "Member",
    "Message",
    "ModelServerInfo",
    "OperatorState",
    "Profile",
    "Record",
    "Reply",
    "Request",
    "RequestStatus",
    "RequestType",
    "Retry",
    "Rule",
    "RunEnded",
    "RunStarted",
    "Sent",
    "Spec",
    "State",
    "Status",
    "Summary",
    "Supervisor",
    "Task",
    "TaskStatus",
    "Time",
    "Tokens",
    "ToolResult",
    "ToolStart",
    "Unsent",
    "Want",
    "describe_exit",
    "has_vanished",
    "is_orderly",
    "payload_sha256",
    "signal_name",
]
