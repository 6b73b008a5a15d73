"""Messages (the lines of a mailbox), attached media, and what the dashboard saves about the user's texts and visits."""

import contextlib
from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, ValidationError, field

from crewboard.names import OPERATOR
from crewboard.records.base import LATEST, JsonValue, Name, Record, Time, check_depth, convert

MAX_MESSAGE_ID = 64

STARTS_WORK = frozenset({"message", "broadcast", "interrupt", "result", "error", "task_assignment"})
"""Message types that enter the conversation and start work, for every recipient."""

ASKS_FOR_REVIEW = frozenset({"plan_approval_request", "task_review_request"})
"""Message types that enter the conversation of an agent and start work. Their content is the id of a request, then
text.
"""

OTHER_PROGRAM = "other_program"
"""The key in the metadata of a message that another program wrote in a short form."""

UNTIMED = "untimed"
"""The key in the metadata of such a message if it has no time that can be read."""

_MILLISECONDS = 1e11
"""From this number on a time is taken as milliseconds, as JavaScript writes it. As seconds it is in the year 5138."""

RETRY = "Your last assignment ended with an error. Try again."

GO_ON = "Task {} is still in progress. Go on with it, and report its outcome with task_update."
"""Texts of the mail that makes an agent try again: after an error, and with an unfinished task."""

JOINS_NEXT_TURN = frozenset({"idle_notification", "teammate_terminated", "files_put_back"})
"""Message types that enter the conversation with the next turn, but start none."""


class Unsent(Record):
    """Drafts of the user, by purpose: a file of the user, not of a team.

    `writers` names the dashboard that has a draft open; until it ends, no other dashboard shows or changes that draft.
    """

    texts: dict[str, str] = {}
    writers: dict[str, str] = {}


class RecentTexts(Record):
    """The texts that the user sent last, oldest first: a file of the user, not of a team."""

    texts: list[str] = []


class LastVisit(Record):
    """The state in which the user left the dashboard of a team: a file of the user, not of the team.

    `at` is when, `cost_usd` what the team had cost by then, and `view` the numbered view that was shown. `orders` are
    the chosen sort keys by list, with a `-` in front for reverse order. `zoomed` are the panes that filled their views.
    """

    at: Time = 0
    cost_usd: float | None = None
    view: str = ""
    orders: dict[str, str] = {}
    zoomed: dict[str, str] = {}


class Media(Record):
    """An image or a document of at most `tokens` tokens. The agent's folder `kept` has its bytes, by SHA-256."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    type: Annotated[str, Meta(pattern=r"^(image/(png|jpeg|gif|webp)|application/pdf)\Z")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    bytes: Annotated[int, Meta(ge=0)]
    tokens: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Message(Record, kw_only=True):
    """One line of a mailbox (docs/reference/messages.md)."""

    v: Literal[1] = 1
    id: Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_ID)]
    ts: Time
    from_: Name = field(name="from")
    to: Name
    type: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*\Z")]
    content: str
    metadata: dict[str, JsonValue] = {}

    def __post_init__(self) -> None:
        """Check how deeply the metadata is nested.

        Raises:
            ValueError: It is nested too deep.
        """
        # Most messages have none, and mailboxes may be long.
        if self.metadata:
            check_depth(self.metadata, "metadata: ")

    @property
    def wants_plan(self) -> bool:
        """Return True if the author requires a plan before the recipient writes or runs anything.

        Any author may require one: only the operator and leads have a command for it, and a closed gate permits
        nothing.
        """
        return self.metadata.get("plan_required") is True

    @property
    def is_foreign(self) -> bool:
        """Return True if another program wrote the message in a short form."""
        return self.metadata.get(OTHER_PROGRAM) is True

    @property
    def is_untimed(self) -> bool:
        """Return True if the author wrote no time that can be read, so that the message's time is an estimate."""
        return self.is_foreign and self.metadata.get(UNTIMED) is True

    @property
    def attachments(self) -> list[Media]:
        """Return the images and documents of the message. Invalid entries, as of another program, are left out."""
        named = self.metadata.get("attachments")
        found = []
        for each in named if isinstance(named, list) else ():
            with contextlib.suppress(ValidationError):
                found.append(convert(each, Media))
        return found

    @property
    def starts_work(self) -> bool:
        """Return True if the message enters the conversation and starts an assignment if the recipient is idle."""
        return self.type in STARTS_WORK or (self.type in ASKS_FOR_REVIEW and self.to != OPERATOR)

    @property
    def enters(self) -> bool:
        """Return True if the message enters the recipient's conversation, now or with the next turn."""
        return self.starts_work or self.type in JOINS_NEXT_TURN


class ShortMessage(Record, kw_only=True):
    """A line that another program wrote in one of the common short forms (docs/reference/messages.md)."""

    v: Literal[1] = 1
    id: Annotated[str, Meta(min_length=1, max_length=MAX_MESSAGE_ID)] | None = None
    from_: Name = field(name="from")
    to: str = ""
    type: str
    content: str
    timestamp: float | str | None = None
    ts: float | str | None = None
    metadata: dict[str, JsonValue] | None = None

    def __post_init__(self) -> None:
        """Check how deeply the metadata is nested."""
        check_depth(self.metadata, "metadata: ")

    def complete(self, ident: str, to: str) -> Message:
        """Return the line as a complete message to the mailbox `to`.

        A line without an id gets the id `ident`. The time of a line without a readable time is 0, and the message says
        so (`is_untimed`).
        """
        at = next((at for at in (_seconds(self.ts), _seconds(self.timestamp)) if at is not None), None)
        untimed = {UNTIMED: True} if at is None else {}
        return Message(
            id=self.id or ident,
            ts=at or 0.0,
            from_=self.from_,
            to=to,
            type=self.type,
            content=self.content,
            metadata={**(self.metadata or {}), OTHER_PROGRAM: True, **untimed},
        )


def _seconds(time: float | str | None) -> float | None:
    """Return a time as epoch seconds; None if there is none, or it cannot be read or shown."""
    at: float | None = None
    try:
        number = None if time is None else float(time)
    except ValueError:
        # Not a number: a date, whose seconds are never taken for milliseconds.
        number = None
        with contextlib.suppress(ValueError, OverflowError):
            at = datetime.fromisoformat(str(time).strip()).timestamp()
    if number is not None:
        at = number / 1000 if number >= _MILLISECONDS else number
    if at is None:
        return None
    # NaN is in no range.
    return at if 0 <= at <= LATEST else None
