"""The check of a task: an agent's task is completed only after its check passed in the agent's sandbox."""

from collections.abc import Callable
from typing import Any

import pytest

from crewboard.commands import answers, control, messages, rules, settings, tasks
from crewboard.commands.context import Team
from crewboard.errors import UsageError
from crewboard.offline.reply import Reply
from crewboard.readmodel.needs import to_acknowledge
from crewboard.records.events import ToolResult
from crewboard.records.team import Checked, Task
from crewboard.store import tasks as board
from crewboard.store.layout import TeamDirectory
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.sandbox.test_shell import long_sleep, running


def completes(task: Task) -> Reply:
    return calls("task_update", task_id=task.id, status="completed")


def work_on(crew: Crew, name: str, task: Task, *replies: Reply, kind: str = "code", **flags: Any) -> list[ToolResult]:
    """Let a new agent take a task and reply; return what its tools said."""
    crew.model.give(name, *replies, says("done"), says("really"))
    crew.run(name, kind, "work", task=task.id, **flags)
    crew.wait_for(name, "idle")
    return results_of(crew, name)


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def saved(crew: Crew, task: Task) -> Task:
    return board.load(crew.directory, task.id)


def output_of(crew: Crew, task: Task) -> str:
    checked = saved(crew, task).checked
    assert checked is not None
    return (crew.directory.path / checked.result).read_text()


def lead_adds(crew: Crew, subject: str, check: str) -> Task:
    """Put a task on the board whose check a lead set."""
    return board.add(crew.directory, subject, 1.0, check=check, by="boss")


@pytest.mark.linux("sandbox")
def test_a_task_is_completed_after_its_check_passed(shared_crew: Crew) -> None:
    task = tasks.add_task(shared_crew.team, "work", check="pwd; env; cat .crewboard/default/config.json")
    (outcome,) = work_on(shared_crew, "green", task, completes(task))
    assert (outcome.is_error, outcome.exit_code) == (True, 1), "the team's files are hidden in the sandbox"
    task = tasks.update_task(shared_crew.team, task.id, check="pwd; env; true")
    shared_crew.model.give("green", completes(task), says("done"))
    shared_crew.answer_to("green", messages.send(shared_crew.team, "green", "again").id)
    outcome = results_of(shared_crew, "green")[-1]
    assert (outcome.is_error, outcome.exit_code) == (False, 0)
    assert (saved(shared_crew, task).status, saved(shared_crew, task).check_failures) == ("completed", 0)
    output = output_of(shared_crew, task)
    assert output.startswith(f"$ {task.check}\n{shared_crew.root}\n")
    assert output.endswith("\n[exit code 0]\n")
    assert "a-key-of-the-tests" not in output


@pytest.mark.long
def test_a_task_stays_in_progress_while_its_check_fails(shared_crew: Crew) -> None:
    task = tasks.add_task(shared_crew.team, "work", check="seq 100; ls fixed-by-red")
    outcomes = work_on(shared_crew, "red", task, completes(task), completes(task))
    after = saved(shared_crew, task)
    assert (after.status, after.owner, after.check_failures) == ("in_progress", "red", 2)
    assert after.checked is not None
    for outcome in outcomes:
        assert (outcome.is_error, outcome.exit_code) == (True, 2)
        assert "\n100\n" in outcome.content
        assert "\n50\n" not in outcome.content, "the last lines"
    assert str(shared_crew.directory.path / after.checked.result) in outcomes[-1].content
    kept = list(shared_crew.directory.results.glob("red-check-*.txt"))
    assert len(kept) == 2, "no output replaces another"
    assert all("\n50\n" in path.read_text() for path in kept)
    (shared_crew.root / "fixed-by-red").write_text("")
    shared_crew.model.give("red", completes(task), says("done"))
    shared_crew.answer_to("red", messages.send(shared_crew.team, "red", "fixed").id)
    assert saved(shared_crew, task).status == "completed"


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_a_check_that_fails_three_times_needs_you(shared_crew: Crew) -> None:
    task = tasks.add_task(shared_crew.team, "work", check="test -e fixed-by-thrice")

    def needs() -> list[str]:
        return [need.summary for need in shared_crew.view().needs if need.kind == "check_failed"]

    def again(*replies: Reply) -> None:
        shared_crew.model.give("thrice", *replies, says("done"))
        shared_crew.answer_to("thrice", messages.send(shared_crew.team, "thrice", "again").id)

    work_on(shared_crew, "thrice", task, completes(task), completes(task))
    assert needs() == []
    again(completes(task))
    assert needs() == [f"check of #{task.id} failed 3 times: test -e fixed-by-thrice"]
    (need,) = [need for need in to_acknowledge(shared_crew.view(), "thrice") if need.kind == "check_failed"]
    assert (need.agent, need.task, need.file) == ("thrice", task.id, saved(shared_crew, task).checked.result)  # type: ignore[union-attr]
    messages.acknowledge_marks(shared_crew.team, dict(need.marks))
    assert needs() == []
    again(completes(task))
    assert needs() == [f"check of #{task.id} failed 4 times: test -e fixed-by-thrice"], "another failure"
    (shared_crew.root / "fixed-by-thrice").write_text("")
    again(completes(task))
    assert needs() == []


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_an_interrupt_ends_a_check_and_counts_no_failure(shared_crew: Crew) -> None:
    mark = long_sleep()
    task = tasks.add_task(shared_crew.team, "work", check=f"sleep {mark}")
    shared_crew.model.give("slow", completes(task), says("I stop"), says("really"))
    shared_crew.hire("slow", "code", "work", task=task.id)
    eventually(lambda: running(mark), "the check")
    seen = shared_crew.see("slow")
    assert (seen.state, seen.doing) == ("working", f"check of task {task.id}: sleep {mark}")
    control.interrupt(shared_crew.team, "slow", "stop that")
    eventually(lambda: not running(mark), "the end of the check")
    shared_crew.wait_for("slow", "idle")
    after = saved(shared_crew, task)
    assert (after.status, after.checked, after.check_failures) == ("in_progress", None, 0)
    assert "interrupted before it ended" in results_of(shared_crew, "slow")[0].content


@pytest.mark.long
def test_an_agent_that_runs_no_commands_cannot_complete_a_checked_task(shared_crew: Crew) -> None:
    task = tasks.add_task(shared_crew.team, "read", check="touch ran-by-reader")
    (outcome,) = work_on(shared_crew, "reader", task, completes(task), kind="explore")
    assert outcome.is_error
    assert "runs no commands" in outcome.content
    assert "the lead or the operator completes it" in outcome.content
    assert saved(shared_crew, task).status == "in_progress"
    assert not (shared_crew.root / "ran-by-reader").exists()
    shared_crew.model.give("boss", completes(task), says("done"))
    shared_crew.run("boss", "lead", "complete it", once=True)
    (waived,) = results_of(shared_crew, "boss")
    assert waived.content == f"task {task.id} is completed, without its check `touch ran-by-reader`"
    assert saved(shared_crew, task).status == "completed"
    shared_crew.wait_for("boss", "exited")


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_a_lead_completes_no_checked_task_of_an_agent_that_runs_commands(shared_crew_on: Callable[..., Crew]) -> None:
    crew = shared_crew_on()
    task = tasks.add_task(crew.team, "work", check="true")
    work_on(crew, "coder", task)
    free = tasks.add_task(crew.team, "free", check="true")
    crew.model.give("boss", completes(task), completes(free), says("no"))
    crew.run("boss", "lead", "complete them", once=True)
    owned, unowned = results_of(crew, "boss")[-2:]
    assert "runs when its owner coder completes it" in owned.content
    assert "claim it first" in unowned.content
    assert (saved(crew, task).status, saved(crew, free).status) == ("in_progress", "pending")
    crew.wait_for("boss", "exited")


@pytest.mark.long
def test_a_check_of_a_lead_obeys_the_rules_for_the_agent(shared_crew: Crew) -> None:
    # Without bubblewrap, commands make no new entry in the root.
    (shared_crew.root / "made").mkdir(exist_ok=True)
    rules.add_rule(shared_crew.team, "deny", "bash", "touch made/by-denied")
    task = lead_adds(shared_crew, "work", "touch made/by-denied")
    (outcome,) = work_on(shared_crew, "denied", task, completes(task))
    assert outcome.is_error
    assert "denies" in outcome.content
    assert saved(shared_crew, task).status == "in_progress"
    assert not (shared_crew.root / "made/by-denied").exists()
    tasks.update_task(shared_crew.team, task.id, check="touch made/by-denied")
    shared_crew.model.give("denied", completes(task), says("done"))
    shared_crew.answer_to("denied", messages.send(shared_crew.team, "denied", "again").id)
    assert saved(shared_crew, task).status == "completed", "the operator's own check needs no permission"


@pytest.mark.linux("sandbox")
def test_a_check_of_a_lead_asks_where_bash_would(shared_crew: Crew) -> None:
    task = lead_adds(shared_crew, "work", "true")
    shared_crew.model.give("asker", completes(task), says("done"), says("really"))
    shared_crew.hire("asker", "code", "work", task=task.id, ask=True)
    request = shared_crew.pending("permission", of="asker")
    assert request.payload["input"] == {"command": "true"}
    answers.approve(shared_crew.team, request.id)
    eventually(lambda: saved(shared_crew, task).status == "completed", "the completion")


@pytest.mark.long
def test_a_check_of_a_lead_waits_for_the_plan(shared_crew: Crew) -> None:
    task = lead_adds(shared_crew, "work", "true")
    (outcome,) = work_on(shared_crew, "planner", task, completes(task), plan=True)
    assert "not allowed before your plan is approved" in outcome.content
    assert saved(shared_crew, task).status == "in_progress"


def test_what_the_operator_set_goes_before_the_check_of_a_lead(directory: TeamDirectory) -> None:
    task = board.add(directory, "work", 1.0, check="true", by="boss")
    crew = Team(directory)

    def check() -> str | None:
        found = board.check_of(directory, board.load(directory, task.id))
        return found.command if found is not None else None

    assert check() == "true"
    settings.change_setting(crew, "check", "make test")
    assert check() == "make test"
    tasks.update_task(crew, task.id, check="make lint")
    assert check() == "make lint"
    tasks.update_task(crew, task.id, check="none")
    assert check() is None
    tasks.update_task(crew, task.id, check="default")
    assert check() == "make test"
    settings.change_setting(crew, "check", "none")
    assert check() is None


def test_the_board_refuses_an_agent_without_a_passed_check(directory: TeamDirectory) -> None:
    task = board.add(directory, "work", 1.0, check="make test", owner="api")
    run = Checked(at=2.0, command="make test", exit_code=0)
    for checked in (None, run.replace(exit_code=2), run.replace(command="true")):
        with pytest.raises(UsageError, match="before its check `make test` passes"):
            board.complete(directory, task.id, "api", 2.0, edit={}, checked=checked)
    with pytest.raises(UsageError, match="before its check `make test` passes"):
        board.update(directory, task.id, "api", 2.0, status="completed")
    with pytest.raises(UsageError, match="only the operator"):
        board.update(directory, task.id, "api", 2.0, check="true")
    assert board.load(directory, task.id).status == "pending"
    assert board.complete(directory, task.id, "api", 2.0, edit={}, checked=run).status == "completed"


@pytest.mark.both_stores("two processes write at once")
def test_a_task_that_is_closed_during_its_check_stays_closed(directory: TeamDirectory) -> None:
    task = board.add(directory, "work", 1.0, check="make test", owner="api")
    board.update(directory, task.id, "operator", 2.0, status="cancelled")
    checked = Checked(at=2.0, command="make test", exit_code=0)
    with pytest.raises(UsageError, match="is cancelled; its owner, the lead or the operator may reopen it"):
        board.complete(directory, task.id, "api", 2.0, edit={}, checked=checked)
    assert board.reopen(directory, task.id, "api", 3.0)[1].status == "pending"


def test_a_lead_cannot_switch_the_check_off(directory: TeamDirectory) -> None:
    with pytest.raises(UsageError, match="only the operator"):
        tasks.add_task(Team(directory, by="boss"), "work", check="none")


@pytest.mark.long
def test_failures_are_forgotten_with_the_owner_and_with_the_check(directory: TeamDirectory) -> None:
    task = board.add(directory, "work", 1.0, check="make test", owner="api")
    failed = Checked(at=2.0, command="make test", exit_code=2)
    assert board.note_check(directory, task.id, "api", failed).check_failures == 1
    assert board.note_check(directory, task.id, "api", failed).check_failures == 2
    assert board.note_check(directory, task.id, "operator", failed).check_failures == 2, "a run of the operator"
    assert board.update(directory, task.id, "operator", 3.0, owner="other").check_failures == 0
    board.note_check(directory, task.id, "other", failed)
    changed = board.update(directory, task.id, "operator", 3.0, check="make lint")
    assert (changed.checked, changed.check_failures) == (None, 0)
