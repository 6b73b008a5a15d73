"""Make untrusted text safe for a terminal: control and invisible characters become visible marks.

All text of agents passes through this module. Text that is run, or names a file or branch, passes through
`untrusted.as_run` before.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from crewboard import redaction
from crewboard.untrusted import visible

_LINE_BREAK = re.compile(r"(?<!\\)\r\n")
"""A line break with a carriage return, but not behind a backslash, where a shell takes it for a part of the command."""

_TAB = "    "


_MARK = redaction.MARK.replace(" ", "")

_reveals = ContextVar("reveals", default=False)


@contextlib.contextmanager
def revealing(*, wanted: bool = True) -> Iterator[None]:
    """Redact nothing in this context if `wanted`, so that users can read all of what they approve."""
    token = _reveals.set(wanted)
    try:
        yield
    finally:
        _reveals.reset(token)


def is_revealing() -> bool:
    """Return True if nothing is redacted now."""
    return _reveals.get()


def has_hidden(text: str) -> bool:
    """Return True if something was redacted in a text.

    Blanks in the text do not matter, so that its lines can be joined.
    """
    return _MARK in text.replace(" ", "")


def safe_text(text: str) -> str:
    """Return `text` with secrets redacted and every control character but newline and tab made visible."""
    if not _reveals.get():
        text = redaction.redact(text)
    if "\r\n" in text:
        text = _LINE_BREAK.sub("\n", text)
    return visible(text)


def safe_line(text: str) -> str:
    """Return `safe_text` on one line: each run of blanks, tabs and newlines becomes one blank."""
    return " ".join(safe_text(text).split())


def safe_lines(text: str) -> list[str]:
    """Return the lines of `safe_text`, with tabs as spaces; blank lines are kept."""
    return safe_text(text).replace("\t", _TAB).split("\n")


def safe_hunk(kinds: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the lines of a hunk made safe; `kinds` are their signs.

    The text before and the text after are each redacted as a whole, because a secret may have several lines.
    """
    safe: dict[int, str] = {}
    for other in "+-":
        places = [place for place, kind in enumerate(kinds) if kind != other]
        lines = safe_lines("\n".join(texts[place] for place in places)) if places else []
        for place, text in zip(places, lines, strict=True):
            # A line that is in both texts may be part of a secret in one of them.
            if place not in safe or redaction.MARK in text:
                safe[place] = text
    return [safe[place] for place in range(len(texts))]
