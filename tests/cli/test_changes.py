"""Changes of a team, read from its files alone."""

import pytest

from crewboard.commands.context import Team
from crewboard.names import LEAD
from crewboard.protocol import requests
from crewboard.readmodel.changes import Change, ChangeReader
from crewboard.records.processes import Exit
from crewboard.store import agents, files, mailbox, roster, tasks
from tests.cli.files import alive, ask, enlist, set_status


def only(changes: list[Change], kind: str) -> Change:
    """Return the only change, which is of this kind."""
    assert [change.kind for change in changes] == [kind]
    return changes[0]


@pytest.fixture
def reader(team: Team) -> ChangeReader:
    """Return a reader of a team that already has an agent, mail, a task and a request."""
    enlist(team, "fixer")
    mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "old"))
    tasks.add(team.directory, "old", 1.0)
    ask(team, "old-1", "question", {"question": "?"})
    files.replace_file(team.directory.results / "fixer-1-1.md", b"old")
    return ChangeReader(team.directory)


def test_what_stood_there_is_no_change(reader: ChangeReader) -> None:
    assert reader.read() == []
    assert reader.read() == []


def test_a_hire_and_a_removal(team: Team, reader: ChangeReader) -> None:
    enlist(team, "scout", "explore")
    hired, status = reader.read()
    assert (hired.kind, hired.agent, hired.what["change"], hired.what["type"]) == (
        "roster",
        "scout",
        "hired",
        "explore",
    )
    assert status.kind == "status"
    roster.drop(team.directory, "scout")
    assert only(reader.read(), "roster").what["change"] == "removed"


@pytest.mark.parametrize("name", ["fixer", "operator", LEAD])
def test_a_message_once(team: Team, reader: ChangeReader, name: str) -> None:
    message = mailbox.compose("scout", name, "message", "hello", ts=77.0)
    mailbox.send(team.directory, message)
    mailbox.send(team.directory, message)
    change = only(reader.read(), "message")
    assert (change.ts, change.agent) == (77.0, name)
    assert (change.what["from"], change.what["content"]) == ("scout", "hello")
    assert reader.read() == []


@pytest.mark.files_only("half a line is only in a file")
def test_half_a_line_is_no_message_yet(team: Team, reader: ChangeReader) -> None:
    mailbox.send(team.directory, mailbox.compose("scout", "operator", "message", "whole"))
    box = team.directory.inbox("operator")
    whole = box.on_disk.read_bytes()
    box.on_disk.write_bytes(whole[:-10])
    assert reader.read() == []
    box.on_disk.write_bytes(whole)
    assert only(reader.read(), "message").what["content"] == "whole"


def test_mail_of_an_agent_that_is_hired_meanwhile(team: Team, reader: ChangeReader) -> None:
    enlist(team, "scout")
    mailbox.send(team.directory, mailbox.compose("operator", "scout", "message", "welcome"))
    assert [change.kind for change in reader.read()] == ["roster", "message", "status"]


def test_a_state(team: Team, reader: ChangeReader) -> None:
    with alive(team, "fixer"):
        reader.read()
        set_status(team, "fixer", state="working", doing="bash make")
        change = only(reader.read(), "status")
    assert (change.agent, change.what["state"], change.what["doing"]) == ("fixer", "working", "bash make")


def test_a_task(team: Team, reader: ChangeReader) -> None:
    tasks.add(team.directory, "new", 3.0)
    assert only(reader.read(), "task").as_json() == {
        "ts": 3.0, "kind": "task", "agent": None, "id": 2, "subject": "new", "status": "pending", "owner": None,
        "last_owner": None, "blocked_by": [], "priority": 0,
    }  # fmt: skip
    tasks.claim(team.directory, 2, "fixer", "code", 4.0)
    change = only(reader.read(), "task")
    assert (change.agent, change.what["status"]) == ("fixer", "in_progress")


def test_a_request_and_its_answer(team: Team, reader: ChangeReader) -> None:
    ask(team, "plan-1", "plan_approval", {"plan": "# Fix it"})
    change = only(reader.read(), "request")
    assert (change.agent, change.what["status"], change.what["summary"]) == ("fixer", "pending", "plan: Fix it")
    requests.decide(team.directory, "plan-1", "rejected", "operator", 9.0, feedback="no")
    change = only(reader.read(), "request")
    assert (change.ts, change.what["decided_by"], change.what["feedback"]) == (9.0, "operator", "no")


def test_a_result_names_its_agent_its_run_and_its_file(team: Team, reader: ChangeReader) -> None:
    team.directory.keep_result("fixer-2-3.md", b"done")
    team.directory.keep_result("fixer-mail-00ff.md", b"a long message, no result")
    change = only(reader.read(), "result")
    assert (change.agent, change.what) == ("fixer", {"run": 2, "result": "results/fixer-2-3.md"})


def test_an_exit_says_how(team: Team, reader: ChangeReader) -> None:
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=8.0))
    status, ended = reader.read()
    assert (status.kind, status.what["state"]) == ("status", "crashed")
    assert (ended.kind, ended.ts, ended.what["signal"], ended.what["how"]) == ("exit", 8.0, 9, "killed by SIGKILL")
    assert reader.read() == []


def test_a_team_that_is_made_meanwhile(tmp_path: object, team: Team) -> None:
    absent = team.directory.path.rename(team.directory.path.with_name("later"))
    reader = ChangeReader(team.directory)
    assert reader.read() == []
    absent.rename(team.directory.path)
    enlist(team, "fixer")
    assert [change.kind for change in reader.read()] == ["roster", "status"]
