"""Name the tests that cost much processor time, with all processes that they start.

`.venv/bin/python -m pytest -n 0 -p tests.costs FILES` lists them behind the results. It needs a cgroup of its own,
which root can make. The first test with a team pays for the process from which teams are forked, and a busy machine
makes all tests dearer.
"""

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

LIMIT = 0.2
"""Seconds; what costs more is `long`, unless it is the one end-to-end test of its promise."""


class _Costs:
    """What each test cost that has run in a cgroup."""

    def __init__(self, group: Path) -> None:
        self._group = group
        self._costs: dict[str, float] = {}

    def _seconds(self) -> float:
        """Return the processor time of all processes that were ever in the cgroup."""
        return int((self._group / "cpu.stat").read_text().split()[1]) / 1e6

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = self._seconds()
        try:
            return (yield)
        finally:
            self._costs[item.nodeid] = self._seconds() - before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"{sum(self._costs.values()):.1f} s of processor time; {LIMIT} s and more:")
        for ident, cost in sorted(self._costs.items(), key=lambda each: -each[1]):
            if cost >= LIMIT:
                terminalreporter.line(f"{cost:7.2f} s  {ident}")

    def pytest_unconfigure(self) -> None:
        (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
        # A process that a test has left keeps it.
        with suppress(OSError):
            self._group.rmdir()


def pytest_configure(config: pytest.Config) -> None:
    """Move this process into a cgroup of its own."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    group = next(Path(place) for _, place, kind, *_ in mounts if kind == "cgroup2") / f"tests-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
    config.pluginmanager.register(_Costs(group))
