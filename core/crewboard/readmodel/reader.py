"""The readers of a team's files: each read returns a `TeamView`, and parses only what changed."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, partial
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from crewboard.errors import BadDataError, StorageError
from crewboard.names import LEAD, SYSTEM, operator_mailboxes
from crewboard.protocol import collisions as protocol_collisions
from crewboard.protocol import supervisor_client
from crewboard.protocol.requests import only_operator_answers
from crewboard.readmodel.hosts import HostReader
from crewboard.readmodel.mail import Unread, UnreadResults
from crewboard.readmodel.needs import Damage, TeamEvidence, find_needs
from crewboard.readmodel.processes import KernelProbe, Usage
from crewboard.readmodel.states import Evidence, SeenHost, find_state, show
from crewboard.readmodel.team import AgentView, Rest, SupervisorView, TeamView, answered_by_operator
from crewboard.records.agents import Cursor, McpState, Spec, State, Status, Work
from crewboard.records.processes import HeldStarts
from crewboard.records.requests import Request
from crewboard.records.team import Collisions, Config, Member, OperatorState, Task
from crewboard.store import agents as store_agents
from crewboard.store import files as store_files
from crewboard.store import hosts as store_hosts
from crewboard.store import operators as store_operators
from crewboard.store import roster, tasks
from crewboard.store.interface import Glance, Key
from crewboard.store.layout import AgentDirectory, TeamDirectory

_RESTS: frozenset[State] = frozenset({"idle", "paused"})

MEASURE_EVERY = 1.0
"""Seconds between two measurements of CPU and memory."""


class AgentReader:
    """A reader of the files of one agent, and what was last read from them."""

    def __init__(self, team: TeamDirectory, name: str) -> None:
        self._team = team
        self.directory: AgentDirectory = team.agent(name)
        self.spec = self.directory.spec.watch()
        self.status = self.directory.status.watch()
        self.exit = self.directory.exit.watch()
        self.cursor = self.directory.cursor.watch()
        self.undone = self.directory.undone.watch()
        self.seen_alive: float | None = None
        self.seen_gone: float | None = None
        self.seen_stopped: float | None = None
        self.facts: AgentFacts | None = None
        """The facts about the agent that were last read, with those in the team's files."""
        self.view: AgentView | None = None
        """The view that follows from `facts`."""
        self.damage: list[Damage] = []
        """The unreadable files, and the unreadable lines of mail and journal."""
        self.work = protocol_collisions.AgentWork(name, Work())
        cursor = self.cursor.get() or Cursor()
        self.unread = Unread(team, name, cursor.offset)

    def note_lease(self, held: bool, now: float) -> bool:  # noqa: FBT001
        """Record when the lease was last seen held, and when it was first seen free after that; return `held`."""
        if held:
            self.seen_alive, self.seen_gone = now, None
        elif self.seen_gone is None:
            self.seen_gone = now
        return held

    def find_damage(self, *, may_lack_spec: bool) -> list[Damage]:
        """Return what could not be read, and set `damage` to it. A missing spec counts unless `may_lack_spec`."""
        name, cursor = self.directory.name, self.cursor.last_good or Cursor()
        records = (self.spec, self.status, self.exit, self.cursor)
        files = [damaged_file(record.key, name) for record in records if record.damaged]
        is_gone = self.spec.last_good is None and not self.spec.damaged and not may_lack_spec
        at = self.directory.folder.changed_at() if is_gone else 0
        # One that was removed has no folder either, and was taken from the roster before.
        config = roster.load_or_none(self._team) if is_gone and not at else None
        if config is not None and (member := config.member(name)) is not None:
            # Each hire and removal changes `agents`, too: the damage is new once for each hire of this agent.
            since, version = self._team.key("agents").changed_at(), max(member.added_at, 1)
            files.append(Damage(self.directory.folder.name, name, 1, since, version=version))
        elif at:
            # Nothing can resume the agent without it. The damage is new once in each run: the folder changes again and
            # again while the agent runs, and as it ends.
            place, status = self.spec.key.name, self.status.last_good
            mark, version = ("gone in run", status.run) if status is not None else ("gone", at)
            files.append(Damage(place, name, 1, at, version=version, seen_as=f"{place} {mark}"))
        count = cursor.damaged + self.unread.damaged
        lines = [damaged_mail(self._team, f"mail or journal of {name}", name, count)] if count else []
        self.damage = [*files, *lines]
        return self.damage


class _Common(Struct, frozen=True, dict=True):
    """The facts about agents that are in the files of the team, not in those of an agent."""

    config: Config
    pending: tuple[Request, ...]
    board: tuple[Task, ...]
    only_operator: frozenset[str]
    results: tuple[UnreadResults, ...]
    operator: OperatorState
    starts: HeldStarts
    supervised: bool
    hosts: Mapping[str, SeenHost]

    def about(self, name: str, spec: Spec | None, now: float) -> dict[str, Any]:
        """Return the fields of `AgentFacts` for the agent `name` that follow from these facts."""
        return {
            **self._by_agent[name],
            "supervised": self.supervised,
            "hosts": self.hosts,
            "queued": self.starts.describe(name, spec.run, now) if spec is not None else "",
        }

    @cached_property
    def _by_agent(self) -> dict[str | None, dict[str, Any]]:
        operator = self.operator
        found: dict[str | None, dict[str, Any]] = {
            member.name: {
                "member": member,
                "acknowledged": operator.acknowledged.get(member.name, 0),
                "task": None,
                "asks": (),
                "failure_seen": operator.failures.get(member.name, 0),
                "unread_results": 0,
            }
            for member in reversed(self.config.members)
        }
        for task in self.board:
            if task.status == "in_progress" and task.owner in found:
                found[task.owner]["task"] = task.id
        for request in self.pending:
            if request.to in self.only_operator and request.from_ in found:
                found[request.from_]["asks"] += (request,)
        for each in self.results:
            if each.author in found:
                found[each.author]["unread_results"] += each.count
        return found


class AgentFacts(Evidence, frozen=True, kw_only=True):
    """The facts that were read about one agent, from which its view follows."""

    member: Member
    unread: int
    damaged: int
    acknowledged: int
    task: int | None
    asks: tuple[Request, ...]
    usage: Usage | None
    is_here: bool
    failure_seen: float
    unread_results: int


_SIGNS_OF_LIFE = {"beat": 0, "deadline": None, "deadline_monotonic": None, "repeats": 0, "private_bytes": 0}
"""Fields of a status that change often and are not shown; a view has these values in their place."""

_NOT_WAITING = {"waiting_for": None, "retry_at": None}

_NO_FAILURE = {"failed": None, "refused_by": None}


def project_agent(facts: AgentFacts) -> AgentView:
    """Return the view of one agent that follows from the facts about it."""
    member, found = facts.member, find_state(facts)
    status = facts.status or Status(run=0, pid=0, state="unknown", since=0)
    run = max(status.run, facts.exit.run if facts.exit else 0)
    acknowledged = not facts.held and 0 < run == facts.acknowledged
    ended = facts.exit if facts.exit and facts.exit.run == run else None
    was_at_rest = not facts.held and status.run == run and status.state in _RESTS
    said = status.replace(
        **_SIGNS_OF_LIFE,
        **({} if facts.held else _NOT_WAITING),
        **({} if status.failed_at > facts.failure_seen else _NO_FAILURE),
        # The operator may have closed the task, or given it to another agent.
        unreported=status.unreported if facts.held and status.unreported == facts.task else None,
    )
    return AgentView(
        **asdict(found),
        name=member.name,
        type=member.type,
        role=member.role,
        title=member.title,
        model=status.model or member.model,
        shown=show(found.state, list(facts.asks), ended, acknowledged=acknowledged),
        doing=found.reason if found.state == "unknown" or not facts.held else status.doing,
        run=run or (facts.spec.run if facts.spec else 0),
        pid=status.pid or None,
        alive=facts.held,
        spec=facts.spec,
        status=said,
        exit=ended,
        acknowledged=acknowledged,
        unread=facts.unread,
        task=facts.task,
        usage=facts.usage if facts.held else None,
        damaged=facts.damaged,
        asks=facts.asks,
        rested=Rest(status.state, status.since) if was_at_rest else None,
        unsafe=facts.held and status.unsafe,
        unread_results=facts.unread_results,
        is_here=facts.is_here,
    )


def damaged_file(record: Key, agent: str = SYSTEM) -> Damage:
    """Return the damage of a record that cannot be read."""
    changed = record.changed_at()
    return Damage(record.name, agent, 1, changed, version=changed)


def gone_roster(team: TeamDirectory) -> Damage:
    """Return the damage of a roster that was removed."""
    # When it was removed is not known. The last hire is another one if it is removed again after that.
    hired, place = team.key("agents").changed_at(), team.config.name
    return Damage(place, SYSTEM, 1, hired, version=hired, seen_as=f"{place} gone")


def damaged_mail(team: TeamDirectory, place: str, name: str, count: int) -> Damage:
    """Return the damage of `count` unreadable lines of mail or of a journal.

    `place` names the lines for the user, `name` is the agent or the mailbox. The time is that of the mailbox's last
    change, or of the journal's if the agent never got mail.
    """
    changed = team.inbox(name).changed_at() or team.agent(name).journal.changed_at()
    return Damage(place, name, count, changed, version=count, is_lines=True)


class TeamReader:
    """A reader of a team's files, which takes no lock and writes nothing.

    `clock` returns the time in epoch seconds, by default the store's. `between` is called before each agent is read, so
    that a screen can react meanwhile.
    """

    def __init__(
        self,
        team: TeamDirectory,
        *,
        clock: Callable[[], float] | None = None,
        probe: KernelProbe | None = None,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.team = team
        self._clock = clock if clock is not None else partial(store_hosts.now, team)
        self._between = between
        self._probe = probe or KernelProbe()
        self._config = team.config.watch()
        self._operator = team.operator.watch()
        self._starts = team.starts.watch()
        self._failure = team.supervisor_failure.watch()
        self._collisions = team.collisions.watch()
        self._hosts = HostReader(team, self._probe)
        self._agents: dict[str, AgentReader] = {}
        self._tasks = team.tasks.watch()
        self._requests = team.requests.watch()
        self._mailboxes: dict[str, Unread] = {}
        self._before_lead: Unread | None = None
        """Counts the mail that came to the mailbox `lead` before the lead was hired, which the lead does not
        read; None without a lead.
        """
        self._usage: dict[str, Usage] = {}
        self._shared: int | None = None
        self._measured_at = 0.0
        self._silent_since: float | None = None
        self._unreadable: set[Key] = set()
        """Leases of the team that could not be examined at this read."""
        self._common: _Common | None = None
        """The facts about agents in the team's files at the last read."""
        self._followed: Config | None = None
        self._name = team.path.name
        self._mark: int | None = None
        """The mark of the store's last news (`Glance.news`)."""

    @property
    def names(self) -> list[str]:
        """Return the names of the agents at the last read."""
        return list(self._agents)

    def read(self, changed: Collection[str] | None = None, *, measured: int | None = None) -> TeamView:
        """Return the team as it is now.

        With `changed`, the files of only these agents are read again, and of those whose changes the store reports. The
        files that belong to no agent are few, and always read. CPU and memory are measured for the first `measured` of
        the agents that are read; for all of them if it is None.

        Raises:
            StorageError: The team's store is out of reach. A record that cannot be read is damage in the view instead.
        """
        with self.team.store.glance() as glance:
            mark, news = glance.news(self._mark)
            if changed is not None:
                # Imported here: only what watches a team tells what changed, and has loaded it.
                from crewboard.readmodel.watcher import agent_of

                changed = {*changed, *map(agent_of, news)} if news is not None else None
            view = self._read(glance, changed, measured)
            self._mark = mark
            return view

    def _read(self, glance: Glance, changed: Collection[str] | None, measured: int | None) -> TeamView:
        now = self._clock()
        self._unreadable.clear()
        listed = self._config.get()
        is_missing = listed is None and not self._config.damaged
        if is_missing and not self.team.exists():
            gone = self._followed
            return TeamView(
                name=self.team.path.name, path=self.team.path, root=self.team.root, supervisor=self._supervisor(now),
                now=now, is_deleted=gone is not None,
                problem=f"the team {self._name} was deleted" if gone is not None else None,
            )  # fmt: skip
        config = listed or self._roster_from_files()
        # The files of the team:
        asked = tuple(sorted(self._requests.all(), key=lambda request: (request.created_at, request.id)))
        pending = tuple(request for request in asked if request.status == "pending")
        board = tuple(sorted(self._tasks.all(), key=lambda task: task.id))
        only_operator = only_operator_answers(config, self.team, lambda: self._is_held(self.team.agent(config.lead)))
        self._hosts.read(self._is_locked)
        supervisor = self._supervisor(now)
        operator = self._operator.get() or OperatorState()
        # The files of agents.
        if config is not self._followed:
            self._followed = config
            self._name = self.team.known_as(config.name)
            # A roster that was edited by hand may name an agent twice.
            names = dict.fromkeys(member.name for member in config.members)
            self._agents = {name: self._agents.get(name) or AgentReader(self.team, name) for name in names}
            self._usage = {name: usage for name, usage in self._usage.items() if name in names}
        to_operator, results = self._read_operator_mail(config, operator, answered_by_operator(asked))
        # Of each to be read, whether its lease is held: of `changed`, and of those that are new.
        held = {
            name: reader.note_lease(self._is_held(reader.directory), now)
            for name, reader in self._agents.items()
            if changed is None or name in changed or reader.view is None
        }
        self._measure(held, now, measured, supervisor.pid)
        starts = self._hosts.held_starts(self._starts.get() or HeldStarts())
        hosts = self._hosts.seen
        common = _Common(config, pending, board, only_operator, results, operator, starts, supervisor.alive, hosts)
        glance.read_ahead({self.team.inbox(name).name: self._agents[name].unread.offset for name in held})
        self._read_agents(held, common, now)
        if self._hosts.count(reader.view for reader in self._agents.values() if reader.view is not None):
            self._read_agents({}, replace(common, hosts=self._hosts.seen), now)
        agents, collisions = self._compare_agents()
        # The conclusions. Damage is last, because it is what the reads above could not read.
        shown_hosts = self._hosts.views(agents, now)
        # As the hosts say that are up. Without any, as this machine knows: only the one that starts agents has the mark
        # of the offline model, and an import is marked for all machines.
        if up := [host for host in shown_hosts if host.is_up]:
            is_offline = all(host.record.offline for host in up)
        else:
            is_offline = self._is_locked(self.team.model_lock) or self.team.has_model_mark() or config.offline
        present = store_operators.present(self.team)
        records = [record.key for record in (self._config, self._operator) if record.damaged]
        broken = {each.directory.lease for each in self._agents.values() if each.facts and each.facts.lease_unreadable}
        leases = sorted(self._unreadable | broken, key=lambda lease: lease.name)
        broken_records = [*records, *leases, *self._tasks.damaged, *self._requests.damaged]
        boxes = self._mailboxes.items()
        damage = (
            *((gone_roster(self.team),) if is_missing else ()),
            *(damaged_file(record) for record in broken_records),
            *(damaged_mail(self.team, f"mail of {name}", name, box.damaged) for name, box in boxes if box.damaged),
            *(damage for reader in self._agents.values() for damage in reader.damage),
        )
        evidence = TeamEvidence(
            only_operator=only_operator, failure=self._failure.get(),
            results=results if config.result_needs else (), damage=damage, collisions=collisions, seen=operator.needs,
        )  # fmt: skip
        lacks = "gone" if is_missing else "damaged" if self._config.damaged else ""
        shown = "its last good state" if listed else "the agents that have files"
        view = TeamView(
            name=self._name, path=self.team.path, root=self.team.root, description=config.description,
            plan_approver=config.plan_approver, model_backend="offline" if is_offline else "api",
            supervisor=replace(supervisor, shared_bytes=self._shared), agents=agents, requests=pending, tasks=board,
            asked=asked, unread={agent.name: agent.unread for agent in agents} | to_operator, budget=config.budget,
            removed=config.removed_total, damage={each.place: each.count for each in damage},
            problem=f"{self.team.config} is {lacks}; showing {shown}" if lacks else None,
            storage=store_files.disk_state(self.team.path), present=present, attached=config.attached,
            hosts=shown_hosts, unprovided=any(not each.provided for each in starts.held), now=now,
        )  # fmt: skip
        return replace(view, needs=find_needs(view, evidence))

    def _read_operator_mail(
        self, config: Config, operator: OperatorState, answered: Collection[str]
    ) -> tuple[dict[str, int], tuple[UnreadResults, ...]]:
        """Return the number of unread messages in each mailbox that the operator reads, and the unread results."""
        unread, results = {}, list[UnreadResults]()
        for name in sorted(operator_mailboxes(config.names)):
            cursor = operator.read.get(name, 0)
            mailbox = self._mailboxes.setdefault(name, Unread(self.team, name, cursor))
            unread[name] = mailbox.count_for_operator(cursor, answered)
            results += mailbox.results(operator.needs)
        # Those that were the operator's when the lead was hired, behind which it began to read. Where that was stays.
        lead = self._agents.get(LEAD)
        spec = (lead.spec.last_good or lead.spec.get()) if lead is not None else None
        if spec is not None and spec.mail_from:
            cursor = operator.read.get(LEAD, 0)
            if self._before_lead is None or self._before_lead.until != spec.mail_from:
                self._before_lead = Unread(self.team, LEAD, cursor, spec.mail_from)
            self._before_lead.count(cursor)
            results += self._before_lead.results(operator.needs)
        return unread, tuple(results)

    def _roster_from_files(self) -> Config:
        """Return a roster of the agents that have files, so that a damaged roster does not hide running agents."""
        names = sorted(self.team.agent_names())
        specs = {name: self.team.agent(name).spec.watch().get() for name in names}
        members = [
            Member(name=name, type=spec.type, role=spec.role, model=spec.model) if spec else Member(name=name, type="")
            for name, spec in specs.items()
        ]
        return Config(name=self.team.path.name, members=members)

    def _read_agents(self, held: dict[str, bool], common: _Common, now: float) -> None:
        """Read the files of the agents in `held`, and set their views; set all views anew if `common` changed."""
        known = self._common
        if known is None or common != known:
            known = self._common = common
        for name in held if known is not common else self._agents:
            reader = self._agents[name]
            if name in held or reader.facts is None:
                self._between()
                facts = self._facts(reader, known, now, held=held[name])
            else:
                facts = replace(reader.facts, **known.about(name, reader.spec.last_good, now))
                if facts == reader.facts:
                    continue
                facts = replace(facts, now=now, monotonic=time.monotonic())
            reader.facts = facts
            view = project_agent(facts)
            # The same view stays the same object, so that the screen sees at once that nothing changed.
            if view != reader.view:
                reader.view = view

    def _facts(self, reader: AgentReader, common: _Common, now: float, *, held: bool) -> AgentFacts:
        """Read the files of one agent, and return the facts about it."""
        name = reader.directory.name
        cursor, spec = reader.cursor.get() or Cursor(), reader.spec.get()
        status = reader.status.get()
        work = status.work if status is not None and status.work is not None else Work()
        has_worktree = spec is not None and spec.worktree is not None
        work = protocol_collisions.without_undone(work, reader.undone.get())
        reader.work = protocol_collisions.AgentWork(name, work, has_worktree)
        is_here = status is None or self._hosts.is_here(status)
        of_worker = status if held and is_here else None
        pid_gone = of_worker is not None and not self._probe.lives(of_worker)
        if pid_gone:
            # Looked at again, because a worker frees its lease before it ends.
            with self.team.store.glance():
                pid_gone = self._is_held(reader.directory)
        lives = held
        if not held and status is not None and ((ended := reader.exit.get()) is None or ended.run < status.run):
            # A worker may have taken the lease since that was looked at: it does so before it writes its status.
            lives = self._is_held(reader.directory)
            if lives:
                reader.note_lease(lives, now)
        # The kernel does not say since when.
        if of_worker is None or not self._probe.is_stopped(of_worker):
            reader.seen_stopped = None
        elif reader.seen_stopped is None:
            reader.seen_stopped = now
        # A mirror writes the spec of a new agent once it has read what that did; nothing here resumes the agent.
        is_attached = common.config.attached is not None
        return AgentFacts(
            held=lives,
            spec=spec,
            status=status,
            exit=reader.exit.get(),
            boot_id=self._probe.boot_id(),
            now=now,
            pid_gone=pid_gone,
            seen_stopped=reader.seen_stopped,
            seen_alive=reader.seen_alive,
            seen_gone=reader.seen_gone,
            lease_unreadable=reader.directory.lease in self._unreadable,
            unread=reader.unread.count(cursor.offset),
            damaged=sum(damage.count for damage in reader.find_damage(may_lack_spec=is_attached)),
            usage=self._usage.get(name),
            is_here=is_here,
            **common.about(name, spec, now),
        )

    def _measure(self, held: dict[str, bool], now: float, most: int | None, supervisor: int | None) -> None:
        if most == 0 or abs(now - self._measured_at) < MEASURE_EVERY:
            return
        self._measured_at = now
        chosen = dict.fromkeys([name for name in held if held[name]][:most])
        living = {
            name: status for name in chosen if (status := self._agents[name].status.get()) is not None and status.pid
        }
        others = {name: usage for name, usage in self._usage.items() if held.get(name, True) and name not in chosen}
        here = {name: status for name, status in living.items() if self._hosts.is_here(status)}
        told = {name: self._hosts.usage(status.host, name) for name, status in living.items() if name not in here}
        elsewhere = {
            name: Usage(use.cpu, use.memory, use.children, living[name].private_bytes or None)
            for name, use in told.items()
            if use is not None
        }
        self._usage = others | elsewhere | self._probe.measure(here)
        self._shared = self._probe.shared_bytes(supervisor) if here and supervisor is not None else None

    def _compare_agents(self) -> tuple[tuple[AgentView, ...], tuple[protocol_collisions.Collision, ...]]:
        """Return the agents' views, with collisions and unmerged changes added, and all collisions."""
        compared = self._collisions.get() or Collisions()
        collisions = protocol_collisions.find_collisions((each.work for each in self._agents.values()), compared)
        agents = [reader.view for reader in self._agents.values() if reader.view is not None]
        for at, agent in enumerate(agents):
            if not collisions and agent.name not in compared.unmerged:
                continue
            others = tuple(sorted(each.other(agent.name) for each in collisions if agent.name in each.agents))
            has_worktree = agent.spec is not None and agent.spec.worktree is not None
            unmerged = compared.unmerged.get(agent.name) if has_worktree else None
            agents[at] = replace(
                agent, collides_with=others, unmerged=unmerged if unmerged and unmerged.files else None
            )
        return self._without_gone_servers(tuple(agents)), collisions

    def _without_gone_servers(self, agents: tuple[AgentView, ...]) -> tuple[AgentView, ...]:
        """Return the views without problems of MCP servers that `.mcp.json` no longer names.

        Nothing can be done about them: a status says what was true when the agent's last assignment began.
        """
        if not any(state.problem for agent in agents for state in agent.status.mcp):
            return agents
        # Imported here because it loads the types, and few agents lack a server.
        from crewboard import mcp_servers

        try:
            found = mcp_servers.read(self.team.root)
        except BadDataError:
            return agents
        named = {*found.servers, *found.invalid}

        def is_gone(state: McpState) -> bool:
            return bool(state.problem) and state.file == mcp_servers.FILE and state.name not in named

        return tuple(
            replace(agent, status=agent.status.replace(mcp=[each for each in agent.status.mcp if not is_gone(each)]))
            for agent in agents
        )

    def _supervisor(self, now: float) -> SupervisorView:
        if hosts := self._hosts.seen.values():
            up = sum(host.is_up for host in hosts)
            return SupervisorView(None, alive=up > 0, hosts=up)
        if not self._is_locked(self.team.supervisor_lock):
            return SupervisorView(None, alive=False)
        holder = self._probe.supervisor(self.team.supervisor_lock)
        silence = supervisor_client.silent_for(holder) if holder else None
        # Computed once: two clocks are never read at the same moment, and that difference must not change the view.
        self._silent_since = None if silence is None else self._silent_since or now - silence
        return SupervisorView(holder.pid if holder else None, alive=True, silent_since=self._silent_since)

    def _is_held(self, agent: AgentDirectory) -> bool:
        """Return True if a worker holds the agent's lease; record a lease that cannot be examined as unreadable.

        An agent of another program holds no lease: it is alive while the process in its status is.
        """
        config = self._config.last_good
        if config is not None and config.attached is not None:
            reader = self._agents.get(agent.name)
            status, ended = (reader.status.get(), reader.exit.get()) if reader is not None else (None, None)
            return store_agents.runs_elsewhere(status, ended, self._probe.boot_id(), self._probe.lives)
        return self._is_locked(agent.lease)

    def _is_locked(self, lease: Key) -> bool:
        """Return True if a process holds a lease; record a lease that cannot be examined as unreadable."""
        try:
            return self._probe.is_held(lease)
        except StorageError:
            self._unreadable.add(lease)
            return False


def read_team(team: TeamDirectory) -> TeamView:
    """Return the team as it is now.

    Raises:
        StorageError: The team's store is out of reach.
    """
    return TeamReader(team).read()


def blocked(task: Task, board: Iterable[Task]) -> list[int]:
    """Return the ids of the tasks that `task` waits for and that are not completed; `board` are all tasks."""
    return tasks.blockers(task, {other.id: other for other in board})
