"""A worker at rest: woken by what happens, it looks by itself rarely, and soon where no events come."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from crewboard import operations
from crewboard.commands import messages
from crewboard.protocol import supervisor_client
from crewboard.records.processes import Supervisor
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from crewboard.worker.interrupts import CALM_SWEEP_INTERVAL, SWEEP_INTERVAL, Interrupts
from crewboard.worker.run_state import MEMORY_INTERVAL, MEMORY_STEP
from tests.crash.scenarios import hire, worker
from tests.crew import Crew, eventually

WAIT = 30.0


class Watching:
    """A process that looks like the team's supervisor, and the lease that says that it sees file events."""

    def __init__(self, directory: TeamDirectory) -> None:
        self.directory = directory
        self.process = subprocess.Popen(["sleep", "600"])
        self.socket = directory.path / "s.sock"
        self.socket.touch()
        supervisor_client.show_life(self.socket)
        self._lock, self._events = leases.take(directory.supervisor_lock), leases.take(directory.notifier_lock)
        assert self._lock is not None
        pid = self.process.pid
        ticks = process.start_ticks(pid)
        leases.sign(
            self._lock, Supervisor(pid=pid, socket=str(self.socket), boot_id=process.boot_id(), start_ticks=ticks)
        )

    def lose_events(self) -> None:
        lease, self._events = self._events, None
        if lease is not None:
            os.close(lease.descriptor)

    def hang(self) -> None:
        long_ago = time.monotonic_ns() - int((supervisor_client.HUNG_AFTER + 1) * 1e9)
        os.utime(self.socket, ns=(long_ago, long_ago))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.lose_events()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock.descriptor)


@pytest.fixture
def watching(directory: TeamDirectory) -> Iterator[Watching]:
    watching = Watching(directory)
    yield watching
    watching.end()


def interrupts_of(directory: TeamDirectory) -> Interrupts:
    hire(directory, "scout")
    return Interrupts(worker(directory, "scout"))


@pytest.mark.parametrize("turns", range(5))
async def test_work_is_cancelled_while_a_wake_signal_arrives(directory: TeamDirectory, turns: int) -> None:
    """Else a worker that waits for the API and is asked to stop waits on."""
    interrupts = interrupts_of(directory)

    async def work() -> None:
        while True:
            await interrupts.wait(WAIT)

    waiting = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    interrupts._wake.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=WAIT)
    assert waiting.cancelled()
    waiting.cancel()


async def test_without_a_supervisor_a_worker_looks_often(directory: TeamDirectory) -> None:
    interrupts = interrupts_of(directory)
    assert [interrupts._until_next_look() for _ in range(3)] == [SWEEP_INTERVAL] * 3


async def test_a_watched_worker_rests_after_one_more_look(directory: TeamDirectory, watching: Watching) -> None:
    interrupts = interrupts_of(directory)
    assert interrupts._until_next_look() == SWEEP_INTERVAL, "what came before the supervisor watched was no event"
    assert [interrupts._until_next_look() for _ in range(2)] == [CALM_SWEEP_INTERVAL] * 2
    watching.lose_events()
    assert interrupts._until_next_look() == SWEEP_INTERVAL


async def test_a_worker_looks_often_while_its_supervisor_hangs(directory: TeamDirectory, watching: Watching) -> None:
    interrupts = interrupts_of(directory)
    interrupts._until_next_look()
    assert interrupts._until_next_look() == CALM_SWEEP_INTERVAL
    watching.hang()
    assert interrupts._until_next_look() == SWEEP_INTERVAL


async def test_the_end_of_its_supervisor_wakes_a_worker(directory: TeamDirectory, watching: Watching) -> None:
    interrupts = interrupts_of(directory)
    interrupts._until_next_look()
    resting = asyncio.ensure_future(interrupts.wait())
    await asyncio.sleep(0)
    assert not resting.done()
    watching.end()
    await asyncio.wait_for(resting, WAIT)
    assert interrupts._until_next_look() == SWEEP_INTERVAL


@pytest.mark.long
def test_an_edited_spec_is_noticed_without_a_wake_signal(shared_crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_crew.run("edited", "explore", "say hello")
    shared_crew.wait_for("edited", "idle")
    monkeypatch.setattr(supervisor_client, "wake_worker", lambda *_: None)
    operations.pause(shared_crew.team, "edited")
    shared_crew.wait_for("edited", "paused")


@pytest.mark.long
def test_mail_is_read_in_time_while_the_supervisor_is_stopped(shared_crew: Crew) -> None:
    shared_crew.run("served", "explore", "say hello")
    shared_crew.wait_for("served", "idle")
    supervisor = shared_crew.supervisor_pid()
    process.send_signal(supervisor, signal.SIGSTOP)
    try:
        sent = messages.send(shared_crew.team, "served", "say hello")
        shared_crew.answer_to("served", sent.id)
    finally:
        process.send_signal(supervisor, signal.SIGCONT)
        eventually(lambda: shared_crew.view().supervisor.silent_since is None, "a sign of life")


def test_a_worker_tells_its_memory_each_minute_if_it_changed(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hire(directory, "scout")
    run_state = worker(directory, "scout")
    clock, used = [100.0], [20 << 20]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(process, "private_bytes", lambda: used[0])
    told = directory.agent("scout").status

    def after(seconds: float, grown: int) -> int:
        clock[0] += seconds
        used[0] += grown
        run_state.refresh_status()
        status = told.load_or_none()
        assert status is not None
        return status.private_bytes >> 20

    run_state.show("working", "begins")
    assert after(0, 0) == 20
    assert after(MEMORY_INTERVAL - 1, 30 << 20) == 20, "it was read less than a minute ago"
    assert after(1, 0) == 50
    written = told.changed_at()
    assert after(MEMORY_INTERVAL, MEMORY_STEP - 1) == 50
    assert told.changed_at() == written, "an agent at rest writes nothing"
    run_state.show("idle")
    used[0] = 10 << 20
    run_state.show("working", "begins")
    run_state.show("idle")
    assert after(0, 0) == 10, "it is read at the end of each assignment"
