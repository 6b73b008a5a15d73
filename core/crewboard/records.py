"""Every file and every message of a team, as a model; nothing else knows the names of their fields.

Models keep fields that they do not know, so that a file written by a later version survives being replaced by this
one. Times are epoch seconds, sizes are bytes, paths are relative to the team directory.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from crewboard.names import LEAD, OPERATOR, Name

MAX_MESSAGE_ID = 64
REQUEST_ID_RULE = r"^[a-z0-9][a-z0-9_-]{0,63}$"
MAX_DEPTH = 32
"""Deepest nesting of metadata or payload that is accepted; deeper is a trap for readers, not data."""

Time = Annotated[float, Field(ge=0, le=253_402_300_799, allow_inf_nan=False)]
"""Epoch seconds up to the year 9999, which every calendar function can show."""

State = Literal[
    "starting", "working", "waiting", "retrying", "idle", "paused", "stopping",
    "exited", "crashed", "vanished", "stuck", "looping", "unknown",
]  # fmt: skip
Want = Literal["running", "paused", "stopped", "killed"]
TaskStatus = Literal["pending", "in_progress", "completed", "failed", "cancelled"]
RequestType = Literal["plan_approval", "shutdown", "permission", "question"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "cancelled"]


class Record(BaseModel):
    """Base of everything that is kept in a team directory."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, serialize_by_alias=True)


def _depth(value: JsonValue, limit: int = MAX_DEPTH) -> int:
    if limit < 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max((_depth(child, limit - 1) for child in children), default=0)


# ---------------------------------------------------------------------------------------------------- messages

STARTS_WORK = frozenset({"message", "broadcast", "interrupt", "result", "error", "task_assignment"})
"""Types that enter the conversation and start work, for everybody."""

JOINS_NEXT_TURN = frozenset({"idle_notification", "teammate_terminated"})
"""Types that enter with the next turn but start none."""


class Message(Record):
    """One line of a mailbox (contract § 3)."""

    v: Literal[1] = 1
    id: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_ID)]
    ts: Time
    from_: Name = Field(alias="from")
    to: Name
    type: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
    content: str
    metadata: dict[str, JsonValue] = {}

    @field_validator("metadata")
    @classmethod
    def _not_too_deep(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        _depth(value)
        return value

    @property
    def wants_plan(self) -> bool:
        """Whether its sender, who must be in charge, wants a plan before anything is written or run."""
        return self.metadata.get("plan_required") is True and self.from_ in (OPERATOR, LEAD)

    @property
    def starts_work(self) -> bool:
        """Whether it enters the conversation and, if its reader is free, starts an assignment."""
        return self.type in STARTS_WORK or (self.type == "plan_approval_request" and self.to == LEAD)

    @property
    def enters(self) -> bool:
        """Whether it enters the conversation at all."""
        return self.starts_work or self.type in JOINS_NEXT_TURN


# ------------------------------------------------------------------------------------------------ config.json


class Member(Record):
    """One agent on the roster."""

    name: Name
    type: str
    role: str = ""
    model: str = ""
    added_at: Time = 0
    report_to: Name = LEAD
    plan_required: bool = False
    autoclaim: bool = False


class Rule(Record):
    """A standing yes: `agent` may use `tool` within `scope` without asking (`--ask`).

    For bash the scope is a program: any single command that starts it. For files it is a folder of the workspace.
    """

    id: str
    agent: Name
    tool: str
    scope: str
    at: Time = 0


class Config(Record):
    """`config.json`: who is on the team, and its settings."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: Name
    description: str = ""
    created_at: Time = 0
    rev: int = 0
    plan_approver: Literal["operator", "lead"] = "operator"
    members: list[Member] = []
    rules: list[Rule] = []
    budget: str | None = None

    def member(self, name: str) -> Member | None:
        """The member called `name`, if there is one."""
        return next((member for member in self.members if member.name == name), None)


# -------------------------------------------------------------------------------------------- agents/<name>/...


class Flags(Record):
    """How an agent was hired; what `spawn` was told on the command line."""

    once: bool = False
    plan: bool = False
    ask: bool = False
    autoclaim: bool = False
    budget: str | None = None
    network: bool = False
    unsafe_no_sandbox: bool = False
    max_turns: Annotated[int, Field(ge=1)] = 100
    task: int | None = None


class Profile(Record):
    """A hiring that a person keeps to fill the form with again: a file of their own, of no team. It holds no key."""

    type: str
    role: str = ""
    prompt: str = ""
    model: str | None = None
    flags: Flags = Flags()
    foreground: bool = False


class Definition(Record):
    """A type that the project brought itself, as it was when the agent was hired."""

    tools: list[str]
    model: str
    summary: str
    prompt: str


class Spec(Record):
    """`spec.json`: what an agent was hired for, and what it should do.

    `run` is the run that is wanted. A `prompt_id` that the journal does not know means a fresh conversation. The
    mailbox is read from byte `mail_from` on: a lead starts at its end. While `foreground`, whoever hired it takes the
    answer to the prompt itself, and no mail is sent of it.
    """

    prompt: str
    prompt_id: str
    type: str
    role: str = ""
    model: str = ""
    flags: Flags = Flags()
    run: Annotated[int, Field(ge=1)] = 1
    want: Want = "running"
    mail_from: int = 0
    foreground: bool = False
    definition: Definition | None = None
    by: Name = OPERATOR
    at: Time = 0


class Tokens(Record):
    """Tokens that an agent has used, over all of its runs, by the kinds that the API bills."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
        )


class Context(Record):
    """How full the model's window is, in tokens."""

    used: int = 0
    limit: int = 0


class Status(Record):
    """`status.json`: an agent's present state, as its worker last wrote it.

    `turn` counts the model calls of the assignment, `repeats` how often the last tool call came with the same input
    and outcome, `last_tool` is that call in a line. A pid alone is no identity: `boot_id` and `start_ticks` (clock
    ticks since boot) complete it.
    """

    run: int
    pid: int
    state: State
    since: Time
    doing: str = ""
    turn: int = 0
    waiting_for: str | None = None
    task: int | None = None
    tokens: Tokens = Tokens()
    context: Context = Context()
    cost_usd: float | None = None
    last_error: str | None = None
    retry_at: Time | None = None
    deadline: Time | None = None
    beat: Time = 0
    sandbox: str = "none"
    model: str = ""
    repeats: int = 0
    last_tool: str = ""
    boot_id: str = ""
    start_ticks: int = 0


class Exit(Record):
    """`exit.json`: how a run ended.

    `reason` is one of the words of `EXIT_REASONS`. `buried` says that the rest of the team was told.
    """

    run: int
    code: int | None = None
    signal: int | None = None
    reason: str = ""
    at: Time = 0
    buried: bool = False


EXIT_REASONS = {
    "finished": "done with what it was hired for",
    "shutdown": "agreed to shut down",
    "killed": "ended by the operator",
    "turn_limit": "reached its turn limit",
    "budget": "reached its budget",
    "failed": "could not go on",
    "api_unavailable": "the API stayed unavailable",
    "credentials": "the API refused its credentials",
    "no_sandbox": "nothing here can hold it in",
    "internal": "an error in crewboard",
    "storage": "the disk refused",
    "terminated": "told to end by a signal",
    "died": "ended unexpectedly",
    "reboot": "the machine went down",
}
"""Why a run ended, as `exit.json` says it and as a person reads it."""

ASKED_FOR = frozenset({"finished", "shutdown", "killed", "turn_limit", "budget"})
"""Reasons that are an orderly end whatever the exit code says: somebody asked, or a limit ended it."""


def describe_exit(record: Exit) -> str:
    """How a run ended, in words: `killed by SIGKILL`, `exit 1: could not go on`."""
    words = EXIT_REASONS.get(record.reason, record.reason)
    if record.signal and record.reason not in ASKED_FOR:
        return f"killed by {signal_name(record.signal)}"
    if record.code and record.reason not in ASKED_FOR:
        return f"exit {record.code}: {words}"
    return words


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    import signal  # the name alone is needed, and seldom

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Cursor(Record):
    """`cursor.json`: how far an agent has read its mailbox (bytes), a projection of its journal."""

    offset: int = 0
    damaged: int = 0


class Lease(Record):
    """What the holder of a lease writes into it: which process it is."""

    pid: int
    run: int = 0
    boot_id: str = ""
    start_ticks: int = 0


class Supervisor(Record):
    """What `supervisor.lock` says; `model` is the embedded model's base URL while it is up."""

    pid: int
    socket: str = ""
    boot_id: str = ""
    start_ticks: int = 0


class ModelServerInfo(Record):
    """What `model.lock` says: who serves the embedded model to this team, and its base URL."""

    pid: int
    url: str


# --------------------------------------------------------------------------------------------- tasks, requests


class Task(Record):
    """`tasks/<id>.json`."""

    id: Annotated[int, Field(ge=1)]
    subject: str
    description: str = ""
    status: TaskStatus = "pending"
    owner: Name | None = None
    last_owner: Name | None = None
    blocked_by: list[int] = []
    required_type: str | None = None
    created_at: Time = 0
    updated_at: Time = 0
    rev: int = 0


class Request(Record):
    """`requests/<id>.json`: a question that waits for an answer.

    `edited` is the plan as its approver rewrote it; it replaces the one in the payload.
    """

    id: Annotated[str, Field(pattern=REQUEST_ID_RULE)]
    type: RequestType
    from_: Name = Field(alias="from")
    to: Name
    status: RequestStatus = "pending"
    payload: dict[str, JsonValue] = {}
    sha256: str = ""
    supersedes: str | None = None
    created_at: Time = 0
    decided_at: Time | None = None
    decided_by: Name | None = None
    feedback: str | None = None
    edited: str | None = None
    rev: int = 0

    @field_validator("payload")
    @classmethod
    def _not_too_deep(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        _depth(value)
        return value


def payload_sha256(payload: dict[str, JsonValue]) -> str:
    """The hash that binds an answer to what its giver saw: SHA-256 of the payload as canonical JSON."""
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Cooldown(Record):
    """`cooldown.json`: until when nobody of the team calls the API, because it asked for that."""

    until: Time = 0
    by: Name = OPERATOR
    error: str = ""


class OperatorState(Record):
    """`operator.json`: what the operator has read (bytes, by mailbox) and acknowledged (run, by agent)."""

    read: dict[str, int] = {}
    acknowledged: dict[str, int] = {}
    rev: int = 0


# ------------------------------------------------------------------------------------------------ journal.jsonl


class _Event(Record):
    ts: Time
    run: int = 0


class RunStarted(_Event):
    """A worker has the lease and begins. `fresh` starts a new conversation."""

    kind: Literal["run_started"] = "run_started"
    pid: int
    type: str
    model: str
    fresh: bool
    prompt_id: str
    mail_from: int = 0
    boot_id: str = ""
    start_ticks: int = 0


class Intake(_Event):
    """Mail was picked up: the commit point of reading.

    `messages` are all that lay between the old and the new `cursor`; `entered` names those, of these or of earlier
    ones, that join the conversation now. `assignment` is the id of the assignment that begins with it, if one does.
    `prompt` is the hire prompt, with the first intake of a fresh conversation. `notices` are the system's own words;
    they may tell of shutdown requests (`shutdowns`, ids), remind of an unfinished task (`reminds`, its id), begin one
    that the agent claimed by itself (`claimed`) or warn that a budget is nearly used up (`warned`).
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
    claimed: int | None = None
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
    """A tool call begins; without a `ToolResult` behind it, its outcome is unknown."""

    kind: Literal["tool_start"] = "tool_start"
    tool_use_id: str
    name: str
    input: dict[str, Any]


class ToolResult(_Event):
    """What a tool call gave; `seconds` is how long it took.

    `consumed` are ids of mail that the result already holds, and that therefore never enters the conversation.
    """

    kind: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    name: str
    content: str
    is_error: bool = False
    seconds: float = 0
    consumed: list[str] = []


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
