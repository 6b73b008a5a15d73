"""A mailbox: each message with when it was sent, picked up, and when it entered a turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crewboard.names import OPERATOR
from crewboard.records import Message, Request
from crewboard.view.mail import Letter
from crewboard_tui import fmt
from crewboard_tui.lines import Line, Span, clip, one_line, pad, say, spread, wrap
from crewboard_tui.widgets.rows import Row, Rows
from crewboard_tui.widgets.threads import Thread, find_threads, standing, subject

_ABSOLUTE_FROM = 72
AUTHOR = 10
"""Cells for who wrote a message."""

_WORDS = {
    "idle_notification": "is free for work",
    "teammate_terminated": "",
    "plan_approval_request": "plan:",
    "plan_approval_response": "about the plan:",
    "shutdown_request": "please shut down",
    "shutdown_response": "about shutting down:",
    "permission_request": "may I:",
    "permission_response": "about that permission:",
    "question_request": "asks:",
    "question_response": "answers:",
    "task_assignment": "assigns",
    "result": "result:",
    "error": "could not go on:",
    "interrupt": "interrupts:",
    "broadcast": "to all:",
    "budget_warning": "warns:",
}
"""Protocol messages in words."""

_ANSWERS = {
    "plan_approval_response": ("approves the plan", "refuses the plan"),
    "permission_response": ("allows it", "refuses it"),
    "shutdown_response": ("agrees to shut down", "stays"),
}
"""Answers in words: a yes, a no."""


@dataclass(frozen=True)
class Box:
    """A mailbox to show. `operators` says that a person reads it: then what counts is what they have read."""

    name: str
    operators: bool = False
    unread: int = 0


def person(name: str) -> str:
    """A name as the operator reads it."""
    return "you" if name == OPERATOR else name


def in_words(message: Message) -> str:
    """What a message does, with a blank behind it; nothing for a plain one."""
    approve = message.metadata.get("approve")
    if message.type in _ANSWERS and isinstance(approve, bool):
        return _ANSWERS[message.type][0 if approve else 1] + (": " if gist(message) else "")
    words = _WORDS.get(message.type, "" if message.type == "message" else f"{message.type}:")
    return f"{words} " if words else ""


def gist(message: Message) -> str:
    """What it says beyond that: an answer without feedback says nothing more, and nobody is free in more words."""
    bare = message.type in _ANSWERS and message.content in ("approved", "rejected")
    free = message.type == "idle_notification" and message.content == "free for work"
    return "" if bare or free else message.content


def letter_head(box: Box, width: int) -> Line:
    """What the columns of a mailbox say."""
    clock = clock_width(width)
    right = "" if box.operators else f" {'PICKED':>{clock}} {'TURN':>{clock}}"
    return spread((Span(f"{'SENT':<8} {'FROM':<{AUTHOR}} MESSAGE", "dim"),), (Span(right, "dim"),), width)


def letter_line(letter: Letter, box: Box, width: int, *, fresh: bool = False) -> Line:
    """One message; `fresh` marks one that its reader has not read."""
    message = letter.message
    left = (
        Span(fmt.clock(message.ts) + " ", "dim"),
        Span(pad(one_line(person(message.from_)), AUTHOR) + " ", "accent"),
        Span(in_words(message), "dim"),
        say(gist(message)),
    )
    return spread(left, _right(letter, box, width, fresh=fresh), width)


def thread_line(thread: Thread, box: Box, width: int, *, fresh: bool, unfolded: bool) -> Line:
    """All messages of a request on one line: how it stands, and what it is about."""
    message = thread.newest.message
    left = (
        Span(fmt.clock(message.ts) + " ", "dim"),
        Span(pad(one_line(person(message.from_)), AUTHOR) + " ", "accent"),
        Span("− " if unfolded else "+ ", "key"),
        Span(standing(thread)),
        Span(" · ", "dim"),
        say(subject(thread), "dim"),
    )
    return spread(left, _right(thread.newest, box, width, fresh=fresh), width)


def _right(letter: Letter, box: Box, width: int, *, fresh: bool) -> Line:
    """What became of a message: for a person whether it is new, for a worker its other two times."""
    return (Span(" new" if fresh else "", "warning"),) if box.operators else times_line(letter, width)


def clock_width(width: int) -> int:
    """Cells for a time: of day where there is room, else how long after."""
    return 8 if width >= _ABSOLUTE_FROM else 6


def times_line(letter: Letter, width: int) -> Line:
    """When it was picked up and entered a turn: the time of day, or short of room how long after it was sent."""
    return tuple(
        _time(at, letter.message.ts, clock_width(width)) for at in (letter.picked_up_at, letter.entered_turn_at)
    )


def _time(at: float | None, sent: float, width: int) -> Span:
    if at is None:
        return Span(f" {'—':>{width}}", "warning")
    text = fmt.clock(at) if width == 8 else f"+{fmt.age(at - sent)}"  # noqa: PLR2004  a time of day is so long
    return Span(f" {text:>{width}}", "dim")


def whole_letter(letter: Letter, width: int) -> list[Line]:
    """One message in full, with its head."""
    message = letter.message
    head = f"{person(message.from_)} → {person(message.to)} · {message.type}"
    times = [f"sent {fmt.clock(message.ts)}"]
    if letter.picked_up_at is not None:
        times.append(f"picked up {fmt.clock(letter.picked_up_at)}")
    if letter.entered_turn_at is not None:
        times.append(f"in turn {fmt.clock(letter.entered_turn_at)}")
    lines: list[Line] = [(say(clip(one_line(head), width), "accent bold"),), (Span(" · ".join(times), "dim"),), ()]
    lines += [(Span(piece),) for piece in wrap(message.content, width)]
    result = message.metadata.get("result") or message.metadata.get("body")
    return [*lines, (), (say(f"in full: {result}", "dim"),)] if result else lines


class Letters(Rows):
    """A mailbox as a list. It stays at its end as mail comes, until somebody moves up.

    The messages of one request stand under one row, which Enter unfolds.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._entries: list[Letter | Thread] = []
        self._unfolded: set[str] = set()
        self._fresh: frozenset[str] = frozenset()
        self._box = Box("")
        self._nothing = ""

    def read(
        self, letters: Sequence[Letter], box: Box, nothing: str = "no mail yet", asked: Sequence[Request] = ()
    ) -> None:
        """Show these messages; of the requests `asked` as threads."""
        at_end = not self.rows or self.selected in (None, self.rows[-1].key)
        self._entries = find_threads(letters, asked)
        self._box, self._nothing = box, nothing
        self._fresh = frozenset(each.message.id for each in letters[len(letters) - min(box.unread, len(letters)) :])
        self._show_entries()
        if at_end and self._entries:
            self.select(self.rows[-1].key)

    @property
    def thread(self) -> Thread | None:
        """The thread whose own row is under the cursor."""
        threads = (entry for entry in self._entries if isinstance(entry, Thread))
        return next((thread for thread in threads if thread.key == self.selected), None)

    def action_open(self) -> None:
        if self.thread is None:
            super().action_open()
            return
        self._unfolded ^= {self.thread.key}
        self._show_entries()

    def _show_entries(self) -> None:
        rows = [row for entry in self._entries for row in self._rows_of(entry)]
        head = letter_head(self._box, self.row_width) if rows else None
        self.show(rows or [Row("", (Span(self._nothing, "dim"),))], head)

    def _rows_of(self, entry: Letter | Thread) -> list[Row]:
        if not isinstance(entry, Thread):
            return [self._row(entry)]
        unfolded = entry.key in self._unfolded
        fresh = any(letter.message.id in self._fresh for letter in entry.letters)
        head = thread_line(entry, self._box, self.row_width, fresh=fresh, unfolded=unfolded)
        return [Row(entry.key, head), *(self._row(letter, "  ") for letter in entry.letters if unfolded)]

    def _row(self, letter: Letter, indent: str = "") -> Row:
        fresh = letter.message.id in self._fresh
        content = letter_line(letter, self._box, self.row_width - len(indent), fresh=fresh)
        return Row(letter.message.id, (Span(indent), *content) if indent else content)
