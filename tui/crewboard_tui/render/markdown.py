"""Markdown source in colours.

It is not rendered: the user must see everything that is approved, and rendering hides comments, link targets and HTML.
"""

import re

from crewboard_tui.render.lines import Line, Span, wrap
from crewboard_tui.render.sanitize import safe_lines

_LIST = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_BLOCK = re.compile(r"\s*$|\s{4,}|#|>|\||\s*(?:[-*+]|\d+[.)])\s|\s*[-*_=]{3,}\s*$|\s*<")
"""The start of a line that does not continue the paragraph above."""

_FENCE = re.compile(r"\s*(?:```|~~~)")
_INLINE = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")


def markdown_lines(text: str, width: int) -> list[Line]:
    """Return Markdown in lines of at most `width` cells: headings bold, code apart, list items hanging."""
    lines: list[Line] = []
    fenced = False
    for raw in _paragraphs(safe_lines(text)):
        if raw.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            lines += [(Span(piece, "dim"),) for piece in wrap(raw, width)]
        elif fenced:
            lines += [(Span(piece, "info"),) for piece in wrap(raw, width)]
        else:
            lines += _paragraph(raw, width)
    return lines


def _paragraphs(raw: list[str]) -> list[str]:
    """Join continuation lines to their paragraphs, so that they can be wrapped again."""
    joined: list[str] = []
    fenced = False
    for each in raw:
        fence = each.lstrip().startswith(("```", "~~~"))
        if joined and not fenced and not fence and _continues(each, joined[-1]):
            joined[-1] = f"{joined[-1]} {each.strip()}"
        else:
            joined.append(each)
        fenced ^= fence
    return joined


def _continues(line: str, before: str) -> bool:
    starts = _BLOCK.match(line) is not None
    return (
        not starts and bool(before.strip()) and not before.startswith(("#", "|", "    ")) and not _FENCE.match(before)
    )


def _paragraph(raw: str, width: int) -> list[Line]:
    if raw.startswith("#"):
        return [(Span(piece, "bold primary"),) for piece in wrap(raw, width)]
    item = _LIST.match(raw)
    indent = " " * (item.end() if item else 0)
    tone = "italic" if raw.startswith(">") else ""
    return [_inline(piece, tone) for piece in wrap(raw, width, indent)]


def _inline(text: str, tone: str) -> Line:
    pieces = [piece for piece in _INLINE.split(text) if piece]
    return tuple(
        Span(piece, "info" if piece.startswith("`") else "bold" if piece.startswith("**") else tone) for piece in pieces
    )
