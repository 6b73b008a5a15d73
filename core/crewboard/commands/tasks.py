"""Changes to the task board by the operator or the lead, and the check of an agent's work."""

from collections.abc import Callable

from crewboard import agent_types, store
from crewboard.commands.context import Team, command_for
from crewboard.commands.messages import post
from crewboard.records import OPERATOR, Checked, Exit, Task, TaskStatus, UsageError, is_orderly


def add_task(
    team: Team,
    subject: str,
    *,
    description: str = "",
    priority: int = 0,
    owner: str | None = None,
    blocked_by: list[int] | None = None,
    required_type: str | None = None,
    check: str | None = None,
) -> Task:
    """Add a task to the board and notify its owner, if it has one. Creates the team if it does not exist yet.

    `check` is a command, or `store.tasks.NO_CHECK`; without it the team's check counts.

    Raises:
        UsageError: The subject or the check is empty; the priority is out of range; the owner, the type or a blocking
            task does not exist; the owner is of another type; or a lead asks for no check.
    """
    store.tasks.check_words(subject, priority)
    if team.by != OPERATOR and check == store.tasks.NO_CHECK:
        raise UsageError("only the operator lets a task be completed without a check")
    if required_type is not None:
        agent_types.find(team.directory.root, required_type)
    if owner is not None:
        store.tasks.check_type("the task", required_type, owner, team.member(owner).type)
    team.ensure()
    task = store.tasks.add(
        team.directory, subject, team.now(),
        description=description, priority=priority, owner=owner, blocked_by=blocked_by, required_type=required_type,
        check=check, by=team.by,
    )  # fmt: skip
    team.note("task add", f"#{task.id}", owner or "")
    if owner is not None:
        _tell_owner(team, task, owner)
    return task


def update_task(  # noqa: PLR0913  each is a field of the task
    team: Team,
    task_id: int,
    *,
    status: TaskStatus | None = None,
    owner: str | None = None,
    subject: str | None = None,
    description: str | None = None,
    priority: int | None = None,
    blocked_by: list[int] | None = None,
    check: str | None = None,
) -> Task:
    """Change the given fields of a task.

    A new owner is notified, or the same one if a closed task is given to it again. An edit notifies no agent.

    Raises:
        UsageError: The task or the owner does not exist, the owner is of another type, `by` may not change the task,
            the subject or the check is empty, the priority is out of range, or the task cannot be blocked by these
            tasks.
    """
    member = team.member(owner) if owner is not None else None
    before = store.tasks.load(team.directory, task_id)
    if member is not None:
        store.tasks.check_type(f"task {task_id}", before.required_type, member.name, member.type)
    task = store.tasks.update(
        team.directory, task_id, team.by, team.now(),
        status=status, owner=owner, blocked_by=blocked_by,
        edit=store.tasks.Edit(subject, description, priority, check),
    )  # fmt: skip
    done = (
        " ".join(filter(None, (status, owner))),
        "subject" if subject is not None else "",
        "description" if description is not None else "",
        describe_priority(priority) if priority is not None else "",
        "check" if check is not None else "",
        f"blocked by {', '.join(map(str, blocked_by)) or 'none'}" if blocked_by is not None else "",
    )
    team.note("task update", f"#{task_id}", ", ".join(filter(None, done)))
    reopened = before.status in store.tasks.CLOSED and task.status not in store.tasks.CLOSED
    if owner is not None and (owner != before.owner or reopened):
        _tell_owner(team, task, owner)
    return task


def retry_task(team: Team, task_id: int) -> Task:
    """Reopen a failed task for the agent that had it and notify that agent; if it was removed, for any agent.

    Raises:
        UsageError: There is no such task.
    """
    task = store.tasks.load(team.directory, task_id)
    owner = task.owner or task.last_owner
    return update_task(team, task_id, status="pending", owner=owner if team.config.member(owner or "") else None)


def reopen_task(team: Team, task_id: int) -> Task:
    """Reopen a closed task for any agent: it is pending and has no owner. The audit log says how it had ended.

    Raises:
        UsageError: There is no such task, or it is not closed.
    """
    before, task = store.tasks.reopen(team.directory, task_id, team.by, team.now())
    owner = before.owner or before.last_owner
    team.note("task reopen", f"#{task_id}", f"was {before.status}" + (f", {owner}" if owner else ""))
    return task


def raise_priority(team: Team, task_id: int, change: int) -> Task:
    """Add `change` to the priority of a task.

    Raises:
        UsageError: There is no such task, or its priority would be out of range.
    """
    task = store.tasks.reprioritise(team.directory, task_id, team.by, team.now(), change)
    team.note("task update", f"#{task_id}", describe_priority(task.priority))
    return task


def describe_priority(priority: int) -> str:
    """Return `priority +2`, or `normal priority`."""
    return f"priority {priority:+d}" if priority else "normal priority"


def block_task(team: Team, task_id: int, blocked_by: list[int]) -> Task:
    """Set the tasks that must be completed before this one may be claimed; an empty list unblocks it.

    Raises:
        UsageError: The task does not exist or is not pending, or it cannot be blocked by these tasks.
    """
    return update_task(team, task_id, blocked_by=blocked_by)


def blocking_reasons(team: Team, task: Task, *, owner_lives: bool | None = None) -> list[str]:
    """Return the reasons why an open task will not start by itself, each with the command that helps.

    Pass `owner_lives` if it is known already; else the owner's lease is probed.
    """
    if task.status in store.tasks.CLOSED:
        return []
    board = {each.id: each for each in store.tasks.load_all(team.directory)}
    waiting = store.tasks.blockers(task, board) if task.status == "pending" else []
    never_completed = {ident: state for ident in waiting if (state := store.tasks.terminal_state(ident, board))}
    found = [_unblock_hint(team, task, never_completed)] if never_completed else []
    problem = owner_problem(team, task.owner) if task.owner is not None and not owner_lives else None
    if problem == "gone":
        found.append(f"{task.owner} is gone: `{command_for(team, f'task update {task.id} --owner NAME')}`")
    elif problem is not None:
        found.append(f"{task.owner} is {problem}: `{command_for(team, f'resume {task.owner}')}`")
    return found


def _unblock_hint(team: Team, task: Task, never_completed: dict[int, str]) -> str:
    states = ", ".join(f"#{ident} is {state}" for ident, state in never_completed.items())
    others = ",".join(str(other) for other in task.blocked_by if other not in never_completed)
    command = command_for(team, f"task update {task.id} --blocked-by {others or repr('')}")
    return f"{states}, so it can never start: `{command}`"


def owner_problem(team: Team, name: str) -> str | None:
    """Return `dead`, `not running` or `gone` for an owner that has no process, None for one that is running."""
    agent = team.directory.agent(name)
    if store.leases.is_held(agent.lease):
        return None
    if team.config.member(name) is None:
        return "gone"
    record = store.json_files.load_or_none(agent.exit, Exit)
    if record is None:
        return "dead" if store.agents.last_run(agent) else "not running"
    return "not running" if is_orderly(record) else "dead"


def passed_over(team: Team, task: Task) -> str | None:
    """Return the check that a completed task never passed; None if it has none or passed it."""
    check = store.tasks.check_of(team.directory, task) if task.status == "completed" else None
    passed = check is not None and task.checked is not None and task.checked.passed
    return check.command if check is not None and not passed else None


def last_checked(team: Team, name: str) -> Task | None:
    """Return the task of an agent whose check ran last; None if none of its tasks was checked."""
    own = (task for task in store.tasks.load_all(team.directory) if name in (task.owner, task.last_owner))
    return max(
        (task for task in own if task.checked), key=lambda task: task.checked.at if task.checked else 0, default=None
    )


def check_agent(team: Team, name: str, show: Callable[[str], None]) -> tuple[Checked, Task | None]:
    """Run the check of the task that an agent has in progress, else the team's, in the agent's sandbox.

    `show` gets the output. This process keeps the restrictions of one that starts untrusted commands.

    Raises:
        UsageError: There is no such agent, no check, or the agent's type runs no commands.
        NoSandboxError: No sandbox works here.
        StorageError: The output cannot be kept.
    """
    # Few commands need the sandbox.
    from crewboard.sandbox import shell

    agent = team.agent(name)
    spec = store.agents.spec(agent)
    if spec is None:
        raise UsageError(f"{name} has no spec file; spawn it again")
    if not agent_types.type_of(spec.type, spec.definition).executes:
        raise UsageError(
            f"{name} is of type {spec.type}, which runs no commands: nothing can be checked in its sandbox"
        )
    task = store.tasks.in_progress(team.directory, name)
    check = store.tasks.check_of(team.directory, task)
    if check is None:
        which = f"task {task.id} of {name} has no check" if task is not None else f"{name} has no task in progress"
        raise UsageError(f"{which}, and the team has none: `{command_for(team, 'settings check COMMAND')}`")
    checked = shell.run_check_alone(check.command, team.directory, name, spec, team.now, show)
    if task is not None:
        task = store.tasks.note_check(team.directory, task.id, team.by, checked)
    team.note("check", name, "passed" if checked.passed else "failed")
    return checked, task


def _tell_owner(team: Team, task: Task, owner: str) -> None:
    body = f"Task {task.id}: {task.subject}" + (f"\n\n{task.description}" if task.description else "")
    post(team, owner, "task_assignment", body, task_id=task.id)


def assign_without_mail(team: Team, task_id: int, owner: str) -> None:
    """Assign a task to an agent whose prompt mentions it already, so that no mail is needed."""
    store.tasks.update(team.directory, task_id, team.by, team.now(), owner=owner)
