"""`watch` and `wait`, as a script uses them."""

import json
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from crewboard.store import mailbox, tasks
from crewboard.team.context import Team
from tests.cli.files import alive, enlist, set_status
from tests.cli.shell import Cli, finish


@pytest.fixture
def watching(shell: Cli, team: Team) -> Iterator[subprocess.Popen[bytes]]:
    """A watch of the team that has begun."""
    enlist(team, "fixer")
    process = shell.start("watch", "--json")
    assert process.stderr is not None
    assert b"watching the team default" in process.stderr.readline()
    yield process
    ran = finish(process, signal.SIGINT)
    assert ran.code == 130
    assert "Traceback" not in ran.err


def next_change(process: subprocess.Popen[bytes], seconds: float = 20) -> dict[str, object]:
    """The next line; the watch is ended if there is none in time, which fails the reading."""
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
    tasks.add(team.directory, "mend", 6.0)
    assert next_change(watching)["kind"] == "task"


def test_wait_ends_when_the_state_is_reached(shell: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working")
    with alive(team, "fixer"):
        waiting = shell.start("wait", "fixer", "--until", "idle,exited", "--timeout", "30", "--json")
        set_status(team, "fixer", state="idle")
        assert finish(waiting).json["state"] == "idle"


def test_wait_gives_up_with_75(shell: Cli, team: Team) -> None:
    enlist(team, "fixer", state="working")
    with alive(team, "fixer"):
        shell("wait", "fixer", "--until", "idle", "--timeout", "0").refused(75, "fixer is working after 0 s, not idle")


def test_mail_that_was_not_picked_up_is_no_idleness(shell: Cli, team: Team) -> None:
    enlist(team, "fixer", state="idle", since=team.now() + 100)
    mailbox.send(team.directory, mailbox.compose("operator", "fixer", "message", "more"))
    with alive(team, "fixer"):
        shell("wait", "fixer", "--until", "idle", "--timeout", "0.2").refused(75, "fixer is idle")
        set_status(team, "fixer", state="idle", since=1)
        assert shell("wait", "fixer", "--until", "idle", "--timeout", "0").code == 0


def test_wait_on_an_agent_that_ended_is_done_at_once(shell: Cli, team: Team) -> None:
    enlist(team, "fixer")
    assert shell("wait", "fixer", "--until", "exited,vanished", "--timeout", "0").code == 0
