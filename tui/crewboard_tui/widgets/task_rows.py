"""The task board as lines: what is open first, and why what waits cannot be taken."""

from collections.abc import Sequence

from crewboard.records import Task
from crewboard.store.tasks import CLOSED
from crewboard.view.fold import AgentView, TeamView
from crewboard.view.reader import blocked
from crewboard_tui import fmt
from crewboard_tui.filters import matches_task
from crewboard_tui.lines import Line, Span, pad, say, spread
from crewboard_tui.states import LOOKS, task_look
from crewboard_tui.widgets.rows import Row

_ORDER = {"in_progress": 0, "pending": 1, "failed": 2, "completed": 3, "cancelled": 4}


def task_rows(view: TeamView, now: float, width: int, wanted: str = "") -> list[Row]:
    """Every task that passes the filter, what is at work first, closed ones last."""
    shown = [task for task in view.tasks if matches_task(task, wanted)]
    shown.sort(key=lambda task: (_ORDER[task.status], -task.updated_at if task.status in CLOSED else task.id))
    return [Row(str(task.id), task_line(task, view, now, width)) for task in shown]


def task_line(task: Task, view: TeamView, now: float, width: int) -> Line:
    """One task: state, number, subject, and who has it or what it waits for."""
    waiting = blocked(task, view.tasks) if task.status == "pending" else []
    look = task_look(task, waiting)
    closed = task.status in CLOSED
    left = (
        Span(f"{look.glyph} ", look.tone),
        Span(pad(f"#{task.id}", 4) + " ", "dim"),
        say(task.subject, "dim" if closed else ""),
    )
    return spread(left, (Span("  "), *_whose(task, view, waiting, now)), width)


def _whose(task: Task, view: TeamView, waiting: Sequence[int], now: float) -> Line:
    if task.status in CLOSED:
        by = task.owner or task.last_owner
        return (Span(f"{task.status}{f' by {by}' if by else ''}", "error" if task.status == "failed" else "dim"),)
    if task.status == "pending" and task.last_owner and not task.owner:
        return (Span(f"orphaned by {task.last_owner}", "error"),)
    parts: list[Span] = []
    if waiting:
        parts.append(Span(f"after {' '.join(f'#{other}' for other in waiting)} ", "dim"))
    if task.required_type:
        parts.append(Span(f"for {task.required_type} ", "dim"))
    if task.owner is None:
        return (*parts, Span("unassigned", "dim"))
    owner = view.agent(task.owner)
    age = f" {fmt.age(now - task.updated_at)}" if task.status == "in_progress" else ""
    return (*parts, Span(task.owner), *_plight(owner), Span(age, "dim"))


def _plight(owner: AgentView | None) -> Line:
    """What the owner's state means for the task, if it is not simply at work."""
    if owner is None:
        return (Span(" (gone)", "error"),)
    look = LOOKS[owner.shown]
    return (Span(f" {look.glyph} {look.word}", look.tone),) if owner.shown not in ("run", "idle") else ()


def task_detail(task: Task, view: TeamView, now: float) -> list[tuple[str, str]]:
    """Everything of a task as names and values."""
    waiting = blocked(task, view.tasks)
    facts = [
        ("task", f"#{task.id} {task.subject}"),
        ("status", task_look(task, waiting if task.status == "pending" else []).word),
        ("owner", task.owner or (f"nobody; {task.last_owner} had it" if task.last_owner else "nobody")),
        ("blocked by", ", ".join(f"#{other}" for other in waiting)),
        ("only for", task.required_type or ""),
        ("created", f"{fmt.clock(task.created_at)}, {fmt.age(now - task.created_at)} ago"),
        ("changed", f"{fmt.clock(task.updated_at)}, {fmt.age(now - task.updated_at)} ago"),
        ("", ""),
        ("", task.description),
    ]
    return [(name, value) for name, value in facts if value or not name]
