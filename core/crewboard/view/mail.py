"""Mail as a reader sees it: each message with when it was sent, picked up, and when it entered a turn."""

from dataclasses import dataclass, field

from crewboard.records import Intake, Message
from crewboard.store import journal, mailbox
from crewboard.store.directory import TeamDirectory

TAIL = 256 * 1024
"""How many bytes of a log a pane looks at when it is opened."""


@dataclass(frozen=True)
class Letter:
    """A message and what became of it; times are epoch seconds, None until then."""

    message: Message
    picked_up_at: float | None
    entered_turn_at: float | None


@dataclass
class MailReader:
    """One mailbox and its owner's journal, read forward. With `tail`, from the last `TAIL` bytes of each on."""

    team: TeamDirectory
    name: str
    tail: bool = True
    damaged: int = 0
    _messages: list[Message] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _picked: dict[str, float] = field(default_factory=dict)
    _entered: dict[str, float] = field(default_factory=dict)
    _box_offset: int = 0
    _journal_offset: int = 0

    def __post_init__(self) -> None:
        if self.tail:
            self._box_offset = journal.tail_offset(self.team.inbox(self.name), TAIL)
            self._journal_offset = journal.tail_offset(self.team.agent(self.name).journal, TAIL)

    @property
    def offset(self) -> int:
        """The byte of the mailbox behind the last message that was read."""
        return self._box_offset

    def read(self) -> list[Letter]:
        """Every message so far, oldest first."""
        self._read_journal()
        batch = mailbox.read(self.team, self.name, self._box_offset, known=self._ids)
        self._box_offset = batch.offset
        self.damaged += batch.damaged
        self._messages += batch.messages
        self._ids.update(message.id for message in batch.messages)
        return [
            Letter(message, self._picked.get(message.id), self._entered.get(message.id)) for message in self._messages
        ]

    def _read_journal(self) -> None:
        for event, end in journal.read(self.team.agent(self.name).journal, self._journal_offset):
            self._journal_offset = end
            if isinstance(event, Intake):
                self._picked.update((message.id, event.ts) for message in event.messages)
                self._entered.update((ident, event.ts) for ident in event.entered)


def read_mail(team: TeamDirectory, name: str) -> list[Letter]:
    """The whole mailbox of `name`."""
    return MailReader(team, name, tail=False).read()
