"""Reads a team's files into a `TeamView`, again and again, paying only for what changed."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from crewboard.names import LEAD, OPERATOR, is_name
from crewboard.protocol.addressing import only_operator_answers, operator_mailboxes
from crewboard.readmodel.journal_tail import ReplacedFileDetector
from crewboard.readmodel.mail import is_notice
from crewboard.readmodel.processes import KernelProbe, Probe, Usage
from crewboard.readmodel.team import AgentFacts, AgentView, SupervisorView, TeamView, find_needs, project_agent
from crewboard.records import (
    Config,
    Cursor,
    Exit,
    Member,
    OperatorState,
    Request,
    Spec,
    Status,
    Task,
)  # fmt: skip
from crewboard.store import files, json_files, mailbox, tasks
from crewboard.store.json_files import CachedFile, CachedFolder
from crewboard.store.layout import AgentDirectory, TeamDirectory

MEASURE_EVERY = 1.0
"""Seconds between two looks at CPU and memory."""

EXACT = 1024 * 1024
"""Bytes of unread mail that are read as messages."""


class Unread:
    """Counts what lies in a mailbox behind a cursor, reading each byte once.

    In a mailbox that was left for very long, only the newest `EXACT` bytes are read as messages, and each line before
    them counts as one.
    """

    def __init__(self, team: TeamDirectory, name: str, cursor: int) -> None:
        self._team = team
        self._name = name
        self._offset = cursor
        self._successor = ReplacedFileDetector(team.inbox(name))
        self._lines: list[int] = []
        self._letters: dict[str, int] = {}
        self._notices: set[str] = set()
        self._damage: list[int] = []

    def count(self, cursor: int) -> int:
        """How many messages lie behind `cursor`."""
        if self._successor.came(self._offset):
            self._offset, self._lines, self._letters, self._damage = 0, [], {}, []
            self._notices = set()
        size = mailbox.size(self._team, self._name)
        if size - self._offset > EXACT:
            self._skim(size - EXACT)
        batch = mailbox.read(self._team, self._name, self._offset, known=self._letters)
        self._offset = batch.offset
        self._letters.update((message.id, end) for message, end in batch.entries)
        self._notices.update(message.id for message in batch.messages if is_notice(message))
        self._damage += batch.damaged_ends
        self._forget(cursor)
        return len(self._lines) + len(self._letters)

    def count_letters(self, cursor: int) -> int:
        """How many of them a person must read."""
        return self.count(cursor) - len(self._notices)

    @property
    def damaged(self) -> int:
        """How many lines behind the cursor are no message."""
        return len(self._damage)

    def _skim(self, until: int) -> None:
        """Count lines up to the byte `until`."""
        for line, end in files.read_lines(self._team.inbox(self._name), self._offset):
            if end > until:
                return
            self._offset = end
            if line is None or line.strip():
                self._lines.append(end)

    def _forget(self, cursor: int) -> None:
        self._lines = [end for end in self._lines if end > cursor]
        self._letters = {ident: end for ident, end in self._letters.items() if end > cursor}
        self._notices &= self._letters.keys()
        self._damage = [end for end in self._damage if end > cursor]


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

    def note(self, held: bool, now: float) -> bool:  # noqa: FBT001
        """Note when the lease was seen held last, and free first since; returns whether it is held."""
        if held:
            self.seen_alive, self.seen_gone = now, None
        elif self.seen_gone is None:
            self.seen_gone = now
        return held

    @property
    def damage(self) -> Counter[str]:
        """Damaged files of the agent, and lines of its mail and its journal that are none, by where they stand."""
        cursor = self.cursor.last_good or Cursor()
        records = (self.spec, self.status, self.exit, self.cursor)
        lines = {f"mail or journal of {self.directory.name}": cursor.damaged + self.unread.damaged}
        return _places(self._team, (record.path for record in records if record.damaged)) + Counter(lines)


class TeamReader:
    """Folds a team's files into views. Holds no lock and writes nothing."""

    def __init__(
        self, team: TeamDirectory, *, clock: Callable[[], float] = time.time, probe: Probe | None = None
    ) -> None:
        self.team = team
        self._clock = clock
        self._probe = probe or KernelProbe()
        self._config = CachedFile(team.config, Config)
        self._operator = CachedFile(team.operator, OperatorState)
        self._agents: dict[str, AgentReader] = {}
        self._tasks = CachedFolder(team.tasks, Task)
        self._requests = CachedFolder(team.requests, Request)
        self._mailboxes: dict[str, Unread] = {}
        self._usage: dict[str, Usage] = {}
        self._measured_at = 0.0

    def read(self) -> TeamView:
        """The team as it is now."""
        now = self._clock()
        listed = self._config.get()
        if listed is None and not self._config.damaged:
            return self._nothing(now)
        config = listed or self._whoever_has_files()
        shown = "its last good state" if listed else "whoever has files"
        asked = tuple(sorted(self._requests.all(), key=lambda request: (request.created_at, request.id)))
        pending = tuple(request for request in asked if request.status == "pending")
        board = tuple(sorted(self._tasks.all(), key=lambda task: task.id))
        operators = operator_mailboxes(config.names)
        asked_of = only_operator_answers(config, lambda: self._probe.is_held(self.team.agent(LEAD)))
        supervisor = self._supervisor()
        agents = self._read_agents(config, pending, board, asked_of, now, supervised=supervisor.alive)
        unread = self._unread(operators, agents)
        return TeamView(
            name=config.name,
            path=self.team.path,
            root=self.team.root,
            description=config.description,
            plan_approver=config.plan_approver,
            model_backend="offline" if self._probe.is_locked(self.team.model_lock) else "api",
            supervisor=supervisor,
            agents=agents,
            requests=pending,
            tasks=board,
            needs=find_needs(agents, pending, asked_of),
            asked=asked,
            unread=unread,
            budget=config.budget,
            damage=dict(self._damage()),
            problem=f"{self.team.config} is damaged; showing {shown}" if self._config.damaged else None,
            now=now,
        )

    def _nothing(self, now: float) -> TeamView:
        return TeamView(
            name=self.team.path.name, path=self.team.path, root=self.team.root, description="", plan_approver=OPERATOR,
            model_backend="api", supervisor=self._supervisor(), agents=(), requests=(), tasks=(), needs=(), now=now,
        )  # fmt: skip

    def _whoever_has_files(self) -> Config:
        """A roster in the place of one that cannot be read: a torn file must not hide who is at work."""
        names = sorted(path.name for path in self.team.agents.glob("*") if is_name(path.name))
        specs = {name: json_files.load_or_none(self.team.agent(name).spec, Spec) for name in names}
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
        asked_of: frozenset[str],
        now: float,
        *,
        supervised: bool,
    ) -> tuple[AgentView, ...]:
        members: dict[str, Member] = {}
        for member in config.members:
            members.setdefault(member.name, member)  # a roster that was written by hand may name somebody twice
        self._agents = {name: self._agents.get(name) or AgentReader(self.team, name) for name in members}
        held = {name: reader.note(self._probe.is_held(reader.directory), now) for name, reader in self._agents.items()}
        self._measure(held, now)
        acknowledged = (self._operator.get() or OperatorState()).acknowledged
        holding = {task.owner: task.id for task in board if task.status == "in_progress"}
        boot_id = self._probe.boot_id()
        views = []
        for member in members.values():
            reader = self._agents[member.name]
            cursor = reader.cursor.get() or Cursor()
            facts = AgentFacts(
                member=member,
                held=held[member.name] or self._has_just_begun(reader, now),
                spec=reader.spec.get(),
                status=reader.status.get(),
                exit=reader.exit.get(),
                unread=reader.unread.count(cursor.offset),
                damaged=reader.damage.total(),
                acknowledged=acknowledged.get(member.name, 0),
                task=holding.get(member.name),
                asks=tuple(r for r in pending if r.from_ == member.name and r.to in asked_of),
                usage=self._usage.get(member.name),
                pid_gone=held[member.name] and self._pid_is_gone(reader),
                supervised=supervised,
                seen_alive=reader.seen_alive,
                seen_gone=reader.seen_gone,
            )
            views.append(project_agent(facts, boot_id, now))
        return tuple(views)

    def _has_just_begun(self, reader: AgentReader, now: float) -> bool:
        """Looks at the lease again where a run has left no end: who begins takes it before it writes its status."""
        status, ended = reader.status.get(), reader.exit.get()
        if status is None or (ended is not None and ended.run >= status.run):
            return False
        held = self._probe.is_held(reader.directory)
        return held and reader.note(held, now)

    def _pid_is_gone(self, reader: AgentReader) -> bool:
        """Looks at the lease again: who ends lets go of it before the process is gone."""
        status = reader.status.get()
        return status is not None and not self._probe.lives(status) and self._probe.is_held(reader.directory)

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

    def _unread(self, operators: frozenset[str], agents: tuple[AgentView, ...]) -> dict[str, int]:
        """Unread mail by mailbox: of the agents behind their own cursors, of the operator's behind what he has read."""
        read = (self._operator.get() or OperatorState()).read
        counts = {agent.name: agent.unread for agent in agents}
        for name in sorted(operators):
            counter = self._mailboxes.setdefault(name, Unread(self.team, name, read.get(name, 0)))
            counts[name] = counter.count_letters(read.get(name, 0))
        return counts

    def _supervisor(self) -> SupervisorView:
        holder = self._probe.supervisor(self.team.supervisor_lock)
        return SupervisorView(holder.pid if holder else None, self._probe.is_locked(self.team.supervisor_lock))

    def _damage(self) -> Counter[str]:
        records = [record.path for record in (self._config, self._operator) if record.damaged]
        found = _places(self.team, [*records, *self._tasks.damaged, *self._requests.damaged])
        found += Counter({f"mail of {name}": box.damaged for name, box in self._mailboxes.items()})
        return sum((reader.damage for reader in self._agents.values()), start=found)


def _places(team: TeamDirectory, damaged: Iterable[Path]) -> Counter[str]:
    return Counter(str(path.relative_to(team.path)) for path in damaged)


def read_team(team: TeamDirectory) -> TeamView:
    """The team as it is now, once."""
    return TeamReader(team).read()


def blocked(task: Task, board: Iterable[Task]) -> list[int]:
    """The ids of the tasks that still stand in the way of `task`."""
    return tasks.blockers(task, {other.id: other for other in board})
