"""Mail as a reader sees it: when each message was sent, picked up and used, what is unread, and how it is worded."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from crewboard.errors import StorageError
from crewboard.names import OPERATOR, SYSTEM
from crewboard.records.base import first_line
from crewboard.records.events import Intake, ToolResult, ToolStart
from crewboard.records.messages import Message
from crewboard.records.requests import QUESTION, Request, question_in
from crewboard.records.team import result_mark
from crewboard.store import journal
from crewboard.store import mailbox as store_mailbox
from crewboard.store.journal import JournalTail, ReplacementDetector
from crewboard.store.layout import TeamDirectory

TAIL = 256 * 1024
"""Bytes at the end of a mailbox or journal that a pane reads when it opens."""

UNREAD_TAIL = 4 * TAIL
"""Most bytes at the end of a mailbox that are read for unread messages."""

EXACT = 1024 * 1024
"""Most bytes of unread mail that are parsed; lines before them are only counted."""

IDS = 2000
"""Most ids of unread messages of a mailbox that are kept, the newest: a message is sent again soon after the first
time.
"""

MOST = 2000
"""Most messages at the end of a mailbox that a reader keeps, and most KiB of the mailbox that these are in."""

MAX_HEADLINE = 200
"""Most characters of a result that its need shows."""

_HEAD = 8
"""Lines at the beginning of a journal in which the hire prompt is looked for."""

UNREADABLE = "unreadable"
"""The type of a message that stands for a line of a mailbox that cannot be read. No line has this type."""

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
    UNREADABLE: "",
}
"""The words before the text of a message, by its type."""

_ANSWERS = {
    "plan_approval_response": ("approves the plan", "refuses the plan"),
    "permission_response": ("allows it", "refuses it"),
    "task_review_response": ("approves the work", "asks for changes"),
    "shutdown_response": ("agrees to shut down", "stays"),
}
"""The words before the text of an answer, if it approves and if it rejects."""


class MessageView(Struct, frozen=True):
    """A message and when it was picked up and entered the conversation, in epoch seconds; None if it has not.

    `end` is the offset behind it in the mailbox, 0 if it was in none. `edited_by` is who edited and approved the plan
    that is shown in place of the one that was sent.
    """

    message: Message
    picked_up_at: float | None
    entered_turn_at: float | None
    end: int = 0
    edited_by: str = ""


class UnreadResults(Struct, frozen=True):
    """The results of an agent in a mailbox that the operator has not read: their number, the newest's text and file.

    `newest` is the time of the newest, `end` the offset after it in bytes.
    """

    author: str
    mailbox: str
    count: int
    newest: float
    end: int
    text: str
    file: str | None


def is_notice(message: Message) -> bool:
    """Return True if the operator need not read a message, because the board shows the same."""
    return message.type == "idle_notification"


def request_announced(message: Message) -> str:
    """Return the id of the request that a message announces; empty if it announces none."""
    return str(message.metadata.get("request_id", "")) if message.type.endswith("_request") else ""


class MailboxTail:
    """A reader of a mailbox from an offset on; `offset` is the end of what was read."""

    def __init__(self, team: TeamDirectory, name: str, offset: int) -> None:
        self._team = team
        self._name = name
        self._detector = ReplacementDetector(team.inbox(name))
        self.offset = offset

    def restarted(self) -> bool:
        """Return True if the mailbox was replaced by another one, which is read from its beginning from now on."""
        if not self._detector.was_replaced(self.offset):
            return False
        self.offset = 0
        return True

    def read_new(self, known: Collection[str]) -> store_mailbox.Batch:
        """Return the messages appended since the last call, without those whose id is `known`.

        The result is empty if the mailbox has just become shorter; `restarted` returns True then.
        """
        batch = store_mailbox.read(self._team, self._name, self.offset, known=known)
        if batch.start < self.offset:
            return store_mailbox.Batch(self.offset)
        self.offset = batch.offset
        return batch

    def skip_to(self, end: int) -> list[int]:
        """Pass over the lines up to the offset `end`; return the offsets after the lines that are not blank."""
        skipped = []
        for line, behind in self._team.inbox(self._name).read(self.offset):
            if behind > end:
                break
            self.offset = behind
            if line is None or line.strip():
                skipped.append(behind)
        return skipped


class _ResultsOf(Struct):
    """The unread results of an agent in a mailbox: the offset after each, and time, text and file of the newest."""

    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    newest: float = 0.0
    text: str = ""
    file: str | None = None

    def add(self, message: Message, end: int) -> None:
        first = next((line for line in message.content.splitlines() if line.strip()), "")
        file = message.metadata.get("result")
        self.text, self.file = first[:MAX_HEADLINE], file if isinstance(file, str) else None
        self.ends.append(end)
        self.newest = message.ts


class Unread:
    """Counts the unread messages of a mailbox: those behind a cursor. Each byte is read once.

    In a mailbox with very much unread mail, only the last `EXACT` bytes are parsed, and each line before them counts as
    one message. Of messages before the newest `IDS` only the offsets are kept: 8 bytes for a message, 16 for a result.
    With `until`, only messages up to that offset count.
    """

    def __init__(self, team: TeamDirectory, name: str, cursor: int, until: int | None = None) -> None:
        self._team = team
        self._name = name
        self.until = until
        self._tail = MailboxTail(team, name, cursor)
        self._unreadable = False
        self._forget()

    def _forget(self) -> None:
        # All in the order of the mailbox.
        self._old = array("Q")
        """The offsets after messages whose ids are not kept."""
        self._messages: dict[str, int] = {}
        """The offsets after the newest messages, by id."""
        self._notices = array("Q")
        self._asks: list[tuple[int, str]] = []
        """The offsets after messages that announce requests, with the ids of the requests."""
        self._results: dict[str, _ResultsOf] = {}
        self._damage = array("Q")

    @property
    def offset(self) -> int:
        """Return the offset up to which the mailbox was read."""
        return self._tail.offset

    def count(self, cursor: int) -> int:
        """Return the number of messages behind `cursor`, which may not be lower than at the last call.

        If the mailbox cannot be read, only messages that were found before are counted.
        """
        try:
            self._read_new()
            self._unreadable = False
        except StorageError:
            self._unreadable = True
        for ends in (self._old, self._notices, self._damage):
            del ends[: bisect_right(ends, cursor)]
        del self._asks[: bisect_right(self._asks, cursor, key=lambda asked: asked[0])]
        while self._messages and (first := next(iter(self._messages.items())))[1] <= cursor:
            del self._messages[first[0]]
        for found in self._results.values():
            del found.ends[: bisect_right(found.ends, cursor)]
        return len(self._old) + len(self._messages)

    def _read_new(self) -> None:
        if self._tail.restarted():
            self._forget()
        size = store_mailbox.size(self._team, self._name)
        most = size if self.until is None else min(size, self.until)
        if size == self._tail.offset or (self.until is not None and most <= self._tail.offset):
            return
        if most - self._tail.offset > EXACT:
            self._keep_ids(0)
            self._old.extend(self._tail.skip_to(most - EXACT))
        batch = self._tail.read_new(self._messages.keys())
        for message, end in batch.entries:
            if self.until is not None and end > self.until:
                break
            self._messages[message.id] = end
            if is_notice(message):
                self._notices.append(end)
            if asks := request_announced(message):
                self._asks.append((end, asks))
            if message.type == "result":
                self._results.setdefault(message.from_, _ResultsOf()).add(message, end)
        self._keep_ids(IDS)
        self._damage.extend(batch.damaged_ends)

    def _keep_ids(self, most: int) -> None:
        for ident in list(islice(self._messages, max(0, len(self._messages) - most))):
            self._old.append(self._messages.pop(ident))

    def count_for_operator(self, cursor: int, answered: Collection[str]) -> int:
        """Return how many messages behind `cursor` the operator must read.

        These are not notices, nor messages that announce requests in `answered`.
        """
        count = self.count(cursor) - len(self._notices)
        return count - sum(request in answered for _, request in self._asks)

    def results(self, acknowledged: Mapping[str, float]) -> Iterator[UnreadResults]:
        """Yield the unread results of each author, among the messages that were parsed.

        `acknowledged` has offsets up to which results count as read, by `result_mark`.
        """
        for author, found in self._results.items():
            start = bisect_right(found.ends, acknowledged.get(result_mark(self._name, author), 0))
            if start < len(found.ends):
                yield UnreadResults(
                    author,
                    self._name,
                    count=len(found.ends) - start,
                    newest=found.newest,
                    end=found.ends[-1],
                    text=found.text,
                    file=found.file,
                )

    @property
    def damaged(self) -> int:
        """Return the number of unreadable lines behind the cursor; a mailbox that cannot be read counts as one more."""
        return len(self._damage) + self._unreadable


class MailReader:
    """A reader of a mailbox, and of the journal of its agent for the times at which messages were picked up.

    - With `tail`, it begins in the last `TAIL` bytes of both, and keeps only the newest messages. `has_older` says that
      there are others before them.
    - `since` is the offset up to which the user has read the mailbox: if that is earlier, it begins there.
    - With `author`, only messages of this author are kept.
    - `prompts` are the agent's hire prompts, oldest first. They are no mail, but are shown with it.
    """

    def __init__(
        self, team: TeamDirectory, name: str, *, tail: bool = True, since: int | None = None, author: str | None = None
    ) -> None:
        self.team = team
        self.author = author
        self.name = name
        self.tail = tail
        self.since = since
        self.damaged_ends: list[int] = []
        """The offsets after the lines that cannot be read."""
        self.prompts: tuple[MessageView, ...] = ()
        self._most = MOST
        self._views: dict[str, MessageView] = {}
        """The messages by id, each the same object until its times change."""
        self._answer: tuple[MessageView, ...] | None = ()
        self._picked: dict[str, float] = {}
        self._entered: dict[str, float] = {}
        self._mailbox = MailboxTail(team, name, 0)
        self._begin()

    def _begin(self) -> None:
        """Begin to read anew, as far from the end as `_most` messages need."""
        inbox, start = self.team.inbox(self.name), 0
        if self.tail:
            start = inbox.tail_offset(TAIL if self._most == MOST else self._most * 1024)
            if self.since is not None:
                start = min(start, max(self.since, inbox.tail_offset(UNREAD_TAIL)))
        self._mailbox.offset, self.has_older = start, start > 0
        self._views, self._answer, self.damaged_ends = {}, None, []
        length = TAIL * self._most // MOST if self.tail else None
        self._journal = JournalTail(self.team.agent(self.name).journal, length)
        self._forget_times()

    @property
    def offset(self) -> int:
        """Return the offset in bytes up to which the mailbox was read."""
        return self._mailbox.offset

    def is_enough_for(self, newest: Sequence[MessageView], count: int) -> bool:
        """Return True if nothing older must be read to show the newest `count` messages.

        `newest` are those of them that are known. If they are fewer than `count`, the mailbox may have older ones; if
        one has no time of being picked up, that may be further back in the journal.
        """
        known = self._journal.whole or all(letter.picked_up_at is not None for letter in newest)
        return (not self.has_older or len(newest) == count) and known

    def read(self, most: int = MOST) -> tuple[MessageView, ...]:
        """Return the messages so far, oldest first; the same tuple object while nothing changes.

        With `tail`, these are the newest: at most `most`, in at most as many KiB of the mailbox. If `most` is larger
        than at the last call, older messages are read again.
        """
        if self._mailbox.restarted() or (most > self._most and self.has_older):
            self._most = most
            self._begin()
        self._most = most
        if self._journal.restarted():
            self._forget_times()
        told = set[str]()
        for event in self._journal.read_new():
            if isinstance(event, Intake):
                self._picked.update((message.id, event.ts) for message in event.messages)
                self._entered.update((ident, event.ts) for ident in event.entered)
                told.update((message.id for message in event.messages), event.entered)
                self._note_prompt(event)
            elif isinstance(event, ToolStart | ToolResult):
                self._entered.update((ident, event.ts) for ident in event.consumed)
                told.update(event.consumed)
        batch = self._mailbox.read_new(self._views.keys())
        self.damaged_ends += batch.damaged_ends
        new = [entry for entry in batch.entries if self.author in (None, entry[0].from_)]
        for message, end in new:
            self._views[message.id] = self._view(message, end)
        here = told & self._views.keys()
        for ident in here:
            self._views[ident] = self._view(self._views[ident].message, self._views[ident].end)
        if new or (here if self.author else told):
            self._answer = None
        if self.author:
            # A message is in the mailbox before a journal tells of it: these are of others, or too old.
            self._forget_times_of(told - self._views.keys())
        if self.tail:
            # Drop the oldest if there are too many, and some more, so that the rows on a screen do not move each time.
            oldest = next(iter(self._views.values()), None)
            if oldest is not None and (len(self._views) > self._most or self.offset - oldest.end > self._most * 1024):
                views, kept = list(self._views.values()), self._most * 3 // 4
                too_far = bisect_right(views, self.offset - kept * 1024, key=lambda each: each.end)
                # The newest is kept however long it is.
                views = views[min(max(len(views) - kept, too_far), len(views) - 1) :]
                self._views = {each.message.id: each for each in views}
                self.damaged_ends = [end for end in self.damaged_ends if end > views[0].end]
                self._answer, self.has_older = None, True
                self._forget_times_of((self._picked.keys() | self._entered.keys()) - self._views.keys())
        if self._answer is None:
            self._answer = tuple(self._views.values())
        return self._answer

    def _view(self, message: Message, end: int) -> MessageView:
        picked, entered = self._picked.get(message.id), self._entered.get(message.id)
        # A tool call may act on a message before the next turn journals that it was picked up.
        first = min((at for at in (picked, entered) if at is not None), default=None)
        if message.is_untimed and first is not None:
            message = replace(message, ts=first)
        return MessageView(message, first, entered, end)

    def _forget_times_of(self, idents: Iterable[str]) -> None:
        for ident in idents:
            self._picked.pop(ident, None)
            self._entered.pop(ident, None)

    def _forget_times(self) -> None:
        """Forget the times in the journal, and read the hire prompts at its beginning, which its tail may lack."""
        self._picked, self._entered, self.prompts = {}, {}, ()
        self._views = {ident: self._view(each.message, each.end) for ident, each in self._views.items()}
        self._answer = None
        for event, end in islice(journal.read(self._journal.journal), _HEAD):
            if end <= self._journal.offset and isinstance(event, Intake):
                self._note_prompt(event)

    def _note_prompt(self, event: Intake) -> None:
        if event.prompt is not None:
            prompt = store_mailbox.compose(
                event.prompt_from, self.name, "prompt", event.prompt, ident=event.assignment, ts=event.ts
            )
            self.prompts = (*self.prompts, MessageView(prompt, event.ts, event.ts))


def display_name(name: str) -> str:
    """Return a name as the operator sees it: `you` for the operator."""
    return "you" if name == OPERATOR else name


def verb(message: Message) -> str:
    """Return the words before the text of a message, with a blank behind them; empty for plain text."""
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
    """Return the text of a message without what its verb says; empty for an answer without feedback."""
    if _asks_back(message):
        return message.content.removeprefix(QUESTION)
    bare = message.type in _ANSWERS and message.content in ("approved", "rejected")
    free = message.type == "idle_notification" and message.content == "free for work"
    return "" if bare or free else message.content


def only_became_free(message: Message) -> bool:
    """Return True if a message of an agent of crewboard says only that the agent has nothing to do."""
    return is_notice(message) and not body(message) and not message.is_foreign


def headline(message: Message) -> str:
    """Return the text of a message for a single line: of a plan, its title."""
    text = body(message)
    return plan_title(text) if message.type == "plan_approval_request" else text


def as_approved(letters: Sequence[MessageView], asked: Iterable[Request]) -> Sequence[MessageView]:
    """Return `letters`; those that announce a plan that was edited and approved have the approved text.

    `asked` are the requests to look among.
    """
    edited = {each.id: each for each in asked if each.edited is not None and each.status == "approved"}
    if not edited:
        return letters
    return [
        replace(each, message=each.message.replace(content=plan.plan), edited_by=plan.decided_by or "")
        if (plan := edited.get(request_announced(each.message))) is not None and plan.from_ == each.message.from_
        else each
        for each in letters
    ]


def with_unreadable(
    letters: Sequence[MessageView], ends: Sequence[int], name: str, file: str, now: float
) -> list[MessageView]:
    """Return `letters` of the mailbox `name`, and in between a message for each line that cannot be read.

    `file` is the file of the mailbox, `ends` are the offsets after these lines. Such a message has the time of the
    message before it, or `now`.
    """
    found = list(letters)
    for end in ends:
        at = bisect_left(found, end, key=lambda each: each.end)
        words, ts = f"a line cannot be read; it ends at byte {end} of {file}", found[at - 1].message.ts if at else now
        if at < len(found) and found[at].end == end:
            # A writer was killed in it, and the next one wrote behind that.
            words, ts = f"the start of a line cannot be read; it ends at byte {end} of {file}", found[at].message.ts
        line = store_mailbox.compose(SYSTEM, name, UNREADABLE, words, ident=f"{UNREADABLE} {end}", ts=ts)
        found.insert(at, MessageView(line, None, None, end))
    return found


def plan_title(plan: str) -> str:
    """Return the first line of a plan that says more than that it is a plan, and how much follows."""
    lines = [line.strip("# \t") for line in plan.strip().split("\n")]
    if lines[0].lower() in ("plan", "plan:", "implementation plan") and any(lines[1:]):
        lines = lines[1:]
    return first_line("\n".join(lines))


def _asks_back(message: Message) -> bool:
    rejected = message.type in _ANSWERS and message.metadata.get("approve") is False
    return rejected and question_in(message.content) is not None


def describe_message(message: Message) -> str:
    """Return verb and text of a message, to stand behind a name: `to all: freeze main`."""
    words, text = verb(message), body(message)
    return f"{words}{text}" if text else words.rstrip(" :")
