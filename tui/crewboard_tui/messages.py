"""What threads tell the app."""

from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from crewboard_tui.reading import Snapshot


@dataclass
class TeamRead(Message):
    """The team was read again, and something that may be on the screen has changed."""

    snapshot: Snapshot


@dataclass
class ErrandDone(Message):
    """A command came back: `says` is the sentence for the person, `error` tells that it did not work."""

    says: str
    error: bool
    then: Callable[[bool, str], None] | None = None
