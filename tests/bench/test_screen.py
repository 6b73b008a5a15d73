"""Painting of the dashboard, and its cost while nothing happens, next to an empty Textual app."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crewboard.commands.context import Team
from crewboard.store.layout import TeamDirectory
from tests.bench.baselines import EMPTY_APP, EMPTY_WORDS, waking_percent
from tests.bench.figures import Figures, median
from tests.bench.terminal import painted_ms, rest, terminal
from tests.cli.files import alive, enlist, resting, set_doing
from tests.cli.shell import COMMAND, clean_environment
from tests.crew import eventually

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

BOARD = [*COMMAND, "board", "--read-only"]
TOLERANCE = 2.0
CHANGES = 40
BETWEEN = 0.3
"""Seconds of rest before each change: changes in bursts are painted together on purpose."""
REST = 20.0
BEHIND = 7.0
"""Seconds after the first picture in which the other views are loaded, and CPU and memory are measured again."""


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    """Make a team with one agent that looks busy in its files."""
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    with resting() as process:
        enlist(team, "scout", "explore", **process)
        with alive(team, "scout"):
            yield team


def test_the_first_paint(figures: Figures, idle: Team) -> None:
    root, environment = idle.directory.root, clean_environment()
    # The first start after a change has bytecode and the bundle of modules written.
    with terminal(BOARD, root, environment) as board:
        board.expect_exact("agent10")
        rest(board, BEHIND)
        # The process that writes the bundle is nice: it takes long where others work.
        eventually(lambda: not psutil.Process(board.pid).children(), "the bundle of modules")
    # They take turns, so that other work on the machine slows both alike.
    turns = [
        (painted_ms(EMPTY_APP, root, environment, EMPTY_WORDS), painted_ms(BOARD, root, environment, "agent10"))
        for _ in range(7)
    ]
    empty, ours = (median(column) for column in zip(*turns, strict=True))
    name = "dashboard to the first picture of 30 agents"
    figure = figures.add(name, ours, "ms", ("an empty Textual app", empty), target=1.3)
    assert figure.within(1.8)


def test_from_a_file_to_the_screen(figures: Figures, team: Team) -> None:
    took = []
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact("scout")
        for number in range(CHANGES):
            time.sleep(BETWEEN)
            words = f"mark{number:04}"
            began = time.perf_counter()
            set_doing(team, "scout", words, time.time())
            board.expect_exact(words)
            took.append((time.perf_counter() - began) * 1e3)
    figures.add("a change of status to the terminal, median", median(took), "ms", target=20)
    figures.add("a change of status to the terminal, slowest", max(took), "ms")


def switches(pid: int) -> int:
    """Return how often the threads of a process have given up the processor to wait."""
    found = (task / "status" for task in Path(f"/proc/{pid}/task").iterdir())
    lines = itertools.chain.from_iterable(status.read_text().splitlines() for status in found)
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def test_an_idle_dashboard(figures: Figures, idle: Team) -> None:
    with terminal(BOARD, idle.directory.root, clean_environment()) as board:
        board.expect_exact("agent10")
        rest(board, BEHIND)
        process = psutil.Process(board.pid)
        before, woken, began = process.cpu_times(), switches(board.pid), time.monotonic()
        # The rest itself is measured.
        count = rest(board, REST)
        after, woken, seconds = process.cpu_times(), switches(board.pid) - woken, time.monotonic() - began
        pss = process.memory_full_info().pss / 2**20
    used = after.user + after.system - before.user - before.system
    percent = used / seconds * 100
    figures.add("dashboard at rest, 30 agents", percent, "% of a core", target=0.35)
    only = waking_percent(1, REST / woken, REST)
    figures.add("dashboard at rest, 30 agents", percent, "% of a core", ("a Python that only wakes as often", only))
    memory = figures.add("dashboard at rest, proportional memory", pss, "MiB", target=55)
    figures.add("dashboard at rest, to the terminal", count, "bytes", target=0)
    wakes = figures.add("dashboard at rest, wakes of its threads each second", woken / REST, "", target=8)
    assert count == 0
    assert memory.within()
    assert wakes.within()
