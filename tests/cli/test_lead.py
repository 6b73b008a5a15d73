"""A lead that is spoken to from the command line, on the offline model: its team of real workers does what was said."""

import json
import re
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pexpect
import pytest

from crewboard.protocol import requests
from crewboard.records.requests import Request
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import control
from tests.bench.terminal import terminal
from tests.cli.shell import COMMAND, Cli
from tests.crew import eventually

of_words = pytest.mark.files_only(
    "what the words mean does not depend on where the team is kept; others do what was understood"
)

PLAN_AND_REVIEW = "Spawn bob with a refactoring task. Have him submit a plan first. Then review and approve it."


def lead(offline: Cli, text: str, *, code: int = 0) -> str:
    """Speak to the lead; returns its answer."""
    ran = offline("lead", text, "--unsafe-no-sandbox")
    assert ran.code == code, ran.err
    return ran.out


def agents_of(offline: Cli) -> dict[str, dict[str, Any]]:
    return {agent["name"]: agent for agent in offline("status", "--json").json["agents"]}


def plan_of_bob(offline: Cli, status: str) -> Request:
    team = TeamDirectory(offline.root / ".crewboard" / "default")

    def look() -> Request | None:
        return next((one for one in requests.load_all(team) if (one.from_, one.status) == ("bob", status)), None)

    return eventually(look, f"a plan of bob that is {status}")


@of_words
def test_an_agent_is_hired_for_its_role_works_and_leaves(offline: Cli) -> None:
    answer = lead(offline, "Spawn alice as a backend dev. Ask her to create a file. Then request her shutdown.")
    assert "I wrote alice.txt" in answer
    assert (offline.root / "alice.txt").is_file()
    alice = agents_of(offline)["alice"]
    assert (alice["type"], alice["alive"]) == ("code", False)


@pytest.mark.long
@of_words
def test_an_agent_that_is_not_there_is_hired_works_and_leaves(offline: Cli) -> None:
    answer = lead(offline, "Have Alice create a file, then shut her down")
    assert "I wrote alice.txt" in answer
    assert "alice has shut down" in answer
    assert (offline.root / "alice.txt").is_file()
    assert agents_of(offline)["alice"]["alive"] is False


@pytest.mark.long
@of_words
def test_an_agent_works_before_it_leaves(offline: Cli) -> None:
    lead(offline, "Spawn alice (coder)")
    assert "I wrote alice.txt" in lead(offline, "Have Alice create a file, then shut her down")
    assert agents_of(offline)["alice"]["alive"] is False


def test_a_team_is_shown_told_asked_and_shut_down(offline: Cli) -> None:
    lead(offline, 'Spawn an explore agent named "reviewer" to list all Python files.')
    for asked in ("List the team to see agent statuses.", "/team", "Who is on the team?", "What is everyone doing?"):
        assert "- reviewer (explore) idle" in lead(offline, asked)
    assert lead(offline, "What's reviewer up to?").strip() == "reviewer (explore) idle"
    assert "No agent is called scout. On the team: reviewer." in lead(offline, "What's scout up to?")
    assert "I left out “to see agent statuses”." in lead(offline, "List the team to see agent statuses.")
    lead(offline, "Send a message to reviewer asking for a summary.")
    lead(offline, 'Broadcast "status update: phase 1 complete" to all teammates')
    mail = [one["content"] for one in offline("inbox", "reviewer", "--json").json if one["from"] == "lead"]
    assert mail[-2:] == ["Give me a summary of what you did.", "status update: phase 1 complete"]
    assert "My inbox:" in lead(offline, "Check the lead inbox for any messages")
    assert "My inbox:" in lead(offline, "/inbox")
    lead(offline, "Do not stop all agents", code=1)
    assert agents_of(offline)["reviewer"]["alive"] is True
    assert "reviewer has shut down" in lead(offline, "Shut everyone down.")
    assert [name for name, agent in agents_of(offline).items() if agent["alive"]] == ["lead"]
    assert "No other agent is running." in lead(offline, "Stop all agents.")


@pytest.mark.long
def test_a_task_to_write_unit_tests_is_completed(offline: Cli) -> None:
    lead(offline, 'Create a task "Write unit tests" and assign it to a test agent.')

    def reported() -> str | None:
        told = "\n".join(mail["content"] for mail in offline("inbox", "lead", "--json").json)
        return told if "exit code 0" in told else None

    assert "def test_every_python_file_can_be_read" in eventually(reported, "what the tester did")
    assert [task["status"] for task in offline("tasks", "--json").json] == ["completed"]
    offline("task", "add", "Read it all")
    # Before it may stand what the tester reported, if the lead had not read that yet.
    _, _, listed = lead(offline, "What tasks are open?").rpartition("Tasks that are open:\n")
    assert listed.strip() == "- #2 Read it all (pending)"
    assert "1 Write unit tests" in lead(offline, "List the tasks")


@pytest.mark.long
@of_words
def test_a_plan_waits_for_the_operator(offline: Cli) -> None:
    assert "plan then waits for the operator" in lead(offline, PLAN_AND_REVIEW)
    assert plan_of_bob(offline, "pending").to == "operator"


@pytest.mark.long
@of_words
def test_a_question_to_an_agent_needs_no_plan(offline: Cli) -> None:
    lead(offline, "Hire eve, a coder, with a plan first")
    eventually(lambda: agents_of(offline)["eve"]["state"] == "idle" or None, "eve rests")
    assert "eve (code) answered:\n\nI am eve" in lead(offline, "eve: where do you stand?")
    assert "submits a plan" in lead(offline, "eve: write eve.md")
    assert "no agent of this team is called 'scout'" in lead(offline, "Ask scout to summarise what it found")
    assert sorted(agents_of(offline)) == ["eve", "lead"]


@pytest.mark.long
def test_a_lead_that_is_the_approver_approves_the_plan(offline: Cli) -> None:
    lead(offline, "Hello")
    assert offline("approver", "lead").code == 0
    lead(offline, PLAN_AND_REVIEW)
    assert plan_of_bob(offline, "approved").decided_by == "lead"


@pytest.mark.long
@of_words
def test_a_lead_of_another_name_is_the_lead(offline: Cli) -> None:
    words = ("--type", "lead", "--prompt", "Hello", "--background", "--unsafe-no-sandbox")
    assert offline("spawn", "boss", *words).code == 0
    assert offline("approver", "lead").code == 0
    lead(offline, PLAN_AND_REVIEW)
    assert plan_of_bob(offline, "approved").decided_by == "boss"
    assert set(agents_of(offline)) == {"boss", "bob"}
    result = eventually(
        lambda: [mail for mail in offline("inbox", "boss", "--json").json if mail["type"] == "result"], "bob's result"
    )
    assert {mail["from"] for mail in result} == {"bob"}


@pytest.mark.long
def test_agents_are_found_by_type_and_the_team_is_deleted(offline: Cli) -> None:
    (offline.root / "s01_agent_loop.py").write_text("def agent_loop():\n    pass\n")
    lead(offline, 'Spawn a background explore agent named "reviewer" to analyze the agent loop in s01.')
    assert offline("wait", "reviewer", "--until", "idle", "--timeout", "30").code == 0
    reports = [mail["content"] for mail in offline("inbox", "lead", "--json").json if mail["from"] == "reviewer"]
    assert any("s01_agent_loop.py has 2 lines" in report for report in reports)
    lead(offline, 'Create a task "Write unit tests" and assign it to a test agent.')
    (task,) = offline("tasks", "--json").json
    team = agents_of(offline)
    assert (task["subject"], team[task["owner"]]["type"]) == ("Write unit tests", "test")
    assert team["reviewer"]["type"] == "explore"
    lead(offline, "Delete the team when done.")
    assert [name for name, agent in agents_of(offline).items() if agent["alive"]] == ["lead"]


@pytest.mark.long
@of_words
@pytest.mark.parametrize("prompt", ["have one agent list all Python files and another one run the tests"])
def test_a_lead_hires_for_what_the_readme_says(offline: Cli, prompt: str) -> None:
    answer = lead(offline, prompt)
    assert {agent["type"] for agent in agents_of(offline).values()} == {"lead", "explore", "test"}
    assert "explorer (explore) answered" in answer
    assert "tester (test) answered" in answer


@pytest.mark.long
@of_words
def test_what_is_not_understood_is_said_with_what_is(offline: Cli) -> None:
    answer = lead(offline, "Compose a sonnet.", code=1)
    assert len(re.findall("^- ", answer, re.MULTILINE)) == 6
    assert "I do not know how to do this: “Compose a sonnet.”" in answer
    assert "- List the team" in answer
    assert "no language model" in answer
    answer = lead(offline, "Compose a sonnet. Who is on the team?")
    assert "do not know how" in answer
    assert "- lead (lead)" in answer


@pytest.mark.long
@of_words
def test_without_a_text_each_line_of_a_pipe_is_one_for_the_lead(offline: Cli) -> None:
    lines = (
        b"Spawn an explore agent named scanner to list all Python files\n\n/team\n/tasks\nBake a cake\nList the team\n"
    )
    (offline.root / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "serve"}}}')
    ran = offline("lead", "--unsafe-no-sandbox", stdin=lines)
    assert ran.err.count("MCP servers that you have not accepted") == 1, "not before each answer"
    assert ran.code == 1, "the lead did not understand one of them"
    answered, shown, listed = ran.out.partition("agents\n")[0], ran.out, ran.out.rpartition("agents on the team")[2]
    assert "scanner (explore) answered" in answered
    assert "NAME" in shown
    assert "I do not know how to do this: “Bake a cake”" in shown
    assert "- scanner (explore)" in listed
    assert offline("lead", stdin=b"").code == 0
    (line,) = offline("lead", "--json", stdin=b"List the team\n").out.splitlines()
    assert "- scanner (explore)" in json.loads(line)["text"]


def start_a_team(offline: Cli) -> None:
    """Start a supervisor with an agent: a command on a terminal would load its code, and that of workers, anew."""
    assert offline("spawn", "scout", "--type", "explore", "--prompt", "Say hello").code == 0


@of_words
def test_on_a_terminal_the_lead_is_a_prompt(offline: Cli) -> None:
    start_a_team(offline)
    words = ["lead", "--unsafe-no-sandbox"]
    with terminal([*COMMAND, *words], offline.root, offline.environment) as child:
        child.expect_exact("lead> ")
        child.sendline("Say hello")
        child.expect_exact("\nhello\r\n")
        child.expect_exact("lead> ")
        child.send("\x1b[A")
        child.expect_exact("Say hello")
        child.sendline("")
        child.expect_exact("\nhello\r\n")
        child.expect_exact("lead> ")
        child.sendline("/team")
        child.expect_exact("NAME")
        child.expect_exact("lead> ")
        child.sendeof()
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0


@pytest.mark.long
@of_words
def test_ctrl_d_during_an_answer_leaves_after_it(offline: Cli) -> None:
    start_a_team(offline)
    words = ["lead", "--unsafe-no-sandbox"]
    with terminal([*COMMAND, *words], offline.root, offline.environment) as child:
        child.expect_exact("lead> ")
        child.sendline("Say hello")
        child.expect_exact("lead start")
        child.sendeof()
        child.expect_exact("\nhello\r\n")
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 0


@pytest.mark.long
def test_a_lead_that_waits_for_an_agent_hears_the_operator(offline: Cli) -> None:
    lead(offline, "Say hello")
    offline("send", "lead", "Spawn bob (code) to ask the operator whether to go on")
    team = TeamDirectory(offline.root / ".crewboard" / "default")
    (asked,) = eventually(lambda: requests.pending(team), "bob asks the operator")
    answer = lead(offline, "List the team")
    assert "- bob (code) waiting" in answer
    assert requests.pending(team) == [asked], "its question stays open"
    assert offline("answer", asked.id, "yes").code == 0
    eventually(lambda: "The operator answered: yes" in offline("inbox", "operator").out, "its result is passed on")


def test_ctrl_c_begins_a_typed_line_again_and_ends_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", Mock(side_effect=[KeyboardInterrupt, "List the team", EOFError]))
    assert [control._read_line(typed=True), control._read_line(typed=True)] == ["List the team", None]
    pipe = SimpleNamespace(readline=Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(sys, "stdin", pipe)
    with pytest.raises(KeyboardInterrupt):
        control._read_line(typed=False)


@pytest.mark.long
def test_work_goes_to_an_agent_that_ended_and_not_to_its_mailbox(offline: Cli) -> None:
    lead(offline, "Spawn alice (coder). Then request her shutdown.")
    assert "alice (code) answered:\n\nI wrote alice.txt." in lead(offline, "Have alice create a file")


@pytest.mark.long
@of_words
def test_what_follows_a_refused_hire_is_left_out(offline: Cli) -> None:
    answer = lead(offline, PLAN_AND_REVIEW.replace("bob", "lead"))
    assert "'lead' is reserved; choose another name" in answer
    assert "I left out what else you asked for lead" in answer
    assert "waits for the operator" not in answer


@pytest.mark.long
@of_words
def test_work_for_a_new_agent_goes_to_the_one_of_its_name(offline: Cli) -> None:
    lead(offline, "Spawn alice (coder) and bob (tester).")
    answer = lead(offline, "Spawn alice as a backend dev. Ask her to create a file. Then request her shutdown.")
    assert "alice is on the team already, of type code.\n\nalice (code) answered:\n\nI wrote alice.txt." in answer
    assert "alice has shut down." in answer
    answer = lead(offline, PLAN_AND_REVIEW)
    assert "bob is on the team already, of type test.\n\nbob submits a plan before it writes" in answer
