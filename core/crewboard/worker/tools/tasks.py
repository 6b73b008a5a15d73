"""Tools for the task board."""

from typing import Literal

from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records import Task
from crewboard.store import tasks
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome


class Nothing(Input):
    pass


class TaskClaim(Input):
    task_id: int


class TaskUpdate(Input):
    task_id: int
    status: Literal["pending", "in_progress", "completed", "failed", "cancelled"]


def describe(task: Task, board: dict[int, Task]) -> str:
    """A task in one line."""
    owner = f", {task.owner}" if task.owner else ""
    kind = f", for type {task.required_type}" if task.required_type else ""
    blockers = tasks.blockers(task, board) if task.status == "pending" else []
    blocked = f", blocked by {', '.join(map(str, blockers))}" if blockers else ""
    return f"#{task.id} {task.subject} ({task.status}{owner}{kind}{blocked})"


async def _task_list(context: Context, given: Nothing) -> Outcome:  # noqa: ARG001  it takes nothing
    board = {task.id: task for task in tasks.load_all(context.run_state.agent.team)}
    return Outcome("\n".join(describe(task, board) for task in board.values()) or "no tasks")


async def _task_claim(context: Context, given: TaskClaim) -> Outcome:
    run_state = context.run_state
    try:
        task = tasks.claim(run_state.agent.team, given.task_id, context.name, run_state.spec.type, run_state.now())
    except (UsageError, TryLaterError, BadDataError) as error:
        return Outcome(str(error), is_error=True)
    run_state.task = task.id
    body = f"\n{task.description}" if task.description else ""
    return Outcome(f"task {task.id} is yours: {task.subject}{body}")


async def _task_update(context: Context, given: TaskUpdate) -> Outcome:
    if given.status == "in_progress":
        return await _task_claim(context, TaskClaim(task_id=given.task_id))
    run_state = context.run_state
    try:
        task = tasks.update(run_state.agent.team, given.task_id, context.name, run_state.now(), status=given.status)
    except (UsageError, TryLaterError, BadDataError) as error:
        return Outcome(str(error), is_error=True)
    own = tasks.in_progress(run_state.agent.team, context.name)
    run_state.task = own.id if own else None
    return Outcome(f"task {task.id} is {task.status.replace('_', ' ')}")


TASK_LIST: Tool[Nothing] = Tool("task_list", "See the task board.", Nothing, _task_list)
TASK_CLAIM: Tool[TaskClaim] = Tool(
    "task_claim",
    "Take a pending task. One task at a time can be in progress.",
    TaskClaim,
    _task_claim,
    repeatable=True,
)
TASK_UPDATE: Tool[TaskUpdate] = Tool(
    "task_update",
    "Say what became of your task: completed, failed, or pending to give it back.",
    TaskUpdate,
    _task_update,
)

TOOLS = (TASK_LIST, TASK_CLAIM, TASK_UPDATE)
