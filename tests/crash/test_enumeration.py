"""Every fault at every file operation of every scenario: nothing is lost, nothing is there twice."""

import os
from pathlib import Path
from unittest import mock

import pytest

from tests.crash.enumeration import enumerate_faults, new_team, tree
from tests.crash.faults import DIED, Disk, Fault, Killed
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.matrix import default


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "the other kinds"])
@pytest.mark.parametrize("name", default(SCENARIOS, "send", "ask", "decide", "claim a task", "receive", "end in order"))
def test_another_process_finishes_after_a_fault_at_any_operation(name: str, rest: bool, memory: Path) -> None:
    runs = enumerate_faults(SCENARIOS[name], memory, rest=rest)
    assert {run.outcome for run in runs} == {"done", "refused", "killed"}


_LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("receive", "answer", "claim a task", "decide")]


@pytest.mark.long
@pytest.mark.parametrize("name", ["send behind half a line", *_LONG])
def test_a_process_that_is_really_killed_leaves_the_same_files(name: str, memory: Path) -> None:
    """A kill by an exception, which the enumeration uses because it is faster, equals a real kill."""
    with mock.patch.object(os, "fsync"):
        calls = _calls(SCENARIOS[name], memory / "undisturbed")
        for number in range(1, len(calls) + 1, 2):
            faults = [Fault(number, "killed before"), Fault(number, "killed after")]
            faults += [Fault(number, "short, killed", "all but a byte")] if calls[number - 1] == "write" else []
            for fault in faults:
                pretended = _killed(SCENARIOS[name], memory / f"{fault} pretended", fault)
                really = _killed(SCENARIOS[name], memory / f"{fault} really", fault, really=True)
                assert pretended == really, str(fault)


def _calls(scenario: Scenario, root: Path) -> list[str]:
    team = new_team(root)
    scenario.arrange(team)
    with Disk() as disk:
        scenario.act(team)
    return disk.calls


def _killed(scenario: Scenario, root: Path, fault: Fault, *, really: bool = False) -> dict[str, bytes]:
    team = new_team(root)
    scenario.arrange(team)
    if really:
        child = os.fork()
        if child == 0:
            with Disk(fault, really=True):
                scenario.act(team)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED
    else:
        with pytest.raises(Killed), Disk(fault):
            scenario.act(team)
    # Whose team it is says its place, which differs.
    return {name: content for name, content in tree(team).items() if name != "owners"}


@pytest.mark.long
def test_the_enumeration_is_as_thorough_as_it_says(memory: Path) -> None:
    for folder in ("some", "others"):
        (memory / folder).mkdir()
    some = enumerate_faults(SCENARIOS["send"], memory / "some")
    others = enumerate_faults(SCENARIOS["send"], memory / "others", rest=True)
    assert some[0].calls == others[0].calls == ("open", "open", "write", "close", "fsync", "close")
    kinds = {(run.fault.number, run.fault.kind, run.fault.part) for run in (*some, *others) if run.fault}
    assert len(kinds) == len(some) + len(others) - 2 == 6 * 3 + 4 + 9
