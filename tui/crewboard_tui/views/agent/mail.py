"""The Mail tab: the messages to and from one agent."""

from collections.abc import Container, Sequence
from functools import partial

from crewboard.names import LEAD, OPERATOR
from crewboard.readmodel.mail import Letter, describe_message, display_name, headline, verb
from crewboard.records import Request
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, one_line, pad, say, spread, wrap
from crewboard_tui.views.inbox.message_list import (
    AUTHOR,
    MailboxInfo,
    clock_width,
    message_body,
    times_line,
    unread_of,
    void_mark,
    void_of,
)
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleRow

_BEGIN = 9 + AUTHOR + 1
_RULE = "unread"


def mail_rows(
    letters: Sequence[Letter],
    sent: Sequence[Letter],
    box: MailboxInfo,
    yours: Container[str],
    width: int,
    asked: Sequence[Request] = (),
) -> list[CollapsibleRow]:
    """Return a row for each message, oldest first, with a rule before unread ones; the lead's talk is shown in full.

    `yours` are the mailboxes that the user reads, where no worker picks up mail. `asked` are the requests that messages
    may refer to.
    """
    width -= MARK
    name = box.name
    first_unread = next((each.message.id for each in unread_of(letters, box)), None)
    void = void_of([*letters, *sent], asked)
    folds: list[CollapsibleRow] = []
    for letter in sorted([*letters, *sent], key=lambda each: each.message.ts):
        if letter.message.id == first_unread:
            folds.append(CollapsibleRow(_RULE, (Span(" not read yet ".center(width, "─"), "dim"),)))
        if _is_talk(letter):
            folds.append(_spoken(letter, name, width))
        else:
            folds.append(_folded(letter, name, yours, width, void.get(letter.message.id)))
    return folds


def mail_head(width: int) -> Line:
    """Return the column titles."""
    clock = clock_width(width - MARK)
    left = (Span(f"{'SENT':<8} {'WHO':<{AUTHOR}} MESSAGE", "dim"),)
    return spread(left, (Span(f" {'PICKED':>{clock}} {'TURN':>{clock}}", "dim"),), width - MARK)


def _is_talk(letter: Letter) -> bool:
    return {letter.message.from_, letter.message.to} == {OPERATOR, LEAD}


def _folded(letter: Letter, name: str, yours: Container[str], width: int, void: str | None) -> CollapsibleRow:
    message = letter.message
    left = (
        Span(formats.clock(message.ts) + " ", "dim"), _who(letter, name), *void_mark(void),
        Span(verb(message), "dim"), say(headline(message)),
    )  # fmt: skip
    times = (Span(" " * (2 * clock_width(width) + 2)),) if message.to in yours else times_line(letter, width)
    body = partial(message_body, letter, width, void)
    return CollapsibleRow(f"{message.to} {message.id}", spread(left, times, width), body=body, text=message.content)


def _who(letter: Letter, name: str) -> Span:
    """Return the author; for mail of `name`, an arrow and the recipient."""
    message = letter.message
    who = f"→ {display_name(message.to)}" if message.from_ == name else display_name(message.from_)
    return Span(pad(one_line(who), AUTHOR) + " ", "info" if message.from_ == name else "accent")


def _spoken(letter: Letter, name: str, width: int) -> CollapsibleRow:
    """Return a message of the talk with the lead, in full."""
    message = letter.message
    words = message.content if message.type == "result" else describe_message(message)
    times = times_line(letter, width) if message.to == name else ()
    room = width - _BEGIN - 2 * (clock_width(width) + 1) - 1
    first, *more = wrap(words.strip(), max(1, room)) or ("",)
    author = Span(pad(one_line(display_name(message.from_)), AUTHOR) + " ", "accent bold")
    head = spread((Span(formats.clock(message.ts) + " ", "dim"), author, Span(first)), times, width)
    rest = tuple((Span(" " * _BEGIN + piece),) for piece in more)
    return CollapsibleRow(f"{message.to} {message.id}", head, rest, text=message.content)
