"""The commands `tasks`, `task` and `check`: show and change the task board, and run the check of a task."""

from typing import Unpack, get_args

import click

from crewboard import ExitCode, Task, Team, UsageError
from crewboard.commands import tasks as commands_tasks
from crewboard.commands.context import command_for
from crewboard.records.team import TaskStatus
from crewboard.store import tasks as store_tasks
from crewboard.store.tasks import CLOSED, TaskDraft, TaskEdit, blockers, terminal_state
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, note, say, say_json, table
from crewboard_tui.render.looks import describe_checked
from crewboard_tui.render.sanitize import safe_line, safe_text


@click.command()
@as_json
def tasks(session: Session) -> None:
    """Show the task board."""
    team = session.team
    found, damaged = store_tasks.load_all(team.directory), store_tasks.damaged(team.directory)
    common.note_damaged_records(team.directory, damaged)
    if session.as_json:
        say_json([task.as_dict() for task in found])
    elif not found and not damaged:
        note("the task board is empty; " + command_for(team, 'task add "SUBJECT"'))
    elif found:
        say(*describe(team, found))


def describe(team: Team, found: list[Task], indent: str = "") -> list[str]:
    """Return the task board as lines of a table."""
    board_by_id = {task.id: task for task in found}
    rows = []
    for task in found:
        waits = blockers(task, board_by_id) if task.status == "pending" else []
        fates = {ident: terminal_state(ident, board_by_id) for ident in waits}
        after = ", ".join(str(ident) + (f" {fates[ident]}" if fates[ident] else "") for ident in waits)
        word = "cannot start, " if any(fates.values()) else ""
        notes = [f"{word}after {after}" if waits else ""]
        notes += [f"for {task.required_type}" if task.required_type else ""]
        notes += [commands_tasks.describe_priority(task.priority) if task.priority else ""]
        notes += [describe_checked(task), f"in review by {task.review}" if task.in_review is not None else ""]
        rest = f" ({'; '.join(part for part in notes if part)})" if any(notes) else ""
        plight = None
        if task.owner and task.status not in CLOSED:
            plight = commands_tasks.owner_problem(team, task, task.owner)
        owner = (
            f"{task.owner} ({plight})" if plight else task.owner or (f"({task.last_owner})" if task.last_owner else "–")
        )
        rows.append((f"#{task.id}", task.status.replace("_", " "), owner, task.subject + rest))
    return table(("ID", "STATUS", "OWNER", "SUBJECT"), rows, indent=indent)


_CHECK = f"Command that must pass before it is completed; `{store_tasks.NO_CHECK}` for no check."
_MAX = store_tasks.MAX_PRIORITY
_PRIORITY = f"From -{_MAX} to {_MAX}; 0 is normal, a higher one is claimed first."


@click.group(cls=LazyGroup)
def task() -> None:
    """Add tasks to the task board, or change them."""


@task.command()
@click.argument("subject", type=common.text)
@click.option("--description", type=common.text, default="", help="What to do, in detail.")
@click.option("--priority", type=int, default=0, metavar="N", help=_PRIORITY)
@click.option("--owner", shell_complete=common.complete_agent, help="Agent to assign it to; it gets a message.")
@click.option("--blocked-by", type=common.ids, default="", metavar="1,2", help="Tasks that must be completed first.")
@click.option(
    "--type",
    "required_type",
    metavar="T",
    shell_complete=common.complete_agent_type,
    help="Only agents of this type may claim it.",
)
@click.option("--check", type=common.text, metavar="CMD", help=f"{_CHECK} Default: the team's setting.")
@click.option(
    "--review",
    metavar="NAME",
    shell_complete=common.complete_reviewer,
    help="Agent, or `operator`, that must approve the work. Default: none.",
)
@as_json
def add(session: Session, subject: str, **draft: Unpack[TaskDraft]) -> None:
    """Add a task to the task board.

    The check runs in the sandbox of the agent that reports the task as completed; if it fails, the task stays open. The
    reviewer then gets the diff, and approves it or sends it back with feedback.

    Example: crewboard task add "paginate /orders" --owner api --blocked-by 1,2

    Example: crewboard task add "fix the parser" --check "make test"
    """
    _tell(session, commands_tasks.add_task(session.team, subject, **draft))


@task.command()
@click.argument("task_id", metavar="ID", type=common.task_id, shell_complete=common.complete_task)
@click.option("--status", type=click.Choice(get_args(TaskStatus)), help="New status.")
@click.option("--owner", shell_complete=common.complete_agent, help="New owner; it gets a message.")
@click.option("--blocked-by", type=common.ids, metavar="1,2", help="Tasks that must be completed first; '' for none.")
@click.option("--subject", type=common.text, help="New subject.")
@click.option("--description", type=common.text, help="New description; '' for none.")
@click.option("--priority", type=int, metavar="N", help=_PRIORITY)
@click.option("--check", type=common.text, metavar="CMD", help=f"{_CHECK} `default` for the team's.")
@click.option(
    "--review",
    metavar="NAME",
    shell_complete=common.complete_reviewer,
    help="Agent, or `operator`, that must approve the work; `none` for none.",
)
@as_json
def update(session: Session, task_id: int, **edit: Unpack[TaskEdit]) -> None:
    """Change a task. Completing it unblocks the tasks that wait for it, runs no check, and asks for no review.

    An agent that works on the task is not told of an edit.

    Example: crewboard task update 3 --status completed

    Example: crewboard task update 3 --subject "paginate /users too" --priority 2
    """
    if all(given is None for given in edit.values()):
        raise UsageError(
            "nothing to change: use --status, --owner, --blocked-by, --subject, --description, --priority, --check or "
            "--review"
        )
    before = store_tasks.load(session.team.directory, task_id)
    changed = commands_tasks.update_task(session.team, task_id, **edit)
    _tell(session, changed)
    if before.in_review not in (None, changed.in_review):
        note(f"task {task_id}: request {before.in_review}, the review of its work, was withdrawn")


@task.command()
@click.argument("task_id", metavar="ID", type=common.task_id, shell_complete=common.complete_task)
@as_json
def reopen(session: Session, task_id: int) -> None:
    """Reopen a task that failed, was completed or cancelled, for any agent.

    Example: crewboard task reopen 3
    """
    _tell(session, commands_tasks.reopen_task(session.team, task_id))


@click.command()
@common.agent_name
@as_json
def check(session: Session, name: str) -> None:
    """Run the check of the task that the agent NAME has in progress, else the team's.

    It runs in the agent's sandbox, on the files that the agent works on. The output is also kept in results/. Exits
    with 1 if the check fails.

    Example: crewboard check api
    """
    checked, task = commands_tasks.check_agent(
        session.team, name, lambda text: common.put(safe_text(text), newline=False, on_stderr=session.as_json)
    )
    if session.as_json:
        say_json({"agent": name, "task": task.id if task else None, "passed": checked.passed, **checked.as_dict()})
    else:
        words = "passed" if checked.passed else "failed"
        note(f"the check of {name} {words}; its output is in {session.team.directory.path / checked.result}")
    raise click.exceptions.Exit(ExitCode.DONE if checked.passed else ExitCode.FAILED)


def _tell(session: Session, changed: Task) -> None:
    team, owner = session.team, f", {changed.owner}" if changed.owner else ""
    says = f"task {changed.id}: {changed.status.replace('_', ' ')}{owner} · {changed.subject}"
    session.tell(changed.as_dict(), safe_line(says))
    if (command := commands_tasks.passed_over(team, changed)) is not None:
        note(safe_line(f"task {changed.id} is completed, but its check has not passed: {command}"))
    for hindrance in commands_tasks.blocking_reasons(team, changed):
        note(f"task {changed.id}: {hindrance}")
