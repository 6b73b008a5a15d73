"""What a line that somebody wrote to an agent says: a message, for another if it begins with `@name`, or a command."""

from collections.abc import Sequence
from dataclasses import dataclass

from crewboard.errors import UsageError
from crewboard.names import LEAD, OPERATOR

COMMANDS = {"/team": "board", "/inbox": "inbox", "/tasks": "tasks"}
"""Words that go to a view, as people of this field are used to."""


@dataclass(frozen=True)
class Note:
    """A text for some agents, word for word."""

    names: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Visit:
    """A view to go to, and the mailbox to look into there."""

    view: str
    mailbox: str = ""


def openings(names: Sequence[str]) -> list[str]:
    """What a line may begin with so that it is not simply a message."""
    return [*(f"@{name} " for name in names), *COMMANDS]


def read(text: str, to: Sequence[str], names: Sequence[str]) -> Note | Visit:
    """What `text` says, written to `to` in a team of `names`; `@@` at its beginning is a plain `@`.

    Raises:
        UsageError: There is no such agent or mailbox, or nothing to say.
    """
    first, rest = (*text.split(maxsplit=1), "", "")[:2]
    if first.startswith("@@"):
        return _note(tuple(to), text.replace("@@", "@", 1))
    if first in COMMANDS:
        return _visit(COMMANDS[first], rest.strip(), names)
    if len(first) > 1 and first.startswith("@"):
        return _note((_addressed(first.removeprefix("@"), names),), rest.strip())
    return _note(tuple(to), text)


def _note(to: tuple[str, ...], text: str) -> Note:
    if not text.strip():
        raise UsageError(f"say what to tell {', '.join(to)}")
    return Note(to, text)


def _visit(view: str, mailbox: str, names: Sequence[str]) -> Visit:
    if mailbox and view != "inbox":
        raise UsageError("only /inbox takes a name")
    return Visit(view, _known(mailbox, [OPERATOR, LEAD, *names]) if mailbox else "")


def _addressed(name: str, names: Sequence[str]) -> str:
    try:
        return _known(name, names)
    except UsageError as error:
        raise UsageError(f"{error}; @@{name} says it literally") from error


def resolve_prefix(text: str, names: Sequence[str]) -> str:
    """The only one of `names` that begins with `text`; `text` itself if it is one of them, or more or none begin so."""
    found = {name for name in names if text and name.startswith(text)}
    return found.pop() if text not in names and len(found) == 1 else text


def _known(name: str, names: Sequence[str]) -> str:
    name = resolve_prefix(name, names)
    if name not in names:
        raise UsageError(f"nobody here is called {name!r}: there are {', '.join(dict.fromkeys(names)) or 'no agents'}")
    return name
