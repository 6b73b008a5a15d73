"""The task board, as the operator or the lead changes it."""

from crewboard import own_types
from crewboard.errors import UsageError
from crewboard.records import Task, TaskStatus
from crewboard.store import tasks
from crewboard.team.context import Team
from crewboard.team.mail import post


def add_task(
    team: Team,
    subject: str,
    *,
    description: str = "",
    owner: str | None = None,
    blocked_by: list[int] | None = None,
    required_type: str | None = None,
) -> Task:
    """Put a task on the board; with an owner, tell them. Makes the team if it is not there yet.

    Raises:
        UsageError: No subject, no such owner, no such type, or no such task to be blocked by.
    """
    if not subject.strip():
        raise UsageError("a task needs a subject")
    if owner is not None:
        team.member(owner)
    if required_type is not None:
        own_types.find(team.directory.root, required_type)
    team.ensure()
    task = tasks.add(
        team.directory, subject, team.now(),
        description=description, owner=owner, blocked_by=blocked_by, required_type=required_type,
    )  # fmt: skip
    if owner is not None:
        _tell_owner(team, task, owner)
    return task


def update_task(team: Team, task_id: int, *, status: TaskStatus | None = None, owner: str | None = None) -> Task:
    """Change a task; a new owner is told.

    Raises:
        UsageError: No such task or owner, or it is not for `by` to change.
    """
    if owner is not None:
        team.member(owner)
    before = tasks.load(team.directory, task_id)
    task = tasks.update(team.directory, task_id, team.by, team.now(), status=status, owner=owner)
    if owner is not None and owner != before.owner:
        _tell_owner(team, task, owner)
    return task


def block_task(team: Team, task_id: int, blocked_by: list[int]) -> Task:
    """Say which tasks must be completed before this one may be claimed; an empty list lifts the block.

    Raises:
        UsageError: No such task, it does not wait any more, or the blockers cannot be.
    """
    return tasks.block(team.directory, task_id, blocked_by, team.now())


def _tell_owner(team: Team, task: Task, owner: str) -> None:
    body = f"Task {task.id}: {task.subject}" + (f"\n\n{task.description}" if task.description else "")
    post(team, owner, "task_assignment", body, task_id=task.id)


def assign_silently(team: Team, task_id: int, owner: str) -> None:
    """Give a task to an agent whose prompt speaks of it already."""
    tasks.update(team.directory, task_id, team.by, team.now(), owner=owner)
