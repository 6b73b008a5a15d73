"""Text that must be shown exactly: commands and diffs."""

import difflib

from rich.cells import chop_cells

from crewboard_tui.render.lines import Line, Span
from crewboard_tui.render.sanitize import safe_lines

_HEAD = 2
"""Lines of a diff that name what is compared."""


def exact_lines(text: str, width: int, tone: str = "") -> list[Line]:
    """Break text into lines at the full width, keeping every blank."""
    pieces = [piece for raw in safe_lines(text) for piece in chop_cells(raw, max(1, width)) or [""]]
    return [(Span(piece, tone),) for piece in pieces]


def diff_lines(diff: str, width: int) -> list[Line]:
    """Colour a unified diff."""
    return [part for at, raw in enumerate(safe_lines(diff)) for part in exact_lines(raw, width, _tone(at, raw))]


def changed(before: str, after: str, names: tuple[str, str]) -> str:
    """Return a unified diff; empty if nothing changed."""
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))


def _tone(at: int, line: str) -> str:
    # Below the head, `---` and `+++` are content, for example a removed SQL comment.
    if at < _HEAD and line.startswith(("+++ ", "--- ")):
        return "bold"
    return {"+": "success", "-": "error", "@": "info"}.get(line[:1], "")
