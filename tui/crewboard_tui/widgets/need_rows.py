"""What waits for the operator as lines, the most urgent first, with why and since when."""

from crewboard.view.autopsy import freed_by
from crewboard.view.fold import Need, TeamView
from crewboard_tui import fmt
from crewboard_tui.filters import matches
from crewboard_tui.lines import Line, Span, pad, say, spread
from crewboard_tui.widgets.alert import NEED_LOOKS
from crewboard_tui.widgets.rows import Row


def need_key(need: Need) -> str:
    """What names a need from one reading to the next."""
    return f"{need.kind}:{need.agent}:{need.request_id or ''}"


def find_need(view: TeamView, key: str | None) -> Need | None:
    """The need called `key`, if it is still there."""
    return next((need for need in view.needs if need_key(need) == key), None)


def need_rows(view: TeamView, now: float, width: int, wanted: str = "") -> list[Row]:
    """Every need that passes the filter."""
    shown = [need for need in view.needs if matches(f"{need.agent} {need.kind} {need.summary}", wanted)]
    return [Row(need_key(need), _need_line(need, view, now, width)) for need in shown]


def _need_line(need: Need, view: TeamView, now: float, width: int) -> Line:
    look = NEED_LOOKS[need.kind]
    frees = frees_of(view, need)
    right = (
        Span(f"  {frees}" if frees and width >= 60 else "", "dim"),  # noqa: PLR2004  below, the summary needs it
        Span(pad(fmt.long_age(now - need.since), 7, "right")),
    )
    left = (Span(f"{look.glyph} ", look.tone), Span(pad(need.agent, 11) + " ", "bold"), say(need.summary))
    return spread(left, right, width)


def frees_of(view: TeamView, need: Need) -> str:
    """What goes on once it is answered: the task that is held up, and those behind it."""
    agent = view.agent(need.agent)
    if need.kind == "death":
        return " ".join(f"#{task.id} unowned" for task in freed_by(view, need.agent))
    if agent is None or agent.task is None:
        return ""
    behind = [task.id for task in view.tasks if agent.task in task.blocked_by and task.status == "pending"]
    return f"holds #{agent.task}" + (f" and {', '.join(f'#{ident}' for ident in behind)}" if behind else "")
