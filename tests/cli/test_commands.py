"""The output and the effect of each command, on a team whose agents are only files."""

import os
import re
import shlex
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.shell_completion import ShellComplete
from msgspec.structs import replace
from rich.cells import cell_len

from crewboard import env
from crewboard.agent_types import TYPES
from crewboard.commands import answers, control, stop
from crewboard.commands.context import Team, require_spec
from crewboard.errors import BadDataError, TryLaterError
from crewboard.protocol import requests
from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.needs import format_minute
from crewboard.records.base import JsonValue, convert, first_line
from crewboard.records.events import Answer, Intake
from crewboard.records.messages import Message
from crewboard.records.processes import Exit, HeldStart, HeldStarts
from crewboard.records.team import Checked
from crewboard.store import agents, codec, journal, leases, mailbox, operators, tasks
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from crewboard_tui.cli import program
from tests.cli.files import alive, ask, enlist, set_status
from tests.cli.shell import Cli, Inside
from tests.store.raw_mail import append, line

AGENT_KEYS = {
    "name", "type", "role", "state", "run", "pid", "alive", "exit", "unread", "doing", "since", "turn", "task",
    "tokens", "context", "cost_usd", "cpu_percent", "rss_bytes", "private_bytes", "sandbox", "model", "damaged",
}  # fmt: skip
"""The fields of each agent in `status --json`, as in docs/reference/json.md."""


def test_an_absent_default_team_is_told_kindly(cli: Cli) -> None:
    for command in (("status",), ("tasks",), ("requests",), ("inbox", "operator"), ("team", "list")):
        assert cli(*command).code == 0
    assert "no agents yet; crewboard spawn" in cli("status").out
    assert cli("tasks", "--json").json == []
    assert cli("requests", "--json").json == []
    assert cli("inbox", "lead", "--json").json == []
    assert list(cli.root.iterdir()) == []


def test_status_json_keeps_its_promise(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": "# Fix it\nquickly"})
    assert cli("task", "add", "fix").code == 0
    status = cli("status", "--json").json
    assert status["team"] == "default"
    assert Path(status["root"]) == cli.root.resolve()
    assert status["model_backend"] == "api"
    none = {"pid": None, "alive": False, "silent_since": None, "hosts": None, "shared_bytes": None}
    assert status["supervisor"] == none
    assert status["agents"][0].keys() >= AGENT_KEYS
    assert [request["id"] for request in status["requests"]] == ["plan-1"]
    assert [task["subject"] for task in status["tasks"]] == ["fix"]
    kinds = {(need["kind"], need["agent"], need["request_id"]) for need in status["needs_you"]}
    assert ("plan", "fixer", "plan-1") in kinds


def test_a_supervisor_that_has_not_said_who_it_is_comes_up(cli: Cli, team: Team) -> None:
    held = leases.take(team.directory.supervisor_lock)
    assert held is not None
    assert "· supervisor starting ·" in cli("status").out
    leases.release(held)


def test_status_names_each_need_and_the_command_that_answers_it(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    enlist(team, "courier")
    agents.write_exit(team.directory.agent("courier"), Exit(run=1, signal=9, reason="died", at=5))
    ask(team, "plan-1", "plan_approval", {"plan": "# Fix it"})
    ask(team, "ask-1", "question", {"question": "tabs?"})
    text = cli("status").out
    for words in (
        "killed by SIGKILL", "crewboard resume courier", "plan: Fix it", "crewboard approve plan-1", "asks: tabs?",
        "crewboard answer ask-1 TEXT",
    ):  # fmt: skip
        assert words in text


@pytest.mark.both_stores("it reads what a run left")
def test_a_death_needs_you_until_you_acknowledge_it(cli: Cli, team: Team) -> None:
    enlist(team, "courier")
    agents.write_exit(team.directory.agent("courier"), Exit(run=1, signal=9, reason="died", at=5))
    assert [need["kind"] for need in cli("status", "--json").json["needs_you"]] == ["death"]
    assert cli("ack", "courier", "--json").json == {"name": "courier", "acknowledged": True}
    status = cli("status", "--json").json
    assert status["needs_you"] == []
    assert status["agents"][0]["state"] == "crashed"
    assert status["agents"][0]["exit"]["signal"] == 9


def test_a_live_agent_cannot_be_acknowledged_in_advance(cli: Cli, team: Team) -> None:
    enlist(team, "courier")
    with alive(team, "courier"):
        cli("ack", "courier").refused(75, "courier is running: there is nothing to acknowledge")
    agents.write_exit(team.directory.agent("courier"), Exit(run=1, signal=9, reason="died", at=5))
    assert [need["kind"] for need in cli("status", "--json").json["needs_you"]] == ["death"]


def test_who_never_ran_has_no_end_to_acknowledge(cli: Cli, team: Team) -> None:
    enlist(team, "courier")
    team.directory.agent("courier").status.remove()
    cli("ack", "courier").refused(2, "courier has not run yet")


def test_what_was_seen_of_one_run_hides_nothing_of_another(cli: Cli, team: Team) -> None:
    enlist(team, "courier", run=2)
    agents.write_exit(team.directory.agent("courier"), Exit(run=2, signal=9, reason="died", at=5))
    assert cli("ack", "courier").code == 0
    for run in (3, 1):
        set_status(team, "courier", run=run)
        team.directory.agent("courier").exit.save(Exit(run=run, signal=9, reason="died", at=6))
        assert [need["kind"] for need in cli("status", "--json").json["needs_you"]] == ["death"], run


def test_sending_prints_the_message_that_lies_in_the_mailbox(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    ran = cli("send", "fixer", "naïve 日本 \U0001f600", "--json")
    sent = ran.json
    assert (sent["from"], sent["to"], sent["type"], sent["v"]) == ("operator", "fixer", "message", 1)
    assert mailbox.read(team.directory, "fixer").messages == [convert(sent, Message)]
    assert sent["content"] == "naïve 日本 \U0001f600"
    assert "fixer is not running: the message is kept" in ran.err


def test_mail_to_a_queued_agent_says_what_it_waits_for(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    waits = HeldStart(name="fixer", run=1, reason="waits for the host build1", for_host=True)
    team.directory.starts.save(HeldStarts(held=[waits]))
    told = cli("send", "fixer", "hi").err
    assert "fixer is queued: waits for the host build1; it reads the message when it starts" in told
    assert "resume" not in told


def test_mail_to_who_runs_is_not_called_kept(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    with alive(team, "fixer"):
        assert cli("send", "fixer", "hi").err == ""
    assert cli("send", "lead", "hi").err == ""


@pytest.mark.both_stores("a row has another limit than a file")
def test_a_huge_text_arrives_whole(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    text = "x" * 100_000 + "é" * 1000
    assert cli("send", "fixer", text).code == 0
    assert mailbox.read(team.directory, "fixer").messages[0].content == text


@pytest.mark.both_stores("a column of text would refuse them")
def test_bytes_that_are_no_text_do_not_end_a_send(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    assert cli("send", "fixer", b"caf\xe9".decode("utf-8", "surrogateescape")).code == 0
    assert mailbox.read(team.directory, "fixer").messages[0].content == "caf?"


def test_a_broadcast_is_one_copy_each(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    enlist(team, "scout")
    sent = cli("broadcast", "freeze", "--json").json
    assert [message["to"] for message in sent] == ["fixer", "scout"]
    assert len({message["metadata"]["broadcast_id"] for message in sent}) == 1
    assert mailbox.read(team.directory, "operator").messages == []


def test_the_inbox_shows_three_times_and_drains_nothing(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    first = mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "first", ts=10.0))
    second = mailbox.send(team.directory, mailbox.compose("lead", "fixer", "shutdown_request", "second", ts=11.0))
    third = mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "third", ts=12.0))
    event = Intake(ts=20.0, run=1, messages=[first, second], cursor=1, entered=[first.id], assignment="a")
    journal.append(team.directory.agent("fixer").journal, event)
    before = list(team.directory.inbox("fixer").read())
    seen = cli("inbox", "fixer", "--json").json
    assert [(m["picked_up_at"], m["entered_turn_at"]) for m in seen] == [(20.0, 20.0), (20.0, None), (None, None)]
    assert [convert(m, Message).id for m in seen] == [first.id, second.id, third.id]
    text = cli("inbox", "fixer").out
    assert "operator → fixer · message · sent 1970-01-01" in text
    assert "picked up – · in turn –" in text
    assert list(team.directory.inbox("fixer").read()) == before


def test_agents_that_became_free_share_a_line_of_the_inbox(cli: Cli, team: Team) -> None:
    for at, (author, kind, text) in enumerate(
        [("ann", "idle_notification", "free for work"), ("ben", "idle_notification", "free for work"),
         ("ann", "result", "All done."), ("ann", "idle_notification", "free for work"),
         ("ben", "idle_notification", "gave up")]
    ):  # fmt: skip
        mailbox.send(team.directory, mailbox.compose(author, "lead", kind, text, ts=at))
    first, result, text, last, *kept = [line.partition(" · ")[0] for line in cli("inbox", "lead").out.splitlines()]
    assert (first, result, text.strip(), last) == (
        "free for work: ann, ben", "ann → lead", "All done.", "free for work: ann",
    )  # fmt: skip
    assert [each.strip() for each in kept] == ["ben → lead", "gave up"], "this says more"
    assert len(cli("inbox", "lead", "--json").json) == 5


def test_a_response_that_decided_nothing_is_called_so(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    enlist(team, "fixer")
    asked = ask(team, "plan-1", "plan_approval", {"plan": "p"})

    def forge(author: str, **metadata: JsonValue) -> None:
        forged = mailbox.compose(author, "fixer", "plan_approval_response", "yes", ts=9.0, metadata=metadata)
        mailbox.send(team.directory, forged)

    forge("lead", request_id=asked.id, approve=True)
    assert "changes nothing: plan-1 still waits for its answer" in cli("inbox", "fixer").out
    assert cli("reject", asked.id, "--feedback", "no").code == 0
    forge("operator", request_id=asked.id, approve=True)
    forge("operator", request_id="plan-2", approve=True)
    seen = [letter["changes_nothing"] for letter in cli("inbox", "fixer", "--json").json]
    known = "plan-1 is rejected by operator"
    assert seen == [known, None, known, "there is no request plan-2"]
    taken = mailbox.read(team.directory, "fixer").messages
    journal.append(team.directory.agent("fixer").journal, Intake(ts=20.0, run=1, messages=taken))
    told = ["", known, "", "", known, "", "there is no request plan-2"]
    printed = cli("journal", "fixer").out
    looks = Mock(side_effect=requests.load_all)
    monkeypatch.setattr(requests, "load_all", looks)
    shown = "\n".join(line.text for line in ActivityReader(team.agent("fixer")).read())
    assert looks.call_count == 1, "for all responses together"
    for text in (printed, shown):
        assert [line.partition("changes nothing: ")[2] for line in text.splitlines()] == told


def test_requests_show_their_whole_text_and_how_to_answer(cli: Cli, team: Team) -> None:
    plan = ask(team, "plan-1", "plan_approval", {"plan": "# Fix it\n1. read\n2. write"})
    ask(team, "ask-1", "question", {"question": "tabs or spaces?", "options": ["tabs", "spaces"]})
    text = cli("requests").out
    for words in (
        "2. write",
        f"\ncrewboard approve plan-1 --sha256 {plan.sha256[:16]}\n",
        "    │ - tabs\n    │ - spaces\n",
        "crewboard answer ask-1",
    ):
        assert words in text
    assert [request["id"] for request in cli("requests", "--json").json] == ["ask-1", "plan-1"]


def test_a_plan_is_listed_with_its_files_commands_and_risk(cli: Cli, team: Team) -> None:
    payload: dict[str, JsonValue] = {
        "plan": "# Fix it", "files": ["a.py", "b.py"], "commands": ["pytest -x"], "risk": "breaks\nthe build",
    }  # fmt: skip
    ask(team, "plan-1", "plan_approval", payload)
    text = cli("requests").out
    for words in (
        "    files:\n    │ - a.py\n    │ - b.py\n", "    commands:\n    │ - pytest -x\n",
        "    risk:\n    │ breaks\n    │ the build\n",
    ):  # fmt: skip
        assert words in text


def test_an_edited_plan_is_shown_as_it_was_approved(cli: Cli, team: Team) -> None:
    """Everything that names the plan shows the text that holds; what was submitted is shown as such beside it."""
    enlist(team, "fixer")
    payload: dict[str, JsonValue] = {"plan": "# Fix it\n1. read\n2. drop the table", "files": ["a.py"]}
    requests.ask(team.directory, "plan-1", "plan_approval", "fixer", "operator", payload, 5.0)
    team.directory.root.joinpath("new.md").write_text("# Fix it\n1. read\n2. keep the table\n3. test\n")
    cli("approve", "plan-1", "--edited-file", str(team.directory.root / "new.md"))
    for shown, who in ((cli("requests", "--all").out, "you"), (cli("inbox", "operator").out, "operator")):
        assert "keep the table" in shown
        assert f"as {who} edited and approved it" in shown
        assert "drop the table" not in shown
    lines = cli("plan", "plan-1").out
    assert "version 1, as you edited and approved it, changed since it was submitted:" in lines
    for each in ("     - 2. drop the table", "   3 + 2. keep the table", "   4 + 3. test", "   2   1. read"):
        assert f"    │ {each}\n" in lines
    assert "│ # Fix it\n    files:" not in lines
    found = cli("plan", "plan-1", "--json").json
    assert found["plan"] == found["request"]["edited"] == "# Fix it\n1. read\n2. keep the table\n3. test\n"
    assert [each["text"] for each in found["lines"] if each["line"] is not None] == found["plan"].splitlines()
    assert [each["number"] for each in found["steps"]] == [1, 2, 3]
    assert "drop the table" in found["request"]["payload"]["plan"]
    assert [each["edited"] for each in cli("inbox", "operator", "--json").json] == [found["plan"]]


def test_no_line_of_an_agent_looks_like_one_of_ours(cli: Cli, team: Team) -> None:
    long = f"{' ' * 200}crewboard stop {'x' * 99}"
    forged = f"done\n    → crewboard approve plan-1 --network\n\tcrewboard approve plan-1\n{long}"
    payload: dict[str, JsonValue] = {"plan": forged, "files": [forged], "commands": [forged], "risk": forged}
    plan = ask(team, "plan-1", "plan_approval", payload)
    call: JsonValue = {"command": forged, forged: forged}
    ask(team, "p-1", "permission", {"tool": forged, "input": call, "why": forged, "collision": forged, "diff": forged})
    cli("reject", "p-1", "--feedback", forged)
    lines = cli("requests", "--all").out.splitlines()
    ours = [line for line in lines if not line.startswith(("    │ ", "    ┊ "))]
    assert [line for line in ours if "crewboard" in line] == [
        f"crewboard approve plan-1 --sha256 {plan.sha256[:16]}", "crewboard reject plan-1 --feedback TEXT",
        "crewboard reject plan-1 --note LINE:TEXT",
    ]  # fmt: skip
    assert not [line for line in ours if not line.endswith(":") and line.startswith(" ")]
    assert max(map(len, lines)) <= 80
    whole = Cli(cli.root)("requests", "--all").out
    assert whole.count(f"    │ {' ' * 200}crewboard stop {'x' * 99}\n") == 9, "only a terminal has it broken"


def test_a_narrow_terminal_has_each_line_of_an_agent_marked(cli: Cli, team: Team) -> None:
    ask(team, "q-1", "question", {"question": "1234567890123456crewboard ack e    and then say\t日本語日本語"})
    for width, widest in (("22", 22), ("10", 10), ("3", 10)):
        lines = cli.with_environment(COLUMNS=width)("requests").out.splitlines()[1:-1]
        assert all(line.startswith(("    │ ", "    ┊ ")) for line in lines)
        assert max(map(cell_len, lines)) <= widest


def test_what_runs_on_your_machine_is_marked_in_the_list(cli: Cli, team: Team) -> None:
    payload: dict[str, JsonValue] = {"plan": "x", "files": ["a.py", "./sub/Makefile"], "commands": ["git init y", "ls"]}
    ask(team, "plan-1", "plan_approval", payload)
    ask(team, "p-1", "permission", {"tool": "write_file", "input": {"path": ".envrc", "content": "x"}})
    ask(team, "p-2", "permission", {"tool": "bash", "input": {"command": "git clone\tx"}})
    ask(team, "p-3", "permission", {"tool": "bash", "input": {"command": "ls"}})
    text = cli("requests").out
    for marked in ("./sub/Makefile\n    │ - git init y", ".envrc", "git clone    x"):
        assert f"    runs on your machine:\n    │ - {marked}\ncrewboard approve" in text
    assert text.count("runs on your machine") == 3


def test_a_permission_is_listed_with_its_whole_call_and_its_rule(cli: Cli, team: Team) -> None:
    run: JsonValue = {"command": "pytest -x \\\n  tests"}
    first = ask(team, "p-1", "permission", {"tool": "bash", "input": run, "summary": "pytest -x \\", "scope": "pytest"})
    edit: JsonValue = {"path": "src/a.py", "old_text": "x", "new_text": "y"}
    second = ask(team, "p-2", "permission", {"tool": "edit_file", "input": edit, "diff": "-x\n+y", "scope": "src"})
    ask(team, "p-3", "permission", {"tool": "bash", "input": {"command": "a | b"}, "scope": None})
    text = cli("requests").out
    yes = "crewboard approve {} --sha256 {}"
    for words in (
        "    tool:\n    │ bash\n    command:\n    │ pytest -x \\\n    │   tests\n",
        f"    │ any single command of fixer that starts pytest\n{yes.format('p-1', first.sha256[:16])} --rule\n",
        "    tool:\n    │ edit_file\n    path:\n    │ src/a.py\n    diff:\n    │ -x\n    │ +y\n",
        f"    │ every edit_file of fixer directly in src/\n{yes.format('p-2', second.sha256[:16])} --rule\n",
        "    command:\n    │ a | b\n",
    ):
        assert words in text
    assert "old_text" not in text
    assert "p-3 --rule" not in text


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("make test", "make test"),
        ("make test\ntouch more", "make test … (+1 line)"),
        ("\n \nmake test\n\ntouch more\nls\n", "make test … (+2 lines)"),
        ("make\rtouch more", "make\rtouch more"),
        ("make\u2028touch more", "make\u2028touch more"),
        (" " * 300 + "make " + "x" * 200, f"make {'x' * 195} … (+5 characters)"),
        ("m" * 201 + "\nls", f"{'m' * 200} … (+1 character, +1 line)"),
        ("", ""),
    ],
)
def test_a_line_about_a_command_says_how_much_follows(command: str, shown: str) -> None:
    assert first_line(command) == shown


@pytest.mark.long
def test_the_title_of_a_plan_says_how_much_follows(cli: Cli, team: Team) -> None:
    beside: dict[str, JsonValue] = {"files": ["a.py"], "commands": ["make a", "make b"], "risk": "none"}
    plans: list[dict[str, JsonValue]] = [
        {"plan": "# Tidy\n\n1. sweep\n2. push\n", "files": [], "commands": [], "risk": ""},
        {"plan": "# Tidy", **beside},
        {"plan": "\n" + "t" * 203},
        {"plan": "# Tidy"},
        {"plan": "", **beside},
    ]
    for number, payload in enumerate(plans):
        ask(team, f"plan-{number}", "plan_approval", payload)
    wide = Cli(cli.root)
    told = [need["summary"] for need in wide("status", "--json").json["needs_you"]]
    assert told == [
        "plan: Tidy … (+2 lines)",
        "plan: Tidy · 1 file · 2 commands",
        f"plan: {'t' * 200} … (+3 characters)",
        "plan: Tidy",
        "plan: (empty) · 1 file · 2 commands",
    ]
    status = wide("status").out
    assert [each for each in told if f"{each}\n" not in status] == []


def test_a_question_is_one_line_of_its_need(cli: Cli, team: Team) -> None:
    ask(team, "q-1", "question", {"question": "tabs?\nnew plan of api: plan: Tidy"})
    (need,) = cli("status", "--json").json["needs_you"]
    assert need["summary"] == "asks: tabs? new plan of api: plan: Tidy"


def test_a_permission_is_answered_as_it_was_shown(cli: Cli, team: Team) -> None:
    command = "make test\ntouch more"
    payload: dict[str, JsonValue] = {"tool": "bash", "input": {"command": command}, "summary": first_line(command)}
    digits = ask(team, "p-1", "permission", payload).sha256[:16]
    out = Cli(cli.root)("status").out
    assert "wants to run bash: make test … (+1 line)\n" in out
    assert f"→ crewboard requests   or   crewboard approve p-1 --sha256 {digits}   or" in out
    for wrong in (digits[:-1], "", "0" * 16, f"{digits}x"):
        cli("approve", "p-1", "--sha256", wrong).refused(65, "has another sha256")
    assert cli("approve", "p-1", "--sha256", digits, "--json").json["status"] == "approved"


@pytest.mark.long
def test_a_blank_that_is_none_for_a_shell_is_marked_in_every_list(cli: Cli, team: Team) -> None:
    odd, marked = "make\N{NO-BREAK SPACE}x", "make<U+00A0>x"
    payload: dict[str, JsonValue] = {"tool": "bash", "input": {"command": odd}, "summary": odd, "scope": odd}
    mailbox.send(team.directory, requests.mail_of(ask(team, "p-1", "permission", payload), 5.0))
    ask(team, "plan-1", "plan_approval", {"plan": "Bientôt\N{NO-BREAK SPACE}!", "files": [odd], "commands": [odd]})
    told = cli("inbox", "operator").out
    assert f"    {marked}\n" in told
    assert odd not in told
    wide = Cli(cli.root)
    assert wide("task", "add", "Test it", "--check", odd).code == 0
    listed = wide("requests").out
    assert listed.count(marked) == 4
    assert "Bientôt\N{NO-BREAK SPACE}!" in listed
    status = wide("status").out
    assert f"wants to run bash: {marked}" in status
    assert odd not in listed + status


def test_a_permission_names_the_collision_that_has_it_asked_for(cli: Cli, team: Team) -> None:
    why = "cy changed it in work that is not finished"
    call: JsonValue = {"path": "note.txt", "content": "x"}
    ask(team, "p-1", "permission", {"tool": "write_file", "input": call, "summary": "note.txt", "collision": why})
    assert f"    collision:\n    │ {why}\n    tool:\n    │ write_file\n" in cli("requests").out
    (need,) = [each for each in cli("status").out.splitlines() if "wants to run" in each]
    assert "cy changed it" in need


def test_text_is_cut_only_for_a_terminal(cli: Cli, team: Team) -> None:
    tasks.add(team.directory, "a subject of many words " * 10 + "and its end", 1.0)
    assert "and its end" not in cli("tasks").out
    assert "and its end" in Cli(cli.root)("tasks").out


@pytest.mark.both_stores("it writes two records")
def test_answers_change_the_request_and_tell_who_asked(cli: Cli, team: Team) -> None:
    plan = ask(team, "plan-1", "plan_approval", {"plan": "all at once"})
    ask(team, "plan-2", "plan_approval", {"plan": "slowly"})
    ask(team, "ask-1", "question", {"question": "tabs?"})
    (cli.root / "plan.md").write_text("step by step")
    approved = cli("approve", "plan-1", "--sha256", plan.sha256, "--edited-file", "plan.md", "--json").json
    assert (approved["status"], approved["edited"], approved["decided_by"]) == ("approved", "step by step", "operator")
    assert cli("reject", "plan-2", "--feedback", "too slow").out.strip().endswith("rejected")
    assert cli("answer", "ask-1", "spaces").code == 0
    types = [message.type for message in mailbox.read(team.directory, "fixer").messages]
    assert types == ["plan_approval_response", "plan_approval_response", "question_response"]
    assert requests.pending(team.directory) == []
    assert cli("requests").err.strip() == "no request waits for an answer"
    assert len(cli("requests", "--all", "--json").json) == 3


def test_a_plan_is_approved_with_terms(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": "# Fix\n\n1. fix\n2. test\n3. publish"})
    ask(team, "perm-1", "permission", {"tool": "bash", "input": {"command": "ls"}, "scope": "ls"})
    cli("approve", "plan-1", "--hold", "4").refused(2, "its steps are 1 to 3")
    cli("approve", "plan-1", "--hold", "two").refused(2, "'two' is no list of steps")
    cli("approve", "plan-1", "--tools", "bash,fly").refused(2, "fixer has no tool fly")
    cli("approve", "perm-1", "--ask").refused(65, "only a plan is approved with terms")
    cli("approve", "perm-1", "--rule", "--ask").refused(2, "--rule is for a permission")
    assert len(requests.pending(team.directory)) == 2
    terms = ("--ask", "--tools", "edit_file, read_file", "--network", "--budget", "100k", "--hold", "3")
    done = cli("approve", "plan-1", *terms, "--json")
    assert done.json["terms"] == {
        "ask": True, "tools": ["read_file", "edit_file"], "network": True, "budget": "100k", "hold": [3],
        "refused": [], "denied": [], "released": [],
    }  # fmt: skip
    words = "ask · tools read_file, edit_file · network · 100k · holds 3"
    told = "step 3: an instruction only, nothing that it alone names can be refused"
    assert done.err.splitlines() == [f"until its result: {words}", told]
    assert f"terms: {words}" in cli("requests", "--all").out
    assert f"plan-1, with {words}" in str(cli("audit", "--json").json)


def test_steps_of_a_plan_are_held_and_refused(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    steps: dict[str, JsonValue] = {
        "plan": "# Go\n\n1. Fix api.py\n2. Run `make migrate now`\n3. Change manual/a.md\n4. Tell us",
        "files": ["manual/a.md"],
    }
    plan = ask(team, "plan-1", "plan_approval", steps)
    cli("plan", "plan-1", "--hold", "5").refused(2, "its steps are 1 to 4")
    cli("approve", "plan-1", "--hold", "1,2", "--not", "2").refused(2, "step 2 is held and refused")
    shown = cli("plan", "plan-1", "--hold", "2", "--hold", "4", "--not", "3").out
    said = (
        "of step 2 refused: make migrate now",
        "of step 3 refused: manual/a.md",
        "step 4: an instruction only, nothing that it alone names can be refused",
        "what else belongs to a step, and what commands write, is an instruction only",
    )
    command = next(line for line in shown.splitlines() if "--hold 2,4 --not 3" in line)
    assert "as you would approve it: holds 2, 4 · not 3" in shown
    approves = [line for line in shown.splitlines() if line.startswith("crewboard approve")]
    assert approves == [command], "no command approves the steps that are to be left out"
    assert all(f"    {each}\n" in shown for each in said)
    known = cli("plan", "plan-1", "--hold", "2,4", "--not", "3", "--json").json["steps"]
    assert known[1] == {
        "number": 2, "line": 4, "end": 4, "text": "Run `make migrate now`", "verdict": "hold", "files": [],
        "commands": ["make migrate now"],
    }  # fmt: skip
    assert [each["verdict"] for each in known] == ["do", "hold", "not", "hold"]
    assert requests.pending(team.directory) == [plan], "nothing is answered"
    done = cli(*shlex.split(command)[1:])
    assert done.err.splitlines() == ["until its result: holds 2, 4 · not 3", *said]
    assert cli("plan", "plan-1", "--json").json["steps"] == known
    assert all(f"    {each}\n" in cli("plan", "plan-1").out for each in said)
    cli("plan", "plan-1", "--hold", "2").refused(2, "plan-1 is approved")


def test_a_held_step_of_a_plan_is_released(cli: Cli, team: Team) -> None:
    ask(team, "plan-1", "plan_approval", {"plan": "1. Fix api.py\n2. Run `make migrate now`\n3. Tell us"})
    enlist(team, "fixer", waiting_for="plan-1")
    cli("plan", "plan-1", "--release", "2").refused(65, "plan plan-1 is pending, so no step of it is held; approve it")
    cli("plan", "plan-1", "--release", "2", "--hold", "3").refused(2, "--release is for an approved one")
    cli("approve", "plan-1", "--hold", "2,3")
    cli("plan", "plan-1", "--release", "1").refused(2, "step 1 of plan plan-1 is not held; held: 2, 3")
    done = cli("plan", "plan-1", "--release", "2")
    assert done.out == "step 2 of plan plan-1 of fixer: released\n"
    assert done.err == "until its result: holds 3 · released 2\n"
    assert cli("plan", "plan-1", "--release", "3", "--json").json["terms"]["released"] == [2, 3]
    assert [each["verdict"] for each in cli("plan", "plan-1", "--json").json["steps"]] == ["do"] * 3
    assert [each["detail"] for each in cli("audit", "--json").json if each["act"] == "release"] == [
        "plan-1, step 2",
        "plan-1, step 3",
    ]


def test_approving_warns_of_tools_that_the_plan_needs(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    for number in (1, 2):
        plan: dict[str, JsonValue] = {"plan": "do it", "files": ["a.py"], "commands": ["pytest"]}
        ask(team, f"plan-{number}", "plan_approval", plan)
    done = cli("approve", "plan-1", "--tools", "read_file")
    assert done.code == 0, "it is a warning, no refusal"
    neither = "files to write, and the terms leave neither write_file nor edit_file"
    assert f"warning: the plan names {neither}; it names commands, and the terms leave no bash\n" in done.err
    assert "warning" not in cli("approve", "plan-2", "--tools", "edit_file,bash").err


def test_status_shows_the_terms_in_force(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", terms={"given": {"ask": True, "tools": ["read_file"], "budget": "$2"}, "request": "plan-1"})
    assert "\n      terms: ask · tools read_file · $2\n" in cli("status").out
    assert cli("budget", "fixer").out.endswith("its approved plan may use $2.00; 0% used\n")
    (agent,) = cli("status", "--json").json["agents"]
    assert agent["terms"] == {
        "ask": True, "tools": ["read_file"], "network": False, "budget": "$2", "hold": [], "refused": [],
        "denied": [], "released": [], "request": "plan-1",
    }  # fmt: skip


def test_a_unique_prefix_of_a_request_id_is_enough(cli: Cli, team: Team) -> None:
    ask(team, "plan-46aa01", "plan_approval", {"plan": "all at once"})
    ask(team, "plan-46ab02", "plan_approval", {"plan": "slowly"})
    ask(team, "plan-46", "plan_approval", {"plan": "well"})
    ask(team, "ask-77", "question", {"question": "tabs?"})
    cli("approve", "plan-46a").refused(65, "plan-46aa01 or plan-46ab02")
    cli("approve", "fixer").refused(65, "there is no request fixer; fixer is an agent, and asks in ", "plan-46ab02")
    cli("approve", "plan-9").refused(65, "there is no request plan-9", "ask-77", "plan-46aa01")
    assert cli("reject", "plan-46", "--feedback", "no", "--json").json["id"] == "plan-46", "a whole id goes first"
    cli("approve", "plan-46").refused(65, "already rejected by operator")
    assert cli("approve", "plan-46aa", "--json").json["id"] == "plan-46aa01"
    assert cli("approve", "plan-46a", "--json").json["id"] == "plan-46ab02", "the other one does not wait any more"
    assert cli("answer", "ask", "spaces", "--json").json["status"] == "answered"
    cli("answer", "ask-7", "tabs").refused(65, "ask-77 is already answered by operator")


def test_a_lead_names_a_request_whole(team: Team) -> None:
    ask(team, "plan-46aa01", "plan_approval", {"plan": "all at once"})
    with pytest.raises(BadDataError, match="there is no request plan-46"):
        answers.approve(replace(team, by="lead"), "plan-46")


def test_a_plan_proposes_no_rule(cli: Cli, team: Team) -> None:
    ask(team, "plan-46aa01", "plan_approval", {"plan": "all at once"})
    cli("approve", "plan-46", "--rule").refused(2, "request plan-46aa01 proposes no rule; approve it without --rule")


def test_a_rule_is_agreed_to_by_the_beginning_of_an_id(cli: Cli, team: Team) -> None:
    ask(team, "permission-1f", "permission", {"tool": "bash", "summary": "pytest -x", "scope": "pytest"})
    assert cli("approve", "perm", "--rule", "--json").json["id"] == "permission-1f"
    assert "may use bash for pytest" in cli("rules").out


@pytest.mark.parametrize(
    ("choice", "who"), [("type", "all agents of type code"), ("all", "all agents"), ("agent", "fixer")]
)
def test_a_rule_of_an_approval_is_for_the_chosen_agents(cli: Cli, team: Team, choice: str, who: str) -> None:
    enlist(team, "fixer")
    ask(team, "permission-1f", "permission", {"tool": "bash", "summary": "pytest -x", "scope": "pytest"})
    assert cli("approve", "perm", "--rule-for", choice, "--json").json["id"] == "permission-1f"
    assert f" · {who} may use bash for pytest without asking" in cli("rules").out


def test_the_task_board(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    first = cli("task", "add", "find", "--description", "all of it", "--owner", "fixer", "--json").json
    assert (first["id"], first["owner"], first["status"]) == (1, "fixer", "pending")
    second = cli("task", "add", "fix", "--blocked-by", "1", "--type", "code", "--json").json
    assert (second["blocked_by"], second["required_type"]) == ([1], "code")
    assert cli("task", "update", "2", "--blocked-by", "", "--json").json["blocked_by"] == []
    cli("task", "update", "2", "--blocked-by", "2").refused(2, "cannot wait for itself")
    assert cli("task", "update", "2", "--blocked-by", "1", "--json").json["blocked_by"] == [1]
    assert "after 1; for code" in cli("tasks").out
    assert cli("task", "update", "1", "--status", "completed", "--json").json["status"] == "completed"
    assert "after 1" not in cli("tasks").out
    told = mailbox.read(team.directory, "fixer").messages[0]
    assert (told.type, told.metadata["task_id"]) == ("task_assignment", 1)


def test_a_task_is_edited_and_prioritised(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    added = cli("task", "add", "find", "--owner", "fixer", "--priority", "2", "--json").json
    assert added["priority"] == 2
    assert "find (priority +2)" in cli("tasks").out
    edit = ("--subject", "find all", "--description", "in src", "--priority", "-1")
    edited = cli("task", "update", "1", *edit, "--json").json
    assert (edited["subject"], edited["description"], edited["priority"]) == ("find all", "in src", -1)
    assert (edited["owner"], edited["status"]) == ("fixer", "pending")
    assert cli("task", "update", "1", "--description", "", "--priority", "0", "--json").json["description"] == ""
    assert "priority" not in cli("tasks").out
    cli("task", "update", "1", "--subject", " ").refused(2, "needs a subject")
    cli("task", "update", "1", "--priority", "100").refused(2, "from -99 to 99")
    cli("task", "update", "1", "--priority", "high").refused(2, "--priority")


@pytest.mark.both_stores("it changes what another left")
def test_a_failed_task_is_reopened_for_any_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    cli("task", "add", "find", "--owner", "fixer", "--description", "all of it")
    cli("task", "reopen", "1").refused(2, "task 1 is pending; only a closed task can be reopened")
    cli("task", "update", "1", "--status", "failed")
    assert "crewboard task reopen 1" in cli("status").out
    task = cli("task", "reopen", "1", "--json").json
    assert (task["status"], task["owner"], task["description"]) == ("pending", None, "all of it")
    assert "task_failed" not in [need["kind"] for need in cli("status", "--json").json["needs_you"]]
    cli("task", "reopen", "2").refused(2, "there is no task 2")


def test_a_task_has_a_check(cli: Cli, team: Team) -> None:
    added = cli("task", "add", "find", "--check", "make test", "--json").json
    assert (added["check"], added["check_by"], added["checked"]) == ("make test", "operator", None)
    assert cli("task", "update", "1", "--check", "none", "--json").json["check"] == ""
    assert cli("task", "update", "1", "--check", "default", "--json").json["check"] is None
    cli("task", "update", "1", "--check", " ").refused(2, "a check is a command")
    cli("task", "add", "find", "--check", "").refused(2, "a check is a command")
    assert cli("settings", "check", "make lint").out == "check make lint\n"
    cli("settings", "check", " ").refused(2, "give a command")
    for failures, code, shown in ((2, 1, "✗ {} make lint (2)"), (0, 0, "✓ {} make lint")):
        checked = Checked(at=5.0, command="make lint", exit_code=code)
        found = tasks.load(team.directory, 1).replace(checked=checked, check_failures=failures)
        team.directory.task(1).save(found)
        assert f"find ({shown.format(format_minute(5.0))})" in cli("tasks").out


def test_completing_a_task_by_hand_says_that_its_check_has_not_passed(cli: Cli, team: Team) -> None:
    cli("task", "add", "find", "--check", "make test")
    ran = cli("task", "update", "1", "--status", "completed")
    assert (ran.code, ran.out) == (0, "task 1: completed · find\n")
    assert "its check has not passed: make test" in ran.err


def test_an_acknowledged_check_needs_nothing(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    cli("task", "add", "find", "--owner", "fixer", "--check", "make test")
    for at in (2.0, 3.0, 4.0):
        checked = Checked(at=at, command="make test", exit_code=2, result="results/x.txt")
        tasks.note_check(team.directory, 1, "fixer", checked)

    def needs() -> list[dict[str, Any]]:
        return [each for each in cli("status", "--json").json["needs_you"] if each["kind"] == "check_failed"]

    (need,) = needs()
    assert (need["kind"], need["agent"], need["task"], need["file"]) == ("check_failed", "fixer", 1, "results/x.txt")
    assert "crewboard ack 1" in cli("status").out
    cli("ack", "1")
    assert needs() == []
    cli("ack", "1").refused(75, "nothing to acknowledge")


def test_a_check_without_a_command_or_a_sandbox_says_so(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    enlist(team, "scout", "explore")
    cli("check", "fixer").refused(2, "no task in progress", "crewboard settings check COMMAND")
    cli("check", "scout").refused(2, "type explore, which runs no commands")
    cli("check", "who").refused(2, "no agent 'who'")


@pytest.mark.long
def test_a_check_prints_its_output_and_ends_with_1_if_it_fails(cli: Cli, shell: Cli, team: Team) -> None:
    for name in ("fixer", "tester"):
        enlist(team, name, "code" if name == "fixer" else "test")
    cli("settings", "check", "echo default; exit 3")
    ran = shell("check", "tester")
    assert (ran.code, ran.out) == (1, "$ echo default; exit 3\ndefault\n[exit code 3]\n")
    check = "printf 'a\\033[31mb\\a\\n'; pwd; cat .crewboard/default/config.json"
    cli("task", "add", "find", "--owner", "fixer", "--check", check)
    tasks.claim(team.directory, 1, "fixer", "code", 2.0)
    ran = shell("check", "fixer", "--json")
    assert ran.code == 1, "the team's files are hidden in the sandbox"
    assert "ab␇" in ran.err
    task = tasks.update(team.directory, 1, "operator", 3.0, check="pwd")
    ran = shell("check", "fixer")
    assert (ran.code, ran.out) == (0, f"$ pwd\n{team.directory.root}\n[exit code 0]\n")
    task = tasks.load(team.directory, 1)
    assert task.checked is not None
    assert (task.status, task.check_failures, task.checked.passed) == ("in_progress", 0, True)
    assert (team.directory.path / task.checked.result).read_text() == ran.out
    found = shell("check", "fixer", "--json").json
    assert (found["agent"], found["task"], found["passed"], found["command"]) == ("fixer", 1, True, "pwd")
    acts = [(act["act"], act["target"], act["detail"]) for act in cli("audit", "--json").json]
    assert [act for act in acts if act[0] == "check"][:2] == [
        ("check", "tester", "failed"),
        ("check", "fixer", "failed"),
    ]


def test_an_acknowledged_failure_stays_so_when_the_task_is_edited(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    cli("task", "add", "find", "--owner", "fixer")
    cli("task", "update", "1", "--status", "failed")
    cli("ack", "1")
    cli("task", "update", "1", "--subject", "find all", "--priority", "1")
    assert "task_failed" not in [need["kind"] for need in cli("status", "--json").json["needs_you"]]


def test_a_task_that_cannot_begin_says_why_and_what_to_do(cli: Cli, team: Team) -> None:
    for name in ("scout", "idler", "fixer"):
        enlist(team, name)
    agents.write_exit(team.directory.agent("scout"), Exit(run=1, signal=9, reason="died", at=5))
    agents.write_exit(team.directory.agent("idler"), Exit(run=1, code=0, reason="shutdown", at=5))
    cli("task", "add", "find")
    cli("task", "add", "look")
    with alive(team, "fixer"):
        assert cli("task", "add", "fix", "--owner", "fixer").err == ""
        dead = cli("task", "update", "2", "--owner", "scout")
        assert dead.err == "task 2: scout is dead: `crewboard resume scout`\n"
        assert "idler is not running: `crewboard resume idler`" in cli("task", "add", "idle", "--owner", "idler").err
        assert cli("task", "update", "3", "--blocked-by", "1,2").err == ""
        assert cli("task", "update", "1", "--status", "cancelled").err == ""
        hopeless = cli("task", "update", "3", "--blocked-by", "1,2", "--json")
        assert hopeless.json["blocked_by"] == [1, 2]
        words = "#1 is cancelled, so it can never start: `crewboard task update 3 --blocked-by 2`"
        assert hopeless.err == f"task 3: {words}\n"
        assert cli("task", "update", "2", "--status", "cancelled").code == 0
        both = "#1 is cancelled, #2 is cancelled, so it can never start: `crewboard task update 3 --blocked-by ''`"
        assert cli("task", "update", "3", "--blocked-by", "1,2").err == f"task 3: {both}\n"
        assert cli("task", "update", "2", "--status", "pending", "--owner", "scout").code == 0
        listed = cli("tasks").out
        assert "scout (dead)" in listed
        assert "fix (cannot start, after 1 cancelled, 2)" in listed
        assert "scout (dead)" in cli("status").out
        assert cli("task", "update", "3", "--blocked-by", "2").err == ""
    assert cli("remove", "scout").code == 0
    assert "scout (gone)" in cli("tasks").out


@pytest.mark.both_stores("it moves all records of an agent")
def test_remove_takes_a_stopped_agent_away_and_keeps_its_files(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    with alive(team, "fixer"):
        cli("remove", "fixer").refused(75, "fixer is alive")
    kept = Path(cli("remove", "fixer", "--json").json["kept"])
    assert team.directory.key(f"removed/{kept.name}/agent/spec.json").exists()
    assert cli("status", "--json").json["agents"] == []


def test_stopping_who_is_not_running_is_done_already(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    assert cli("stop", "fixer").out == "fixer is not running\n"
    assert cli("stop", "fixer", "--now", "--json").json["was_alive"] is False


def test_a_stop_waits_for_a_run_that_seems_younger_than_itself(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the machine on which the agent was resumed is ahead of this one's."""
    enlist(team, "fixer")
    ahead = time.time() + 9
    agents.change_spec(team.agent("fixer"), lambda old: require_spec("fixer", old).replace(run=2, at=ahead))
    monkeypatch.setattr(requests, "SHUTDOWN_TIMEOUT", 0.1)
    with alive(team, "fixer"), pytest.raises(TryLaterError, match="fixer did not answer"):
        stop.stop(team, "fixer")


def test_stop_all_cancels_a_start_that_has_not_begun(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    enlist(team, "fixer")
    assert cli("stop", "--all").out == "no agent is running\n"
    starting = agents.change_spec(
        team.agent("fixer"), lambda old: require_spec("fixer", old).replace(run=2, at=time.time())
    )
    monkeypatch.setattr("crewboard.protocol.supervisor_client.wake_supervisor", lambda _: None)
    assert cli("stop", "--all").out == "fixer was taken out of the queue\n"
    assert team.agent("fixer").spec.load() == starting.replace(want="killed")


def test_several_agents_are_stopped_at_once(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fixer", "scout"):
        enlist(team, name)
    assert cli("stop", "fixer", "scout").out == "fixer is not running\nscout is not running\n"
    assert [each["name"] for each in cli("stop", "scout", "fixer", "--json").json] == ["scout", "fixer"]
    ended: list[str] = []
    monkeypatch.setattr("crewboard.commands.stop.stop", lambda _, name: ended.append(name))
    Inside(cli.root)("stop", "fixer", "missing").refused(2, "there is no agent 'missing'")
    assert ended == [], "a name that is unknown ends none of the others"


def test_one_that_refuses_to_stop_keeps_none_of_the_others(
    cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fixer", "scout"):
        enlist(team, name)

    enlist(team, "tester")

    def stop(_: Team, name: str) -> None:
        if name != "scout":
            raise TryLaterError(f"{name} refused to shut down: busy")

    monkeypatch.setattr("crewboard.commands.stop.stop", stop)
    done = Inside(cli.root)("stop", "fixer", "scout", "tester")
    assert (done.code, done.out) == (75, "scout is not running\n")
    assert "fixer refused to shut down" in done.err
    assert "tester refused to shut down" in done.err


def test_an_agent_at_work_is_not_spawned_again(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working", doing="bash make")
    with alive(team, "fixer"):
        cli("spawn", "fixer", "--type", "code", "--prompt", "more").refused(75, "at work", "crewboard send fixer")


def test_other_options_are_named_as_they_are_typed(cli: Cli, team: Team) -> None:
    for name in ("fixer", "scout"):
        enlist(team, name)
        set_status(team, name, state="idle")
    with alive(team, "fixer"):
        again = cli("spawn", "fixer", "--type", "code", "--prompt", "more", "--from", "scout", "--max-turns", "7")
    again.refused(2, "other options (max-turns, from)")


def test_an_agent_that_has_just_answered_takes_more_work(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(condition: Callable[[], bool], _: float) -> bool:
        assert not condition()
        set_status(team, "fixer", state="idle")
        return condition()

    enlist(team, "fixer", state="working")
    monkeypatch.setattr("crewboard.commands.hire.wait_until", wait)
    place = team.agent("fixer").journal
    journal.append(place, Intake(ts=1, run=1, assignment="a"))
    journal.append(place, Answer(ts=2, run=1, assignment="a", answers=["a"], text="done"))
    with alive(team, "fixer"):
        assert cli("spawn", "fixer", "--type", "code", "--prompt", "more", "--background").code == 0


def test_a_hire_says_whose_team_it_joins_where_that_is_not_here(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    again = ("spawn", "fixer", "--type", "code", "--prompt", "more", "--background")
    below = Inside(cli.root / "src", cli.environment)
    below.root.mkdir()
    with alive(team, "fixer"):
        assert f"root {cli.root}, the nearest folder above" in below(*again).err
        assert "root" not in below("--root", str(cli.root), *again).err
        assert "root" not in cli(*again).err


def test_an_idle_agent_is_held_only_to_the_flags_that_are_given(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    again = ("spawn", "fixer", "--type", "code", "--prompt", "more", "--background")
    with alive(team, "fixer"):
        cli(*again, "--plan", "--max-turns", "7").refused(2, "max-turns, plan")
        cli(*again, "--model", "other").refused(2, "model")
        assert cli(*again, "--max-turns", "100").code == 0
        assert cli(*again, "--json").json["fresh"] is False
    assert [message.content for message in mailbox.read(team.directory, "fixer").messages] == ["more", "more"]


@pytest.mark.both_stores("teams of one database have names")
def test_teams(cli: Cli) -> None:
    made = cli("team", "create", "crew", "--description", "the best", "--json").json
    assert (made["name"], made["description"], made["alive"]) == ("crew", "the best", 0)
    assert cli("status", "--json").json["team"] == "crew"
    assert cli("team", "create", "other").code == 0
    assert [team["name"] for team in cli("team", "list", "--json").json] == ["crew", "other"]
    cli("status").refused(2, "there are 2 teams in", "crew, other; name one with --team")
    assert cli("--team", "other", "status", "--json").json["team"] == "other"
    assert cli.with_environment(CREWBOARD_TEAM="crew")("status", "--json").json["team"] == "crew"
    assert cli("team", "delete", "crew").code == 0
    assert TeamDirectory(cli.root / ".crewboard" / "crew").exists()
    assert cli("team", "delete", "crew", "--purge").code == 0
    assert [team["name"] for team in cli("team", "list", "--json").json] == ["other"]


@pytest.mark.files_only("copies a folder")
def test_a_copied_team_is_shown_as_team_takes_it(cli: Cli, team: Team) -> None:
    shutil.copytree(team.directory.path, team.directory.path.with_name("copied"))
    listed = cli("team", "list", "--json").json
    assert [(each["name"], Path(each["path"]).name) for each in listed] == [
        ("copied", "copied"),
        ("default", "default"),
    ]
    for name in ("copied", "default"):
        assert cli("--team", name, "status", "--json").json["team"] == name
        assert cli("--team", name, "status").out.startswith(f"team {name} ")
    cli("team", "delete", "copied", "--purge").refused(77, "the team in", "is foreign")


def test_what_the_dashboard_kept_goes_with_a_purged_team(cli: Cli, tmp_path: Path) -> None:
    of_this_user = cli.with_environment(XDG_STATE_HOME=str(tmp_path / "state"))
    assert of_this_user("team", "create", "crew").code == 0
    state, directory = tmp_path / "state/crewboard", cli.root.resolve() / ".crewboard/crew"
    operator = Team(TeamDirectory(directory), environment=of_this_user.environment).operator
    drafts, sent = (operators.file_for(state / name, directory) for name in ("drafts", "sent"))
    visit = operators.file_for(state / "visits", directory, operator)
    kept = [each for each in (drafts, sent, visit) if each is not None]
    assert len(kept) == 3
    for each in kept:
        each.parent.mkdir(parents=True)
        each.write_text("{}")
    assert of_this_user("team", "delete", "crew").code == 0
    assert all(each.exists() for each in kept)
    assert of_this_user("team", "delete", "crew", "--purge").code == 0
    assert [each for each in kept if each.exists()] == []


def test_the_root_is_found_from_below(cli: Cli, team: Team) -> None:
    below = cli.root / "src" / "deep"
    below.mkdir(parents=True)
    assert Path(Cli(below)("status", "--json").json["root"]) == cli.root.resolve()
    elsewhere = Cli(Path("/")).with_environment(CREWBOARD_ROOT=str(cli.root))
    assert Path(elsewhere("status", "--json").json["root"]) == cli.root.resolve()


@pytest.mark.files_only("looks at the modes of all files")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277, 0o777])
def test_files_are_for_their_owner_alone_whatever_the_umask(cli: Cli, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert cli("task", "add", "x").code == 0
        assert cli("send", "lead", "hello").code == 0
        team = Team(TeamDirectory(cli.root / ".crewboard" / "default"))
        enlist(team, "gone")
        stop.remove(team, "gone")
    finally:
        os.umask(before)
    made = [cli.root / ".crewboard", *(cli.root / ".crewboard").rglob("*")]
    assert {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in made} == {(True, 0o700), (False, 0o600)}
    assert len(made) > 15


def test_types_names_every_type_and_what_it_may(cli: Cli) -> None:
    listed = {each["name"]: each for each in cli("types", "--json").json}
    assert listed.keys() == TYPES.keys()
    assert (listed["explore"]["writes"], listed["test"]["executes"]) == (False, True)
    assert "bash" not in listed["plan"]["tools"]
    assert {name: (each["effort"], each["thinking"]) for name, each in listed.items()} == {
        name: (kind.effort, kind.thinking) for name, kind in TYPES.items()
    }
    shown = cli("types").out
    assert "explore  reads the workspace" in shown
    assert f"model: {TYPES['lead'].model}, effort: high, thinking: adaptive\n" in shown
    assert f"model: {TYPES['explore'].model}, effort: medium\n" in shown


def test_a_raised_budget_lets_no_explorer_go_on(team: Team) -> None:
    enlist(team, "scout", "explore")
    agent = team.directory.agent("scout")
    agent.exit.save(Exit(run=1, code=79, reason="budget", buried=True))
    assert control.stopped_by_limit(team, "scout")
    spec = agent.spec.load()
    assert spec is not None
    agent.spec.save(spec.replace(parent="fixer"))
    assert not control.stopped_by_limit(team, "scout")


def test_domains_are_checked_before_an_agent_is_hired(cli: Cli) -> None:
    for terms, why in (
        (("--allowed-domains", "https://a.org"), "'https://a.org' is not a domain"),
        (("--web", "--allowed-domains", ""), "--allowed-domains names no domain"),
        (("--no-web", "--allowed-domains", "a.org"), "either --no-web or --allowed-domains"),
    ):
        refused = cli("spawn", "seeker", "--type", "explore", "--prompt", "go", *terms)
        assert (refused.code, why in refused.err) == (2, True)


def test_doctor_says_what_works_and_how_to_fix_the_rest(cli: Cli) -> None:
    looked = cli("doctor", "--json")
    assert looked.code == 0, "to say what does not work is what it is for"
    found = {check["name"]: check for check in looked.json}
    assert {"python", "model", "sandbox", "watcher", "root", "terminal", "git"} <= found.keys()
    assert found["model"]["mark"] == "bad"
    assert "ANTHROPIC_API_KEY" in found["model"]["remedy"]
    assert found["watcher"]["mark"] == "ok"
    kept_by = "cgroup" if process.find_memory_cgroup() else "watched"
    assert found["memory"]["detail"].startswith(f"memory limits: {kept_by}")
    secret = cli.with_environment(ANTHROPIC_API_KEY="sk-secret")("doctor")
    assert "sk-secret" not in secret.out
    assert "ANTHROPIC_API_KEY for https://api.anthropic.com (not tried" in secret.out
    assert "offline model" in cli("--offline", "doctor").out


@pytest.mark.both_stores("it reads logs")
def test_journal_and_log(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    agent = team.directory.agent("fixer")
    assert "fixer has done nothing yet" in cli("journal", "fixer").err
    nothing = "the worker of fixer wrote nothing; `crewboard journal fixer` says what fixer did\n"
    assert cli("log", "fixer").err == nothing
    agent.log.write_text("")
    assert cli("log", "fixer").err == nothing, "a worker makes its log when it starts"
    journal.append(agent.journal, Intake(ts=1.0, run=1, prompt="fix it\nall"))
    append(agent.journal, b"torn\n")
    agent.log.write_text("one\ntwo")
    ran = cli("journal", "fixer")
    assert "you: fix it" in ran.out
    assert "1 damaged line of the journal skipped" in ran.err
    assert cli("log", "fixer").out == "one\ntwo\n"
    assert '"kind": "intake"' in cli("journal", "fixer", "--json").out


@pytest.mark.parametrize("name", ["operator", "lead"])
def test_the_operators_mailboxes_can_be_looked_into(cli: Cli, team: Team, name: str) -> None:
    mailbox.send(team.directory, mailbox.compose("fixer", name, "result", "done"))
    assert "fixer → " + name in cli("inbox", name).out


@pytest.mark.long
def test_doctor_checks_the_hook_of_the_user(cli: Cli, tmp_path: Path) -> None:
    mine = cli.with_environment(XDG_CONFIG_HOME=str(tmp_path / "config"))

    def checked() -> list[dict[str, str]]:
        return [check for check in mine("doctor", "--json").json if check["name"] == "hook"]

    assert checked() == []
    file = tmp_path / "config" / "crewboard" / "hook.toml"
    file.parent.mkdir(parents=True)
    file.write_text('command = ["cat", "https://chat.example/secret"]')
    file.chmod(0o600)
    (found,) = checked()
    assert (found["mark"], "secret" in found["detail"]) == ("ok", False)
    file.chmod(0o644)
    (found,) = checked()
    assert (found["mark"], found["remedy"]) == ("note", f"chmod 600 {file}")
    file.chmod(0o666)
    assert checked()[0]["mark"] == "bad"
    file.chmod(0o600)
    file.write_text('command = ["no-such-program"]')
    (found,) = checked()
    assert found["mark"] == "bad"
    assert "no-such-program is not there" in found["detail"]


@pytest.mark.long
def test_doctor_names_a_file_of_keys_and_what_is_wrong_with_it(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "config" / "crewboard"
    mine = cli.with_environment(XDG_CONFIG_HOME=str(folder.parent))
    assert "keys" not in {check["name"] for check in mine("doctor", "--json").json}
    folder.mkdir(parents=True)
    (folder / "keys.toml").write_text('app.next = "N"\napp.nxt = "n"')
    (found,) = (check for check in mine("doctor", "--json").json if check["name"] == "keys")
    assert found["mark"] == "note"
    assert "did you mean app.next?" in found["detail"]
    assert '# app.next = "!"' in mine("keys").out
    (folder / "keys.toml").write_text("app.next = ")
    (found,) = (check for check in mine("doctor", "--json").json if check["name"] == "keys")
    assert found["detail"].startswith(f"{folder / 'keys.toml'}: cannot be read: ")


@pytest.mark.parametrize("command", [("stop", "fixer"), ("stop", "fixer", "--now"), ("team", "delete", "default")])
def test_an_agent_ended_on_purpose_leaves_no_death_need(cli: Cli, team: Team, command: tuple[str, ...]) -> None:
    enlist(team, "fixer")
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=5.0, buried=True))
    assert [need["kind"] for need in cli("status", "--json").json["needs_you"]] == ["death"]
    assert cli(*command).code == 0
    assert cli("status", "--json").json["needs_you"] == []


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (("stop", "fi"), ["fixer"]),
        (("resume", ""), ["fixer", "tester"]),
        (("wait", "fixer", "--until", "crashed,va"), ["crashed,vanished"]),
        (("wait", "fixer", "te"), ["tester"]),
        (("approve", ""), ["question-77c0"]),
        (("task", "update", ""), ["1"]),
        (("spawn", "x", "--type", "exp"), ["explore"]),
        (("spawn", "x", "--engine", "c"), ["claude", "claude-gated", "codex"]),
        (("stop", "nobody-here"), []),
        (("--team", ""), ["default"]),
        (("team", "delete", ""), ["default"]),
        (("task", "add", "more", "--owner", "fi"), ["fixer"]),
        (("task", "add", "more", "--review", ""), ["fixer", "tester", "operator"]),
        (("comp",), ["completion"]),
        (("--team", "absent", "stop", ""), []),
    ],
)
def test_the_shell_completes_names_ids_and_states(
    team: Team, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], completed: list[str]
) -> None:
    enlist(team, "fixer")
    enlist(team, "tester")
    ask(team, "question-77c0", "question", {"question": "which?"})
    tasks.add(team.directory, "fix", 6.0)
    monkeypatch.chdir(team.directory.root)
    shell = ShellComplete(program.crewboard, {}, "crewboard", env.COMPLETE)
    found = shell.get_completions(list(words[:-1]), words[-1])
    assert [item.value for item in found] == completed


def test_a_long_mailbox_is_shown_in_pages(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    texts = [f"message {number}" for number in range(450)]
    append(team.directory.inbox("fixer"), b"".join(line(f"m{n}", text) + b"\n" for n, text in enumerate(texts)))

    def shown(*arguments: str) -> tuple[list[str], str]:
        ran = cli("inbox", "fixer", *arguments)
        assert ran.code == 0
        return [row.strip() for row in ran.out.splitlines() if row.startswith("    ")], ran.err

    newest, hint = shown()
    assert newest == texts[-200:]
    assert "the newest 200 messages; `crewboard" in hint
    assert "inbox fixer --before m250` shows older ones, --all all" in hint
    assert shown("--before", "m250")[0] == texts[50:250]
    assert shown("--before", "m50") == (texts[:50], "")
    assert shown("--limit", "3")[0] == texts[-3:]
    assert shown("--all") == (texts, "")
    assert len(cli("inbox", "fixer", "--json").json) == 450
    assert [each["id"] for each in cli("inbox", "fixer", "--json", "--limit", "2").json] == ["m448", "m449"]
    cli("inbox", "fixer", "--before", "m999").refused(2, "there is no message 'm999' in the mailbox of fixer")
    cli("inbox", "fixer", "--all", "--limit", "2").refused(2, "--all or --limit")


@pytest.mark.both_stores("each store reads the end of a log in its own way")
def test_the_newest_page_of_a_huge_mailbox_reads_its_end_alone(
    cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    enlist(team, "fixer")
    append(team.directory.inbox("fixer"), b"".join(line(f"m{n}", "x" * 200) + b"\n" for n in range(4000)))
    parsed = Counter[str]()
    decode = codec.decode

    def count(data: bytes, model: type[Any]) -> Any:  # noqa: ANN401
        parsed[model.__name__] += 1
        return decode(data, model)

    monkeypatch.setattr(codec, "decode", count)
    assert cli("inbox", "fixer", "--limit", "5").out.count("scout · message") == 5
    assert 5 <= parsed["Message"] < 1500


PLAN = "# Fix it\n1. read\n2. write"


def test_a_plan_is_shown_with_its_notes_and_changes(cli: Cli, team: Team) -> None:
    """A note stands below its line, with its answer; what is gone stands at the end."""
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": PLAN})
    assert "    │    2   1. read\n    │    3   2. write\n" in cli("plan", "plan-1").out
    sent = cli("reject", "plan-1", "--note", "3:where?", "--note", "1-2: why now?", "--json").json
    assert [(note["id"], note["line"], note["end"]) for note in sent["notes"]] == [("n1", 1, 2), ("n2", 3, 3)]
    assert (sent["feedback"], sent["notes"][0]["quoted"]) == (None, ["# Fix it", "1. read"])
    told = cli("inbox", "fixer", "--json").json[0]["content"]
    assert "n1, lines 1-2:\n  > # Fix it\n  > 1. read\n  | why now?\n\nn2, line 3:\n  > 2. write\n  | where?" in told
    payload: dict[str, JsonValue] = {"plan": "# Fix it\n1. read\nAnother end."}
    requests.ask(
        team.directory, "plan-2", "plan_approval", "fixer", "operator", payload, 9.0,
        supersedes="plan-1", answers={"n1": "it is broken"},
    )  # fmt: skip
    before = cli("plan", "plan-1").out
    assert "    n1, lines 1-2, answered:\n    │ why now?\n    answer to n1:\n    │ it is broken\n" in before
    assert "    n2, line 3, open:\n    │ where?\n" in before, "it stands where it was written"
    text = cli("plan", "plan-2").out
    assert (
        "    version 2, changed since version 1:\n    │    1   # Fix it\n    │    2   1. read\n"
        "    n1, lines 1-2, answered:\n    │ why now?\n    answer to n1:\n    │ it is broken\n"
        "    │      - 2. write\n    │    3 + Another end.\n    n2, moved, open:\n    │ > 2. write\n    │ where?\n"
    ) in text
    assert "n2, moved:\n    │   > 2. write\n    │   | where?" in cli("requests").out, "each yes is to the notes, too"
    found = cli("plan", "plan-2", "--json").json
    assert [(note["id"], note["state"]) for note in found["notes"]] == [("n1", "answered"), ("n2", "open")]
    assert found["version"] == 2
    assert [(line["line"], line["change"]) for line in found["lines"]] == [(1, ""), (2, ""), (None, "-"), (3, "+")]
    approved = cli("approve", "plan-2", "--sha256", found["request"]["sha256"], "--note", "3:good").out
    assert approved == "plan_approval plan-2 of fixer: approved\n"
    assert "    n3, line 3, open:\n    │ good\n" in cli("plan", "plan-2").out


def test_a_plan_that_may_come_again_is_not_called_rejected(cli: Cli, team: Team) -> None:
    for ident in ("plan-1", "plan-2", "plan-3"):
        ask(team, ident, "plan_approval", {"plan": PLAN})
    assert cli("reject", "plan-1", "--feedback", "Question: which files?").out.endswith("fixer: asked back\n")
    assert cli("reject", "plan-2", "--note", "1:why?").out.endswith("fixer: sent back\n")
    assert cli("reject", "plan-3", "--feedback", "no").out.endswith("fixer: rejected\n")
    heads = [line for line in cli("requests", "--all").out.splitlines() if line.startswith("plan-")]
    assert [" · asked back " in heads[0], " · sent back " in heads[1], " · rejected " in heads[2]] == [True] * 3
    assert "· asked back " in cli("plan", "plan-1").out


def test_a_decision_has_the_name_of_the_user_who_made_it(cli: Cli, team: Team) -> None:
    ask(team, "plan-1", "plan_approval", {"plan": PLAN})
    kim = Team(team.directory, environment={"CREWBOARD_OPERATOR": "Kim"}, now=team.now)
    answers.approve(kim, "plan-1", edited="step by step")
    heads = [cli(*command).out.splitlines()[0] for command in (["requests", "--all"], ["plan", "plan-1"])]
    assert [head.endswith(" by Kim") for head in heads] == [True] * 2
    assert "as Kim edited and approved it" in cli("requests", "--all").out


def test_a_note_that_cannot_be_placed_answers_nothing(cli: Cli, team: Team) -> None:
    ask(team, "plan-1", "plan_approval", {"plan": PLAN})
    ask(team, "ask-1", "question", {"question": "tabs?"})
    cli("reject", "plan-1", "--note", "4:x").refused(2, "no line 4", "1 to 3")
    cli("reject", "plan-1").refused(2, "say why it is rejected, with --feedback; of a plan also with --note")
    cli("approve", "plan-1", "--note", "x").refused(2, "is no note", "12:why?")
    cli("reject", "plan-1", "--note", "3-2:x").refused(2, "the first line, 3, comes after the last, 2")
    cli("approve", "plan-1", "--note", "1:x", "--edited-file", "-", stdin=b"new").refused(2, "notes", "edited plan")
    cli("reject", "plan-1").refused(2, "say why it is rejected")
    cli("approve", "plan-1", "--note", "1:x", "--rule").refused(2, "--rule")
    cli("plan", "ask-1").refused(2, "no plan")
    assert {request["status"] for request in cli("requests", "--json").json} == {"pending"}


def test_notes_on_one_line_keep_the_order_in_which_they_are_given(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": PLAN})
    sent = cli("reject", "plan-1", "--note", "3:where?", "--note", "3:and when?", "--note", "1:a", "--json").json
    assert [note["text"] for note in sent["notes"]] == ["a", "where?", "and when?"]


def test_no_line_of_a_note_shows_a_part_of_a_key(cli: Cli, team: Team) -> None:
    """A line of a key in several lines is hidden, though alone it does not look like one."""
    lines = ["-----BEGIN PRIVATE KEY-----", *("MC" + letter * 62 for letter in "AB"), "-----END PRIVATE KEY-----"]
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": "\n".join(["# Fix it", *lines])})
    assert cli("reject", "plan-1", "--note", "4:why?").code == 0
    requests.ask(
        team.directory, "plan-2", "plan_approval", "fixer", "operator", {"plan": "new"}, 9.0, supersedes="plan-1"
    )
    shown = [cli("plan", "plan-1"), cli("plan", "plan-2"), cli("requests", "--all")]
    shown += [cli("plan", "plan-1", "--json"), cli("plan", "plan-2", "--json"), cli("inbox", "fixer")]
    assert not [ran.out for ran in shown if "B" * 20 in ran.out]
    assert "B" * 20 in cli("plan", "plan-1", "--reveal").out


def test_the_way_to_a_yes_to_a_plan_with_a_key_reveals_the_plan(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": "use ghp_abcdefghijklmnopqrstuvwxyz0123456789"})
    way = "crewboard plan plan-1 --reveal"
    shown = cli("plan", "plan-1")
    assert way in shown.out
    assert way in shown.err
    assert way in cli("requests").out
    assert "requests --reveal" not in shown.out + shown.err
    cli("approve", "plan-1").refused(65, f"`{way}` shows it")
    (yes,) = re.findall(r"^crewboard (approve .*)$", cli("plan", "plan-1", "--reveal").out, re.MULTILINE)
    assert cli(*yes.split()).code == 0


def test_a_note_with_bytes_that_are_no_text_is_sent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    ask(team, "plan-1", "plan_approval", {"plan": PLAN})
    (note,) = cli("reject", "plan-1", "--note", "1:caf\udce9", "--json").json["notes"]
    assert note["text"] == "caf?"


def test_a_team_without_agents_may_still_use_either_model(cli: Cli, team: Team) -> None:
    assert team.directory.exists()
    assert " · Messages API, unless --offline\n" in cli("status").out
    assert " · offline model (no lang" in cli("--offline", "status").out
    by_variable = cli.with_environment(CREWBOARD_OFFLINE="1")("status", "--json")
    shown = (cli("status", "--json"), cli("--offline", "status", "--json"), by_variable)
    assert [each.json["model_backend"] for each in shown] == ["api", "offline", "offline"]
    enlist(team, "fixer")
    assert " · Messages API\n" in cli("status").out
