"""The rows of Needs-you, the most urgent first, with reason and age."""

from crewboard.readmodel.needs import tasks_blocked_by
from crewboard.readmodel.team import Need, TeamView
from crewboard_tui.actions.filters import matches
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, pad, say, spread
from crewboard_tui.widgets.alert_bar import NEED_LOOKS
from crewboard_tui.widgets.line_list import Row

_FREES_FROM = 50
"""Below this width the summary takes the whole line."""

_WORD_FROM = 60
"""From this width the word is shown before the number."""


def need_key(need: Need) -> str:
    """Return the key of a need, the same in every reading."""
    return f"{need.kind}:{need.agent}:{need.request_id or ''}"


def find_need(view: TeamView, key: str | None) -> Need | None:
    """Return the need with this key, if it still exists."""
    return next((need for need in view.needs if need_key(need) == key), None)


def need_rows(view: TeamView, now: float, width: int, wanted: str = "") -> list[Row]:
    """Return a row for every need that matches the filter."""
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
    """Return the tasks that an answer unblocks, after `word`: `frees #14`, `frees 2 tasks`."""
    tasks = tasks_blocked_by(view, need)
    return f"{word}#{tasks[0].id}" if len(tasks) == 1 else f"{word}{len(tasks)} tasks" if tasks else ""


def held_by(view: TeamView, need: Need) -> str:
    """Return the tasks that a need blocks, by number and subject."""
    return ", ".join(f"#{task.id} {task.subject}" for task in tasks_blocked_by(view, need))
