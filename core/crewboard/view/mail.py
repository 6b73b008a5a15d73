"""Mail as a reader sees it: each message with when it was sent, picked up, and when it entered a turn."""

from dataclasses import dataclass, field
from pathlib import Path

from crewboard.records import Intake, Message
from crewboard.store import journal, mailbox
from crewboard.store.directory import TeamDirectory
from crewboard.view.tail import Successor

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
    _box: Successor = field(init=False)
    _journal: Successor = field(init=False)

    def __post_init__(self) -> None:
        self._box, self._journal = Successor(self._box_path), Successor(self._journal_path)
        self._box_offset, self._journal_offset = self._start(self._box_path), self._start(self._journal_path)

    @property
    def _box_path(self) -> Path:
        return self.team.inbox(self.name)

    @property
    def _journal_path(self) -> Path:
        return self.team.agent(self.name).journal

    def _start(self, path: Path) -> int:
        return journal.tail_offset(path, TAIL) if self.tail else 0

    @property
    def offset(self) -> int:
        """The byte of the mailbox behind the last message that was read."""
        return self._box_offset

    def read(self) -> list[Letter]:
        """Every message so far, oldest first."""
        self._forget_predecessor()
        self._read_journal()
        batch = mailbox.read(self.team, self.name, self._box_offset, known=self._ids)
        self._box_offset = batch.offset
        self.damaged += batch.damaged
        self._messages += batch.messages
        self._ids.update(message.id for message in batch.messages)
        return [
            Letter(message, self._picked.get(message.id), self._entered.get(message.id)) for message in self._messages
        ]

    def _forget_predecessor(self) -> None:
        """Begin again with files that are those of another bearer of the name."""
        if self._box.came(self._box_offset):
            self._messages, self._ids = [], set()
            self.damaged, self._box_offset = 0, self._start(self._box_path)
        if self._journal.came(self._journal_offset):
            self._picked, self._entered = {}, {}
            self._journal_offset = self._start(self._journal_path)

    def _read_journal(self) -> None:
        for event, end in journal.read(self._journal_path, self._journal_offset):
            self._journal_offset = end
            if isinstance(event, Intake):
                self._picked.update((message.id, event.ts) for message in event.messages)
                self._entered.update((ident, event.ts) for ident in event.entered)


def read_mail(team: TeamDirectory, name: str) -> list[Letter]:
    """The whole mailbox of `name`."""
    return MailReader(team, name, tail=False).read()
