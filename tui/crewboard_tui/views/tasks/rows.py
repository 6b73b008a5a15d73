"""The task board as rows: open tasks first, with the reason why a task waits."""

from collections import Counter
from collections.abc import Sequence

from crewboard.readmodel.activity import why_failed
from crewboard.readmodel.reader import blocked
from crewboard.readmodel.team import AgentView, TeamView
from crewboard.records import Task, describe_exit
from crewboard.store.tasks import CLOSED, terminal_state
from crewboard_tui.actions.filters import matches_task
from crewboard_tui.queries import Snapshot, WorkOf
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, clip, one_line, pad, say, spread
from crewboard_tui.render.looks import TASK_LOOKS, Look, look_of, task_look
from crewboard_tui.widgets.line_list import Row

_ORDER = {"in_progress": 0, "pending": 1, "failed": 2, "completed": 3, "cancelled": 4}

_UNOWNED = "unassigned"

_MOST_OF_WHY = 400
"""Characters of a failure reason that are shown; the owner's Transcript has the full text."""

_WHY_FROM = 60
"""From this width a row also shows how the last owner ended and the state of blockers."""


def tally(tasks: Sequence[Task], word: str = "") -> str:
    """Return how many tasks are completed of those not cancelled, and how many failed: `5/7 ✖1`."""
    count = Counter(task.status for task in tasks)
    if count.total() == count["cancelled"]:
        return ""
    done = f"{count['completed']}/{count.total() - count['cancelled']}{word}"
    failed = f" {TASK_LOOKS['failed'].glyph}{count['failed']}"
    return done + failed if count["failed"] else done


def task_rows(view: TeamView, now: float, width: int, wanted: str = "") -> list[Row]:
    """Return every task that matches the filter: in progress first, closed last."""
    shown = [task for task in view.tasks if matches_task(task, wanted)]
    shown.sort(key=lambda task: (_ORDER[task.status], -task.updated_at if task.status in CLOSED else task.id))
    return [Row(str(task.id), task_line(task, view, now, width)) for task in shown]


def task_line(task: Task, view: TeamView, now: float, width: int) -> Line:
    """Return one task: state, number, subject, owner or blockers, and the reason if there is space."""
    waiting = blocked(task, view.tasks) if task.status == "pending" else []
    look = task_look(task, waiting)
    closed = task.status in CLOSED
    left = (
        Span(f"{look.glyph} ", look.tone),
        Span(pad(f"#{task.id}", 4) + " ", "dim"),
        say(task.subject, "dim" if closed else ""),
    )
    return spread(left, (Span("  "), *_whose(task, view, waiting, now, why=width >= _WHY_FROM)), width)


def is_orphan(task: Task) -> bool:
    """Return True if the task went back to the board because its owner ended."""
    return task.status == "pending" and bool(task.last_owner) and not task.owner


def _whose(task: Task, view: TeamView, waiting: Sequence[int], now: float, *, why: bool) -> Line:
    if task.status in CLOSED:
        by = task.owner or task.last_owner
        # The record does not say whether the operator or the lead cancelled it.
        words = "" if by is None else f", was {by}'s" if task.status == "cancelled" else f" by {by}"
        return (Span(f"{task.status}{words}", "error" if task.status == "failed" else "dim"),)
    if is_orphan(task):
        return (say(_orphaned(task, view) if why else _orphaned(task), "error"),)
    parts = _blockers(view, waiting) if why else [Span(f"#{other} ", "dim") for other in waiting]
    if waiting:
        hopeless = why and _is_hopeless(view, waiting)
        parts.insert(0, Span("cannot start: ", "error") if hopeless else Span("after ", "dim"))
    if task.required_type:
        parts.append(Span(f"for {task.required_type} ", "dim"))
    if task.owner is None:
        return (*parts, Span(_UNOWNED, "dim"))
    owner = view.agent(task.owner)
    age = f" {formats.age(now - task.updated_at)}" if task.status == "in_progress" else ""
    return (*parts, Span(task.owner), *_owner_state(owner), Span(age, "dim"))


def _orphaned(task: Task, view: TeamView | None = None) -> str:
    """Return the last owner of an orphaned task and, given `view`, how it ended."""
    words = f"{TASK_LOOKS['orphaned'].word} by {task.last_owner}"
    return words if view is None else f"{words}, {_end_of(task, view)}"


def _end_of(task: Task, view: TeamView) -> str:
    """Return how the last owner of an orphaned task ended."""
    agent = view.agent(task.last_owner) if task.last_owner else None
    if agent is None:
        return "who is gone"
    if agent.alive:
        return "who lives again"
    return describe_exit(agent.exit) if agent.exit is not None else agent.reason


def _blockers(view: TeamView, waiting: Sequence[int]) -> list[Span]:
    """Return each blocker with the glyph of its state, and a word if it cannot complete without help."""
    spans: list[Span] = []
    for other in waiting:
        task = _find(view, other)
        spans.append(Span(f"#{other} ", "dim"))
        if task is None:
            spans.append(Span("gone ", "error"))
            continue
        look = _look(task, view)
        spans.append(Span(f"{look.word if task.status in CLOSED else look.glyph} ", look.tone))
    return spans


def _is_hopeless(view: TeamView, waiting: Sequence[int]) -> bool:
    """Return True if a blocker cannot complete without help."""
    board = {task.id: task for task in view.tasks}
    return any(terminal_state(other, board) for other in waiting)


def _find(view: TeamView, ident: int) -> Task | None:
    return next((task for task in view.tasks if task.id == ident), None)


def _look(task: Task, view: TeamView) -> Look:
    return task_look(task, blocked(task, view.tasks) if task.status == "pending" else [])


def _owner_state(owner: AgentView | None) -> Line:
    """Return what the owner's state means for the task, unless it is working."""
    if owner is None:
        return (Span(" (gone)", "error"),)
    look = look_of(owner)
    return (Span(f" {look.glyph} {look.word}", look.tone),) if owner.shown not in ("run", "idle") else ()


def task_detail(task: Task, snapshot: Snapshot, now: float) -> list[tuple[str, str]]:
    """Return all fields of a task as names and values."""
    view = snapshot.view
    waiting = blocked(task, view.tasks)
    unowned = f"{_UNOWNED}; {_orphaned(task, view)}" if is_orphan(task) else _UNOWNED
    facts = [
        ("task", f"#{task.id} {task.subject}"),
        ("status", _look(task, view).word),
        ("why", _why(task, snapshot) if task.status == "failed" else ""),
        ("owner", task.owner or unowned),
        ("blocked by", "\n".join(_how_it_stands(view, other) for other in waiting)),
        ("only for", task.required_type or ""),
        ("created", f"{formats.clock(task.created_at)}, {formats.age(now - task.created_at)} ago"),
        ("changed", f"{formats.clock(task.updated_at)}, {formats.age(now - task.updated_at)} ago"),
        ("", ""),
        ("", task.description),
    ]
    return [(name, value) for name, value in facts if value or not name]


def _why(task: Task, snapshot: Snapshot) -> str:
    """Return why a task failed, in its owner's words."""
    if task.owner is None or snapshot.view.agent(task.owner) is None:
        return "nothing here says why"
    work = snapshot.get(WorkOf(task.owner))
    if work is None:
        return ""  # not read yet
    said = why_failed(task, work.activity)
    return clip(one_line(said), _MOST_OF_WHY) if said else f"the journal of {task.owner} does not say"


def _how_it_stands(view: TeamView, ident: int) -> str:
    """Describe a blocker: task, state, owner."""
    task = _find(view, ident)
    if task is None:
        return f"#{ident}, which is not on the board"
    plight = "".join(span.text for span in _owner_state(view.agent(task.owner))) if task.owner else ""
    owner = f", {task.owner}{plight}" if task.owner else ""
    return f"#{ident} {task.subject}: {_look(task, view).word}{owner}"
