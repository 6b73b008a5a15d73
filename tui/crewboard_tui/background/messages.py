"""Messages from threads to the app."""

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from crewboard_tui.poller import TeamPoller
from crewboard_tui.queries import Snapshot


@dataclass
class TeamRead(Message):
    """The team was read again by `reading`, and something that may be on the screen has changed."""

    reading: TeamPoller
    snapshot: Snapshot


@dataclass
class JobDone(Message):
    """A command came back: `says` is the sentence for the person, `error` tells that it did not work.

    `then` is for the screen that asked; `settle` puts the drafts in order, and is called in any case, even when the
    dashboard was left meanwhile.
    """

    says: str
    error: bool
    then: Callable[[bool, str], None] | None = None
    settle: Callable[[bool, str], None] | None = None
