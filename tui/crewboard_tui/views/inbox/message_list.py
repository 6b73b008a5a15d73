"""A mailbox: each message with when it was sent, picked up, and when it entered a turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crewboard.protocol.approvals import ineffective_reason
from crewboard.readmodel.mail import Letter, display_name, headline, is_notice, verb
from crewboard.records import Request
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, clip, one_line, pad, say, spread, wrap
from crewboard_tui.views.inbox.threads import Thread, find_threads, standing, subject
from crewboard_tui.widgets.line_list import LineList, Row

_ABSOLUTE_FROM = 72
_TIMES_FROM = 46
"""Cells of a line below which what is said needs all of them; the message itself has its three times."""
AUTHOR = 10
"""Cells for who wrote a message."""


@dataclass(frozen=True)
class MailboxInfo:
    """A mailbox to show. `operators` says that a person reads it: then what counts is what they have read."""

    name: str
    operators: bool = False
    unread: int = 0


def unread_of(letters: Sequence[Letter], box: MailboxInfo) -> list[Letter]:
    """Those of a mailbox that count as not read."""
    counted = [each for each in letters if not (box.operators and is_notice(each.message))]
    return counted[len(counted) - min(box.unread, len(counted)) :]


def letter_head(box: MailboxInfo, width: int) -> Line:
    """What the columns of a mailbox say."""
    clock = clock_width(width)
    right = "" if box.operators or width < _TIMES_FROM else f" {'PICKED':>{clock}} {'TURN':>{clock}}"
    left = f"{'SENT':<{len(_sent(0, width))}} {'FROM':<{AUTHOR}} MESSAGE"
    return spread((Span(left, "dim"),), (Span(right, "dim"),), width)


def _sent(at: float, width: int) -> str:
    """The time of day of a message, to the minute where room is short."""
    return formats.clock(at) if width >= _ABSOLUTE_FROM else formats.clock(at)[:5]


def void_of(letters: Sequence[Letter], asked: Sequence[Request]) -> dict[str, str]:
    """Which messages answer a request and decide nothing, by id, and why: a yes that is none must not look like one."""
    requests = {request.id: request for request in asked}
    found = {
        each.message.id: ineffective_reason(each.message, requests.get(str(each.message.metadata.get("request_id"))))
        for each in letters
    }
    return {ident: why for ident, why in found.items() if why is not None}


def void_mark(void: str | None) -> Line:
    """What stands before a message that decides nothing."""
    return () if void is None else (Span("changes nothing: ", "warning"),)


def letter_line(letter: Letter, box: MailboxInfo, width: int, *, fresh: bool = False, void: str | None = None) -> Line:
    """One message; `fresh` marks one that its reader has not read, `void` is why it decides nothing."""
    message = letter.message
    left = (
        Span(_sent(message.ts, width) + " ", "dim"),
        Span(pad(one_line(display_name(message.from_)), AUTHOR) + " ", "accent"),
        *void_mark(void),
        Span(verb(message), "dim"),
        say(headline(message)),
    )
    return spread(left, _right(letter, box, width, fresh=fresh), width)


def thread_line(thread: Thread, box: MailboxInfo, width: int, *, fresh: bool, unfolded: bool) -> Line:
    """All messages of a request on one line: how it stands, and what it is about."""
    message = thread.newest.message
    left = (
        Span(_sent(message.ts, width) + " ", "dim"),
        Span(pad(one_line(display_name(message.from_)), AUTHOR) + " ", "accent"),
        Span("− " if unfolded else "+ ", "key"),
        Span(standing(thread)),
        Span(" · ", "dim"),
        say(subject(thread), "dim"),
    )
    return spread(left, _right(thread.newest, box, width, fresh=fresh), width)


def _right(letter: Letter, box: MailboxInfo, width: int, *, fresh: bool) -> Line:
    """What became of a message: for a person whether it is new, for a worker its other two times."""
    if box.operators:
        return (Span(" new" if fresh else "", "warning"),)
    return times_line(letter, width) if width >= _TIMES_FROM else ()


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
    text = formats.clock(at) if width == 8 else f"+{formats.age(at - sent)}"  # noqa: PLR2004  a time of day is so long
    return Span(f" {text:>{width}}", "dim")


def whole_letter(letter: Letter, width: int, void: str | None = None) -> list[Line]:
    """One message in full, with its head and why it decides nothing, if that is so."""
    message = letter.message
    kind = verb(message).rstrip(" :")
    head = f"{display_name(message.from_)} → {display_name(message.to)}{' · ' if kind else ''}{kind}"
    times = [f"sent {formats.clock(message.ts)}"]
    if letter.picked_up_at is not None:
        times.append(f"picked up {formats.clock(letter.picked_up_at)}")
    if letter.entered_turn_at is not None:
        times.append(f"in turn {formats.clock(letter.entered_turn_at)}")
    lines: list[Line] = [(say(clip(one_line(head), width), "accent bold"),), (Span(" · ".join(times), "dim"),)]
    lines += [(*void_mark(void), say(void, "warning"))] if void is not None else []
    lines += [(), *((Span(piece),) for piece in wrap(message.content, width))]
    result = message.metadata.get("result") or message.metadata.get("body")
    return [*lines, (), (say(f"in full: {result}", "dim"),)] if result else lines


class MessageList(LineList):
    """A mailbox as a list. It stays at its end as mail comes, until somebody moves up.

    One that a person reads opens at the first message that is not read.
    The messages of one request stand under one row, which Enter unfolds.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.follows = True
        """Whether it goes along with what comes: not while the message under the cursor is being read."""
        self._entries: list[Letter | Thread] = []
        self._unfolded: set[str] = set()
        self._fresh: frozenset[str] = frozenset()
        self._void: dict[str, str] = {}
        self._box = MailboxInfo("")
        self._nothing = ""
        self._ends: list[int] = []
        self._row_is_fresh: list[bool] = []
        self._width = 0
        self._made: dict[str, tuple[object, Row]] = {}
        """Rows by message, with what each was made of: few change, and a mailbox may hold thousands."""

    def read(
        self, letters: Sequence[Letter], box: MailboxInfo, nothing: str = "no mail yet", asked: Sequence[Request] = ()
    ) -> None:
        """Show these messages, those of one request among `asked` as a thread."""
        opens = not self.selected
        at_end = self.follows and not opens and self.selected == self.rows[-1].key
        self._void = void_of(letters, asked)
        self._entries = find_threads(letters, asked, self._void)
        self._box, self._nothing = box, nothing
        self._fresh = frozenset(each.message.id for each in unread_of(letters, box))
        self._show_entries()
        if opens:
            self._open_at_fresh()
        elif at_end and self._entries:
            self.select(self.rows[-1].key)

    def _open_at_fresh(self) -> None:
        """Begin at the first message that is not read, with the one before it in sight, else at the end."""
        if not self._entries:
            return
        last = len(self.rows) - 1
        at = self._row_is_fresh.index(True) if self._box.operators and any(self._row_is_fresh) else last
        self.select(self.rows[at].key)
        if at < last:
            self.scroll_to(y=at - 1, animate=False, force=True)

    def shown_to(self, known: int) -> int:
        """The byte behind the last message in sight, where nothing that is not read lies between it and `known`."""
        top = self.scroll_offset.y
        shown = self._ends[top : top + self.size.height - self._top]
        passed = zip(self._row_is_fresh[:top], self._ends, strict=False)
        if not shown or any(fresh and end > known for fresh, end in passed):
            return known
        return max(known, *shown)

    def void_of(self, letter: Letter) -> str | None:
        """Why one of these messages decides nothing, if that is so."""
        return self._void.get(letter.message.id)

    @property
    def letter(self) -> Letter | None:
        """The message under the cursor; of a thread its newest."""
        if self.thread is not None:
            return self.thread.newest
        letters = (letter for entry in self._entries for letter in _letters_of(entry))
        return next((letter for letter in letters if letter.message.id == self.selected), None)

    @property
    def copied(self) -> str:
        """What is copied from here: the message under the cursor."""
        letter = self.letter
        return letter.message.content if letter else ""

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
        self._width = self.row_width
        made, self._made = self._made, {}
        parts = [(entry, row) for entry in self._entries for row in self._rows_of(entry, made)]
        self._ends = [entry.newest.end if isinstance(entry, Thread) else entry.end for entry, _ in parts]
        self._row_is_fresh = [self._is_fresh(entry) for entry, _ in parts]
        rows = [row for _, row in parts]
        head = letter_head(self._box, self._width) if rows else None
        self.show(rows or [Row("", (Span(self._nothing, "dim"),))], head)

    def _is_fresh(self, entry: Letter | Thread) -> bool:
        return any(letter.message.id in self._fresh for letter in _letters_of(entry))

    def _rows_of(self, entry: Letter | Thread, made: Mapping[str, tuple[object, Row]]) -> list[Row]:
        if not isinstance(entry, Thread):
            return [self._row(entry, made)]
        unfolded = entry.key in self._unfolded
        fresh = self._is_fresh(entry)
        head = thread_line(entry, self._box, self._width, fresh=fresh, unfolded=unfolded)
        return [Row(entry.key, head), *(self._row(letter, made, "  ") for letter in entry.letters if unfolded)]

    def _row(self, letter: Letter, made: Mapping[str, tuple[object, Row]], indent: str = "") -> Row:
        """The row of a message: the one that was `made` before, if it would be the same."""
        ident, width = letter.message.id, self._width - len(indent)
        fresh, void = ident in self._fresh, self._void.get(ident)
        made_of = letter, self._box.operators, width, indent, fresh, void
        before, row = made.get(ident, (None, Row(ident, ())))
        if before != made_of:
            content = letter_line(letter, self._box, width, fresh=fresh, void=void)
            row = Row(ident, (Span(indent), *content) if indent else content)
        self._made[ident] = made_of, row
        return row


def _letters_of(entry: Letter | Thread) -> tuple[Letter, ...]:
    return entry.letters if isinstance(entry, Thread) else (entry,)
