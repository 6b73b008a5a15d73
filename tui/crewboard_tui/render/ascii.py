"""A filter for terminals that show only ASCII. It covers everything painted, borders and scrollbars included."""

import re
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from crewboard_tui.render.looks import LOOKS, TASK_LOOKS

_CHROME = {
    "…": "~", "·": "-", "│": "|", "┃": "|", "─": "-", "━": "-", "┌": "+", "┐": "+", "└": "+", "┘": "+", "├": "+",
    "┤": "+", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "▸": ">", "▶": ">", "›": ">", "‹": "<", "→": ">",
    "←": "<", "↑": "^", "↓": "v", "⏎": "E", "×": "x", "−": "-", "–": "-", "—": "-", "▌": "_", "▐": "|", "█": "#",
    "▎": "|", "▊": "|", "▔": "-", "▁": "_", "▮": "#", "▯": ".", "✓": "+", "☑": "x", "☐": " ", "✉": "@",
    "“": '"', "”": '"', "‘": "'", "’": "'", "¢": "c", "†": "/", "⚠": "!", "␛": "?", "•": "*", "⌄": "v",
    "▂": ".", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "↵": "|", "⇥": ">", "␡": "?",
}  # fmt: skip
GLYPHS = _CHROME | {look.glyph: look.ascii for look in (*TASK_LOOKS.values(), *LOOKS.values())}
"""The ASCII replacement of each glyph that the dashboard uses."""


_COUNTS = re.compile(r"·(?=\d)")
"""Replace the dot before a count by a colon: `Inbox-5` would read as minus five."""


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """Replace each character that is not ASCII by a similar one, else by `?`; the width stays the same."""
    if text.isascii():
        return text
    text = _COUNTS.sub(":", text)
    return "".join(
        character if character.isascii() else GLYPHS.get(character, "?" * cell_len(character)) for character in text
    )


class AsciiFilter(LineFilter):
    """Paints every line in ASCII."""

    # Colours stay as they are.
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Return the same segments with their text in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
