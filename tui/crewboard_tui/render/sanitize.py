"""Make untrusted text safe for a terminal: control and invisible characters become visible marks.

All text of agents passes through here.
"""

import re
import unicodedata

import crewboard as core

_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2028\u2029\u3164\uffa0")
"""Characters that show nothing or break lines although they are not control characters."""

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")
_TAB = "    "


def safe_text(text: str) -> str:
    """Return `text` with secrets redacted and every control character but newline and tab made visible."""
    text = core.redaction.redact(text)
    if text.isprintable() and _INVISIBLE.isdisjoint(text):
        return text
    return _SUSPECT.sub(_mark, text.replace("\r\n", "\n"))


def safe_line(text: str) -> str:
    """Return `safe_text` on one line: newlines and tabs become spaces."""
    return " ".join(safe_text(text).split())


def safe_lines(text: str) -> list[str]:
    """Return the lines of `safe_text`, with tabs as spaces; blank lines are kept."""
    return safe_text(text).replace("\t", _TAB).split("\n")


def _mark(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    if character < " ":
        return chr(0x2400 + code)
    if character == "\x7f":
        return "\u2421"
    if character in _INVISIBLE or unicodedata.category(character) in ("Cc", "Cf", "Cs"):
        return f"<U+{code:04X}>"
    return character
