"""A team as plain data, as of one time. The screen and `status --json` both show it, so they cannot disagree."""

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
"""The kinds of need. Those from `outage` on are the least urgent, in this order."""

OFFLINE_MODEL = "offline model"

Limit = Literal["turns", "budget", "team_budget"]
"""A limit that stops an agent: its model calls, its own budget, or the budget of its team or its hirer."""

_LONG_AGO = 12 * 3600.0

CLOCK_TOLERANCE = 3.0
"""Seconds that the clock of a host may be off before it is reported."""


class Need(Struct, frozen=True):
    """A reason why the operator must act. If it concerns no agent, `agent` is `system`."""

    kind: NeedKind
    agent: str
    since: float
    summary: str
    request_id: str | None = None
    code: int | None = None
    """The exit code that stands for a need `failed`."""
    limit: Limit | None = None
    """The limit that stopped the agent of a need `failed`."""
    refused_by: str | None = None
    """The model that refused the assignment of a need `failed` or `death`: another one may do it."""
    task: int | None = None
    """The task of a need `task_failed` or `check_failed`, and of a need `failed` of an agent that rests with it."""
    server: str | None = None
    """The MCP server of a need `mcp`."""
    is_new: bool = False
    """The MCP server of a need `mcp` waits for the user to accept it."""
    file: str | None = None
    """The file in the team directory that a need `result`, `damaged` or `check_failed` is about."""
    other: str | None = None
    """The other agent of a need `collision`."""
    agents: tuple[str, ...] = ()
    """All agents of a need that is about several: those whose work ended with one host, or that wait for a host."""
    host: str | None = None
    """The host that ended or was lost, of a need about its agents: `death`, or `no_host` if they run on without it."""
    wanted: WantedHost | None = None
    """The host that the agents of a need `no_host` wait for."""
    files: tuple[str, ...] = ()
    """The files in which the agents of a need `collision` collide."""
    in_worktrees: bool = False
    """Both agents of a need `collision` have worktrees, and their work does not merge."""
    mailbox: str | None = None
    """The mailbox that holds the newest message of a need `result`."""
    answered_in: str | None = None
    """The other program in which alone the request can be answered."""
    sha256: str = ""
    """The SHA-256 of what the request asks."""
    marks: tuple[tuple[str, float], ...] = ()
    """The entries that are written to `OperatorState.needs` when the operator acknowledges it."""

    @property
    def key(self) -> str:
        """Return the id of this need. It stays the same when the need's text changes."""
        if self.host is not None:
            # The first of its agents may be acknowledged, or resumed.
            return f"{self.kind}:host:{self.host}"
        about = self.request_id or self.other or self.server or (self.file if self.kind == "damaged" else self.task)
        return f"{self.kind}:{self.agent}:{about or ''}"

    @property
    def is_acknowledgeable(self) -> bool:
        """Return True if acknowledging it ends it."""
        # Needs of the supervisor end when it is repaired.
        failed = self.kind == "failed" and self.code not in (ExitCode.INTERNAL, ExitCode.TRY_LATER)
        return bool(self.marks) or self.kind == "death" or failed


class Rest(Struct, frozen=True):
    """A state in which a worker did nothing, and since when."""

    state: State
    since: float

    def describe(self, now: float) -> str:
        """Return `was idle since 12:03`, with the date if that was long before `now`."""
        clock = "%H:%M" if now - self.since < _LONG_AGO else "%Y-%m-%d %H:%M"
        return f"was {self.state} since {time.strftime(clock, time.localtime(self.since))}"


class AgentView(Finding, frozen=True, kw_only=True):
    """One agent, with what was found about its state. Times are epoch seconds; `usage` is in percent of one core.

    `status` is what its worker wrote last, without what says only that the worker lives: views that show the same are
    equal. What it waits for is in it while it runs, its failure until that is acknowledged or another assignment
    begins, and of its MCP servers no problem of one that is gone.

    `exit` is the record of its last run if that has ended. It runs `unsafe` if its commands have no sandbox. `rested`
    is the idle state in which an agent that is gone ended, None if it was at work. `is_here`: its processes can be
    looked at, because it does not run on another machine. `unread_results` counts its results that the operator has
    not read. It `collides_with` agents that changed the same files, whether that was acknowledged or not. `unmerged`
    is what its last snapshot contains and your branch does not; None if that is nothing.
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
        """Return what answers its requests: its model, or the offline model in the place of that."""
        return OFFLINE_MODEL if self.status.offline else self.model

    @property
    def described_model(self) -> str:
        """Return what answers its requests: an engine with its version, and the model that it told."""
        said = self.status
        return " · ".join(filter(None, (f"{self.shown_model} {said.engine_version}".strip(), said.engine_model)))

    @property
    def is_pausing(self) -> bool:
        """Return True if it is to be paused, and still does what it was doing when that was asked."""
        is_wanted = self.alive and self.spec is not None and self.spec.want == "paused"
        return is_wanted and self.state not in ("paused", "stopping")

    def with_pause(self, doing: str) -> str:
        """Return `doing`, after `pausing` if a pause was requested and has not begun."""
        return " · ".join(filter(None, ("pausing", doing))) if self.is_pausing else doing

    @property
    def waits_for_api(self) -> bool:
        """Return True if it waits for the end of an outage of the API."""
        return self.alive and self.state == "retrying" and self.status.outage_since is not None

    @property
    def limit(self) -> Limit | None:
        """Return which limit stopped this agent, as far as that was not acknowledged; None if none did."""
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
        """Return True if its assignment ended with an error that was not acknowledged; a death is another matter."""
        return self.limit is not None or (self.alive and self.status.failed is not None)

    @property
    def left(self) -> str:
        """Return in words that it rests although its task is in progress; an empty text if it does not."""
        return f"rests, task #{self.status.unreported} unfinished" if self.status.unreported is not None else ""

    @property
    def is_dead(self) -> bool:
        """Return True if the last run crashed, or ended with its host, whether that was acknowledged or not."""
        return self.state in DEAD or self.ended_with_host


class HostView(Struct, frozen=True):
    """One host: what it said of itself last, and in which state it was found.

    `agents` run on it, and each takes one of its slots; `lost` are those whose run ended with it.
    """

    record: Host
    found: SeenHost
    agents: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return its name."""
        return self.record.name

    @property
    def state(self) -> HostState:
        """Return its state."""
        return self.found.state

    @property
    def since(self) -> float:
        """Return when it began, by the clock of the store."""
        return self.record.since - self.record.clock_offset

    @property
    def seen(self) -> float:
        """Return when it last wrote, by the clock of the store."""
        return self.record.at - self.record.clock_offset

    @property
    def is_up(self) -> bool:
        """Return True if it is alive, whether it takes more agents or not."""
        return self.found.is_up

    @property
    def used(self) -> int:
        """Return how many of its slots are in use."""
        return len(self.agents)

    @property
    def wanted(self) -> WantedHost:
        """Return what must be started to have this host back."""
        return WantedHost(tuple(self.record.labels), self.name, offline=self.record.offline)

    @property
    def clock(self) -> str:
        """Return in words how wrong its clock is, such as `7 s behind`; an empty text if it is about right."""
        off = round(self.record.clock_offset)
        return f"{abs(off)} s {'ahead' if off > 0 else 'behind'}" if abs(off) > CLOCK_TOLERANCE else ""


class SupervisorView(Struct, frozen=True):
    """The team's supervisor; `pid` is None if none runs.

    `silent_since` is set if it hangs: it holds its lock, but has shown no sign of life since that time. `hosts` is
    the number of hosts that are up, each with a supervisor of its own; None on a team without hosts. `shared_bytes` is
    the memory of its prefork server, which the workers share; None if there is none, or it was not measured.
    """

    pid: int | None
    alive: bool
    silent_since: float | None = None
    hosts: int | None = None
    shared_bytes: int | None = None

    def describe(self) -> str:
        """Return two or three words: its process, and `hangs` if it does."""
        if self.hosts is not None:
            return counted(self.hosts, "host") if self.hosts else "no host up"
        if not self.alive:
            return "no supervisor"
        return f"supervisor {self.pid or 'starting'}" + (" hangs" if self.silent_since is not None else "")


class TeamView(Struct, frozen=True, dict=True):
    """A team at one time, its agents in the order of the roster.

    `requests` are the open requests, `asked` all requests, oldest first. `unread` is the number of unread messages by
    mailbox; notices to the operator do not count. `budget` is the limit of the whole team, in the form that the user
    typed. `damage` counts unreadable files and lines by place. `removed` is the usage of removed agents. `present` are
    all open dashboards, including this one.
    `unprovided` is True if a queued agent needs an environment, because the supervisor that had it was killed.
    `attached` is the team of another program that this one mirrors.
    `storage` says that nothing can be written: `disk full` or `disk is read-only`.
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
    """The hosts that run the agents, those that lost some first; none if a supervisor on this machine runs them."""
    is_deleted: bool = False
    """It is gone, and an earlier reading found it."""
    now: float = 0

    @property
    def damaged(self) -> int:
        """Return the number of unreadable lines and files."""
        return sum(self.damage.values())

    @property
    def names(self) -> list[str]:
        """Return the names of the agents."""
        return [agent.name for agent in self.agents]

    @property
    def lead(self) -> str:
        """Return the name of the lead; `lead` while there is none."""
        return name_of_lead([(agent.name, agent.type) for agent in self.agents])

    @property
    def urgent_first(self) -> list[AgentView]:
        """Return the agents by urgency: those that need the operator in the order of `needs`, the others by name.

        Working agents start something new every few seconds; sorted by age they would never keep their places.
        """
        place = {need.agent: at for at, need in reversed([*enumerate(self.needs)])}
        rank, last = {shown: at for at, shown in enumerate(URGENCY)}, len(self.needs)
        return sorted(self.agents, key=lambda agent: (rank[agent.shown], place.get(agent.name, last), agent.name))

    def host(self, name: str | None) -> HostView | None:
        """Return the host called `name`."""
        return next((host for host in self.hosts if host.name == name), None)

    @cached_property
    def told_apart(self) -> list[str]:
        """Return the hosts that are up, or where an agent ran last; none if that is only one: no view names it."""
        up = {host.name for host in self.hosts if host.is_up}
        names = sorted(up | {agent.status.host for agent in self.agents if agent.status.host})
        return names if len(names) > 1 else []

    def agent(self, name: str | None) -> AgentView | None:
        """Return the agent called `name`; None if there is none, or no name."""
        return self._by_name.get(name or "")

    @cached_property
    def _by_name(self) -> dict[str, AgentView]:
        return {agent.name: agent for agent in self.agents}

    def task(self, task_id: int | None) -> Task | None:
        """Return the task with this id."""
        return next((task for task in self.tasks if task.id == task_id), None)

    def need(self, key: str | None) -> Need | None:
        """Return the need with this key, if it still exists."""
        return next((need for need in self.needs if need.key == key), None)

    @property
    def answered(self) -> frozenset[str]:
        """Return the ids of the requests that the operator has answered."""
        return answered_by_operator(self.asked)

    def request(self, request_id: str | None) -> Request | None:
        """Return the open request with this id, if there is one."""
        return next((request for request in self.requests if request.id == request_id), None)

    def freed_by(self, name: str) -> tuple[Task, ...]:
        """Return the tasks that the agent `name` lost when it ended, and that no agent has taken since."""
        return tuple(
            task for task in self.tasks if task.last_owner == name and task.status == "pending" and not task.owner
        )


def answered_by_operator(asked: Iterable[Request]) -> frozenset[str]:
    """Return the ids of those of the requests that the operator has answered."""
    return frozenset(request.id for request in asked if request.decided_by == OPERATOR)


def describe_hosts(hosts: tuple[HostView, ...], away: str = "") -> str:
    """Return in words how many hosts are up, and how many of their slots are in use: `2 of 3 hosts up, 5/16 slots`.

    If the database is `away`, for `12s`, that is unknown: `2 of 3 hosts were up 12s ago`.
    """
    up = [host for host in hosts if host.is_up]
    expected = [host for host in hosts if host.state != "ended"]
    counts = f"{len(up)} of {counted(len(expected), 'host')}"
    if away:
        return f"{counts} {'was' if len(up) == 1 else 'were'} up {away} ago"
    used, slots = sum(host.used for host in up), sum(host.record.slots for host in up)
    return f"{counts} up" + (f", {used}/{slots} slots" if up else "")


def describe_runner(view: TeamView, away: str = "") -> str:
    """Return what runs the agents: the supervisor, the hosts, or another program, and then who approves its plans.

    `away` is for how long the database is, if it is.
    """
    attached = view.attached
    if attached is None:
        return describe_hosts(view.hosts, away) if view.hosts else view.supervisor.describe()
    asked = attached.hooks and view.plan_approver == OPERATOR
    plans = "plans: you approve" if asked else "plans: Claude Code approves by itself"
    untested = "" if attached.tested else " (not tested)"
    return f"Claude Code {attached.version}".rstrip() + f"{untested} · {plans}"


def describe_storage(view: TeamView) -> str | None:
    """Return in words why nothing can be written to the team's disk; None if it is writable."""
    return f"{view.storage}: nothing was lost; agents wait and continue by themselves" if view.storage else None
