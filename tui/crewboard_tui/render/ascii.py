"""For terminals that show ASCII alone: one filter over everything that is painted, borders and scrollbars included."""

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
"""What stands for each glyph of ours."""


_COUNTS = re.compile(r"·(?=\d)")
"""What stands before a count: `Inbox-5` would be five too few."""


@lru_cache(maxsize=4096)
def to_ascii(text: str) -> str:
    """`text` in the same cells, with what ASCII lacks replaced by what comes near, else by `?`."""
    if text.isascii():
        return text
    text = _COUNTS.sub(":", text)
    return "".join(
        character if character.isascii() else GLYPHS.get(character, "?" * cell_len(character)) for character in text
    )


class AsciiFilter(LineFilter):
    """Paints every line in ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002  colours stay
        """The same segments with their text in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
