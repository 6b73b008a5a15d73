"""A journal read forward from near its end, so that opening a pane costs the same however long the journal is."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from crewboard.records import Event
from crewboard.store import journal
from crewboard.store.directory import AgentDirectory


@dataclass
class JournalTail:
    """The last `length` bytes of an agent's journal, and what is added. `whole` says that nothing was left out."""

    agent: AgentDirectory
    length: int
    whole: bool = field(init=False)
    _offset: int = field(init=False)

    def __post_init__(self) -> None:
        self._offset = journal.tail_offset(self.agent.journal, self.length)
        self.whole = self._offset == 0

    def fresh(self) -> Iterator[Event]:
        """The events since the last time; damaged lines are passed over."""
        for event, end in journal.read(self.agent.journal, self._offset):
            self._offset = end
            if event is not None:
                yield event
