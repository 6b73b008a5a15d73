"""Change the task board for the operator or a lead, and run the check of an agent's work."""

import os
from collections.abc import Callable
from typing import Unpack

from crewboard.commands.context import Team, command_for, require_here, require_spec
from crewboard.commands.messages import post
from crewboard.errors import UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import reviews
from crewboard.records.processes import is_orderly
from crewboard.records.team import Checked, Task
from crewboard.store import agents, files, leases, roster
from crewboard.store import tasks as store_tasks
from crewboard.store.tasks import TaskDraft, TaskEdit

_MOST_OF_TAIL = 4096
"""Bytes from the end of a check's output that are read to show its last lines."""


def add_task(team: Team, subject: str, **draft: Unpack[TaskDraft]) -> Task:
    """Add a task to the board and notify its owner, if it has one; return it. Creates the team if there is none yet.

    Raises:
        UsageError: The subject or the check is empty; the priority is out of range; the owner, the reviewer, the type
            or a blocking task does not exist; the owner is of another type, or is the reviewer; or a lead wants the
            task to need no check.
    """
    roster.require_own_agents(team.directory)
    owner, required_type = draft.get("owner"), draft.get("required_type")
    store_tasks.check_words(subject, draft.get("priority"))
    if team.by != OPERATOR and draft.get("check") == store_tasks.NO_CHECK:
        raise UsageError("only the operator lets a task be completed without a check")
    if required_type is not None:
        # Imported here, and below, because the first picture of the dashboard and other commands do without.
        from crewboard import type_files

        type_files.find(team.directory.root, required_type)
    draft["review"] = _reviewer(team, draft.get("review"))
    store_tasks.check_reviewer("the task", draft["review"], owner)
    if owner is not None:
        store_tasks.check_type("the task", required_type, owner, team.member(owner).type)
    team.ensure()
    task = store_tasks.add(team.directory, subject, team.now(), by=team.by, **draft)
    team.note("task add", f"#{task.id}", owner or "")
    if owner is not None:
        _tell_owner(team, task, owner)
    return task


def update_task(team: Team, task_id: int, **edit: Unpack[TaskEdit]) -> Task:
    """Change the given fields of a task; return it.

    An owner that is given is notified if it is new, or if the task was closed before. Other changes notify no agent. An
    open review is cancelled if the task is closed or gets another owner.

    Raises:
        UsageError: The task, the owner or the reviewer does not exist; the owner is of another type, or is the
            reviewer; the agent that gives the command may not change the task; the subject or the check is empty; the
            priority is out of range; the task cannot be blocked by these tasks; or its open review would get another
            reviewer.
    """
    roster.require_own_agents(team.directory)
    owner, review = edit.get("owner"), edit.get("review")
    member = team.member(owner) if owner is not None else None
    before = store_tasks.load(team.directory, task_id)
    if member is not None:
        store_tasks.check_type(f"task {task_id}", before.required_type, member.name, member.type)
    edit["review"] = _reviewer(team, review)
    task = store_tasks.update(team.directory, task_id, team.by, team.now(), **edit)
    if before.in_review is not None:
        reviews.reconcile(team.directory, team.now())
    priority, blocked_by = edit.get("priority"), edit.get("blocked_by")
    done = (
        " ".join(filter(None, (edit.get("status"), owner))),
        "subject" if edit.get("subject") is not None else "",
        "description" if edit.get("description") is not None else "",
        describe_priority(priority) if priority is not None else "",
        "check" if edit.get("check") is not None else "",
        f"review {review}" if review is not None else "",
        f"blocked by {', '.join(map(str, blocked_by)) or 'none'}" if blocked_by is not None else "",
    )
    team.note("task update", f"#{task_id}", ", ".join(filter(None, done)))
    reopened = before.status in store_tasks.CLOSED and task.status not in store_tasks.CLOSED
    if owner is not None and (owner != before.owner or reopened):
        _tell_owner(team, task, owner)
    return task


def _reviewer(team: Team, name: str | None) -> str | None:
    """Return `name` if it can be a reviewer: None, the operator, `store.tasks.NO_REVIEW`, or an agent of the team.

    Raises:
        UsageError: There is no such agent.
    """
    return name if name in (None, OPERATOR, store_tasks.NO_REVIEW) else team.member(name).name


def reopen_task(team: Team, task_id: int) -> Task:
    """Make a closed task pending again, without an owner, and return it. The audit log says what it was before.

    Raises:
        UsageError: There is no such task, or it is not closed.
    """
    roster.require_own_agents(team.directory)
    before, task = store_tasks.reopen(team.directory, task_id, team.by, team.now())
    owner = before.owner or before.last_owner
    team.note("task reopen", f"#{task_id}", f"was {before.status}" + (f", {owner}" if owner else ""))
    return task


def describe_priority(priority: int) -> str:
    """Return a priority in words, such as `priority +2`, or `normal priority` for 0."""
    return f"priority {priority:+d}" if priority else "normal priority"


def blocking_reasons(team: Team, task: Task) -> list[str]:
    """Return the reasons why an open task will not go on by itself, each with the command that helps, if any does."""
    if task.status in store_tasks.CLOSED:
        return []
    board = {each.id: each for each in store_tasks.load_all(team.directory)}
    waiting = store_tasks.blockers(task, board) if task.status == "pending" else []
    never_completed = {ident: state for ident in waiting if (state := store_tasks.terminal_state(ident, board))}
    found = []
    if never_completed:
        states = ", ".join(f"#{ident} is {state}" for ident, state in never_completed.items())
        others = ",".join(str(other) for other in task.blocked_by if other not in never_completed)
        command = command_for(team, f"task update {task.id} --blocked-by {others or repr('')}")
        found.append(f"{states}, so it can never start: `{command}`")
    problem = owner_problem(team, task, task.owner) if task.owner is not None else None
    if problem is not None and team.config.attached is not None:
        # No command resumes it, or gives its task to another agent.
        found.append(f"{task.owner} is {problem}")
    elif problem == "gone":
        found.append(f"{task.owner} is gone: `{command_for(team, f'task update {task.id} --owner NAME')}`")
    elif problem == "rests":
        found.append(f"{task.owner} rests: `{command_for(team, f'send {task.owner} TEXT')}` tells it to go on")
    elif problem is not None:
        found.append(f"{task.owner} is {problem}: `{command_for(team, f'resume {task.owner}')}`")
    return found


def owner_problem(team: Team, task: Task, name: str) -> str | None:
    """Return why the owner `name` of a task does not work on it; None if the agent runs and has not left the task.

    The reasons are `dead`, `not running`, `gone` if the agent is not on the team any more, and `rests` if it is running
    and ended its assignment without an outcome of the task.
    """
    agent, config = team.directory.agent(name), team.config
    if agents.is_running(agent, attached=config.attached is not None):
        status = agent.status.load_or_none()
        return "rests" if status is not None and status.unreported == task.id else None
    if config.member(name) is None:
        return "gone"
    record = agent.exit.load_or_none()
    if record is None:
        return "dead" if agents.last_run(agent) else "not running"
    return "not running" if is_orderly(record) else "dead"


def passed_over(team: Team, task: Task) -> str | None:
    """Return the command of the check that a completed task has not passed; None for all other tasks."""
    check = store_tasks.check_of(team.directory, task) if task.status == "completed" else None
    passed = check is not None and task.checked is not None and task.checked.passed
    return check.command if check is not None and not passed else None


def last_checked(team: Team, name: str) -> Checked | None:
    """Return an agent's last check that has ended, for a task or not; None if there is none.

    A failed one does not count any more once its command is the check of no task and not of the team.
    """
    last = team.directory.agent(name).checked.load_or_none()
    if last is not None and last.passed:
        return last
    tasks = store_tasks.load_all(team.directory)
    if last is not None:
        return last if last.command in (team.config.check, *(task.check for task in tasks)) else None
    # Of a team of an older version, only the tasks say it.
    found = (task.checked for task in tasks if name in (task.owner, task.last_owner) and task.checked is not None)
    return max(found, key=lambda each: each.at, default=None)


def has_check(team: Team, name: str) -> bool:
    """Return True if the agent's task in progress, or else the team, has a check, which `check_agent` would run."""
    task = store_tasks.in_progress(team.directory, name)
    return store_tasks.check_of(team.directory, task) is not None


def is_checking(team: Team, name: str) -> bool:
    """Return True if a check of an agent is running now."""
    return leases.is_held(team.directory.agent(name).checking)


def last_lines(team: Team, checked: Checked) -> str:
    """Return the last five lines of the output of a check, indented; empty if they cannot be read."""
    try:
        with open(team.directory.path / checked.result, "rb", opener=files.open_existing) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_OF_TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-5:])


def check_agent(team: Team, name: str, show: Callable[[str], None]) -> tuple[Checked, Task | None]:
    """Run the check of the task that an agent has in progress, else the team's, in the agent's sandbox.

    `show` gets the output while it runs. Return the outcome, and the task if there is one. This process stays
    restricted afterwards (`sandbox.harden`).

    Raises:
        UsageError: There is no such agent, no check, the agent is on a host, or its type runs no commands.
        NoSandboxError: No sandbox works here.
        StorageError: The output cannot be kept.
    """
    agent = team.own_agent(name)
    spec = require_spec(name, agent.spec.load())
    from crewboard import agent_types

    if not agent_types.type_of(spec.type, spec.definition).executes:
        raise UsageError(
            f"{name} is of type {spec.type}, which runs no commands: nothing can be checked in its sandbox"
        )
    task = store_tasks.in_progress(team.directory, name)
    check = store_tasks.check_of(team.directory, task)
    require_here(team, name, "its checks run when it completes a task")
    if check is None:
        which = f"task {task.id} of {name} has no check" if task is not None else f"{name} has no task in progress"
        raise UsageError(f"{which}, and the team has no check: `{command_for(team, 'settings check COMMAND')}`")
    with agents.checking(agent):
        # Imported here, because few commands need the sandbox, and few agents have a worktree.
        from crewboard.sandbox import shell
        from crewboard.worktrees import changes

        tree, worked = changes.tree_of(team.directory, name, spec), is_at_work(team, name)
        checked = shell.run_check_alone(check.command, team.directory, name, spec, team.now, show)
        # What the check itself wrote belongs to its tree; what the agent changed meanwhile does not.
        if not worked and not is_at_work(team, name):
            tree = changes.tree_of(team.directory, name, spec)
        checked = checked.replace(tree=tree)
    agents.save_checked(agent, checked, team.config.check)
    if task is not None:
        task = store_tasks.note_check(team.directory, task.id, team.by, checked)
    team.note("check", name, "passed" if checked.passed else "failed")
    return checked, task


def is_at_work(team: Team, name: str) -> bool:
    """Return True if an agent is running and not idle."""
    agent = team.directory.agent(name)
    status = agent.status.load_or_none()
    return leases.is_held(agent.lease) and (status is None or status.state != "idle")


def _tell_owner(team: Team, task: Task, owner: str) -> None:
    body = f"Task {task.id}: {task.subject}" + (f"\n\n{task.description}" if task.description else "")
    post(team, owner, "task_assignment", body, task_id=task.id)


def assign_without_mail(team: Team, task_id: int, owner: str) -> None:
    """Assign a task to an agent without notifying it, because its prompt mentions the task."""
    store_tasks.update(team.directory, task_id, team.by, team.now(), owner=owner)
