"""The review of a task: the work that its owner reports as completed is completed when a reviewer approves it."""

from collections.abc import Callable
from typing import Any

import pytest

from crewboard.commands import answers, tasks
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.names import OPERATOR
from crewboard.offline.reply import Reply
from crewboard.protocol import requests, reviews
from crewboard.records.base import convert
from crewboard.records.events import Intake, ToolResult
from crewboard.records.messages import Message
from crewboard.records.requests import Request
from crewboard.records.team import Checked, Member, Reviewed, Shown, Task
from crewboard.store import leases, mailbox, roster
from crewboard.store import tasks as board
from crewboard.store.interface import Held
from crewboard.store.layout import TeamDirectory
from crewboard.worker import inbox
from crewboard.worker.assignments import Assignments, Results
from crewboard.worker.limits import Limits
from tests.crash.scenarios import at_work, worker
from tests.crew import Crew, eventually
from tests.model import calls, says


def completes(task: Task) -> Reply:
    return calls("task_update", task_id=task.id, status="completed")


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def saved(team: TeamDirectory, task: Task) -> Task:
    return board.load(team, task.id)


def mail_to(team: TeamDirectory, name: str, kind: str) -> list[Message]:
    return [message for message in mailbox.read(team, name, 0).messages if message.type == kind]


def write_into(crew: Crew, name: str) -> str:
    """Return the path of a file that an agent may write also where commands make no new entry in the root."""
    (crew.root / "made").mkdir(exist_ok=True)
    return f"made/{name}.txt"


@pytest.mark.linux("sandbox")
def test_a_reviewer_gets_the_diff_and_its_approval_completes_the_task(shared_crew: Crew) -> None:
    crew, path = shared_crew, write_into(shared_crew, "ann")
    crew.model.give("rev", says("ready"))
    crew.run("rev", "explore", "wait")
    task = tasks.add_task(crew.team, "write it", check="true", review="rev")
    after = tasks.add_task(crew.team, "next", blocked_by=[task.id])
    crew.model.give("ann", calls("write_file", path=path, content="one\ntwo\n"), completes(task), says("all done"))
    crew.model.give("rev", calls("review_task", task_id=task.id, approve=True, feedback="fine"), says("approved"))
    crew.hire("ann", "code", "work", task=task.id)
    eventually(lambda: saved(crew.directory, task).status == "completed", "the approval")
    (asked,) = mail_to(crew.directory, "rev", "task_review_request")
    assert f"ann reports task {task.id} as completed: write it. Its check `true` passed." in asked.content
    assert f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,2 @@\n+one\n+two\n" in asked.content
    request = requests.load(crew.directory, str(asked.metadata["request_id"]))
    assert request is not None
    assert (request.status, request.decided_by, request.feedback) == ("approved", "rev", "fine")
    assert board.blockers(after, {each.id: each for each in board.load_all(crew.directory)}) == []
    # The report waited for the approval.
    report = eventually(
        lambda: [m for m in mail_to(crew.directory, "lead", "result") if m.from_ == "ann"], "the report"
    )
    assert [message.content for message in report] == ["all done"]
    assert report[0].ts >= (request.decided_at or 0)
    handed = results_of(crew, "ann")[-1]
    assert f"task {task.id} is in review by rev, its check `true` passed" in handed.content


@pytest.mark.long
def test_feedback_of_a_reviewer_reaches_the_owner_as_mail(shared_crew: Crew) -> None:
    crew, path = shared_crew, write_into(shared_crew, "bea")
    task = tasks.add_task(crew.team, "write it", review=OPERATOR)
    crew.model.give(
        "bea", calls("write_file", path=path, content="one\n"), completes(task), completes(task), says("ok")
    )
    crew.hire("bea", "code", "work", task=task.id)
    first = crew.pending("task_review", of="bea")
    crew.wait_for("bea", "idle")
    again = results_of(crew, "bea")[-1]
    assert again.is_error
    assert "is not completed yet: it waits for the review by operator. Nothing was changed" in again.content
    (need,) = [need for need in crew.view().needs if need.kind == "review"]
    assert (need.agent, need.request_id) == ("bea", first.id)
    assert reports_of(crew, "bea") == []
    crew.model.give(
        "bea", calls("edit_file", path=path, old_text="one", new_text="two"), completes(task), says("better")
    )
    answers.reject(crew.team, first.id, "say two")
    second = eventually(lambda: next((r for r in waiting(crew) if r.id != first.id), None), "the second review")
    (feedback,) = mail_to(crew.directory, "bea", "task_assignment")
    assert feedback.content == f"Task {task.id}: write it\n\noperator reviewed it and asks for changes:\nsay two"
    assert "+two" in str(second.payload["diff"])
    assert "-one" not in str(second.payload["diff"]), "compared with the begin of the work, not with the first review"
    answers.approve(crew.team, second.id)
    assert saved(crew.directory, task).status == "completed"
    assert [m.content for m in eventually(lambda: reports_of(crew, "bea"), "the report")] == ["better"]


def reports_of(crew: Crew, name: str) -> list[Message]:
    return [message for message in mail_to(crew.directory, "lead", "result") if message.from_ == name]


def waiting(crew: Crew) -> list[Request]:
    return [each for each in requests.pending(crew.directory) if each.type == "task_review"]


@pytest.mark.long
def test_the_operator_reviews_for_a_reviewer_that_ended(shared_crew: Crew) -> None:
    crew = shared_crew
    crew.model.give("gone", says("ready"))
    crew.run("gone", "code", "wait")
    task = tasks.add_task(crew.team, "work", review="gone")
    # It is killed while it reads the request.
    crew.model.give("gone", calls("bash", command="sleep 600"))
    crew.model.give("cleo", completes(task), says("done"))
    crew.hire("cleo", "code", "work", task=task.id)
    request = crew.pending("task_review", of="cleo")
    eventually(lambda: "sleep 600" in crew.see("gone").doing, "the reviewer at work")
    assert request.to == "gone"
    crew.kill("gone")
    eventually(lambda: waiting(crew)[0].to == OPERATOR, "the operator is asked")
    assert [need.request_id for need in crew.view().needs if need.kind == "review"] == [request.id]
    with pytest.raises(BadDataError, match="is for operator to answer"):
        requests.respond(crew.directory, request.id, "approved", "gone", 1.0)
    answers.approve(crew.team, request.id)
    assert saved(crew.directory, task).status == "completed"


@pytest.mark.long
def test_a_reviewer_that_does_not_answer_is_reminded_once(shared_crew: Crew) -> None:
    crew = shared_crew
    crew.model.give("mute", says("ready"))
    crew.run("mute", "explore", "wait")
    task = tasks.add_task(crew.team, "work", review="mute")
    crew.model.give("mute", says("looks good to me"), says("as I said"))
    crew.model.give("eve", completes(task), says("done"))
    crew.hire("eve", "code", "work", task=task.id)
    request = crew.pending("task_review", of="eve")
    eventually(lambda: waiting(crew)[0].to == OPERATOR, "the operator is asked")
    notices = [text for event in crew.events("mute") if isinstance(event, Intake) for text in event.notices]
    assert notices == [f"You did not answer the review of task {task.id}. Approve or reject with review_task."]
    answers.approve(crew.team, request.id)


@pytest.mark.long
def test_the_offline_model_plays_owner_and_reviewer(crew: Crew) -> None:
    (crew.root / "made").mkdir()
    crew.run("rev", "explore", "hello")
    crew.run("dan", "code", "hello")
    task = tasks.add_task(crew.team, "write 'a TODO' to made/one.txt", owner="dan", review="rev")
    eventually(lambda: saved(crew.directory, task).status == "completed", "the approval")
    _, feedback = mail_to(crew.directory, "dan", "task_assignment")
    assert feedback.content.endswith("rev reviewed it and asks for changes:\nThis is not done yet: a TODO")
    assert saved(crew.directory, task).reviews == 2


# ------------------------------------------------------------------------------------------------ the rules


@pytest.fixture
def team(directory: TeamDirectory) -> Team:
    for name in ("ann", "rev"):
        roster.put(directory, Member(name=name, type="code"))
    return Team(directory, now=lambda: 5.0)


@pytest.fixture
def alive(directory: TeamDirectory) -> Callable[[str], Held]:
    """Return a function that lets an agent appear to be running; return the lease."""

    def make(name: str) -> Held:
        directory.make_folder(f"agents/{name}")
        lease = leases.take(directory.agent(name).lease)
        assert lease is not None
        return lease

    return make


def hand_over(team: Team, task: Task, diff: str = "+x\n", shown: Shown | None = None) -> Task:
    """Do what the tool of the owner does before it asks."""
    ident = reviews.request_id(task)
    reviews.save_diff(team.directory, ident, diff)
    return board.hand_over(team.directory, task.id, "ann", 2.0, edit={}, checked=None, request_id=ident, shown=shown)


def begun(team: Team, check: str | None = None) -> Task:
    task = tasks.add_task(team, "work", review="rev", check=check)
    return board.claim(team.directory, task.id, "ann", "code", 1.0)


def test_an_agent_does_not_review_its_own_task(team: Team) -> None:
    with pytest.raises(UsageError, match="reviewed by ann, which cannot be its owner"):
        tasks.add_task(team, "work", owner="ann", review="ann")
    task = tasks.add_task(team, "work", review="rev")
    with pytest.raises(UsageError, match="cannot be its owner"):
        board.claim(team.directory, task.id, "rev", "code", 1.0)
    with pytest.raises(UsageError, match="cannot be its owner"):
        tasks.update_task(team, task.id, owner="rev")
    with pytest.raises(UsageError, match="no agent 'who'"):
        tasks.add_task(team, "work", review="who")
    board.claim(team.directory, task.id, "ann", "code", 1.0)
    with pytest.raises(UsageError, match="cannot be its owner"):
        tasks.update_task(team, task.id, review="ann")


def test_only_a_review_or_the_operator_completes_a_reviewed_task(team: Team) -> None:
    task = begun(team)
    for by in ("ann", "lead"):
        with pytest.raises(UsageError, match="is completed when rev approves"):
            board.complete(team.directory, task.id, by, 2.0, edit={}, unchecked=True)
        with pytest.raises(UsageError, match="is completed when rev approves"):
            board.update(team.directory, task.id, by, 2.0, status="completed")
    with pytest.raises(UsageError, match="only the operator changes who reviews"):
        board.update(team.directory, task.id, "ann", 2.0, review="none")
    handed = hand_over(team, task)
    request = reviews.ask(team.directory, handed, 3.0)
    with pytest.raises(UsageError, match="is in review by rev; approve or reject that first"):
        tasks.update_task(team, task.id, review="none")
    assert tasks.update_task(team, task.id, status="completed").in_review is None
    closed = requests.load(team.directory, request.id)
    assert closed is not None
    assert closed.status == "cancelled"


def test_the_check_must_pass_before_the_review(team: Team) -> None:
    task = begun(team, check="make test")
    with pytest.raises(UsageError, match="before its check `make test` passes"):
        hand_over(team, task)
    passed = Checked(at=1.0, command="make test", exit_code=0)
    ident = reviews.request_id(task)
    done = board.hand_over(team.directory, task.id, "ann", 2.0, edit={}, checked=passed, request_id=ident)
    assert (done.status, done.in_review, done.checked) == ("in_progress", ident, passed)


@pytest.mark.both_stores("a review is begun in several writes")
def test_a_kill_loses_no_review_and_doubles_none(team: Team, alive: Callable[[str], Held]) -> None:
    alive("rev")
    task = hand_over(team, begun(team))
    # Killed before the request was opened: the death of the owner leaves the work with the reviewer.
    assert board.release(team.directory, "ann", 3.0) == []
    assert requests.load_all(team.directory) == []
    for _ in range(2):
        requests.cancel_requests_of(team.directory, "ann", 3.0)
        reviews.reconcile(team.directory, 3.0)
    (request,) = requests.pending(team.directory)
    assert (request.id, request.to, request.from_) == (task.in_review, "rev", "ann")
    assert len(mail_to(team.directory, "rev", "task_review_request")) == 1
    # Killed after the decision, and before the task was changed.
    requests.respond(team.directory, request.id, "rejected", "rev", 4.0, feedback="no")
    assert saved(team.directory, task).in_review == request.id
    for _ in range(2):
        reviews.reconcile(team.directory, 5.0)
    back = saved(team.directory, task)
    assert (back.status, back.owner, back.last_owner, back.in_review) == ("pending", None, "ann", None)
    assert len({message.id for message in mail_to(team.directory, "ann", "task_assignment")}) == 1
    # The next review is another one.
    alive("ann")
    board.claim(team.directory, task.id, "ann", "code", 6.0)
    assert hand_over(team, saved(team.directory, task)).in_review != request.id


def test_an_approval_is_kept_with_what_was_shown(team: Team, alive: Callable[[str], Held]) -> None:
    alive("ann")
    task = hand_over(team, begun(team), shown=Shown(since="a", tree="b"))
    # Killed before the request was opened.
    reviews.reconcile(team.directory, 3.0)
    (request,) = requests.pending(team.directory)
    assert (request.payload["since"], request.payload["tree"]) == ("a", "b")
    answers.approve(team, request.id)
    kept = Reviewed(of="ann", by=OPERATOR, at=5.0, since="a", tree="b")
    assert saved(team.directory, task).reviewed == kept
    # Work that is refused has no approval; the last one stays.
    tasks.reopen_task(team, task.id)
    board.claim(team.directory, task.id, "ann", "code", 6.0)
    again = reviews.ask(team.directory, hand_over(team, saved(team.directory, task), shown=Shown("b", "c")), 7.0)
    assert again.payload["tree"] == "c"
    answers.reject(team, again.id, "no")
    assert saved(team.directory, task).reviewed == kept


def test_work_in_the_shared_tree_is_approved_without_a_tree(team: Team) -> None:
    task = hand_over(team, begun(team))
    request = reviews.ask(team.directory, task, 3.0)
    assert "tree" not in request.payload
    assert reviews.what_changed(team.directory, request) == []
    answers.approve(team, request.id)
    assert saved(team.directory, task).reviewed == Reviewed(of="ann", by=OPERATOR, at=5.0)
    older = {
        "id": 9,
        "subject": "work",
        "review": "rev",
        "in_review": "review-1",
        "reviews": 1,
        "status": "in_progress",
    }
    assert convert(older, Task).reviewed is None


def test_an_answer_again_ends_a_review_that_was_cut_short(team: Team) -> None:
    handed = hand_over(team, begun(team))
    request = reviews.ask(team.directory, handed, 3.0)
    assert request.to == OPERATOR, "the reviewer is not running"
    requests.respond(team.directory, request.id, "approved", OPERATOR, 4.0)
    with pytest.raises(BadDataError, match="already approved"):
        answers.approve(team, request.id)
    assert saved(team.directory, handed).status == "completed"


def test_a_rejected_task_waits_while_its_owner_has_another(team: Team, alive: Callable[[str], Held]) -> None:
    alive("ann")
    handed = hand_over(team, begun(team))
    other = tasks.add_task(team, "other", owner="ann")
    board.claim(team.directory, other.id, "ann", "code", 3.0)
    request = reviews.ask(team.directory, handed, 3.0)
    answers.reject(team, request.id, "no")
    assert (saved(team.directory, handed).status, saved(team.directory, handed).owner) == ("pending", "ann")
    with pytest.raises(TryLaterError):
        board.claim(team.directory, handed.id, "ann", "code", 4.0)


def test_feedback_is_not_overtaken_by_a_reminder_of_the_task(
    team: Team, alive: Callable[[str], Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.add_task(team, "work", review="rev")
    at_work(team.directory, "ann")
    alive("ann")
    board.claim(team.directory, task.id, "ann", "code", 1.0)
    request = reviews.ask(team.directory, hand_over(team, task), 3.0)
    run_state = worker(team.directory, "ann")
    results = Results(run_state)
    results.answer("ok")
    assignments = Assignments(run_state, results, Limits(run_state, results.send, is_priced=True))
    look = inbox.look
    rejected: list[Request] = []

    def look_then_reject(*given: Any) -> inbox.PendingMail:
        found = look(*given)
        if not rejected:
            rejected.append(answers.reject(team, request.id, "say two"))
        return found

    monkeypatch.setattr(inbox, "look", look_then_reject)
    assert not assignments.look()
    assert assignments.look()
    assignment = run_state.conversation.assignment
    assert assignment is not None
    assert assignment.id == reviews.feedback_id(request.id)


@pytest.mark.long
def test_a_long_diff_is_cut_and_kept_whole(team: Team, alive: Callable[[str], Held]) -> None:
    alive("rev")
    diff = "+line\n" * 10_000
    request = reviews.ask(team.directory, hand_over(team, begun(team), diff), 3.0)
    (message,) = mail_to(team.directory, "rev", "task_review_request")
    assert len(message.content) < reviews.MOST_OF_DIFF + 1000
    path = team.directory.path / str(request.payload["file"])
    assert f"[cut: the whole diff is in {path}]" in message.content
    assert path.read_text() == diff
