"""Make untrusted text safe for a terminal: control and invisible characters become visible marks.

All text of agents passes through here.
"""

import contextlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from crewboard import redaction

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2028\u2029\u2065\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U00016fe4\U0001d159\U000e0000-\U000e0fff"
    # Code points that are no characters and never will be.
    f"\ufdd0-\ufdef{''.join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))}]"
)
"""Characters that show nothing or break lines although they are not control characters."""

_EMOJI = "\ufe0f"
_KEYCAP = "\u20e3"

_LINE_BREAK = re.compile(r"(?<!\\)\r\n")
"""Behind a backslash, a carriage return is no part of a line break for a shell: it decides where a command ends."""

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")
_TAB = "    "


_MARK = redaction.MARK.replace(" ", "")

_reveals = ContextVar("reveals", default=False)


@contextlib.contextmanager
def revealing(*, wanted: bool = True) -> Iterator[None]:
    """Redact nothing meanwhile, if that is `wanted`: what a user is asked to approve can be read as a whole."""
    token = _reveals.set(wanted)
    try:
        yield
    finally:
        _reveals.reset(token)


def is_revealing() -> bool:
    """Return True if nothing is redacted now."""
    return _reveals.get()


def has_hidden(text: str) -> bool:
    """Return True if something was redacted in a text; its blanks do not count, so that lines of it can be joined."""
    return _MARK in text.replace(" ", "")


def safe_text(text: str) -> str:
    """Return `text` with secrets redacted and every control character but newline and tab made visible."""
    if not _reveals.get():
        text = redaction.redact(text)
    if text.isprintable() and (text.isascii() or _INVISIBLE.search(text) is None):
        return text
    if "\r\n" in text:
        text = _LINE_BREAK.sub("\n", text)
    return _SUSPECT.sub(_mark, text)


def safe_line(text: str) -> str:
    """Return `safe_text` on one line: newlines and tabs become spaces."""
    return " ".join(safe_text(text).split())


def safe_lines(text: str) -> list[str]:
    """Return the lines of `safe_text`, with tabs as spaces; blank lines are kept."""
    return safe_text(text).replace("\t", _TAB).split("\n")


def safe_hunk(kinds: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Return the lines of a hunk made safe, as the texts before and after it: a secret may have several lines."""
    safe: dict[int, str] = {}
    for other in "+-":
        places = [place for place, kind in enumerate(kinds) if kind != other]
        lines = safe_lines("\n".join(texts[place] for place in places)) if places else []
        for place, text in zip(places, lines, strict=True):
            # A line that is in both texts may be part of a secret in one of them.
            if place not in safe or redaction.MARK in text:
                safe[place] = text
    return [safe[place] for place in range(len(texts))]


def _mark(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if character < " ":
        return chr(0x2400 + code)
    if character == "\x7f":
        return "\u2421"
    if character == _EMOJI and _is_part_of_emoji(found):
        return character
    if _INVISIBLE.match(character) or unicodedata.category(character) in ("Cc", "Cf", "Cs"):
        return f"<U+{code:04X}>"
    return character


def _is_part_of_emoji(found: re.Match[str]) -> bool:
    """Return True if a selector asks for the emoji of the symbol before it. Just one: several could hide a text."""
    before, after = found.string[found.start() - 1 : found.start()], found.string[found.end() : found.end() + 1]
    return after == _KEYCAP or (bool(before) and unicodedata.category(before) in ("So", "Sm"))
