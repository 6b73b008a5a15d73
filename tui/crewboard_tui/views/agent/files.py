"""The Files tab: an agent's changes, newest first, each with counts, diff, and who else has the file open."""

from collections.abc import Sequence
from functools import partial

from crewboard.readmodel.file_activity import FileAccess, FileActivity
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, diff_lines, pad, say, spread
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleRow

_COUNTS = 10


def file_rows(touches: FileActivity, name: str, now: float, width: int) -> list[CollapsibleRow]:
    """Return a row for each change of `name`; it unfolds to the diff."""
    mine = [touch for touch in reversed(touches.all) if touch.agent == name and touch.changed]
    return [_fold(touch, touches, now, width - MARK) for touch in mine]


def file_head(width: int) -> Line:
    """Return the column titles."""
    left = (Span(f"{'TIME':<9}{'HOW':<6}{'LINES':<{_COUNTS}}FILE", "dim"),)
    return spread(left, (Span("ALSO OPEN BY", "dim"),), width - MARK)


def _fold(touch: FileAccess, touches: FileActivity, now: float, width: int) -> CollapsibleRow:
    shared = touches.others(touch.path, touch.agent, now)
    left = (Span(formats.clock(touch.ts) + " ", "dim"), Span(f"{touch.kind:<6}"), *_counts(touch), say(touch.path))
    # The key stays the same when newer accesses are added.
    key = f"{touch.ts} {touch.call}"
    body = partial(_body, touch, shared, now, width)
    return CollapsibleRow(key, spread(left, open_by(shared), width), body=body, text=f"{touch.path}\n{touch.diff}")


def _counts(touch: FileAccess) -> Line:
    """Return the number of lines added and removed; omit the removed ones if unknown."""
    added, removed = f"+{touch.added}", "" if touch.removed is None else f" −{touch.removed}"
    rest = pad("", _COUNTS - len(added) - len(removed))
    return (Span(added, "success"), Span(removed, "error"), Span(rest))


def open_by(shared: Sequence[FileAccess]) -> Line:
    """Return who else has a file open, with a warning if they changed it."""
    if not shared:
        return ()
    names = ", ".join(touch.agent for touch in shared)
    clash = any(touch.changed for touch in shared)
    return (Span(f"⚠ {names}" if clash else names, "warning" if clash else "dim"),)


def _body(touch: FileAccess, shared: Sequence[FileAccess], now: float, width: int) -> list[Line]:
    lines = [shared_line(each, now) for each in shared]
    if touch.removed is None:
        lines.append((Span("whole file written; its previous content is unknown", "dim"),))
    return [*lines, *diff_lines(touch.diff, width)]


def shared_line(touch: FileAccess, now: float) -> Line:
    """Return what an agent did with a file, and how long ago."""
    did = "changed it" if touch.changed else "read it"
    return (Span(f"{touch.agent} {did} {formats.age(now - touch.ts)} ago", "warning" if touch.changed else "dim"),)
