"""Run a scenario with every fault at every file operation, and check the files each time."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from crewboard.errors import CrewboardError, StorageError
from crewboard.records.agents import Cursor, Spec, Status
from crewboard.records.base import Record
from crewboard.records.processes import Exit
from crewboard.records.requests import Request
from crewboard.records.team import Config, OperatorState, Task
from crewboard.store import codec, json_records, mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.crash.faults import Disk, Fault, Killed, kinds_for, some_kinds_for
from tests.crash.scenarios import Outcome, Scenario, damaged_events

_FORMS: dict[str, type[Record]] = {
    "config.json": Config, "operator.json": OperatorState, "spec.json": Spec, "status.json": Status,
    "cursor.json": Cursor, "exit.json": Exit,
}  # fmt: skip


_DIFFERS = re.compile(rb'"(pid|start_ticks|beat|since|ended|ts|at|private_bytes)": [0-9.]+')


@dataclass(frozen=True)
class Run:
    """One run of a scenario: the fault, the outcome of the act, and its file operations."""

    fault: Fault | None
    outcome: Outcome
    calls: tuple[str, ...]


def new_team(root: Path) -> TeamDirectory:
    team = TeamDirectory(root / ".crewboard" / "default")
    root.mkdir()
    team.make()
    roster.create(team, "", 1.0)
    return team


def enumerate_faults(scenario: Scenario, folder: Path, *, rest: bool = False) -> list[Run]:
    """Run `scenario` with faults at each operation: a few kinds in turn, or all others. Return the runs.

    Raises:
        AssertionError: A check failed; it names the fault.
    """
    undisturbed = run(scenario, folder / "0", None)
    runs = [undisturbed]
    for number, operation in enumerate(undisturbed.calls, start=1):
        some = some_kinds_for(operation, number)
        for kind, part in [each for each in kinds_for(operation) if each not in some] if rest else some:
            fault = Fault(number, kind, part)
            runs.append(run(scenario, folder / str(len(runs)), fault))
    return runs


def run(scenario: Scenario, root: Path, fault: Fault | None) -> Run:
    """Arrange, act under the fault, and let a fresh process finish."""
    with mock.patch.object(os, "fsync"):
        return _run(scenario, root, fault)


def _run(scenario: Scenario, root: Path, fault: Fault | None) -> Run:
    team = new_team(root)
    scenario.arrange(team)
    with Disk(fault) as disk:
        outcome = _act(scenario, team)
    calls = tuple(disk.calls)
    json_records.cached_file.cache_clear()
    try:
        assert fault is None or disk.reached, "the fault was never reached"
        assert outcome == "done" or fault is not None
        assert (outcome == "killed") == (fault is not None and "killed" in fault.kind)
        _check_files(team, outcome)
        scenario.settle(team, outcome)
        _check_files(team, outcome)
    except (AssertionError, CrewboardError) as error:
        where = f"{fault} ({calls[fault.number - 1]})" if fault else "no fault"
        raise AssertionError(
            f"{where}, act was {outcome}: {type(error).__name__}: {error}\noperations: {calls}"
        ) from error
    return Run(fault, outcome, calls)


def _act(scenario: Scenario, team: TeamDirectory) -> Outcome:
    try:
        scenario.act(team)
    except StorageError:
        return "refused"
    except Killed:
        return "killed"
    return "done"


def _check_files(team: TeamDirectory, outcome: Outcome) -> None:
    """Check that every file can be read, and that at most one line is torn, and only after a kill."""
    for path in files_of(team):
        data = path.read_bytes()
        if path.suffix == ".json":
            codec.decode(data, _form(path))
        assert not path.name.endswith(".tmp") or outcome == "killed", f"{path.name} was left behind"
        assert ".damaged-" not in path.name, f"{path.name}: a damaged file was set aside"
    torn = damaged_events(team) + sum(
        mailbox.read(team, path.stem).damaged for path in team.inboxes.iterdir() if not _arranged_damage(path)
    )
    assert torn <= (outcome == "killed"), f"{torn} damaged lines"


def _arranged_damage(path: Path) -> bool:
    """Return True if the scenario itself damaged the mailbox."""
    data = path.read_bytes()
    return b"no message\n" in data or b'"id": "torn"' in data


def _form(path: Path) -> type[Record]:
    return Task if path.parent.name == "tasks" else Request if path.parent.name == "requests" else _FORMS[path.name]


def files_of(team: TeamDirectory) -> Iterator[Path]:
    return (path for path in team.path.rglob("*") if path.is_file())


def tree(team: TeamDirectory) -> dict[str, bytes]:
    """Return the contents of all files of a team, without values that differ from process to process."""
    kept = (path for path in files_of(team) if path.suffix != ".tmp")
    return {str(path.relative_to(team.path)): _DIFFERS.sub(b"", path.read_bytes()) for path in kept}
