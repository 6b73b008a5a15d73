"""A mailbox: each message with when it was sent, picked up, and when it entered a turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from crewboard.names import OPERATOR
from crewboard.view.mail import Letter
from crewboard_tui import fmt
from crewboard_tui.lines import Line, Span, clip, one_line, pad, say, spread, wrap
from crewboard_tui.widgets.rows import Row, Rows

_ABSOLUTE_FROM = 72
_AUTHOR = 10
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


def letter_lines(letters: Sequence[Letter], box: Box, width: int) -> list[Line]:
    """A mailbox to scroll through: a head, one line for each message, and a rule before what is not read yet."""
    lines: list[Line] = [letter_line(letter, box, width) for letter in letters]
    if 0 < box.unread <= len(lines):
        lines.insert(len(lines) - box.unread, (Span(" not read yet ".center(width, "─"), "dim"),))
    return [letter_head(box, width), *lines] if lines else []


def talk_lines(letters: Sequence[Letter], answers: Sequence[Letter], box: Box, width: int) -> list[Line]:
    """A mailbox and what its owner wrote to you, as one talk: what passed between you two is shown in full."""
    first_unread = letters[-box.unread].message.id if 0 < box.unread <= len(letters) else None
    lines: list[Line] = []
    for letter in sorted([*letters, *answers], key=lambda each: each.message.ts):
        message = letter.message
        if message.id == first_unread:
            lines.append((Span(" not read yet ".center(width, "─"), "dim"),))
        spoken = (message.from_, message.to) in ((OPERATOR, box.name), (box.name, OPERATOR))
        lines += _spoken(letter, box, width) if spoken else [letter_line(letter, box, width)]
    return [letter_head(box, width), *lines] if lines else []


def _spoken(letter: Letter, box: Box, width: int) -> list[Line]:
    message = letter.message
    words = "" if message.type in ("message", "result") else _WORDS.get(message.type, f"{message.type}:")
    author = pad(one_line(person(message.from_)), _AUTHOR)
    begin = 9 + _AUTHOR + 1
    times = _times(letter, width) if message.to == box.name else ()
    room = width - begin - 2 * (_clock_width(width) + 1) - 1
    pieces = wrap(f"{words} {message.content}".strip(), max(1, room)) or ("",)
    first: Line = (Span(fmt.clock(message.ts) + " ", "dim"), Span(author + " ", "accent bold"), Span(pieces[0]))
    return [spread(first, times, width), *[(Span(" " * begin + piece),) for piece in pieces[1:]]]


def letter_head(box: Box, width: int) -> Line:
    """What the columns of a mailbox say."""
    clock = _clock_width(width)
    right = "" if box.operators else f" {'PICKED':>{clock}} {'TURN':>{clock}}"
    return spread((Span(f"{'SENT':<8} {'FROM':<{_AUTHOR}} MESSAGE", "dim"),), (Span(right, "dim"),), width)


def letter_line(letter: Letter, box: Box, width: int, *, fresh: bool = False) -> Line:
    """One message; `fresh` marks one that its reader has not read."""
    message = letter.message
    words = _WORDS.get(message.type, "" if message.type == "message" else f"{message.type}:")
    left = (
        Span(fmt.clock(message.ts) + " ", "dim"),
        Span(pad(one_line(person(message.from_)), _AUTHOR) + " ", "accent"),
        Span(f"{words} " if words else "", "dim"),
        say(message.content),
    )
    right = (Span(" new" if fresh else "", "warning"),) if box.operators else _times(letter, width)
    return spread(left, right, width)


def _clock_width(width: int) -> int:
    return 8 if width >= _ABSOLUTE_FROM else 6


def _times(letter: Letter, width: int) -> Line:
    """When it was picked up and entered a turn: the time of day, or short of room how long after it was sent."""
    return tuple(
        _time(at, letter.message.ts, _clock_width(width)) for at in (letter.picked_up_at, letter.entered_turn_at)
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
