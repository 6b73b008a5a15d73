"""Other programs for many coding agents, next to crewboard and to an empty Textual app: `make peers` installs them."""

import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from crewboard.commands.context import Team
from tests.bench.baselines import EMPTY_APP, EMPTY_WORDS
from tests.bench.figures import Figures, cpu_ms, median, python
from tests.bench.terminal import painted_ms, rest, terminal
from tests.cli.shell import COMMAND, clean_environment

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench"), pytest.mark.timeout(900)]

CACHE = Path(__file__).parents[2] / ".cache"
WARM_UP = 10.0
"""Seconds after the first picture in which a program may finish its start."""
REST = 20.0


@dataclass(frozen=True)
class Program:
    """A program with a full-screen view of agents. `words` are on its first complete picture."""

    name: str
    executable: tuple[str, ...]
    board: tuple[str, ...]
    words: str
    init: tuple[str, ...] = ()


PROGRAMS = [
    Program("crewboard, 30 agents", tuple(COMMAND), ("board", "--read-only"), "agent10"),
    Program(
        "bernstein 3.23.0, no agents",
        (str(CACHE / "bernstein-3.23.0/bin/bernstein"),),
        ("live", "--no-splash"),
        # Its task server does not run: the panes are there, and nothing is in them.
        "not responding",
        ("init",),
    ),
    Program(
        "ccmanager 4.4.3, no agents",
        (str(CACHE / "ccmanager-4.4.3/node_modules/@kodaikabasawa/ccmanager-linux-x64/bin/ccmanager"),),
        (),
        "New Worktree",
    ),
]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name.split()[0].strip(","))
def program(request: pytest.FixtureRequest) -> Program:
    chosen: Program = request.param
    if shutil.which(chosen.executable[0]) is None:
        pytest.skip(f"{chosen.name.split()[0]} is not installed: make peers")
    return chosen


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Return an environment with a home folder of its own: the programs leave settings there."""
    home = tmp_path / "home"
    home.mkdir()
    return {**clean_environment(), "HOME": str(home)}


def test_next_to_other_programs(figures: Figures, idle: Team, program: Program, environment: Mapping[str, str]) -> None:
    root = idle.directory.root
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    if program.init:
        command = [*program.executable, *program.init]
        subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    version = [*program.executable, "--version"]
    click = python("import click")
    # The first turn writes bytecode.
    cpu_ms([version], 1, cwd=root, env=environment)
    bare, called = cpu_ms([click, version], 7, cwd=root, env=environment)
    figures.add(f"{program.name}: --version, processor time", called, "ms", ('python -c "import click"', bare))
    board = [*program.executable, *program.board]
    turns = [
        (painted_ms(EMPTY_APP, root, environment, EMPTY_WORDS), painted_ms(board, root, environment, program.words))
        for _ in range(5)
    ]
    empty, painted = (median(column) for column in zip(*turns, strict=True))
    figures.add(f"{program.name}: to the first picture", painted, "ms", ("an empty Textual app", empty))
    with terminal(board, root, environment) as screen:
        screen.expect_exact(program.words)
        rest(screen, WARM_UP)
        first, began = _cpu_seconds(screen.pid), time.monotonic()
        count = rest(screen, REST)
        used = (_cpu_seconds(screen.pid) - first) / (time.monotonic() - began)
        memory = sum(each.memory_full_info().pss for each in _family(screen.pid)) / 2**20
    figures.add(f"{program.name}: at rest", used * 100, "% of a core")
    figures.add(f"{program.name}: to the terminal in 20 s of rest", count, "bytes")
    figures.add(f"{program.name}: proportional memory", memory, "MiB")


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_seconds(pid: int) -> float:
    times = [each.cpu_times() for each in _family(pid)]
    return sum(each.user + each.system for each in times)
