"""Typed queries for what a view shows beyond the roster, the readers that they share, and the answers.

A view names its queries; the poller runs them in its thread and publishes a snapshot of `{query: answer}`. A query that
only one view asks may stand next to that view.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct, field

import crewboard as core
from crewboard import LEAD, OPERATOR, TeamView

_KEPT = 64
"""Readers of one kind that are kept; more if the team has more agents, which are read in turn."""

_SEATS = 2
"""Mailboxes beside those of the agents: the operator's and the lead's."""

_OUTSIDE_KEPT = 500
"""Messages of a mailbox among which the feed looks for mail from other programs."""

_LIVE_TAIL = 16 * 1024

R = TypeVar("R")
T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)


HISTORY_KEPT = 120
"""Measurements kept per agent: two minutes at one per second."""


class ProcessHistory(Struct, frozen=True):
    """Measurements of one agent's process; `history` is oldest first, one entry per second."""

    agent: str
    history: tuple[core.readmodel.Usage, ...] = ()
    family: tuple[core.readmodel.ProcessNode, ...] = ()
    log_lines: tuple[str, ...] = ()


class ProcessHistoryReader:
    """Keeps the reader's measurements and reads the process tree of the agent that is shown."""

    def __init__(self, team: core.store.TeamDirectory, probe: core.readmodel.Probe) -> None:
        self._team = team
        self._probe = probe
        self._history: dict[str, deque[core.readmodel.Usage]] = {}
        self._noted_at = float("-inf")
        self._seen: tuple[float, ProcessHistory] = (float("-inf"), ProcessHistory(""))

    def note(self, view: TeamView) -> None:
        """Record the present usage of all agents."""
        now = view.now
        passed = now - self._noted_at
        if passed < core.readmodel.reader.MEASURE_EVERY:
            return
        # A team at rest is read less often; a measurement counts for all seconds since the one before.
        seconds = max(1, round(min(passed, HISTORY_KEPT))) if self._history else 1
        self._noted_at = now
        self._history = {
            agent.name: self._history.get(agent.name) or deque(maxlen=HISTORY_KEPT) for agent in view.agents
        }
        for agent in view.agents:
            if agent.usage is not None:
                self._history[agent.name].extend([agent.usage] * seconds)

    def read(self, view: TeamView, name: str) -> ProcessHistory:
        """Return what is known of one agent's process; read it at most once a second."""
        now = view.now
        at, known = self._seen
        if known.agent != name or now - at >= core.readmodel.reader.MEASURE_EVERY:
            known = self._look(view, name)
            self._seen = (now, known)
        return known

    def _look(self, view: TeamView, name: str) -> ProcessHistory:
        agent = view.agent(name)
        lives = agent is not None and agent.alive and agent.is_here and agent.pid
        tree = self._probe.process_tree(agent.pid) if agent is not None and lives and agent.pid else ()
        return ProcessHistory(
            name, tuple(self._history.get(name, ())), tree, core.readmodel.log_end(self._team.agent(name))
        )


class Readers:
    """The readers of one team. They are kept, so that reading the same files again reads only new data."""

    def __init__(self, team: core.store.TeamDirectory, probe: core.readmodel.Probe) -> None:
        self.team = team
        self._kept = _KEPT
        self._readers: dict[type, OrderedDict[str, Any]] = {}
        self._answers: dict[Hashable, tuple[object, Any]] = {}
        self.processes = ProcessHistoryReader(team, probe)

    def note(self, view: TeamView) -> None:
        """Record a new read of the team, before queries are run on it."""
        self.processes.note(view)
        self._kept = max(_KEPT, len(view.agents) + _SEATS)

    def keep(self, kind: type[R], name: str, make: Callable[[], R]) -> R:
        """Return the reader of this kind for `name`, made if need be; those unused for longest are dropped."""
        readers = self._readers.setdefault(kind, OrderedDict())
        if name not in readers:
            readers[name] = make()
            while len(readers) > self._kept:
                readers.popitem(last=False)
        readers.move_to_end(name)
        return cast("R", readers[name])

    def unless_known(self, query: Hashable, evidence: object, make: Callable[[], T]) -> T:
        """Return the last answer to a query if it rests on the same evidence, else a new one."""
        known = self._answers.get(query)
        if known is None or known[0] != evidence:
            known = self._answers[query] = (evidence, make())
        return cast("T", known[1])

    def activity(self, name: str) -> tuple[core.readmodel.Activity, ...]:
        """Return what an agent did."""
        return tuple(
            self.keep(
                core.readmodel.ActivityReader, name, lambda: core.readmodel.ActivityReader(self.team.agent(name))
            ).read()
        )

    def calls(self, name: str) -> core.readmodel.CallReader:
        """Return the reader of an agent's model calls."""
        return self.keep(core.readmodel.CallReader, name, lambda: core.readmodel.CallReader(self.team.agent(name)))

    def mail(self, name: str) -> core.readmodel.MailReader:
        """Return the reader of a mailbox."""
        return self.keep(
            core.readmodel.MailReader,
            name,
            lambda: core.readmodel.MailReader(self.team, name, since=self._read_to(name)),
        )

    def _read_to(self, name: str) -> int | None:
        """Return how far the operator has read its own mailbox: what is new there is shown, however much it is."""
        if name not in (OPERATOR, LEAD):
            return None
        state = core.store.json_records.load_or_none(self.team.operator, core.records.OperatorState)
        return state.read.get(name, 0) if state else 0


class Query(Hashable, Protocol[Answer_co]):
    """Something to read for a view: a frozen struct, equal to another that asks the same."""

    def read(self, readers: Readers, view: TeamView) -> Answer_co:
        """Return the answer. Called in the poller's thread."""


class Snapshot(Struct, frozen=True):
    """The team, and the answers to what the screen asked, read at one time.

    `hinted` says whether file events arrive; `problem` is why the last reading failed.
    `away_since` is since when the database of the team has not answered (monotonic).
    """

    view: TeamView
    answers: Mapping[Query[object], Any] = field(default_factory=dict)
    hinted: bool = True
    problem: str | None = None
    away_since: float | None = None

    def get(self, query: Query[T]) -> T | None:
        """Return the answer to a query; None while it is not read yet."""
        return cast("T | None", self.answers.get(query))


# --------------------------------------------------------------------------------------- queries that views share


class Work(Struct, frozen=True):
    """The activity of an agent, and the reply that is being streamed.

    `host` is set while the agent works in a place where this dashboard sees nothing of what is streamed.
    """

    activity: tuple[core.readmodel.Activity, ...] = ()
    live: str = ""
    host: str = ""


class WorkOf(Struct, frozen=True):
    """Query for the activity of one agent."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> Work:
        """Return nothing for an agent that is not on the team."""
        agent = view.agent(self.agent)
        if agent is None:
            return Work()
        live = read_live(readers.team.agent(self.agent)) if agent.alive and agent.is_here else None
        hidden = live is None and agent.alive and agent.state == "working"
        return Work(readers.activity(self.agent), live or "", agent.host if hidden else "")


class Mailbox(Struct, frozen=True):
    """The messages of a mailbox up to the byte `end`. `prompts` are the prompts of the agent's hires."""

    letters: tuple[core.readmodel.MessageView, ...] = ()
    end: int = 0
    prompts: tuple[core.readmodel.MessageView, ...] = ()


class MailTo(Struct, frozen=True):
    """Query for the messages of one mailbox."""

    name: str

    def read(self, readers: Readers, view: TeamView) -> Mailbox:  # noqa: ARG002
        """Return what lies in it."""
        reader = readers.mail(self.name)
        letters = tuple(reader.read())
        return Mailbox(letters, reader.offset, tuple(reader.prompts))


class MailFrom(Struct, frozen=True):
    """Query for the mail that one agent sent."""

    author: str

    def read(self, readers: Readers, view: TeamView) -> tuple[core.readmodel.MessageView, ...]:
        """Return it as it lies in the mailboxes of the others: there it has the times of delivery and reading."""
        boxes = set(core.protocol.mailboxes(view.names)) - {self.author}
        found = [letter for name in sorted(boxes) for letter in readers.mail(name).read()]
        return tuple(letter for letter in found if letter.message.from_ == self.author)


class CrashOf(Struct, frozen=True):
    """Query for how an agent ended."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> core.readmodel.CrashReport | None:
        """Return the report; None while the agent is alive."""
        agent = view.agent(self.agent)
        if agent is None or agent.alive:
            return None
        evidence = (agent.run, agent.exit, agent.unread, view.tasks)
        return readers.unless_known(self, evidence, lambda: core.readmodel.examine(readers.team, view, agent))


class ProcessOf(Struct, frozen=True):
    """The process of an agent over time."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> ProcessHistory:
        """Return its history, its children, and the end of its log."""
        return readers.processes.read(view, self.agent)


class CallsOf(Struct, frozen=True):
    """The model calls of an agent."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> tuple[core.readmodel.Call, ...]:  # noqa: ARG002
        """Return the calls, oldest first."""
        return tuple(readers.calls(self.agent).read())


class SpendingRate(Struct, frozen=True):
    """Query for the team's present cost per hour."""

    def read(self, readers: Readers, view: TeamView) -> float | None:
        """Return dollars; None where that is not known."""
        return core.readmodel.usage.rate([readers.calls(agent.name) for agent in view.agents], view.now)


class TouchedFiles(Struct, frozen=True):
    """The files that the agents read and changed."""

    def read(self, readers: Readers, view: TeamView) -> core.readmodel.FileActivity:
        """Return all file accesses, oldest first, indexed in the reader thread and only if one was added."""
        found = [
            touch
            for name in view.names
            for touch in readers.keep(
                core.readmodel.FileAccessReader,
                name,
                lambda name=name: core.readmodel.FileAccessReader(readers.team.agent(name)),  # type: ignore[misc]
            ).read()
        ]
        return readers.unless_known(self, found, lambda: core.readmodel.FileActivity(found))


class FeedLine(Struct, frozen=True):
    """One thing that an agent did."""

    agent: str
    what: core.readmodel.Activity


class OutsideMailReader:
    """The mail in a mailbox that no journal tells of: from other programs, and from agents that were removed."""

    def __init__(self, team: core.store.TeamDirectory, name: str) -> None:
        self._tail = core.readmodel.MailboxTail(team, name, team.inbox(name).tail_offset(core.readmodel.mail.TAIL))
        self._found: deque[core.records.Message] = deque(maxlen=_OUTSIDE_KEPT)

    def read(self, names: list[str]) -> list[FeedLine]:
        """Return what was sent by others than `names`, the user and the system: what these do, the feed shows."""
        if self._tail.restarted():
            self._found.clear()
        self._found += self._tail.read_new({message.id for message in self._found}).messages
        known = {*names, OPERATOR, core.records.SYSTEM}
        return [FeedLine(message.from_, _sent(message)) for message in self._found if message.from_ not in known]


def _sent(message: core.records.Message) -> core.readmodel.Activity:
    said = f"→ {core.readmodel.display_name(message.to)}: {core.readmodel.describe_message(message)}"
    return core.readmodel.Activity(message.ts, "sent", said)


class Feed(Struct, frozen=True):
    """The latest work of all agents: the newest `most` lines, and the number of older ones."""

    most: int

    def read(self, readers: Readers, view: TeamView) -> tuple[tuple[FeedLine, ...], int]:
        """Return it, oldest first."""
        lines = [FeedLine(name, what) for name in view.names for what in readers.activity(name)]
        for name in core.protocol.mailboxes(view.names):
            lines += readers.keep(
                OutsideMailReader,
                name,
                lambda name=name: OutsideMailReader(readers.team, name),  # type: ignore[misc]
            ).read(view.names)
        newest = sorted(lines, key=lambda each: each.what.ts)[-self.most :]
        return tuple(newest), len(lines) - len(newest)


class Rules(Struct, frozen=True):
    """The permission rules of the team, each with its usage."""

    def read(
        self,
        readers: Readers,
        view: TeamView,  # noqa: ARG002
    ) -> tuple[tuple[core.records.Rule, core.store.journal.RuleUsage], ...]:
        """Return the rules in the order in which they were added."""
        reader = readers.keep(
            core.store.journal.RuleUsageReader, "", lambda: core.store.journal.RuleUsageReader(readers.team)
        )
        usage = reader.read()
        rules = core.store.roster.load(readers.team).rules
        return tuple((rule, usage.get(rule.id, core.store.journal.RuleUsage())) for rule in rules)


def read_live(agent: core.store.AgentDirectory) -> str | None:
    """Return the reply that is being streamed, or its end if it is long; None if it is kept elsewhere."""
    try:
        with open(agent.live, "rb", opener=core.store.files.open_existing) as file:
            file.seek(max(0, file.seek(0, 2) - _LIVE_TAIL))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError:
        return ""


FROM_FILES = (WorkOf, MailTo, MailFrom, CrashOf, CallsOf, SpendingRate, TouchedFiles, Feed)
"""Queries whose answers change with the files of the team only; `SpendingRate` also falls slowly by itself."""
