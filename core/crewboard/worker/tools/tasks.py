"""Tools for the task board, and for the agent's own steps.

An agent completes a task that has a check only after the check passed in the agent's sandbox. The operator decides what
the operator's checks run, so nothing asks about them. A check that a lead set is treated as a bash call of the agent:
plan gate, permission rules and `--ask` apply, because a lead must not get around what the operator set for the agent.
"""

import asyncio
from dataclasses import replace
from typing import Literal

from pydantic import Field

from crewboard import edits
from crewboard.agent_types import type_of
from crewboard.errors import UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import requests, reviews
from crewboard.records.events import FileKept, Intake, SnapshotTaken, ToolResult
from crewboard.records.team import Checked, Shown, Task
from crewboard.sandbox import shell
from crewboard.store import agents, journal, roster, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.worker.tools.base import Context, Input, NoInput, NonBlank, Outcome, tool
from crewboard.worker.tools.permissions import Permit, seek_permit
from crewboard.worker.tools.plans import gate_refusal


class TodoItem(Input):
    text: NonBlank = Field(max_length=200)
    status: Literal["pending", "in_progress", "completed"] = "pending"


class Todo(Input):
    items: list[TodoItem] | None = Field(
        default=None,
        max_length=100,
        description="the whole list, which replaces the last one; without it, that one is shown",
    )


@tool(repeatable=True)
async def todo(context: Context, given: Todo) -> Outcome:
    """List the steps of your present work, and mark them: in_progress when you begin one, completed as soon as it is
    done. The operator sees how far you are. Use it for work of three or more steps; each call gives the whole list.
    Steps are yours alone; tasks on the board are the team's.
    """
    known = context.run_state.conversation.todo
    items = known if given.items is None else [each.model_dump() for each in given.items]
    if not items:
        return Outcome("the list is empty")
    marks = {"pending": " ", "in_progress": ">", "completed": "x"}
    lines = [f"[{marks[each['status']]}] {each['text']}" for each in items]
    return Outcome("\n".join([f"{sum(line.startswith('[x]') for line in lines)} of {len(lines)} done", *lines]))


class TaskClaim(Input):
    task_id: int


class TaskUpdate(Input):
    task_id: int
    status: Literal["pending", "in_progress", "completed", "failed", "cancelled"] | None = None
    description: str | None = Field(default=None, description="replaces the old one")
    priority: int | None = Field(default=None, description="0 is normal, a higher one is claimed first")


def describe(task: Task, board: dict[int, Task]) -> str:
    """Return a task as one line. `board` has all tasks by id, in which those that block it are looked up."""
    owner = f", {task.owner}" if task.owner else ""
    kind = f", for type {task.required_type}" if task.required_type else ""
    blockers = tasks.blockers(task, board) if task.status == "pending" else []
    blocked = f", blocked by {', '.join(map(str, blockers))}" if blockers else ""
    priority = f", priority {task.priority:+d}" if task.priority else ""
    return f"#{task.id} {task.subject} ({task.status}{owner}{kind}{priority}{blocked})"


def describe_proof(team: TeamDirectory, task: Task) -> str:
    """Return what an agent is told about the check and the review of its task; an empty text if it has none."""
    check = tasks.check_of(team, task)
    said = f"\nBefore it is completed, its check `{check.command}` runs and must pass." if check is not None else ""
    return said + (f"\nIt is completed when {task.review} approves your work." if task.review is not None else "")


@tool(reads=True)
async def task_list(context: Context, given: NoInput) -> Outcome:  # noqa: ARG001  no input
    """List the tasks on the board."""
    board = {task.id: task for task in tasks.load_all(context.team)}
    lines = [describe(task, board) for task in board.values()]
    lines += [f"{each} is damaged, so its task is not listed" for each in tasks.damaged(context.team)]
    return Outcome("\n".join(lines) or "no tasks")


@tool(repeatable=True)
async def task_claim(context: Context, given: TaskClaim) -> Outcome:
    """Take a pending task, one with a high priority first. You can have one task in progress at a time."""
    task = tasks.claim(context.team, given.task_id, context.name, context.run_state.spec.type, context.now())
    context.run_state.set_task(task)
    body = f"\n{task.description}" if task.description else ""
    return Outcome(f"task {task.id} is yours: {task.subject}{body}{describe_proof(context.team, task)}")


@tool()
async def task_update(context: Context, given: TaskUpdate) -> Outcome:
    """Report the outcome of your task: completed, failed, or pending to give it back. If the task has a check,
    completed runs it first. Or change its description or priority.
    """
    edit = tasks.TaskEdit()
    if given.description is not None:
        edit["description"] = given.description
    if given.priority is not None:
        edit["priority"] = given.priority
    if given.status is None and not edit:
        raise UsageError("nothing to change: give a status, a description or a priority")
    if given.status == "in_progress":
        claimed = await task_claim.run(context, TaskClaim(task_id=given.task_id))
        if edit:
            tasks.update(context.team, given.task_id, context.name, context.now(), **edit)
        return claimed
    if given.status == "completed":
        return await _complete(context, given.task_id, edit)
    whole: tasks.TaskEdit = {**edit, "status": given.status}
    task = tasks.update(context.team, given.task_id, context.name, context.now(), **whole)
    return _updated(context, task, edit)


def _updated(context: Context, task: Task, edit: tasks.TaskEdit, note: str = "") -> Outcome:
    context.run_state.set_task(tasks.in_progress(context.team, context.name))
    changed = " and changed" if edit else ""
    return Outcome(f"task {task.id} is {task.status.replace('_', ' ')}{changed}{note}")


async def _complete(context: Context, task_id: int, edit: tasks.TaskEdit) -> Outcome:
    """Complete a task, or give it to its reviewer if it has one, and return the outcome. Run its check first.

    A check that fails leaves the task as it is. A lead may complete the task of an agent that runs no commands without
    its check.

    Raises:
        UsageError: The task is in review, or its check cannot run here.
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    team, name = context.team, context.name
    before = tasks.load_for(team, task_id, name)
    if before.in_review is not None:
        raise UsageError(f"{reviews.describe(before)}. Nothing was changed; the answer comes as mail")
    check = tasks.check_of(team, before)
    if check is None and _is_reviewed(context, before):
        return await _hand_over(context, task_id, edit, None)
    if check is None or before.status in tasks.CLOSED or _completes_unchecked(context, before):
        unchecked = check is not None and before.status not in tasks.CLOSED
        task = tasks.complete(team, task_id, name, context.now(), edit=edit, unchecked=unchecked)
        return _updated(context, task, edit, f", without its check `{check.command}`" if check and unchecked else "")
    if not _executes(context, name):
        raise UsageError(
            f"the check `{check.command}` of task {task_id} cannot run: an agent of type "
            f"{context.run_state.spec.type} runs no commands. The task stays {before.status.replace('_', ' ')}; the "
            "lead or the operator completes it"
        )
    permit: Permit | Outcome = Permit()
    if check.by != OPERATOR:
        refused = gate_refusal(context.run_state, "bash")
        permit = refused or await seek_permit(context, "bash", {"command": check.command})
    if isinstance(permit, Outcome):
        return permit
    doing, timeout = f"check of task {task_id}: {check.command}", shell.CHECK_SECONDS + shell.KILL_GRACE
    context.run_state.show_tool(doing, timeout)
    with agents.checking(team.agent(name)):
        finished = await shell.run_check(check.command, context.sandbox, context.survivors, team, name, context.now)
        checked, spec = finished.checked, context.run_state.spec
        if spec.worktree is not None:
            # Imported here because few agents have a worktree.
            from crewboard.worktrees import changes

            # What the check itself wrote belongs to the tree.
            tree = await asyncio.to_thread(changes.tree_of, context.team, context.name, spec)
            checked = checked.replace(tree=tree)
    agents.save_checked(team.agent(name), checked, roster.load(team).check)
    if not checked.passed:
        task = tasks.note_check(team, task_id, name, checked)
        done = Outcome(
            f"task {task_id} stays {task.status.replace('_', ' ')}: its check `{check.command}` failed. Its whole "
            f"output is in {team.path / checked.result}, and ends with:\n{finished.tail}",
            is_error=True,
        )
    elif _is_reviewed(context, before):
        done = await _hand_over(context, task_id, edit, checked)
    else:
        task = tasks.complete(team, task_id, name, context.now(), edit=edit, checked=checked)
        done = _updated(context, task, edit, f": its check `{check.command}` passed")
    return replace(done, consumed=permit.consumed, exit_code=checked.exit_code)


def _is_reviewed(context: Context, task: Task) -> bool:
    """Return True if the calling agent owns this task, which is not closed, and a reviewer must approve it."""
    return task.review is not None and task.status not in tasks.CLOSED and task.owner == context.name


async def _hand_over(context: Context, task_id: int, edit: tasks.TaskEdit, checked: Checked | None) -> Outcome:
    """Give the work on a task to its reviewer, and return the outcome. `checked` is the result of its check, if any.

    `protocol.reviews` says why the steps are in this order.
    """
    team, now = context.team, context.now()
    # The snapshot of a huge checkout takes minutes.
    context.run_state.show_tool(f"hands task {task_id} over", shell.CHECK_SECONDS)
    ident = reviews.request_id(tasks.load_for(team, task_id, context.name))
    diff, shown = await _work_diff(context, task_id)
    reviews.save_diff(team, ident, diff)
    task = tasks.hand_over(team, task_id, context.name, now, edit=edit, checked=checked, request_id=ident, shown=shown)
    request = reviews.ask(team, task, now)
    context.run_state.set_task(tasks.in_progress(team, context.name))
    passed = f", its check `{checked.command}` passed" if checked is not None else ""
    return Outcome(
        f"task {task_id} is in review by {request.to}{passed}. It is completed when {request.to} approves; if not, the "
        "feedback comes as mail. End your turn, or do other work."
    )


def _work_on(context: Context, task_id: int) -> tuple[str | None, dict[str, FileKept]]:
    """Return the snapshot before the work on a task, None without one, and the first change of each file, by path.

    They are looked up in the journal, from the begin of the assignment on in which the task was first in progress, else
    from that of the current one.
    """
    current, began = context.run_state.conversation.assignment, False
    snapshot, kept = None, dict[str, FileKept]()
    for event, _ in journal.read(context.run_state.agent.journal):
        if isinstance(event, Intake) and event.assignment is not None and not began:
            snapshot, kept = None, {}
            began = current is not None and event.assignment == current.id
        began = began or (isinstance(event, Intake | ToolResult) and event.task == task_id)
        if isinstance(event, SnapshotTaken) and event.at == "begin":
            snapshot = snapshot or event.commit
        elif isinstance(event, FileKept):
            kept.setdefault(event.path, event)
    return snapshot, kept


async def _work_diff(context: Context, task_id: int) -> tuple[str, Shown | None]:
    """Return the agent's work on a task as a diff, and the two trees of its checkout that are compared.

    Without a worktree, the diff has only what its file tools changed, and there are no trees (None).
    """
    snapshot, kept = await asyncio.to_thread(_work_on, context, task_id)
    spec = context.run_state.spec
    if spec.worktree is not None:
        # Imported here because few agents have a worktree.
        from crewboard.worktrees import changes

        return await asyncio.to_thread(changes.diff_since, context.team, context.name, spec, snapshot)
    parts = ["Only what the file tools changed is shown: the agent works in the shared tree.\n"]
    for path, change in kept.items():
        now = await context.file_tools.ask("read_text", {"path": path})
        content = None if change.before is None else agents.kept_content(context.run_state.agent, change.before)
        if change.lost or (change.before is not None and content is None):
            parts.append(f"{path}: its old content was not kept. {change.lost}\n")
            continue
        # A file that cannot be read any more is gone, or no text.
        lines = edits.diff_lines((content or b"").decode("utf-8", "replace"), "" if now.is_error else now.content)
        names = f"a/{path}" if change.before else "/dev/null", "/dev/null" if now.is_error else f"b/{path}"
        if lines:
            parts.append("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *lines, ""]))
    return "".join(parts if len(parts) > 1 else [*parts, "They changed no file.\n"]), None


class TaskReview(Input):
    task_id: int
    approve: bool
    feedback: str = ""


@tool()
async def review_task(context: Context, given: TaskReview) -> Outcome:
    """Approve the work on a task, which completes it, or reject it with feedback for its owner. Available only while
    you are asked to review one.
    """
    team, name = context.team, context.name
    request = reviews.asked_of(team, name, given.task_id)
    if request is None:
        raise UsageError(f"no review of task {given.task_id} waits for you")
    if not given.approve and not given.feedback.strip():
        raise UsageError("a rejection needs feedback: say what should be different")
    changed = []
    if given.approve:
        changed = await context.interrupts.run_interruptibly(asyncio.to_thread(reviews.what_changed, team, request))
    decided = requests.respond(
        team, request.id, "approved" if given.approve else "rejected", name, context.now(),
        feedback=given.feedback or None,
    )  # fmt: skip
    reviews.settle(team, decided, context.now())
    return Outcome("; ".join([f"the work of {decided.from_} on task {given.task_id} is {decided.status}", *changed]))


def _executes(context: Context, name: str) -> bool:
    """Return True if an agent's type may run commands, or if the agent has no spec any more."""
    spec = context.team.agent(name).spec.load()
    return spec is None or type_of(spec.type, spec.definition).executes


def _completes_unchecked(context: Context, task: Task) -> bool:
    """Return True if the caller completes the task of another agent, which runs no commands; False if it owns the task.

    Raises:
        UsageError: The check must run where the work was done: the task has another owner that can run it, or none.
    """
    if task.owner == context.name:
        return False
    if task.owner is None:
        raise UsageError(f"task {task.id} has a check, which runs when its owner completes it: claim it first")
    if _executes(context, task.owner):
        raise UsageError(f"task {task.id} has a check, which runs when its owner {task.owner} completes it")
    return True
