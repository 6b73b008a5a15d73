"""What waits for the operator as lines, the most urgent first, with why and since when."""

from crewboard.readmodel.needs import tasks_blocked_by
from crewboard.readmodel.team import Need, TeamView
from crewboard_tui.actions.filters import matches
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, pad, say, spread
from crewboard_tui.widgets.alert_bar import NEED_LOOKS
from crewboard_tui.widgets.line_list import Row

_FREES_FROM = 50
"""Cells of a line below which the summary needs all of it."""

_WORD_FROM = 60
"""Cells from which there is room for the word beside the number."""


def need_key(need: Need) -> str:
    """What names a need from one reading to the next."""
    return f"{need.kind}:{need.agent}:{need.request_id or ''}"


def find_need(view: TeamView, key: str | None) -> Need | None:
    """The need called `key`, if it is still there."""
    return next((need for need in view.needs if need_key(need) == key), None)


def need_rows(view: TeamView, now: float, width: int, wanted: str = "") -> list[Row]:
    """Every need that passes the filter."""
    shown = [need for need in view.needs if matches(f"{need.agent} {need.kind} {need.summary}", wanted)]
    word = "frees " if width >= _WORD_FROM else ""
    frees = [_frees(view, need, word) if width >= _FREES_FROM else "" for need in shown]
    longest = max(map(len, frees), default=0)
    return [
        Row(need_key(need), _need_line(need, pad(what, longest), now, width))
        for need, what in zip(shown, frees, strict=True)
    ]


def _need_line(need: Need, frees: str, now: float, width: int) -> Line:
    look = NEED_LOOKS[need.kind]
    right = (
        Span(pad(formats.long_age(now - need.since), 7, "right")),
        Span(f"  {frees}" if frees else "", "dim"),
    )
    left = (Span(f"{look.glyph} ", look.tone), Span(pad(need.agent, 11) + " ", "bold"), say(need.summary))
    return spread(left, right, width)


def _frees(view: TeamView, need: Need, word: str) -> str:
    """What goes on once it is answered, behind `word`: `frees #14`, `frees 2 tasks`."""
    tasks = tasks_blocked_by(view, need)
    return f"{word}#{tasks[0].id}" if len(tasks) == 1 else f"{word}{len(tasks)} tasks" if tasks else ""


def held_by(view: TeamView, need: Need) -> str:
    """The tasks that it holds up, by number and subject."""
    return ", ".join(f"#{task.id} {task.subject}" for task in tasks_blocked_by(view, need))
