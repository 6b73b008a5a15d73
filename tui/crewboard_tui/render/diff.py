"""Text that must be shown exactly: a command, and what a change takes away and adds."""

import difflib

from rich.cells import chop_cells

from crewboard_tui.render.lines import Line, Span
from crewboard_tui.render.sanitize import safe_lines

_HEAD = 2
"""Lines that name what is compared."""


def exact_lines(text: str, width: int, tone: str = "") -> list[Line]:
    """Text with every blank of it, broken wherever a line is full."""
    pieces = [piece for raw in safe_lines(text) for piece in chop_cells(raw, max(1, width)) or [""]]
    return [(Span(piece, tone),) for piece in pieces]


def diff_lines(diff: str, width: int) -> list[Line]:
    """A unified diff in colours."""
    return [part for at, raw in enumerate(safe_lines(diff)) for part in exact_lines(raw, width, _tone(at, raw))]


def changed(before: str, after: str, names: tuple[str, str]) -> str:
    """What is different, as a unified diff; empty where nothing is."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))


def _tone(at: int, line: str) -> str:
    # Further down the same signs are what is taken away or added: a comment in SQL.
    if at < _HEAD and line.startswith(("+++ ", "--- ")):
        return "bold"
    return {"+": "success", "-": "error", "@": "info"}.get(line[:1], "")
