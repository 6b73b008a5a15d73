"""The dashboard after 43,000 requests of 20 agents, 2.5 hours of their work, and while they work."""

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import psutil
import pytest

from tests.bench.figures import ROOT, Figures
from tests.bench.terminal import rest, terminal
from tests.bench.test_screen import BOARD
from tests.cli.shell import clean_environment

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench"), pytest.mark.timeout(1800)]

OLD = 43_000
RATE = 4.7
"""Requests a second of 20 agents at work."""

WARM = 20.0
BUSY = 60.0
"""Seconds in which the work of a dashboard is measured."""

LOOKED_AT = 2.5
"""Seconds for which each view is shown."""

VIEWS = "2345678"


@contextmanager
def replay(folder: Path, count: int, rate: float) -> Iterator[subprocess.Popen[str]]:
    """Make a team whose work is replayed once a line is written to the process."""
    command = [sys.executable, "-m", "tests.bench.replayed", str(folder), str(count), str(rate)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def begin(work: subprocess.Popen[str]) -> None:
    assert work.stdin is not None
    work.stdin.write("\n")
    work.stdin.flush()


def pss(board: pexpect.spawn) -> float:
    return psutil.Process(board.pid).memory_full_info().pss / 2**20


def visit_all(board: pexpect.spawn) -> None:
    """Show all views, and the Mail tab of four agents."""
    for key in VIEWS + "1":
        board.send(key)
        rest(board, LOOKED_AT)
    for _ in range(4):
        for key in ("jj", "\r", "]", "\x1b"):
            board.send(key)
            rest(board, LOOKED_AT / 2)


def test_memory_after_hours(figures: Figures, tmp_path: Path) -> None:
    with replay(tmp_path, OLD, 0) as work, terminal(BOARD, tmp_path, clean_environment(), rows=40) as board:
        board.expect_exact("worker00")
        rest(board, LOOKED_AT)
        before = pss(board)
        begin(work)
        assert work.stdout is not None
        while not select.select([work.stdout], [], [], 0)[0]:
            rest(board, 0.5)
        rest(board, LOOKED_AT)
        board_mib = pss(board)
        visit_all(board)
        all_mib = pss(board)
    figures.add("proportional memory of the Board", board_mib, "MiB", ("at its start", before))
    figures.add("proportional memory of the Board", board_mib, "MiB", target=60)
    figures.add("the same after a visit to all views", all_mib, "MiB", target=80)


@pytest.mark.parametrize(("view", "key", "target"), [("Board", "1", 5), ("Feed", "6", 8)])
def test_work_of_a_busy_team(figures: Figures, tmp_path: Path, view: str, key: str, target: float) -> None:
    with replay(tmp_path, OLD, RATE) as work, terminal(BOARD, tmp_path, clean_environment(), rows=40) as board:
        board.expect_exact("worker00")
        begin(work)
        board.send(key)
        rest(board, WARM)
        process, began = psutil.Process(board.pid), time.monotonic()
        before = process.cpu_times()
        rest(board, BUSY)
        after, seconds = process.cpu_times(), time.monotonic() - began
    used = after.user + after.system - before.user - before.system
    figures.add(f"{view}, {RATE} requests a second", 100 * used / seconds, "% of a core", target=target)
