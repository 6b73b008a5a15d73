"""A process belongs to the directory that it took its lock in, which is removed, remade, moved, copied or restored."""

import shutil
import signal
from pathlib import Path

import pytest

from crewboard.commands import context, hire, messages, stop
from crewboard.protocol import supervisor_client
from crewboard.readmodel.reader import read_team
from crewboard.records.events import Reply
from crewboard.records.processes import Lease
from crewboard.store import codec, leases
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from crewboard.worker.interrupts import CALM_SWEEP_INTERVAL
from tests.crew import WAIT_TIMEOUT, Crew, eventually

GONE_WITHIN = CALM_SWEEP_INTERVAL + WAIT_TIMEOUT
"""Seconds after which a process of a lost directory counts as left behind: no event wakes an idle worker of it."""

Identity = tuple[int, int]


def processes(crew: Crew) -> list[Identity]:
    """Return the team's supervisor and all below it: prefork server, workers, their tools."""
    supervisor = crew.supervisor_pid()
    # One that ended after it was listed, or that its parent has not reaped yet, is left out.
    return living([(pid, process.start_ticks(pid)) for pid in (supervisor, *process.descendants(supervisor))])


def living(found: list[Identity]) -> list[Identity]:
    return [(pid, ticks) for pid, ticks in found if ticks and process.start_ticks(pid) == ticks]


def wait_for_the_end(found: list[Identity]) -> None:
    eventually(lambda: not living(found), "the end of every process", GONE_WITHIN)


def other_view(crew: Crew, root: Path) -> context.Team:
    """Return the team as it is found below another root."""
    return context.Team(TeamDirectory(root / ".crewboard" / "default"), environment=crew.environment)


def calls(crew: Crew, name: str) -> int:
    return sum(isinstance(event, Reply) for event in crew.events(name))


def ends(team: context.Team) -> None:
    """Make a supervisor finalize the ends of all agents of a team, and wait for that."""

    def are_finalized() -> bool:
        supervisor_client.ensure_running(team.directory)
        return not any(map(supervisor_client.is_unfinalized, map(team.directory.agent, team.config.names)))

    eventually(are_finalized, "the finalized ends")


def start_busy_agent(crew: Crew, name: str = "bob") -> None:
    """Hire an agent that is in the middle of a command."""
    crew.hire(name, "test", "run: sleep 300", unsafe_no_sandbox=True)
    # The status names the command before it runs; the processes that only start it have ended by then.
    eventually(lambda: ["sleep", "300"] in crew.commands(name), "the command")


def remove(crew: Crew) -> None:
    """Remove a team's directory while its processes write into it: a file that is new since it was listed stays."""

    def is_gone() -> bool:
        shutil.rmtree(crew.root / ".crewboard", ignore_errors=True)
        return not (crew.root / ".crewboard").exists()

    eventually(is_gone, "the removal")


@pytest.mark.long
def test_removed_directory_ends_all_its_processes(crew: Crew) -> None:
    crew.run("idle", "explore", "say hello")
    start_busy_agent(crew)
    found = processes(crew)
    assert len(found) >= 5
    remove(crew)
    wait_for_the_end(found)
    assert not (crew.root / ".crewboard").exists()


@pytest.mark.long
@pytest.mark.files_only("in a database, a team made anew at its place is another one")
def test_a_team_made_anew_is_left_alone_by_the_processes_of_the_old(crew: Crew) -> None:
    crew.run("bob", "explore", "say hello")
    start_busy_agent(crew, "worker")
    old = processes(crew)
    remove(crew)
    crew.team.ensure()
    crew.run("bob", "explore", "say hello")
    sent = messages.send(crew.team, "bob", "say hello")
    crew.answer_to("bob", sent.id)
    wait_for_the_end(old)
    assert calls(crew, "bob") == 2
    assert {event.run for event in crew.events("bob")} == {1}
    assert not crew.agent("worker").path.exists()
    crew.wait_for("bob", "idle")
    assert supervisor_client.is_alive(crew.directory)


def test_moved_directory_ends_its_processes_and_resumes_there(crew: Crew, kept_in: str, tmp_path: Path) -> None:
    crew.run("bob", "explore", "say hello")
    start_busy_agent(crew, "worker")
    old = processes(crew)
    new_root = tmp_path / "elsewhere"
    new_root.mkdir()
    (crew.root / ".crewboard").rename(new_root / ".crewboard")
    moved = other_view(crew, new_root)
    sent = messages.send(moved, "bob", "say hello")
    wait_for_the_end(old)
    ends(moved)
    seen = read_team(moved.directory)
    # In a database they still have their leases, so their supervisor ends them by a signal.
    why = {"files": ("lost", "or its lease removed"), "postgresql": ("terminated", "ended by a signal")}[kept_in]
    for agent in seen.agents:
        assert agent.exit is not None
        assert (agent.exit.reason, why[1] in agent.reason) == (why[0], True)
    assert hire.resume(moved, "bob") == 2
    there = Crew(new_root, crew.model)
    there.answer_to("bob", sent.id)
    there.end()
    assert not (crew.root / ".crewboard").exists()


def copy_team(crew: Crew, to: Path) -> None:
    """Copy a team whose processes live: at any moment they write temporary files, and rename them."""
    shutil.copytree(crew.root / ".crewboard", to, symlinks=True, ignore=shutil.ignore_patterns(".*.tmp"))


@pytest.mark.long
@pytest.mark.files_only("a copy of the directory names the same database")
def test_looking_at_a_copy_ends_nothing_of_the_original(crew: Crew, tmp_path: Path) -> None:
    start_busy_agent(crew)
    found = processes(crew)
    copy = tmp_path / "copy"
    copy_team(crew, copy / ".crewboard")
    team = other_view(crew, copy)
    team.directory.adopt()
    assert not supervisor_client.is_alive(team.directory)
    assert [agent.alive for agent in read_team(team.directory).agents] == [False]
    ends(team)
    assert living(found) == found
    assert crew.see("bob").state == "working"
    stop.delete(team, now=True)
    assert living(found) == found


@pytest.mark.long
@pytest.mark.files_only("restores files")
@pytest.mark.parametrize(
    "in_place", [False, pytest.param(True, marks=pytest.mark.long)], ids=["replaced files", "rewritten files"]
)
def test_backup_restored_over_a_live_team_ends_its_processes(crew: Crew, tmp_path: Path, in_place: bool) -> None:
    crew.run("bob", "explore", "say hello")
    backup = tmp_path / "backup"
    copy_team(crew, backup)
    sent = messages.send(crew.team, "bob", "say hello")
    crew.answer_to("bob", sent.id)
    crew.wait_for("bob", "idle")
    old = processes(crew)
    worker = crew.pid("bob")
    for path in backup.rglob("*"):
        target = crew.root / ".crewboard" / path.relative_to(backup)
        if path.is_file():
            if not in_place:
                target.unlink()
            shutil.copy(path, target)
    again = messages.send(crew.team, "bob", "say hello")
    eventually(lambda: not process.start_ticks(worker), "the end of the worker", GONE_WITHIN)
    if not in_place:
        wait_for_the_end(old)
    supervisor_client.ensure_running(crew.directory)
    eventually(lambda: not crew.see("bob").alive, "the free lease")
    asked = len(crew.model.asked_by("bob"))
    assert hire.resume(crew.team, "bob") == 2
    crew.answer_to("bob", again.id)
    assert len(crew.model.asked_by("bob")) == asked + 1
    assert None not in [event.run for event in crew.events("bob")]


def test_removed_lease_ends_the_worker_and_the_supervisor_says_why(shared_crew: Crew, kept_in: str) -> None:
    shared_crew.run("unleased", "explore", "say hello")
    shared_crew.agent("unleased").lease.remove()
    record = eventually(shared_crew.agent("unleased").exit.load, "the record of its end", GONE_WITHIN)
    assert (record.code, record.reason) == (74, "lost")
    # In a database the thread that renews the lease may end the worker before it writes.
    if kept_in == "files":
        assert "removed, moved or replaced" in shared_crew.agent("unleased").log.read_text()
    assert hire.resume(shared_crew.team, "unleased") == 2


def test_removed_supervisor_lock_leaves_workers_and_one_supervisor(shared_crew: Crew) -> None:
    shared_crew.run("kept", "explore", "say hello")
    worker, old = shared_crew.pid("kept"), shared_crew.supervisor_pid()
    shared_crew.directory.supervisor_lock.on_disk.unlink()
    eventually(lambda: not process.start_ticks(old), "the end of the first supervisor", GONE_WITHIN)
    supervisor_client.ensure_running(shared_crew.directory)
    sent = messages.send(shared_crew.team, "kept", "say hello")
    shared_crew.answer_to("kept", sent.id)
    assert shared_crew.pid("kept") == worker


def test_second_path_to_a_team_finds_the_same_processes(shared_crew: Crew, tmp_path: Path) -> None:
    shared_crew.run("linked", "explore", "say hello")
    link = tmp_path / "link"
    link.symlink_to(shared_crew.root, target_is_directory=True)
    team = other_view(shared_crew, link)
    supervisor_client.wake_supervisor(team.directory)
    assert hire.resume(team, "linked") == 1
    sent = messages.send(team, "linked", "say hello")
    shared_crew.answer_to("linked", sent.id)
    assert read_team(team.directory).supervisor.pid == shared_crew.supervisor_pid()
    assert calls(shared_crew, "linked") == 2


@pytest.mark.files_only("writes into a lease")
def test_a_run_writes_nothing_once_the_lease_names_a_later_run(shared_crew: Crew) -> None:
    shared_crew.run("fenced", "explore", "say hello")
    shared_crew.wait_for_rest("fenced")
    shared_crew.halt("fenced")
    before = shared_crew.agent("fenced").journal.on_disk.read_bytes()
    lease = shared_crew.agent("fenced").lease
    holder = leases.holder(lease, Lease)
    assert holder is not None
    lease.on_disk.write_bytes(codec.encode(holder.replace(run=2)))
    messages.send(shared_crew.team, "fenced", "say hello")
    process.send_signal(holder.pid, signal.SIGCONT)
    eventually(lambda: not leases.is_held(shared_crew.agent("fenced").lease), "its end", GONE_WITHIN)
    assert shared_crew.agent("fenced").journal.on_disk.read_bytes() == before
