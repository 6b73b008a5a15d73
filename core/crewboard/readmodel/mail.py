"""Mail as a reader sees it: when each message was sent, picked up and used, what is unread, and how it is worded."""

from bisect import bisect_right
from collections.abc import Collection
from itertools import islice

from msgspec import Struct

from crewboard import store
from crewboard.records import OPERATOR, Intake, Message, StorageError, ToolResult, ToolStart
from crewboard.store import JournalTail, ReplacementDetector, TeamDirectory

TAIL = 256 * 1024
"""Bytes at the end of a mailbox or journal that a pane reads when it opens."""

UNREAD_TAIL = 4 * TAIL
"""Bytes at the end of a mailbox that are read at most for unread messages."""

EXACT = 1024 * 1024
"""Bytes of unread mail that are parsed; lines before them are only counted."""

MAX_HEADLINE = 200
"""Characters of a result that its need shows at most."""

_HEAD = 8
"""Lines at the start of a journal among which the hire prompt is."""

QUESTION = "Question: "
"""Start of a rejection that asks back. A waiting agent reads only the answer to its request, so a question is one."""

_VERBS = {
    "idle_notification": "is free for work",
    "teammate_terminated": "",
    "files_put_back": "",
    "plan_approval_request": "plan:",
    "plan_approval_response": "about the plan:",
    "shutdown_request": "please shut down",
    "shutdown_response": "about shutting down:",
    "permission_request": "may I:",
    "permission_response": "about that permission:",
    "question_request": "asks:",
    "task_review_request": "wants a review:",
    "task_review_response": "about that work:",
    "question_response": "answers:",
    "task_assignment": "assigns",
    "result": "result:",
    "error": "could not continue:",
    "interrupt": "interrupts:",
    "broadcast": "to all:",
    "budget_warning": "warns:",
}
"""Verbs for the messages of the protocol."""

_ANSWERS = {
    "plan_approval_response": ("approves the plan", "refuses the plan"),
    "permission_response": ("allows it", "refuses it"),
    "task_review_response": ("approves the work", "asks for changes"),
    "shutdown_response": ("agrees to shut down", "stays"),
}
"""Verbs for answers: approved, rejected."""


class MessageView(Struct, frozen=True):
    """A message and what became of it. Times are epoch seconds, None until it happens.

    `end` is the offset behind it in the mailbox, 0 if it was in none.
    """

    message: Message
    picked_up_at: float | None
    entered_turn_at: float | None
    end: int = 0


class UnreadResult(Struct, frozen=True):
    """A result that the operator has not read. `end` is the offset in bytes after it in `mailbox`."""

    author: str
    ts: float
    text: str
    file: str | None
    mailbox: str
    end: int


def is_notice(message: Message) -> bool:
    """Return True if the operator need not read a message, because the board shows the same."""
    return message.type == "idle_notification"


class MailboxTail:
    """A mailbox read forward; `offset` is the end of what was read."""

    def __init__(self, team: TeamDirectory, name: str, offset: int) -> None:
        self._team = team
        self._name = name
        self._detector = ReplacementDetector(team.inbox(name))
        self.offset = offset

    def restarted(self) -> bool:
        """Return True if another mailbox is read from now on, from its start."""
        if not self._detector.was_replaced(self.offset):
            return False
        self.offset = 0
        return True

    def read_new(self, known: Collection[str]) -> store.mailbox.Batch:
        """Return the messages appended since the last call, without those whose id is `known`."""
        batch = store.mailbox.read(self._team, self._name, self.offset, known=known)
        self.offset = batch.offset
        return batch

    def skip_to(self, end: int) -> list[int]:
        """Pass over the lines up to the offset `end`; return the offsets behind those that are not blank."""
        skipped = []
        for line, behind in self._team.inbox(self._name).read(self.offset):
            if behind > end:
                break
            self.offset = behind
            if line is None or line.strip():
                skipped.append(behind)
        return skipped


class Unread:
    """Counts the messages of a mailbox behind a cursor, reading each byte once.

    In a mailbox with very much unread mail, only the last `EXACT` bytes are parsed, and each line before counts as one.
    """

    def __init__(self, team: TeamDirectory, name: str, cursor: int) -> None:
        self._team = team
        self._name = name
        self._tail = MailboxTail(team, name, cursor)
        self._lines: list[int] = []
        self._messages: dict[str, int] = {}
        self._notices: set[str] = set()
        self._results: list[UnreadResult] = []
        self._damage: list[int] = []
        self._unreadable = False

    @property
    def offset(self) -> int:
        """Return the end of what was read."""
        return self._tail.offset

    def count(self, cursor: int) -> int:
        """Return how many messages are behind `cursor`; if the mailbox cannot be read, how many were found before."""
        try:
            self._read_new()
            self._unreadable = False
        except StorageError:
            self._unreadable = True
        self._drop_read(cursor)
        return len(self._lines) + len(self._messages)

    def _read_new(self) -> None:
        if self._tail.restarted():
            self._lines, self._messages, self._notices, self._results, self._damage = [], {}, set(), [], []
        size = store.mailbox.size(self._team, self._name)
        if size == self._tail.offset:
            return
        if size - self._tail.offset > EXACT:
            self._lines += self._tail.skip_to(size - EXACT)
        batch = self._tail.read_new(self._messages.keys())
        self._messages.update((message.id, end) for message, end in batch.entries)
        self._notices.update(message.id for message in batch.messages if is_notice(message))
        self._results += [self._result(message, end) for message, end in batch.entries if message.type == "result"]
        self._damage += batch.damaged_ends

    def _result(self, message: Message, end: int) -> UnreadResult:
        file = message.metadata.get("result")
        first = next((line for line in message.content.splitlines() if line.strip()), "")
        text = first[:MAX_HEADLINE]
        return UnreadResult(message.from_, message.ts, text, file if isinstance(file, str) else None, self._name, end)

    def count_for_operator(self, cursor: int) -> int:
        """Return how many of them the operator must read."""
        return self.count(cursor) - len(self._notices)

    @property
    def results(self) -> tuple[UnreadResult, ...]:
        """Return the results among the messages that were parsed."""
        return tuple(self._results)

    @property
    def damaged(self) -> int:
        """Return the number of unreadable lines behind the cursor; a mailbox that cannot be read counts as one."""
        return len(self._damage) + self._unreadable

    def _drop_read(self, cursor: int) -> None:
        del self._lines[: bisect_right(self._lines, cursor)]
        self._messages = {ident: end for ident, end in self._messages.items() if end > cursor}
        self._notices &= self._messages.keys()
        self._results = [result for result in self._results if result.end > cursor]
        self._damage = [end for end in self._damage if end > cursor]


class MailReader:
    """A mailbox and the journal of its agent, read forward; with `tail`, from the last `TAIL` bytes of each on.

    `since` is the offset up to which the mailbox was read before: all behind it is read, if that starts earlier.
    `prompts` are the agent's hire prompts, oldest first. They are no mail, but are shown with it.
    """

    def __init__(self, team: TeamDirectory, name: str, *, tail: bool = True, since: int | None = None) -> None:
        self.team = team
        self.name = name
        self.tail = tail
        self.since = since
        self.damaged = 0
        self.prompts: list[MessageView] = []
        self._messages: list[tuple[Message, int]] = []
        self._ids: set[str] = set()
        self._picked: dict[str, float] = {}
        self._entered: dict[str, float] = {}
        self._mailbox = MailboxTail(team, name, self._start())
        self._journal = JournalTail(team.agent(name), TAIL if tail else None)
        self._read_prompts()

    def _start(self) -> int:
        """Return the offset from which the mailbox is read."""
        inbox = self.team.inbox(self.name)
        start = inbox.tail_offset(TAIL) if self.tail else 0
        return start if self.since is None else min(start, max(self.since, inbox.tail_offset(UNREAD_TAIL)))

    @property
    def offset(self) -> int:
        """Return the offset in bytes up to which the mailbox was read."""
        return self._mailbox.offset

    @property
    def is_whole(self) -> bool:
        """Return True if the mailbox was read from its beginning."""
        return self._start() == 0

    def is_enough_for(self, newest: list[MessageView], count: int) -> bool:
        """Return True if `newest` contains the newest `count` messages completely, with their delivery times."""
        known = self._journal.whole or all(letter.picked_up_at is not None for letter in newest)
        return (self.is_whole or len(newest) == count) and known

    def read(self) -> list[MessageView]:
        """Return every message so far, oldest first."""
        if self._mailbox.restarted():
            self._mailbox.offset = self._start()
            self._messages, self._ids, self.damaged = [], set(), 0
        if self._journal.restarted():
            self._picked, self._entered = {}, {}
            self._read_prompts()
        self._read_journal()
        batch = self._mailbox.read_new(self._ids)
        self.damaged += batch.damaged
        self._messages += batch.entries
        self._ids.update(message.id for message in batch.messages)
        return [
            MessageView(message, self._picked_up_at(message.id), self._entered.get(message.id), end)
            for message, end in self._messages
        ]

    def _picked_up_at(self, ident: str) -> float | None:
        # A tool call may act on a message before the next turn journals that it was picked up.
        times = [at for at in (self._picked.get(ident), self._entered.get(ident)) if at is not None]
        return min(times, default=None)

    def _read_prompts(self) -> None:
        """Read the hire prompt, which is at the start of the journal and so not in its tail."""
        self.prompts = []
        for event, end in islice(store.journal.read(self._journal.agent.journal), _HEAD):
            if end <= self._journal.offset and isinstance(event, Intake):
                self._note_prompt(event)

    def _note_prompt(self, event: Intake) -> None:
        if event.prompt is not None:
            prompt = store.mailbox.compose(
                event.prompt_from, self.name, "prompt", event.prompt, ident=event.assignment, ts=event.ts
            )
            self.prompts.append(MessageView(prompt, event.ts, event.ts))

    def _read_journal(self) -> None:
        for event in self._journal.read_new():
            if isinstance(event, Intake):
                self._picked.update((message.id, event.ts) for message in event.messages)
                self._entered.update((ident, event.ts) for ident in event.entered)
                self._note_prompt(event)
            elif isinstance(event, ToolStart | ToolResult):
                self._entered.update((ident, event.ts) for ident in event.consumed)


def question_in(feedback: str | None) -> str | None:
    """Return the question that a rejection asks back, None if it asks none."""
    return feedback.removeprefix(QUESTION) if feedback and feedback.startswith(QUESTION) else None


def display_name(name: str) -> str:
    """Return a name as the operator sees it: `you` for the operator."""
    return "you" if name == OPERATOR else name


def verb(message: Message) -> str:
    """Return what a message does, followed by a blank; nothing for plain text."""
    approve = message.metadata.get("approve")
    if _asks_back(message):
        return "asks back: "
    if message.type in _ANSWERS and isinstance(approve, bool):
        return _ANSWERS[message.type][0 if approve else 1] + (": " if body(message) else "")
    words = _VERBS.get(message.type, "" if message.type == "message" else f"{message.type}:")
    if message.type == "shutdown_request" and body(message):
        words += ":"
    return f"{words} " if words else ""


def body(message: Message) -> str:
    """Return what a message says beyond its verb; nothing for an answer without feedback."""
    if _asks_back(message):
        return message.content.removeprefix(QUESTION)
    bare = message.type in _ANSWERS and message.content in ("approved", "rejected")
    free = message.type == "idle_notification" and message.content == "free for work"
    return "" if bare or free else message.content


def headline(message: Message) -> str:
    """Return the body of a message for one line: of a plan, its title."""
    text = body(message)
    return plan_title(text) if message.type == "plan_approval_request" else text


def plan_title(plan: str) -> str:
    """Return the first words of a plan, without the marks of a heading."""
    lines = (line.strip("# \t") for line in plan.splitlines())
    return next((line for line in lines if line), "")


def _asks_back(message: Message) -> bool:
    rejected = message.type in _ANSWERS and message.metadata.get("approve") is False
    return rejected and question_in(message.content) is not None


def describe_message(message: Message) -> str:
    """Return verb and body of a message, to follow a name: `to all: freeze main`."""
    words, text = verb(message), body(message)
    return f"{words}{text}" if text else words.rstrip(" :")
