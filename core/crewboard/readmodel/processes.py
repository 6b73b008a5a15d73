"""CPU and memory of workers, with everything that they started."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import psutil

from crewboard.linux import process
from crewboard.readmodel.process_tree import ProcessNode, process_tree
from crewboard.records import Status, Supervisor
from crewboard.store import leases
from crewboard.store.layout import AgentDirectory


@dataclass(frozen=True)
class Usage:
    """What a worker and its children use: CPU in percent of one core, resident memory in bytes."""

    cpu_percent: float
    rss_bytes: int
    children: int = 0


@dataclass(frozen=True)
class _Below:
    """What a worker's children used as its status was this: one that rests starts and ends none."""

    status: Status
    cpu_percent: float
    rss_bytes: int
    children: int

    def fits(self, status: Status) -> bool:
        """Whether it holds still."""
        was = self.status
        return (was.pid, was.state, was.since) == (status.pid, status.state, status.since)


class Probe(Protocol):
    """How a reader learns what only the kernel knows; tests and pictures give a frozen one."""

    def boot_id(self) -> str:
        """Which boot of the machine this is."""

    def is_held(self, agent: AgentDirectory) -> bool:
        """Whether a worker holds the agent's lease."""

    def lives(self, worker: Status) -> bool:
        """Whether the process that wrote this status is there; true where that cannot be known."""

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds the lease at `path`."""

    def supervisor(self, path: Path) -> Supervisor | None:
        """Who holds the supervisor's lease at `path`."""

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:
        """What the living workers use, by agent."""

    def family(self, pid: int) -> tuple[ProcessNode, ...]:
        """A worker and what it started, as a tree."""


class KernelProbe:
    """The probe of a running machine. CPU is measured between two calls, the first since the process began."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], psutil.Process] = {}
        self._resting: dict[str, _Below] = {}

    def boot_id(self) -> str:
        """Which boot of the machine this is."""
        return process.boot_id()

    def is_held(self, agent: AgentDirectory) -> bool:
        """Whether a worker holds the agent's lease."""
        return leases.is_held(agent.lease)

    def lives(self, worker: Status) -> bool:
        """Whether the process that wrote this status is there."""
        if not worker.start_ticks or worker.boot_id != process.boot_id():
            return True
        return process.start_ticks(worker.pid) == worker.start_ticks

    def is_locked(self, path: Path) -> bool:
        """Whether somebody holds the lease at `path`."""
        return leases.is_held(path)

    def supervisor(self, path: Path) -> Supervisor | None:
        """Who holds the supervisor's lease at `path`."""
        return leases.holder(path, Supervisor)

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:
        """What the living workers and their children use, by agent."""
        self._resting = {n: found for n, found in self._resting.items() if n in workers and found.fits(workers[n])}
        parents = process.parents() if workers.keys() - self._resting.keys() else {}
        seen: set[tuple[int, int]] = set()
        measured = {}
        for name, status in workers.items():
            below = self._resting.get(name) or self._look_below(status, parents, seen)
            if status.state != "working":
                self._resting[name] = replace(below, cpu_percent=0)
            if worker := self._read(status.pid, seen):
                cpu, rss = worker
                measured[name] = Usage(round(cpu + below.cpu_percent, 1), rss + below.rss_bytes, below.children)
        self._known = {key: known for key, known in self._known.items() if key in seen}
        return measured

    def _look_below(self, status: Status, parents: dict[int, int], seen: set[tuple[int, int]]) -> _Below:
        pids = process.descendants(status.pid, parents)
        readings = [reading for pid in pids if (reading := self._read(pid, seen))]
        cpu, rss = (sum(values) for values in zip((0.0, 0), *readings, strict=True))
        return _Below(status, cpu, rss, len(readings))

    def family(self, pid: int) -> tuple[ProcessNode, ...]:
        """A worker and what it started, as a tree."""
        return process_tree(pid)

    def _read(self, pid: int, seen: set[tuple[int, int]]) -> tuple[float, int] | None:
        key = (pid, process.start_ticks(pid))
        seen.add(key)
        try:
            if key in self._known:
                known = self._known[key]
                return known.cpu_percent(), known.memory_info().rss
            known = self._known[key] = psutil.Process(pid)
            known.cpu_percent()
            return _since_start(known), known.memory_info().rss
        except psutil.Error:
            return None


def _since_start(known: psutil.Process) -> float:
    """CPU in percent of one core over the whole life of a process."""
    import time  # process ages are measured against the real clock, never an injected one

    times = known.cpu_times()
    age = max(time.time() - known.create_time(), 0.01)
    return float(100 * (times.user + times.system) / age)


class NoUsageProbe(KernelProbe):
    """A probe for one quick look: nobody is measured, which is what takes the time."""

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:  # noqa: ARG002
        """Nothing is known of what anybody uses."""
        return {}
