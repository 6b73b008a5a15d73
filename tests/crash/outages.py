"""A team on two hosts whose connections, database, workers and machines fail at random instants, all on one machine."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from typing import Literal

import psycopg

from crewboard.commands import hire
from crewboard.records.processes import Lease
from crewboard.store import hosts, leases
from crewboard.unix import process
from tests import postgres
from tests.crash.stress import StressRun
from tests.crew import eventually
from tests.real_hosts import Hosts

Fault = Literal["connections", "database", "worker", "frozen host"]

MOST_AWAY = 3.0
"""Seconds for which the database is away at most: no worker ends."""

_WAIT = 120.0


class OutageRun(StressRun):
    """Agents on two hosts, with senders and a reader elsewhere. Nothing may end but what a fault ends."""

    def __init__(self, there: Hosts, server: postgres.Server, names: tuple[str, ...], seed: int) -> None:
        super().__init__(there.crew, names, seed, pause=0.5)
        self.faults: Counter[Fault] = Counter()
        self._there = there
        self._server = server
        self._dice = random.Random(seed)
        self._workers: dict[str, Lease] = {}
        """The workers that must be alive."""

    def begin(self) -> None:
        for name in ("build1", "build2"):
            self._there.start(name)
        super().begin()
        # A process whose first call finds no database does not wait for one.
        eventually(lambda: self.acknowledged > 10, "the first mail", _WAIT)
        self._note_workers()

    def _new_sender(self) -> None:
        # No other program appends to a mailbox in a database without its function.
        self._senders_started += 1
        super()._new_sender()

    def cause(self, fault: Fault) -> None:
        """Cause one fault after a random moment, and check that nothing else ended."""
        time.sleep(self._dice.uniform(0, 1))
        self.faults[fault] += 1
        match fault:
            case "connections":
                self._cut_connections()
            case "database":
                self._server.kill()
                time.sleep(self._dice.uniform(0, MOST_AWAY))
                self._server.start()
            case "worker":
                name = self._dice.choice(self.names)
                self._kill_worker_of(name)
            case "frozen host":
                self._freeze_a_host()
        self.checker.check_new()
        self._note_workers()

    def _note_workers(self) -> None:
        """Note the workers, and check that those that were there before are the same."""
        for name in self.names:
            holder = eventually(lambda name=name: self._holder(name), f"a worker of {name}", _WAIT)  # type: ignore[misc]
            before = self._workers.setdefault(name, holder)
            assert (before.pid, before.run) == (holder.pid, holder.run), f"{name} ended after {self.faults}"

    def _holder(self, name: str) -> Lease | None:
        return leases.holder(self.crew.agent(name).lease, Lease)

    def _cut_connections(self) -> None:
        """Cut off some of the connections of all processes, three times."""
        for _ in range(3):
            with psycopg.connect(self._server.url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND random() < 0.5"
                )
            time.sleep(self._dice.uniform(0, 0.3))

    def _kill_worker_of(self, name: str) -> None:
        old = self._workers.pop(name)
        assert process.send_signal(old.pid, signal.SIGKILL, old.start_ticks)
        eventually(lambda: not leases.is_held(self.crew.agent(name).lease), f"the end of {name}", _WAIT)
        self._resume(name, old.run)

    def _freeze_a_host(self) -> None:
        """Stop all processes of a host until its agents run on the other one, and let them go on then."""
        frozen = self._dice.choice(["build1", "build2"])
        host = self._there.running[frozen]
        stopped = _stop_all(host.pid)
        try:
            here = [name for name, worker in self._workers.items() if worker.pid in stopped]
            eventually(lambda: not hosts.is_up(self.crew.directory, frozen), f"the end of {frozen}'s lease", _WAIT)
            for name in here:
                old = self._workers.pop(name)
                eventually(lambda name=name: not leases.is_held(self.crew.agent(name).lease), f"{name}'s lease", _WAIT)  # type: ignore[misc]
                self._resume(name, old.run)
        finally:
            for pid in stopped:
                # Those that lost their lease were killed by now.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        eventually(lambda: hosts.is_up(self.crew.directory, frozen), f"{frozen} being up again", _WAIT)

    def _resume(self, name: str, run: int) -> None:
        """Resume an agent whose worker is gone, and wait for its next run."""

        def is_finalized() -> bool:
            record = self.crew.agent(name).exit.load()
            return record is not None and record.run >= run and record.buried

        eventually(is_finalized, f"the record of {name}'s end", _WAIT)
        hire.resume(self.crew.team, name)

    def summary(self) -> str:
        """Return what failed, and how many messages survived it."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.faults.most_common())
        return (
            f"{self.faults.total()} faults ({kinds}), {self.acknowledged} messages, "
            f"{self.checker.requests} requests checked"
        )


def _stop_all(pid: int) -> set[int]:
    """Stop a process and all below it, also those that it starts meanwhile."""
    stopped: set[int] = set()
    while found := {pid, *process.descendants(pid)} - stopped:
        for each in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        stopped |= found
    return stopped
