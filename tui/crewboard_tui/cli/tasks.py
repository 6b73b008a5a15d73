"""The commands `tasks` and `task`."""

from typing import get_args

import click

import crewboard as core
from crewboard import Task, Team, UsageError
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, note, say, say_json, table
from crewboard_tui.render import safe_line


@click.command()
@as_json
@click.pass_obj
def tasks(session: Session, as_json: bool) -> None:
    """Show the task board."""
    team = session.team
    found = core.store.tasks.load_all(team.directory)
    if as_json:
        say_json([task.model_dump() for task in found])
    elif not found:
        note("the task board is empty; " + core.commands.command_for(team, 'task add "SUBJECT"'))
    else:
        for line in describe(team, found):
            say(line)


def describe(team: Team, found: list[Task], indent: str = "") -> list[str]:
    """Describe the task board as a table."""
    board_by_id = {task.id: task for task in found}
    rows = []
    for task in found:
        waits = core.store.blockers(task, board_by_id) if task.status == "pending" else []
        fates = {ident: core.store.terminal_state(ident, board_by_id) for ident in waits}
        after = ", ".join(str(ident) + (f" {fates[ident]}" if fates[ident] else "") for ident in waits)
        word = "cannot start, " if any(fates.values()) else ""
        notes = [f"{word}after {after}" if waits else ""]
        notes += [f"for {task.required_type}" if task.required_type else ""]
        notes += [core.commands.tasks.describe_priority(task.priority) if task.priority else ""]
        rest = f" ({'; '.join(part for part in notes if part)})" if any(notes) else ""
        plight = (
            core.commands.tasks.owner_problem(team, task.owner)
            if task.owner and task.status not in core.store.CLOSED
            else None
        )
        owner = (
            f"{task.owner} ({plight})" if plight else task.owner or (f"({task.last_owner})" if task.last_owner else "–")
        )
        rows.append((f"#{task.id}", task.status.replace("_", " "), owner, task.subject + rest))
    return table(("ID", "STATUS", "OWNER", "SUBJECT"), rows, indent=indent)


_MAX = core.store.tasks.MAX_PRIORITY
_PRIORITY = f"From -{_MAX} to {_MAX}; 0 is normal, a higher one is claimed first."


@click.group(
    cls=LazyGroup, sections={"Commands": {"add": "tasks:add", "update": "tasks:update", "reopen": "tasks:reopen"}}
)
def task() -> None:
    """Add tasks to the task board, or change them."""


@click.command()
@click.argument("subject", type=common.text)
@click.option("--description", type=common.text, default="", help="What to do, in detail.")
@click.option("--priority", type=int, default=0, metavar="N", help=_PRIORITY)
@click.option("--owner", help="Agent to assign it to; it gets a message.")
@click.option("--blocked-by", type=common.ids, default="", metavar="1,2", help="Tasks that must be completed first.")
@click.option("--type", "required_type", metavar="T", help="Only agents of this type may claim it.")
@as_json
@click.pass_obj
def add(
    session: Session,
    subject: str,
    description: str,
    priority: int,
    owner: str | None,
    blocked_by: list[int],
    required_type: str | None,
    as_json: bool,
) -> None:
    """Add a task to the task board.

    Example: crewboard task add "paginate /orders" --owner api --blocked-by 1,2
    """
    team = session.team
    new = core.commands.tasks.add_task(
        team,
        subject,
        description=description,
        priority=priority,
        owner=owner,
        blocked_by=blocked_by,
        required_type=required_type,
    )
    _tell(team, new, as_json)


@click.command()
@click.argument("task_id", metavar="ID", type=common.task_id, shell_complete=common.complete_task)
@click.option("--status", type=click.Choice(get_args(core.records.TaskStatus)), help="New status.")
@click.option("--owner", help="New owner; it gets a message.")
@click.option("--blocked-by", type=common.ids, metavar="1,2", help="Tasks that must be completed first; '' for none.")
@click.option("--subject", type=common.text, help="New subject.")
@click.option("--description", type=common.text, help="New description; '' for none.")
@click.option("--priority", type=int, metavar="N", help=_PRIORITY)
@as_json
@click.pass_obj
def update(
    session: Session,
    task_id: int,
    status: core.records.TaskStatus | None,
    owner: str | None,
    blocked_by: list[int] | None,
    subject: str | None,
    description: str | None,
    priority: int | None,
    as_json: bool,
) -> None:
    """Change a task. Completing it unblocks the tasks that wait for it.

    An agent that works on the task is not told of an edit.

    Example: crewboard task update 3 --status completed

    Example: crewboard task update 3 --subject "paginate /users too" --priority 2
    """
    if all(given is None for given in (status, owner, blocked_by, subject, description, priority)):
        raise UsageError(
            "nothing to change: use --status, --owner, --blocked-by, --subject, --description or --priority"
        )
    changed = core.commands.tasks.update_task(
        session.team, task_id, status=status, owner=owner, blocked_by=blocked_by,
        subject=subject, description=description, priority=priority,
    )  # fmt: skip
    _tell(session.team, changed, as_json)


@click.command()
@click.argument("task_id", metavar="ID", type=common.task_id, shell_complete=common.complete_task)
@as_json
@click.pass_obj
def reopen(session: Session, task_id: int, as_json: bool) -> None:
    """Reopen a task that failed, was completed or cancelled, for any agent.

    Example: crewboard task reopen 3
    """
    _tell(session.team, core.commands.tasks.reopen_task(session.team, task_id), as_json)


def _tell(team: Team, changed: Task, as_json: bool) -> None:
    if as_json:
        say_json(changed.model_dump())
    else:
        owner = f", {changed.owner}" if changed.owner else ""
        say(safe_line(f"task {changed.id}: {changed.status.replace('_', ' ')}{owner} · {changed.subject}"))
    for hindrance in core.commands.tasks.blocking_reasons(team, changed):
        note(f"task {changed.id}: {hindrance}")
