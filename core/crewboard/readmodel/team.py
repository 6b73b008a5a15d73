"""A team as plain data, at one time. The screen and `status --json` both show this data, so they cannot disagree."""

import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from crewboard.errors import ExitCode
from crewboard.names import OPERATOR
from crewboard.readmodel.processes import Usage
from crewboard.readmodel.states import DEAD, URGENCY, Finding, HostState, SeenHost, Shown, WantedHost
from crewboard.records.agents import Spec, State, Status
from crewboard.records.base import counted
from crewboard.records.processes import LIMIT_REASONS, Exit, Host
from crewboard.records.requests import Request
from crewboard.records.team import AttachedTeam, Presence, Removed, Task, Unmerged, name_of_lead

NeedKind = Literal[
    "death", "plan", "permission", "question", "review", "stuck", "looping", "failed_start", "no_host", "failed",
    "collision", "outage", "damaged", "task_failed", "check_failed", "mcp", "result",
]  # fmt: skip
"""The kinds of needs. Those from `outage` on are the least urgent, in this order."""

OFFLINE_MODEL = "offline model"

Limit = Literal["turns", "budget", "team_budget"]
"""A limit that stopped an agent: its model calls, its own budget, or the budget of its team or of its hirer."""

_LONG_AGO = 12 * 3600.0

CLOCK_TOLERANCE = 3.0
"""Seconds by which the clock of a host may be wrong before it is reported."""


class Need(Struct, frozen=True):
    """A reason why the operator must act. `agent` is `system` if it concerns no agent; `since` is in epoch seconds."""

    kind: NeedKind
    agent: str
    since: float
    summary: str
    request_id: str | None = None
    code: int | None = None
    """The exit code that stands for the error of a need `failed`."""
    limit: Limit | None = None
    """The limit that stopped the agent of a need `failed`."""
    refused_by: str | None = None
    """The model that refused the assignment of a need `failed` or `death`; another model may do it."""
    task: int | None = None
    """The id of the task of a need `task_failed` or `check_failed`, or of a need `failed` of an idle agent that left
    it.
    """
    server: str | None = None
    """The MCP server of a need `mcp`."""
    is_new: bool = False
    """True if the MCP server of a need `mcp` waits for the user to accept it."""
    file: str | None = None
    """The file in the team directory that a need `result`, `damaged` or `check_failed` is about; None for
    another need.
    """
    other: str | None = None
    """The other agent of a need `collision`."""
    agents: tuple[str, ...] = ()
    """All agents of a need that is about several: their work ended with one host, or they wait for a host."""
    host: str | None = None
    """The host of a need about its agents: it ended or was lost (`death`), or they run on without it (`no_host`)."""
    wanted: WantedHost | None = None
    """The host that the agents of a need `no_host` wait for."""
    files: tuple[str, ...] = ()
    """The files in which the agents of a need `collision` collide."""
    in_worktrees: bool = False
    """True if both agents of a need `collision` have worktrees, and their work does not merge."""
    mailbox: str | None = None
    """The mailbox that holds the newest message of a need `result`."""
    count: int = 1
    """The number of results that a need `result` is about."""
    answered_in: str | None = None
    """The other program in which alone the request can be answered; None if it can be answered here."""
    sha256: str = ""
    """The SHA-256 of the request's payload; empty without a request."""
    marks: tuple[tuple[str, float], ...] = ()
    """The keys and versions that are written to `OperatorState.needs` when the operator acknowledges the need."""

    @property
    def key(self) -> str:
        """Return the id of this need, which stays the same when its text changes."""
        if self.host is not None:
            # The first of its agents may be acknowledged, or resumed.
            return f"{self.kind}:host:{self.host}"
        about = self.request_id or self.other or self.server or (self.file if self.kind == "damaged" else self.task)
        return f"{self.kind}:{self.agent}:{about or ''}"

    @property
    def is_acknowledgeable(self) -> bool:
        """Return True if the need ends when the operator acknowledges it."""
        # Needs of the supervisor end when it is repaired.
        failed = self.kind == "failed" and self.code not in (ExitCode.INTERNAL, ExitCode.TRY_LATER)
        return bool(self.marks) or self.kind == "death" or failed


class Rest(Struct, frozen=True):
    """A state in which a worker did nothing, and since when."""

    state: State
    since: float

    def describe(self, now: float) -> str:
        """Return the state in words, such as `was idle since 12:03`.

        The time has a date if the state began twelve hours before `now`, or earlier.
        """
        clock = "%H:%M" if now - self.since < _LONG_AGO else "%Y-%m-%d %H:%M"
        return f"was {self.state} since {time.strftime(clock, time.localtime(self.since))}"


class AgentView(Finding, frozen=True, kw_only=True):
    """One agent, with what was found about its state. Times are epoch seconds; `usage` is in percent of one core.

    - `status` is what its worker wrote last, without fields that only show that the worker lives: views that show the
      same are equal. It says what the agent waits for only while the agent runs, and how it failed only until that is
      acknowledged or another assignment begins. Problems of MCP servers that are gone are left out.
    - `exit` is the record of its last run if that has ended.
    - `unsafe`: its commands run without a sandbox. `is_here`: it does not run on another machine, so its processes can
      be looked at.
    - `rested` is the idle state in which an agent that is gone ended; None if it was at work.
    - `unread` counts mail that it has not read, `unread_results` its results that the operator has not read.
    - `collides_with` are agents that changed the same files, whether that was acknowledged or not. `unmerged` is what
      its last snapshot contains and the user's branch does not; None if that is nothing.
    """

    name: str
    type: str
    role: str
    title: str
    model: str
    shown: Shown
    doing: str
    run: int
    pid: int | None
    alive: bool
    spec: Spec | None
    status: Status
    exit: Exit | None
    acknowledged: bool
    unread: int
    task: int | None
    usage: Usage | None
    damaged: int
    asks: tuple[Request, ...]
    rested: Rest | None
    unsafe: bool
    unread_results: int
    is_here: bool
    collides_with: tuple[str, ...] = ()
    unmerged: Unmerged | None = None

    @property
    def shown_model(self) -> str:
        """Return the name of the agent's model, or `offline model` if that answers in its place."""
        return OFFLINE_MODEL if self.status.offline else self.model

    @property
    def described_model(self) -> str:
        """Return the name of the agent's model, followed by what an engine stated, if there is one.

        An engine states its version, and the model that it used last.
        """
        said = self.status
        return " · ".join(filter(None, (f"{self.shown_model} {said.engine_version}".strip(), said.engine_model)))

    @property
    def is_pausing(self) -> bool:
        """Return True if the agent is to be paused, and still does what it did when that was requested."""
        is_wanted = self.alive and self.spec is not None and self.spec.want == "paused"
        return is_wanted and self.state not in ("paused", "stopping")

    def with_pause(self, doing: str) -> str:
        """Return `doing`, with `pausing` before it if a pause was requested and has not begun."""
        return " · ".join(filter(None, ("pausing", doing))) if self.is_pausing else doing

    @property
    def waits_for_api(self) -> bool:
        """Return True if the agent waits for the end of an outage of the API."""
        return self.alive and self.state == "retrying" and self.status.outage_since is not None

    @property
    def limit(self) -> Limit | None:
        """Return which limit stopped this agent, unless that was acknowledged; None if none did."""
        if self.alive:
            # A used-up budget ends the worker, so a living one was stopped by the other limit.
            return "turns" if self.status.failed == ExitCode.LIMIT else None
        if self.state != "exited" or self.acknowledged or self.exit is None or self.exit.reason not in LIMIT_REASONS:
            return None
        if self.exit.reason == "turn_limit":
            return "turns"
        return "budget" if self.spec is not None and self.spec.flags.budget is not None else "team_budget"

    @property
    def has_failed(self) -> bool:
        """Return True if an error or a limit ended the agent's assignment, and is not acknowledged.

        False for a death.
        """
        return self.limit is not None or (self.alive and self.status.failed is not None)

    @property
    def left(self) -> str:
        """Return in words that the idle agent left its task in progress; empty if the agent left none."""
        return f"rests, task #{self.status.unreported} unfinished" if self.status.unreported is not None else ""

    @property
    def is_dead(self) -> bool:
        """Return True if the last run crashed or ended with its host, whether that was acknowledged or not."""
        return self.state in DEAD or self.ended_with_host


class HostView(Struct, frozen=True):
    """One host: the record that it last wrote, and the state in which it was found.

    `agents` run on it, each in one of its slots; `lost` are those whose run ended with it.
    """

    record: Host
    found: SeenHost
    agents: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the host's name."""
        return self.record.name

    @property
    def state(self) -> HostState:
        """Return the host's state."""
        return self.found.state

    @property
    def since(self) -> float:
        """Return when the host began, in epoch seconds by the clock of the store."""
        return self.record.since - self.record.clock_offset

    @property
    def seen(self) -> float:
        """Return when the host last wrote its record, in epoch seconds by the clock of the store."""
        return self.record.at - self.record.clock_offset

    @property
    def is_up(self) -> bool:
        """Return True if the host is alive, even if it takes no more agents."""
        return self.found.is_up

    @property
    def used(self) -> int:
        """Return how many of its slots are in use."""
        return len(self.agents)

    @property
    def wanted(self) -> WantedHost:
        """Return the host that must be started to have this one back."""
        return WantedHost(tuple(self.record.labels), self.name, offline=self.record.offline)

    @property
    def clock(self) -> str:
        """Return in words how wrong its clock is, such as `7 s behind`; empty if it is about right."""
        off = round(self.record.clock_offset)
        return f"{abs(off)} s {'ahead' if off > 0 else 'behind'}" if abs(off) > CLOCK_TOLERANCE else ""


class SupervisorView(Struct, frozen=True):
    """The team's supervisor; `pid` is None if none runs, or if it has just begun.

    `silent_since` is set if it hangs: it holds its lock, but has shown no sign of life since that time. `hosts` is the
    number of hosts that are up, each with a supervisor of its own; None on a team without hosts. `shared_bytes` is the
    memory of its prefork server, which the workers share; None if there is none, or it was not measured.
    """

    pid: int | None
    alive: bool
    silent_since: float | None = None
    hosts: int | None = None
    shared_bytes: int | None = None

    def describe(self) -> str:
        """Return in a few words the supervisor's process, with `hangs` if the supervisor hangs.

        On a team with hosts, return how many hosts are up.
        """
        if self.hosts is not None:
            return counted(self.hosts, "host") if self.hosts else "no host up"
        if not self.alive:
            return "no supervisor"
        return f"supervisor {self.pid or 'starting'}" + (" hangs" if self.silent_since is not None else "")


class TeamView(Struct, frozen=True, dict=True):
    """A team at one time, its agents in the order of the roster.

    - `requests` are the open requests, `asked` all requests, oldest first.
    - `unread` is the number of unread messages by mailbox; notices to the operator do not count.
    - `budget` is the limit of the whole team, as the user typed it. `removed` is the usage of removed agents.
    - `damage` counts unreadable files and lines by place. `problem` says that the roster is damaged or the team
      deleted.
    - `storage` says that nothing can be written: `disk full` or `disk is read-only`.
    - `present` are all open dashboards, including this one.
    - `unprovided` is True if a queued agent needs an environment, because the supervisor that had it was killed.
    - `attached` is the team of another program that this one mirrors.
    """

    name: str
    path: Path
    root: Path
    description: str = ""
    plan_approver: str = OPERATOR
    model_backend: str = "api"
    supervisor: SupervisorView = SupervisorView(None, alive=False)
    agents: tuple[AgentView, ...] = ()
    requests: tuple[Request, ...] = ()
    tasks: tuple[Task, ...] = ()
    needs: tuple[Need, ...] = ()
    asked: tuple[Request, ...] = ()
    unread: dict[str, int] = field(default_factory=dict)
    budget: str | None = None
    removed: Removed = field(default_factory=Removed)
    damage: dict[str, int] = field(default_factory=dict)
    problem: str | None = None
    storage: str | None = None
    present: tuple[Presence, ...] = ()
    unprovided: bool = False
    attached: AttachedTeam | None = None
    hosts: tuple[HostView, ...] = ()
    """The hosts that run the agents, those that lost some first; empty if a supervisor on this machine runs them."""
    is_deleted: bool = False
    """True if the team is gone, and an earlier read found it."""
    now: float = 0

    @property
    def damaged(self) -> int:
        """Return the number of unreadable lines and files."""
        return sum(self.damage.values())

    @property
    def names(self) -> list[str]:
        """Return the names of the agents, in the order of the roster."""
        return [agent.name for agent in self.agents]

    @property
    def lead(self) -> str:
        """Return the name of the lead; `lead` if there is none."""
        return name_of_lead([(agent.name, agent.type) for agent in self.agents])

    @property
    def urgent_first(self) -> list[AgentView]:
        """Return the agents by urgency of their state; within a state in the order of their needs, then by name.

        Not by age: working agents start something new every few seconds, and would never keep their places.
        """
        place = {need.agent: at for at, need in reversed([*enumerate(self.needs)])}
        rank, last = {shown: at for at, shown in enumerate(URGENCY)}, len(self.needs)
        return sorted(self.agents, key=lambda agent: (rank[agent.shown], place.get(agent.name, last), agent.name))

    def host(self, name: str | None) -> HostView | None:
        """Return the host called `name`; None if there is none."""
        return next((host for host in self.hosts if host.name == name), None)

    @cached_property
    def told_apart(self) -> list[str]:
        """Return the names of hosts that are up, or on which an agent last ran; empty if it is only one.

        Views name hosts only if there are several.
        """
        up = {host.name for host in self.hosts if host.is_up}
        names = sorted(up | {agent.status.host for agent in self.agents if agent.status.host})
        return names if len(names) > 1 else []

    def agent(self, name: str | None) -> AgentView | None:
        """Return the agent called `name`; None if there is none."""
        return self._by_name.get(name or "")

    @cached_property
    def _by_name(self) -> dict[str, AgentView]:
        return {agent.name: agent for agent in self.agents}

    def task(self, task_id: int | None) -> Task | None:
        """Return the task with this id; None if there is none."""
        return next((task for task in self.tasks if task.id == task_id), None)

    def need(self, key: str | None) -> Need | None:
        """Return the need with this key; None if it no longer exists."""
        return next((need for need in self.needs if need.key == key), None)

    @property
    def answered(self) -> frozenset[str]:
        """Return the ids of the requests that the operator has answered."""
        return answered_by_operator(self.asked)

    def request(self, request_id: str | None) -> Request | None:
        """Return the open request with this id; None if there is none."""
        return next((request for request in self.requests if request.id == request_id), None)

    def freed_by(self, name: str) -> tuple[Task, ...]:
        """Return the tasks that the agent `name` lost when it ended, and that no agent has taken since."""
        return tuple(
            task for task in self.tasks if task.last_owner == name and task.status == "pending" and not task.owner
        )


def answered_by_operator(asked: Iterable[Request]) -> frozenset[str]:
    """Return the ids of the requests that the operator has answered, among the given ones."""
    return frozenset(request.id for request in asked if request.decided_by == OPERATOR)


def describe_hosts(hosts: tuple[HostView, ...], away: str = "") -> str:
    """Return how many hosts are up, and how many of their slots are in use: `2 of 3 hosts up, 5/16 slots`.

    If the database has been `away` for a time such as `12s`, return what is known: `2 of 3 hosts were up 12s ago`.
    """
    up = [host for host in hosts if host.is_up]
    expected = [host for host in hosts if host.state != "ended"]
    counts = f"{len(up)} of {counted(len(expected), 'host')}"
    if away:
        return f"{counts} {'was' if len(up) == 1 else 'were'} up {away} ago"
    used, slots = sum(host.used for host in up), sum(host.record.slots for host in up)
    return f"{counts} up" + (f", {used}/{slots} slots" if up else "")


def describe_runner(view: TeamView, away: str = "") -> str:
    """Return in words what runs the agents: the supervisor, the hosts, or another program and who approves its plans.

    `away` is for how long the database has been away, in words; empty if it is not.
    """
    attached = view.attached
    if attached is None:
        return describe_hosts(view.hosts, away) if view.hosts else view.supervisor.describe()
    asked = attached.hooks and view.plan_approver == OPERATOR
    plans = "plans: you approve" if asked else "plans: Claude Code approves by itself"
    untested = "" if attached.tested else " (not tested)"
    return f"Claude Code {attached.version}".rstrip() + f"{untested} · {plans}"


def describe_storage(view: TeamView) -> str | None:
    """Return in words why nothing can be written to the team's disk, and what helps; None if it is writable."""
    if view.storage is None:
        return None
    # How a run ended that could not write its files is recorded once the disk takes the record.
    ended = [
        agent.name
        for agent in view.agents
        if agent.is_dead
        and not (agent.acknowledged or agent.is_open)
        and (agent.state == "vanished" or (agent.exit is not None and agent.exit.reason == "storage"))
    ]
    if ended:
        who, helps = counted(len(ended), "agent"), "free space" if "full" in view.storage else "make the disk writable"
        return f"{view.storage}: {who} ended; {helps}, then resume {'the agent' if len(ended) == 1 else 'them'}"
    waits = "; agents wait and continue by themselves" if any(agent.alive for agent in view.agents) else ""
    return f"{view.storage}: nothing was lost{waits}"
