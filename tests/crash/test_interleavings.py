"""Two operations at once, in exactly the order that matters; and two supervisors, of which one stays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crewboard.records.processes import Supervisor
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from tests.crash.enumeration import new_team
from tests.crash.interleavings import INTERLEAVINGS
from tests.crew import WAIT_TIMEOUT, eventually


@pytest.mark.parametrize("name", INTERLEAVINGS)
def test_two_operations_at_once(name: str, memory: Path) -> None:
    INTERLEAVINGS[name](new_team(memory / "root"))


@pytest.mark.long
def test_of_two_supervisors_one_stays(directory: TeamDirectory) -> None:
    command = [sys.executable, "-I", "-m", "crewboard.supervisor", str(directory.path)]
    both = [subprocess.Popen(command, cwd="/", start_new_session=True) for _ in range(2)]

    def holder() -> Supervisor | None:
        found = leases.holder(directory.supervisor_lock, Supervisor)
        return found if found is not None and found.socket else None

    first = eventually(holder, "a supervisor that says where it listens")
    try:
        assert [started.wait(WAIT_TIMEOUT) for started in both] == [0, 0]
        assert eventually(lambda: _supervisors(directory) == [first.pid], "one supervisor alone")
    finally:
        process.send_signal(first.pid, signal.SIGTERM, first.start_ticks)
    eventually(lambda: not leases.is_held(directory.supervisor_lock), "its end")


def _supervisors(team: TeamDirectory) -> list[int]:
    found = []
    for pid in process.parents():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"crewboard.supervisor" in words and os.fsencode(team.path) in words:
            found.append(pid)
    return found
