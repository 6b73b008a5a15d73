"""The usage of workers, with what they started: the same count for who works and who rests."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping

import pytest

from crewboard.readmodel.processes import KernelProbe, process_tree
from crewboard.records.agents import State, Status
from crewboard.unix import process
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

    def counted(known: Mapping[int, int] | None) -> dict[int, int]:
        looks.append(1)
        return scan(known)

    monkeypatch.setattr(process, "parents", counted)
    moments: list[tuple[State, float, int]] = [
        ("idle", 1, 1), ("idle", 1, 1), ("working", 2, 2), ("working", 2, 3), ("idle", 3, 4), ("idle", 3, 4),
    ]  # fmt: skip
    for state, since, so_far in moments:
        probe.measure(_status(worker, state, since))
        assert len(looks) == so_far


@pytest.mark.linux("descent")
def test_a_second_look_asks_new_processes_for_their_parent(worker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, asked, stat = KernelProbe(), list[int](), process._stat
    probe.measure(_status(worker, "working"))
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL) as other:
        known = {pid for pid, parent in process.parents().items() if parent and pid != other.pid}

        def note(pid: int, first: int = -1) -> list[str]:
            asked.append(pid)
            return stat(pid, first)

        monkeypatch.setattr(process, "_stat", note)
        probe.measure(_status(worker, "working"))
        # One without a prefork server: its children are among those that were listed.
        probe.shared_bytes(worker)
        other.kill()
    assert other.pid in asked
    assert len(known & set(asked)) < len(known) / 2


@pytest.mark.linux("descent")
def test_a_child_whose_parent_ends_is_asked_again(worker: int) -> None:
    parents = process.parents()
    (child,) = process.below(worker, process.children_of(parents))
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: process.parents().get(child) not in (worker, None), "another parent")
    assert process.parents({**parents, child: worker})[child] == worker, "it is a zombie: its pid is in use"
    os.waitpid(worker, 0)
    assert process.parents(parents)[child] == process.parents()[child]
