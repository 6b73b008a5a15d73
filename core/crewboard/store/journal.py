"""The journal: everything that happened to one agent, in order. Only the agent's worker writes it.

A `JournalTail` reads it forward from near its end, so that opening a pane costs the same however long the journal is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crewboard.records import Answer, BadDataError, Event, RunStarted, ToolResult, ToolStart
from crewboard.store import codec, files
from crewboard.store.layout import AgentDirectory, TeamDirectory

_DURABLE = (RunStarted, ToolStart, Answer)
"""Events that wait for the disk, with all before them: what follows them is seen outside the journal."""


def append(path: Path, event: Event) -> None:
    """Append one event. The worker is the only writer, so no lock is needed.

    Raises:
        StorageError: The write failed; nothing was added.
        BadDataError: The event cannot be encoded so that it can be read again; nothing was added.
    """
    files.append_unlocked(path, codec.encode(event), durable=isinstance(event, _DURABLE))


def read(path: Path, offset: int = 0) -> Iterator[tuple[Event | None, int]]:
    """Yield each event from byte `offset` on, None for a damaged line, and the offset after it."""
    for line, end in files.read_lines(path, offset):
        if line is not None and not line.strip():
            continue
        try:
            yield (codec.decode_event(line) if line is not None else None), end
        except BadDataError:
            yield None, end


def history(path: Path) -> Iterator[Event | None]:
    """Return all events so far, for the worker that will append the next one.

    First terminate a half-written last line, so that it is either valid now or never. An iterator, so that a long
    journal is never in memory as a whole.

    Raises:
        StorageError: The journal cannot be read or written.
    """
    files.seal(path)
    return (event for event, _ in read(path))


def tail_offset(path: Path, tail: int) -> int:
    """Return the offset of the first line within the last `tail` bytes; with 0, where the next line will begin.

    Raises:
        StorageError: The file exists but cannot be read.
    """
    return files.tail_offset(path, tail)


def last_run(path: Path) -> int:
    """Return the highest run number in the journal, 0 if it has none."""
    return max((event.run for event, _ in read(path) if event is not None), default=0)


class ReplacedFileDetector:
    """A detector of the fact that a file was replaced by another: an agent was removed, and a new one has its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._stat()[0]

    def was_replaced(self, offset: int) -> bool:
        """Return True if the file is not the one of the last call, or is shorter than the `offset` read so far."""
        before = self._inode
        self._inode, size = self._stat()
        return size < offset or (before is not None and self._inode != before)

    def _stat(self) -> tuple[int | None, int]:
        """Return the inode and the size; (None, 0) if there is no file."""
        try:
            stat = self._path.stat()
        except OSError:
            return None, 0
        return stat.st_ino, stat.st_size


@dataclass
class JournalTail:
    """The last `length` bytes of an agent's journal, or all of it, and what is appended.

    `offset` is the end of what was read, `whole` says that nothing was left out, `damaged` counts unreadable lines.
    """

    agent: AgentDirectory
    length: int | None
    offset: int = field(init=False)
    whole: bool = field(init=False)
    damaged: int = field(init=False, default=0)
    _detector: ReplacedFileDetector = field(init=False)

    def __post_init__(self) -> None:
        self._detector = ReplacedFileDetector(self.agent.journal)
        self._begin()

    def _begin(self) -> None:
        self.offset = 0 if self.length is None else tail_offset(self.agent.journal, self.length)
        self.whole = self.offset == 0
        self.damaged = 0

    def restarted(self) -> bool:
        """Return True if the journal was replaced by another one, so that events read before must be dropped."""
        if not self._detector.was_replaced(self.offset):
            return False
        self._begin()
        return True

    def read_new(self) -> Iterator[Event]:
        """Yield the events appended since the last call; skip damaged lines."""
        for event, end in read(self.agent.journal, self.offset):
            self.offset = end
            if event is None:
                self.damaged += 1
            else:
                yield event


@dataclass(frozen=True)
class RuleUsage:
    """The number of calls that a permission rule decided, and the time of the last one."""

    hits: int = 0
    last_hit: float | None = None

    def plus(self, other: "RuleUsage") -> "RuleUsage":
        """Return the usage of both together."""
        return RuleUsage(self.hits + other.hits, max(self.last_hit or 0, other.last_hit or 0) or None)


class RuleUsageReader:
    """Counts the calls that each permission rule decided, in the journals of all agents, also of removed ones."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._journals: dict[Path, _RuleHits] = {}

    def read(self) -> dict[str, RuleUsage]:
        """Return the usage of each rule by its id. Reads only what was appended since the last call.

        Raises:
            StorageError: A journal cannot be read.
        """
        paths = (*self._team.agents.glob("*/journal.jsonl"), *self._team.path.glob("removed/*/agent/journal.jsonl"))
        self._journals = {path: self._journals.get(path) or _RuleHits(path) for path in paths}
        found: dict[str, RuleUsage] = {}
        for journal in self._journals.values():
            for ident, used in journal.read().items():
                found[ident] = found.get(ident, RuleUsage()).plus(used)
        return found


class _RuleHits:
    """The usage of each rule by one agent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._detector = ReplacedFileDetector(path)
        self._found: dict[str, RuleUsage] = {}

    def read(self) -> dict[str, RuleUsage]:
        if self._detector.was_replaced(self._offset):
            self._offset, self._found = 0, {}
        for line, end in files.read_lines(self._path, self._offset):
            self._offset = end
            if line is None or _HAS_RULE not in line:
                continue
            try:
                event = codec.decode_event(line)
            except BadDataError:
                continue
            if isinstance(event, ToolStart | ToolResult) and event.rule is not None:
                self._found[event.rule] = self._found.get(event.rule, RuleUsage()).plus(RuleUsage(1, event.ts))
        return self._found


_HAS_RULE = b'"rule": "'
"""Bytes of each line that names a rule. Decoding all others would take most of the time."""
