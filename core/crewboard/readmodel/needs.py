"""Needs: everything that waits for the operator, in order of urgency, and the tasks that wait behind each."""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from crewboard.errors import ExitCode
from crewboard.names import OPERATOR, SYSTEM
from crewboard.protocol.collisions import Collision
from crewboard.readmodel.mail import UnreadResults, plan_title
from crewboard.readmodel.team import AgentView, Need, SupervisorView, TeamView
from crewboard.records.agents import McpState
from crewboard.records.base import counted
from crewboard.records.processes import SupervisorFailure, describe_exit
from crewboard.records.requests import Request
from crewboard.records.team import (
    OUTAGE_MARK,
    Task,
    check_mark,
    collision_mark,
    damage_mark,
    mcp_mark,
    result_mark,
    task_mark,
)
from crewboard.untrusted import as_run

if TYPE_CHECKING:
    from crewboard.readmodel.states import WantedHost

NEED_OF_REQUEST: dict[str, Literal["plan", "permission", "question", "review"]] = {
    "plan_approval": "plan", "permission": "permission", "question": "question", "task_review": "review",
}  # fmt: skip
"""The kind of need that a request to the operator is, by type of request."""

CHECK_FAILURES = 3
"""Failures of a task's check in a row from which on it needs the operator."""

_MOST_OF_A_DAY = 20 * 3600.0
"""Seconds from which on a time is shown with its date: the time of the day alone would be taken for one of today."""

_OPEN = ("pending", "in_progress")

_FAILURES = 2
"""Failures of the supervisor at one place from which on it needs the operator: another attempt will not help."""

ORPHANED_AFTER = 30.0
"""Seconds, from the last record of a lost host on, after which agents that are alive without it are reported. If its
machine went down, their leases are over by then, unless the team's leases last longer than usual.
"""

BURST = 5.0
"""Seconds within which several requests count as made at the same time."""


class Damage(Struct, frozen=True):
    """A file that cannot be read, or `count` lines that were set aside (`is_lines`).

    The damage was done at `since` or earlier. `version` is higher for each new damage at the same place: it is the time
    of the change, the number of lines, or the number of a run. `seen_as` is the name under which an acknowledgement is
    recorded; by default it is the place.
    """

    place: str
    agent: str
    count: int
    since: float
    version: float
    is_lines: bool = False
    seen_as: str = ""


class TeamEvidence(Struct, frozen=True):
    """The facts about a team that may need the operator and that its view does not show.

    `only_operator` are the recipients whose requests only the operator can answer, `failure` is the supervisor's last
    failure, and `seen` is `OperatorState.needs`.
    """

    only_operator: frozenset[str]
    failure: SupervisorFailure | None
    results: tuple[UnreadResults, ...]
    damage: tuple[Damage, ...]
    collisions: tuple[Collision, ...]
    seen: Mapping[str, float]


class Waiting(Struct, frozen=True):
    """The names of agents, and the tasks, that wait behind a need."""

    agents: tuple[str, ...]
    tasks: tuple[Task, ...]

    @property
    def count(self) -> int:
        """Return the number of agents and tasks."""
        return len(self.agents) + len(self.tasks)

    def describe(self) -> str:
        """Return in words what waits: `#14`, `2 tasks`, `2 tasks, 1 agent`; empty if nothing waits."""
        tasks = f"#{self.tasks[0].id}" if len(self.tasks) == 1 else f"{len(self.tasks)} tasks" if self.tasks else ""
        agents = counted(len(self.agents), "agent") if self.agents else ""
        return ", ".join(part for part in (tasks, agents) if part)


class ResponseTimes(Struct, frozen=True):
    """How many requests the operator answered today, and the median of the seconds that they waited."""

    count: int
    median: float


def find_needs(view: TeamView, evidence: TeamEvidence) -> tuple[Need, ...]:
    """Return the needs of a team, the most urgent first. Every view, command and notification shows this list."""
    agents = view.agents
    dead = [agent for agent in agents if agent.is_dead and not agent.acknowledged and not agent.is_open]
    stopped = [agent for agent in agents if agent.has_failed and agent.state not in ("stuck", "looping")]
    return (
        *_supervisor_needs(view.supervisor, evidence.failure),
        *_by_age(_death_needs(dead)),
        *_asked_needs(view.requests, evidence.only_operator),
        *_by_age(Need("stuck", each.name, each.since, each.reason) for each in agents if each.state == "stuck"),
        *_by_age(Need("looping", each.name, each.since, each.reason) for each in agents if each.state == "looping"),
        *_by_age(Need("failed_start", each.name, each.since, each.reason) for each in agents if each.failed_start),
        *_by_age(_no_host_needs(agents)),
        *_by_age(_orphan_needs(view)),
        *_by_age(map(_failed_assignment, stopped)),
        *_by_age(_left_needs(view, evidence.seen)),
        *_collision_needs(evidence),
        *_outage_need(agents, evidence.seen),
        *_by_age(_damage_needs(evidence)),
        *_by_age(_task_needs(view, evidence.seen)),
        *_by_age(_check_needs(view, evidence.seen)),
        *_by_age(_mcp_needs(agents, evidence.seen)),
        *_by_age(_result_needs(evidence)),
    )


def _by_age(needs: Iterable[Need]) -> list[Need]:
    return sorted(needs, key=lambda need: need.since)


def _death_needs(dead: Iterable[AgentView]) -> Iterator[Need]:
    """Yield one need for each agent that died: how, and the error, that it was idle, or the tool that ran.

    For all agents of a host that was lost, or that ended while they were at work, there is one need.
    """
    by_host: dict[str, list[AgentView]] = {}
    for agent in dead:
        if agent.ended_with_host:
            by_host.setdefault(agent.status.host, []).append(agent)
            continue
        record, status = agent.exit, agent.status
        how = describe_exit(record) if record else agent.reason
        summary = f"died: {how}"
        if record and record.code and status.last_error:
            # The error may begin with the words for the exit code.
            words = how.removeprefix(f"exit {record.code}: ")
            summary = summary.removesuffix(f": {words}") if status.last_error.startswith(words) else summary
            summary += f": {status.last_error}"
        elif agent.rested is not None:
            summary += f", {agent.rested.describe(agent.since)}"
        elif status.last_tool and status.doing.startswith(status.last_tool):
            # Of a call that was over, the status may not be the last word: a later one is in the journal before it is
            # here.
            summary += f", last tool {status.last_tool}"
        code = record.code if record else None
        yield Need("death", agent.name, agent.since, summary, code=code, refused_by=status.refused_by)
    for host, here in by_host.items():
        names = tuple(agent.name for agent in here)
        since = min(agent.since for agent in here)
        cut_off = [agent for agent in here if agent.state == "exited"]
        lost = [agent for agent in here if agent.state != "exited"]
        told = []
        if lost:
            evidence = next((agent.exit.evidence for agent in lost if agent.exit is not None), "")
            # The host may be up again, so it is not said that it is lost.
            others = f", with {counted(len(lost) - 1, 'other')}" if len(lost) > 1 else ""
            told.append(f"lost on host {host}{others}" + (f": {evidence}" if evidence else ""))
        if cut_off:
            were = "was" if len(cut_off) == 1 else "were"
            told.append(f"host {host} ended while {counted(len(cut_off), 'agent')} {were} at work")
        yield Need("death", names[0], since, "; ".join(told), agents=names, host=host)


def _no_host_needs(agents: Iterable[AgentView]) -> Iterator[Need]:
    """Yield one need for all agents that wait for the same host or labels, for the same reason."""
    groups: dict[tuple[str, WantedHost], list[AgentView]] = {}
    for agent in agents:
        if agent.waits_for_host is not None:
            groups.setdefault((agent.reason, agent.waits_for_host), []).append(agent)
    for (reason, wanted), waiting in groups.items():
        others = f" (and {counted(len(waiting) - 1, 'other')})" if len(waiting) > 1 else ""
        names = tuple(agent.name for agent in waiting)
        since = min(agent.since for agent in waiting)
        yield Need("no_host", names[0], since, f"{reason}{others}", agents=names, wanted=wanted)


def _orphan_needs(view: TeamView) -> Iterator[Need]:
    """Yield one need for each lost host whose agents are still alive: only the host's process was killed."""
    for host in view.hosts:
        if host.state != "lost" or not host.agents or view.now - host.seen < ORPHANED_AFTER:
            continue
        one = len(host.agents) == 1
        who = "agent runs" if one else f"{len(host.agents)} agents run"
        left_out = "nothing restarts it or counts its load" if one else "nothing restarts them or counts their load"
        summary = f"host {host.name} is not up; its {who} on without it: {left_out}"
        first = host.agents[0]
        yield Need("no_host", first, host.seen, summary, agents=host.agents, host=host.name, wanted=host.wanted)


def ways_to_begin(need: Need) -> list[tuple[str, str]]:
    """Return the ways to get a host for the agents of a `no_host` need, in words and as arguments of `crewboard`.

    Empty if no way is known.
    """
    wanted = need.wanted
    if wanted is None:
        return []
    found = []
    where = f" on a machine with {wanted.engine} on its PATH" if wanted.engine is not None else ""
    labels = "".join(f" --label {label}" for label in wanted.labels)
    if wanted.name is None:
        found.append((f"start a host{where}", f"host{labels}"))
    else:
        # One that is up lacks a slot or a label, and another of its name cannot start.
        found += [] if wanted.is_up else [(f"start that host{where}", f"host --name {wanted.name}{labels}")]
        found += [("move it", f"resume {need.agent} --host {wanted.other}")] if wanted.other is not None else []
    return found


def _failed_assignment(agent: AgentView) -> Need:
    """Return the need for an assignment that ended with an error."""
    # Imported here: it knows the words of many servers, and the first picture needs none of them.
    from crewboard import models

    since = agent.status.failed_at if agent.alive else agent.since
    code = agent.status.failed if agent.exit is None or agent.alive else agent.exit.code
    why = agent.status.last_error or agent.reason or "its last assignment ended with an error"
    helps = models.remedy(why)
    # What helps comes first: the end of a long line may not be shown.
    summary = f"stopped: {why}" if helps is None else f"stopped; {helps}: {why.removesuffix(f'; {helps}')}"
    return Need("failed", agent.name, since, summary, code=code, limit=agent.limit, refused_by=agent.status.refused_by)


def _left_needs(view: TeamView, seen: Mapping[str, float]) -> Iterator[Need]:
    """Yield a need for each idle agent that left its task in progress without a report: no agent goes on with it."""
    for agent in view.agents:
        task = view.task(agent.status.unreported) if agent.status.unreported is not None else None
        if task is None or task.rev <= seen.get(mark := task_mark(task.id), -1):
            continue
        summary = f"{agent.left}: it did not report the outcome of {task.subject}"
        yield Need(
            "failed", agent.name, agent.since, summary, code=ExitCode.FAILED, task=task.id, marks=((mark, task.rev),)
        )


def _supervisor_needs(supervisor: SupervisorView, failure: SupervisorFailure | None) -> Iterator[Need]:
    """Yield the needs of a supervisor that hangs, and of one that failed twice at the same place."""
    if supervisor.silent_since is not None:
        # It keeps its lock, so that no other one can start.
        summary = "supervisor hangs: `crewboard supervisor --restart` replaces it, agents keep working"
        yield Need("failed", SYSTEM, supervisor.silent_since, summary, code=ExitCode.TRY_LATER)
    if failure is not None and failure.count >= _FAILURES:
        # It goes on with the other agents.
        where = f" with {failure.agent}" if failure.agent else ""
        summary = (
            f"supervisor failed {failure.count} times{where} at {failure.place}: {failure.error}; "
            "look at supervisor.log, remove what it names, and report it"
        )
        yield Need("failed", failure.agent or SYSTEM, failure.since, summary, code=ExitCode.INTERNAL)


def _outage_need(agents: tuple[AgentView, ...], seen: Mapping[str, float]) -> list[Need]:
    """Return the one need for all agents that wait for the end of an outage, of the API or of engines, in a list.

    Empty if no agent waits, or the outage was acknowledged.
    """
    waiting = [agent for agent in agents if agent.waits_for_api]
    since = min((agent.status.outage_since or 0 for agent in waiting), default=0)
    if not waiting or since <= seen.get(OUTAGE_MARK, 0):
        return []
    # An engine's error names the engine, which may have ended while its API is well. One of the API is told first.
    errors = {
        agent.status.last_error: agent.spec is not None and agent.spec.engine is not None
        for agent in waiting
        if agent.status.last_error
    }
    error = min(errors, key=lambda each: errors[each], default="no reason given")
    what = error if errors.get(error) else f"the API is unavailable: {error}"
    names = f"{len(waiting)} agents wait" if len(waiting) > 1 else f"{waiting[0].name} waits"
    until = outage_end(agents)
    # A weekly limit ends on another day.
    day = time.strftime("%b %-d ", time.localtime(until)) if until and until - since > _MOST_OF_A_DAY else ""
    # Imported here: it knows the words of many servers, and the first picture needs none of them.
    from crewboard import models

    summary = f"{what}; {names}" + (f" until {day}{format_minute(until)}" if until else "")
    if (helps := models.remedy(error)) is not None and helps not in error:
        summary += f"; {helps}"
    joined = max(agent.status.outage_since or 0 for agent in waiting)
    return [Need("outage", SYSTEM, since, summary, marks=((OUTAGE_MARK, joined),))]


def outage_end(agents: Iterable[AgentView]) -> float | None:
    """Return when the next agent that waits for the API tries again, in epoch seconds; None if none waits."""
    return min(
        (agent.status.retry_at for agent in agents if agent.waits_for_api and agent.status.retry_at), default=None
    )


def format_minute(at: float) -> str:
    """Return the local time of the day, such as `15:00`."""
    return time.strftime("%H:%M", time.localtime(at))


def _damage_needs(evidence: TeamEvidence) -> Iterator[Need]:
    for each in evidence.damage:
        mark = damage_mark(each.seen_as or each.place)
        if each.version <= evidence.seen.get(mark, 0):
            continue
        lines = f"{counted(each.count, 'unreadable line')} in"
        summary = f"{lines if each.is_lines else 'cannot read'} {each.place}"
        yield Need("damaged", each.agent, each.since, summary, file=each.place, marks=((mark, each.version),))


def _collision_needs(evidence: TeamEvidence) -> Iterator[Need]:
    """Yield one need for each pair of agents that collide, unless no file was added since it was acknowledged."""
    for each in evidence.collisions:
        (name, other), mark = each.agents, collision_mark(*each.agents)
        if each.since > evidence.seen.get(mark, 0):
            more = f" and {len(each.files) - 1} more" if len(each.files) > 1 else ""
            summary = f"collides with {other} in {each.files[0]}{more}"
            yield Need(
                "collision",
                name,
                each.since,
                summary,
                other=other,
                files=each.files,
                in_worktrees=each.in_worktrees,
                marks=((mark, each.since),),
            )


def _owner(task: Task, view: TeamView) -> str:
    """Return the name of the agent that has or had a task; `system` if it is no longer on the roster."""
    owner = view.agent(task.owner or task.last_owner or "")
    return owner.name if owner is not None else SYSTEM


def _task_needs(view: TeamView, seen: Mapping[str, float]) -> Iterator[Need]:
    for task in view.tasks:
        mark = task_mark(task.id)
        if task.status == "failed" and task.rev > seen.get(mark, -1):
            summary = f"task #{task.id} failed: {task.subject}"
            yield Need(
                "task_failed", _owner(task, view), task.updated_at, summary, task=task.id, marks=((mark, task.rev),)
            )


def _check_needs(view: TeamView, seen: Mapping[str, float]) -> Iterator[Need]:
    for task in view.tasks:
        mark, last = check_mark(task.id), task.checked
        if last is None or task.status not in _OPEN or task.check_failures < CHECK_FAILURES:
            continue
        if last.at > seen.get(mark, 0):
            owner = _owner(task, view)
            summary = f"check of #{task.id} failed {task.check_failures} times: {as_run(last.command)}"
            marks = ((mark, last.at),)
            yield Need("check_failed", owner, last.at, summary, task=task.id, file=last.result, marks=marks)


def _mcp_needs(agents: tuple[AgentView, ...], seen: Mapping[str, float]) -> Iterator[Need]:
    """Yield one need for each MCP server that agents lack, and each reason."""
    lacking: dict[tuple[str, str], list[tuple[AgentView, McpState]]] = {}
    for agent in agents:
        for state in agent.status.mcp if agent.alive else ():
            if state.problem and state.since > seen.get(mcp_mark(agent.name, state.name), 0):
                lacking.setdefault((state.name, state.problem), []).append((agent, state))
    for (server, problem), found in lacking.items():
        first, state = found[0]
        others = f" and {counted(len(found) - 1, 'other')}" if len(found) > 1 else ""
        yield Need(
            "mcp",
            first.name,
            min(each.since for _, each in found),
            f"works without the MCP server {server}{others and f' ({first.name}{others})'}: {problem}",
            server=server,
            is_new=state.new,
            marks=tuple((mcp_mark(agent.name, server), each.since) for agent, each in found),
        )


def _result_needs(evidence: TeamEvidence) -> Iterator[Need]:
    """Yield one need for each agent with unread results; it shows the newest result and since when it is unread."""
    by_author: dict[str, list[UnreadResults]] = {}
    for found in evidence.results:
        by_author.setdefault(found.author, []).append(found)
    for author, mailboxes in by_author.items():
        newest = max(mailboxes, key=lambda found: found.newest)
        count = sum(found.count for found in mailboxes)
        more = f" (+{count - 1} more)" if count > 1 else ""
        yield Need(
            "result",
            author,
            newest.newest,
            f"result{more}: {newest.text}",
            file=newest.file,
            mailbox=newest.mailbox,
            count=count,
            marks=tuple((result_mark(found.mailbox, author), float(found.end)) for found in mailboxes),
        )


def to_acknowledge(view: TeamView, name: str) -> tuple[Need, ...]:
    """Return the needs of an agent, or of `system`, that one acknowledgement ends.

    Collisions are included only if the other needs are results, and results only if there is no other need:
    acknowledging a death must not mark a result as read.
    """
    found = [need for need in view.needs if name in (need.agent, need.other, *need.agents) and need.is_acknowledgeable]
    urgent = tuple(need for need in found if need.kind not in ("collision", "result"))
    return urgent or tuple(need for need in found if need.kind != "result") or tuple(found)


def _asked_needs(requests: Iterable[Request], only_operator: Collection[str]) -> list[Need]:
    """Return the needs of open requests, oldest first. Of those within `BURST` of the first one, plans come first.

    The order of such requests is chance, and a plan blocks more than a question.
    """
    first = float("-inf")
    bursts: dict[Need, float] = {}
    for each in requests:
        # A lead reviews work while it runs, even if it reviews no plans.
        answered_here = {OPERATOR} if each.type == "task_review" else only_operator
        if each.to in answered_here and (kind := NEED_OF_REQUEST.get(each.type)) is not None:
            first = first if each.created_at - first < BURST else each.created_at
            need = Need(
                kind, each.from_, each.created_at, summarise(each), each.id,
                answered_in=each.answered_in, sha256=each.sha256,
            )  # fmt: skip
            bursts[need] = first
    return sorted(bursts, key=lambda need: (bursts[need], need.kind != "plan", need.since))


def summarise(request: Request) -> str:
    """Return what a request asks, on one line."""
    payload = request.payload
    if request.type == "plan_approval":
        # What is submitted with a plan is approved with it. Its lines are counted as in the Inbox, without these.
        lists = ((word, payload.get(f"{word}s")) for word in ("file", "command"))
        beside = [f" · {counted(len(value), word)}" for word, value in lists if isinstance(value, list) and value]
        return f"plan: {plan_title(request.plan or '(empty)')}{''.join(beside)}"
    if request.type == "question":
        # A hook may print it: no line of a question is to look like another need.
        return "asks: " + " ".join(str(payload.get("question", "")).splitlines())
    if request.type == "permission":
        # Before the file: the end of a line may be cut, and the other agent is what the operator has to know.
        collides = f" · {payload['collision']}" if payload.get("collision") else ""
        return f"wants to run {payload.get('tool', '')}{collides}: {as_run(str(payload.get('summary', '')))}"
    if request.type == "task_review":
        return f"wants a review of #{payload.get('task', '')}: {payload.get('subject', '')}"
    return f"asks {request.to} to shut down"


def tasks_blocked_by(view: TeamView, need: Need) -> tuple[Task, ...]:
    """Return the tasks that wait behind a need: the agent's own first, then those that wait for these, nearest first.

    The agent's own task is the one that it has, or had when it died. No task waits behind an unread result.
    """
    if need.kind == "result":
        return ()
    failed = view.task(need.task)
    if need.kind == "death":
        found = [task for name in need.agents or (need.agent,) for task in view.freed_by(name)]
    elif failed is not None:
        found = [failed]
    else:
        agents = (
            [view.agent(need.agent)] if need.kind != "outage" else [each for each in view.agents if each.waits_for_api]
        )
        ids = {each.task for each in agents if each is not None}
        found = [task for task in view.tasks if task.id in ids]
    # The list grows while it is read: tasks that wait for tasks that wait.
    for task in found:
        known = {each.id for each in found}
        waiting = (each for each in view.tasks if each.status == "pending" and task.id in each.blocked_by)
        found += [each for each in waiting if each.id not in known]
    return tuple(task for task in found if task is not failed)


def waiting_behind(view: TeamView, need: Need) -> Waiting:
    """Return what waits behind a need: tasks, their owners, and agents that asked the need's agent something.

    Behind an outage, also the agents that wait for the API. The need's own agents are left out.
    """
    tasks = tasks_blocked_by(view, need)
    owners = [task.owner for task in tasks if task.owner]
    mine = need.agents or (need.agent,)
    asking = [request.from_ for request in view.requests if request.to in mine]
    held_up = [each.name for each in view.agents if need.kind == "outage" and each.waits_for_api]
    names = dict.fromkeys(name for name in (*held_up, *owners, *asking) if name not in mine)
    return Waiting(tuple(names), tasks)


def response_times_today(requests: Iterable[Request], now: float) -> ResponseTimes | None:
    """Return the operator's response times since midnight, local time; None if nothing was answered."""
    from statistics import median

    today = time.localtime(now)
    midnight = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, 0, 0, 0, 0, 0, -1))
    waits = [
        request.decided_at - request.created_at
        for request in requests
        if request.decided_by == OPERATOR and request.decided_at is not None and midnight <= request.decided_at <= now
    ]
    return ResponseTimes(len(waits), median(waits)) if waits else None
