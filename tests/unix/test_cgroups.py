"""The places where memory limits by cgroups are possible, and the values that are written for one."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.launcher import MemoryGroups
from crewboard.unix import process

pytestmark = pytest.mark.linux("cgroups")

MOUNTS = """\
24 30 0:22 / /proc rw,nosuid shared:13 - proc proc rw
35 24 0:30 {root} {folder} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
"""


class Machine:
    """A /proc and a cgroup hierarchy in files. This process is in /user/app/shell."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.top = folder / "proc", folder / "cgroup"
        self.user, self.app = self.top / "user", self.top / "user/app"
        self.shell = self.app / "shell"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "7").mkdir()
        self.mount(f"0::/{self.shell.relative_to(self.top)}\n")
        for group in (self.top, self.user, self.app, self.shell):
            group.mkdir()
            (group / "cgroup.controllers").write_text("cpu memory pids\n")
            (group / "cgroup.subtree_control").write_text("")
            (group / "cgroup.procs").write_text("")
        (self.shell / "cgroup.procs").write_text("7\n8\n")

    def mount(self, own: str, root: str = "/") -> None:
        (self.proc / "self/mountinfo").write_text(MOUNTS.format(root=root, folder=self.top))
        for pid in ("self", "7"):
            (self.proc / pid / "cgroup").write_text(own)

    def found(self) -> Path | None:
        return process.find_memory_cgroup(self.proc)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make a machine on which everything below /user is delegated to this user, who is not root."""
    found = Machine(tmp_path)
    monkeypatch.setattr(process, "runs_as_root", lambda: False)
    closed = (found.top, found.top / "cgroup.procs")
    monkeypatch.setattr(os, "access", lambda path, _: path not in closed and path.exists())
    return found


def test_a_cgroup_with_processes_is_passed_over_for_the_one_above(machine: Machine) -> None:
    assert machine.found() == machine.app
    (machine.shell / "cgroup.procs").write_text("")
    assert machine.found() == machine.shell


def test_a_cgroup_whose_children_have_the_controller_is_taken(machine: Machine) -> None:
    (machine.app / "cgroup.procs").write_text("9\n")
    assert machine.found() == machine.user
    (machine.app / "cgroup.subtree_control").write_text("cpu memory\n")
    assert machine.found() == machine.app


def test_without_the_memory_controller_nothing_is_found(machine: Machine) -> None:
    for group in (machine.user, machine.app, machine.shell):
        (group / "cgroup.controllers").write_text("cpu pids\n")
    assert machine.found() is None


def test_a_cgroup_of_another_user_is_left_alone(machine: Machine) -> None:
    (machine.app / "cgroup.procs").unlink()
    (machine.user / "cgroup.procs").unlink()
    assert machine.found() is None


def test_root_uses_only_a_cgroup_that_is_marked_as_delegated(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: dict[tuple[Path, str], bytes] = {}

    def mark(path: Path, name: str) -> bytes:
        if (path, name) not in marks:
            raise OSError(61, "no data")
        return marks[path, name]

    monkeypatch.setattr(os, "getxattr", mark)
    monkeypatch.setattr(process, "runs_as_root", lambda: True)
    assert machine.found() is None
    marks[machine.user, "trusted.delegate"] = b"1"
    assert machine.found() == machine.user
    marks[machine.app, "user.delegate"] = b"1"
    assert machine.found() == machine.app


def test_version_1_and_what_cannot_be_seen_count_as_no_cgroup(machine: Machine) -> None:
    machine.mount("4:memory:/user/app/shell\n0::/\n")
    assert machine.found() is None
    machine.mount("4:memory:/user/app/shell\n")
    assert machine.found() is None
    machine.mount("0::/../outside\n")
    assert machine.found() is None
    machine.mount("0::/elsewhere\n", root="/user")
    assert machine.found() is None
    machine.mount("0::/box/user/app/shell\n", root="/box")
    assert machine.found() == machine.app
    (machine.proc / "self/mountinfo").unlink()
    assert machine.found() is None


@pytest.fixture
def groups(machine: Machine, directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> MemoryGroups:
    monkeypatch.setattr(process, "find_memory_cgroup", lambda: machine.app)
    return MemoryGroups(directory)


@pytest.fixture
def lone() -> Iterator[int]:
    """Start a process that starts no others, and return its id."""
    child = subprocess.Popen(["sleep", "600"])
    yield child.pid
    child.kill()
    child.wait()


def only_group(machine: Machine) -> Path:
    (found,) = machine.app.glob("crewboard-*")
    return found


def end_processes(group: Path) -> None:
    """Make a folder removable, as the kernel does when the last process of a cgroup has ended."""
    for file in group.iterdir():
        file.unlink()


def test_a_worker_gets_a_cgroup_with_its_limit(machine: Machine, groups: MemoryGroups, lone: int) -> None:
    groups.enclose("api", 3, lone, 4096)
    group = only_group(machine)
    assert group.name.endswith("-api-3")
    assert (machine.app / "cgroup.subtree_control").read_text() == "+memory"
    written = {file.name: file.read_text() for file in group.iterdir()}
    assert written == {
        "memory.max": "4096", "memory.oom.group": "1", "memory.swap.max": "0", "cgroup.procs": str(lone),
    }  # fmt: skip
    assert groups.set_limit("api", 3, 8192)
    assert (group / "memory.max").read_text() == "8192"
    assert groups.set_limit("api", 3, None)
    assert (group / "memory.max").read_text() == "max"
    assert not groups.set_limit("api", 2, 8192)
    (group / "memory.max").unlink()
    assert groups.set_limit("api", 3, None), "an unchanged limit is not written again"
    assert not (group / "memory.max").exists()


def test_a_cgroup_goes_with_its_processes_and_its_verdict_stays(
    machine: Machine, groups: MemoryGroups, lone: int
) -> None:
    for run, kills in ((1, 0), (2, 3)):
        groups.enclose("api", run, lone, 4096)
        groups.sweep()
        group = only_group(machine)
        end_processes(group)
        (group / "memory.events").write_text(f"low 0\noom {kills}\noom_kill {kills}\n")
        assert groups.exceeded("api", run) == (kills > 0)
        end_processes(group)
        groups.sweep()
        assert not list(machine.app.glob("crewboard-*"))
        assert groups.exceeded("api", run) == (kills > 0)


def test_a_successor_knows_and_removes_the_cgroups_of_its_team(
    machine: Machine, groups: MemoryGroups, directory: TeamDirectory, lone: int
) -> None:
    groups.enclose("a-b", 1, lone, 4096)
    group = only_group(machine)
    (group / "memory.events").write_text("oom_kill 1\n")
    (machine.app / "crewboard-of-another-team").mkdir()
    successor = MemoryGroups(directory)
    assert successor.set_limit("a-b", 1, 8192)
    assert successor.exceeded("a-b", 1)
    end_processes(group)
    successor.sweep()
    assert only_group(machine).name == "crewboard-of-another-team"


def test_what_the_kernel_refuses_is_watched(machine: Machine, groups: MemoryGroups, lone: int) -> None:
    (machine.app / "cgroup.subtree_control").unlink()
    groups.enclose("api", 1, lone, 4096)
    assert not groups.set_limit("api", 1, 4096)
    assert not groups.exceeded("api", 1)
    assert not list(machine.app.glob("crewboard-*"))


def test_an_adopted_worker_is_found_in_its_cgroup(
    machine: Machine, groups: MemoryGroups, directory: TeamDirectory, lone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups.enclose("api", 1, lone, 4096)
    group = only_group(machine)
    monkeypatch.setattr(process, "find_memory_cgroup", lambda: None)
    monkeypatch.setattr(process, "cgroup", lambda _: group)
    successor = MemoryGroups(directory)
    successor.adopt("other", 1, 7)
    assert not successor.set_limit("other", 1, 4096)
    successor.adopt("api", 1, 7)
    assert successor.set_limit("api", 1, 8192)
    assert process.has_memory_cgroup(7)
