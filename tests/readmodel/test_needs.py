"""The list of needs: what only the operator can answer."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from crewboard import operations
from crewboard.commands import answers, control, messages, settings, stop
from crewboard.commands import tasks as board
from crewboard.commands.context import Team
from crewboard.errors import TryLaterError
from crewboard.names import OPERATOR, SYSTEM
from crewboard.protocol import requests
from crewboard.readmodel.needs import CHECK_FAILURES, to_acknowledge, waiting_behind
from crewboard.readmodel.reader import read_team
from crewboard.records.agents import Cursor, Engine
from crewboard.records.events import RunEnded
from crewboard.records.processes import Exit
from crewboard.records.team import Checked
from crewboard.store import agents, journal, mailbox, roster, tasks
from crewboard.store.layout import TeamDirectory
from tests.cli.files import alive, enlist, set_status


def needed(team: Team) -> list[str | None]:
    return [need.request_id for need in read_team(team.directory).needs]


def test_a_plan_goes_to_the_operator_if_no_lead_can_review_it(tmp_path: Path) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    settings.set_approver(team, "lead")
    enlist(team, "lead", "lead")
    enlist(team, "fixer")
    requests.ask(team.directory, "p1", "plan_approval", "fixer", "lead", {"plan": "# Do it"}, 5.0, by_mail=False)
    assert "p1" in needed(team)
    with alive(team, "lead"):
        assert "p1" not in needed(team)
        settings.set_approver(team, "operator")
        assert "p1" in needed(team)
        answers.approve(team, "p1")
        assert "p1" not in needed(team)


def test_a_failed_assignment_needs_you_until_acknowledged(tmp_path: Path) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    for name, code in (("turns", 79), ("outage", 69), ("refused", 1)):
        enlist(team, name, failed=code, failed_at=7.0, last_error="why")
    enlist(team, "fine")
    with alive(team, "turns"), alive(team, "outage"), alive(team, "refused"), alive(team, "fine"):
        found = {need.agent: need for need in read_team(team.directory).needs}
        assert {name: (need.kind, need.code, need.limit) for name, need in found.items()} == {
            "turns": ("failed", 79, "turns"),
            "outage": ("failed", 69, None),
            "refused": ("failed", 1, None),
        }
        assert (found["turns"].since, found["turns"].summary) == (7.0, "stopped: why")
        messages.acknowledge(team, "outage")
        set_status(team, "turns", state="working")
        assert [need.agent for need in read_team(team.directory).needs] == ["refused"]
        set_status(team, "outage", failed=69, failed_at=8.0)
        assert {need.agent for need in read_team(team.directory).needs} == {"refused", "outage"}
        with pytest.raises(TryLaterError):
            messages.acknowledge(team, "fine")


@pytest.mark.parametrize(
    ("budget", "reason", "limit"),
    [("30k", "budget", "budget"), (None, "budget", "team_budget"), (None, "turn_limit", "turns")],
)
def test_a_need_names_the_limit_that_stopped_the_agent(
    tmp_path: Path, budget: str | None, reason: str, limit: str
) -> None:
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    enlist(team, "dear")
    agent = team.directory.agent("dear")
    control.change_limits(team, "dear", budget=budget)
    agents.write_exit(agent, Exit(run=1, code=79, reason=reason, at=5.0, buried=True))
    (need,) = read_team(team.directory).needs
    assert (need.kind, need.code, need.limit) == ("failed", 79, limit)


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()


def finish(team: Team, name: str, kind: str = "code") -> None:
    """Put an agent on the roster whose run has ended in order."""
    enlist(team, name, kind)
    agents.write_exit(team.directory.agent(name), Exit(run=1, code=0, reason="finished", at=5.0, buried=True))


def kinds(team: Team) -> list[tuple[str, str]]:
    return [(need.kind, need.agent) for need in read_team(team.directory).needs]


def send_result(team: Team, author: str, text: str, to: str = "lead", ts: float = 5.0) -> None:
    message = mailbox.compose(author, to, "result", text, ts=ts, metadata={"result": f"results/{author}-1-1.md"})
    mailbox.send(team.directory, message)


def test_an_unread_result_needs_you_until_read_or_acknowledged(team: Team) -> None:
    finish(team, "scout")
    send_result(team, "scout", "41 modules")
    send_result(team, "scout", "\n42 modules\nand more", ts=9.0)
    (need,) = read_team(team.directory).needs
    assert (need.kind, need.agent, need.summary) == ("result", "scout", "result (+1 more): 42 modules")
    assert (need.file, need.mailbox, need.since) == ("results/scout-1-1.md", "lead", 9.0), "of what it shows"
    assert read_team(team.directory).agents[0].unread_results == 2
    messages.acknowledge_marks(team, dict(need.marks))
    assert kinds(team) == []
    assert read_team(team.directory).unread["lead"] == 2, "the mail itself stays unread"
    send_result(team, "scout", "43 modules")
    assert kinds(team) == [("result", "scout")]
    messages.mark_read(team, "lead", mailbox.size(team.directory, "lead"))
    assert kinds(team) == []


def test_a_refusal_that_was_acknowledged_is_no_refusal_any_more(team: Team) -> None:
    finish(team, "scout")
    set_status(team, "scout", state="exited", failed=1, failed_at=5.0, refused_by="m")
    assert messages.is_refused(team, "scout")
    messages.acknowledge(team, "scout")
    assert not messages.is_refused(team, "scout")


def test_a_removed_agent_leaves_no_need(team: Team) -> None:
    finish(team, "scout")
    send_result(team, "scout", "41 modules")
    requests.ask(team.directory, "q-1", "question", "scout", OPERATOR, {"question": "?"}, 1.0, by_mail=False)
    assert {kind for kind, _ in kinds(team)} == {"question", "result"}
    stop.remove(team, "scout")
    assert kinds(team) == []


def test_needs_of_tasks_name_no_agent_that_was_removed(team: Team) -> None:
    for name in ("gone", "left"):
        finish(team, name)
    failed = tasks.add(team.directory, "fails", 1.0, owner="gone")
    checked = tasks.add(team.directory, "is checked", 1.0, owner="left", check="make")
    for run in range(CHECK_FAILURES):
        tasks.note_check(
            team.directory, checked.id, "left", Checked(at=float(run), command="make", exit_code=1, result="x")
        )
    tasks.update(team.directory, failed.id, OPERATOR, 2.0, status="failed")
    assert kinds(team) == [("task_failed", "gone"), ("check_failed", "left")]
    for name in ("gone", "left"):
        roster.drop(team.directory, name)
    assert kinds(team) == [("task_failed", SYSTEM), ("check_failed", SYSTEM)]


def test_stopping_an_ended_agent_leaves_tasks_of_others(team: Team) -> None:
    for name in ("mine", "yours"):
        finish(team, name)
        failed = tasks.add(team.directory, f"of {name}", 1.0, owner=name)
        tasks.update(team.directory, failed.id, OPERATOR, 2.0, status="failed")
    released = tasks.add(team.directory, "left by mine", 1.0, owner="mine")
    tasks.release(team.directory, "mine", 2.0)
    tasks.update(team.directory, released.id, OPERATOR, 3.0, status="failed")
    assert stop.stop_now(team, "mine") == "gone"
    assert kinds(team) == [("task_failed", "yours")]


def test_the_end_of_a_team_leaves_results_and_failed_tasks(team: Team) -> None:
    finish(team, "scout")
    send_result(team, "scout", "41 modules")
    failed = tasks.add(team.directory, "fails", 1.0)
    tasks.update(team.directory, failed.id, OPERATOR, 2.0, status="failed")
    before = kinds(team)
    assert {kind for kind, _ in before} == {"result", "task_failed"}
    stop.delete(team, now=True)
    assert kinds(team) == before


def test_result_needs_can_be_switched_off(team: Team) -> None:
    send_result(team, "scout", "41 modules")
    settings.change_setting(team, "result_needs", "off")
    assert kinds(team) == []
    settings.change_setting(team, "result_needs", "on")
    assert kinds(team) == [("result", "scout")]


def test_results_for_a_lead_that_is_an_agent_are_not_yours(team: Team) -> None:
    finish(team, "lead", "lead")
    send_result(team, "scout", "41 modules")
    send_result(team, "lead", "done", to="operator")
    assert kinds(team) == [("result", "lead")]


def lead_begins_here(team: Team) -> None:
    """Put a lead on the roster that reads its mailbox from its present end on."""
    finish(team, "lead", "lead")
    lead = team.directory.agent("lead")
    spec = lead.spec.load()
    assert spec is not None
    lead.spec.save(spec.replace(mail_from=mailbox.size(team.directory, "lead")))


def test_results_from_before_a_lead_stay_yours_until_read(team: Team) -> None:
    finish(team, "scout")
    send_result(team, "scout", "41 modules")
    lead_begins_here(team)
    send_result(team, "scout", "43 modules", ts=9.0)
    (need,) = read_team(team.directory).needs
    assert (need.agent, need.mailbox, need.summary) == ("scout", "lead", "result: 41 modules"), (
        "the lead reads the other"
    )
    messages.acknowledge_marks(team, dict(need.marks))
    assert kinds(team) == []


def test_results_that_come_after_a_lead_was_removed_need_you(team: Team) -> None:
    finish(team, "scout")
    send_result(team, "scout", "x" * 5000)
    messages.mark_read(team, "lead", mailbox.size(team.directory, "lead"))
    lead_begins_here(team)
    messages.acknowledge_results(team, "scout")
    stop.remove(team, "lead")
    send_result(team, "scout", "43 modules")
    (need,) = read_team(team.directory).needs
    assert (need.agent, need.summary) == ("scout", "result: 43 modules")
    lead_begins_here(team)
    assert kinds(team) == [("result", "scout")], "the next lead begins behind it"


def test_a_failed_task_needs_you_until_it_is_tried_again(team: Team) -> None:
    finish(team, "fixer")
    task, waiting = board.add_task(team, "fix it", owner="fixer"), board.add_task(team, "ship it", owner="fixer")
    board.update_task(team, waiting.id, blocked_by=[task.id])
    board.update_task(team, task.id, status="failed")
    view = read_team(team.directory)
    (need,) = view.needs
    assert (need.kind, need.agent, need.task, need.summary) == ("task_failed", "fixer", 1, "task #1 failed: fix it")
    assert [each.id for each in waiting_behind(view, need).tasks] == [2]
    messages.acknowledge_marks(team, dict(need.marks))
    assert kinds(team) == []
    board.update_task(team, task.id, status="pending")
    board.update_task(team, task.id, status="failed", owner="fixer")
    assert kinds(team) == [("task_failed", "fixer")], "another failure is another need"
    operations.retry_task(team, task.id)
    assert kinds(team) == []
    assert [m.type for m in mailbox.read(team.directory, "fixer").messages][-1] == "task_assignment"


def test_a_file_that_cannot_be_read_needs_you_until_acknowledged(team: Team) -> None:
    finish(team, "scout")
    status = team.directory.agent("scout").status
    status.on_disk.write_text("{")
    team.directory.task(3).on_disk.write_text("{")
    found = {need.file: need for need in read_team(team.directory).needs}
    assert {place: (need.kind, need.agent) for place, need in found.items()} == {
        "agents/scout/status.json": ("damaged", "scout"),
        "tasks/3.json": ("damaged", "system"),
    }
    assert found["tasks/3.json"].summary == "cannot read tasks/3.json"
    assert found["tasks/3.json"].since == team.directory.task(3).on_disk.stat().st_mtime
    for need in found.values():
        messages.acknowledge_marks(team, dict(need.marks))
    assert kinds(team) == []
    os.utime(status.on_disk, (time.time() + 9, time.time() + 9))
    assert kinds(team) == [("damaged", "scout")], "it was damaged again"


def test_unreadable_lines_of_mail_need_you(team: Team) -> None:
    with team.directory.inbox("operator").on_disk.open("ab") as file:
        file.write(b"{no json}\n")
    (need,) = read_team(team.directory).needs
    assert (need.kind, need.summary) == ("damaged", "1 unreadable line in mail of operator")


def test_damage_of_an_agent_without_mail_has_a_time(team: Team) -> None:
    enlist(team, "loner")
    loner = team.directory.agent("loner")
    loner.cursor.save(Cursor(damaged=1))
    journal.append(loner.journal, RunEnded(ts=1, run=1, code=0, reason="finished"))
    assert not team.directory.inbox("loner").exists()
    (need,) = (need for need in read_team(team.directory).needs if need.kind == "damaged")
    assert need.since == loner.journal.changed_at()


def test_an_outage_is_one_need_for_the_whole_team(team: Team) -> None:
    waiting: dict[str, Any] = {"state": "retrying", "last_error": "529 overloaded_error", "outage_since": 10.0}
    enlist(team, "api", retry_at=90.0, **waiting)
    enlist(team, "ui", retry_at=80.0, **waiting)
    enlist(team, "gone", retry_at=70.0, **waiting)
    with alive(team, "api"), alive(team, "ui"):
        view = read_team(team.directory)
        need = next(need for need in view.needs if need.kind == "outage")
        until = time.strftime("%H:%M", time.localtime(80.0))
        assert need.summary == f"the API is unavailable: 529 overloaded_error; 2 agents wait until {until}"
        assert (need.agent, need.since, waiting_behind(view, need).agents) == ("system", 10.0, ("api", "ui"))
        messages.acknowledge_marks(team, dict(need.marks))
        assert "outage" not in [kind for kind, _ in kinds(team)]
        set_status(team, "ui", **{**waiting, "outage_since": 20.0})
        set_status(team, "api", state="working")
        assert "outage" in [kind for kind, _ in kinds(team)], "another outage is another need"


def test_an_engine_that_ended_is_no_outage_of_the_api(team: Team) -> None:
    enlist(team, "e", state="retrying", last_error="Codex ended: by signal 9", outage_since=10.0)
    spec = team.directory.agent("e").spec.load()
    assert spec is not None
    spec = spec.replace(engine=Engine(name="codex", command=["codex"]))
    agents.change_spec(team.directory.agent("e"), lambda _: spec)
    with alive(team, "e"):
        (need,) = [need for need in read_team(team.directory).needs if need.kind == "outage"]
        assert need.summary == "Codex ended: by signal 9; e waits"
        enlist(team, "own", state="retrying", last_error="529", outage_since=10.0)
        with alive(team, "own"):
            (need,) = [need for need in read_team(team.directory).needs if need.kind == "outage"]
            assert need.summary == "the API is unavailable: 529; 2 agents wait"


def test_a_run_ended_by_a_limit_is_not_done_until_acknowledged(team: Team) -> None:
    enlist(team, "dear")
    agents.write_exit(team.directory.agent("dear"), Exit(run=1, code=79, reason="budget", at=5.0, buried=True))
    (seen,) = read_team(team.directory).agents
    assert (seen.state, seen.shown) == ("exited", "limit")
    messages.acknowledge(team, "dear")
    (seen,) = read_team(team.directory).agents
    assert (seen.state, seen.shown) == ("exited", "done")


def test_acknowledging_a_death_does_not_mark_results_as_read(team: Team) -> None:
    enlist(team, "fixer")
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=5.0, buried=True))
    send_result(team, "fixer", "half of it")
    view = read_team(team.directory)
    assert [need.kind for need in view.needs] == ["death", "result"]
    assert [need.kind for need in to_acknowledge(view, "fixer")] == ["death"]
    messages.acknowledge(team, "fixer")
    assert [need.kind for need in to_acknowledge(read_team(team.directory), "fixer")] == ["result"]


def test_a_need_names_the_agents_and_tasks_behind_it(team: Team) -> None:
    finish(team, "api")
    finish(team, "ui")
    first, second = board.add_task(team, "a", owner="api"), board.add_task(team, "b", owner="ui")
    board.update_task(team, second.id, blocked_by=[first.id])
    board.update_task(team, first.id, status="failed")
    view = read_team(team.directory)
    waiting = waiting_behind(view, view.needs[0])
    assert (waiting.agents, [task.id for task in waiting.tasks], waiting.count) == (("ui",), [2], 2)
    assert waiting.describe() == "#2, 1 agent"
