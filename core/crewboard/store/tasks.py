"""The task board: one record per task, ids that are never reused, at most one task in progress per owner."""

import re
from typing import TypedDict, Unpack

from msgspec import Struct

from crewboard.errors import StorageError, TryLaterError, UsageError
from crewboard.names import LEAD, OPERATOR
from crewboard.records.team import Checked, Reviewed, Shown, Task, TaskStatus
from crewboard.store import roster
from crewboard.store.json_records import cached_folder
from crewboard.store.layout import TeamDirectory, under_lock

CLOSED = frozenset({"completed", "failed", "cancelled"})
"""Statuses that a task leaves only if it is reopened."""

MAX_PRIORITY = 99
"""The highest priority of a task; the lowest is the same number below zero."""

NO_CHECK, TEAM_CHECK = "none", "default"
"""Texts in place of a check's command: the task needs no check, or has the team's."""

_LOCK = "tasks"

NO_REVIEW = "none"
"""The text in place of a reviewer: the task needs no review."""


class TaskDraft(TypedDict, total=False):
    """The fields of a new task other than its subject; one that is left out has the default of `Task`.

    `check` is a command, or `NO_CHECK`; without it the team's check counts. `review` is the agent or the operator that
    must approve the work; it may not be the owner.
    """

    description: str
    priority: int
    owner: str | None
    blocked_by: list[int]
    required_type: str | None
    check: str | None
    review: str | None


class TaskEdit(TypedDict, total=False):
    """The changes of a task; a field that is left out, or None, stays as it is.

    `check` is a command, `NO_CHECK` or `TEAM_CHECK`; `review` is an agent, the operator, or `NO_REVIEW`. Only the
    operator may change these two.
    """

    status: TaskStatus | None
    owner: str | None
    blocked_by: list[int] | None
    subject: str | None
    description: str | None
    priority: int | None
    check: str | None
    review: str | None


class Check(Struct, frozen=True):
    """A command that must pass before a task is completed, and who set it."""

    command: str
    by: str


def stored_check(text: str) -> str | None:
    """Return the value of `Task.check` for a command; None for `TEAM_CHECK`, empty for `NO_CHECK`.

    Raises:
        UsageError: The command is empty.
    """
    if not text.strip():
        raise UsageError(f"a check is a command, or `{NO_CHECK}`")
    return None if text == TEAM_CHECK else "" if text == NO_CHECK else text


def check_of(team: TeamDirectory, task: Task | None) -> Check | None:
    """Return the check of a task, or of the team if there is no task; None if nothing is checked.

    A check that the operator set counts first: for the task, then for the team. A lead's check counts if neither is
    set.
    """
    if task is not None and task.check is not None and task.check_by == OPERATOR:
        return Check(task.check, OPERATOR) if task.check else None
    command = roster.load(team).check
    if command:
        return Check(command, OPERATOR)
    return Check(task.check, task.check_by) if task is not None and task.check else None


_FILE_NAME = re.compile(r"[1-9][0-9]{0,8}\.json")


def load(team: TeamDirectory, task_id: int) -> Task:
    """Return the task with this id.

    Raises:
        UsageError: There is no such task.
        BadDataError: Its file is damaged.
    """
    task = team.task(task_id).load()
    if task is None:
        raise UsageError(f"there is no task {task_id}")
    return task


def ids(team: TeamDirectory) -> list[int]:
    """Return the ids of all tasks in ascending order; empty if the folder cannot be listed."""
    try:
        names = team.tasks.names()
    except StorageError:
        return []
    return sorted(int(name.partition(".")[0]) for name in names if _FILE_NAME.fullmatch(name))


def load_all(team: TeamDirectory) -> list[Task]:
    """Return every task whose file is not damaged, sorted by id."""
    return sorted(cached_folder(team.tasks).intact().values(), key=lambda task: task.id)


def damaged(team: TeamDirectory) -> list[str]:
    """Return the names of the records that `load_all` left out: they cannot be read, or have the id of another one."""
    return [record.name for record in cached_folder(team.tasks).damaged]


@under_lock(_LOCK)
def add(team: TeamDirectory, subject: str, now: float, *, by: str = OPERATOR, **draft: Unpack[TaskDraft]) -> Task:
    """Add a task to the board, and return it. `by` is recorded as the one who set its check.

    Raises:
        UsageError: The subject or the check is empty, the priority is out of range, a blocking task does not exist, or
            the reviewer is the owner.
    """
    check_words(subject, draft.get("priority"))
    check_reviewer("the task", draft.get("review"), draft.get("owner"))
    taken = ids(team)
    if missing := [blocker for blocker in draft.get("blocked_by", []) if blocker not in taken]:
        raise UsageError(f"the task cannot be blocked by {missing[0]}: there is no task {missing[0]}")
    if (check := draft.get("check")) is not None:
        draft["check"] = stored_check(check)
    # The id of a task that was removed is not used again.
    last = team.last_task_id.get() or b""
    if last and not last.isdigit():
        team.last_task_id.quarantine()
    ident = max([int(last) if last.isdigit() else 0, *taken]) + 1
    task = Task(id=ident, subject=subject, **draft, check_by=by, created_at=now, updated_at=now)
    team.last_task_id.put(str(task.id).encode(), durable=True)
    team.task(task.id).save(task, durable=True)
    return task


def check_words(subject: str | None, priority: int | None) -> None:
    """Check a new subject and a new priority, if given.

    Raises:
        UsageError: The subject is empty, or the priority is out of range.
    """
    if subject is not None and not subject.strip():
        raise UsageError("a task needs a subject")
    if priority is not None and abs(priority) > MAX_PRIORITY:
        raise UsageError(f"a priority is a number from -{MAX_PRIORITY} to {MAX_PRIORITY}; 0 is normal")


def check_reviewer(what: str, review: str | None, owner: str | None) -> None:
    """Check that a task may have this reviewer and this owner; `what` names the task in the error message.

    Raises:
        UsageError: The reviewer is the owner.
    """
    if review is not None and review == owner:
        raise UsageError(f"{what} is reviewed by {review}, which cannot be its owner too")


def order_of_work(task: Task) -> tuple[int, int]:
    """Return the sort key of an open task: the highest priority first, then the oldest."""
    return -task.priority, task.id


def blockers(task: Task, tasks: dict[int, Task]) -> list[int]:
    """Return the ids in `task.blocked_by` of tasks that are not completed; `tasks` are all tasks by id."""
    return [other for other in task.blocked_by if other not in tasks or tasks[other].status != "completed"]


def terminal_state(task_id: int, tasks: dict[int, Task]) -> str | None:
    """Return `failed`, `cancelled` or `gone` for a task that will not be completed by itself; None for any other."""
    task = tasks.get(task_id)
    if task is None:
        return "gone"
    return task.status if task.status in ("failed", "cancelled") else None


@under_lock(_LOCK)
def claim(team: TeamDirectory, task_id: int, name: str, agent_type: str, now: float) -> Task:
    """Claim a task for `name`, and return it. If `name` already has it in progress, nothing changes.

    Raises:
        UsageError: There is no such task, or it is closed, in progress, assigned to another agent, blocked, for another
            type, or `name` reviews it.
        BadDataError: The file of the task is damaged.
        TryLaterError: `name` has another task in progress.
    """
    tasks = {task.id: task for task in load_all(team)}
    task = load(team, task_id)
    if task.owner == name and task.status == "in_progress":
        return task
    if task.status != "pending":
        raise UsageError(
            f"task {task.id} is {task.status.replace('_', ' ')}" + (f" by {task.owner}" if task.owner else "")
        )
    if task.owner not in (None, name):
        raise UsageError(f"task {task.id} is assigned to {task.owner}")
    check_reviewer(f"task {task.id}", task.review, name)
    check_type(f"task {task.id}", task.required_type, name, agent_type)
    if waiting := blockers(task, tasks):
        raise UsageError(f"task {task.id} is blocked by {', '.join(map(str, waiting))}")
    for other in tasks.values():
        if other.owner == name and is_at_work_on(other):
            raise TryLaterError(f"{name} has task {other.id} in progress; finish it first")
    return _save(team, task, now, status="in_progress", owner=name)


def check_type(what: str, required_type: str | None, name: str, agent_type: str) -> None:
    """Check that the agent `name` of `agent_type` may own a task; `what` names the task in the error message.

    Raises:
        UsageError: The task is for another type.
    """
    if required_type not in (None, agent_type):
        raise UsageError(f"{what} is for an agent of type {required_type}; {name} is of type {agent_type}")


@under_lock(_LOCK)
def update(
    team: TeamDirectory,
    task_id: int,
    by: str,
    now: float,
    **edit: Unpack[TaskEdit],
) -> Task:
    """Change the given fields of a task, and return it. Only its owner, the lead and the operator may do so.

    If a task that was in progress or closed becomes pending, and the change names no owner, the task has none: any
    agent may claim it. An agent completes a task that has a check with `complete`.

    Raises:
        UsageError: `by` may not change the task, its check or its reviewer, a check or review is still to pass, the
            task would be in progress without an owner, the subject is empty, the priority is out of range, or the task
            cannot be blocked by these tasks.
        TryLaterError: The owner has another task in progress.
    """
    status, owner, blocked_by = edit.get("status"), edit.get("owner"), edit.get("blocked_by")
    given = _given(edit, by, now)
    task = load_for(team, task_id, by)
    if status == "completed" and by != OPERATOR:
        _require_passed(team, task, None)
        _require_reviewed(task)
    if status is None and owner is None and blocked_by is None:
        _check_review_edit(task, given)
        return _write(team, task, **given)
    changed = task.replace(owner=owner or task.owner, status=status or task.status, **given)
    goes_on = changed.status == "in_progress" and changed.owner == task.owner
    changed.in_review = task.in_review if goes_on else None
    _check_review_edit(changed, given)
    if changed.owner != task.owner:
        changed.check_failures = 0
    if status == "pending" and owner is None and task.status != "pending":
        # The owner released the task, it did not die with it: no agent is preferred for it.
        changed.owner = changed.last_owner = None
    if owner and owner != task.owner and status is None and task.status == "in_progress":
        changed.status = "pending"
    if changed.status == "in_progress" and changed.owner is None:
        raise UsageError(f"task {task_id} has no owner; a task in progress needs one")
    if changed.status == "in_progress":
        _check_no_other_in_progress(team, changed)
    if blocked_by is not None:
        if changed.status != "pending":
            raise UsageError(
                f"task {changed.id} is {changed.status.replace('_', ' ')}; only a pending task can be blocked"
            )
        check_blockers(changed.id, blocked_by, {each.id: each for each in load_all(team)})
        changed.blocked_by = list(dict.fromkeys(blocked_by))
    return _save(team, changed, now)


@under_lock(_LOCK)
def complete(
    team: TeamDirectory,
    task_id: int,
    by: str,
    now: float,
    *,
    edit: TaskEdit,
    checked: Checked | None = None,
    unchecked: bool = False,
) -> Task:
    """Complete a task for its owner or the lead, and return it.

    If the task has a check, `checked` must be a run of it that passed, unless the caller may complete it `unchecked`.

    Raises:
        UsageError: `by` may not change the task, the edit is not possible, the check has not passed, or the task needs
            a review.
    """
    given = _given(edit, by, now, checked)
    task = load_for(team, task_id, by)
    if not unchecked:
        _require_passed(team, task, checked)
    _require_reviewed(task)
    return _save(team, task, now, status="completed", **given)


@under_lock(_LOCK)
def hand_over(
    team: TeamDirectory,
    task_id: int,
    owner: str,
    now: float,
    *,
    edit: TaskEdit,
    checked: Checked | None,
    request_id: str,
    shown: Shown | None = None,
) -> Task:
    """Hand a task that its owner reports as completed to its reviewer; return the task, which is then in progress.

    `checked` is a run of the task's check that passed, None if the task has no check. `request_id` is the id of the
    request for the review, which the caller opens. `shown` is the work that the reviewer is shown, if the owner has a
    worktree.

    Raises:
        UsageError: The task is no longer the owner's, the edit is not possible, or the check has not passed.
        TryLaterError: The owner has another task in progress.
    """
    given = _given(edit, owner, now, checked)
    task = load_for(team, task_id, owner)
    if task.owner != owner or task.in_review is not None or task.status in CLOSED:
        raise UsageError(f"task {task_id} was changed meanwhile; look at it again")
    _require_passed(team, task, checked)
    _check_no_other_in_progress(team, task)
    given |= {"in_review": request_id, "reviews": task.reviews + 1, "shown": shown}
    return _save(team, task, now, status="in_progress", **given)


@under_lock(_LOCK)
def end_review(
    team: TeamDirectory, task_id: int, request_id: str, now: float, *, approval: Reviewed | None, owner_lives: bool
) -> Task:
    """Complete a task that its review approved; without an `approval`, give it back to its owner. Idempotent.

    Without an approval the task is in progress again if its owner is running and has no other task in progress, else
    pending. If the owner is not running, the task has none, but the owner is preferred for it, as after a death.

    Raises:
        UsageError: There is no such task.
    """
    task = load(team, task_id)
    if task.in_review != request_id:
        return task
    changes: dict[str, object] = {"in_review": None}
    if approval is not None:
        changes |= {"status": "completed", "reviewed": approval}
    elif not owner_lives:
        changes |= {"status": "pending", "owner": None, "last_owner": task.owner}
    elif task.owner is not None and in_progress(team, task.owner) is not None:
        changes["status"] = "pending"
    return _save(team, task, now, **changes)


@under_lock(_LOCK)
def forget_trees(team: TeamDirectory, name: str) -> None:
    """Forget which trees of an agent's work were reviewed, because the work was discarded.

    Later work of the agent is not compared with it.
    """
    for task in load_all(team):
        if task.reviewed is not None and task.reviewed.of == name and task.reviewed.tree:
            _write(team, task, reviewed=task.reviewed.replace(since="", tree=""))


def is_at_work_on(task: Task) -> bool:
    """Return True if the owner of a task works on it: it is in progress, and not in review."""
    return task.status == "in_progress" and task.in_review is None


def _given(edit: TaskEdit, by: str, now: float, checked: Checked | None = None) -> dict[str, object]:
    """Return the fields of a task that an edit changes, except status, owner and what blocks the task.

    `by` is who edits. `checked` is a run of the task's check that passed.

    Raises:
        UsageError: The subject or check is empty, the priority is out of range, or `by` may not change check or
            reviewer.
    """
    progress = {"status", "owner", "blocked_by"}
    given: dict[str, object] = {
        name: value for name, value in edit.items() if value is not None and name not in progress
    }
    check_words(edit.get("subject"), edit.get("priority"))
    if "check" in given and by != OPERATOR:
        raise UsageError("only the operator changes the check of a task")
    if "review" in given and by != OPERATOR:
        raise UsageError("only the operator changes who reviews a task")
    if (check := edit.get("check")) is not None:
        # What the old check found says nothing about the new one.
        given |= {"check": stored_check(check), "check_by": OPERATOR, "checked": None, "check_failures": 0}
    if edit.get("review") == NO_REVIEW:
        given["review"] = None
    if given:
        given["edited_at"] = now
    if checked is not None:
        given |= {"checked": checked, "check_failures": 0}
    return given


def _require_passed(team: TeamDirectory, task: Task, checked: Checked | None) -> None:
    """Refuse to complete a task whose check has not passed; `checked` is its last run.

    Raises:
        UsageError: The check has not passed, or meanwhile the task has another check or was closed.
    """
    check = check_of(team, task)
    if check is None or task.status == "completed":
        return
    if checked is None or not checked.passed or checked.command != check.command:
        raise UsageError(f"task {task.id} is not completed before its check `{check.command}` passes")
    if task.status in CLOSED:
        raise UsageError(f"task {task.id} is {task.status}; its owner, the lead or the operator may reopen it")


def _check_review_edit(task: Task, given: dict[str, object]) -> None:
    """Check that a task may have its new reviewer or its new owner.

    Raises:
        UsageError: They are the same, or a reviewer is given while the task is in review.
    """
    if "review" in given and task.in_review is not None:
        raise UsageError(f"task {task.id} is in review by {task.review}; approve or reject that first")
    review = given.get("review", task.review)
    check_reviewer(f"task {task.id}", str(review) if review else None, task.owner)


def _require_reviewed(task: Task) -> None:
    """Refuse to complete a task that another agent, or the operator, must approve.

    Raises:
        UsageError: The task has a reviewer, and is not completed.
    """
    if task.review is not None and task.status != "completed":
        raise UsageError(f"task {task.id} is completed when {task.review} approves the work of its owner")


@under_lock(_LOCK)
def note_check(team: TeamDirectory, task_id: int, by: str, checked: Checked) -> Task:
    """Record a run of a task's check, and return the task. A failure is not counted if the operator asked for the run.

    Raises:
        UsageError: There is no such task, or `by` may not change it.
    """
    task = load_for(team, task_id, by)
    failures = 0 if checked.passed else task.check_failures + (by != OPERATOR)
    return _write(team, task, checked=checked, check_failures=failures)


@under_lock(_LOCK)
def reprioritise(team: TeamDirectory, task_id: int, by: str, now: float, change: int) -> Task:
    """Add `change` to the priority of a task, and return it. Only its owner, the lead and the operator may do so.

    Raises:
        UsageError: `by` may not change the task, or its priority would be out of range.
    """
    task = load_for(team, task_id, by)
    priority = task.priority + change
    check_words(None, priority)
    return _write(team, task, priority=priority, edited_at=now)


@under_lock(_LOCK)
def reopen(team: TeamDirectory, task_id: int, by: str, now: float) -> tuple[Task, Task]:
    """Make a closed task pending, without an owner. Return it as it was and as it is now.

    Raises:
        UsageError: The task is not closed, or `by` may not change it.
    """
    task = load_for(team, task_id, by)
    if task.status not in CLOSED:
        raise UsageError(f"task {task_id} is {task.status.replace('_', ' ')}; only a closed task can be reopened")
    anew = {"status": "pending", "owner": None, "last_owner": None, "checked": None, "check_failures": 0,
            "in_review": None}  # fmt: skip
    return task, _save(team, task, now, **anew)


def load_for(team: TeamDirectory, task_id: int, by: str) -> Task:
    """Return the task with this id if `by` may change it.

    Raises:
        UsageError: There is no such task, or `by` may not change it.
        BadDataError: The file of the task is damaged.
    """
    task = load(team, task_id)
    if by in (OPERATOR, LEAD, task.owner) or ((config := roster.load_or_none(team)) is not None and config.lead == by):
        return task
    raise UsageError(f"task {task_id} is not {by}'s: only its owner, the lead or the operator may change it")


def _check_no_other_in_progress(team: TeamDirectory, task: Task) -> None:
    for other in load_all(team):
        if other.id != task.id and other.owner == task.owner and is_at_work_on(other):
            raise TryLaterError(f"{task.owner} has task {other.id} in progress; one at a time")


def check_blockers(task_id: int, blocked_by: list[int], tasks: dict[int, Task]) -> None:
    """Check that a task can be blocked by the tasks `blocked_by`; `tasks` are all tasks by id.

    Raises:
        UsageError: A blocking task does not exist, or they would wait for each other.
    """
    for blocker in blocked_by:
        if blocker == task_id:
            raise UsageError(f"task {task_id} cannot wait for itself")
        if blocker not in tasks:
            raise UsageError(f"task {task_id} cannot be blocked by {blocker}: there is no task {blocker}")
        # Terminates even if the files contain a cycle.
        found: set[int] = set()
        ahead = [blocker]
        while ahead:
            task = tasks.get(ahead.pop())
            fresh = set(task.blocked_by) - found if task is not None else set()
            found |= fresh
            ahead += fresh
        if task_id in found:
            raise UsageError(f"task {blocker} already waits for task {task_id}; neither could ever start")


@under_lock(_LOCK)
def release(team: TeamDirectory, name: str, now: float) -> list[Task]:
    """Make the tasks that `name` has in progress pending again, and return them; `name` remains their preferred owner.

    Tasks in review stay: the work is done, and is completed once it is approved.
    """
    return [
        _save(team, task, now, status="pending", owner=None, last_owner=name)
        for task in load_all(team)
        if task.owner == name and is_at_work_on(task)
    ]


def in_progress(team: TeamDirectory, name: str) -> Task | None:
    """Return the task that `name` has in progress and that is not in review; None if there is none."""
    return next((task for task in load_all(team) if task.owner == name and is_at_work_on(task)), None)


def _save(team: TeamDirectory, task: Task, now: float, **changes: object) -> Task:
    return _write(team, task, **changes, updated_at=now, rev=task.rev + 1)


def _write(team: TeamDirectory, task: Task, **changes: object) -> Task:
    saved = task.replace(**changes)
    team.task(task.id).overwrite(saved, durable=True)
    return saved
