"""The journal: everything that happened to one agent, in order. Only the agent's worker writes it.

A `JournalTail` reads it from near its end on, so that opening a pane costs the same however long the journal is.
"""

from collections.abc import Iterator

from msgspec import Struct

from crewboard.errors import BadDataError, StorageError
from crewboard.records.events import Answer, Event, FileKept, Intake, RunStarted, ToolResult, ToolStart
from crewboard.records.processes import Exit
from crewboard.store import codec, leases
from crewboard.store.interface import Key
from crewboard.store.layout import AgentDirectory, TeamDirectory

_DURABLE = (RunStarted, ToolStart, FileKept, Answer)
"""Events whose append waits until they and all before them are on the disk, because what follows is seen
outside the journal.
"""


_ANSWER_TAIL = 256 << 10
"""Bytes at the end of a journal in which `has_answered` looks for an answer."""


def append(journal: Key, event: Event, at: int | None = None) -> int:
    """Append one event, and return the offset after it. Only the agent's worker may call this.

    `at` is the offset at which the journal ends, if the worker knows it.

    Raises:
        StorageError: The write failed; nothing was added.
        LostLeaseError: The journal does not end at `at`: it was replaced, or another process wrote.
        BadDataError: The event cannot be encoded so that it can be read again; nothing was added.
    """
    at = journal.store.end(journal.name) if at is None else at
    return journal.store.append(journal.name, codec.encode(event), at=at, durable=isinstance(event, _DURABLE))


def read(journal: Key, offset: int = 0, *marks: bytes) -> Iterator[tuple[Event | None, int]]:
    """Yield each event from byte `offset` on, None for a damaged line, and the offset after it.

    With `marks`, a line that contains none of these bytes also gives None: to decode every event of a busy team takes
    as long as reading the whole team.
    """
    for line, end in journal.read(offset):
        if line is not None and not line.strip():
            continue
        is_wanted = line is not None and (not marks or any(mark in line for mark in marks))
        try:
            yield (codec.decode_event(line) if line is not None and is_wanted else None), end
        except BadDataError:
            yield None, end


def history(journal: Key) -> Iterator[Event | None]:
    """Return an iterator over all events so far, None for a damaged line, for the worker that appends the next one.

    First end a half-written last line, so that it is either valid now or never.

    Raises:
        StorageError: The journal cannot be read or written.
    """
    journal.store.end(journal.name)
    return (event for event, _ in read(journal))


def last_run(journal: Key) -> int:
    """Return the highest run number in the journal; 0 if there is none."""
    return max((event.run for event, _ in read(journal) if event is not None), default=0)


class ReplacementDetector:
    """Detects that a log was replaced by another one: an agent was removed, and a new agent has its name."""

    def __init__(self, log: Key) -> None:
        self._log = log
        self._origin = self._look()[0]

    def was_replaced(self, offset: int) -> bool:
        """Return True if the log is not the one of the last call, or is shorter than the `offset` read so far."""
        before = self._origin
        self._origin, size = self._look()
        return size < offset or (before is not None and self._origin != before)

    def _look(self) -> tuple[int | None, int]:
        """Return the log's origin (`Version.origin`) and size; (None, 0) if there is no log or it cannot be read."""
        try:
            found = self._log.changed()
        except StorageError:
            return None, 0
        return (None, 0) if found is None else (found.origin, found.size)


class JournalTail:
    """A reader of the last `length` bytes of a journal, or of all of it if None, and of what is appended later.

    `offset` is the end of what was read; `whole` says that reading began at the beginning of the journal.
    """

    def __init__(self, journal: Key, length: int | None) -> None:
        self.journal = journal
        self.length = length
        self._detector = ReplacementDetector(journal)
        self._begin()

    def _begin(self) -> None:
        self.offset = 0 if self.length is None else self.journal.tail_offset(self.length)
        self.whole = self.offset == 0

    def restarted(self) -> bool:
        """Return True if the journal was replaced by another one; then events that were read before must be dropped."""
        if not self._detector.was_replaced(self.offset):
            return False
        self._begin()
        return True

    def read_new(self, *marks: bytes) -> Iterator[Event]:
        """Yield the events appended since the last call, but no damaged lines; with `marks`, only lines with a mark."""
        for event, end in read(self.journal, self.offset, *marks):
            self.offset = end
            if event is not None:
                yield event


def has_answered(agent: AgentDirectory) -> bool:
    """Return True if an agent has answered the mail that it picked up last, by the end of its journal."""
    newest: Event | None = None
    for event, _ in read(agent.journal, agent.journal.tail_offset(_ANSWER_TAIL), b'"intake"', b'"answer"'):
        newest = event if isinstance(event, Answer | Intake) else newest
    return isinstance(newest, Answer)


class Follower:
    """A reader of an agent's journal from its present end on, until the answer to the prompt or message `ident`.

    `answer` is that answer, None until it was read. A foreground `spawn` follows its agent with it.
    """

    def __init__(self, agent: AgentDirectory, ident: str, run: int) -> None:
        self.agent = agent
        self.ident = ident
        self.run = run
        self.answer: Answer | None = None
        # Where the journal is kept is asked at each reading: the agent's team may be made later than this.
        self._offset = agent.journal.tail_offset(0)

    def rewind(self) -> "Follower":
        """Read the journal from its beginning, because the assignment may have begun; return this reader."""
        self._offset = 0
        return self

    def read(self) -> list[Event]:
        """Return the events since the last call; set `answer` if it is among them."""
        fresh = []
        for event, end in read(self.agent.journal, self._offset):
            self._offset = end
            if event is None:
                continue
            fresh.append(event)
            if isinstance(event, Answer) and self.ident in event.answers:
                self.answer = event
        return fresh

    def ended(self) -> Exit | None:
        """Return how the run ended; None while the run lasts, or if its end is not recorded yet.

        Call this before `read`, so that no last event is missed.
        """
        if leases.is_held(self.agent.lease):
            return None
        record = self.agent.exit.load_or_none()
        return record if record is not None and record.run >= self.run else None


class RuleUsage(Struct, frozen=True):
    """How many calls a permission rule decided, and the time of the last one; None if there was none."""

    hits: int = 0
    last_hit: float | None = None

    def plus(self, other: "RuleUsage") -> "RuleUsage":
        """Return the sum of two usages."""
        return RuleUsage(self.hits + other.hits, max(self.last_hit or 0, other.last_hit or 0) or None)


class RuleUsageReader:
    """Counts the calls that each permission rule decided, in the journals of all agents, including removed ones."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._journals: dict[Key, _RuleHits] = {}

    def read(self) -> dict[str, RuleUsage]:
        """Return the usage of each rule by its id. Only what was appended since the last call is read.

        Raises:
            StorageError: A journal cannot be read.
        """
        living = (self._team.agent(name).journal for name in self._team.agent_names())
        removed = (self._team.removed.below(f"{name}/agent/journal.jsonl") for name in self._team.removed.names())
        self._journals = {journal: self._journals.get(journal) or _RuleHits(journal) for journal in (*living, *removed)}
        found: dict[str, RuleUsage] = {}
        for journal in self._journals.values():
            for ident, used in journal.read().items():
                found[ident] = found.get(ident, RuleUsage()).plus(used)
        return found


class _RuleHits:
    """The usage of each rule in the journal of one agent."""

    def __init__(self, journal: Key) -> None:
        self._tail = JournalTail(journal, None)
        self._found: dict[str, RuleUsage] = {}

    def read(self) -> dict[str, RuleUsage]:
        if self._tail.restarted():
            self._found = {}
        for event in self._tail.read_new(_HAS_RULE):
            if isinstance(event, ToolStart | ToolResult) and event.rule is not None:
                self._found[event.rule] = self._found.get(event.rule, RuleUsage()).plus(RuleUsage(1, event.ts))
        return self._found


_HAS_RULE = b'"rule": "'
"""Bytes that each line with the id of a rule contains."""
