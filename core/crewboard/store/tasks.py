"""The task board: one file a task, ids never reused, one task in progress for each owner."""

import re
from collections.abc import Callable

from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.names import LEAD, OPERATOR
from crewboard.records import Task, TaskStatus
from crewboard.store import files, json_files
from crewboard.store.json_files import folder
from crewboard.store.layout import TeamDirectory

CLOSED = frozenset({"completed", "failed", "cancelled"})
"""What a task does not come back from by itself."""

_LOCK = "tasks"
_FILE_NAME = re.compile(r"[1-9][0-9]{0,8}\.json")


def load(team: TeamDirectory, task_id: int) -> Task:
    """The task with this id.

    Raises:
        UsageError: There is none.
        BadDataError: Its file is damaged.
    """
    path = team.task(task_id)
    task = json_files.load(path, Task)
    if task is None:
        raise UsageError(f"there is no task {task_id}")
    if task.id != task_id:
        raise BadDataError(f"{path} is damaged: it says that it is task {task.id}")
    return task


def ids(team: TeamDirectory) -> list[int]:
    """The ids of all tasks, in order."""
    return sorted(int(path.stem) for path in team.tasks.glob("*.json") if _FILE_NAME.fullmatch(path.name))


def load_all(team: TeamDirectory) -> list[Task]:
    """Every task that can be read, in the order of ids."""
    found = folder(team.tasks, Task).sound()
    return sorted((task for name, task in found.items() if name == f"{task.id}.json"), key=lambda task: task.id)


def add(
    team: TeamDirectory,
    subject: str,
    now: float,
    *,
    description: str = "",
    owner: str | None = None,
    blocked_by: list[int] | None = None,
    required_type: str | None = None,
) -> Task:
    """Put a new task on the board.

    Raises:
        UsageError: No subject, or blocked by a task that does not exist.
    """
    if not subject.strip():
        raise UsageError("a task needs a subject")
    blockers = blocked_by or []
    with files.locked(team.lock(_LOCK)):
        taken = ids(team)
        if missing := [blocker for blocker in blockers if blocker not in taken]:
            raise UsageError(f"blocked by {missing[0]}, and there is no task {missing[0]}")
        task = Task(
            id=max([_last_id(team), *taken]) + 1,
            subject=subject,
            description=description,
            owner=owner,
            blocked_by=blockers,
            required_type=required_type,
            created_at=now,
            updated_at=now,
        )
        files.replace_file(team.last_task_id, str(task.id).encode())
        json_files.save(team.task(task.id), task)
        return task


def _last_id(team: TeamDirectory) -> int:
    """The highest id ever given, so that no id comes back after its file was taken away."""
    data = files.read_file(team.last_task_id)
    return int(data) if data and data.isdigit() else 0


def blockers(task: Task, tasks: dict[int, Task]) -> list[int]:
    """The ids among `task.blocked_by` that still stand in its way."""
    return [other for other in task.blocked_by if other not in tasks or tasks[other].status != "completed"]


def terminal_state(task_id: int, tasks: dict[int, Task]) -> str | None:
    """`failed`, `cancelled` or `gone`, of a task that is not completed any more by itself; None of any other."""
    task = tasks.get(task_id)
    if task is None:
        return "gone"
    return task.status if task.status in ("failed", "cancelled") else None


def claim(team: TeamDirectory, task_id: int, name: str, agent_type: str, now: float) -> Task:
    """Take a task for `name`; claiming what one already has in progress changes nothing.

    Raises:
        UsageError: It is closed, somebody else's, blocked, or for another type.
        TryLaterError: `name` has another task in progress.
    """
    with files.locked(team.lock(_LOCK)):
        tasks = {task.id: task for task in load_all(team)}
        task = load(team, task_id)
        if task.owner == name and task.status == "in_progress":
            return task
        _check_claim(task, tasks, name, agent_type)
        return _save(team, task, now, status="in_progress", owner=name)


def _check_claim(task: Task, tasks: dict[int, Task], name: str, agent_type: str) -> None:
    if task.status != "pending":
        raise UsageError(
            f"task {task.id} is {task.status.replace('_', ' ')}" + (f" by {task.owner}" if task.owner else "")
        )
    if task.owner not in (None, name):
        raise UsageError(f"task {task.id} is assigned to {task.owner}")
    check_type(f"task {task.id}", task.required_type, name, agent_type)
    if waiting := blockers(task, tasks):
        raise UsageError(f"task {task.id} is blocked by {', '.join(map(str, waiting))}")
    for other in tasks.values():
        if other.owner == name and other.status == "in_progress":
            raise TryLaterError(f"{name} has task {other.id} in progress; finish it first")


def check_type(what: str, required_type: str | None, name: str, agent_type: str) -> None:
    """Whether `name` may ever have a task, which `what` names in words.

    Raises:
        UsageError: It is for another type.
    """
    if required_type not in (None, agent_type):
        raise UsageError(f"{what} is for an agent of type {required_type}; {name} is of type {agent_type}")


def update(
    team: TeamDirectory,
    task_id: int,
    by: str,
    now: float,
    *,
    status: TaskStatus | None = None,
    owner: str | None = None,
) -> Task:
    """Change a task's status or owner. Only its owner, the lead or the operator may.

    A task that was begun or closed and becomes pending goes back to the board, for anybody to claim.

    Raises:
        UsageError: `by` may not, or another task of the owner's is in progress.
    """
    with files.locked(team.lock(_LOCK)):
        task = load(team, task_id)
        if by not in (OPERATOR, LEAD, task.owner):
            raise UsageError(f"task {task_id} is not {by}'s: only its owner, the lead or the operator may change it")
        changed = task.model_copy(update={"owner": owner or task.owner, "status": status or task.status})
        if status == "pending" and owner is None and task.status != "pending":
            changed.owner = changed.last_owner = None  # it was given back, not lost: nobody comes first
        if owner and owner != task.owner and status is None and task.status == "in_progress":
            changed.status = "pending"
        if changed.status == "in_progress" and changed.owner is None:
            raise UsageError(f"task {task_id} has no owner; a task in progress needs one")
        if changed.status == "in_progress":
            _check_only_one(team, changed)
        return _save(team, changed, now)


def _check_only_one(team: TeamDirectory, task: Task) -> None:
    for other in load_all(team):
        if other.id != task.id and other.owner == task.owner and other.status == "in_progress":
            raise TryLaterError(f"{task.owner} has task {other.id} in progress; one at a time")


def block(team: TeamDirectory, task_id: int, blocked_by: list[int], now: float) -> Task:
    """Say which tasks must be completed before this one may be claimed; an empty list lifts the block.

    Raises:
        UsageError: It does not wait any more, a blocker does not exist, or they would wait for each other.
    """
    with files.locked(team.lock(_LOCK)):
        task = load(team, task_id)
        if task.status != "pending":
            raise UsageError(f"task {task_id} is {task.status.replace('_', ' ')}; only an open one can be blocked")
        check_blockers(task_id, blocked_by, {each.id: each for each in load_all(team)})
        return _save(team, task, now, blocked_by=list(dict.fromkeys(blocked_by)))


def check_blockers(task_id: int, blocked_by: list[int], tasks: dict[int, Task]) -> None:
    """Whether a task can wait for these, as `tasks` stand, by their numbers.

    Raises:
        UsageError: A blocker does not exist, or they would wait for each other.
    """
    for blocker in blocked_by:
        if blocker == task_id:
            raise UsageError(f"task {task_id} cannot wait for itself")
        if blocker not in tasks:
            raise UsageError(f"blocked by {blocker}, and there is no task {blocker}")
        if task_id in _all_blockers(blocker, tasks):
            raise UsageError(f"task {blocker} waits for task {task_id} already; both would wait for ever")


def _all_blockers(task_id: int, tasks: dict[int, Task]) -> set[int]:
    """What a task waits for, directly or through others; a circle in the files ends the walk."""
    found: set[int] = set()
    ahead = [task_id]
    while ahead:
        task = tasks.get(ahead.pop())
        fresh = set(task.blocked_by) - found if task is not None else set()
        found |= fresh
        ahead += fresh
    return found


def give_back(team: TeamDirectory, name: str, now: float) -> list[Task]:
    """Return what `name` had in progress to the board; it stays the preferred owner."""
    with files.locked(team.lock(_LOCK)):
        return [
            _save(team, task, now, status="pending", owner=None, last_owner=name)
            for task in load_all(team)
            if task.owner == name and task.status == "in_progress"
        ]


def in_progress(team: TeamDirectory, name: str) -> Task | None:
    """The task that `name` has in progress."""
    return _first(team, lambda task: task.owner == name and task.status == "in_progress")


def _first(team: TeamDirectory, wanted: Callable[[Task], bool]) -> Task | None:
    return next((task for task in load_all(team) if wanted(task)), None)


def _save(team: TeamDirectory, task: Task, now: float, **changes: object) -> Task:
    saved = task.model_copy(update={**changes, "updated_at": now, "rev": task.rev + 1})
    json_files.save(team.task(task.id), saved)
    return saved
