"""One supervisor per team: it starts each run once, knows every end, leaves nothing behind."""

import signal
import threading
from pathlib import Path

from crewboard import process
from crewboard.records import RunStarted, Supervisor
from crewboard.store import agents, lease
from crewboard.supervisor import ring
from crewboard.team import ending, hiring
from tests.crew import Crew, eventually


def runs(crew: Crew, name: str) -> list[int]:
    return [event.run for event in crew.events(name) if isinstance(event, RunStarted)]


def test_many_callers_at_once_get_one_supervisor(crew: Crew) -> None:
    callers = [threading.Thread(target=ring.ring, args=(crew.directory,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    me = crew.supervisor_pid()
    assert process.is_same(me, process.boot_id(), process.start_ticks(me))
    log = crew.directory.supervisor_log.read_text()
    assert "Traceback" not in log


def test_the_supervisor_sees_no_key_and_stands_in_no_folder_of_the_user(crew: Crew) -> None:
    ring.ring(crew.directory)
    pid = crew.supervisor_pid()
    assert b"ANTHROPIC" not in process.environment(pid)
    assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")


def test_its_socket_is_for_its_user_alone(crew: Crew) -> None:
    ring.ring(crew.directory)
    holder = lease.holder(crew.directory.supervisor_lock, Supervisor)
    assert holder is not None
    socket = Path(holder.socket)
    assert socket.stat().st_mode & 0o077 == 0
    assert socket.parent.stat().st_mode & 0o077 == 0


def test_the_same_run_is_started_once_however_often_it_is_rung_for(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files", once=True)
    crew.wait_for("scout", "exited")
    for _ in range(3):
        ring.ring(crew.directory, "start", name="scout", run=1, environment=crew.environment)
    hiring.resume(crew.team, "scout")
    assert runs(crew, "scout") == [1, 2]


def test_a_successor_adopts_who_lives_and_can_end_them(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    pid = crew.pid("scout")
    old = crew.supervisor_pid()
    process.send_signal(old, signal.SIGKILL)
    eventually(lambda: not ring.is_alive(crew.directory), "its end")
    ending.stop_now(crew.team, "scout")
    assert crew.supervisor_pid() != old
    assert process.start_ticks(pid) == 0
    seen = crew.see("scout")
    assert seen.state == "exited"
    assert seen.exit is not None
    assert seen.exit.reason == "killed"


def test_a_death_that_nobody_watched_is_found_and_told(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    process.send_signal(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not ring.is_alive(crew.directory), "its end")
    crew.kill("scout")
    gone = crew.wait_for("scout", "vanished")
    assert gone.shown == "dead"
    ring.revive(crew.directory)

    def buried() -> bool:
        record = agents.exit_record(crew.agent("scout"))
        return record is not None and record.buried

    eventually(buried, "the burial")
    assert crew.see("scout").state in ("vanished", "crashed")
    assert crew.see("scout").since == gone.since


def test_nobody_is_brought_back_for_a_team_whose_dead_are_buried(crew: Crew) -> None:
    crew.run("scout", "explore", "List all Python files")
    ending.delete(crew.team, now=True)
    ring.revive(crew.directory)
    assert not ring.is_alive(crew.directory)


def test_a_start_whose_caller_died_is_something_the_operator_hears_of(crew: Crew) -> None:
    from crewboard.records import Flags, Member, Spec
    from crewboard.store import roster

    crew.agent("scout").path.mkdir()
    long_ago = crew.team.now() - 60
    agents.change_spec(
        crew.agent("scout"),
        lambda _: Spec(prompt="x", prompt_id="p", type="explore", model="m", flags=Flags(), at=long_ago),
    )
    roster.put(crew.directory, Member(name="scout", type="explore"))
    assert [need.kind for need in crew.view().needs] == ["failed_start"]
    hiring.resume(crew.team, "scout")
    crew.wait_for("scout", "idle", "working")
    assert crew.view().needs == ()
