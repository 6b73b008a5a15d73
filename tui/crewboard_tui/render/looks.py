"""Shape, word and colour of each state of an agent or a task (docs/reference/dashboard.md#states)."""

from dataclasses import dataclass

from crewboard.readmodel.states import Shown
from crewboard.readmodel.team import AgentView
from crewboard.records import Task


@dataclass(frozen=True)
class Look:
    """How something is shown: `tone` names words of the style table."""

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
"""A death that was acknowledged: it asks for nothing any more, and is no orderly end all the same."""

URGENT: tuple[Shown, ...] = ("ask", "dead", "stuck", "loop")
"""What somebody must look at, in the order of the counter strip."""

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
    """How an agent is shown."""
    died = agent.shown == "done" and agent.is_dead
    return SEEN_DEATH if died else LOOKS[agent.shown]


def task_look(task: Task, blocked_by: list[int]) -> Look:
    """How a task is shown; `blocked_by` are the tasks that still stand in its way."""
    if task.status != "pending":
        return TASK_LOOKS[task.status]
    if task.last_owner and not task.owner:
        return TASK_LOOKS["orphaned"]
    return TASK_LOOKS["blocked" if blocked_by else "pending"]
