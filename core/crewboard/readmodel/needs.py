"""Needs: everything that waits for the operator, in order of urgency, with the tasks that it blocks."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from crewboard.errors import ExitCode
from crewboard.readmodel.mail import plan_title
from crewboard.readmodel.team import AgentView, Need, NeedKind, SupervisorView, TeamView
from crewboard.records import OPERATOR, SYSTEM, Request, SupervisorFailure, Task, describe_exit

NEED_OF_REQUEST: dict[str, NeedKind] = {
    "plan_approval": "plan", "permission": "permission", "question": "question",
}  # fmt: skip
"""The kind of need that an open request to the operator is."""

_FAILURES = 2
"""Failures of the supervisor at one place after which trying again will not help."""

BURST = 5.0
"""Seconds within which several requests count as made at the same time."""


@dataclass(frozen=True)
class ResponseTimes:
    """The number of requests that the operator answered today, and their median wait in seconds."""

    count: int
    median: float


def find_needs(
    agents: tuple[AgentView, ...],
    requests: tuple[Request, ...],
    only_operator: frozenset[str],
    failure: SupervisorFailure | None = None,
    supervisor: SupervisorView | None = None,
) -> tuple[Need, ...]:
    """Return what needs the operator, most urgent first.

    `only_operator` are the recipients whose requests only the operator can answer, `failure` is the supervisor's last.
    """
    deaths = [
        Need("death", agent.name, agent.since, _describe_death(agent))
        for agent in agents
        if agent.is_dead and not agent.acknowledged and not agent.is_open
    ]
    asked = [
        Need(NEED_OF_REQUEST[request.type], request.from_, request.created_at, summarise(request), request.id)
        for request in requests
        if request.to in only_operator and request.type in NEED_OF_REQUEST
    ]
    stuck = [Need("stuck", agent.name, agent.since, agent.reason) for agent in agents if agent.state == "stuck"]
    loops = [Need("looping", agent.name, agent.since, agent.reason) for agent in agents if agent.state == "looping"]
    failed = [Need("failed_start", agent.name, agent.since, agent.reason) for agent in agents if agent.failed_start]
    stopped = [
        _failed_assignment(agent) for agent in agents if agent.has_failed and agent.state not in ("stuck", "looping")
    ]
    deaths, stuck, loops, failed, stopped = (
        sorted(group, key=lambda need: need.since) for group in (deaths, stuck, loops, failed, stopped)
    )
    hung = _hung_supervisor(supervisor)
    return (*hung, *_supervisor_need(failure), *deaths, *_plans_first(asked), *stuck, *loops, *failed, *stopped)


def _failed_assignment(agent: AgentView) -> Need:
    """Return the need of an assignment that ended with an error."""
    since = agent.failed_at if agent.alive else agent.since
    code = agent.failed if agent.exit is None or agent.alive else agent.exit.code
    summary = f"stopped: {agent.last_error or agent.reason}"
    return Need("failed", agent.name, since, summary, code=code, limit=agent.limit)


def _hung_supervisor(supervisor: SupervisorView | None) -> list[Need]:
    """Return the need of a supervisor that does nothing any more, and so keeps another one from starting."""
    if supervisor is None or supervisor.silent_since is None:
        return []
    summary = "supervisor hangs: `crewboard supervisor --restart` replaces it, agents keep working"
    return [Need("failed", SYSTEM, supervisor.silent_since, summary, code=ExitCode.TRY_LATER)]


def _supervisor_need(failure: SupervisorFailure | None) -> list[Need]:
    """Return the need of a supervisor that failed twice at the same place. It goes on with the other agents."""
    if failure is None or failure.count < _FAILURES:
        return []
    where = f" with {failure.agent}" if failure.agent else ""
    summary = (
        f"supervisor failed {failure.count} times{where} at {failure.place}: {failure.error}; "
        "look at supervisor.log, remove what it names, and report it"
    )
    return [Need("failed", failure.agent or SYSTEM, failure.since, summary, code=ExitCode.INTERNAL)]


def _plans_first(asked: list[Need]) -> list[Need]:
    """Return the needs by age; among those asked within `BURST` of the first, plans come first.

    The order within a burst is chance, and a plan blocks more than a question.
    """
    first = float("-inf")
    bursts: dict[Need, float] = {}
    for need in sorted(asked, key=lambda need: need.since):
        first = first if need.since - first < BURST else need.since
        bursts[need] = first
    return sorted(bursts, key=lambda need: (bursts[need], need.kind != "plan", need.since))


def _describe_death(agent: AgentView) -> str:
    how = describe_exit(agent.exit) if agent.exit else agent.reason
    return f"died: {how}{_circumstance(agent)}"


def _circumstance(agent: AgentView) -> str:
    """Return the error that ended the run, else that it was at rest, else its last tool."""
    if agent.exit and agent.exit.code and agent.last_error:
        return f": {agent.last_error}"
    if agent.rested is not None:
        return f", {agent.rested.describe(agent.since)}"
    return f", last tool {agent.last_tool}" if agent.last_tool else ""


def summarise(request: Request) -> str:
    """Return on one line what a request asks."""
    payload = request.payload
    if request.type == "plan_approval":
        return f"plan: {plan_title(str(payload.get('plan', ''))) or '(empty)'}"
    if request.type == "question":
        return "asks: " + str(payload.get("question", ""))
    if request.type == "permission":
        return f"wants to run {payload.get('tool', '')}: {payload.get('summary', '')}"
    return f"asks {request.to} to shut down"


def tasks_blocked_by(view: TeamView, need: Need) -> tuple[Task, ...]:
    """Return the task that the agent has, or had when it died, and every open task that waits for it, nearest first."""
    agent = view.agent(need.agent)
    own = [task for task in view.tasks if agent is not None and task.id == agent.task]
    found = list(view.freed_by(need.agent)) if need.kind == "death" else own
    # The list grows while it is read: tasks that wait for tasks that wait.
    for task in found:
        ids = {each.id for each in found}
        found += [each for each in view.tasks if each.id not in ids and _waits_for(each, task)]
    return tuple(found)


def _waits_for(task: Task, other: Task) -> bool:
    return task.status == "pending" and other.id in task.blocked_by


def response_times_today(requests: Iterable[Request], now: float) -> ResponseTimes | None:
    """Return how the operator answered since midnight, local time; None if nothing was answered."""
    midnight = _midnight(now)
    waits = [
        request.decided_at - request.created_at
        for request in requests
        if request.decided_by == OPERATOR and request.decided_at is not None and midnight <= request.decided_at <= now
    ]
    return ResponseTimes(len(waits), median(waits)) if waits else None


def _midnight(now: float) -> float:
    today = time.localtime(now)
    return time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))
