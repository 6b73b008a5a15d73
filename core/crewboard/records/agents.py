"""Records of one agent: its desired state (spec), its observed state (status, cursor), and the parts of both."""

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
    """The options an agent was hired with, as given to `spawn`. With `strict_plan`, `plan` is set as well.

    - Without an `effort` or `thinking`, those of the agent's type are used.
    - `web` offers the API's own tools for the web, on `allowed_domains` only if there are any.
    - `window` and `max_reply` are how many tokens the model takes in all and may write in one reply, for a server that
      does not say.
    - `base` is the commit, branch or tag at which a new worktree begins; None is the commit that is checked out.
    - On a team with hosts, the agent runs on `host`, or on any host that has all labels in `needs`. Its worktree begins
      with the newest state of the worktree of the agent `start_from`.
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
    """Saved values of the hire form, without an API key. It is a file of the user, not of a team.

    `engine` is the name of an engine, or `acp:COMMAND`. `foreground` says that the hirer waits for the result.
    """

    type: str
    role: str = ""
    prompt: str = ""
    model: str | None = None
    engine: str | None = None
    flags: HireOptions = field(default_factory=HireOptions)
    foreground: bool = False


class ToolPattern(Record):
    """A pattern of calls of one tool: of commands for `bash`, of paths for a file tool.

    The tool `files` stands for all tools that write files.
    """

    tool: str
    pattern: str


class Definition(Record):
    """The copy of a custom agent type in a spec, as it was when the agent was hired.

    A tool with patterns in `only` may be used only for calls that match one of them; calls that match a pattern in
    `denied` are refused. With `ask_commands`, the operator is asked before each command. `skills` are loaded before the
    conversation. `mcp` are patterns of tools of MCP servers; `mcp_servers` are the servers that the type's file
    defines.
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

    `objects` is the folder of objects that its repository borrows, relative to the team's root; empty if the repository
    has all objects. `folder` is the team's root relative to the top of the repository; empty if it is the top.
    `carried` says that its snapshots are carried through the store to other hosts and to the user, because the team has
    hosts.
    """

    branch: str
    base: str
    objects: str = ""
    folder: str = ""
    carried: bool = False


class Engine(Record):
    """The engine that does an agent's work in place of the model.

    `name` is that of a known engine, else `acp`. If `command` is empty, the host of the agent finds the program. The
    engine works with its `own_tools`, or else with crewboard's.
    """

    name: str
    command: list[str]
    own_tools: bool = True


class Spec(Record):
    """`spec.json`: what an agent was hired for, and its desired state.

    - `run` is the desired run, and `want` the desired state. `at` is when a run was last asked for.
    - `prompt_id` identifies the hire prompt. If the journal does not contain it, a new conversation begins.
    - The mailbox is read from byte `mail_from` on: a new lead starts at the end of its mailbox.
    - If `foreground`, the process that hired the agent waits for the result, and no result mail is sent for the prompt.
    - `definition` is the copy of a custom type; None for a built-in type.
    - Without a `worktree`, the agent works in the team's root.
    - With an `engine`, that program does the work, and `model` is the model that it was asked to use, or its name.
    - An explorer has a `parent`, the agent for which it searches. It works in the same folder, which is that of
      `parent_worktree` if the parent has a worktree, and ends with the parent.
    - An `incomplete` spec was damaged, and the journal does not say what the agent was hired with, so it may only end.
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
    incomplete: bool = False

    @property
    def engine_name(self) -> str | None:
        """Return the name of the agent's engine; None if it has none."""
        return self.engine.name if self.engine is not None else None

    @property
    def has_own_tools(self) -> bool:
        """Return True if the agent has an engine that works with tools of its own."""
        return self.engine is not None and self.engine.own_tools

    def checkout(self, name: str) -> tuple[str, Worktree | None]:
        """Return the name of the agent whose checkout the agent `name` works in, and its worktree.

        The worktree is None if that agent works in the team's root.
        """
        return (name, self.worktree) if self.parent is None else (self.parent, self.parent_worktree)


class Tokens(Record):
    """Tokens that one reply or all runs of an agent used, by the kinds that the API bills, and uses of the web.

    `cache_write_1h` is the part of `cache_write` that the cache keeps for an hour. `estimated` is the part of all
    tokens that was estimated from the length of texts, because the server did not count them. `untold` is the number of
    turns of engines that told no tokens.
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
        """Return the tokens of all kinds that the API bills."""
        return self.input + self.output + self.cache_read + self.cache_write

    @property
    def web_uses(self) -> int:
        """Return the number of searches and of fetched pages."""
        return self.web_searches + self.web_fetches

    @property
    def prompt(self) -> int:
        """Return the tokens of the prompt of one reply.

        After each use of the web the API asks the model again and bills the whole prompt again. For such a reply, the
        number is the average over these prompts.
        """
        return (self.input + self.cache_read + self.cache_write) // (1 + self.web_uses)

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(**{kind: getattr(self, kind) + getattr(other, kind) for kind in self.__struct_fields__})


TOLD_REPEATS = 4
HELD_REPEATS = 8
"""Numbers of equal calls with an equal outcome in a row: after the first number the agent is told, after the second it
makes no more calls until it gets mail.
"""


class Context(Record):
    """How full the model's context window is, in tokens. `assumed`: neither a server nor the user stated its limit."""

    used: int = 0
    limit: int = 0
    assumed: bool = False


class Deviations(Record):
    """The calls of an assignment that its approved plan does not name; `count` is their number.

    `calls` are the newest of them, one line each; `plan` is the id of the request in which the plan was approved.
    """

    plan: str
    count: int = 0
    calls: list[str] = []


class TodoList(Record):
    """The progress of an agent with its todo: steps that are `done`, steps in all, and the `current` one."""

    done: int = 0
    total: int = 0
    current: str = ""


class Work(Record):
    """The files that file tools changed in an agent's last assignment. Changes by commands are not known.

    `files` are the newest of these files, by path from the agent's workspace, each with the time of its first change;
    `newest` has the id (`FileKept.id`) of the last change of each that can be reversed. `planned` are the files that
    the approved plan names, since `planned_at`. `ended` is when the assignment ended; None while it is open. A limit
    does not end it.
    """

    files: dict[str, Time] = {}
    newest: dict[str, str] = {}
    planned: list[str] = []
    planned_at: Time = 0
    ended: Time | None = None


StepVerdict = Literal["do", "hold", "not"]
"""The approver's decision about a step of a plan: approved, held or refused."""


class VerdictWords(Struct, frozen=True):
    """The words for a verdict: for a step with it, for the key that gives it, and before numbers of steps in terms."""

    decided: str
    key: str
    in_terms: str


VERDICTS: dict[StepVerdict, VerdictWords] = {
    "do": VerdictWords("do", "do", "does"),
    "hold": VerdictWords("held", "hold", "holds"),
    "not": VerdictWords("not this one", "not", "not"),
}
"""The words of each verdict, in the order in which a key changes from one to the next."""


def next_verdict(verdict: StepVerdict) -> StepVerdict:
    """Return the verdict that comes after `verdict` when the key is pressed; the first comes after the last."""
    order = [*VERDICTS]
    return order[(order.index(verdict) + 1) % len(order)]


class StepNames(Record):
    """The `files` and `commands` that one step of a plan names; in `Terms.denied`, those that are refused."""

    step: int
    files: list[str] = []
    commands: list[str] = []

    def __str__(self) -> str:
        return ", ".join([*self.files, *self.commands])


class Terms(Record):
    """The terms with which a plan is approved. They hold until the result of the assignment.

    - If `ask`, each write and each command is asked for.
    - `tools` are the tools of its type that the agent keeps; None keeps all.
    - With `network` its commands reach the network.
    - `budget` is what the agent, and agents that it hires, may use from the approval on.
    - Steps in `hold` are not approved yet, and may be submitted again; steps in `refused` may not. Both are numbers of
      steps in the plan. The agent is told so, and what is in `denied` is refused to it.
    - Steps in `released` were held first, and were approved later.
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
        """Return True if these terms change nothing and leave out no step."""
        others = self.ask or self.network or self.hold or self.refused
        return not others and self.tools is None and self.budget is None

    @property
    def left_out(self) -> dict[StepVerdict, list[int]]:
        """Return the steps that are not approved, by the verdict about them."""
        return {"hold": self.hold, "not": self.refused}

    def verdict(self, step: int) -> StepVerdict:
        """Return the verdict about a step."""
        return next((verdict for verdict, steps in self.left_out.items() if step in steps), "do")

    def explain_steps(self, then: str) -> str:
        """Return what the model is told about steps that are not approved.

        `then` is the sentence for what to do when the others are done.
        """
        left_out = ", ".join(map(str, sorted([*self.hold, *self.refused])))
        text = f"Approved are all steps but {left_out}. Do not begin {left_out}, nor anything that is only for it."
        if self.hold:
            text += f" Held for now: {', '.join(map(str, self.hold))}. When the other steps are done, {then}."
        if self.refused:
            text += f" Not to be done at all: {', '.join(map(str, self.refused))}. Do not submit it again."
        return text

    @property
    def not_enforced(self) -> list[int]:
        """Return the steps that are not approved and for which no call is refused: the agent is only told so."""
        enforced = {each.step for each in self.denied}
        return [number for number in sorted([*self.hold, *self.refused]) if number not in enforced]


class TermsInForce(Record):
    """The terms `given` to an assignment, the id of the plan's `request`, and what was used before the approval.

    `used_tokens` and `used_usd` include what agents hired by the agent had used.
    """

    given: Terms = field(default_factory=Terms)
    request: str = ""
    used_tokens: int = 0
    used_usd: float = 0


class McpState(Record):
    """An MCP server of an agent, with the `tools` that it offers, or the `problem` that keeps it from being used.

    A server is `new` until the user accepts it. `left_out` says which of its tools cannot be used and why. `file` is
    the file that names it. `since` is when the problem was found.
    """

    name: str
    file: str = ""
    tools: list[str] = []
    problem: str | None = None
    new: bool = False
    left_out: list[str] = []
    since: Time = 0


SANDBOX_OFF = "none (unsafe)"
"""The `Status.sandbox` of an agent that runs commands without a sandbox because the user allowed it."""

_WITHOUT_SANDBOX = frozenset({"none", SANDBOX_OFF})


class Status(Record):
    """`status.json`: an agent's state, as its worker last wrote it.

    - `state` began at `since`; `doing` describes it in words. `beat` is when the worker last reported it.
    - `turn` counts the model calls of the assignment. `repeats` is how often in a row the last tool call came with the
      same input and outcome; `last_tool` is that call in one line.
    - `boot_id` and `start_ticks` (clock ticks since boot) identify the process together with `pid`, because pids are
      reused.
    - `sandbox` is the sandbox level, once it is known. `private_bytes` is the memory that the worker shares with no
      other process, 0 if that is unknown. `host` is the host that it runs on, empty on a team without hosts.
    - `deviations` is None while the approved plan names every call, or if there is no plan.
    - `todo` is None if the agent listed no steps in this assignment. `terms` are those of its approved plan.
    - `failed` is the exit code of the last assignment if it ended with an error, at `failed_at`, and no other one has
      begun. `refused_by` is the model that refused that assignment.
    - `unreported` is a task in progress whose outcome the idle agent did not report although it was reminded.
    - `retry_at` is when a failed model call is repeated. `outage_since` is when the API became unavailable; it is set
      while the agent waits for the API.
    - `deadline` is when the present state has lasted too long; `deadline_monotonic` is that time on the monotonic clock
      of the boot, because the wall clock may be changed.
    - `effort` and `thinking` are what requests ask for; None leaves them to the model.
    - `engine_version` is the version that the engine stated at its start, `engine_model` the model of its last turn;
      both are empty without an engine. With `offline`, the offline model answers in place of `model`.
    - `setup_error` says what the agent's checkout lacks: the team's `worktree_setup` failed, or an entry of
      `worktree_copy` is missing. `mcp` are the MCP servers that the agent has, or should have.
    - `paused_at` and `unpaused_at` are the beginning and end of the last pause of this run that is over.
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
        """Return True if the worker's tools run without a sandbox."""
        return self.sandbox in _WITHOUT_SANDBOX

    @property
    def is_at_work(self) -> bool:
        """Return True if the agent was at work when this status was written.

        It was if an assignment was in progress, or if the run was about to look for one.
        """
        return self.turn > 0 or self.state not in ("idle", "paused", "stopping")


class Cursor(Record):
    """`cursor.json`: how many bytes of its mailbox an agent has read, and how many damaged lines these contained.

    `prompt_id` is the hire prompt, once it is in the conversation. It is a projection of the agent's journal, and tells
    what not to do again if that is lost.
    """

    offset: int = 0
    damaged: int = 0
    prompt_id: str = ""
