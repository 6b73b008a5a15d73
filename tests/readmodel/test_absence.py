"""The events in a team while the user was away: counted from its files, and told on one line."""

import os
import time
from pathlib import Path
from typing import TypeVar

import pytest

from crewboard.commands import answers, messages
from crewboard.commands import tasks as board
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.readmodel.changes import Absence, Happening, read_absence
from crewboard.readmodel.reader import read_team
from crewboard.records.agents import Tokens
from crewboard.records.base import JsonValue, Record
from crewboard.records.events import RunEnded, RunStarted
from crewboard.records.messages import Message
from crewboard.records.processes import Exit
from crewboard.records.requests import NewNote
from crewboard.records.team import Act
from crewboard.store import agents, codec, files, journal, mailbox, operators
from crewboard.store.layout import TeamDirectory
from tests.cli.files import enlist, set_status

R = TypeVar("R", bound=Record)

LEFT = 1_000_000.0
"""The time at which the user left."""


@pytest.fixture
def team(tmp_path: Path) -> Team:
    made = Team(TeamDirectory(tmp_path / ".crewboard" / "default"), environment={"CREWBOARD_OPERATOR": "Ann"}).ensure()
    enlist(made, "fixer")
    enlist(made, "scout")
    return made


def absence(team: Team, *, cost_usd: float | None = None) -> Absence:
    return read_absence(team.directory, read_team(team.directory), LEFT, cost_usd=cost_usd, operator="Ann")


def put_result(team: Team, name: str, text: str, at: float) -> None:
    path = team.directory.results / name
    files.make_folder(path.parent)
    files.replace_file(path, text.encode())
    os.utime(path, (at, at))


def run_started(run: int, before: Exit | None) -> RunStarted:
    return RunStarted(
        ts=LEFT, run=run, pid=1, type="code", model="m", fresh=False, prompt_id="p", before=before
    )  # fmt: skip


def told(absence: Absence) -> list[tuple[str, str, str]]:
    return [(each.kind, each.agent, each.text) for each in absence.happenings]


def test_nothing_happened_while_the_user_was_away(team: Team) -> None:
    put_result(team, "fixer-1-1.md", "seen before", LEFT - 1)
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=LEFT - 1))
    requests.ask(team.directory, "p1", "plan_approval", "fixer", "operator", {"plan": "# Old"}, LEFT - 1, by_mail=False)
    operators.note_act(team.directory, Act(ts=LEFT - 1, who="Kim", act="stop", target="fixer"))
    found = absence(team)
    assert told(found) == []
    assert not found


def test_results_plans_and_questions_are_counted(team: Team) -> None:
    put_result(team, "fixer-1-1.md", "\n# Done: the parser\nmore", LEFT + 1)
    put_result(team, "fixer-mail-0123456789abcdef.md", "a long message, no result", LEFT + 1)
    requests.ask(
        team.directory, "p1", "plan_approval", "fixer", "operator", {"plan": "# Split it"}, LEFT + 2, by_mail=False
    )
    answers.approve(team, "p1")
    requests.ask(
        team.directory, "q1", "question", "scout", "operator", {"question": "keep 1.x?"}, LEFT + 3, by_mail=False
    )
    assert told(absence(team)) == [
        ("result", "fixer", "Done: the parser"),
        ("plan", "fixer", "plan: Split it · approved"),
        ("question", "scout", "asks: keep 1.x?"),
    ]


def test_a_plan_that_may_come_again_is_not_told_as_rejected(team: Team) -> None:
    for ident, words in (("p1", "Question: which?"), ("p2", ""), ("p3", "no")):
        payload: dict[str, JsonValue] = {"plan": "# Split it"}
        requests.ask(team.directory, ident, "plan_approval", "fixer", "operator", payload, LEFT + 2, by_mail=False)
        answers.reject(team, ident, words, notes=[] if words else [NewNote(1, 1, "why?")])
    told_of = {each.request_id: each.text.rpartition(" · ")[2] for each in absence(team).happenings}
    assert [told_of[ident] for ident in ("p1", "p2", "p3")] == ["asked back", "sent back", "rejected"]


def test_each_death_counts_also_before_a_restart(team: Team) -> None:
    fixer = team.directory.agent("fixer")
    journal.append(fixer.journal, run_started(2, Exit(run=1, signal=9, reason="died", at=LEFT + 1)))
    journal.append(fixer.journal, RunEnded(ts=LEFT + 2, run=2, code=70, reason="internal"))
    journal.append(fixer.journal, run_started(3, None))
    agents.write_exit(fixer, Exit(run=3, signal=11, reason="died", at=LEFT + 3))
    set_status(team, "fixer", run=3)
    scout = team.directory.agent("scout")
    journal.append(scout.journal, RunEnded(ts=LEFT + 2, run=1, code=0, reason="finished"))
    agents.write_exit(scout, Exit(run=1, code=79, reason="budget", at=LEFT + 4))
    assert told(absence(team)) == [
        ("death", "fixer", "killed by SIGKILL"),
        ("death", "fixer", "exit 70: an error in crewboard"),
        ("death", "fixer", "killed by SIGSEGV"),
        ("failure", "scout", "reached its budget"),
    ]


def test_tasks_and_acts_of_other_users_are_told(team: Team) -> None:
    board.add_task(team, "Write the tests")
    board.update_task(team, 1, status="failed")
    for who in ("Ann", "Kim"):
        operators.note_act(team.directory, Act(ts=LEFT + 9, who=who, act="stop", target="scout"))
    found = absence(team).happenings
    acts = [each.text for each in found if each.kind == "act" and "stop" in each.text]
    assert acts == ["Kim: stop scout"]
    assert [(each.text, each.task) for each in found if each.kind == "task_failed"] == [("#1 Write the tests", 1)]


def test_acts_of_others_say_what_they_are_about(team: Team) -> None:
    kim = Team(team.directory, environment={"CREWBOARD_OPERATOR": "Kim"})
    board.add_task(kim, "Write the tests")
    requests.ask(
        team.directory, "q-1", "question", "scout", "operator", {"question": "which?"}, LEFT + 1, by_mail=False
    )
    answers.answer(kim, "q-1", "both")
    messages.send(kim, "scout", "paint the fence\nin green")
    messages.broadcast(kim, "freeze main")
    messages.broadcast(kim, "go on")
    acts = [each for each in absence(team).happenings if each.kind == "act"]
    assert [(each.text, each.agent, each.task, each.request_id) for each in acts] == [
        ("Kim: task add #1", "", 1, None),
        ("Kim: answer scout q-1", "scout", None, "q-1"),
        ("Kim: message scout: paint the fence", "scout", None, None),
        ("Kim: broadcast to 2 agents: freeze main", "", None, None),
        ("Kim: broadcast to 2 agents: go on", "", None, None),
    ]
    team.directory.inbox("scout").remove()
    assert "Kim: message scout: message " in [each.text for each in absence(team).happenings if each.kind == "act"][2]


def test_a_stop_is_about_the_agent_and_not_its_request(team: Team) -> None:
    kim = Team(team.directory, environment={"CREWBOARD_OPERATOR": "Kim"})
    requests.ask(team.directory, "s-1", "shutdown", "operator", "scout", {}, LEFT + 1, by_mail=False)
    kim.note("stop", "scout", "s-1")
    (act,) = absence(team).happenings
    assert (act.text, act.agent, act.request_id) == ("Kim: stop scout s-1", "scout", None)


def test_broadcasts_whose_message_is_gone_are_not_joined(team: Team) -> None:
    kim = Team(team.directory, environment={"CREWBOARD_OPERATOR": "Kim"})
    for text in ("freeze main", "go on"):
        messages.broadcast(kim, text)
    for name in ("fixer", "scout"):
        team.directory.inbox(name).remove()
    acts = [(each.agent, each.text) for each in absence(team).happenings]
    assert [agent for agent, _ in acts] == ["fixer", "scout"] * 2
    assert all(f"Kim: broadcast {agent}: message " in text for agent, text in acts)


def test_only_mail_of_users_is_parsed_for_their_words(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    kim = Team(team.directory, environment={"CREWBOARD_OPERATOR": "Kim"})
    mailbox.send(team.directory, mailbox.compose("fixer", "scout", "result", "done"))
    messages.broadcast(kim, "freeze main", ["scout"])
    view = read_team(team.directory)
    parsed: list[bytes] = []
    decode = codec.decode

    def count(line: bytes, model: type[R]) -> R:
        if model is Message:
            parsed.append(line)
        return decode(line, model)

    monkeypatch.setattr(codec, "decode", count)
    assert told(read_absence(team.directory, view, LEFT)) == [("act", "scout", "Kim: broadcast scout: freeze main")]
    assert [b"freeze main" in line for line in parsed] == [True]


def test_the_cost_is_what_was_spent_since(team: Team) -> None:
    set_status(team, "fixer", cost_usd=3.5, tokens=Tokens(input=1))
    assert absence(team).cost_usd is None
    assert absence(team, cost_usd=3.5).cost_usd is None
    found = absence(team, cost_usd=1.4)
    assert found
    assert found.cost_usd == pytest.approx(2.1)


def test_an_absence_is_told_on_one_line() -> None:
    left = time.mktime((2026, 11, 20, 14, 2, 0, 0, 0, -1))
    kinds = ("plan", "death", "result", "plan", "result", "result", "act")
    happenings = tuple(Happening(left, kind, "api", "") for kind in kinds)  # type: ignore[arg-type]
    found = Absence(left, happenings, 2.1)
    assert found.describe(left + 3600) == "since 14:02: 3 results, 1 death, 2 plans, 1 act by others, $2.10"
    assert found.describe(left + 86_400).startswith("since 11-20 14:02: ")
    assert found.describe(left + 100 * 86_400).startswith("since 2026-11-20 14:02: ")


def test_a_damaged_journal_hides_nothing_else(team: Team) -> None:
    fixer = team.directory.agent("fixer")
    fixer.journal.on_disk.write_bytes(b'{"kind": "run_ended", broken\n')
    put_result(team, "scout-1-1.md", "found it", LEFT + 1)
    assert told(absence(team)) == [("result", "scout", "found it")]
