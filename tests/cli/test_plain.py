"""`board --plain`: the needs of the operator as sentences, without a terminal."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from crewboard.commands import messages
from crewboard.commands.context import CommandLine, Team
from crewboard.protocol import requests
from crewboard.readmodel.reader import TeamReader
from crewboard.records.events import ToolStart
from crewboard.records.processes import Exit
from crewboard.store import agents, journal
from crewboard_tui.cli import board as plain
from crewboard_tui.notifications import NeedsDiff
from tests.cli.files import ask, enlist
from tests.cli.shell import Cli, finish
from tests.frozen import make_team


def next_line(process: subprocess.Popen[bytes], seconds: float = 20) -> str:
    """Return the next line; end the process if none comes in time, which makes it an empty one."""
    assert process.stdout is not None
    patience = threading.Timer(seconds, process.kill)
    patience.start()
    try:
        return process.stdout.readline().decode().rstrip("\n")
    finally:
        patience.cancel()


def die(team: Team, name: str) -> None:
    agent = team.directory.agent(name)
    start = ToolStart(ts=2, run=1, tool_use_id="t1", name="bash", input={"command": "pytest -x"})
    journal.append(agent.journal, start)
    agents.write_exit(agent, Exit(run=1, signal=9, reason="died", at=team.now() - 61, buried=True))


@pytest.fixture
def plainly(shell: Cli, team: Team) -> Iterator[subprocess.Popen[bytes]]:
    """Start a plain board of a team with one dead agent."""
    enlist(team, "fixer", state="working", doing="bash pytest -x", last_tool="bash pytest -x")
    die(team, "fixer")
    with shell.start("board", "--plain") as process:
        yield process
        process.kill()


def test_it_tells_what_waits_what_comes_and_what_is_settled(plainly: subprocess.Popen[bytes], team: Team) -> None:
    first = next_line(plainly)
    assert first.startswith("fixer died: killed by SIGKILL, last tool bash pytest -x; for 1m")
    assert first.endswith("To resume: crewboard resume fixer. To acknowledge: crewboard ack fixer")
    ask(team, "q-1", "question", {"question": "keep \x1b[31mit?", "options": ["yes {0}", "no"]})
    second = next_line(plainly)
    assert "fixer asks: keep ␛[31mit?" in second
    assert "Options: yes {0}; no. To answer: crewboard answer q-1 TEXT" in second
    messages.acknowledge(team, "fixer")
    assert next_line(plainly) == "settled: fixer died: killed by SIGKILL, last tool bash pytest -x; acknowledged"
    requests.close(team.directory, "q-1", "cancelled", "system", 6.0)
    assert next_line(plainly).endswith("cancelled by system")
    assert next_line(plainly) == "nothing needs you"
    ran = finish(plainly, signal.SIGINT)
    assert ran.code == 130
    assert "Traceback" not in ran.err


@pytest.mark.long
def test_it_ends_when_its_reader_is_gone_even_without_news(plainly: subprocess.Popen[bytes]) -> None:
    next_line(plainly)
    assert plainly.stdout is not None
    plainly.stdout.close()
    assert plainly.wait(20) == 0


@pytest.mark.long
def test_a_quiet_team_says_so(shell: Cli, team: Team) -> None:
    process = shell.start("board", "--plain")
    assert next_line(process) == "nothing needs you"
    assert finish(process, signal.SIGINT).code == 130


def test_every_kind_of_need_has_a_sentence_of_its_own(tmp_path: Path) -> None:
    frozen = make_team(tmp_path / "inkpot")
    view = TeamReader(frozen.directory, clock=frozen.team.now, probe=frozen.probe).read()
    told = list(plain.news(view, NeedsDiff(), CommandLine()))
    assert [line.partition(";")[0] for line in told] == [
        "parser died: killed by SIGKILL, last tool bash pytest -x tests/parser",
        "auth-plan submits a plan: Rotate the JWT signing keys … (+9 lines) · 5 files · 2 commands",
        "docs asks: The 1.x API pages are linked from two blog posts. Keep them?",
        "migrate is stuck: no progress past its deadline: bash alembic upgrade head",
        "flaky-hunt loops: bash pytest -k sync ×6, same outcome",
    ]
    assert "task 14 went back to the board. To resume" in told[0]
    assert (
        "for 4m12s; task 7 waits. To read it: crewboard requests. To approve: crewboard approve req-004281" in told[1]
    )
    assert "tasks 11, 22 wait" in told[3]
    stuck = replace(view.needs[3], summary="It waits.")
    assert "It waits; for " in plain.sentence(stuck, view, CommandLine())
    decided = view.request("req-004281")
    assert decided is not None
    decided = decided.replace(status="rejected", feedback="Question: why?", decided_by="operator", operator="Kim")
    assert plain.settled(view.needs[1], replace(view, asked=(decided,)), "Lee").endswith("; asked back by Kim")
    assert plain.settled(stuck, view, "").startswith("settled: migrate is stuck: It waits; ")
