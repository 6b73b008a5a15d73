"""What one agent changed, newest first: each change with its counts, its diff, and who else has the file open."""

from collections.abc import Sequence
from functools import partial

from crewboard.readmodel.file_activity import FileAccess, FileActivity
from crewboard_tui.render import formats
from crewboard_tui.render.diff import diff_lines
from crewboard_tui.render.lines import Line, Span, pad, say, spread
from crewboard_tui.widgets.collapsible_list import MARK, CollapsibleRow

_COUNTS = 10


def file_folds(touches: FileActivity, name: str, now: float, width: int) -> list[CollapsibleRow]:
    """The changes of `name`, among what everybody touched; each unfolds to its diff."""
    mine = [touch for touch in reversed(touches.all) if touch.agent == name and touch.changed]
    return [_fold(touch, touches, now, width - MARK) for touch in mine]


def file_head(width: int) -> Line:
    """What the columns say."""
    left = (Span(f"{'TIME':<9}{'HOW':<6}{'LINES':<{_COUNTS}}FILE", "dim"),)
    return spread(left, (Span("ALSO OPEN BY", "dim"),), width - MARK)


def _fold(touch: FileAccess, touches: FileActivity, now: float, width: int) -> CollapsibleRow:
    shared = touches.others(touch.path, touch.agent, now)
    left = (Span(formats.clock(touch.ts) + " ", "dim"), Span(f"{touch.kind:<6}"), *_counts(touch), say(touch.path))
    key = f"{touch.ts} {touch.call}"  # the same however many came after it
    body = partial(_body, touch, shared, now, width)
    return CollapsibleRow(key, spread(left, open_by(shared), width), body=body, text=f"{touch.path}\n{touch.diff}")


def _counts(touch: FileAccess) -> Line:
    """Lines added and removed; no word about those removed where that is not known."""
    added, removed = f"+{touch.added}", "" if touch.removed is None else f" −{touch.removed}"
    rest = pad("", _COUNTS - len(added) - len(removed))
    return (Span(added, "success"), Span(removed, "error"), Span(rest))


def open_by(shared: Sequence[FileAccess]) -> Line:
    """Who else has a file open; with a warning where they changed it."""
    if not shared:
        return ()
    names = ", ".join(touch.agent for touch in shared)
    clash = any(touch.changed for touch in shared)
    return (Span(f"⚠ {names}" if clash else names, "warning" if clash else "dim"),)


def _body(touch: FileAccess, shared: Sequence[FileAccess], now: float, width: int) -> list[Line]:
    lines = [shared_line(each, now) for each in shared]
    if touch.removed is None:
        lines.append((Span("written whole; what stood there before is not in the journal", "dim"),))
    return [*lines, *diff_lines(touch.diff, width)]


def shared_line(touch: FileAccess, now: float) -> Line:
    """What somebody did with a file, and how long ago."""
    did = "changed it" if touch.changed else "read it"
    return (Span(f"{touch.agent} {did} {formats.age(now - touch.ts)} ago", "warning" if touch.changed else "dim"),)
