"""A team as plain data, as of one time, and the state of each agent.

The screen and `status --json` use the same data, so they cannot disagree. An agent's state is decided from lease, spec,
status and exit record, in that order of trust. A held lease means that the worker is alive, whatever the pid says. An
exit record says how a run ended. A run with neither was killed while no supervisor ran, or the machine went down.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from crewboard.readmodel.processes import Usage
from crewboard.records import (
    EXIT_REASONS,
    VANISHED,
    Context,
    Exit,
    Removed,
    Request,
    Spec,
    State,
    Status,
    Task,
    Tokens,
    describe_exit,
    ended_by_shutdown,
    has_vanished,
    is_orderly,
)
from crewboard.store import is_late, is_starting

Shown = Literal["dead", "ask", "stuck", "loop", "start", "run", "wait", "pause", "idle", "done", "unknown"]
"""The words of the screen (docs/reference/dashboard.md#states)."""

URGENCY: tuple[Shown, ...] = (
    "dead", "ask", "stuck", "loop", "start", "run", "wait", "pause", "idle", "unknown", "done",
)  # fmt: skip
"""Most urgent first."""

LOOP_LENGTH = 5
"""How often the same tool call with the same result in a row is a loop."""

EXIT_TIMEOUT = 10.0
"""Seconds from an exit record to the end of its process, after which the two contradict each other."""

CAUSE_TIMEOUT = 5.0
"""Seconds that a supervisor may need to find out and record how a worker ended."""

DEAD: frozenset[State] = frozenset({"crashed", "vanished"})
"""States of an agent whose run ended unexpectedly."""

_SHOWN: dict[State, Shown] = {
    "starting": "start", "working": "run", "waiting": "wait", "retrying": "wait", "idle": "idle", "paused": "pause",
    "stopping": "wait", "exited": "done", "crashed": "dead", "vanished": "dead", "stuck": "stuck", "looping": "loop",
    "unknown": "unknown",
}  # fmt: skip

NeedKind = Literal["death", "plan", "permission", "question", "stuck", "looping", "failed_start", "failed"]

_LONG_AGO = 12 * 3600.0


@dataclass(frozen=True)
class Need:
    """Something that needs the operator."""

    kind: NeedKind
    agent: str
    since: float
    summary: str
    request_id: str | None = None
    code: int | None = None
    """The exit code that stands for a need `failed`."""


class Rest(NamedTuple):
    """A state in which a worker did nothing, and since when."""

    state: State
    since: float

    def describe(self, now: float) -> str:
        """Return `was idle since 12:03`, with the date if that was long before `now`."""
        clock = "%H:%M" if now - self.since < _LONG_AGO else "%Y-%m-%d %H:%M"
        return f"was {self.state} since {time.strftime(clock, time.localtime(self.since))}"


@dataclass(frozen=True)
class AgentView:
    """One agent. Times are epoch seconds; `usage` is in percent of one core.

    `rested` says how an agent that is gone was at rest when its run ended. `is_starting`, `failed_start` and `is_open`
    are as in `Finding`. `unsafe` says that its commands run without a sandbox.
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
    is_starting: bool = False
    failed_start: bool = False
    is_open: bool = False
    unsafe: bool = False

    @property
    def is_dead(self) -> bool:
        """Return True if the last run ended unexpectedly, whether that was acknowledged or not."""
        return self.state in DEAD


@dataclass(frozen=True)
class SupervisorView:
    """The team's supervisor; `pid` is None if none runs."""

    pid: int | None
    alive: bool


@dataclass(frozen=True)
class TeamView:
    """A team at one time, its agents in the order of the roster.

    `requests` are the open ones, `asked` all there ever were, oldest first. `unread` counts by mailbox, the operator's
    without notices. `budget` is the limit of the whole team, as it was written. `damage` counts unreadable files and
    lines by where they are. `removed` is what the agents that were removed have used.
    `storage` says that nothing can be written: `disk full` or `disk is read-only`.
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
    removed: Removed = field(default_factory=Removed)
    damage: dict[str, int] = field(default_factory=dict)
    problem: str | None = None
    storage: str | None = None
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
    def urgent_first(self) -> list[AgentView]:
        """Return the agents by urgency: those that need the operator in the order of `needs`, the others by name.

        Working agents start something new every few seconds; sorted by age they would never keep their places.
        """
        place = {need.agent: at for at, need in reversed([*enumerate(self.needs)])}
        return sorted(
            self.agents,
            key=lambda agent: (URGENCY.index(agent.shown), place.get(agent.name, len(self.needs)), agent.name),
        )

    def agent(self, name: str) -> AgentView | None:
        """Return the agent called `name`."""
        return next((agent for agent in self.agents if agent.name == name), None)

    def request(self, request_id: str) -> Request | None:
        """Return the open request with this id."""
        return next((request for request in self.requests if request.id == request_id), None)

    def freed_by(self, name: str) -> tuple[Task, ...]:
        """Return the tasks that the agent `name` lost when it ended, and that no agent has taken since."""
        return tuple(
            task for task in self.tasks if task.last_owner == name and task.status == "pending" and not task.owner
        )


@dataclass(frozen=True)
class Evidence:
    """The evidence about one agent, read at one time. `held`, whether the lease was held, was read first.

    `pid_gone` says that the lease is held but the process that the status names is gone. `supervised` says that a
    supervisor runs. `seen_alive` and `seen_gone` say when this reader last saw the lease held, and first saw it free
    after that; None if it never did. `lease_unreadable` says that nothing tells whether the worker is alive.
    """

    held: bool
    spec: Spec | None
    status: Status | None
    exit: Exit | None
    boot_id: str
    now: float
    pid_gone: bool = False
    supervised: bool = False
    seen_alive: float | None = None
    seen_gone: float | None = None
    monotonic: float = field(default_factory=time.monotonic)
    lease_unreadable: bool = False


@dataclass(frozen=True)
class Finding:
    """A state and its reason, as one clause for the screen. `since` is in epoch seconds.

    `is_starting` says that a start is under way, `failed_start` that it did not begin in time, `is_open` that the
    cause of an end will be known in a moment.
    """

    state: State
    since: float
    reason: str = ""
    failed_start: bool = False
    is_starting: bool = False
    is_open: bool = False


def describe_storage(view: TeamView) -> str | None:
    """Return in words that nothing can be written to the team's disk, None if that is not so."""
    return f"{view.storage}: nothing was lost; agents wait and continue by themselves" if view.storage else None


def find_state(seen: Evidence) -> Finding:
    """Return the state of an agent."""
    if seen.lease_unreadable or seen.spec is None:
        since = seen.status.since if seen.lease_unreadable and seen.status else 0
        return Finding("unknown", since, "its lease cannot be read" if seen.lease_unreadable else "no usable spec.json")
    last_run = max(seen.status.run if seen.status else 0, seen.exit.run if seen.exit else 0)
    if seen.held:
        return _alive(seen, last_run)
    if seen.spec.run > last_run:
        return _not_begun(seen, seen.spec, last_run)
    if seen.exit is not None and seen.exit.run == last_run:
        if seen.status is not None and ended_by_shutdown(seen.exit, seen.status.boot_id, seen.boot_id):
            return Finding("exited", seen.exit.at, EXIT_REASONS["reboot"])
        return _ended(seen.exit)
    return _gone(seen)


def _alive(seen: Evidence, last_run: int) -> Finding:
    status = seen.status
    asked_at = seen.spec.at if seen.spec else 0
    if status is None or (seen.spec is not None and seen.spec.run > last_run):
        return Finding("starting", asked_at, "process is up, not ready yet")
    if seen.exit is not None and seen.exit.run >= status.run:
        return _exiting(seen.exit, seen.now)
    if seen.pid_gone:
        return Finding("unknown", status.since, f"says {status.state} · pid {status.pid} gone · lease still held")
    if _is_overdue(status, seen):
        return Finding("stuck", status.since, f"no progress past its deadline: {status.doing}")
    if status.repeats >= LOOP_LENGTH and status.state == "working":
        return Finding("looping", status.since, f"{status.last_tool or status.doing} ×{status.repeats}, same outcome")
    return Finding(status.state, status.since, status.doing)


def _is_overdue(status: Status, seen: Evidence) -> bool:
    """Return True if a worker should have written its status again by now."""
    if status.deadline_monotonic is not None and status.boot_id == seen.boot_id:
        return seen.monotonic > status.deadline_monotonic
    return status.deadline is not None and seen.now > status.deadline


def _exiting(record: Exit, now: float) -> Finding:
    # A worker writes its exit record a moment before it ends.
    if now - record.at > EXIT_TIMEOUT:
        return Finding("unknown", record.at, f"exit record says {record.reason or 'ended'} · lease still held")
    return Finding("stopping", record.at, describe_exit(record))


def _not_begun(seen: Evidence, spec: Spec, last_run: int) -> Finding:
    if spec.want in ("killed", "stopped"):
        return Finding("exited", spec.at, EXIT_REASONS["killed"])
    late = is_late(spec, seen.now)
    reason = "was never started: resume it or remove it" if late else "waiting for the supervisor"
    starting = is_starting(spec, last_run, seen.now)
    return Finding("starting", spec.at, reason, failed_start=late, is_starting=starting)


def _ended(record: Exit) -> Finding:
    state: State = "vanished" if has_vanished(record) else "exited" if is_orderly(record) else "crashed"
    return Finding(state, record.at, describe_exit(record))


def _gone(seen: Evidence) -> Finding:
    since = seen.status.beat if seen.status else 0
    if seen.status and seen.status.boot_id and seen.status.boot_id != seen.boot_id:
        return Finding("exited", since, EXIT_REASONS["reboot"])
    if seen.spec and seen.status and seen.spec.run == seen.status.run and seen.spec.want in ("killed", "stopped"):
        # It was asked to end; the supervisor is about to record that it did.
        return Finding("exited", since, EXIT_REASONS["killed"])
    since = max(since, seen.seen_alive or 0)
    if seen.supervised and seen.seen_gone is not None and seen.now - seen.seen_gone < CAUSE_TIMEOUT:
        since = since if seen.seen_alive is None else seen.seen_gone
        return Finding("vanished", since, "exited; determining cause", is_open=seen.seen_alive is not None)
    return Finding("vanished", since, f"exited without an exit record: {VANISHED}")


def show(state: State, asks_operator: list[Request]) -> Shown:
    """Return the word for the screen. An agent with an open request to the operator asks, whatever else it does."""
    if asks_operator and state in ("waiting", "working", "idle", "retrying"):
        return "ask"
    return _SHOWN[state]
