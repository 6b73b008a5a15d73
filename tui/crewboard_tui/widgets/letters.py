"""A mailbox: each message with when it was sent, picked up, and when it entered a turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from crewboard.names import OPERATOR
from crewboard.view.mail import Letter
from crewboard_tui import fmt
from crewboard_tui.lines import Line, Span, clip, one_line, pad, say, spread, wrap
from crewboard_tui.widgets.rows import Row, Rows

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
}
"""Protocol messages in words."""


@dataclass(frozen=True)
class Box:
    """A mailbox to show. `operators` says that a person reads it: then what counts is what they have read."""

    name: str
    operators: bool = False
    unread: int = 0


def person(name: str) -> str:
    """A name as the operator reads it."""
    return "you" if name == OPERATOR else name


def in_words(kind: str) -> str:
    """What a message of a type does, with a blank behind it; nothing for a plain one."""
    words = _WORDS.get(kind, "" if kind == "message" else f"{kind}:")
    return f"{words} " if words else ""


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
        Span(in_words(message.type), "dim"),
        say(message.content),
    )
    right = (Span(" new" if fresh else "", "warning"),) if box.operators else times_line(letter, width)
    return spread(left, right, width)


def clock_width(width: int) -> int:
    """Cells for a time: of day where there is room, else how long after."""
    return 8 if width >= _ABSOLUTE_FROM else 6


def times_line(letter: Letter, width: int) -> Line:
    """When it was picked up and entered a turn: the time of day, or short of room how long after it was sent.

    Nothing for what the operator got, who picks up nothing.
    """
    if letter.message.to == OPERATOR:
        return (Span(" " * (2 * clock_width(width) + 2)),)
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
    """A mailbox as a list. It stays at its end as mail comes, until somebody moves up."""

    def read(self, letters: Sequence[Letter], box: Box, nothing: str = "no mail yet") -> None:
        """Show these messages."""
        at_end = not self.rows or self.selected in (None, self.rows[-1].key)
        unread = {letter.message.id for letter in letters[len(letters) - min(box.unread, len(letters)) :]}
        width = self.row_width
        rows = [
            Row(letter.message.id, letter_line(letter, box, width, fresh=letter.message.id in unread))
            for letter in letters
        ]
        self.show(rows or [Row("", (Span(nothing, "dim"),))], letter_head(box, width) if rows else None)
        if at_end and rows:
            self.select(rows[-1].key)
