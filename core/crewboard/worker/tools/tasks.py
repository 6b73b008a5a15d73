"""Tools for the task board."""

from typing import Literal

from crewboard.records import Task
from crewboard.store import tasks
from crewboard.worker.tools.base import Context, Input, NoInput, Tool
from crewboard.worker.tools.outcome import Outcome


class TaskClaim(Input):
    task_id: int


class TaskUpdate(Input):
    task_id: int
    status: Literal["pending", "in_progress", "completed", "failed", "cancelled"]


def describe(task: Task, board: dict[int, Task]) -> str:
    """Return a task as one line."""
    owner = f", {task.owner}" if task.owner else ""
    kind = f", for type {task.required_type}" if task.required_type else ""
    blockers = tasks.blockers(task, board) if task.status == "pending" else []
    blocked = f", blocked by {', '.join(map(str, blockers))}" if blockers else ""
    return f"#{task.id} {task.subject} ({task.status}{owner}{kind}{blocked})"


async def _task_list(context: Context, given: NoInput) -> Outcome:  # noqa: ARG001  no input
    board = {task.id: task for task in tasks.load_all(context.team)}
    return Outcome("\n".join(describe(task, board) for task in board.values()) or "no tasks")


async def _task_claim(context: Context, given: TaskClaim) -> Outcome:
    task = tasks.claim(context.team, given.task_id, context.name, context.run_state.spec.type, context.now())
    context.run_state.set_task(task)
    body = f"\n{task.description}" if task.description else ""
    return Outcome(f"task {task.id} is yours: {task.subject}{body}")


async def _task_update(context: Context, given: TaskUpdate) -> Outcome:
    if given.status == "in_progress":
        return await _task_claim(context, TaskClaim(task_id=given.task_id))
    task = tasks.update(context.team, given.task_id, context.name, context.now(), status=given.status)
    context.run_state.set_task(tasks.in_progress(context.team, context.name))
    return Outcome(f"task {task.id} is {task.status.replace('_', ' ')}")


TASK_LIST: Tool[NoInput] = Tool("task_list", "List the tasks on the board.", NoInput, _task_list)
TASK_CLAIM: Tool[TaskClaim] = Tool(
    "task_claim",
    "Take a pending task. You can have one task in progress at a time.",
    TaskClaim,
    _task_claim,
    repeatable=True,
)
TASK_UPDATE: Tool[TaskUpdate] = Tool(
    "task_update",
    "Report the outcome of your task: completed, failed, or pending to give it back.",
    TaskUpdate,
    _task_update,
)

TOOLS = (TASK_LIST, TASK_CLAIM, TASK_UPDATE)
