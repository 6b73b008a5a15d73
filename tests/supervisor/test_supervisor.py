"""One supervisor per team: it starts each run once, knows every end, leaves nothing behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from crewboard.commands import hire, stop
from crewboard.errors import ExitCode, LostLeaseError, StorageError, TryLaterError, UntrustedError
from crewboard.protocol import supervisor_client
from crewboard.protocol.supervisor_client import ControlRequest
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import SupervisorView
from crewboard.records.agents import Spec, Status, Want
from crewboard.records.events import RunStarted
from crewboard.records.messages import Message
from crewboard.records.processes import Exit, Lease, Supervisor, describe_exit
from crewboard.records.team import Member
from crewboard.store import agents, codec, files, leases, mailbox, roster
from crewboard.store.interface import Held, Key
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import __main__ as supervisor_main
from crewboard.supervisor import finalizer, reconciler
from crewboard.supervisor.launcher import Ended, Launcher, Ref
from crewboard.supervisor.reconciler import Watched, drop_obsolete_request
from crewboard.unix import process
from tests.cli.shell import Inside
from tests.crew import WAIT_TIMEOUT, Crew, eventually

STATUS = Status(run=1, pid=1, state="working", since=1)

of_processes = pytest.mark.files_only("what a process is, its socket and its signals, no store knows")


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


@pytest.mark.usefixtures("new_interpreters")
@of_processes
def test_the_supervisor_has_no_key_and_runs_in_the_root_folder(crew: Crew) -> None:
    supervisor_client.wake_supervisor(crew.directory)
    pid = crew.supervisor_pid()
    # The kernel shows these to root alone.
    if os.geteuid() == 0:
        assert b"ANTHROPIC" not in process.environment(pid)
        assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")


_LOOK_INTO_SUPERVISOR = """
import subprocess, sys
from pathlib import Path
from crewboard.unix import syscalls
from crewboard.protocol import supervisor_client
from crewboard.records.processes import Supervisor
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


@pytest.mark.long
@pytest.mark.linux("private memory")
@pytest.mark.files_only("a process without capabilities cannot enter the folder of the server")
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
    agent.team.make_folder(agent.folder.name)
    agent.status.save(Status(run=1, pid=1, state="idle", since=0))
    files = agent.spec.watch(), agent.status.watch(), agent.exit.watch()
    watched = Watched(agent, *files, start=ControlRequest("start", "a", asked, {"ANTHROPIC_API_KEY": "key"}))
    spec = Spec(prompt="x", prompt_id="x", type="explore", run=wanted, want=want)
    drop_obsolete_request(watched, spec)
    assert (watched.start is not None) == kept


@of_processes
def test_its_socket_is_for_its_user_alone(shared_crew: Crew) -> None:
    supervisor_client.wake_supervisor(shared_crew.directory)
    holder = leases.holder(shared_crew.directory.supervisor_lock, Supervisor)
    assert holder is not None
    address = Path(holder.socket)
    assert address.stat().st_mode & 0o077 == 0
    assert address.parent.stat().st_mode & 0o077 == 0


def test_the_same_run_is_started_once_despite_repeated_requests(shared_crew: Crew) -> None:
    shared_crew.run("twice", "explore", "say hello", once=True)
    shared_crew.wait_for("twice", "exited")
    for _ in range(3):
        supervisor_client.request_start(shared_crew.directory, "twice", 1, shared_crew.environment)
    hire.resume(shared_crew.team, "twice")
    assert runs(shared_crew, "twice") == [1, 2]


def test_concurrent_resumes_start_an_agent_once(shared_crew: Crew) -> None:
    shared_crew.run("wanted", "explore", "say hello")
    for number in (2, 3, 4):
        stop.stop_now(shared_crew.team, "wanted")
        with ThreadPoolExecutor(4) as callers:
            resumed = list(callers.map(lambda _: hire.resume(shared_crew.team, "wanted"), range(4)))
        assert resumed == [number] * 4
        assert shared_crew.wait_for("wanted", "idle").run == number
    assert runs(shared_crew, "wanted") == [1, 2, 3, 4]


def test_resume_returns_the_run_that_another_caller_started(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_crew.run("raised", "explore", "say hello")
    stop.stop_now(shared_crew.team, "raised")
    first: list[int] = []
    is_held = leases.is_held

    def held(lease: Key) -> bool:
        if not first:
            first.append(0)
            first[0] = hire.resume(shared_crew.team, "raised")  # between two looks of the second caller
        return is_held(lease)

    monkeypatch.setattr(leases, "is_held", held)
    assert hire.resume(shared_crew.team, "raised") == first[0] == 2


def test_a_live_worker_is_ended_whatever_run_is_wanted(shared_crew: Crew) -> None:
    shared_crew.run("wedged", "explore", "say hello")
    spec = shared_crew.agent("wedged").spec.load()
    assert spec is not None
    agents.change_spec(shared_crew.agent("wedged"), lambda _: spec.replace(run=7))
    stop.stop_now(shared_crew.team, "wedged")
    eventually(
        lambda: shared_crew.see("wedged").exit, "the record of its end"
    )  # its supervisor's, if it had to be killed
    assert shared_crew.see("wedged").state == "exited"


@pytest.mark.files_only("an agent of a database may run on another machine, so its stop keeps the error")
def test_a_damaged_spec_hides_no_end_on_a_full_disk(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("cannot write spec.json: No space left on device")

    shared_crew.run("torn", "explore", "say hello", restart=True)
    shared_crew.agent("torn").spec.put(b'{"sch')
    monkeypatch.setattr(stop, "want_killed", full)
    assert stop.stop_now(shared_crew.team, "torn") == "ended"
    record = eventually(shared_crew.agent("torn").exit.load, "the record of its end")
    assert (record.reason, record.run) == ("killed", 1)


@pytest.mark.files_only("an agent of a database may run on another machine, so its stop keeps the error")
def test_stop_now_needs_no_space_on_the_disk(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("cannot write spec.json: No space left on device")

    shared_crew.run("hog", "explore", "say hello", restart=True)
    # Only here: the supervisor is another process, which can write then, as after space was freed.
    monkeypatch.setattr(agents, "want", full)
    told: list[str] = []
    assert stop.stop_now(structs.replace(shared_crew.team, tell=told.append), "hog") == "ended"
    assert [text.partition(",")[0] for text in told] == ["hog is ended without a record"]
    seen = shared_crew.wait_for("hog", "exited")
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.signal) == ("killed", signal.SIGKILL)
    # It is written before the record of the end; a reader may have read it before that.
    spec = shared_crew.agent("hog").spec.load()
    assert spec is not None
    assert (spec.want, spec.run) == ("killed", 1)


def test_a_successor_adopts_who_lives_and_can_end_them(shared_crew: Crew) -> None:
    shared_crew.run("adopted", "explore", "say hello")
    pid = shared_crew.pid("adopted")
    old = shared_crew.supervisor_pid()
    process.send_signal(old, signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "its end")
    stop.stop_now(shared_crew.team, "adopted")
    assert shared_crew.supervisor_pid() != old
    eventually(lambda: process.start_ticks(pid) == 0, "the end of what held its lease")
    assert shared_crew.see("adopted").state == "exited"
    assert eventually(lambda: shared_crew.see("adopted").exit, "the record of its end").reason == "killed"


@pytest.mark.long
def test_deleting_a_team_also_ends_a_supervisor_that_it_had_to_start(crew: Crew) -> None:
    crew.run("adopted", "explore", "say hello")
    process.send_signal(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(crew.directory), "its end")
    stop.delete(crew.team, now=True)
    assert not supervisor_client.is_alive(crew.directory)


def test_deleting_a_team_also_ends_a_supervisor_that_was_slow_to_start(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor_client.wake_supervisor(crew.directory)
    first, ask, asked = crew.supervisor_pid(), supervisor_client.request_exit, 0

    def ask_while_another_starts(team: TeamDirectory) -> None:
        nonlocal asked
        ask(team)
        asked += 1
        if asked == 1:
            eventually(lambda: not supervisor_client.is_alive(team), "the first one leaving")
            supervisor_client.wake_supervisor(team)
            assert crew.supervisor_pid() != first

    monkeypatch.setattr(supervisor_client, "request_exit", ask_while_another_starts)
    # That is the time for the end of one supervisor, the start of another, and its end.
    assert supervisor_client.end(crew.directory, 60)
    assert asked == 2


def test_a_death_without_a_supervisor_is_found_and_reported(shared_crew: Crew) -> None:
    shared_crew.run("unwatched", "explore", "say hello")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "its end")
    shared_crew.kill("unwatched")
    gone = shared_crew.wait_for("unwatched", "vanished")
    assert gone.shown == "dead"
    supervisor_client.ensure_running(shared_crew.directory)

    def buried() -> bool:
        record = shared_crew.agent("unwatched").exit.load()
        return record is not None and record.buried

    eventually(buried, "the finalized exit record")
    assert shared_crew.see("unwatched").state in ("vanished", "crashed")
    assert shared_crew.see("unwatched").since == gone.since


@pytest.mark.long
def test_no_exit_reason_is_shown_before_the_supervisor_knows_it(shared_crew: Crew) -> None:
    shared_crew.run("adoptee", "explore", "say hello")
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


@pytest.mark.long
def test_no_supervisor_is_started_when_all_ends_are_finalized(crew: Crew) -> None:
    crew.run("scout", "explore", "say hello")
    stop.delete(crew.team, now=True)
    supervisor_client.ensure_running(crew.directory)
    assert not supervisor_client.is_alive(crew.directory)


def test_a_start_whose_caller_died_is_reported_to_the_operator(shared_crew: Crew) -> None:
    from crewboard.records.agents import HireOptions, Spec
    from crewboard.records.team import Member
    from crewboard.store import roster

    def needs() -> list[str]:
        return [need.kind for need in shared_crew.view().needs if need.agent == "unborn"]

    shared_crew.directory.make_folder("agents/unborn")
    long_ago = shared_crew.team.now() - 60
    agents.change_spec(
        shared_crew.agent("unborn"),
        lambda _: Spec(prompt="x", prompt_id="p", type="explore", model="m", flags=HireOptions(), at=long_ago),
    )
    roster.put(shared_crew.directory, Member(name="unborn", type="explore"))
    assert needs() == ["failed_start"]
    hire.resume(shared_crew.team, "unborn")
    shared_crew.wait_for("unborn", "idle", "working")
    # Its result may be there already.
    assert "failed_start" not in needs()


@pytest.mark.long
def test_an_orderly_shutdown_of_the_machine_is_no_crash(shared_crew: Crew) -> None:
    shared_crew.run("rebooted", "explore", "say hello")
    process.send_signal(shared_crew.supervisor_pid(), signal.SIGTERM)
    # One that is slow to end would record the end of the worker as one by a signal.
    eventually(lambda: not supervisor_client.is_alive(shared_crew.directory), "the end of the supervisor")
    shared_crew.kill("rebooted", signal.SIGTERM)
    eventually(lambda: not leases.is_held(shared_crew.agent("rebooted").lease), "its end")
    # In the same boot it was ended by a signal. Its lease is free before the process is gone.
    shared_crew.wait_for("rebooted", "crashed")
    agent = shared_crew.agent("rebooted")
    status = agent.status.load()
    assert status is not None
    agent.status.save(status.replace(boot_id="the boot before"))
    assert shared_crew.see("rebooted").state == "exited"
    supervisor_client.ensure_running(shared_crew.directory)
    eventually(lambda: not supervisor_client.is_unfinalized(agent), "the finalized end")
    record = agent.exit.load()
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
    supervisor = reconciler.Supervisor(directory, lock, lambda: None)
    monkeypatch.setattr(supervisor, "_record_end", adopt)
    for _ in range(2):
        asyncio.run(supervisor._reconcile_all())
    assert looked == ["bad", "good"] * 2
    (need,) = TeamReader(directory).read().needs
    assert (need.kind, need.agent) == ("failed", "bad")
    asyncio.run(supervisor._reconcile_all())
    assert TeamReader(directory).read().needs == ()
    os.close(lock.descriptor)


def unstarted(directory: TeamDirectory) -> reconciler.Supervisor:
    """Return a supervisor that holds the team's lock and has not begun to run."""
    lock = leases.take(directory.supervisor_lock)
    assert lock is not None
    return reconciler.Supervisor(directory, lock, lambda: None)


async def test_a_supervisor_looks_often_unless_events_tell_all(directory: TeamDirectory) -> None:
    supervisor = unstarted(directory)
    assert not supervisor._is_calm(), "no file events"
    supervisor._notifier.start()
    assert supervisor._is_calm()
    supervisor._has_waiting = True
    assert not supervisor._is_calm(), "a start waits"
    supervisor._has_waiting, supervisor._hook.is_configured = False, True
    assert not supervisor._is_calm(), "the user has a hook"
    supervisor._hook.is_configured = False
    supervisor._notifier.stop()
    assert not supervisor._is_calm()


def test_a_pass_wakes_a_worker_whose_files_were_changed_by_hand(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, agent = unstarted(directory), directory.agent("scout")
    spec = agents.change_spec(agent, lambda _: Spec(prompt="x", prompt_id="x", type="explore", at=1))
    lease = leases.take(agent.lease)
    assert lease is not None
    signals: list[int] = []
    monkeypatch.setattr(supervisor._launcher, "signal", lambda _, number: signals.append(number))
    watched = supervisor.watch("scout")
    watched.ref = Ref(os.getpid(), process.start_ticks(os.getpid()))

    def woken() -> bool:
        signals.clear()
        supervisor._reconcile(watched)
        return signals == [supervisor_client.WAKE_SIGNAL]

    # The cache of a file trusts its time only once it is older than a moment.
    eventually(lambda: not woken(), "a pass that finds nothing new")
    agent.spec.put(codec.encode(spec) + b"\n")
    assert woken()
    eventually(lambda: not woken(), "a pass that finds nothing new")
    agent.status.put(b"{")
    assert woken()
    agent.status.remove()
    eventually(lambda: not woken(), "a pass that finds nothing new")
    agent.lease.remove()
    assert woken()
    leases.release(lease)


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
    # An answer is not waited for: the wait would be twice as long as a busy machine needs.
    monkeypatch.setattr(supervisor_client, "_SEND_TIMEOUT", 2 * WAIT_TIMEOUT)
    asked = time.monotonic()
    with pytest.raises(TryLaterError, match=f"process {hung}.* does not answer.* scout ends as soon as"):
        stop.stop_now(crew.team, "scout")
    assert time.monotonic() - asked < WAIT_TIMEOUT
    with pytest.raises(TryLaterError, match=r"The run of late is recorded; `crewboard .*resume late` starts it"):
        crew.hire("late", "explore", "say hello")
    cli = Inside(crew.root)
    told = cli("supervisor")
    assert (told.code, told.out.partition(" since ")[0]) == (75, f"supervisor {hung} hangs")
    assert f"supervisor {hung} hangs ·" in cli("status").out
    assert cli("status", "--json").json["supervisor"]["silent_since"] < time.time()
    monkeypatch.undo()
    replaced = cli("supervisor", "--restart", "--json").json
    successor = crew.supervisor_pid()
    assert replaced | {"shared_bytes": None} == {
        "pid": successor, "alive": True, "silent_since": None, "hosts": None, "shared_bytes": None,
    }  # fmt: skip
    assert successor != hung
    assert not process.start_ticks(hung)
    eventually(lambda: not leases.is_held(crew.agent("scout").lease), "the end that was asked for before")
    assert crew.see("scout").pid == worker
    assert structs.replace(crew.view().supervisor, shared_bytes=None) == SupervisorView(successor, alive=True)
    assert hire.resume(crew.team, "scout") == 2
    assert hire.resume(crew.team, "late") == 1


def test_a_slow_supervisor_is_not_called_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket_path = tmp_path / "s.sock"
    socket_path.touch()
    holder = Supervisor(pid=1, socket=str(socket_path), boot_id=process.boot_id())
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    supervisor_client.show_life(socket_path)
    assert supervisor_client.silent_for(holder) is None
    shown = now - 14 * 10**9
    os.utime(socket_path, ns=(shown, shown))
    assert supervisor_client.silent_for(holder) is None
    os.utime(socket_path, ns=(shown - 2 * 10**9, shown - 2 * 10**9))
    silence = supervisor_client.silent_for(holder)
    assert silence is not None
    assert 16 <= silence < 60
    assert supervisor_client.silent_for(holder.replace(boot_id="the boot before")) is None


@of_processes
def test_only_the_process_behind_the_socket_is_killed(crew: Crew) -> None:
    supervisor_client.wake_supervisor(crew.directory)
    holder = leases.holder(crew.directory.supervisor_lock, Supervisor)
    assert holder is not None
    process.send_signal(holder.pid, signal.SIGSTOP)
    with subprocess.Popen(["sleep", "60"]) as other:
        named = {"pid": other.pid, "start_ticks": process.start_ticks(other.pid)}
        crew.directory.supervisor_lock.on_disk.write_bytes(codec.encode(holder.replace(**named)))
        with pytest.raises(UntrustedError, match="not by the one that"):
            supervisor_client.restart(crew.directory)
        assert other.poll() is None
        assert process.start_ticks(holder.pid)
        other.kill()
    process.send_signal(holder.pid, signal.SIGCONT)


async def test_a_request_whose_caller_gave_up_is_not_done_later(tmp_path: Path) -> None:
    done: list[ControlRequest] = []
    server = await supervisor_main.listen(tmp_path / "s.sock", done.append)
    for waits in (False, True):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "s.sock"))
            caller.sendall(ControlRequest("start", "waits" if waits else "gone", 1, {}).encode())
            if waits:
                assert await asyncio.to_thread(caller.recv, 16) == b"ok\n"
    server.close()
    assert [request.name for request in done] == ["waits"]


@pytest.mark.long
@of_processes
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


def test_a_supervisor_whose_lock_was_removed_writes_nothing(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What concerns this whole process is left out.
    monkeypatch.setattr(files, "_checks_before_writing", [])
    monkeypatch.setattr(process, "adopt_orphans", lambda: None)

    async def supervise(team: TeamDirectory, lock: Held) -> None:
        team.agent("scout").status.save(STATUS)
        team.supervisor_lock.on_disk.unlink()
        with pytest.raises(LostLeaseError):
            team.agent("scout").status.save(STATUS)
        os.close(lock.descriptor)

    monkeypatch.setattr(supervisor_main, "supervise", supervise)
    directory.make_folder("agents/scout")
    assert supervisor_main.run(directory) == 0
    assert len(files._checks_before_writing) == 1


@of_processes
def test_a_signal_while_a_supervisor_ends_is_not_complained_about(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefork server ends with it, and may do so when asyncio has closed what signals are written to."""
    close = BaseSelectorEventLoop.close

    def close_late(loop: BaseSelectorEventLoop) -> None:
        close(loop)
        os.kill(os.getpid(), signal.SIGCHLD)

    async def run(_: reconciler.Supervisor) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, lambda: None)

    complaints: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(BaseSelectorEventLoop, "close", close_late)
    monkeypatch.setattr(reconciler.Supervisor, "run", run)
    lock = leases.take(directory.supervisor_lock)
    assert lock is not None
    asyncio.run(supervisor_main.supervise(directory, lock))
    assert complaints == []
    os.close(lock.descriptor)


def test_a_run_that_a_reboot_ended_says_so(directory: TeamDirectory) -> None:
    agent = directory.agent("scout")
    agent.team.make_folder(agent.folder.name)
    agent.status.save(STATUS.replace(boot_id="another boot", beat=5.0))
    record = finalizer.record_exit(agent, 1, Ended(), 9.0)
    assert (record.reason, record.at) == ("reboot", 5.0)


def test_the_record_of_an_end_says_if_work_was_cut_off(directory: TeamDirectory) -> None:
    killed, unleased, rested, older = (directory.agent(name) for name in ("killed", "unleased", "rested", "older"))
    for agent in (killed, unleased, rested, older):
        directory.make_folder(agent.folder.name)
        agent.status.save(STATUS.replace(state="idle" if agent == rested else "working", boot_id=process.boot_id()))
    ends = [
        finalizer.record_exit(killed, 1, Ended(signal=9), 9.0),
        finalizer.record_exit(unleased, 1, Ended(code=ExitCode.IO), 9.0),
        finalizer.record_exit(rested, 1, Ended(code=ExitCode.IO), 9.0),
        finalizer.record_exit(older, 2, Ended(signal=9), 9.0),
    ]
    found = [(record.reason, record.unfinished) for record in ends]
    assert found == [("died", True), ("lost", True), ("lost", False), ("died", False)]


def test_a_worker_that_cannot_write_ended_for_that_reason(directory: TeamDirectory) -> None:
    agent = directory.agent("scout")
    agent.team.make_folder(agent.folder.name)
    agent.status.save(STATUS.replace(boot_id=process.boot_id()))
    agent.lease.put(codec.encode(Lease(pid=1, run=1)))
    record = finalizer.record_exit(agent, 1, Ended(code=ExitCode.IO), 9.0)
    assert describe_exit(record) == "exit 74: a file could not be written"


@contextmanager
def ended_and_living(team: TeamDirectory, **wants: Want) -> Iterator[None]:
    """Make agents whose names begin with `dead`, whose runs ended, and others that live as long as the block."""
    held = []
    for name, want in wants.items():
        spec = Spec(prompt="x", prompt_id="x", type="explore", at=1, want=want)
        agents.change_spec(team.agent(name), lambda _, spec=spec: spec)  # type: ignore[misc]
        roster.put(team, Member(name=name, type="explore"))
        team.agent(name).status.save(Status(run=1, pid=0, state="idle", since=1))
        if not name.startswith("dead"):
            held.append(leases.take(team.agent(name).lease))
    yield
    for lease in held:
        assert lease is not None
        leases.release(lease)


def told(team: TeamDirectory, name: str) -> list[str]:
    """Return which ends an agent was told of, in order."""
    return [each.content.partition(" ")[0] for each in mailbox.read(team, name).messages]


def test_many_ends_cost_one_sync_for_each_recipient(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    send = mailbox.send

    def note(team: TeamDirectory, message: Message, *, durable: bool = False) -> Message:
        synced.extend([message.to] if durable else [])
        return send(team, message, durable=durable)

    monkeypatch.setattr(mailbox, "send", note)
    wants: dict[str, Want] = {"dead1": "running", "dead2": "stopped", "dead3": "running", "bob": "running"}
    with ended_and_living(directory, **wants, carol="running", leaver="killed"):
        supervisor = unstarted(directory)
        asyncio.run(supervisor._reconcile_all())
        asyncio.run(supervisor._reconcile_all())
    for name in ("lead", "bob", "carol"):
        assert told(directory, name) == ["dead1", "dead2", "dead3"]
    assert told(directory, "leaver") == told(directory, "dead1") == []
    assert sorted(synced) == ["bob", "carol", "lead"]
    os.close(supervisor._lock.descriptor)


def test_a_run_that_was_finalized_is_not_finalized_again(directory: TeamDirectory) -> None:
    with ended_and_living(directory, dead1="running", dead2="running"):
        directory.agent("dead1").exit.save(Exit(run=1, reason="died", at=1, buried=True))
        supervisor = unstarted(directory)
        asyncio.run(supervisor._reconcile_all())
    assert told(directory, "lead") == ["dead2"]
    os.close(supervisor._lock.descriptor)


def test_notices_that_could_not_be_sent_are_sent_once_later(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "NOTICE_INTERVAL", 0)
    with ended_and_living(directory, dead1="running", dead2="running", bob="running"):
        supervisor = unstarted(directory)
        with monkeypatch.context() as failing:
            failing.setattr(agents, "mark_finalized", lambda *_: _fail())
            asyncio.run(supervisor._reconcile_all())
        asyncio.run(supervisor._reconcile_all())
    for name in ("lead", "bob"):
        assert told(directory, name) == ["dead1", "dead2"]
    assert all(
        record is not None and record.buried
        for record in (directory.agent(name).exit.load() for name in ("dead1", "dead2"))
    )
    os.close(supervisor._lock.descriptor)


def test_the_notice_of_a_second_end_comes_a_moment_later(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "NOTICE_INTERVAL", 60)
    with ended_and_living(directory, dead1="running"):
        supervisor = unstarted(directory)
        asyncio.run(supervisor._reconcile_all())
        with ended_and_living(directory, dead2="running"):
            supervisor._next_pass = 1000
            asyncio.run(supervisor._reconcile_all())
            assert told(directory, "lead") == ["dead1"]
            assert supervisor._next_pass <= reconciler.NOTICE_INTERVAL
            assert supervisor._is_needed()
            supervisor._told_at -= reconciler.NOTICE_INTERVAL
            asyncio.run(supervisor._reconcile_all())
    assert told(directory, "lead") == ["dead1", "dead2"]
    os.close(supervisor._lock.descriptor)


def test_the_end_of_a_child_kills_what_it_left(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(directory)
    launcher.adopt(12)
    me = os.getpid()
    ends = iter([(12, 0), (0, 0)])
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "waitpid", lambda *_: next(ends))
    # An orphan of the child that ended, with a child of its own; and one that another child of this process has.
    monkeypatch.setattr(process, "parents", lambda: {20: me, 21: 20, 13: me, 30: 13})
    monkeypatch.setattr(process, "send_signal", lambda pid, number: killed.append((pid, number)))
    launcher.adopt(13)
    assert list(launcher.reap()) == [12]
    assert killed == [(20, signal.SIGKILL), (21, signal.SIGKILL)]


def test_a_signal_for_a_tree_reaches_all_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, ...]] = []
    monkeypatch.setattr(process, "descendants", lambda pid: {5: [6, 7]}[pid])
    monkeypatch.setattr(process, "send_signal", lambda *given: sent.append(given))
    Launcher.signal(Ref(5, 99), signal.SIGSTOP, tree=True)
    assert sent == [(5, signal.SIGSTOP, 99), (6, signal.SIGSTOP), (7, signal.SIGSTOP)]
    Launcher.signal(Ref(5, 99), signal.SIGCONT)
    assert sent[3:] == [(5, signal.SIGCONT, 99)]
