"""Caps of a team: how many agents run at once, how much memory; who waits, in which order, and until when."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from crewboard.commands import control, hire, hosts, settings, stop
from crewboard.commands.context import Team
from crewboard.commands.hire import Hire
from crewboard.errors import TryLaterError, UsageError
from crewboard.protocol import supervisor_client
from crewboard.readmodel.team import Need
from crewboard.records.agents import Engine, HireOptions, Spec, Status
from crewboard.records.events import RunStarted
from crewboard.records.processes import HeldStart, HeldStarts, Lease
from crewboard.records.team import Config
from crewboard.store import agents, leases, roster
from crewboard.store.layout import TeamDirectory
from crewboard.store.roster import Load
from crewboard.supervisor.start_queue import StartQueue, restart_delay
from crewboard.unix import process
from tests.cli.shell import Inside
from tests.crew import Crew, eventually
from tests.model import calls

HELLO = "say hello"


@pytest.mark.parametrize(
    ("caps", "load", "words"),
    [
        ({}, Load(99, 99, 0), None),
        ({"max_agents": 2}, Load(1, 1, 0), None),
        ({"max_agents": 2}, Load(2, 0, 0), "max_agents 2 reached"),
        ({"max_working": 2}, Load(9, 1, 0), None),
        ({"max_working": 2}, Load(9, 2, 0), "max_working 2 reached"),
        ({"min_free_memory": 1024}, Load(0, 0, 1024), None),
        ({"min_free_memory": 2 * 1024**3}, Load(0, 0, 1024), "less than min_free_memory 2G free"),
    ],
)
def test_a_cap_is_reached(caps: dict[str, int], load: Load, words: str | None) -> None:
    assert roster.cap_reached(Config(name="t", **caps), load) == words  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 * 1024**2), ("2G", 2 * 1024**3), ("1.5g", 3 * 1024**3 // 2), ("4096", 4096), ("1 KiB", 1024)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert roster.parse_size(text) == size
    assert roster.parse_size(roster.format_size(size)) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "G", "2X", "nan", "9" * 40, "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        roster.parse_size(text)


def test_places_in_the_queue_are_told_in_order(directory: TeamDirectory) -> None:
    queue = StartQueue(directory)
    names = [f"a{number}" for number in range(1, 13)]
    queue.hold([HeldStart(name=name, run=1, since=at) for at, name in enumerate(names)], "max_agents 1 reached")
    held = agents.held_starts(directory)
    told = [held.describe(name, 1, 0) for name in ("a1", "a2", "a3", "a4", "a11", "a12")]
    assert [text.split(":")[0].split()[1] for text in told] == ["1st", "2nd", "3rd", "4th", "11th", "12th"]
    assert told[0] == "queued 1st: max_agents 1 reached"
    assert held.describe("a1", 2, 0) == ""


def test_a_successor_keeps_the_queue_and_says_what_is_missing(directory: TeamDirectory) -> None:
    starts = [HeldStart(name="a", run=1, since=1), HeldStart(name="b", run=4, since=2)]
    StartQueue(directory).hold(starts, "max_agents 1 reached")
    successor = StartQueue(directory)
    first, second = successor.find("a", 1), successor.find("b", 4)
    assert first is not None
    assert second is not None
    assert not successor.find("b", 5)
    successor.hold([first, second.replace(provided=False)], None)
    text = agents.held_starts(directory).describe("b", 4, 0)
    assert text.startswith("queued 2nd: max_agents 1 reached; resume it")


def test_a_damaged_queue_is_written_anew(directory: TeamDirectory) -> None:
    directory.starts.put(b"{")
    assert agents.held_starts(directory).held == []
    queue = StartQueue(directory)
    assert queue.find("a", 1) is None
    queue.hold([HeldStart(name="a", run=1, since=1)], "max_agents 1 reached")
    assert agents.held_starts(directory).place("a", 1) == 1


def test_memory_counts_a_process_and_what_it_started() -> None:
    code = "import subprocess, sys; b = bytearray(60 << 20); print('up', flush=True); sys.stdin.read()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        assert process.resident_bytes(child.pid) > 60 << 20
        child.stdin.close()
    assert process.resident_bytes(child.pid) == 0
    assert 0 < process.available_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + 1


@pytest.fixture
def full(crew: Crew) -> Crew:
    """Return a team that may have one agent, and has it."""
    crew.run("first", "explore", HELLO)
    settings.change_setting(crew.team, "max_agents", "1")
    return crew


def urgent(crew: Crew) -> list[Need]:
    """Return what needs the user, without unread results."""
    return [need for need in crew.view().needs if need.kind != "result"]


def queue_of(crew: Crew) -> list[str]:
    return [each.name for each in agents.held_starts(crew.directory).held]


def test_over_a_cap_agents_are_queued_and_start_in_order(full: Crew) -> None:
    for name in ("third", "second"):
        assert full.hire(name, "explore", HELLO, once=True).run == 1
    seen = full.see("second")
    assert (seen.state, seen.alive, seen.reason) == ("queued", False, "queued 2nd: max_agents 1 reached")
    assert urgent(full) == []
    stop.stop_now(full.team, "first")
    full.wait_for("third", "exited")
    full.wait_for("second", "exited")
    started = [event.ts for name in ("third", "second") for event in full.events(name)[:1]]
    assert started == sorted(started)
    # A supervisor writes the queue after it has started a worker.
    eventually(lambda: queue_of(full) == [], "the empty queue")


@pytest.mark.long
@pytest.mark.both_stores("the queue is read again")
def test_the_queue_survives_the_supervisor(full: Crew) -> None:
    full.hire("second", "explore", HELLO)
    full.hire("third", "explore", HELLO)
    pid = full.supervisor_pid()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(full.directory), "the end of the supervisor")
    supervisor_client.wake_supervisor(full.directory)
    eventually(lambda: full.view().unprovided, "that the environments are missed")
    assert queue_of(full) == ["second", "third"]
    assert "resume it" in full.see("second").reason
    hosts.provide(full.team)
    eventually(lambda: not full.view().unprovided, "that the environments are here")
    assert queue_of(full) == ["second", "third"]
    stop.stop_now(full.team, "first")
    assert full.wait_for("second", "idle").run == 1
    eventually(lambda: queue_of(full) == ["third"], "the queue without the second")


@pytest.mark.long
def test_while_a_team_is_deleted_no_queued_agent_starts(full: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    full.hire("second", "explore", HELLO)
    end_all = stop.end_all

    def end_and_look(*given: Any, **how: Any) -> None:
        """Give the supervisor time to start the agent that waited for the end of the other."""
        end_all(*given, **how)
        eventually(
            lambda: queue_of(full) == [] or not supervisor_client.is_alive(full.directory), "a pass of the supervisor"
        )

    monkeypatch.setattr(stop, "end_all", end_and_look)
    stop.delete(full.team, now=True)
    assert full.events("second") == []


@pytest.mark.long
def test_a_raised_cap_starts_who_waits(full: Crew) -> None:
    full.hire("second", "explore", HELLO)
    settings.change_setting(full.team, "max_agents", "none")
    full.wait_for("second", "idle")


@pytest.mark.long
def test_a_queued_agent_can_be_taken_out_of_the_queue(full: Crew) -> None:
    full.hire("second", "explore", HELLO)
    with pytest.raises(TryLaterError, match="second is queued 1st"):
        full.hire("second", "explore", "something else")
    stop.stop(full.team, "second")
    eventually(lambda: queue_of(full) == [], "the empty queue")
    full.wait_for("second", "exited")
    stop.stop_now(full.team, "first")
    assert agents.last_run(full.agent("second")) == 0


@pytest.mark.long
def test_stop_all_lets_no_queued_agent_start(full: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    full.hire("second", "explore", HELLO)
    asked, stop_one = threading.Event(), stop.stop

    def stop_and_look(team: Team, name: str) -> stop.Ending:
        if name == "first":
            asked.set()
        else:
            assert not asked.wait(0.5), "who waits is taken out of the queue first"
        return stop_one(team, name)

    monkeypatch.setattr(stop, "stop", stop_and_look)
    done = Inside(full.root)("stop", "--all")
    assert (done.code, done.out.splitlines()[0]) == (0, "second was taken out of the queue")
    full.wait_for("first", "exited")
    full.wait_for("second", "exited")
    assert agents.last_run(full.agent("second")) == 0


def test_a_start_that_may_not_wait_is_refused_and_leaves_nothing(full: Crew) -> None:
    with pytest.raises(TryLaterError, match="second was not started: max_agents 1 reached"):
        hire.spawn(full.team, Hire("second", "explore", HELLO, wait=False))
    assert full.team.config.member("second") is None
    assert not full.agent("second").path.exists()


@pytest.mark.long
def test_resume_all_keeps_to_the_cap(crew: Crew) -> None:
    for name in ("a", "b", "c"):
        crew.run(name, "explore", HELLO)
        stop.stop_now(crew.team, name)
    settings.change_setting(crew.team, "max_agents", "2")
    hire.resume_all(crew.team)
    held = agents.held_starts(crew.directory).held
    assert [each.reason for each in held] == ["max_agents 2 reached"]
    assert sum(leases.is_held(crew.agent(name).lease) for name in ("a", "b", "c")) <= 2
    stop.stop_now(crew.team, next(name for name in ("a", "b", "c") if name != held[0].name))
    crew.wait_for(held[0].name, "idle")


def test_idle_agents_do_not_count_as_working(directory: TeamDirectory) -> None:
    for name, state in (("a", "idle"), ("b", "working"), ("c", "waiting"), ("d", "retrying")):
        status = Status(run=1, pid=1, state=state, since=0)  # type: ignore[arg-type]
        agents.change_spec(directory.agent(name), lambda _: Spec(prompt="x", prompt_id="x", type="explore"))
        directory.agent(name).status.save(status)
    agents.change_spec(directory.agent("new"), lambda _: Spec(prompt="x", prompt_id="x", type="explore"))
    load = roster.load_of(directory, ["a", "b", "c", "d", "new"])
    assert (load.agents, load.working) == (5, 3)


def test_what_an_engine_will_take_is_no_free_memory(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "available_memory", lambda: 1000 << 20)
    roster.ensure(directory, 0)
    roster.change(directory, lambda config: setattr(config, "min_free_memory", 500 << 20))
    wanted = Spec(prompt="x", prompt_id="x", type="code", engine=Engine(name="claude", command=["/x"]))
    for name, version in (("runs", "0.101.0"), ("starts", ""), ("new", None)):
        agents.change_spec(directory.agent(name), lambda _: wanted)
        if version is not None:
            status = Status(run=1, pid=1, state="working", since=0, engine_version=version)
            directory.agent(name).status.save(status)
    # Its memory is used already, and the machine says so.
    assert roster.load_of(directory, ["runs"]).free_memory == 1000 << 20
    assert roster.load_of(directory, ["runs", "starts"]).free_memory == 700 << 20
    queue = StartQueue(directory)
    assert queue.cap_reached({"runs"}, "new") is None
    assert queue.cap_reached({"runs", "starts"}, "new") == "less than min_free_memory 500M free"


def test_an_agent_over_its_memory_is_killed_with_all_that_it_started(crew_on: Callable[..., Crew]) -> None:
    crew = crew_on()
    crew.run("fat", "explore", HELLO)
    holder = leases.holder(crew.agent("fat").lease, Lease)
    assert holder is not None
    control.limit_memory(crew.team, "fat", 4096)
    seen = crew.wait_for("fat", "crashed")
    assert seen.exit is not None
    assert seen.exit.reason == "memory"
    (need,) = urgent(crew)
    assert (need.kind, need.agent) == ("death", "fat")
    assert "used more memory than its limit" in need.summary
    assert not process.start_ticks(holder.pid)
    control.limit_memory(crew.team, "fat", None)
    assert hire.resume(crew.team, "fat") == 2
    crew.wait_for("fat", "idle")


def test_the_kernel_ends_an_agent_with_a_cgroup_over_its_memory(crew_on: Callable[..., Crew]) -> None:
    parent = process.find_memory_cgroup()
    if parent is None:
        # No package can install one: the system that starts the tests must delegate it.
        pytest.skip("memory limits by cgroups do not work here: no cgroup is delegated to this user")
    fill = f"{sys.executable} -c 'b = bytearray(400 << 20); import time; time.sleep(60)'"
    crew = crew_on(script=[calls("bash", command=fill)])
    crew.hire("fat", "code", "fill it", max_memory=300 << 20, unsafe_no_sandbox=True)
    group = eventually(lambda: next(parent.glob("crewboard-*-fat-1"), None), "the agent's cgroup")
    seen = crew.wait_for("fat", "crashed")
    assert seen.exit is not None
    assert (seen.exit.reason, seen.exit.signal) == ("memory", signal.SIGKILL)
    (need,) = urgent(crew)
    assert "used more memory than its limit" in need.summary
    eventually(lambda: not group.exists(), "the end of its cgroup")
    assert "more than its limit" not in crew.directory.supervisor_log.read_text()


def test_a_cgroup_follows_the_limit_and_outlives_the_supervisor(crew_on: Callable[..., Crew]) -> None:
    if process.find_memory_cgroup() is None:
        pytest.skip("memory limits by cgroups do not work here: no cgroup is delegated to this user")
    crew = crew_on()
    crew.run("api", "explore", HELLO, max_memory=300 << 20)
    group = process.cgroup(crew.pid("api"))
    assert group is not None
    os.kill(crew.supervisor_pid(), signal.SIGKILL)
    eventually(lambda: not supervisor_client.is_alive(crew.directory), "the end of the supervisor")
    supervisor_client.wake_supervisor(crew.directory)
    control.limit_memory(crew.team, "api", 4096)
    assert crew.wait_for("api", "crashed").exit.reason == "memory"  # type: ignore[union-attr]
    eventually(lambda: not group.exists(), "the end of its cgroup")


def test_a_hired_agent_gets_no_more_memory_than_its_hirer() -> None:
    hirer, asked = HireOptions(max_memory=100), HireOptions()
    assert hire.effective_terms(asked, hirer).max_memory == 100
    assert hire.effective_terms(HireOptions(max_memory=50), hirer).max_memory == 50
    assert hire.effective_terms(asked, HireOptions()).max_memory is None


def test_held_starts_are_found_by_name_and_run() -> None:
    held = HeldStarts(held=[HeldStart(name="a", run=2)])
    assert held.find("a", 2) is not None
    assert held.place("a", 1) == 0


def test_restarts_wait_longer_each_time_and_end_after_three() -> None:
    times: list[float] = []
    for attempt, delay in ((1, 1), (2, 2), (3, 4)):
        assert restart_delay(times, 100.0 * attempt) == (delay, attempt)
        times.append(100.0 * attempt)
    assert restart_delay(times, 400.0) == (None, 0)
    assert restart_delay(times, 750.0) == (8, 3)
    assert restart_delay([0, 250, 500, 750, 1000, 1250, 1500], 1750) == (60, 3)
    assert restart_delay(times, 2000.0) == (1, 1)


@pytest.mark.long
def test_a_crashed_agent_restarts_with_its_memory(crew: Crew) -> None:
    crew.run("api", "explore", HELLO, restart=True)
    crew.kill("api")
    eventually(lambda: crew.see("api").run == 2 and crew.see("api").state == "idle", "the second run")
    assert urgent(crew) == []
    started = [event for event in crew.events("api") if isinstance(event, RunStarted)]
    assert [event.fresh for event in started] == [True, False]
    stop.stop_now(crew.team, "api")
    crew.wait_for("api", "exited")
    assert agents.held_starts(crew.directory).held == []


def test_a_restart_is_announced_and_cancelled_by_a_stop(crew: Crew) -> None:
    crew.run("api", "explore", HELLO, restart=True)
    # After so many restarts it waits for a minute, so that this test cannot come too late.
    now = time.time()
    earlier = [now - 550 * number for number in range(6, 0, -1)]
    crew.directory.starts.save(HeldStarts(restarts={"api": earlier}))
    crew.kill("api")
    crew.wait_for("api", "queued")
    assert re.fullmatch(r"restarts in \d+ s \(2 of 3\): killed by SIGKILL", crew.see("api").reason)
    assert urgent(crew) == []
    stop.stop(crew.team, "api")
    assert crew.wait_for("api", "exited").alive is False
    eventually(lambda: agents.held_starts(crew.directory).held == [], "that nothing is held back")
    assert agents.last_run(crew.agent("api")) == 1


def test_the_fourth_crash_in_ten_minutes_is_a_death(crew: Crew) -> None:
    crew.run("api", "explore", HELLO, restart=True)
    now = time.time()
    crew.directory.starts.save(HeldStarts(restarts={"api": [now - 90, now - 60, now - 30]}))
    crew.kill("api")
    crew.wait_for("api", "crashed")
    (need,) = urgent(crew)
    assert need.kind == "death"
    eventually(lambda: "not restarted again" in crew.directory.supervisor_log.read_text(), "the reason in the log")
