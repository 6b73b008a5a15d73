"""Parse a composed line: a message, a message to another agent (`@name …`), or a command."""

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from crewboard import LEAD, OPERATOR, UsageError

COMMANDS = {"/team": "board", "/inbox": "inbox", "/tasks": "tasks"}
"""Slash commands that open a view, with the mode of the view."""

ATTACHMENT = re.compile(r"\[attach ([^\]\n]+)\]")
"""The mark of an attached file in a text."""


class Note(Struct, frozen=True):
    """A text to send to some agents, unchanged."""

    names: tuple[str, ...]
    text: str


class Visit(Struct, frozen=True):
    """A view to open, and the mailbox to select there, if any."""

    view: str
    mailbox: str = ""


def openings(names: Sequence[str], slash: Sequence[str] = ()) -> list[str]:
    """Return the prefixes with which a line is more than a plain message; `slash` are the project's own commands."""
    visits = (f"/inbox {name}" for name in _mailboxes(names))
    return [*(f"@{name} " for name in names), *COMMANDS, *visits, *(f"/{name} " for name in slash)]


def parse_line(text: str, to: Sequence[str], names: Sequence[str]) -> Note | Visit:
    """Parse `text`, which is written to the agents `to` in a team of `names`; a leading `@@` stands for a plain `@`.

    Raises:
        UsageError: There is no such agent or mailbox, or no text.
    """
    first, rest = (*text.split(maxsplit=1), "", "")[:2]
    if first.startswith("@@"):
        return _note(tuple(to), text.replace("@@", "@", 1))
    if first in COMMANDS:
        view, mailbox = COMMANDS[first], rest.strip()
        if mailbox and view != "inbox":
            raise UsageError("only /inbox takes a name")
        return Visit(view, _known(mailbox, _mailboxes(names)) if mailbox else "")
    word = first.removeprefix("@")
    # With a slash, or an ending such as `.py`, it cannot be meant as the name of an agent.
    is_path = "/" in word or "." in word.rstrip(".")
    if not word or word == first or is_path:
        return _note(tuple(to), text)
    try:
        name = _known(word, names)
    except UsageError as error:
        raise UsageError(f"{error}; @@{word} writes it literally") from error
    return _note((name,), rest.strip())


def _mailboxes(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([OPERATOR, LEAD, *names]))


def _note(to: tuple[str, ...], text: str) -> Note:
    if not text.strip():
        raise UsageError(f"write something for {', '.join(to)}")
    return Note(to, text)


def resolve_prefix(text: str, names: Sequence[str]) -> str:
    """Return the only one of `names` that starts with `text`, else `text` unchanged."""
    found = {name for name in names if text and name.startswith(text)}
    return found.pop() if text not in names and len(found) == 1 else text


def _known(name: str, names: Sequence[str]) -> str:
    name = resolve_prefix(name, names)
    if name not in names:
        raise UsageError(f"no agent is called {name!r}: there are {', '.join(dict.fromkeys(names)) or 'no agents'}")
    return name


def split_attachments(text: str) -> tuple[str, list[Path]]:
    """Return a text without its marks of attached files, and the paths in these marks."""
    found = [Path(each) for each in ATTACHMENT.findall(text)]
    return (ATTACHMENT.sub("", text).strip() if found else text), found
