"""The queries for what views show beyond the roster, and the readers that they share.

A view names its queries; the poller runs them in its thread and publishes a snapshot of `{query: answer}`. A query that
only one view asks may stand next to that view.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from msgspec import Struct, field

from crewboard import LEAD, OPERATOR, Message, TeamView
from crewboard.names import SYSTEM, mailboxes, operator_mailboxes
from crewboard.readmodel import mail
from crewboard.readmodel import reader as readmodel_reader
from crewboard.readmodel import usage as readmodel_usage
from crewboard.readmodel.mail import MailboxTail, MailReader, MessageView, describe_message, display_name
from crewboard.readmodel.processes import KernelProbe, ProcessNode, Usage
from crewboard.readmodel.usage import MINUTES, WINDOW, Call, CallReader, Spending, SpendingReader
from crewboard.records.team import Rule
from crewboard.store import files, journal, roster
from crewboard.store.layout import AgentDirectory, TeamDirectory

if TYPE_CHECKING:
    from crewboard.readmodel.activity import Activity, ActivityReader, Lane
    from crewboard.readmodel.crash_report import CrashReport
    from crewboard.readmodel.file_activity import FileActivity

UNUSED = 30.0
"""Seconds after which a reader that no shown view uses is dropped: in a busy team, it takes megabytes."""

_KEPT = 64
"""The number of readers of one kind that are kept; more in a team with more agents, because these are read in turn."""

_SEATS = 2
"""Mailboxes in addition to those of the agents: the operator's and the lead's."""

_OUTSIDE_KEPT = 500
"""Messages of a mailbox among which the feed looks for mail from other programs."""

_LIVE_TAIL = 16 * 1024

R = TypeVar("R")
T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)


HISTORY_KEPT = 120
"""Measurements kept per agent: two minutes at one per second."""


class ProcessHistory(Struct, frozen=True):
    """Measurements of one agent's process; `history` is oldest first, one entry per second.

    `family` is its process tree, `log_lines` the end of its log.
    """

    agent: str
    history: tuple[Usage, ...] = ()
    family: tuple[ProcessNode, ...] = ()
    log_lines: tuple[str, ...] = ()


class ProcessHistoryReader:
    """Keeps the measurements of all agents, and reads the process tree of one agent that is shown."""

    def __init__(self, team: TeamDirectory, probe: KernelProbe) -> None:
        self._team = team
        self._probe = probe
        self._history: dict[str, tuple[int, deque[Usage]]] = {}
        """The measurements by agent, with the run that they are of."""
        self._noted_at = float("-inf")
        self._seen: tuple[float, ProcessHistory] = (float("-inf"), ProcessHistory(""))

    def note(self, view: TeamView) -> None:
        """Record the present usage of all agents."""
        now = view.now
        passed = now - self._noted_at
        if passed < readmodel_reader.MEASURE_EVERY:
            return
        # A team at rest is read less often; a measurement counts for all seconds since the one before.
        seconds = max(1, round(min(passed, HISTORY_KEPT)))
        self._noted_at = now
        before, self._history = self._history, {}
        for agent in view.agents:
            if agent.usage is None:
                continue
            run, measured = before.get(agent.name, (agent.run, deque(maxlen=HISTORY_KEPT)))
            if run != agent.run:
                measured = deque(maxlen=HISTORY_KEPT)
            measured.extend([agent.usage] * (seconds if measured else 1))
            self._history[agent.name] = (agent.run, measured)

    def history(self, name: str) -> tuple[Usage, ...]:
        """Return the measurements of one agent's present run, oldest first."""
        return tuple(self._history[name][1]) if name in self._history else ()

    def read(self, view: TeamView, name: str) -> ProcessHistory:
        """Return the measurements, process tree and log end of one agent; they are read at most once a second."""
        now = view.now
        at, known = self._seen
        if known.agent != name or now - at >= readmodel_reader.MEASURE_EVERY:
            from crewboard.readmodel.crash_report import log_end

            agent = view.agent(name)
            lives = agent is not None and agent.alive and agent.is_here and agent.pid
            tree = self._probe.process_tree(agent.pid) if agent is not None and lives and agent.pid else ()
            known = ProcessHistory(name, self.history(name), tree, log_end(self._team.agent(name)))
            self._seen = (now, known)
        return known


class Readers:
    """The readers of one team, and their last answers. Reading the same files again reads only new data.

    Readers and answers that no shown view has used for `UNUSED` seconds are dropped, and made again when asked for.
    """

    def __init__(self, team: TeamDirectory, probe: KernelProbe) -> None:
        self.team = team
        self._kept = _KEPT
        self._now = float("-inf")
        self._readers: dict[type, OrderedDict[str, tuple[float, Any]]] = {}
        """The readers by kind and name, each with the time of its last use, the least recently used first."""
        self._answers: OrderedDict[Hashable, tuple[float, tuple[object, Any]]] = OrderedDict()
        self.processes = ProcessHistoryReader(team, probe)
        self.rule_usage = journal.RuleUsageReader(team)
        """It is never dropped: it is small, and would have to read all journals from their start."""

    def note(self, view: TeamView) -> None:
        """Record a new read of the team, before queries are run on it."""
        self.processes.note(view)
        self._kept = max(_KEPT, len(view.agents) + _SEATS)
        # What the last reading used is in use, however long ago that was: the dashboard may have been suspended.
        in_use, self._now = self._now, max(self._now, view.now)
        caches: list[OrderedDict[Any, tuple[float, Any]]] = [*self._readers.values(), self._answers]
        for kept in caches:
            while kept and next(iter(kept.values()))[0] < min(in_use, view.now - UNUSED):
                kept.popitem(last=False)

    def keep(self, kind: type[R], name: str, make: Callable[[], R]) -> R:
        """Return the reader of this kind for `name`, made if need be. The least recently used ones may be dropped."""
        readers = self._readers.setdefault(kind, OrderedDict())
        known = readers.pop(name, None)
        reader = make() if known is None else known[1]
        readers[name] = (self._now, reader)
        while len(readers) > self._kept:
            readers.popitem(last=False)
        return cast("R", reader)

    def unless_known(self, query: Hashable, evidence: object, make: Callable[[], T]) -> T:
        """Return the last answer to a query if it was made from the same `evidence`, else a new one."""
        _, known = self._answers.pop(query, (0, None))
        if known is None or known[0] != evidence:
            known = (evidence, make())
        self._answers[query] = (self._now, known)
        return cast("T", known[1])

    def activity(self, name: str) -> ActivityReader:
        """Return the reader of what an agent did."""
        from crewboard.readmodel.activity import ActivityReader

        return self.keep(ActivityReader, name, lambda: ActivityReader(self.team.agent(name)))

    def recent_calls(self, name: str) -> CallReader:
        """Return the reader of an agent's model calls in the last minutes, from which its cost per hour is computed."""
        return self.keep(CallReader, f"{name} recent", lambda: CallReader(self.team.agent(name), WINDOW))

    def spending(self, name: str, most: int) -> SpendingReader:
        """Return the reader of what an agent spent in each minute; it keeps at most `most` minutes."""
        return self.keep(SpendingReader, f"{name} {most}", lambda: SpendingReader(self.team.agent(name), most))

    def mail(self, name: str) -> MailReader:
        """Return the reader of a mailbox."""

        def make() -> MailReader:
            since = None
            if name in (OPERATOR, LEAD):
                # What is new in the operator's own mailboxes is shown, however much it is.
                state = self.team.operator.load_or_none()
                since = state.read.get(name, 0) if state else 0
            return MailReader(self.team, name, since=since)

        return self.keep(MailReader, name, make)

    def mail_from(self, author: str, name: str) -> MailReader:
        """Return the reader of the messages that one author sent to a mailbox.

        To read all messages of all mailboxes would take 20 MB in a large team.
        """
        return self.keep(MailReader, f"{name} from {author}", lambda: MailReader(self.team, name, author=author))


class Query(Hashable, Protocol[Answer_co]):
    """A question about the team: a frozen struct, equal to another that asks the same."""

    def read(self, readers: Readers, view: TeamView) -> Answer_co:
        """Return the answer. Called in the poller's thread."""


class Snapshot(Struct, frozen=True):
    """The team, and the answers to the queries of the screen, read at one time.

    `hinted` is True if file events arrive; `problem` is why the last reading failed, None if it did not.
    `away_since` is the time since which the database of the team has not answered (monotonic), None if it answers.
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
    """The activity of an agent, and `live`, the reply or output that is being streamed.

    `host` is set while the agent works on a host from which this dashboard cannot read what is streamed. `has_older` is
    True if the journal has older lines than these.
    """

    activity: tuple[Activity, ...] = ()
    live: str = ""
    host: str = ""
    has_older: bool = False


class WorkOf(Struct, frozen=True):
    """Query for the activity of one agent."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> Work:
        """Return the activity of the agent; empty if it is not on the team."""
        agent = view.agent(self.agent)
        if agent is None:
            return Work()
        live = read_live(readers.team.agent(self.agent)) if agent.alive and agent.is_here else None
        hidden = live is None and agent.alive and agent.state == "working"
        reader = readers.activity(self.agent)
        return Work(reader.read(), live or "", agent.status.host if hidden else "", reader.has_older)


class Mailbox(Struct, frozen=True):
    """The newest messages of a mailbox, `letters`, up to the byte `end`, and the prompts of the agent's hires.

    `has_older` is True if there are older messages. `damaged` has the offset at the end of each line that cannot be
    read.
    """

    letters: tuple[MessageView, ...] = ()
    end: int = 0
    prompts: tuple[MessageView, ...] = ()
    has_older: bool = False
    damaged: tuple[int, ...] = ()


class MailTo(Struct, frozen=True):
    """Query for the newest messages of one mailbox, at most `most`."""

    name: str
    most: int = mail.MOST

    def read(self, readers: Readers, view: TeamView) -> Mailbox:  # noqa: ARG002
        """Return the newest messages of the mailbox."""
        reader = readers.mail(self.name)
        letters = reader.read(self.most)
        return Mailbox(letters, reader.offset, reader.prompts, reader.has_older, tuple(reader.damaged_ends))


class MailFrom(Struct, frozen=True):
    """Query for the mail that one agent sent."""

    author: str

    def read(self, readers: Readers, view: TeamView) -> tuple[MessageView, ...]:
        """Return the messages as the recipients' mailboxes have them: with the times of delivery and reading."""
        boxes = set(mailboxes(view.names)) - {self.author}
        found = tuple(readers.mail_from(self.author, name).read() for name in sorted(boxes))
        return readers.unless_known(self, found, lambda: tuple(letter for letters in found for letter in letters))


class CrashOf(Struct, frozen=True):
    """Query for how an agent ended."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> CrashReport | None:
        """Return the report; None while the agent is alive, or if it is not on the team."""
        from crewboard.readmodel.crash_report import examine

        agent = view.agent(self.agent)
        if agent is None or agent.alive:
            return None
        evidence = (agent.run, agent.exit, agent.unread, view.tasks)
        return readers.unless_known(self, evidence, lambda: examine(readers.team, view, agent))


class ProcessOf(Struct, frozen=True):
    """Query for the process of an agent over time."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> ProcessHistory:
        """Return its measurements, its process tree, and the end of its log."""
        return readers.processes.read(view, self.agent)


class Usages(Struct, frozen=True):
    """Query for the measurements of the agents that are shown.

    An answer for all agents would change with each measurement.
    """

    agents: tuple[str, ...]

    def read(self, readers: Readers, view: TeamView) -> dict[str, tuple[Usage, ...]]:  # noqa: ARG002
        """Return the measurements by agent, oldest first."""
        return {name: readers.processes.history(name) for name in self.agents}


class Lanes(Struct, frozen=True):
    """Query for the last minutes of the agents whose rows are shown: a team may have thousands."""

    agents: tuple[str, ...]

    def read(self, readers: Readers, view: TeamView) -> dict[str, Lane]:
        """Return the lanes by agent; a lane that has not changed is the same object."""
        from crewboard.readmodel.activity import SLOT, SLOTS, LaneReader

        own, oldest = operator_mailboxes(view.names), view.now - SLOT * SLOTS
        asks: dict[str, list[tuple[float, float, bool]]] = {}
        for request in view.asked:
            until = request.decided_at or (math.inf if request.status == "pending" else request.created_at)
            if until > oldest:
                asks.setdefault(request.from_, []).append((request.created_at, until, request.to in own))
        found = {}
        for name in self.agents:
            agent = view.agent(name)
            if agent is not None:
                mine = tuple(asks.get(name, ()))
                if agent.asks:
                    # A lead that does not review leaves its requests to the operator.
                    mine = tuple((since, until, for_you or until == math.inf) for since, until, for_you in mine)
                reader = readers.keep(LaneReader, name, lambda name=name: LaneReader(readers.team.agent(name)))  # type: ignore[misc]
                found[name] = reader.read(agent, mine)
        return found


class CallsOf(Struct, frozen=True):
    """Query for the model calls of an agent."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> tuple[Call, ...]:  # noqa: ARG002
        """Return the calls, oldest first."""
        return tuple(readers.keep(CallReader, self.agent, lambda: CallReader(readers.team.agent(self.agent))).read())


class SpendingRate(Struct, frozen=True):
    """Query for the team's present cost per hour."""

    def read(self, readers: Readers, view: TeamView) -> float | None:
        """Return the cost in dollars per hour; None if it is not known."""
        return readmodel_usage.rate([readers.recent_calls(agent.name) for agent in view.agents], view.now)


class SpendingOf(Struct, frozen=True):
    """Query for what one agent spent in each of the last minutes, and its present cost per hour."""

    agent: str

    def read(self, readers: Readers, view: TeamView) -> tuple[Spending, float | None]:
        """Return the spending of the minutes over which the rate is measured, and the rate.

        The rate is in dollars per hour, and None if it is not known.
        """
        own = readers.spending(self.agent, int(WINDOW // 60))
        own.read()
        return readmodel_usage.spending([own]), readmodel_usage.rate([readers.recent_calls(self.agent)], view.now)


PULSE = 120
"""The most minutes that the chart of a team's spending shows."""


class SpendingByMinute(Struct, frozen=True):
    """Query for what the team spent in each minute, made of the newest `most` minutes with spending of each agent."""

    most: int = MINUTES

    def read(self, readers: Readers, view: TeamView) -> Spending:
        """Return the spending by minute. It is the same object until a model call is added."""
        found = [readers.spending(agent.name, self.most) for agent in view.agents]
        for each in found:
            each.read()
        evidence = tuple((agent.name, each.count) for agent, each in zip(view.agents, found, strict=True))
        return readers.unless_known(self, evidence, lambda: readmodel_usage.spending(found))


class TouchedFiles(Struct, frozen=True):
    """Query for the files that the agents read and changed."""

    def read(self, readers: Readers, view: TeamView) -> FileActivity:
        """Return all file accesses, oldest first. They are indexed again only if one was added."""
        from crewboard.readmodel.file_activity import FileAccessReader, FileActivity

        found = [
            touch
            for name in view.names
            for touch in readers.keep(
                FileAccessReader,
                name,
                lambda name=name: FileAccessReader(readers.team.agent(name)),  # type: ignore[misc]
            ).read()
        ]
        return readers.unless_known(self, found, lambda: FileActivity(found))


class FeedLine(Struct, frozen=True):
    """One thing that an agent did."""

    agent: str
    what: Activity


class _LinesOf:
    """The lines of one agent in the feed; a line that is known stays the same object."""

    def __init__(self, agent: AgentDirectory) -> None:
        from crewboard.readmodel.activity import ActivityReader

        self._reader = ActivityReader(agent)
        self._made_of: tuple[Activity, ...] = ()
        self.lines: tuple[FeedLine, ...] = ()

    def read(self) -> None:
        """Read new activity. If there is none, the lines stay the same tuple."""
        self._show(self._reader.read())

    def forget_before(self, moment: float) -> None:
        """Drop lines that are older than `moment`."""
        self._show(self._reader.forget_before(moment))

    @property
    def forgotten(self) -> int:
        """Return the number of lines that were dropped and can be read again."""
        return self._reader.forgotten

    def _show(self, activity: tuple[Activity, ...]) -> None:
        if activity is not self._made_of:
            known = {id(line.what): line for line in self.lines}
            name = self._reader.agent.name
            self.lines = tuple(known.get(id(what)) or FeedLine(name, what) for what in activity)
            self._made_of = activity


class OutsideMailReader:
    """Reads the messages of a mailbox that are in no journal: from other programs, and from agents that were removed.

    It keeps the newest 500 of these messages, and of those as many as have 256 Ki characters together.
    """

    def __init__(self, team: TeamDirectory, name: str) -> None:
        self._team = team
        self._name = name
        self._names = frozenset[str]()
        self._begin()

    def _begin(self) -> None:
        self._tail = MailboxTail(self._team, self._name, self._team.inbox(self._name).tail_offset(mail.TAIL))
        self._forget()

    def _forget(self) -> None:
        self._found: dict[str, Message] = {}
        self._characters = 0
        self.lines: tuple[FeedLine, ...] = ()

    def read(self, names: Iterable[str]) -> tuple[FeedLine, ...]:
        """Return the messages from senders other than `names`, the operator and the system, as lines of the feed."""
        known = frozenset({*names, OPERATOR, SYSTEM})
        changed, gone = known != self._names, self._names - known
        self._names = known
        if gone:
            # Of those it knows no message yet.
            self._begin()
        elif self._tail.restarted():
            self._forget()
            changed = True
        for message in self._tail.read_new(self._found.keys()).messages:
            if message.from_ not in known:
                changed, self._found[message.id] = True, message
                self._characters += len(message.content)
        while len(self._found) > _OUTSIDE_KEPT or (self._characters > mail.TAIL and len(self._found) > 1):
            self._characters -= len(self._found.pop(next(iter(self._found))).content)
        if changed:
            self._found = {ident: each for ident, each in self._found.items() if each.from_ not in known}
            self._characters = sum(len(each.content) for each in self._found.values())
            from crewboard.readmodel.activity import Activity

            self.lines = tuple(
                FeedLine(each.from_, Activity(each.ts, "sent", f"→ {display_name(each.to)}: {describe_message(each)}"))
                for each in self._found.values()
            )
        return self.lines


class FeedReader:
    """Reads the newest `most` lines of all agents and of mail from other programs. Older ones are only counted."""

    def __init__(self, team: TeamDirectory, most: int) -> None:
        self._team = team
        self._most = most
        self._agents: dict[str, _LinesOf] = {}
        self._boxes: dict[str, OutsideMailReader] = {}
        self._sources: tuple[tuple[FeedLine, ...], ...] = ()
        self._answer: tuple[tuple[FeedLine, ...], int] = ((), 0)

    def read(self, names: list[str]) -> tuple[tuple[FeedLine, ...], int]:
        """Return the newest lines, oldest first, and the number of older ones; the same tuple while nothing changes."""
        team = self._team
        agents, self._agents = self._agents, {}
        times: list[float] = []
        for name in names:
            lines = self._agents[name] = agents.get(name) or _LinesOf(team.agent(name))
            lines.read()
            if name not in agents:
                times = sorted([*times, *(line.what.ts for line in lines.lines)])[-self._most :]
                # What was read of a whole team would take ten times the memory of what is shown of it. Fewer new lines
                # than are shown do not tell since when those are.
                held = sum(len(each.lines) for each in self._agents.values())
                if len(times) == self._most and held > 2 * self._most:
                    self._forget_before(times[0])
        self._boxes = {name: self._boxes.get(name) or OutsideMailReader(team, name) for name in mailboxes(names)}
        outside = [box.read(names) for box in self._boxes.values()]
        sources = (*(lines.lines for lines in self._agents.values()), *outside)
        if sources != self._sources:
            backwards = (reversed(lines) for lines in reversed(sources))
            latest = list(islice(merge(*backwards, key=lambda line: line.what.ts, reverse=True), self._most))
            latest.reverse()
            # A clock may have been set back in the middle of a journal.
            latest.sort(key=lambda line: line.what.ts)
            newest = tuple(latest)
            known = {name: lines for name, lines in self._agents.items() if not lines.forgotten}
            if len(newest) < self._most and len(known) < len(self._agents):
                # An agent that was removed took its lines along: older ones of the others are shown again.
                self._agents = known
                return self.read(names)
            if len(newest) == self._most:
                self._forget_before(newest[0].what.ts)
            self._sources = (*(lines.lines for lines in self._agents.values()), *outside)
            count = sum(map(len, self._sources)) + sum(lines.forgotten for lines in self._agents.values())
            self._answer = newest, count - len(newest)
        return self._answer

    def _forget_before(self, moment: float) -> None:
        for lines in self._agents.values():
            lines.forget_before(moment)


class Feed(Struct, frozen=True):
    """Query for the latest work of all agents: the newest `most` lines, and the number of older ones."""

    most: int

    def read(self, readers: Readers, view: TeamView) -> tuple[tuple[FeedLine, ...], int]:
        """Return the lines, oldest first, and the number of older ones."""
        reader = readers.keep(FeedReader, str(self.most), lambda: FeedReader(readers.team, self.most))
        return reader.read(view.names)


class Rules(Struct, frozen=True):
    """Query for the permission rules of the team, each with its usage."""

    def read(
        self,
        readers: Readers,
        view: TeamView,  # noqa: ARG002
    ) -> tuple[tuple[Rule, journal.RuleUsage], ...]:
        """Return the rules in the order in which they were added."""
        usage = readers.rule_usage.read()
        rules = roster.load(readers.team).rules
        return tuple((rule, usage.get(rule.id, journal.RuleUsage())) for rule in rules)


def read_live(agent: AgentDirectory) -> str | None:
    """Return the reply that is being streamed, or its end if it is long; empty if it cannot be read.

    None if there is no such file here, as while the agent works on another host.
    """
    try:
        with open(agent.live, "rb", opener=files.open_existing) as file:
            file.seek(max(0, file.seek(0, 2) - _LIVE_TAIL))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError:
        return ""


FROM_FILES = (WorkOf, MailTo, Lanes, Usages, MailFrom, CrashOf, CallsOf, SpendingRate, SpendingOf, TouchedFiles, Feed)
"""Queries whose answers change with the files of the team only; a rate also falls slowly by itself.

`Usages` is one of them, because a team at rest is measured less often.
"""
