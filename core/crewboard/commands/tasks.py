"""The task board, as the operator or the lead changes it."""

from crewboard.agent_types import custom
from crewboard.commands.cli_hint import command_for
from crewboard.commands.context import Team
from crewboard.commands.messages import post
from crewboard.errors import UsageError
from crewboard.records import Exit, Task, TaskStatus, is_orderly
from crewboard.store import agents, json_files, leases, tasks


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
        UsageError: No subject, no such owner or one of another type, no such type, or no such task to be blocked by.
    """
    if not subject.strip():
        raise UsageError("a task needs a subject")
    if required_type is not None:
        custom.find(team.directory.root, required_type)
    if owner is not None:
        tasks.check_type("the task", required_type, owner, team.member(owner).type)
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
        UsageError: No such task or owner, or one of another type, or it is not for `by` to change.
    """
    member = team.member(owner) if owner is not None else None
    before = tasks.load(team.directory, task_id)
    if member is not None:
        tasks.check_type(f"task {task_id}", before.required_type, member.name, member.type)
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


def blocking_reasons(team: Team, task: Task, *, owner_lives: bool | None = None) -> list[str]:
    """Why an open task is not begun by itself, each with the command that helps.

    `owner_lives` is for whoever knows that already; else the owner's lease says it.
    """
    if task.status in tasks.CLOSED:
        return []
    board = {each.id: each for each in tasks.load_all(team.directory)}
    waiting = tasks.blockers(task, board) if task.status == "pending" else []
    hopeless = {ident: fate for ident in waiting if (fate := tasks.terminal_state(ident, board))}
    found = [_unblock_hint(team, task, hopeless)] if hopeless else []
    plight = owner_problem(team, task.owner) if task.owner is not None and not owner_lives else None
    if plight == "gone":
        found.append(f"{task.owner} is gone: `{command_for(team, f'task update {task.id} --owner NAME')}`")
    elif plight is not None:
        found.append(f"{task.owner} is {plight}: `{command_for(team, f'resume {task.owner}')}`")
    return found


def _unblock_hint(team: Team, task: Task, hopeless: dict[int, str]) -> str:
    fates = ", ".join(f"#{ident} is {fate}" for ident, fate in hopeless.items())
    others = ",".join(str(other) for other in task.blocked_by if other not in hopeless)
    command = command_for(team, f"task update {task.id} --blocked-by {others or repr('')}")
    return f"{fates}, so that it never begins: `{command}`"


def owner_problem(team: Team, name: str) -> str | None:
    """`dead`, `not running` or `gone`, of an owner who has no process; None of one who lives."""
    agent = team.directory.agent(name)
    if leases.is_held(agent.lease):
        return None
    if team.config.member(name) is None:
        return "gone"
    record = json_files.load_or_none(agent.exit, Exit)
    if record is None:
        return "dead" if agents.last_run(agent) else "not running"
    return "not running" if is_orderly(record) else "dead"


def _tell_owner(team: Team, task: Task, owner: str) -> None:
    body = f"Task {task.id}: {task.subject}" + (f"\n\n{task.description}" if task.description else "")
    post(team, owner, "task_assignment", body, task_id=task.id)


def assign_without_mail(team: Team, task_id: int, owner: str) -> None:
    """Give a task to an agent whose prompt speaks of it already."""
    tasks.update(team.directory, task_id, team.by, team.now(), owner=owner)
