"""What a tool call gives."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The text of a tool result; an error is one that the model is told of as such."""

    content: str
    is_error: bool = False
    created: bool = False
    """The call made a new file."""
    consumed: tuple[str, ...] = ()
    """Ids of mail whose content this already is."""
