"""A journal read forward from near its end, so that opening a pane costs the same however long the journal is."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crewboard.records import Event
from crewboard.store import journal
from crewboard.store.layout import AgentDirectory


class ReplacedFileDetector:
    """Notices when another file stands where one was read: a name may be given again after its bearer was removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._look()[0]

    def came(self, offset: int) -> bool:
        """Whether the file is another one than at the last call, or is shorter than the `offset` it was read to."""
        before = self._inode
        self._inode, size = self._look()
        return size < offset or (before is not None and self._inode != before)

    def _look(self) -> tuple[int | None, int]:
        """Its inode, None where it is not there, and its size."""
        try:
            stat = self._path.stat()
        except OSError:
            return None, 0
        return stat.st_ino, stat.st_size


@dataclass
class JournalTail:
    """The last `length` bytes of an agent's journal, and what is added. `whole` says that nothing was left out."""

    agent: AgentDirectory
    length: int
    whole: bool = field(init=False)
    _offset: int = field(init=False)
    _successor: ReplacedFileDetector = field(init=False)

    def __post_init__(self) -> None:
        self._successor = ReplacedFileDetector(self.agent.journal)
        self._begin()

    def _begin(self) -> None:
        self._offset = journal.tail_offset(self.agent.journal, self.length)
        self.whole = self._offset == 0

    def begins_anew(self) -> bool:
        """Whether it is the journal of somebody else by now, which is read from its own tail on.

        What was gathered from the other one is to be forgotten.
        """
        if not self._successor.came(self._offset):
            return False
        self._begin()
        return True

    def fresh(self) -> Iterator[Event]:
        """The events since the last time; damaged lines are passed over."""
        for event, end in journal.read(self.agent.journal, self._offset):
            self._offset = end
            if event is not None:
                yield event
