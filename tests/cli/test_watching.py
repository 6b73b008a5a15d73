"""`watch` and `wait`, as a script uses them."""

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import get_args

import pytest

from crewboard.commands import messages
from crewboard.commands.context import Team
from crewboard.protocol import requests
from crewboard.readmodel.changes import ChangeReader
from crewboard.readmodel.states import Shown
from crewboard.records.agents import Spec, State
from crewboard.records.processes import Exit
from crewboard.store import agents, mailbox, tasks
from crewboard_tui.cli.watching import ChangeLines
from tests.cli.files import alive, ask, enlist, set_status
from tests.cli.shell import Cli, finish


def test_wait_takes_each_state_that_its_help_names(cli: Cli) -> None:
    names = re.findall(r"\(([^)]*)\)", " ".join(cli("wait", "--help").out.split()).partition("The states are")[2])
    named = {word for listed in names[:2] for word in listed.split(", ")}
    assert named == {*get_args(State), *get_args(Shown)}


@pytest.fixture
def watching(shell: Cli, team: Team) -> Iterator[subprocess.Popen[bytes]]:
    """Start a watch of the team."""
    enlist(team, "fixer")
    process = shell.start("watch", "--json")
    assert process.stderr is not None
    assert b"watching the team default" in process.stderr.readline()
    yield process
    ran = finish(process, signal.SIGINT)
    assert ran.code == 130
    assert "Traceback" not in ran.err


def next_change(process: subprocess.Popen[bytes], seconds: float = 20) -> dict[str, object]:
    """Return the next line; end the watch if none comes in time, which makes parsing fail."""
    assert process.stdout is not None
    patience = threading.Timer(seconds, process.kill)
    patience.start()
    try:
        found: dict[str, object] = json.loads(process.stdout.readline())
    finally:
        patience.cancel()
    return found


def test_watch_prints_each_change_on_a_line_at_once(watching: subprocess.Popen[bytes], team: Team) -> None:
    mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "hi\n\x1b[31m", ts=5.0))
    change = next_change(watching)
    assert (change["ts"], change["kind"], change["agent"]) == (5.0, "message", "fixer")
    tasks.add(team.directory, "fix", 6.0)
    assert next_change(watching)["kind"] == "task"


def test_watch_repeats_no_status_for_a_new_process(team: Team) -> None:
    enlist(team, "fixer", state="idle")
    with alive(team, "fixer"):
        reader, lines = ChangeReader(team.directory), ChangeLines()

        def told() -> list[list[str]]:
            return [line.split()[1:] for line in lines.describe(reader.read())]

        set_status(team, "fixer", state="working", pid=5)
        assert told() == [["status", "fixer", "working"]]
        set_status(team, "fixer", state="working", pid=6)
        assert told() == []
        for _ in range(2):
            mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "hi", ts=time.time()))
            assert told() == [["message", "fixer", "←", "operator:", "message", "hi"]]
        set_status(team, "fixer", state="working", pid=7)
        assert told() == [["status", "fixer", "working"]]


def test_wait_ends_when_the_state_is_reached(shell: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working")
    with alive(team, "fixer"):
        waiting = shell.start("wait", "fixer", "--until", "idle,exited", "--timeout", "30", "--json")
        set_status(team, "fixer", state="idle")
        assert finish(waiting).json["state"] == "idle"


def test_the_help_names_every_state_that_one_can_wait_for(cli: Cli) -> None:
    named = set(re.findall(r"[a-z]+", cli("wait", "--help").out))
    assert {*get_args(State), *get_args(Shown)} <= named


@pytest.mark.long
def test_wait_for_needs_prints_the_most_urgent_one(cli: Cli, shell: Cli, team: Team) -> None:
    enlist(team, "fixer", state="idle")
    enlist(team, "tester", state="idle")
    with alive(team, "fixer"), alive(team, "tester"):
        cli("wait", "--needs", "--timeout", "0").refused(75, "nothing needs you after 0 s")
        waiting = shell.start("wait", "--needs", "--timeout", "30")
        set_status(team, "tester", failed=79, failed_at=7, last_error="reached its limit of 3 model calls")
        found = finish(waiting).json
        assert (found["kind"], found["agent"], found["code"]) == ("failed", "tester", 79)
        requests.ask(team.directory, "q1", "question", "fixer", "operator", {"question": "why?"}, 9.0, by_mail=False)
        assert cli("wait", "--needs").json == cli("status", "--json").json["needs_you"][0]
        assert cli("wait", "--needs").json["kind"] == "question"
    assert cli("wait", "fixer", "--needs").code == 2
    assert cli("wait", "fixer").code == 2


@pytest.mark.parametrize("code", [69, 78])
def test_a_failure_at_an_address_offers_to_end_the_agent(cli: Cli, team: Team, code: int) -> None:
    enlist(team, "tester", state="idle")
    with alive(team, "tester"):
        set_status(team, "tester", failed=code, failed_at=7, last_error="no connection to 127.0.0.1:9")
        assert "→ crewboard stop tester   or   crewboard send tester TEXT" in cli("status").out


def test_an_outage_offers_to_try_the_server_and_to_end_an_agent(cli: Cli, team: Team) -> None:
    enlist(team, "tester")
    with alive(team, "tester"):
        set_status(team, "tester", state="retrying", outage_since=5.0, last_error="no connection to 127.0.0.1:9")
        assert "→ crewboard doctor --try   or   crewboard stop NAME   or" in cli("status").out


def test_a_need_says_how_many_agents_and_tasks_wait_behind_it(cli: Cli, team: Team) -> None:
    for name in ("fixer", "tester", "scout"):
        enlist(team, name)
    with alive(team, "fixer"), alive(team, "tester"), alive(team, "scout"):
        cli("task", "add", "build", "--owner", "fixer")
        cli("task", "add", "test", "--owner", "tester", "--blocked-by", "1")
        cli("task", "add", "release", "--blocked-by", "2")
        cli("task", "update", "1", "--status", "in_progress")
        ask(team, "question-1", "question", {"question": "x?"})
        found = cli("wait", "--needs").json
        assert (found["kind"], found["waiting"]) == ("question", {"agents": 1, "tasks": 3})
        assert cli("status", "--json").json["needs_you"][0]["waiting"] == found["waiting"]


def test_wait_gives_up_with_75(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working")
    with alive(team, "fixer"):
        cli("wait", "fixer", "--until", "idle", "--timeout", "0").refused(75, "fixer is working after 0 s, not idle")


def test_wait_for_all_waits_for_each_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", state="idle")
    enlist(team, "tester", state="working")
    with alive(team, "fixer"), alive(team, "tester"):
        for names in (("fixer", "tester"), ("--all",), ("tester", "fixer", "tester", "--all")):
            cli("wait", *names, "--until", "idle", "--timeout", "0").refused(
                75, "tester is working after 0 s, not idle"
            )
        set_status(team, "tester", state="idle")
        found = cli("wait", "--all", "--until", "idle", "--timeout", "30", "--json").json
        assert [(agent["name"], agent["state"]) for agent in found] == [("fixer", "idle"), ("tester", "idle")]


def test_wait_for_any_ends_with_the_first_agent(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working")
    enlist(team, "tester", state="idle")
    with alive(team, "fixer"), alive(team, "tester"):
        found = cli("wait", "--any", "--until", "idle", "--timeout", "30", "--json").json
        assert [agent["name"] for agent in found] == ["tester"]
        cli("wait", "--any", "fixer", "--until", "idle", "--timeout", "0").refused(75, "fixer is working")


def test_wait_for_several_ends_when_one_that_is_needed_has_ended(cli: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working")
    enlist(team, "tester")
    agents.write_exit(team.directory.agent("tester"), Exit(run=1, signal=9, reason="died", at=5))
    with alive(team, "fixer"):
        cli("wait", "--all", "--until", "idle").refused(75, "tester is crashed: killed by SIGKILL")
        set_status(team, "fixer", state="idle")
        assert cli("wait", "--any", "--until", "idle").code == 0


def test_mail_that_was_not_picked_up_is_no_idleness(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    enlist(team, "fixer", state="idle", since=1)
    mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "more"))
    with alive(team, "fixer"):
        monkeypatch.setattr("crewboard_tui.cli.watching.SETTLED", 600)
        cli("wait", "fixer", "--until", "idle", "--timeout", "0.2").refused(75, "idle but has unread mail")
        monkeypatch.setattr("crewboard_tui.cli.watching.SETTLED", 0.1)
        assert cli("wait", "fixer", "--until", "idle", "--timeout", "30").code == 0, "it takes in no mail any more"


def test_wait_on_an_agent_that_ended_is_done_at_once(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    assert cli("wait", "fixer", "--until", "exited,vanished", "--timeout", "0").code == 0


def test_wait_ends_at_once_when_the_agent_has_ended(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=5))
    ended = "fixer is crashed: killed by SIGKILL; `crewboard resume fixer` resumes it"
    cli("wait", "fixer", "--until", "idle").refused(75, ended)
    cli("wait", "fixer", "--until", "idle", "--timeout", "0.1").refused(75, "fixer is crashed after 0.1 s, not idle")


def test_wait_ends_for_one_that_is_gone_without_a_record(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard_tui.cli.watching.SETTLED", 0.1)
    enlist(team, "fixer")
    cli("wait", "fixer", "--until", "idle").refused(75, "fixer is vanished", "crewboard resume fixer")


@pytest.mark.long
def test_wait_goes_on_while_a_start_is_under_way(shell: Cli, team: Team) -> None:
    enlist(team, "fixer")
    agent = team.directory.agent("fixer")
    agents.write_exit(agent, Exit(run=1, signal=9, reason="died", at=5))
    agents.change_spec(agent, lambda old: _wanted_anew(old, time.time()))
    waiting = shell.start("wait", "fixer", "--until", "idle", "--timeout", "30", "--json")
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2)
    with alive(team, "fixer"):
        set_status(team, "fixer", run=2)
        assert finish(waiting).json["run"] == 2


def test_wait_ends_where_the_start_came_to_nothing(cli: Cli, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard_tui.cli.watching.SETTLED", 0.1)
    enlist(team, "fixer")
    agents.change_spec(team.directory.agent("fixer"), lambda old: _wanted_anew(old, time.time() - 61))
    cli("wait", "fixer", "--until", "idle").refused(75, "fixer is starting: was never started")


def _wanted_anew(spec: Spec | None, at: float) -> Spec:
    assert spec is not None
    return spec.replace(run=2, at=at)


def test_a_death_that_was_acknowledged_is_still_dead(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=5))
    messages.acknowledge(team, "fixer")
    assert cli("wait", "fixer", "--until", "dead").code == 0
