"""Runs a story with every fault at every file operation, and looks at what is left each time."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from crewboard.errors import CrewboardError, StorageError
from crewboard.records import Config, Cursor, Exit, OperatorState, Record, Request, Spec, Status, Task
from crewboard.store import codec, mailbox, roster
from crewboard.store.layout import TeamDirectory
from tests.crash.faults import Disk, Fault, Killed, kinds_for
from tests.crash.scenarios import Outcome, Story, journal_damage

_FORMS: dict[str, type[Record]] = {
    "config.json": Config, "operator.json": OperatorState, "spec.json": Spec, "status.json": Status,
    "cursor.json": Cursor, "exit.json": Exit,
}  # fmt: skip


_DIFFERS = re.compile(rb'"(pid|start_ticks|beat|since|ts|at)": [0-9.]+')


@dataclass(frozen=True)
class Run:
    """One run of a story: the fault, what it did to the act, and how often files were touched."""

    fault: Fault | None
    outcome: Outcome
    calls: tuple[str, ...]


def new_team(root: Path) -> TeamDirectory:
    team = TeamDirectory(root / ".crewboard" / "default")
    root.mkdir()
    team.make()
    roster.create(team, "", 1.0)
    return team


def enumerate_story(story: Story, folder: Path) -> list[Run]:
    """Every run of `story`; raises an AssertionError that names the fault where a promise does not hold."""
    calm = run(story, folder / "0", None)
    runs = [calm]
    for number, operation in enumerate(calm.calls, start=1):
        for kind, part in kinds_for(operation):
            fault = Fault(number, kind, part)
            runs.append(run(story, folder / str(len(runs)), fault))
    return runs


def run(story: Story, root: Path, fault: Fault | None) -> Run:
    """One run: arrange, act under the fault, let somebody fresh finish."""
    with mock.patch.object(os, "fsync"):
        return _run(story, root, fault)


def _run(story: Story, root: Path, fault: Fault | None) -> Run:
    team = new_team(root)
    story.arrange(team)
    with Disk(fault) as disk:
        outcome = _act(story, team)
    calls = tuple(disk.calls)
    roster._CACHE.clear()  # what the dead process knew is gone with it
    try:
        assert fault is None or disk.reached, "the fault never came"
        assert outcome == "done" or fault is not None
        assert (outcome == "killed") == (fault is not None and "killed" in fault.kind)
        _look(team, outcome)
        story.settle(team, outcome)
        _look(team, outcome)
    except (AssertionError, CrewboardError) as error:
        where = f"{fault} ({calls[fault.number - 1]})" if fault else "no fault"
        raise AssertionError(
            f"{where}, act was {outcome}: {type(error).__name__}: {error}\noperations: {calls}"
        ) from error
    return Run(fault, outcome, calls)


def _act(story: Story, team: TeamDirectory) -> Outcome:
    try:
        story.act(team)
    except StorageError:
        return "refused"
    except Killed:
        return "killed"
    return "done"


def _look(team: TeamDirectory, outcome: Outcome) -> None:
    """Every file can be read; half a line is there only where somebody was killed, and never more than one."""
    for path in files_of(team):
        data = path.read_bytes()
        if path.suffix == ".json":
            codec.decode(data, _form(path))
        assert not path.name.endswith(".tmp") or outcome == "killed", f"{path.name} was left behind"
        assert ".damaged-" not in path.name, f"{path.name}: somebody met damage"
    torn = journal_damage(team) + sum(
        mailbox.read(team, path.stem).damaged for path in team.inboxes.iterdir() if not _arranged_damage(path)
    )
    assert torn <= (outcome == "killed"), f"{torn} damaged lines"


def _arranged_damage(path: Path) -> bool:
    """Whether the story itself put damage into a mailbox."""
    data = path.read_bytes()
    return b"no message\n" in data or b'"id": "torn"' in data


def _form(path: Path) -> type[Record]:
    return Task if path.parent.name == "tasks" else Request if path.parent.name == "requests" else _FORMS[path.name]


def files_of(team: TeamDirectory) -> Iterator[Path]:
    return (path for path in team.path.rglob("*") if path.is_file())


def tree(team: TeamDirectory) -> dict[str, bytes]:
    """All files of a team and what is in them, but for what differs from process to process."""
    kept = (path for path in files_of(team) if path.suffix != ".tmp")
    return {str(path.relative_to(team.path)): _DIFFERS.sub(b"", path.read_bytes()) for path in kept}
