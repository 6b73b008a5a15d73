"""Killing and resuming: nothing is lost, doubled or run twice; nobody is falsely alive."""

import signal
from collections.abc import Callable

import pytest

from crewboard import process
from crewboard.offline.faults import Fault
from crewboard.offline.script import calls, says
from crewboard.records import Member, Retry, Spec, ToolResult
from crewboard.store import agents, mailbox, roster, tasks
from crewboard.team import board, ending, hiring, mail
from tests.crew import Crew, eventually

Make = Callable[..., Crew]


def test_a_killed_worker_is_dead_with_its_signal_and_its_task_goes_back(crew: Crew) -> None:
    crew.run("other", "explore", "List all Python files")
    task = board.add_task(crew.team, "look at it")
    crew.hire("fixer", "test", "run: sleep 300", task=task.id, unsafe_no_sandbox=True)
    eventually(lambda: "sleep 300" in crew.see("fixer").doing, "the command")
    children = process.descendants(crew.pid("fixer"))
    crew.kill("fixer")
    seen = crew.wait_for("fixer", "crashed")
    assert seen.exit is not None
    assert seen.exit.signal == signal.SIGKILL
    (need,) = crew.view().needs
    assert (need.kind, need.summary) == ("death", "died: killed by SIGKILL, last tool bash sleep 300")
    eventually(lambda: tasks.load(crew.directory, task.id).status == "pending", "the task's return")
    assert tasks.load(crew.directory, task.id).last_owner == "fixer"
    eventually(lambda: not any(process.start_ticks(pid) for pid in children), "the end of the command")

    def told() -> bool:
        return any(m.type == "teammate_terminated" for m in mailbox.read(crew.directory, "other").messages)

    eventually(told, "the others being told")
    letters = mailbox.read(crew.directory, "lead").messages
    assert [m.content for m in letters if m.type == "teammate_terminated"] == ["fixer ended: killed by SIGKILL"]


def test_a_deleted_team_needs_nobody(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    crew.kill("scout")
    crew.wait_for("scout", "crashed")
    agents.want(crew.agent("scout"), "running")
    agents.change_spec(crew.agent("late"), lambda _: Spec(prompt="x", prompt_id="x", type="explore", at=1))
    roster.put(crew.directory, Member(name="late", type="explore"))
    assert {need.kind for need in crew.view().needs} == {"death", "failed_start"}
    ending.delete(crew.team, now=True)
    assert crew.view().needs == ()
    assert crew.see("late").state == "exited"


def test_a_tool_that_was_running_is_never_run_again_by_itself(guild: Crew) -> None:
    guild.model.give("interrupted", calls("bash", command="echo ran >> log; sleep 300"), says("checked"))
    hired = guild.hire("interrupted", "code", "do it", unsafe_no_sandbox=True)
    eventually((guild.root / "log").exists, "the command")
    guild.kill("interrupted")
    guild.wait_for("interrupted", "crashed")
    hiring.resume(guild.team, "interrupted")
    assert guild.answer(hired).text == "checked"
    (result,) = [event for event in guild.events("interrupted") if isinstance(event, ToolResult)]
    assert "outcome unknown" in result.content
    assert (guild.root / "log").read_text() == "ran\n"


def test_a_killed_supervisor_changes_nothing_and_its_successor_learns_the_signal(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    process.send_signal(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not crew.view().supervisor.alive, "the end of the supervisor")
    sent = mail.send(crew.team, "scout", "Give me a summary")
    crew.answer_to("scout", sent.id)
    crew.hire("second", "explore", "List all Python files")
    eventually(lambda: crew.view().supervisor.alive, "a new supervisor")
    crew.kill("scout")
    seen = crew.wait_for("scout", "crashed", "vanished")
    assert seen.exit is None or seen.exit.signal in (signal.SIGKILL, None)


def test_a_fresh_hire_after_an_end_forgets_the_conversation_and_keeps_the_mailbox(guild: Crew) -> None:
    guild.run("renewed", "explore", "List all Python files", once=True)
    guild.wait_for("renewed", "exited")
    mail.send(guild.team, "renewed", "while you were away")
    again = guild.hire("renewed", "explore", "List all Markdown files", once=True)
    assert again.fresh
    assert again.run == 2
    guild.answer(again)
    conversation = str(guild.model.asked_by("renewed")[-1]["messages"])
    assert "while you were away" in conversation
    assert "Python files" not in conversation


def test_stop_asks_an_idle_agent_and_it_leaves(guild: Crew) -> None:
    guild.run("willing", "explore", "List all Python files")
    guild.wait_for("willing", "idle")
    ending.stop(guild.team, "willing")
    seen = guild.wait_for("willing", "exited")
    assert seen.exit is not None
    assert (seen.exit.code, seen.exit.reason) == (0, "shutdown")


def test_stop_now_ends_a_busy_agent_with_all_that_it_started(crew: Crew) -> None:
    crew.hire("busy", "test", "run: (setsid sleep 300 &) ; sleep 300", unsafe_no_sandbox=True)
    eventually(lambda: "sleep" in crew.see("busy").doing, "the command")
    eventually(lambda: len(process.descendants(crew.pid("busy"))) >= 3, "its children")
    family = process.descendants(crew.pid("busy"))
    ending.stop_now(crew.team, "busy")
    assert crew.see("busy").state == "exited"
    eventually(lambda: not any(process.start_ticks(pid) for pid in family), "the end of its children")


def test_refused_credentials_end_the_worker_with_78(crew_on: Make) -> None:
    refusals = {"ann": 401, "ben": 403}
    crew = crew_on(faults=[Fault(kind="status", agent=name, status=status) for name, status in refusals.items()])
    for name, status in refusals.items():
        assert crew.run(name, "explore", "List all Python files").code == 78, status
        seen = crew.wait_for(name, "crashed")
        (need,) = [need for need in crew.view().needs if need.agent == name]
        assert str(status) in need.summary
        assert seen.exit is not None
        assert seen.exit.code == 78


BAD_MOMENTS = (
    Fault(kind="status", status=529),
    Fault(kind="status", status=500),
    Fault(kind="cut", after=1),
    Fault(kind="clean_cut", after=1),
    Fault(kind="error_event", after=1),
)


def test_a_bad_moment_of_the_api_costs_nothing_but_time(crew_on: Make) -> None:
    crew = crew_on(faults=[each for fault in BAD_MOMENTS for each in (fault, None)], script=[says("yes")] * 5)
    for at, fault in enumerate(BAD_MOMENTS):
        hired = crew.hire(f"scout{at}", "explore", "go")
        assert crew.answer(hired).text == "yes", fault
        (retry,) = [event for event in crew.events(hired.agent) if isinstance(event, Retry)]
        assert retry.until > retry.ts
        assert "200" not in retry.error
        assert len(crew.model.requests) == 2 * (at + 1)


def test_a_wait_for_the_api_is_seen(crew_on: Make) -> None:
    crew = crew_on(faults=[Fault(kind="status", status=429, retry_after=1)], script=[says("here it is")])
    hired = crew.hire("scout", "explore", "go")
    seen = crew.wait_for("scout", "retrying")
    assert seen.retry_at is not None
    assert "429" in str(seen.last_error)
    crew.answer(hired)


@pytest.mark.parametrize(("name", "value", "code"), [("KEY", "secret\nof-mine", 78), ("BASE_URL", "nowhere", 1)])
def test_a_request_that_cannot_be_written_is_not_tried_again_and_shows_no_key(
    crew_on: Make, monkeypatch: pytest.MonkeyPatch, name: str, value: str, code: int
) -> None:
    monkeypatch.setattr(hiring, "check_credentials", lambda _: None)
    variable = f"ANTHROPIC_{'API_' if name == 'KEY' else ''}{name}"
    crew = crew_on(**{variable: value})
    answer = crew.run("scout", "explore", "go")
    assert answer.code == code
    assert not [event for event in crew.events("scout") if isinstance(event, Retry)]
    assert "of-mine" not in "".join(path.read_text() for path in crew.agent("scout").path.iterdir() if path.is_file())


def test_an_api_that_stays_away_ends_the_work_with_69_and_the_agent_lives(crew_on: Make) -> None:
    crew = crew_on(faults=[Fault(kind="status", status=529)] * 9, CREWBOARD_RETRY_BUDGET="1")
    answer = crew.run("scout", "explore", "go")
    assert answer.code == 69
    seen = crew.wait_for("scout", "idle")
    assert seen.last_error is not None
    assert "529" in seen.last_error
    assert [m.type for m in mailbox.read(crew.directory, "lead").messages][:1] == ["error"]


def test_the_turn_limit_ends_the_work_with_79(guild: Crew) -> None:
    guild.model.give("turning", *[calls("list_dir")] * 9)
    answer = guild.run("turning", "explore", "go", max_turns=3)
    assert answer.code == 79
    assert len(guild.model.asked_by("turning")) == 3


def test_an_exit_record_says_which_run_it_is(guild: Crew) -> None:
    guild.run("recorded", "explore", "List all Python files", once=True)
    guild.wait_for("recorded", "exited")
    record = agents.exit_record(guild.agent("recorded"))
    assert record is not None
    assert record.run == 1
