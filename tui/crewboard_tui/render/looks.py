"""Glyph, word and colour of each state of an agent or a task (docs/reference/dashboard.md#states)."""

from dataclasses import dataclass

from crewboard.readmodel.team import AgentView, Shown
from crewboard.records import Task


@dataclass(frozen=True)
class Look:
    """How a state is shown; `tone` is a list of style names."""

    glyph: str
    ascii: str
    tone: str
    word: str


LOOKS: dict[Shown, Look] = {
    "dead": Look("✖", "X", "error bold", "dead"),
    "ask": Look("▲", "A", "warning bold", "ask"),
    "stuck": Look("◆", "!", "warning", "stuck"),
    "loop": Look("↻", "L", "accent", "loop"),
    "run": Look("●", ">", "success", "run"),
    "wait": Look("◐", "w", "info", "wait"),
    "pause": Look("‖", "P", "info dim", "pause"),
    "idle": Look("○", ".", "dim", "idle"),
    "done": Look("■", "=", "dim", "done"),
    "start": Look("◔", "~", "info", "start"),
    "unknown": Look("?", "?", "dim italic", "unknown"),
}

SEEN_DEATH = Look("✖", "X", "dim", "died")
"""A crash that was acknowledged: it needs no action, but was not an orderly exit."""

URGENT: tuple[Shown, ...] = ("ask", "dead", "stuck", "loop")
"""States that need the user, in the order of the status bar."""

TASK_LOOKS: dict[str, Look] = {
    "in_progress": Look("●", ">", "success", "in progress"),
    "pending": Look("○", ".", "", "pending"),
    "blocked": Look("◌", "b", "dim", "blocked"),
    "orphaned": Look("✖", "X", "error", "orphaned"),
    "completed": Look("■", "=", "dim", "completed"),
    "failed": Look("✖", "X", "error", "failed"),
    "cancelled": Look("–", "-", "dim", "cancelled"),
}


def look_of(agent: AgentView) -> Look:
    """Return how an agent is shown."""
    died = agent.shown == "done" and agent.is_dead
    return SEEN_DEATH if died else LOOKS[agent.shown]


def task_look(task: Task, blocked_by: list[int]) -> Look:
    """Return how a task is shown; `blocked_by` are the open tasks that block it."""
    if task.status != "pending":
        return TASK_LOOKS[task.status]
    if task.last_owner and not task.owner:
        return TASK_LOOKS["orphaned"]
    return TASK_LOOKS["blocked" if blocked_by else "pending"]
