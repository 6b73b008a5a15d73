"""The result of a tool call."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The text of a tool result, and whether the model is told that it is an error."""

    content: str
    is_error: bool = False
    created: bool = False
    """The call made a new file."""
    consumed: tuple[str, ...] = ()
    """Ids of mail whose content this result shows, so that it does not enter the conversation again."""
