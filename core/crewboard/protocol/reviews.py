"""Reviews of tasks: a reviewer is asked about an owner's work, and the answer completes the task or gives it back.

To ask, the task is changed first (`in_review`), then the request is opened and announced. At the end the request is
decided first, then the task is changed. `reconcile` repeats the steps that a kill left out; each step may be done
twice.
"""

from crewboard.errors import UsageError
from crewboard.names import OPERATOR, SYSTEM
from crewboard.protocol import requests
from crewboard.records.base import JsonValue
from crewboard.records.requests import Request
from crewboard.records.team import Reviewed, Task
from crewboard.store import leases, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory

MOST_OF_DIFF = 20_000
"""Most characters of a diff in a request. The whole diff is in `results/`."""


def request_id(task: Task) -> str:
    """Return the id of the next request for a review of a task, which is the same after a crash."""
    return f"review-{mailbox.derived_id('task', task.id, task.created_at, task.reviews)[:12]}"


def feedback_id(request: str) -> str:
    """Return the id of the mail that gives the work back to its owner, after the request with the id `request`."""
    return mailbox.derived_id(request, "again")


def diff_of(request: str) -> str:
    """Return the path of the whole diff of a review, relative to the team directory."""
    return f"results/{request}.diff"


def save_diff(team: TeamDirectory, request: str, diff: str) -> None:
    """Keep the diff that is to be reviewed. Call this before the task is handed over."""
    team.keep_result(f"{request}.diff", diff.encode("utf-8", "replace"))


def reviewer_of(team: TeamDirectory, task: Task) -> str:
    """Return the name of the agent that reviews a task; the operator if that agent is not running, or owns the task."""
    name = task.review or OPERATOR
    if name in (OPERATOR, task.owner) or not leases.is_held(team.agent(name).lease):
        return OPERATOR
    return name


def ask(team: TeamDirectory, task: Task, now: float) -> Request:
    """Ask for the review of a task that was handed over, and return the request; asking again changes nothing."""
    ident = task.in_review or ""
    whole = team.key(diff_of(ident))
    diff = (whole.get() or b"").decode("utf-8", "replace")
    cut = f"\n[cut: the whole diff is in {team.path / diff_of(ident)}]" if len(diff) > MOST_OF_DIFF else ""
    passed = f" Its check `{task.checked.command}` passed." if task.checked and task.checked.passed else ""
    about = f"\n\n{task.description}" if task.description else ""
    summary = f"{task.owner} reports task {task.id} as completed: {task.subject}.{passed}{about}"
    payload: dict[str, JsonValue] = {
        "task": task.id,
        "subject": task.subject,
        "summary": summary,
        "diff": diff[:MOST_OF_DIFF] + cut,
        "file": diff_of(ident),
        # The answer is about these trees, whatever the owner does while it waits.
        **(task.shown.as_dict() if task.shown is not None else {}),
    }
    return requests.ask(team, ident, "task_review", task.owner or SYSTEM, reviewer_of(team, task), payload, now)


def asked_of(team: TeamDirectory, name: str, task_id: int | None = None) -> Request | None:
    """Return the oldest pending review that `name` is asked for, of the given task or of any; None if there is none."""
    return next(
        (
            each
            for each in requests.pending(team)
            if each.type == "task_review" and each.to == name and task_id in (None, each.payload.get("task"))
        ),
        None,
    )


def ask_operator(team: TeamDirectory, request: Request, now: float) -> None:
    """Ask the operator for a review in place of the agent that was asked, unless the request is closed."""
    moved = requests.readdress(team, request.id, OPERATOR)
    if moved is not None:
        mailbox.send(team, requests.mail_of(moved, now), durable=True)


def settle(team: TeamDirectory, request: Request, now: float) -> None:
    """Apply a decided review: complete the task, or give it back with the feedback as mail.

    Do nothing for another request, one that is pending, or one whose task is no longer in this review.
    """
    ident = request.payload.get("task")
    if request.type != "task_review" or not isinstance(ident, int) or request.status == "pending":
        return
    lives = leases.is_held(team.agent(request.from_).lease)
    if tasks.load(team, ident).in_review != request.id:
        return
    if request.status == "rejected" and roster.load(team).member(request.from_) is not None:
        # Before the task is changed: after a kill in between, both are done again.
        subject = tasks.load(team, ident).subject
        text = f"Task {ident}: {subject}\n\n{request.decided_by} reviewed it and asks for changes:\n{request.feedback}"
        mailbox.send(
            team,
            mailbox.compose(
                request.decided_by or SYSTEM, request.from_, "task_assignment", text,
                ident=feedback_id(request.id), ts=now, metadata={"task_id": ident},
            ),
            durable=True,
        )  # fmt: skip
    approval = None
    if request.status == "approved":
        # As its reviewer was shown it.
        since, tree = (str(request.payload.get(each) or "") for each in ("since", "tree"))
        by, at = request.decided_by or SYSTEM, request.decided_at or 0
        approval = Reviewed(of=request.from_, by=by, at=at, since=since, tree=tree)
    tasks.end_review(team, ident, request.id, now, approval=approval, owner_lives=lives)


def what_changed(team: TeamDirectory, request: Request) -> list[str]:
    """Return a sentence, in a list, if an agent changed files since a review of its work was asked for; else none.

    Changes in the shared tree, or in a checkout on another machine, are not known.
    """
    tree = request.payload.get("tree") if request.type == "task_review" else None
    spec = team.agent(request.from_).spec.load_or_none() if tree else None
    if spec is None:
        return []
    # Imported here because few agents have a worktree.
    from crewboard.worktrees import changes

    if changes.tree_of(team, request.from_, spec) in ("", tree):
        return []
    return [f"{request.from_} changed files since this review was asked for: they are not reviewed"]


def reconcile(team: TeamDirectory, now: float) -> None:
    """Repeat steps of reviews that are missing: ask for reviews, and settle decided ones.

    Reviews whose reviewer ended go to the operator; those of tasks that are closed or have another owner are cancelled.
    """
    open_ones = {task.in_review: task for task in tasks.load_all(team) if task.in_review is not None}
    for ident, task in open_ones.items():
        request = requests.load(team, ident)
        if request is None:
            ask(team, task, now)
        elif request.status != "pending":
            settle(team, request, now)
        elif request.to != OPERATOR and reviewer_of(team, task) == OPERATOR:
            ask_operator(team, request, now)
    for request in requests.pending(team):
        if request.type != "task_review":
            continue
        task_id = request.payload.get("task")
        # Read again: the task may have been handed over since, but always before its request was opened.
        try:
            is_asked = isinstance(task_id, int) and tasks.load(team, task_id).in_review == request.id
        except UsageError:
            is_asked = False
        if not is_asked:
            requests.close(team, request.id, "cancelled", SYSTEM, now)


def awaited_by(team: TeamDirectory, name: str) -> Task | None:
    """Return a task whose work the agent `name` handed to a reviewer, and that is not completed; None if none is."""
    return next(
        (
            task
            for task in tasks.load_all(team)
            if task.reviews and task.status in ("pending", "in_progress") and name in (task.owner, task.last_owner)
        ),
        None,
    )


def describe(task: Task) -> str:
    """Return why a task whose owner reported it as completed is not completed."""
    if task.in_review is not None:
        return f"task {task.id} is not completed yet: it waits for the review by {task.review}"
    return f"task {task.id} is not completed: {task.review} asks for changes"
