"""The readers of a team's files and of each agent's: a read returns a `TeamView`, and parses only what changed."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from crewboard import protocol, store
from crewboard.protocol import only_operator_answers, operator_mailboxes
from crewboard.readmodel.mail import Unread, UnreadResult
from crewboard.readmodel.needs import Damage, OtherEvidence, find_needs
from crewboard.readmodel.processes import KernelProbe, Probe, Usage
from crewboard.readmodel.states import Evidence, find_state, show
from crewboard.readmodel.team import AgentView, Rest, SupervisorView, TeamView
from crewboard.records import (
    OPERATOR,
    SYSTEM,
    Config,
    Cursor,
    Exit,
    HeldStarts,
    Member,
    OperatorState,
    Presence,
    Request,
    Spec,
    State,
    Status,
    StorageError,
    SupervisorFailure,
    Task,
    is_name,
    result_mark,
)
from crewboard.store import AgentDirectory, CachedFile, CachedFolder, TeamDirectory

_RESTS: frozenset[State] = frozenset({"idle", "paused"})

MEASURE_EVERY = 1.0
"""Seconds between two measurements of CPU and memory."""


class AgentReader:
    """The files of one agent."""

    def __init__(self, team: TeamDirectory, name: str) -> None:
        self._team = team
        self.directory: AgentDirectory = team.agent(name)
        self.spec = CachedFile(self.directory.spec, Spec)
        self.status = CachedFile(self.directory.status, Status)
        self.exit = CachedFile(self.directory.exit, Exit)
        self.cursor = CachedFile(self.directory.cursor, Cursor)
        self.seen_alive: float | None = None
        self.seen_gone: float | None = None
        cursor = self.cursor.get() or Cursor()
        self.unread = Unread(team, name, cursor.offset)

    def note_lease(self, held: bool, now: float) -> bool:  # noqa: FBT001
        """Note when the lease was last seen held, and first seen free after that; return `held`."""
        if held:
            self.seen_alive, self.seen_gone = now, None
        elif self.seen_gone is None:
            self.seen_gone = now
        return held

    @property
    def damage(self) -> list[Damage]:
        """Return the unreadable files, and the unreadable lines of mail and journal."""
        name, cursor = self.directory.name, self.cursor.last_good or Cursor()
        records = (self.spec, self.status, self.exit, self.cursor)
        files = [damaged_file(self._team, record.path, name) for record in records if record.damaged]
        count = cursor.damaged + self.unread.damaged
        return [*files, damaged_mail(self._team, f"mail or journal of {name}", name, count)] if count else files


@dataclass(frozen=True)
class AgentFacts:
    """The facts read about one agent, before its state is decided."""

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
    is_stopped: bool = False
    supervised: bool = False
    seen_alive: float | None = None
    seen_gone: float | None = None
    lease_unreadable: bool = False
    queued: str = ""
    failure_seen: float = 0
    unread_results: int = 0


def project_agent(facts: AgentFacts, boot_id: str, now: float) -> AgentView:
    """Return the view that follows from the facts about one agent."""
    found = find_state(_evidence(facts, boot_id, now))
    status = facts.status or Status(run=0, pid=0, state="unknown", since=0)
    run = max(status.run, facts.exit.run if facts.exit else 0)
    acknowledged = not facts.held and 0 < run == facts.acknowledged
    ended = facts.exit if facts.exit and facts.exit.run == run else None
    return AgentView(
        name=facts.member.name,
        type=facts.member.type,
        role=facts.member.role,
        model=status.model or facts.member.model,
        state=found.state,
        shown=show(found.state, list(facts.asks), ended, acknowledged=acknowledged),
        reason=found.reason,
        since=found.since,
        doing=found.reason if found.state == "unknown" or not facts.held else status.doing,
        run=run or (facts.spec.run if facts.spec else 0),
        pid=status.pid or None,
        alive=facts.held,
        exit=ended,
        acknowledged=acknowledged,
        unread=facts.unread,
        turn=status.turn,
        task=facts.task,
        waiting_for=status.waiting_for if facts.held else None,
        retry_at=status.retry_at if facts.held else None,
        last_error=status.last_error,
        failed=status.failed if status.failed_at > facts.failure_seen else None,
        failed_at=status.failed_at,
        last_tool=status.last_tool,
        deviations=status.deviations,
        tokens=status.tokens,
        context=status.context,
        cost_usd=status.cost_usd,
        usage=facts.usage if facts.held else None,
        sandbox=status.sandbox,
        damaged=facts.damaged,
        spec=facts.spec,
        asks=facts.asks,
        rested=_rest(facts, status) if status.run == run else None,
        is_starting=found.is_starting,
        failed_start=found.failed_start,
        is_open=found.is_open,
        unsafe=facts.held and status.unsafe,
        unread_results=facts.unread_results,
        outage_since=status.outage_since,
    )


def _evidence(facts: AgentFacts, boot_id: str, now: float) -> Evidence:
    return Evidence(
        facts.held, facts.spec, facts.status, facts.exit, boot_id, now,
        pid_gone=facts.pid_gone, is_stopped=facts.is_stopped, supervised=facts.supervised,
        seen_alive=facts.seen_alive, seen_gone=facts.seen_gone, lease_unreadable=facts.lease_unreadable,
        queued=facts.queued,
    )  # fmt: skip


def _rest(facts: AgentFacts, status: Status) -> Rest | None:
    return Rest(status.state, status.since) if not facts.held and status.state in _RESTS else None


def damaged_file(team: TeamDirectory, path: Path, agent: str = SYSTEM) -> Damage:
    """Return the damage of a file that cannot be read."""
    changed = store.files.changed_at(path)
    return Damage(str(path.relative_to(team.path)), agent, 1, changed, version=changed)


def damaged_mail(team: TeamDirectory, place: str, name: str, count: int) -> Damage:
    """Return the damage of lines that were set aside. Only the time of the last one is known."""
    return Damage(place, name, count, store.files.changed_at(team.inbox(name)), version=count, is_lines=True)


class TeamReader:
    """A reader of a team's files. Takes no lock and writes nothing."""

    def __init__(
        self, team: TeamDirectory, *, clock: Callable[[], float] = time.time, probe: Probe | None = None
    ) -> None:
        self.team = team
        self._clock = clock
        self._probe = probe or KernelProbe()
        self._config = CachedFile(team.config, Config)
        self._operator = CachedFile(team.operator, OperatorState)
        self._starts = CachedFile(team.starts, HeldStarts)
        self._failure = CachedFile(team.supervisor_failure, SupervisorFailure)
        self._agents: dict[str, AgentReader] = {}
        self._tasks = CachedFolder(team.tasks, Task)
        self._requests = CachedFolder(team.requests, Request)
        self._mailboxes: dict[str, Unread] = {}
        self._usage: dict[str, Usage] = {}
        self._measured_at = 0.0
        self._silent_since: float | None = None
        self._unreadable: set[Path] = set()
        """Leases that could not be examined at this reading."""

    def read(self) -> TeamView:
        """Return the team as it is now."""
        now = self._clock()
        self._unreadable.clear()
        listed = self._config.get()
        if listed is None and not self._config.damaged:
            return self._empty_view(now)
        config = listed or self._roster_from_files()
        shown = "its last good state" if listed else "the agents that have files"
        asked = tuple(sorted(self._requests.all(), key=lambda request: (request.created_at, request.id)))
        pending = tuple(request for request in asked if request.status == "pending")
        board = tuple(sorted(self._tasks.all(), key=lambda task: task.id))
        operators = operator_mailboxes(config.names)
        only_operator = only_operator_answers(config, lambda: self._is_held(self.team.agent(config.lead)))
        supervisor = self._supervisor(now)
        operator = self._operator.get() or OperatorState()
        to_operator = self._count_mail(operators, operator)
        results = self._unread_results(operators, operator)
        counts = Counter(result.author for result in results)
        agents = self._read_agents(config, pending, board, only_operator, counts, now, supervised=supervisor.alive)
        unread = {agent.name: agent.unread for agent in agents} | to_operator
        backend = "offline" if self._is_locked(self.team.model_lock) else "api"
        # Last, because it reports what the reads above could not read.
        damage = self._damage()
        return TeamView(
            name=config.name,
            path=self.team.path,
            root=self.team.root,
            description=config.description,
            plan_approver=config.plan_approver,
            model_backend=backend,
            supervisor=supervisor,
            agents=agents,
            requests=pending,
            tasks=board,
            needs=find_needs(
                agents,
                pending,
                only_operator,
                self._failure.get(),
                supervisor,
                OtherEvidence(board, results if config.result_needs else (), damage, operator.needs),
            ),
            asked=asked,
            unread=unread,
            budget=config.budget,
            removed=config.removed_total,
            damage={each.place: each.count for each in damage},
            problem=f"{self.team.config} is damaged; showing {shown}" if self._config.damaged else None,
            storage=store.files.disk_state(self.team.path),
            present=self._present(),
            unprovided=any(not each.provided for each in (self._starts.get() or HeldStarts()).held),
            now=now,
        )

    def _empty_view(self, now: float) -> TeamView:
        return TeamView(
            name=self.team.path.name, path=self.team.path, root=self.team.root, description="", plan_approver=OPERATOR,
            model_backend="api", supervisor=self._supervisor(now), agents=(), requests=(), tasks=(), needs=(), now=now,
        )  # fmt: skip

    def _roster_from_files(self) -> Config:
        """Return a roster of the agents that have files, so that a damaged roster does not hide running agents."""
        names = sorted(path.name for path in self.team.agents.glob("*") if is_name(path.name))
        specs = {name: CachedFile(self.team.agent(name).spec, Spec).get() for name in names}
        members = [
            Member(name=name, type=spec.type, role=spec.role, model=spec.model) if spec else Member(name=name, type="")
            for name, spec in specs.items()
        ]
        return Config(name=self.team.path.name, members=members)

    def _read_agents(
        self,
        config: Config,
        pending: tuple[Request, ...],
        board: tuple[Task, ...],
        only_operator: frozenset[str],
        results: Counter[str],
        now: float,
        *,
        supervised: bool,
    ) -> tuple[AgentView, ...]:
        members: dict[str, Member] = {}
        for member in config.members:
            # A roster that was edited by hand may name an agent twice.
            members.setdefault(member.name, member)
        self._agents = {name: self._agents.get(name) or AgentReader(self.team, name) for name in members}
        held = {name: reader.note_lease(self._is_held(reader.directory), now) for name, reader in self._agents.items()}
        self._measure(held, now)
        operator = self._operator.get() or OperatorState()
        holding = {task.owner: task.id for task in board if task.status == "in_progress"}
        boot_id = self._probe.boot_id()
        waiting = self._starts.get() or HeldStarts()
        views = []
        for member in members.values():
            reader = self._agents[member.name]
            cursor, spec = reader.cursor.get() or Cursor(), reader.spec.get()
            facts = AgentFacts(
                member=member,
                held=held[member.name] or self._has_just_started(reader, now),
                spec=spec,
                status=reader.status.get(),
                exit=reader.exit.get(),
                unread=reader.unread.count(cursor.offset),
                damaged=sum(damage.count for damage in reader.damage),
                acknowledged=operator.acknowledged.get(member.name, 0),
                task=holding.get(member.name),
                asks=tuple(r for r in pending if r.from_ == member.name and r.to in only_operator),
                usage=self._usage.get(member.name),
                pid_gone=held[member.name] and self._pid_is_gone(reader),
                is_stopped=held[member.name] and self._is_stopped(reader),
                supervised=supervised,
                seen_alive=reader.seen_alive,
                seen_gone=reader.seen_gone,
                lease_unreadable=reader.directory.lease in self._unreadable,
                queued=waiting.describe(member.name, spec.run, now) if spec is not None else "",
                failure_seen=operator.failures.get(member.name, 0),
                unread_results=results[member.name],
            )
            views.append(project_agent(facts, boot_id, now))
        return tuple(views)

    def _has_just_started(self, reader: AgentReader, now: float) -> bool:
        """Return True if a worker took the lease since it was first read: it does so before it writes its status."""
        status, ended = reader.status.get(), reader.exit.get()
        if status is None or (ended is not None and ended.run >= status.run):
            return False
        held = self._is_held(reader.directory)
        return held and reader.note_lease(held, now)

    def _pid_is_gone(self, reader: AgentReader) -> bool:
        """Return True if the lease is still held but its process is gone: a worker frees the lease before it ends."""
        status = reader.status.get()
        return status is not None and not self._probe.lives(status) and self._is_held(reader.directory)

    def _is_stopped(self, reader: AgentReader) -> bool:
        status = reader.status.get()
        return status is not None and self._probe.is_stopped(status)

    def _measure(self, held: dict[str, bool], now: float) -> None:
        if abs(now - self._measured_at) < MEASURE_EVERY:
            return
        self._measured_at = now
        living = {
            name: status
            for name, reader in self._agents.items()
            if held[name] and (status := reader.status.get()) is not None
        }
        self._usage = self._probe.measure(living)

    def _count_mail(self, operators: frozenset[str], seen: OperatorState) -> dict[str, int]:
        """Return how many messages the operator has not read, by mailbox."""
        counts = {}
        for name in sorted(operators):
            counter = self._mailboxes.setdefault(name, Unread(self.team, name, seen.read.get(name, 0)))
            counts[name] = counter.count_for_operator(seen.read.get(name, 0))
        return counts

    def _unread_results(self, operators: frozenset[str], seen: OperatorState) -> tuple[UnreadResult, ...]:
        """Return the results that the operator has neither read nor acknowledged, in the order of the mailboxes."""
        return tuple(
            result
            for name in sorted(operators)
            for result in self._mailboxes[name].results
            if result.end > seen.needs.get(result_mark(name, result.author), 0)
        )

    def _supervisor(self, now: float) -> SupervisorView:
        if not self._is_locked(self.team.supervisor_lock):
            return SupervisorView(None, alive=False)
        holder = self._probe.supervisor(self.team.supervisor_lock)
        silence = protocol.supervisor_client.silent_for(holder) if holder else None
        # Computed once: two clocks are never read at the same moment, and that difference must not change the view.
        self._silent_since = None if silence is None else self._silent_since or now - silence
        return SupervisorView(holder.pid if holder else None, alive=True, silent_since=self._silent_since)

    def _present(self) -> tuple[Presence, ...]:
        """Return the open dashboards. Ignore those that cannot be examined."""
        try:
            return store.operators.present(self.team)
        except StorageError:
            return ()

    def _is_held(self, agent: AgentDirectory) -> bool:
        """Return True if a worker holds the agent's lease; note a lease that cannot be examined."""
        try:
            return self._probe.is_held(agent)
        except StorageError:
            self._unreadable.add(agent.lease)
            return False

    def _is_locked(self, path: Path) -> bool:
        """Return True if a process holds the lease at `path`; note a lease that cannot be examined."""
        try:
            return self._probe.is_locked(path)
        except StorageError:
            self._unreadable.add(path)
            return False

    def _damage(self) -> tuple[Damage, ...]:
        """Return all files and lines of the team that cannot be read."""
        records = [record.path for record in (self._config, self._operator) if record.damaged]
        leases = sorted(self._unreadable)
        paths = [*records, *leases, *self._tasks.damaged, *self._requests.damaged]
        boxes = self._mailboxes.items()
        return (
            *(damaged_file(self.team, path) for path in paths),
            *(damaged_mail(self.team, f"mail of {name}", name, box.damaged) for name, box in boxes if box.damaged),
            *(damage for reader in self._agents.values() for damage in reader.damage),
        )


def read_team(team: TeamDirectory) -> TeamView:
    """Return the team as it is now."""
    return TeamReader(team).read()


def blocked(task: Task, board: Iterable[Task]) -> list[int]:
    """Return the ids of the unfinished tasks that `task` waits for."""
    return store.tasks.blockers(task, {other.id: other for other in board})
