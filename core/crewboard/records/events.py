"""The journal: everything that happens to an agent, in order."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from crewboard.names import OPERATOR, Name
from crewboard.records.agents import HireOptions, Tokens
from crewboard.records.base import Record, Time
from crewboard.records.messages import Message
from crewboard.records.processes import Exit

_TELLING = (
    "command", "path", "pattern", "question", "to", "task_id", "teammate", "subject", "name", "plan", "content",
)  # fmt: skip
"""Arguments that say what a tool call does, the most important first."""

_LONG_ARGUMENTS = frozenset({"write_file", "edit_file", "send_message"})
"""Tools whose second argument is too long for one line."""


class _Event(Record):
    ts: Time
    run: int = 0


class RunStarted(_Event):
    """A worker has the lease and begins. `fresh` starts a new conversation.

    `before` is how the run before it ended, where that run could not say so itself: `exit.json` forgets it with the
    end of this one. `flags` are the terms of its hire, for a day on which the spec is damaged.
    """

    kind: Literal["run_started"] = "run_started"
    pid: int
    type: str
    model: str
    fresh: bool
    prompt_id: str
    mail_from: int = 0
    boot_id: str = ""
    start_ticks: int = 0
    before: Exit | None = None
    flags: HireOptions | None = None


class Intake(_Event):
    """Mail was picked up: the commit point of reading.

    `messages` are all that lay between the old and the new `cursor`; `entered` names those, of these or of earlier
    ones, that join the conversation now. `assignment` is the id of the assignment that begins with it, if one does.
    `prompt` is the hire prompt, with the first intake of a fresh conversation. `notices` are the system's own words;
    they may tell of shutdown requests (`shutdowns`, ids), remind of an unfinished task (`reminds`, its id) or warn that
    a budget is nearly used up (`warned`). `task` is the id of the task that is in progress with the agent then.
    """

    kind: Literal["intake"] = "intake"
    messages: list[Message] = []
    cursor: int = 0
    damaged: int = 0
    entered: list[str] = []
    prompt: str | None = None
    prompt_from: Name = OPERATOR
    notices: list[str] = []
    shutdowns: list[str] = []
    reminds: int | None = None
    task: int | None = None
    warned: bool = False
    assignment: str | None = None


class Reply(_Event):
    """One whole answer of the model, as it goes back into the conversation."""

    kind: Literal["reply"] = "reply"
    content: list[dict[str, Any]]
    stop_reason: str
    usage: Tokens
    model: str = ""
    seconds: float = 0
    cost_usd: float | None = None


class ToolStart(_Event):
    """A tool call begins; without a `ToolResult` behind it, its outcome is unknown.

    `consumed` are ids of mail by which it was allowed to.
    """

    kind: Literal["tool_start"] = "tool_start"
    tool_use_id: str
    name: str
    input: dict[str, Any]
    consumed: list[str] = []


def describe_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call on one line: `bash python -m pytest`, `edit_file src/app.py`."""
    shown = [str(arguments[key]) for key in _TELLING if key in arguments]
    most = 1 if name in _LONG_ARGUMENTS else 2
    return " ".join([name, *shown[:most]]).strip().replace("\n", " ")


class ToolResult(_Event):
    """The result of a tool call.

    `seconds` is how long the call took, None if its worker ended first. `created` says that the call made a new file.
    `consumed` are ids of mail that the result already holds and that therefore never enters the conversation. `task`
    is the id of the task that the agent then has in progress.
    """

    kind: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    name: str
    content: str
    is_error: bool = False
    created: bool = False
    seconds: float | None = 0
    consumed: list[str] = []
    task: int | None = None


class Gate(_Event):
    """The plan gate of an assignment opened (`request_id` says by which approval) or was shut."""

    kind: Literal["gate"] = "gate"
    open: bool
    request_id: str | None = None


class Answer(_Event):
    """An assignment ended with an answer, or with `error`. `answers` are the ids of the prompt and mail it answers."""

    kind: Literal["answer"] = "answer"
    assignment: str
    answers: list[str]
    text: str
    result: str | None = None
    error: str | None = None
    code: int = 0


class Sent(_Event):
    """A message of ours is in its recipient's mailbox."""

    kind: Literal["sent"] = "sent"
    message: Message


class Retry(_Event):
    """The API refused; the call is made again at `until`."""

    kind: Literal["retry"] = "retry"
    error: str
    attempt: int
    until: Time


class Cleared(_Event):
    """The results of these tool calls are old, and are left out of the conversation from now on."""

    kind: Literal["cleared"] = "cleared"
    tool_use_ids: list[str]


class Summary(_Event):
    """The conversation was summarised: the text stands for its first `covers` blocks."""

    kind: Literal["summary"] = "summary"
    covers: int
    text: str
    usage: Tokens
    cost_usd: float | None = None


class RunEnded(_Event):
    """The worker ended in order."""

    kind: Literal["run_ended"] = "run_ended"
    code: int
    reason: str


Event = Annotated[
    RunStarted | Intake | Reply | ToolStart | ToolResult | Gate | Answer | Sent | Retry | Cleared | Summary | RunEnded,
    Field(discriminator="kind"),
]
"""One line of a journal."""
