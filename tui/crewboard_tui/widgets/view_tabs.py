"""The line below the status bar: the numbered views, or the path to the current page."""

from collections.abc import Mapping

from crewboard.protocol.addressing import operator_mailboxes
from crewboard.readmodel.team import TeamView
from crewboard_tui.keymap.bindings import Pressed, default_key
from crewboard_tui.render.lines import Line, Span, say, spread, width_of

VIEWS: tuple[tuple[str, str, str], ...] = (
    ("board", "1", "Board"),
    ("inbox", "2", "Inbox"),
    ("tasks", "3", "Tasks"),
    ("needs", "4", "Needs-you"),
    ("processes", "5", "Procs"),
    ("feed", "6", "Feed"),
    ("cost", "7", "Cost"),
)
"""Every view: mode, key, title."""

_SHORT = {"needs": "Needs"}
"""Shorter titles, so that all fit on 60 columns."""


def new_mail(view: TeamView) -> int:
    """Return the number of messages that the operator has not read."""
    return sum(view.unread.get(name, 0) for name in operator_mailboxes(view.names))


def tabs_line(view: TeamView, current: str, width: int, pressed: Pressed = default_key) -> Line:
    """Return the views with their counts; when space is short, only the keys and the current title."""
    counts = {
        "inbox": new_mail(view),
        "needs": len(view.needs),
    }
    full = {mode: title for mode, _, title in VIEWS}
    for titles, gap in ((full, " "), (full | _SHORT, "")):
        tabs = _tabs(current, counts, pressed, titles, gap)
        if width_of(tabs) <= width:
            return tabs
    return _tabs(current, counts, pressed, {current: full.get(current, "")}, "")


def _tabs(current: str, counts: Mapping[str, int], pressed: Pressed, titles: Mapping[str, str], gap: str) -> Line:
    spans: list[Span] = []
    for mode, _, _ in VIEWS:
        count = f"·{counts[mode]}" if counts.get(mode) else ""
        here = mode == current
        text = titles.get(mode, "") + count
        tone = "tab" if here else ("warning" if count else "")
        spans += [
            Span(" "),
            Span(pressed(f"app.{mode}"), "key" if not here else "tab", f"app.{mode}"),
            Span(f" {text}" if text else "", tone, f"app.{mode}"),
            Span(gap),
        ]
    return tuple(spans)


def crumbs_line(crumbs: list[str], right: str, width: int) -> Line:
    """Return the path from a view to the page: `Board › api`."""
    spans: list[Span] = [Span(" ")]
    for index, crumb in enumerate(crumbs):
        last = index == len(crumbs) - 1
        spans += [say(crumb, "bold" if last else "dim"), Span("" if last else " › ", "dim")]
    return spread(tuple(spans), (Span(f"{right} " if right else "", "dim"),), width)
