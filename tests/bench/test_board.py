"""The board under load: from an append to the terminal, keys during 10,000 messages, and a roster of hundreds."""

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pexpect
import pytest

from crewboard.commands.context import Team
from crewboard.store.layout import TeamDirectory
from tests.bench.figures import Figures, median
from tests.bench.terminal import terminal
from tests.bench.test_screen import BETWEEN, BOARD
from tests.cli.files import alive, enlist, set_status
from tests.cli.shell import clean_environment

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

CHANGES = 60
BOXES = 32
EACH = 313
"""Messages for each mailbox under load: ten thousand in all."""
STORM = 2.0
"""Seconds over which the load is spread."""
STEPS = 60

_STORM = """
import json, os, sys, time
boxes, each, seconds = sys.argv[3:], int(sys.argv[1]), float(sys.argv[2])
files = [os.open(box, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) for box in boxes]
began = time.monotonic()
for number in range(each):
    for at, file in enumerate(files):
        letter = {"v": 1, "id": f"{at}-{number}", "ts": time.time(), "from": "lead", "to": "all",
                  "type": "message", "content": f"letter {number}", "metadata": {}}
        os.write(file, json.dumps(letter).encode() + b"\\n")
    time.sleep(max(0, began + seconds * (number + 1) / each - time.monotonic()))
"""


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """Make a team without agents."""
    return Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()


def crowd(team: Team, count: int, stack: ExitStack) -> list[str]:
    """Make agents that look busy in their files, sorted as the roster sorts them."""
    names = [f"agent{number:03}" for number in range(count)]
    for name in names:
        enlist(team, name, "explore", state="working", doing="thinking", since=time.time())
        stack.enter_context(alive(team, name))
    return names


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def walk(board: pexpect.spawn, names: list[str]) -> Iterator[float]:
    """Move down and up the roster; return the milliseconds from each key until the agent's name is painted."""
    board.expect_exact(peek(names[0]))
    there = [*names[1:], *reversed(names[:-1])]
    for at, name in enumerate(itertools.cycle(there)):
        began = time.perf_counter()
        board.send("j" if at % len(there) < len(names) - 1 else "k")
        board.expect_exact(peek(name))
        yield (time.perf_counter() - began) * 1e3


def peek(name: str) -> bytes:
    """Return the title above the activity of the selected agent."""
    return f"Peek · {name}".encode()


def slowest(took: list[float], percent: int = 95) -> float:
    """Return the time within which the given percentage came."""
    return statistics.quantiles(took, n=100)[percent - 1]


def test_thirty_agents(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 30, stack)
    took = []
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact(peek(names[0]))
        for number in range(CHANGES):
            time.sleep(BETWEEN)
            words = f"mark{number:04}"
            began = time.perf_counter()
            set_status(team, names[number % 10], state="working", doing=words, since=time.time())
            board.expect_exact(words)
            took.append((time.perf_counter() - began) * 1e3)
    figures.add("a change to the terminal, 30 agents, median", median(took), "ms", target=20)
    figures.add("a change to the terminal, 30 agents, 95 %", slowest(took), "ms", target=60)


def test_keys_under_load(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, BOXES, stack)
    boxes = [str(team.directory.inbox(name)) for name in names]
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        keys = walk(board, names)
        took = [next(keys)]
        with subprocess.Popen([sys.executable, "-I", "-c", _STORM, str(EACH), str(STORM), *boxes]) as storm:
            while storm.poll() is None:
                took.append(next(keys))
        board.send("2")
        # No message was missed.
        board.expect_exact(f"{EACH} unread")
    figures.add(f"a key while {BOXES * EACH:,} messages arrive, median", median(took), "ms")
    figures.add(f"a key while {BOXES * EACH:,} messages arrive, slowest", max(took), "ms", target=100)


def test_five_hundred_agents(figures: Figures, team: Team, stack: ExitStack) -> None:
    names = crowd(team, 500, stack)
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        took = list(itertools.islice(walk(board, names), STEPS))
    figures.add("a key on a roster of 500, median", median(took), "ms", target=50)
    figures.add("a key on a roster of 500, 95 %", slowest(took), "ms", target=50)
