"""Records of one agent: desired state (spec), observed state (status, cursor)."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from crewboard.names import OPERATOR
from crewboard.records.base import JsonValue, Name, Record, Time

State = Literal[
    "starting", "working", "waiting", "retrying", "idle", "paused", "stopping",
    "queued", "exited", "crashed", "vanished", "stuck", "looping", "unknown",
]  # fmt: skip

Want = Literal["running", "paused", "stopped", "killed"]

Effort = Literal["low", "medium", "high", "xhigh", "max"]

Thinking = Literal["adaptive", "off"]


class HireOptions(Record):
    """The options an agent was hired with, as given to `spawn`. A strict plan is a required plan.

    Without an `effort` or `thinking`, those of the agent's type are used. `web` offers the API's own tools for the web,
    on `allowed_domains` only if there are any. `window` and `max_reply` are how many tokens the model takes in all and
    may write in one reply, for a server that does not say.
    `base` is the commit, branch or tag at which a new worktree begins; None is the commit that is checked out.
    On a team with hosts, it runs on `host`, or on any one that has all labels in `needs`; its work begins with the
    newest state of that of the agent `start_from`.
    """

    once: bool = False
    plan: bool = False
    strict_plan: bool = False
    ask: bool = False
    autoclaim: bool = False
    budget: str | None = None
    network: bool = False
    web: bool = False
    allowed_domains: list[str] = []
    unsafe_no_sandbox: bool = False
    allow_hardlinks: bool = False
    max_turns: Annotated[int, Meta(ge=1)] = 100
    restart: bool = False
    max_memory: Annotated[int, Meta(ge=1)] | None = None
    worktree: bool = False
    base: str | None = None
    effort: Effort | None = None
    thinking: Thinking | None = None
    window: Annotated[int, Meta(ge=1)] | None = None
    max_reply: Annotated[int, Meta(ge=1)] | None = None
    task: int | None = None
    host: Name | None = None
    needs: list[Name] = []
    start_from: Name | None = None

    def __post_init__(self) -> None:
        """Set `plan` if `strict_plan` is set."""
        self.plan = self.plan or self.strict_plan


class Profile(Record):
    """Saved values of the hire form: a file of the user, not of a team. It holds no API key.

    `engine` is as a hire names it.
    """

    type: str
    role: str = ""
    prompt: str = ""
    model: str | None = None
    engine: str | None = None
    flags: HireOptions = field(default_factory=HireOptions)
    foreground: bool = False


class ToolPattern(Record):
    """Calls of a tool: commands of `bash`, or paths of a file tool; `files` stands for all tools that write."""

    tool: str
    pattern: str


class Definition(Record):
    """A custom agent type as it was when the agent was hired.

    A tool with patterns in `only` may be used for these alone, and for no call that `denied` is about. With
    `ask_commands`, the operator is asked before each command. `skills` are loaded before the conversation.
    `mcp` are patterns of tools of MCP servers, and `mcp_servers` the servers that its file defines.
    """

    tools: list[str]
    model: str
    summary: str
    prompt: str
    effort: Effort | None = None
    thinking: Thinking | None = None
    only: list[ToolPattern] = []
    denied: list[ToolPattern] = []
    ask_commands: bool = False
    skills: list[str] = []
    mcp: list[str] = []
    mcp_servers: dict[str, JsonValue] = {}


class Undone(Record):
    """`undone.json`: the ids of the changes of file tools that were reversed (`FileKept.id`)."""

    changes: list[str] = []


class Worktree(Record):
    """An agent's own checkout: the branch that the agent works on, and the commit at which it began.

    `objects` is the folder of objects that its repository borrows, relative to the team's root; empty if it has all.
    `folder` is the team's root relative to the top of the repository, where the agent works; empty if it is the top.
    It is `carried` through the store, from host to host and to the user, if the team has hosts.
    """

    branch: str
    base: str
    objects: str = ""
    folder: str = ""
    carried: bool = False


class Engine(Record):
    """The program that does an agent's work in place of the model.

    `name` is that in the table of engines, `acp` if it is not there. Without a `command` its host finds one. It works
    with its `own_tools`, or else with crewboard's.
    """

    name: str
    command: list[str]
    own_tools: bool = True


class Spec(Record):
    """`spec.json`: what an agent was hired for, and its desired state.

    `run` is the desired run. A `prompt_id` that the journal does not contain means a fresh conversation. The mailbox is
    read from byte `mail_from` on: a new lead starts at its end. If `foreground`, the process that hired the agent waits
    for the answer to the prompt itself, and no result mail is sent for it. Without a `worktree`, the agent works in the
    team's root.

    With an `engine`, that program does the work, and `model` is what it was asked to use, or its name.

    An explorer has a `parent`, for which it searches: it works in that one's folder, the worktree `parent_worktree` if
    that has one, and ends with it.
    """

    prompt: str
    prompt_id: str
    type: str
    role: str = ""
    model: str = ""
    flags: HireOptions = field(default_factory=HireOptions)
    run: Annotated[int, Meta(ge=1)] = 1
    want: Want = "running"
    mail_from: int = 0
    foreground: bool = False
    definition: Definition | None = None
    worktree: Worktree | None = None
    by: Name = OPERATOR
    at: Time = 0
    parent: Name | None = None
    parent_worktree: Worktree | None = None
    engine: Engine | None = None

    @property
    def engine_name(self) -> str | None:
        """Return the name of its engine; None if crewboard's own model does the work."""
        return self.engine.name if self.engine is not None else None

    @property
    def has_own_tools(self) -> bool:
        """Return True if an engine does its work, and with tools of its own."""
        return self.engine is not None and self.engine.own_tools

    def checkout(self, name: str) -> tuple[str, Worktree | None]:
        """Return the worktree in which the agent `name` works, None for the team's root, and whose that is."""
        return (name, self.worktree) if self.parent is None else (self.parent, self.parent_worktree)


class Tokens(Record):
    """Tokens that an agent used in all of its runs, by the kinds that the API bills, and its uses of the web.

    `cache_write_1h` are those of `cache_write` that the cache keeps for an hour. `estimated` of all were estimated from
    the length of texts, because a server counted none of the prompt or of the reply. `untold` counts the turns of
    engines that told no tokens.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    web_searches: int = 0
    web_fetches: int = 0
    estimated: int = 0
    cache_write_1h: int = 0
    untold: int = 0

    @property
    def total(self) -> int:
        """Return the tokens of all kinds."""
        return self.input + self.output + self.cache_read + self.cache_write

    @property
    def web_uses(self) -> int:
        """Return how often the API searched, and fetched a page."""
        return self.web_searches + self.web_fetches

    @property
    def prompt(self) -> int:
        """Return the tokens of the prompt of one reply.

        After each use of the web the API asks the model again and bills the whole prompt again, so that is an average.
        """
        return (self.input + self.cache_read + self.cache_write) // (1 + self.web_uses)

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(**{kind: getattr(self, kind) + getattr(other, kind) for kind in self.__struct_fields__})


TOLD_REPEATS = 4
HELD_REPEATS = 8
"""Equal calls with an equal outcome, one after the other, after which an agent is told so, and makes no more calls
until it gets mail.
"""


class Context(Record):
    """The fill of the model's context window, in tokens. `assumed`: neither a server nor the user told its limit."""

    used: int = 0
    limit: int = 0
    assumed: bool = False


class Deviations(Record):
    """The calls of an assignment that its approved plan does not name.

    `calls` are the newest of them, one line each; `plan` is the id of the request in which the plan was approved.
    """

    plan: str
    count: int = 0
    calls: list[str] = []


class TodoList(Record):
    """The progress with the steps that an agent listed for its last assignment; `current` is the one in progress."""

    done: int = 0
    total: int = 0
    current: str = ""


class Work(Record):
    """The changes by file tools in an agent's last assignment; commands are not known to have changed a file.

    `files` are the newest of those files, by path from the agent's workspace, each with the time of its first change;
    `newest` has the ids of the last changes of those that can be reversed (`FileKept.id`). `planned` are the files that
    the approved plan names, since `planned_at`. `ended` is when the assignment ended; None while it is open. A limit
    does not end it.
    """

    files: dict[str, Time] = {}
    newest: dict[str, str] = {}
    planned: list[str] = []
    planned_at: Time = 0
    ended: Time | None = None


StepVerdict = Literal["do", "hold", "not"]
"""The decision about a step of a plan."""


class VerdictWords(Struct, frozen=True):
    """The words of a verdict: of a step that has it, of a key that gives it, and before numbers of steps in terms."""

    decided: str
    key: str
    in_terms: str


VERDICTS: dict[StepVerdict, VerdictWords] = {
    "do": VerdictWords("do", "do", "does"),
    "hold": VerdictWords("held", "hold", "holds"),
    "not": VerdictWords("not this one", "not", "not"),
}
"""The verdicts in the order in which a key gives them."""


def next_verdict(verdict: StepVerdict) -> StepVerdict:
    """Return the verdict that a key gives after this one."""
    order = [*VERDICTS]
    return order[(order.index(verdict) + 1) % len(order)]


class StepNames(Record):
    """The `files` and `commands` that only a step which is not approved names: they are refused to the agent."""

    step: int
    files: list[str] = []
    commands: list[str] = []

    def __str__(self) -> str:
        return ", ".join([*self.files, *self.commands])


class Terms(Record):
    """The terms with which a plan is approved. They hold until the result of the assignment.

    If `ask`, each write and each command is asked for. Of the tools of its type the agent keeps those in `tools`; None
    keeps all. With `network` its commands reach the network. `budget` is what it, and agents that it hires, may use
    from the approval on. Not approved are the steps in `hold`, which it may submit again, and those in `refused`, by
    their numbers in the plan. It is told so, and what is in `denied` is refused to it. Steps in `released` were held,
    and are approved since.
    """

    ask: bool = False
    tools: list[str] | None = None
    network: bool = False
    budget: str | None = None
    hold: list[int] = []
    refused: list[int] = []
    denied: list[StepNames] = []
    released: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Return True if these terms change nothing."""
        others = self.ask or self.network or self.hold or self.refused
        return not others and self.tools is None and self.budget is None

    @property
    def left_out(self) -> dict[StepVerdict, list[int]]:
        """Return the steps that are not approved, by what was decided about them."""
        return {"hold": self.hold, "not": self.refused}

    def verdict(self, step: int) -> StepVerdict:
        """Return what was decided about a step."""
        return next((verdict for verdict, steps in self.left_out.items() if step in steps), "do")

    def explain_steps(self, then: str) -> str:
        """Return what the model is told of steps that are not approved; `then` is what to do when others are done."""
        left_out = ", ".join(map(str, sorted([*self.hold, *self.refused])))
        text = f"Approved are all steps but {left_out}. Do not begin {left_out}, nor anything that is only for it."
        if self.hold:
            text += f" Held for now: {', '.join(map(str, self.hold))}. When the other steps are done, {then}."
        if self.refused:
            text += f" Not to be done at all: {', '.join(map(str, self.refused))}. Do not submit it again."
        return text

    @property
    def not_enforced(self) -> list[int]:
        """Return the steps that are not approved, and for which nothing is refused: the agent is told to leave them."""
        enforced = {each.step for each in self.denied}
        return [number for number in sorted([*self.hold, *self.refused]) if number not in enforced]


class TermsInForce(Record):
    """The terms `given` to an assignment, the id of the `request` that they answered, and what was used before them.

    What is used counts agents that this one hired, too.
    """

    given: Terms = field(default_factory=Terms)
    request: str = ""
    used_tokens: int = 0
    used_usd: float = 0


class McpState(Record):
    """An MCP server of an agent, with the `tools` that it offers, or the `problem` that keeps it from being used.

    A server is `new` until the user accepts it. `left_out` says which of its tools cannot be used and why, `file` is
    the one that names it. Its problem is known since `since`.
    """

    name: str
    file: str = ""
    tools: list[str] = []
    problem: str | None = None
    new: bool = False
    left_out: list[str] = []
    since: Time = 0


SANDBOX_OFF = "none (unsafe)"
"""`Status.sandbox` of an agent that executes commands without a sandbox."""

_WITHOUT_SANDBOX = frozenset({"none", SANDBOX_OFF})


class Status(Record):
    """`status.json`: an agent's state, as its worker last wrote it.

    `turn` counts the model calls of the assignment, `repeats` how often the last tool call came with the same input
    and outcome. `last_tool` is that call in one line, `sandbox` the sandbox level once it is known. A pid alone does
    not identify a process, because pids are reused: `boot_id` and `start_ticks` (clock ticks since boot) complete it.
    `deviations` is None while the approved plan names every call, or there is none.
    `todo` is None if the agent listed no steps in this assignment. `terms` are those of its approved plan.
    `failed` is the exit code of the last assignment if it ended with an error at `failed_at` and none began since;
    `refused_by` is the model that refused it.
    `unreported` is the task that it rests with: it was reminded, and did not report the outcome.
    `outage_since` is when the API became unavailable; set while the agent waits for it.
    `effort` and `thinking` are what its requests ask for; None leaves them to the model.
    `engine_version` is what its engine said at its start, `engine_model` the model of its last turn; empty without one.
    With `offline`, the offline model answers in the place of `model`.
    `setup_error` says what its checkout lacks: the team's `worktree_setup` failed, or an entry of `worktree_copy` is
    missing.
    `mcp` are the MCP servers that the agent has, or should have.
    `deadline_monotonic` is `deadline` on the monotonic clock of that boot, because the wall clock may be changed.
    `host` is the host that it runs on, empty on a team without hosts.
    `private_bytes` is the memory that the worker shares with no other process, 0 if that is unknown.
    `paused_at` and `unpaused_at` are the beginning and end of the last pause of this run that is over.
    """

    run: int
    pid: int
    state: State
    since: Time
    doing: str = ""
    turn: int = 0
    waiting_for: str | None = None
    awaits: Name | None = None
    task: int | None = None
    tokens: Tokens = field(default_factory=Tokens)
    context: Context = field(default_factory=Context)
    cost_usd: float | None = None
    last_error: str | None = None
    setup_error: str | None = None
    mcp: list[McpState] = []
    failed: int | None = None
    failed_at: Time = 0
    refused_by: str | None = None
    unreported: int | None = None
    retry_at: Time | None = None
    outage_since: Time | None = None
    deadline: Time | None = None
    deadline_monotonic: float | None = None
    beat: Time = 0
    sandbox: str = ""
    model: str = ""
    engine_version: str = ""
    engine_model: str = ""
    offline: bool = False
    effort: Effort | None = None
    thinking: Thinking | None = None
    repeats: int = 0
    last_tool: str = ""
    deviations: Deviations | None = None
    todo: TodoList | None = None
    terms: TermsInForce | None = None
    work: Work | None = None
    boot_id: str = ""
    start_ticks: int = 0
    host: str = ""
    private_bytes: int = 0
    paused_at: Time = 0
    unpaused_at: Time = 0

    @property
    def unsafe(self) -> bool:
        """Return True if no sandbox holds this worker's tools."""
        return self.sandbox in _WITHOUT_SANDBOX

    @property
    def is_at_work(self) -> bool:
        """Return True if an assignment was in progress when this was written, or a run was about to look for one."""
        return self.turn > 0 or self.state not in ("idle", "paused", "stopping")


class Cursor(Record):
    """`cursor.json`: how far an agent has read its mailbox, in bytes; a projection of its journal."""

    offset: int = 0
    damaged: int = 0
