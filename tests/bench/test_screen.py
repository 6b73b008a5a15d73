"""Painting of the dashboard, and its cost while nothing happens, next to an empty Textual app."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from crewboard.commands.context import Team
from crewboard.store.layout import TeamDirectory
from tests.bench.baselines import EMPTY_APP, EMPTY_WORDS
from tests.bench.figures import Figures, median
from tests.bench.terminal import painted_ms, terminal
from tests.cli.files import alive, enlist, set_status
from tests.cli.shell import COMMAND, clean_environment

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

BOARD = [*COMMAND, "board", "--read-only"]
TOLERANCE = 2.0
CHANGES = 40
BETWEEN = 0.3
"""Seconds of rest before each change: changes in bursts are painted together on purpose."""
REST = 10.0
BEHIND = 2.0
"""Seconds in which the other views are loaded after the first screen is painted."""


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    """Make a team with one agent that looks busy in its files."""
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    enlist(team, "scout", "explore")
    with alive(team, "scout"):
        yield team


def test_the_first_paint(figures: Figures, team: Team) -> None:
    root, environment = team.directory.root, clean_environment()
    empty = median([painted_ms(EMPTY_APP, root, environment, EMPTY_WORDS) for _ in range(5)])
    ours = median([painted_ms(BOARD, root, environment, "scout") for _ in range(5)])
    figure = figures.add("dashboard to its first picture", ours, "ms", ("an empty Textual app", empty), target=1.5)
    assert figure.within(TOLERANCE * 1.25)


def test_from_a_file_to_the_screen(figures: Figures, team: Team) -> None:
    took = []
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact("scout")
        for number in range(CHANGES):
            time.sleep(BETWEEN)
            words = f"mark{number:04}"
            began = time.perf_counter()
            set_status(team, "scout", state="working", doing=words, since=time.time())
            board.expect_exact(words)
            took.append((time.perf_counter() - began) * 1e3)
    figures.add("a change of status to the terminal, median", median(took), "ms", target=20)
    figures.add("a change of status to the terminal, slowest", max(took), "ms")


def test_an_idle_dashboard(figures: Figures, team: Team) -> None:
    with terminal(BOARD, team.directory.root, clean_environment()) as board:
        board.expect_exact("scout")
        time.sleep(BEHIND)
        process = psutil.Process(board.pid)
        before, began = process.cpu_times(), time.monotonic()
        # The rest itself is measured.
        time.sleep(REST)
        after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    figures.add("dashboard at rest", used / (time.monotonic() - began) * 100, "% of a core", target=1)
