"""One agent: what it should be, and what it is."""

from typing import Annotated, Literal

from pydantic import Field

from crewboard.names import OPERATOR, Name
from crewboard.records.base import Record, Time

State = Literal[
    "starting", "working", "waiting", "retrying", "idle", "paused", "stopping",
    "exited", "crashed", "vanished", "stuck", "looping", "unknown",
]  # fmt: skip

Want = Literal["running", "paused", "stopped", "killed"]


class HireOptions(Record):
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
    flags: HireOptions = HireOptions()
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
    flags: HireOptions = HireOptions()
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


SANDBOX_OFF = "none (unsafe)"
"""`Status.sandbox` of an agent that executes commands without a sandbox."""

_WITHOUT_SANDBOX = frozenset({"none", SANDBOX_OFF})


class Status(Record):
    """`status.json`: an agent's present state, as its worker last wrote it.

    `turn` counts the model calls of the assignment, `repeats` how often the last tool call came with the same input
    and outcome, `last_tool` is that call in a line, `sandbox` its level once that is known. A pid alone is no identity:
    `boot_id` and `start_ticks` (clock ticks since boot) complete it.
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
    sandbox: str = ""
    model: str = ""
    repeats: int = 0
    last_tool: str = ""
    boot_id: str = ""
    start_ticks: int = 0

    @property
    def unsafe(self) -> bool:
        """Return True if no sandbox holds this worker's tools."""
        return self.sandbox in _WITHOUT_SANDBOX


class Cursor(Record):
    """`cursor.json`: how far an agent has read its mailbox (bytes), a projection of its journal."""

    offset: int = 0
    damaged: int = 0
