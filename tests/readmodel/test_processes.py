"""What workers use, with what they started: the same count for who works and who rests."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from crewboard.linux import process
from crewboard.readmodel.processes import KernelProbe, process_tree
from crewboard.records.agents import State, Status
from tests.crew import eventually


@pytest.fixture
def worker() -> Iterator[int]:
    """A process with one child."""
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"])
    try:
        eventually(lambda: len(process_tree(child.pid)) > 1, "the child's child")
        yield child.pid
    finally:
        for each in reversed(process_tree(child.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        child.wait()


def _status(pid: int, state: State, since: float = 1.0) -> dict[str, Status]:
    return {"api": Status(run=1, pid=pid, state=state, since=since)}


@pytest.mark.parametrize("state", ["working", "idle"])
def test_children_count_whether_an_agent_works_or_rests(worker: int, state: State) -> None:
    probe = KernelProbe()
    tree = process_tree(worker)
    for _ in range(2):
        usage = probe.measure(_status(worker, state))["api"]
        assert usage.children == len(tree) - 1
        assert usage.rss_bytes >= sum(each.rss_bytes for each in tree) / 2


def test_who_rests_is_looked_below_once_in_each_rest(worker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, looks, scan = KernelProbe(), [], process.parents

    def counted() -> dict[int, int]:
        looks.append(1)
        return scan()

    monkeypatch.setattr(process, "parents", counted)
    moments: list[tuple[State, float, int]] = [
        ("idle", 1, 1), ("idle", 1, 1), ("working", 2, 2), ("working", 2, 3), ("idle", 3, 4), ("idle", 3, 4),
    ]  # fmt: skip
    for state, since, so_far in moments:
        probe.measure(_status(worker, state, since))
        assert len(looks) == so_far
