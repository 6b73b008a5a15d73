"""Messages: the lines of a mailbox."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from crewboard.names import OPERATOR, Name
from crewboard.records.base import Record, Time, check_depth

MAX_MESSAGE_ID = 64

STARTS_WORK = frozenset({"message", "broadcast", "interrupt", "result", "error", "task_assignment"})
"""Types that enter the conversation and start work, for every recipient."""

JOINS_NEXT_TURN = frozenset({"idle_notification", "teammate_terminated"})
"""Types that enter with the next turn but start none."""


class Unsent(Record):
    """Drafts of the user that are not sent yet, by purpose: a file of the user, not of a team."""

    texts: dict[str, str] = {}


class RecentTexts(Record):
    """The texts that the user sent last, oldest first: a file of the user, not of a team."""

    texts: list[str] = []


class LastVisit(Record):
    """How the user left the dashboard of a team: a file of the user, not of the team.

    `at` is the time, `cost_usd` what the team had cost by then, `view` the numbered view that was shown. `orders` are
    the chosen sort keys by list, with a `-` in front of a reversed one; `zoomed` are the panes that filled their views.
    """

    at: Time = 0
    cost_usd: float | None = None
    view: str = ""
    orders: dict[str, str] = {}
    zoomed: dict[str, str] = {}


class Message(Record):
    """One line of a mailbox (docs/reference/messages.md)."""

    v: Literal[1] = 1
    id: Annotated[str, Field(min_length=1, max_length=MAX_MESSAGE_ID)]
    ts: Time
    from_: Name = Field(alias="from")
    to: Name
    type: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
    content: str
    metadata: dict[str, JsonValue] = {}

    @field_validator("metadata")
    @classmethod
    def _not_too_deep(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        # Most messages have none, and mailboxes may be long.
        if value:
            check_depth(value)
        return value

    @property
    def wants_plan(self) -> bool:
        """Return True if its author requires a plan before the recipient writes or runs anything.

        Any author may: only the operator and leads have a command for it, and a closed gate permits nothing.
        """
        return self.metadata.get("plan_required") is True

    @property
    def starts_work(self) -> bool:
        """Return True if it enters the conversation and starts an assignment if the recipient is idle."""
        return self.type in STARTS_WORK or (self.type == "plan_approval_request" and self.to != OPERATOR)

    @property
    def enters(self) -> bool:
        """Return True if it enters the conversation at all."""
        return self.starts_work or self.type in JOINS_NEXT_TURN
