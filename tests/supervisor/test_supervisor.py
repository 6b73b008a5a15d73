"""One supervisor per team: it starts each run once, knows every end, leaves nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crewboard.commands import hire, stop
from crewboard.errors import TryLaterError, UntrustedError
from crewboard.linux import process
from crewboard.protocol import supervisor_client
from crewboard.protocol.supervisor_client import ControlRequest
from crewboard.readmodel import SupervisorView
from crewboard.readmodel.reader import TeamReader
from crewboard.records import Exit, RunStarted, Spec, Status, Supervisor
from crewboard.records.agents import Want
from crewboard.store import agents, codec, json_files, leases
from crewboard.store.json_files import CachedFile
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import reconciler
from crewboard.supervisor import server as control_server
from crewboard.supervisor.offline_model import OfflineModel
from crewboard.supervisor.prefork_launcher import PreforkLauncher
from crewboard.supervisor.reconciler import Watched, drop_obsolete_request
from tests.cli.shell import Inside
from tests.crew import Crew, eventually


def runs(crew: Crew, name: str) -> list[int]:
    return [event.run for event in crew.events(name) if isinstance(event, RunStarted)]


def test_many_callers_at_once_get_one_supervisor(crew: Crew) -> None:
    callers = [threading.Thread(target=supervisor_client.wake_supervisor, args=(crew.directory,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    me = crew.supervisor_pid()
    assert process.is_same(me, process.boot_id(), process.start_ticks(me))
    log = crew.directory.supervisor_log.read_text()
    assert "Traceback" not in log


def test_the_supervisor_has_no_key_and_runs_in_the_root_folder(shared_crew: Crew) -> None:
    supervisor_client.wake_supervisor(shared_crew.directory)
    pid = shared_crew.supervisor_pid()
    # The kernel shows these to root alone.
    if os.geteuid() == 0:
        assert b"ANTHROPIC" not in process.environment(pid)
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")


_LOOK_INTO_SUPERVISOR = """
import subprocess, sys
from pathlib import Path
from crewboard.linux import syscalls
from crewboard.protocol import supervisor_client
from crewboard.records import Supervisor
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory

# With its capabilities, root reads everything, and a new program of root gets them back.
syscalls.no_new_privileges()
syscalls.drop_capabilities()
team = TeamDirectory(Path(sys.argv[1]))
supervisor_client.wake_supervisor(team)
pid = leases.holder(team.supervisor_lock, Supervisor).pid
ordinary = subprocess.Popen(["sleep", "60"])
try:
    Path(f"/proc/{ordinary.pid}/environ").read_bytes()
finally:
    ordinary.kill()
try:
    Path(f"/proc/{pid}/environ").read_bytes()
    print("open")
except PermissionError:
    print("closed")
"""


def test_other_processes_of_the_user_cannot_read_its_memory(directory: TeamDirectory) -> None:
    command = [sys.executable, "-c", _LOOK_INTO_SUPERVISOR, str(directory.path)]
    try:
        seen = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    finally:
        supervisor_client.request_exit(directory)
    assert seen.stdout == "closed\n"
    eventually(lambda: not supervisor_client.is_alive(directory), "its end")


@pytest.mark.parametrize(
    ("asked", "wanted", "want", "kept"),
    [(2, 2, "running", True), (2, 2, "paused", True), (2, 3, "running", False), (2, 2, "killed", False),
     (1, 1, "running", False)],
)  # fmt: skip
def test_a_request_with_the_key_is_kept_only_while_its_run_can_begin(
    directory: TeamDirectory, asked: int, wanted: int, want: Want, kept: bool
) -> None:
    agent = directory.agent("a")
    agent.path.mkdir()
    json_files.save(agent.status, Status(run=1, pid=1, state="idle", since=0))
    files = CachedFile(agent.spec, Spec), CachedFile(agent.status, Status), CachedFile(agent.exit, Exit)
    watched = Watched(agent, *files, start=ControlRequest("start", "a", asked, {"ANTHROPIC_API_KEY": "key"}))
    spec = Spec(prompt="x", prompt_id="x", type="explore", run=wanted, want=want)
    drop_obsolete_request(watched, spec)
    assert (watched.start is not None) == kept


def test_its_socket_is_for_its_user_alone(shared_crew: Crew) -> None:
    supervisor_client.wake_supervisor(shared_crew.directory)
    holder = leases.holder(shared_crew.directory.supervisor_lock, Supervisor)
    assert holder is not None
    address = Path(holder.socket)
    assert address.stat().st_mode & 0o077 == 0
    assert address.parent.stat().st_mode & 0o077 == 0


def test_the_same_run_is_started_once_despite_repeated_requests(shared_crew: Crew) -> None:
    shared_crew.run("twice", "explore", "List all Python files", once=True)
    shared_crew.wait_for("twice", "exited")
    for _ in range(3):
        supervisor_client.request_start(shared_crew.directory, "twice", 1, shared_crew.environment)
    hire.resume(shared_crew.team, "twice")
    assert runs(shared_crew, "twice") == [1, 2]


def test_concurrent_resumes_start_an_agent_once(shared_crew: Crew) -> None:
    shared_crew.run("wanted", "explore", "List all Python files")
    for number in (2, 3, 4):
        stop.stop_now(shared_crew.team, "wanted")
        with ThreadPoolExecutor(4) as callers:
            resumed = list(callers.map(lambda _: hire.resume(shared_crew.team, "wanted"), range(4)))
        assert resumed == [number] * 4
        assert shared_crew.wait_for("wanted", "idle").run == number
    assert runs(shared_crew, "wanted") == [1, 2, 3, 4]


def test_resume_returns_the_run_that_another_caller_started(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_crew.run("raised", "explore", "List all Python files")
    stop.stop_now(shared_crew.team, "raised")
    first: list[int] = []
    is_held = leases.is_held

    def held(path: Path) -> bool:
        if not first:
            first.append(0)
            first[0] = hire.resume(shared_crew.team, "raised")  # between two looks of the second caller
        return is_held(path)

    monkeypatch.setattr(leases, "is_held", held)
    assert hire.resume(shared_crew.team, "raised") == first[0] == 2


def test_a_live_worker_is_ended_whatever_run_is_wanted(shared_crew: Crew) -> None:
    shared_crew.run("wedged", "explore", "List all Python files")
    spec = agents.spec(shared_crew.agent("wedged"))
    assert spec is not None
    agents.change_spec(shared_crew.agent("wedged"), lambda _: spec.model_copy(update={"run": 7}))
    stop.stop_now(shared_crew.team, "wedged")
    eventually(
        lambda: shared_crew.see("wedged").exit, "the record of its end"
    )  # its supervisor's, if it had to be killed
    assert shared_crew.see("wedged").state == "exited"


def test_a_successor_adopts_who_lives_and_can_end_them(shared_crew: Crew) -> None:
    shared_crew.run("adopted", "explore", "List all Python files")
    pid = shared_crew.pid("adopted")
    old = shared_crew.supervisor_pid()
    process.send_signal(old, signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "its end")
    stop.stop_now(shared_crew.team, "adopted")
    assert shared_crew.supervisor_pid() != old
    eventually(lambda: process.start_ticks(pid) == 0, "the end of what held its lease")
    assert shared_crew.see("adopted").state == "exited"
    assert eventually(lambda: shared_crew.see("adopted").exit, "the record of its end").reason == "killed"


def test_deleting_a_team_also_ends_a_supervisor_that_it_had_to_start(crew: Crew) -> None:
    crew.run("adopted", "explore", "List all Python files")
    process.send_signal(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(crew.directory), "its end")
    stop.delete(crew.team, now=True)
    assert not supervisor_client.is_alive(crew.directory)


def test_a_death_without_a_supervisor_is_found_and_reported(shared_crew: Crew) -> None:
    shared_crew.run("unwatched", "explore", "List all Python files")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "its end")
    shared_crew.kill("unwatched")
    gone = shared_crew.wait_for("unwatched", "vanished")
    assert gone.shown == "dead"
    supervisor_client.ensure_running(shared_crew.directory)

    def buried() -> bool:
        record = agents.exit_record(shared_crew.agent("unwatched"))
        return record is not None and record.buried

    eventually(buried, "the finalized exit record")
    assert shared_crew.see("unwatched").state in ("vanished", "crashed")
    assert shared_crew.see("unwatched").since == gone.since


def test_no_exit_reason_is_shown_before_the_supervisor_knows_it(shared_crew: Crew) -> None:
    shared_crew.run("adoptee", "explore", "List all Python files")
    old = shared_crew.supervisor_pid()
    process.send_signal(old, signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "its end")
    supervisor_client.ensure_running(shared_crew.directory)
    eventually(lambda: shared_crew.view().supervisor.pid not in (None, old), "a successor")
    now = shared_crew.team.now()
    reader = TeamReader(shared_crew.directory, clock=lambda: now)  # however long the successor takes
    reader.read()
    shared_crew.kill("adoptee")
    reasons: list[str] = []

    def is_known() -> bool:
        seen = reader.read().agent("adoptee")
        assert seen is not None
        if not seen.alive and seen.exit is None:
            reasons.append(seen.reason)
        return seen.exit is not None

    eventually(is_known, "its end")
    assert set(reasons) <= {"exited; determining cause"}


def test_no_supervisor_is_started_when_all_ends_are_finalized(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    stop.delete(crew.team, now=True)
    supervisor_client.ensure_running(crew.directory)
    assert not supervisor_client.is_alive(crew.directory)


def test_a_start_whose_caller_died_is_reported_to_the_operator(shared_crew: Crew) -> None:
    from crewboard.records import HireOptions, Member, Spec
    from crewboard.store import roster

    def needs() -> list[str]:
        return [need.kind for need in shared_crew.view().needs if need.agent == "unborn"]

    shared_crew.agent("unborn").path.mkdir()
    long_ago = shared_crew.team.now() - 60
    agents.change_spec(
        shared_crew.agent("unborn"),
        lambda _: Spec(prompt="x", prompt_id="p", type="explore", model="m", flags=HireOptions(), at=long_ago),
    )
    roster.put(shared_crew.directory, Member(name="unborn", type="explore"))
    assert needs() == ["failed_start"]
    hire.resume(shared_crew.team, "unborn")
    shared_crew.wait_for("unborn", "idle", "working")
    assert needs() == []


def test_an_orderly_shutdown_of_the_machine_is_no_crash(shared_crew: Crew) -> None:
    shared_crew.run("rebooted", "explore", "List all Python files")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGTERM)
    shared_crew.kill("rebooted", signal.SIGTERM)
    eventually(lambda: not leases.is_held(shared_crew.agent("rebooted").lease), "its end")
    assert shared_crew.see("rebooted").state == "crashed", "in the same boot it was ended by a signal"
    agent = shared_crew.agent("rebooted")
    status = agents.status(agent)
    assert status is not None
    json_files.save(agent.status, status.model_copy(update={"boot_id": "the boot before"}))
    assert shared_crew.see("rebooted").state == "exited"
    supervisor_client.ensure_running(shared_crew.directory)
    eventually(lambda: not supervisor_client.is_unfinalized(agent), "the finalized end")
    record = agents.exit_record(agent)
    assert record is not None
    assert record.reason == "reboot"
    seen = shared_crew.see("rebooted")
    assert (seen.state, seen.reason) == ("exited", "the machine went down")
    needs = [need for need in shared_crew.view().needs if need.agent == "rebooted"]
    assert [need.kind for need in needs if need.kind != "result"] == []


class _BugError(RuntimeError):
    pass


def _fail() -> None:
    raise _BugError("it recursed")


def test_a_supervisor_that_fails_twice_at_one_place_is_a_need(directory: TeamDirectory) -> None:
    for count in (1, 2):
        try:
            _fail()
        except _BugError as error:
            reconciler.note_failure(directory, error)
        assert len(TeamReader(directory).read().needs) == count - 1
    (need,) = TeamReader(directory).read().needs
    assert (need.kind, need.agent, need.code) == ("failed", "system", 70)
    assert "failed 2 times at test_supervisor.py:" in need.summary
    assert "in _fail: _BugError: it recursed; look at supervisor.log" in need.summary


def test_a_bug_that_one_agent_meets_leaves_the_others_supervised(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        agents.change_spec(directory.agent(name), lambda _: Spec(prompt="x", prompt_id="x", type="explore", at=1))
    looked: list[str] = []

    def adopt(watched: reconciler.Watched) -> None:
        looked.append(watched.agent.name)
        if watched.agent.name == "bad" and len(looked) < 4:
            _fail()

    lock = leases.take(directory.supervisor_lock)
    assert lock is not None
    launcher = PreforkLauncher(directory)
    supervisor = reconciler.Supervisor(directory, launcher, OfflineModel(directory, launcher), lock, lambda: None)
    monkeypatch.setattr(supervisor, "_finalize", adopt)
    for _ in range(2):
        asyncio.run(supervisor._reconcile_all())
    assert looked == ["bad", "good"] * 2
    (need,) = TeamReader(directory).read().needs
    assert (need.kind, need.agent) == ("failed", "bad")
    asyncio.run(supervisor._reconcile_all())
    assert TeamReader(directory).read().needs == ()
    os.close(lock)


# ------------------------------------------------------------------------------------------------- hung supervisors


def test_a_hung_supervisor_is_a_need_and_can_be_replaced(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    crew.run("scout", "explore", "say hello")
    worker, hung = crew.pid("scout"), crew.supervisor_pid()
    assert crew.view().supervisor.silent_since is None
    process.send_signal(hung, signal.SIGSTOP)
    monkeypatch.setattr(supervisor_client, "HUNG_AFTER", 0.2)
    eventually(lambda: crew.view().supervisor.silent_since, "the notice that it hangs")
    (need,) = [each for each in crew.view().needs if each.kind != "result"]
    assert (need.kind, need.agent, need.code) == ("failed", "system", 75)
    assert "`crewboard supervisor --restart`" in need.summary
    asked = time.monotonic()
    with pytest.raises(TryLaterError, match=f"process {hung}.* does not answer"):
        stop.stop_now(crew.team, "scout")
    assert time.monotonic() - asked < 5
    cli = Inside(crew.root)
    told = cli("supervisor")
    assert (told.code, told.out.partition(" since ")[0]) == (75, f"supervisor {hung} hangs")
    assert f"supervisor {hung} hangs ·" in cli("status").out
    assert cli("status", "--json").json["supervisor"]["silent_since"] < time.time()
    monkeypatch.undo()
    replaced = cli("supervisor", "--restart", "--json").json
    successor = crew.supervisor_pid()
    assert replaced == {"pid": successor, "alive": True, "silent_since": None}
    assert successor != hung
    assert not process.start_ticks(hung)
    eventually(lambda: not leases.is_held(crew.agent("scout").lease), "the end that was asked for before")
    assert crew.see("scout").pid == worker
    assert crew.view().supervisor == SupervisorView(successor, alive=True)
    assert hire.resume(crew.team, "scout") == 2


def test_a_slow_supervisor_is_not_called_hung(tmp_path: Path) -> None:
    socket_path = tmp_path / "s.sock"
    socket_path.touch()
    holder = Supervisor(pid=1, socket=str(socket_path), boot_id=process.boot_id())
    supervisor_client.show_life(socket_path)
    assert supervisor_client.silent_for(holder) is None
    shown = time.monotonic_ns() - 14 * 10**9
    os.utime(socket_path, ns=(shown, shown))
    assert supervisor_client.silent_for(holder) is None
    os.utime(socket_path, ns=(shown - 2 * 10**9, shown - 2 * 10**9))
    silence = supervisor_client.silent_for(holder)
    assert silence is not None
    assert 16 <= silence < 60
    assert supervisor_client.silent_for(holder.model_copy(update={"boot_id": "the boot before"})) is None


def test_only_the_process_behind_the_socket_is_killed(crew: Crew) -> None:
    supervisor_client.wake_supervisor(crew.directory)
    holder = leases.holder(crew.directory.supervisor_lock, Supervisor)
    assert holder is not None
    process.send_signal(holder.pid, signal.SIGSTOP)
    with subprocess.Popen(["sleep", "60"]) as other:
        named = {"pid": other.pid, "start_ticks": process.start_ticks(other.pid)}
        crew.directory.supervisor_lock.write_bytes(codec.encode(holder.model_copy(update=named)))
        with pytest.raises(UntrustedError, match="not by the one that"):
            supervisor_client.restart(crew.directory)
        assert other.poll() is None
        assert process.start_ticks(holder.pid)
        other.kill()
    process.send_signal(holder.pid, signal.SIGCONT)


async def test_a_request_whose_caller_gave_up_is_not_done_later(tmp_path: Path) -> None:
    done: list[ControlRequest] = []
    server = await control_server.listen(tmp_path / "s.sock", done.append)
    for waits in (False, True):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "s.sock"))
            caller.sendall(ControlRequest("start", "waits" if waits else "gone", 1, {}).encode())
            if waits:
                assert await asyncio.to_thread(caller.recv, 16) == b"ok\n"
    server.close()
    assert [request.name for request in done] == ["waits"]


def test_a_supervisor_whose_socket_was_removed_is_replaced(crew: Crew) -> None:
    crew.run("scout", "explore", "say hello")
    worker = crew.pid("scout")
    holder = leases.holder(crew.directory.supervisor_lock, Supervisor)
    assert holder is not None
    Path(holder.socket).unlink()
    supervisor_client.wake_supervisor(crew.directory)
    assert crew.supervisor_pid() != holder.pid
    assert crew.pid("scout") == worker
    crew.run("second", "explore", "say hello")
