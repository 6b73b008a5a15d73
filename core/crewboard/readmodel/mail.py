"""Mail as a reader sees it: each message with when it was sent, picked up, and when it entered a turn."""

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from crewboard.readmodel.journal_tail import ReplacedFileDetector
from crewboard.records import Intake, Message, ToolResult, ToolStart
from crewboard.store import journal, mailbox
from crewboard.store.layout import TeamDirectory

TAIL = 256 * 1024
"""How many bytes of a log a pane looks at when it is opened."""

UNREAD_TAIL = 4 * TAIL
"""And how many of a mailbox at most for what its reader has not read."""

_HEAD = 8
"""Lines at the beginning of a journal among which the first prompt is."""


@dataclass(frozen=True)
class Letter:
    """A message and what became of it; times are epoch seconds, None until then.

    `end` is the byte of the mailbox behind it, 0 for what never lay in one.
    """

    message: Message
    picked_up_at: float | None
    entered_turn_at: float | None
    end: int = 0


def is_notice(message: Message) -> bool:
    """Whether it says nothing that a person must read: who is idle stands on the board."""
    return message.type == "idle_notification"


@dataclass
class MailReader:
    """One mailbox and its owner's journal, read forward. With `tail`, from the last `TAIL` bytes of each on.

    `since` is the byte of the mailbox up to which it was read: what lies behind it is read too, if that begins earlier.
    `prompts` is what its owner was hired to do, oldest first: no mail, and as good as mail for who wants to know.
    """

    team: TeamDirectory
    name: str
    tail: bool = True
    since: int | None = None
    damaged: int = 0
    prompts: list[Letter] = field(default_factory=list)
    _messages: list[tuple[Message, int]] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _picked: dict[str, float] = field(default_factory=dict)
    _entered: dict[str, float] = field(default_factory=dict)
    _box_offset: int = 0
    _journal_offset: int = 0
    _box: ReplacedFileDetector = field(init=False)
    _journal: ReplacedFileDetector = field(init=False)

    def __post_init__(self) -> None:
        self._box, self._journal = ReplacedFileDetector(self._box_path), ReplacedFileDetector(self._journal_path)
        self._box_offset = self._start_of_box()
        self._begin_journal()

    def _start_of_box(self) -> int:
        start = self._start(self._box_path)
        if self.since is None:
            return start
        return min(start, max(self.since, journal.tail_offset(self._box_path, UNREAD_TAIL)))

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
        self._messages += batch.entries
        self._ids.update(message.id for message in batch.messages)
        return [
            Letter(message, self._picked_at(message.id), self._entered.get(message.id), end)
            for message, end in self._messages
        ]

    def _picked_at(self, ident: str) -> float | None:
        """What a tool call acted on was picked up by then: its intake is journalled with the next turn's mail."""
        times = [at for at in (self._picked.get(ident), self._entered.get(ident)) if at is not None]
        return min(times, default=None)

    def _forget_predecessor(self) -> None:
        """Begin again with files that are those of another bearer of the name."""
        if self._box.came(self._box_offset):
            self._messages, self._ids = [], set()
            self.damaged, self._box_offset = 0, self._start_of_box()
        if self._journal.came(self._journal_offset):
            self._picked, self._entered = {}, {}
            self._begin_journal()

    def _begin_journal(self) -> None:
        """Begin near its end; the prompt stands among its first lines."""
        self._journal_offset = self._start(self._journal_path)
        self.prompts = []
        for event, end in islice(journal.read(self._journal_path, 0), _HEAD):
            if end <= self._journal_offset and isinstance(event, Intake):
                self._note_prompt(event)

    def _note_prompt(self, event: Intake) -> None:
        if event.prompt is not None:
            prompt = mailbox.compose(
                event.prompt_from, self.name, "prompt", event.prompt, ident=event.assignment, ts=event.ts
            )
            self.prompts.append(Letter(prompt, event.ts, event.ts))

    def _read_journal(self) -> None:
        for event, end in journal.read(self._journal_path, self._journal_offset):
            self._journal_offset = end
            if isinstance(event, Intake):
                self._picked.update((message.id, event.ts) for message in event.messages)
                self._entered.update((ident, event.ts) for ident in event.entered)
                self._note_prompt(event)
            elif isinstance(event, ToolStart | ToolResult):
                self._entered.update((ident, event.ts) for ident in event.consumed)
