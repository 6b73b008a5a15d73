"""Waiting for the answer to one assignment, as a foreground `spawn` and a lead's talk do."""

from dataclasses import dataclass, field

from crewboard.records import Answer, Event, Exit
from crewboard.store import agents, journal, leases
from crewboard.store.layout import AgentDirectory


@dataclass
class Follower:
    """Reads an agent's journal from where it stands, for the answer that names the prompt or message `ident`."""

    agent: AgentDirectory
    ident: str
    run: int
    answer: Answer | None = None
    _offset: int = field(default=0)

    def __post_init__(self) -> None:
        self._offset = journal.tail_offset(self.agent.journal, 0)

    def rewind(self) -> "Follower":
        """Read the journal from its beginning: for an assignment that may have begun already."""
        self._offset = 0
        return self

    def read(self) -> list[Event]:
        """The events since the last time; notes the answer when it comes."""
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
        """How the run ended, if it did: look before reading, so that its last words are not missed."""
        if leases.is_held(self.agent.lease):
            return None
        record = agents.exit_record(self.agent)
        return record if record is not None and record.run >= self.run else None
