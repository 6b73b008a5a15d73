"""Results: follow an agent's journal until the answer to one assignment, as a foreground `spawn` does."""

from dataclasses import dataclass, field

from crewboard.records.events import Answer, Event
from crewboard.records.processes import Exit
from crewboard.store import journal, leases
from crewboard.store.layout import AgentDirectory


@dataclass
class Follower:
    """A reader of an agent's journal from its present end on, until the answer to the prompt or message `ident`."""

    agent: AgentDirectory
    ident: str
    run: int
    answer: Answer | None = None
    _offset: int = field(default=0)

    def __post_init__(self) -> None:
        self._offset = self.agent.journal.tail_offset(0)

    def rewind(self) -> "Follower":
        """Read the journal from its beginning, for an assignment that may have begun already."""
        self._offset = 0
        return self

    def read(self) -> list[Event]:
        """Return the events since the last call; store the answer in `answer` if it is among them."""
        fresh = []
        for event, end in journal.read(self.agent.journal, self._offset):
            self._offset = end
            if event is None:
                continue
            fresh.append(event)
            if isinstance(event, Answer) and self.ident in event.answers:
                self.answer = event
        return fresh

    def ended(self) -> Exit | None:
        """Return how the run ended, None if it has not. Call this before `read`, so that no last event is missed."""
        if leases.is_held(self.agent.lease):
            return None
        record = self.agent.exit.load()
        return record if record is not None and record.run >= self.run else None
