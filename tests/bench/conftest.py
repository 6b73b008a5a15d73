"""Collection of the figures of a run: printed as one table and written to a file."""

import pytest

from tests.bench.figures import REPORT, Figures

_FIGURES = Figures()


@pytest.fixture(scope="session")
def figures() -> Figures:
    return _FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, if anything was measured."""
    if not _FIGURES.all:
        return
    terminalreporter.section("figures")
    for line in _FIGURES.table():
        terminalreporter.line(line)
    _FIGURES.save()
    terminalreporter.line(f"\nwritten to {REPORT}")
