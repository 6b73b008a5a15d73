"""The messages of a mailbox, with the times at which they were sent, picked up, and entered a turn."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from crewboard import Message, Request
from crewboard.protocol.requests import ineffective_reason
from crewboard.readmodel import mail
from crewboard.readmodel.mail import (
    MessageView,
    display_name,
    headline,
    is_notice,
    only_became_free,
    request_announced,
)
from crewboard.readmodel.needs import summarise
from crewboard.records.requests import describe_status, display_decider, question_in
from crewboard_tui.render.formats import format_clock, format_moment, format_span, is_same_day
from crewboard_tui.render.lines import Line, Span, clip, one_line, pad_name, say, spread, wrap
from crewboard_tui.render.table import mark_span
from crewboard_tui.widgets.line_list import LazyRows, LineList, Row

_ABSOLUTE_FROM = 72
_TIMES_FROM = 46
"""Cells from which on a line shows absolute times, and from which on it shows any; an open message always does."""
OLDER = "older"
"""The key of the row that stands for the messages that are not loaded."""

AUTHOR = 10
"""Cells for the author of a message."""


_NOUNS = {
    "plan_approval": "plan", "permission": "permission", "question": "question", "shutdown": "shutdown",
    "task_review": "review",
}  # fmt: skip


class Entry(Struct, frozen=True):
    """A message of a mailbox; or a thread: all messages about a request and its earlier revisions, oldest first.

    `requests` are the revisions, oldest first; empty for a single message.
    """

    letters: tuple[MessageView, ...]
    requests: tuple[Request, ...] = ()

    @property
    def key(self) -> str:
        """Return a key that stays the same when a thread grows."""
        return f"thread {self.requests[0].id}" if self.requests else self.newest.message.id

    @property
    def newest(self) -> MessageView:
        """Return the latest message of the entry."""
        return self.letters[-1]


def find_threads(letters: Sequence[MessageView], asked: Sequence[Request], apart: Container[str] = ()) -> list[Entry]:
    """Return the mail as entries, in order, each thread at the place of its newest message.

    Messages with an id in `apart` belong to no thread.
    """
    # Each request with those that it supersedes, oldest first.
    chains: dict[str, list[Request]] = {}
    for request in asked:
        chains[request.id] = chains.get(request.supersedes or "", [])
        chains[request.id].append(request)
    found: dict[object, Entry] = {}
    for letter in letters:
        chain = chains.get(str(letter.message.metadata.get("request_id", "")))
        if chain is None or letter.message.id in apart or len(_steps(chain)) == 1:
            found[id(letter)] = Entry((letter,))
        else:
            before = found.pop(chain[0].id, Entry(()))
            found[chain[0].id] = Entry((*before.letters, letter), tuple(chain))
    return list(found.values())


def _steps(chain: Sequence[Request]) -> list[str]:
    """Return what happened to the revisions of a request, as a word or phrase for each step."""
    steps: list[str] = []
    for request in chain:
        steps.append(_NOUNS[request.type])
        if request.status == "rejected":
            said = describe_status(request)
            steps.append("refusal" if said == "rejected" else said)
        elif request.status == "cancelled":
            steps += [] if request is not chain[-1] else ["withdrawn"]
        elif request.status == "expired":
            steps.append("expired")
        elif request.status != "pending":
            steps.append(f"{request.status} {format_clock(request.decided_at or request.created_at)[:5]}")
    return steps


def standing(thread: Entry) -> str:
    """Return the status of a thread: `plan, 1 refusal, plan, approved 14:51`."""
    groups = [(word, len(list(group))) for word, group in groupby(_steps(thread.requests))]
    words = [f"{count} {word}{'s' if count > 1 else ''}" if count > 1 or word == "refusal" else word
             for word, count in groups]  # fmt: skip
    return ", ".join([*words, *(["waits"] if thread.requests[-1].status == "pending" else [])])


def story_lines(thread: Entry, now: float, width: int, operator: str) -> list[Line]:
    """Return all questions and answers of a thread from its beginning, as the user `operator` sees them."""
    lines: list[Line] = []
    for request in thread.requests:
        asked_at = format_moment(request.created_at, now)
        lines += _said(asked_at, display_name(request.from_), summarise(request), width)
        replaced = request.status == "cancelled" and request is not thread.requests[-1]
        if not replaced and request.decided_at is not None and request.decided_by is not None:
            status, said = describe_status(request), request.feedback
            said = question_in(said) if status == "asked back" else said
            how = ", as edited" if request.edited is not None else ""
            words = f"{status}{how}{': ' + said if said else ''}"
            decided_at = format_moment(request.decided_at, now)
            lines += _said(decided_at, display_decider(request, operator), words, width)
    return lines


def _said(moment: str, who: str, words: str, width: int) -> list[Line]:
    begin: Line = (Span(moment + " ", "dim"), say(who), Span(" "))
    indent = len(moment) + 1 + len(who) + 1
    first, *rest = wrap(words, max(1, width - indent)) or ("",)
    return [(*begin, Span(first)), *((Span(" " * indent + piece),) for piece in rest)]


def subject(thread: Entry) -> str:
    """Return the summary of the newest request of a thread, without its kind."""
    return summarise(thread.requests[-1]).partition(": ")[2]


class MailboxInfo(Struct, frozen=True):
    """The mailbox that is shown, at the time `now`.

    `operators` is True if the user reads it, so that the user's read position counts. `dated` is True if some of its
    mail is from an earlier day. Mail about requests in `answered` does not count as unread.
    """

    name: str
    operators: bool = False
    unread: int = 0
    now: float = 0
    dated: bool = False
    answered: frozenset[str] = frozenset()

    def counts(self, message: Message) -> bool:
        """Return True if a message counts as unread until it is read."""
        if message.type == mail.UNREADABLE:
            return False
        if not self.operators:
            return True
        return not (is_notice(message) or request_announced(message) in self.answered)


def unread_of(letters: Sequence[MessageView], box: MailboxInfo) -> list[MessageView]:
    """Return the unread messages of a mailbox."""
    counted = [each for each in letters if box.counts(each.message)]
    return counted[len(counted) - min(box.unread, len(counted)) :]


def letter_head(box: MailboxInfo, width: int) -> Line:
    """Return the column titles of a mailbox."""
    clock = clock_width(width)
    right = "" if box.operators or width < _TIMES_FROM else f" {'PICKED':>{clock}} {'TURN':>{clock}}"
    left = f"{'SENT':<{_sent_width(box, width)}} {'FROM':<{AUTHOR}} MESSAGE"
    return spread((Span(left, "dim"),), (Span(right, "dim"),), width)


def _sent_width(box: MailboxInfo, width: int) -> int:
    """Return the cells for the time at which a message was sent; more for the date of older mail if there is space."""
    return 5 if width < _ABSOLUTE_FROM else 11 if box.dated else 8


def format_sent(at: float, now: float, width: int) -> str:
    """Return when a message was sent, in `width` cells: the time of day, or its date if it is older.

    If space is short, the time has no seconds, and a date has no time.
    """
    moment = format_moment(at, now)
    return f"{(moment if len(moment) <= width else moment[:5]).rstrip('-'):<{width}}"


def _sent(at: float, box: MailboxInfo, width: int) -> str:
    return format_sent(at, box.now, _sent_width(box, width))


def void_of(letters: Sequence[MessageView], asked: Sequence[Request]) -> dict[str, str]:
    """Return the reasons why messages that answer a request have no effect, by the id of the message."""
    requests = {request.id: request for request in asked}
    found = {
        each.message.id: ineffective_reason(each.message, requests.get(str(each.message.metadata.get("request_id"))))
        for each in letters
    }
    return {ident: why for ident, why in found.items() if why is not None}


def void_mark(void: str | None) -> Line:
    """Return the mark in front of a message without effect; empty if `void`, the reason, is None."""
    return () if void is None else (Span("changes nothing: ", "warning"),)


def message_line(
    letter: MessageView,
    box: MailboxInfo,
    width: int,
    *,
    fresh: bool = False,
    void: str | None = None,
    marked: bool = False,
) -> Line:
    """Return the line of a message; `fresh` marks it as unread, `void` is the reason why it has no effect."""
    message = letter.message
    left = (
        Span(_sent(message.ts, box, width), "dim"),
        mark_span(marked=marked),
        Span(pad_name(one_line(display_name(message.from_)), AUTHOR) + " ", "dim" if only_became_free(message) else ""),
        *void_mark(void),
        Span(mail.verb(message), "dim"),
        say(headline(message)),
    )
    return spread(left, _right(letter, box, width, fresh=fresh), width)


def thread_line(
    thread: Entry, box: MailboxInfo, width: int, *, fresh: bool, unfolded: bool, marked: bool = False
) -> Line:
    """Return the line of a thread: its status and subject."""
    message = thread.newest.message
    left = (
        Span(_sent(message.ts, box, width), "dim"),
        mark_span(marked=marked),
        Span(pad_name(one_line(display_name(message.from_)), AUTHOR) + " "),
        Span("− " if unfolded else "+ ", "key"),
        Span(standing(thread)),
        *((Span(" · ", "dim"), say(about, "dim")) if (about := subject(thread)) else ()),
    )
    return spread(left, _right(thread.newest, box, width, fresh=fresh), width)


def _right(letter: MessageView, box: MailboxInfo, width: int, *, fresh: bool) -> Line:
    """Return the end of a message's line: whether it is new to the user, or when the worker took it."""
    if box.operators:
        return (Span(" new" if fresh else "", "warning"),)
    return times_line(letter, width, fresh=fresh) if width >= _TIMES_FROM else ()


def clock_width(width: int) -> int:
    """Return the cells for a time: of the day if there is space, else relative to the time of sending."""
    return 8 if width >= _ABSOLUTE_FROM else 6


def times_line(letter: MessageView, width: int, *, fresh: bool) -> Line:
    """Return when a message was picked up and entered a turn; relative to the time of sending if space is short.

    Dashes are for what is unread, which `fresh` says; the line is empty if it is only not known when it was picked up.
    """
    if letter.picked_up_at is None and not fresh:
        # The journal that says when it was picked up is not loaded so far back.
        return ()
    spans, clock = [], clock_width(width)
    for at in (letter.picked_up_at, letter.entered_turn_at):
        text, tone = "—", "warning"
        if at is not None:
            text = format_clock(at) if width >= _ABSOLUTE_FROM else f"+{format_span(at - letter.message.ts)}"
            tone = "dim"
        spans.append(Span(f" {text:>{clock}}", tone))
    return tuple(spans)


def message_body(letter: MessageView, now: float, width: int, void: str | None = None) -> list[Line]:
    """Return the lines of one message in full, with its head and, if it has no effect, the reason `void`."""
    message = letter.message
    kind = mail.verb(message).rstrip(" :")
    sender, recipient = map(display_name, (message.from_, message.to))
    head = f"{sender} → {recipient}{' · ' if kind else ''}{kind}"
    times = ["from another program"] if message.is_foreign else []
    times.append(f"sent {format_moment(message.ts, now)}")
    if letter.picked_up_at is not None:
        times.append(f"picked up {format_moment(letter.picked_up_at, now)}")
    if letter.entered_turn_at is not None:
        times.append(f"in turn {format_moment(letter.entered_turn_at, now)}")
    lines: list[Line] = [(say(clip(one_line(head), width), "bold"),), (Span(" · ".join(times), "dim"),)]
    lines += [(*void_mark(void), say(void, "warning"))] if void is not None else []
    edited = f"as {display_name(letter.edited_by)} edited and approved it"
    lines += [(say(clip(one_line(edited), width), "warning"),)] if letter.edited_by else []
    lines += [(), *((Span(piece),) for piece in wrap(message.content, width))]
    result = message.metadata.get("result") or message.metadata.get("body")
    return [*lines, (), (say(f"in full: {result}", "dim"),)] if result else lines


SORTS: dict[str, Callable[[MessageView], Any]] = {
    "time": lambda _: 0,
    "author": lambda letter: letter.message.from_,
    "kind": lambda letter: letter.message.type,
}
"""The orders of a mailbox by sort key; equal messages are ordered by time."""


class MessageList(LineList):
    """A mailbox as a list. It can follow its end.

    A mailbox of the user opens at the first unread message. Messages of one request share a row that Enter unfolds.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.follows = True
        self._entries: dict[str, Entry] = {}
        """The messages and threads, by the key of each."""
        self._unfolded: set[str] = set()
        self._fresh: frozenset[str] = frozenset()
        self._void: dict[str, str] = {}
        self._box = MailboxInfo("")
        self._nothing = ""
        self._day: tuple[int, ...] = ()
        self._ends: list[int] = []
        self._row_is_fresh: list[bool] = []
        self._width = 0
        self._older = ""
        self._is_fresh_above = False
        self._read_of: tuple[object, ...] = ()
        """The input of the last `read` that had an effect: the same input is ignored."""
        self._own_rows: Sequence[Row] = ()
        self._made: dict[str, tuple[object, Line]] = {}
        """The lines of the rows that were shown, by message, each with its input."""

    def read(
        self,
        letters: Sequence[MessageView],
        box: MailboxInfo,
        nothing: str = "no mail yet",
        asked: Sequence[Request] = (),
        older: str = "",
    ) -> None:
        """Show these messages; those of one request among `asked` form a thread.

        `nothing` is the text for an empty list. `older`, if it is not empty, is a row above that says that more
        messages are not loaded.
        """
        opens, day = not self.selected, time.localtime(box.now)[:3]
        looks = (day, self.row_width, self.size, self.order, frozenset(self.marked), frozenset(self._unfolded))
        read_of = (letters, replace(box, now=0), nothing, asked, older, looks)
        # While the user moves in a sorted list, another order may be due.
        if read_of != self._read_of or self.rows is not self._own_rows or self.is_sorted:
            self._read_of = read_of
            self._void = void_of(letters, asked)
            entries = find_threads(letters, asked, self._void)
            if self.is_sorted:
                entries = self.in_order(
                    entries, lambda entry: entry.key, lambda entry: SORTS[self.order.by](entry.newest)
                )
            self._entries = {entry.key: entry for entry in entries}
            self.marked &= {*self._entries, *(each.message.id for each in letters)}
            oldest = min((each.message.ts for each in letters), default=box.now)
            self._box, self._nothing = replace(box, dated=not is_same_day(oldest, box.now)), nothing
            self._day, self._older = time.localtime(box.now)[:3], older
            self._fresh = frozenset(each.message.id for each in unread_of(letters, box))
            self._is_fresh_above = bool(older) and box.unread > len(self._fresh)
            for key, entry in self._entries.items():
                # The selected message may have become a part of a thread.
                if key not in self._unfolded and self.selected in {letter.message.id for letter in entry.letters}:
                    self.selected = key
            self._show_entries()
        if opens and self._entries:
            # At the first unread message, with the one before it visible, else at the end.
            last = len(self.rows) - 1
            at = self._row_is_fresh.index(True) if self._box.operators and any(self._row_is_fresh) else last
            self.select(self.rows[at].key)
            if at < last:
                self.scroll_to(y=at - 1, animate=False, force=True)

    def shown_to(self, known: int) -> int:
        """Return the byte offset after the last visible message.

        If an unread message after the offset `known` is above the screen, return `known`.
        """
        top = self.scroll_offset.y
        shown = self._ends[top : top + self.size.height]
        passed = zip(self._row_is_fresh[:top], self._ends, strict=False)
        if self._is_fresh_above or not shown or any(fresh and end > known for fresh, end in passed):
            return known
        return max(known, *shown)

    @property
    def below(self) -> str:
        """Return how many messages are below the screen: `3 below`; empty if the last one is in sight."""
        count = len(self._ends) - self.scroll_offset.y - self.size.height
        return f"{count} below" if count > 0 and self.size.height else ""

    def void_of(self, letter: MessageView) -> str | None:
        """Return why a message has no effect; None if it has one."""
        return self._void.get(letter.message.id)

    @property
    def letter(self) -> MessageView | None:
        """Return the message under the cursor; for a thread, its newest; None if there is none."""
        if self.thread is not None:
            return self.thread.newest
        # The newest are looked at most.
        letters = (letter for entry in reversed(self._entries.values()) for letter in entry.letters)
        return next((letter for letter in letters if letter.message.id == self.selected), None)

    @property
    def copied(self) -> str:
        """Return the texts of the marked messages, else of the one under the cursor."""
        letters = self.marked_letters or ([self.letter] if self.letter else [])
        return "\n\n".join(letter.message.content for letter in letters)

    @property
    def marked_letters(self) -> list[MessageView]:
        """Return the marked messages that are shown; a marked thread counts as its newest message."""
        shown = set(self.shown_marks)
        return [
            letter
            for entry in self._entries.values()
            for letter in entry.letters
            if letter.message.id in shown or (entry.key in shown and letter is entry.newest)
        ]

    @property
    def thread(self) -> Entry | None:
        """Return the thread whose row is under the cursor; None for another row."""
        entry = self._entries.get(self.selected or "")
        return entry if entry is not None and entry.requests else None

    def marks_changed(self) -> None:
        self.marked.discard(OLDER)
        super().marks_changed()

    def action_open(self) -> None:
        if self.thread is None:
            super().action_open()
            return
        self._unfolded ^= {self.thread.key}
        self._show_entries()

    def _show_entries(self) -> None:
        self._width = self.row_width
        # A thread has a row of its own, and those of its messages if it is unfolded.
        parts: list[tuple[Entry | None, MessageView | None]] = [(None, None)] if self._older else []
        for entry in self._entries.values():
            parts += [(entry, None)] if entry.requests else []
            if not entry.requests or entry.key in self._unfolded:
                parts += [(entry, letter) for letter in entry.letters]
        self._ends = [entry.newest.end if entry is not None else 0 for entry, _ in parts]
        self._row_is_fresh = [entry is not None and self._is_fresh(entry) for entry, _ in parts]
        keys = [
            OLDER if entry is None else entry.key if letter is None else letter.message.id for entry, letter in parts
        ]
        # A mailbox may hold thousands of messages: lines are made of those that are seen.
        made, self._made = self._made, {}
        self._own_rows = LazyRows(keys, lambda at: self._line(*parts[at], made))
        if not self._entries:
            self._own_rows = [*self._own_rows, *self.empty_rows(self._nothing)]
        self.show(self._own_rows, letter_head(self._box, self._width) if self._entries else None)

    def _is_fresh(self, entry: Entry) -> bool:
        return any(letter.message.id in self._fresh for letter in entry.letters)

    def _line(self, entry: Entry | None, letter: MessageView | None, made: Mapping[str, tuple[object, Line]]) -> Line:
        """Return the line of a row; reuse one from `made` if it is unchanged."""
        if entry is None:
            return (Span(self._older, "warning"),)
        if letter is None:
            unfolded, marked = entry.key in self._unfolded, entry.key in self.marked
            fresh = self._is_fresh(entry)
            return thread_line(entry, self._box, self._width, fresh=fresh, unfolded=unfolded, marked=marked)
        indent = "  " if entry.requests else ""
        ident, width = letter.message.id, self._width - len(indent)
        fresh, void = ident in self._fresh, self._void.get(ident)
        marked = ident in self.marked
        made_of = letter, self._box.operators, self._box.dated, self._day, width, indent, fresh, void, marked
        before, found = self._made.get(ident) or made.get(ident, (None, ()))
        if before != made_of:
            content = message_line(letter, self._box, width, fresh=fresh, void=void, marked=marked)
            found = (Span(indent), *content) if indent else content
        self._made[ident] = made_of, found
        return found
