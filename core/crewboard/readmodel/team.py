"""The whole view of a team as plain data: one fold for the screen and `status --json`, so they cannot disagree."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from crewboard.readmodel.processes import Usage
from crewboard.readmodel.states import DEAD, URGENCY, Evidence, Shown, find_state, show
from crewboard.readmodel.wording import plan_title
from crewboard.records import Context, Exit, Member, Request, Spec, State, Status, Task, Tokens, describe_exit

NeedKind = Literal["death", "plan", "permission", "question", "stuck", "looping", "failed_start"]

NEED_OF_REQUEST: dict[str, NeedKind] = {
    "plan_approval": "plan", "permission": "permission", "question": "question",
}  # fmt: skip
"""What a request that waits for a person's answer is a case of."""


URGENT_KINDS = 5.0
"""Seconds within which several requests count as asked at the same time."""

_LONG_AGO = 12 * 3600.0

_RESTS: frozenset[State] = frozenset({"idle", "paused"})


@dataclass(frozen=True)
class Need:
    """Something that waits for the operator."""

    kind: NeedKind
    agent: str
    since: float
    summary: str
    request_id: str | None = None


class Rest(NamedTuple):
    """A state in which a worker does nothing, and since when."""

    state: State
    since: float

    def in_words(self, now: float) -> str:
        """`was idle since 12:03`, with the date if that was long before `now`."""
        clock = "%H:%M" if now - self.since < _LONG_AGO else "%Y-%m-%d %H:%M"
        return f"was {self.state} since {time.strftime(clock, time.localtime(self.since))}"


@dataclass(frozen=True)
class AgentView:
    """One agent as a reader sees it. Times are epoch seconds; `cpu_percent` is of one core.

    `rested` says of one that is gone in which state its worker last was, and since when, if that was no work.
    """

    name: str
    type: str
    role: str
    model: str
    state: State
    shown: Shown
    reason: str
    since: float
    doing: str
    run: int
    pid: int | None
    alive: bool
    exit: Exit | None
    acknowledged: bool
    unread: int
    turn: int
    task: int | None
    waiting_for: str | None
    retry_at: float | None
    last_error: str | None
    last_tool: str
    tokens: Tokens
    context: Context
    cost_usd: float | None
    usage: Usage | None
    sandbox: str
    damaged: int
    spec: Spec | None
    asks: tuple[Request, ...]
    rested: Rest | None = None
    is_open: bool = False
    failed_start: bool = False
    is_starting: bool = False
    unsafe: bool = False

    @property
    def is_dead(self) -> bool:
        """Return True if the last run ended unexpectedly, whether that was acknowledged or not."""
        return self.state in DEAD


@dataclass(frozen=True)
class SupervisorView:
    """The team's supervisor; `pid` is None when none is alive."""

    pid: int | None
    alive: bool


@dataclass(frozen=True)
class TeamView:
    """Everything of a team at one time, in the roster's order.

    `requests` are those that wait, `asked` are all there ever were, oldest first. `unread` counts by mailbox, in the
    operator's without notices. `budget` is what the whole team may use, as it was set. `damage` counts the files and
    lines that could not be read, by where they stand.
    """

    name: str
    path: Path
    root: Path
    description: str
    plan_approver: str
    model_backend: str
    supervisor: SupervisorView
    agents: tuple[AgentView, ...]
    requests: tuple[Request, ...]
    tasks: tuple[Task, ...]
    needs: tuple[Need, ...]
    asked: tuple[Request, ...] = ()
    unread: dict[str, int] = field(default_factory=dict)
    budget: str | None = None
    damage: dict[str, int] = field(default_factory=dict)
    problem: str | None = None
    now: float = 0

    @property
    def damaged(self) -> int:
        """How many lines and files could not be read."""
        return sum(self.damage.values())

    @property
    def names(self) -> list[str]:
        """The names of the agents, in the order of the roster."""
        return [agent.name for agent in self.agents]

    @property
    def urgent_first(self) -> list[AgentView]:
        """The agents by urgency of what they show; those who need the operator in the order of `needs`.

        Those who are simply at work begin something new every few seconds; by age they would never stand still.
        """
        place = {need.agent: at for at, need in reversed([*enumerate(self.needs)])}
        return sorted(
            self.agents,
            key=lambda agent: (URGENCY.index(agent.shown), place.get(agent.name, len(self.needs)), agent.name),
        )

    def agent(self, name: str) -> AgentView | None:
        """The agent called `name`, if it is on the roster."""
        return next((agent for agent in self.agents if agent.name == name), None)

    def request(self, request_id: str) -> Request | None:
        """The pending request with this id."""
        return next((request for request in self.requests if request.id == request_id), None)


@dataclass(frozen=True)
class AgentFacts:
    """What was read of one agent, before it is judged."""

    member: Member
    held: bool
    spec: Spec | None
    status: Status | None
    exit: Exit | None
    unread: int
    damaged: int
    acknowledged: int
    task: int | None
    asks: tuple[Request, ...]
    usage: Usage | None
    pid_gone: bool = False
    supervised: bool = False
    seen_alive: float | None = None
    seen_gone: float | None = None


def project_agent(facts: AgentFacts, boot_id: str, now: float) -> AgentView:
    """Judge one agent."""
    found = find_state(_evidence(facts, boot_id, now))
    status = facts.status or Status(run=0, pid=0, state="unknown", since=0)
    run = max(status.run, facts.exit.run if facts.exit else 0)
    dead = found.state in DEAD
    acknowledged = not facts.held and 0 < run == facts.acknowledged
    shown = show(found.state, list(facts.asks))
    return AgentView(
        name=facts.member.name,
        type=facts.member.type,
        role=facts.member.role,
        model=status.model or facts.member.model,
        state=found.state,
        shown="done" if dead and acknowledged else shown,
        reason=found.reason,
        since=found.since,
        doing=found.reason if found.state == "unknown" or not facts.held else status.doing,
        run=run or (facts.spec.run if facts.spec else 0),
        pid=status.pid or None,
        alive=facts.held,
        exit=facts.exit if facts.exit and facts.exit.run == run else None,
        acknowledged=acknowledged,
        unread=facts.unread,
        turn=status.turn,
        task=facts.task,
        waiting_for=status.waiting_for if facts.held else None,
        retry_at=status.retry_at if facts.held else None,
        last_error=status.last_error,
        last_tool=status.last_tool,
        tokens=status.tokens,
        context=status.context,
        cost_usd=status.cost_usd,
        usage=facts.usage if facts.held else None,
        sandbox=status.sandbox,
        damaged=facts.damaged,
        spec=facts.spec,
        asks=facts.asks,
        is_open=found.is_open,
        failed_start=found.failed_start,
        is_starting=found.is_starting,
        unsafe=facts.held and status.unsafe,
        rested=Rest(status.state, status.since) if status.run == run and _is_gone_from_rest(facts, status) else None,
    )


def _evidence(facts: AgentFacts, boot_id: str, now: float) -> Evidence:
    return Evidence(
        facts.held, facts.spec, facts.status, facts.exit, boot_id, now,
        pid_gone=facts.pid_gone, supervised=facts.supervised, seen_alive=facts.seen_alive, seen_gone=facts.seen_gone,
    )  # fmt: skip


def _is_gone_from_rest(facts: AgentFacts, status: Status) -> bool:
    return not facts.held and status.state in _RESTS


def find_needs(
    agents: tuple[AgentView, ...], requests: tuple[Request, ...], asked_of: frozenset[str]
) -> tuple[Need, ...]:
    """What waits for the operator, most urgent first. `asked_of` are those for whom only the operator can answer."""
    deaths = [
        Need("death", agent.name, agent.since, _death(agent))
        for agent in agents
        if agent.is_dead and not agent.acknowledged and not agent.is_open
    ]
    asked = [
        Need(NEED_OF_REQUEST[request.type], request.from_, request.created_at, summarise(request), request.id)
        for request in requests
        if request.to in asked_of and request.type in NEED_OF_REQUEST
    ]
    stuck = [Need("stuck", agent.name, agent.since, agent.reason) for agent in agents if agent.state == "stuck"]
    loops = [Need("looping", agent.name, agent.since, agent.reason) for agent in agents if agent.state == "looping"]
    unstarted = [Need("failed_start", agent.name, agent.since, agent.reason) for agent in agents if agent.failed_start]
    deaths, stuck, loops, unstarted = (
        sorted(group, key=lambda need: need.since) for group in (deaths, stuck, loops, unstarted)
    )
    return (*deaths, *_plans_first(asked), *stuck, *loops, *unstarted)


def _plans_first(asked: list[Need]) -> list[Need]:
    """The longest wait first; among those asked within `AT_ONCE` of the first of them, plans come first.

    What is asked at once is a burst whose order is chance, and a plan holds up more than a question does.
    """
    first = float("-inf")
    burst: dict[Need, float] = {}
    for need in sorted(asked, key=lambda need: need.since):
        first = first if need.since - first < URGENT_KINDS else need.since
        burst[need] = first
    return sorted(burst, key=lambda need: (burst[need], need.kind != "plan", need.since))


def _death(agent: AgentView) -> str:
    how = describe_exit(agent.exit) if agent.exit else agent.reason
    return f"died: {how}{_amid(agent)}"


def _amid(agent: AgentView) -> str:
    """What a death came with: the error that ended the run, the rest that it ended, else the last tool."""
    if agent.exit and agent.exit.code and agent.last_error:
        return f": {agent.last_error}"
    if agent.rested is not None:
        return f", {agent.rested.in_words(agent.since)}"
    return f", last tool {agent.last_tool}" if agent.last_tool else ""


def summarise(request: Request) -> str:
    """One line that says what a request asks."""
    payload = request.payload
    if request.type == "plan_approval":
        return f"plan: {plan_title(str(payload.get('plan', ''))) or '(empty)'}"
    if request.type == "question":
        return "asks: " + str(payload.get("question", ""))
    if request.type == "permission":
        return f"wants to run {payload.get('tool', '')}: {payload.get('summary', '')}"
    return f"asks {request.to} to shut down"
