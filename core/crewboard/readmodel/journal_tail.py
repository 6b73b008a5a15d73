"""A journal read forward from near its end, so that opening a pane costs the same however long the journal is."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crewboard.records import Event
from crewboard.store import journal
from crewboard.store.layout import AgentDirectory


class ReplacedFileDetector:
    """Detects that a file was replaced by another: an agent was removed, and a new one has its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._stat()[0]

    def was_replaced(self, offset: int) -> bool:
        """Return True if the file is not the one of the last call, or is shorter than the `offset` read so far."""
        before = self._inode
        self._inode, size = self._stat()
        return size < offset or (before is not None and self._inode != before)

    def _stat(self) -> tuple[int | None, int]:
        """Return the inode, None if there is no file, and the size."""
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
        self.offset = 0 if self.length is None else journal.tail_offset(self.agent.journal, self.length)
        self.whole = self.offset == 0
        self.damaged = 0

    def restarted(self) -> bool:
        """Return True if another journal is read from now on, so that what was read of the last one must be dropped."""
        if not self._detector.was_replaced(self.offset):
            return False
        self._begin()
        return True

    def read_new(self) -> Iterator[Event]:
        """Yield the events appended since the last call; skip damaged lines."""
        for event, end in journal.read(self.agent.journal, self.offset):
            self.offset = end
            if event is None:
                self.damaged += 1
            else:
                yield event
