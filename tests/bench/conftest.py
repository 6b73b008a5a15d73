"""Teams to measure, and the figures of a run: printed as one table and written to a file."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from crewboard.commands.context import Team
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from tests.bench.figures import REPORT, Figures
from tests.cli.files import alive, enlist, resting

_FIGURES = Figures()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Return the figures of the run, in which those of a module stand under the first sentence of its docstring."""
    _FIGURES.section = (request.module.__doc__ or "").split("\n")[0].rstrip(".")
    _FIGURES.file = request.path.name
    return _FIGURES


@pytest.fixture
def idle(tmp_path: Path) -> Iterator[Team]:
    """Make a team of thirty agents that rest since two days, with a supervisor, in its files."""
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default")).ensure()
    with ExitStack() as stack:
        lock = leases.take(team.directory.supervisor_lock)
        assert lock is not None
        stack.callback(os.close, lock.descriptor)
        process = stack.enter_context(resting())
        for number in range(30):
            enlist(team, f"agent{number}", "explore", since=time.time() - 2 * 86_400, **process)
            stack.enter_context(alive(team, f"agent{number}"))
        yield team


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, if anything was measured."""
    if not _FIGURES.all:
        return
    terminalreporter.section("figures")
    for line in _FIGURES.table():
        terminalreporter.line(line)
    _FIGURES.save()
    terminalreporter.line(f"\nwritten to {REPORT}")
