"""The processes of a team as the kernel knows them: leases, the tree below a worker, CPU and memory."""

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from crewboard import linux, store
from crewboard.records import Status, Supervisor
from crewboard.store import AgentDirectory

if TYPE_CHECKING:
    import psutil

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessNode:
    """One process of a tree; `depth` is 0 for the worker. CPU is the time it has used, in seconds."""

    pid: int
    depth: int
    command: str
    cpu_seconds: float
    rss_bytes: int


@dataclass(frozen=True)
class Usage:
    """The resources of a worker and its descendants: CPU in percent of one core, resident memory in bytes."""

    cpu_percent: float
    rss_bytes: int
    children: int = 0


@dataclass(frozen=True)
class _ChildUsage:
    """The resources of a worker's descendants while it had this status. A worker at rest starts and ends none."""

    status: Status
    cpu_percent: float
    rss_bytes: int
    children: int

    def is_current(self, status: Status) -> bool:
        """Return True if the worker has been at rest since."""
        was = self.status
        return (was.pid, was.state, was.since) == (status.pid, status.state, status.since)


class Probe(Protocol):
    """A reader's questions to the kernel; tests and screenshots use a fixed one."""

    def boot_id(self) -> str:
        """Return the id of this boot of the machine."""

    def is_held(self, agent: AgentDirectory) -> bool:
        """Return True if a worker holds the agent's lease."""

    def lives(self, worker: Status) -> bool:
        """Return True if the process that wrote this status runs, or if that cannot be known."""

    def is_stopped(self, worker: Status) -> bool:
        """Return True if a signal stopped the process that wrote this status, so that it does nothing."""

    def is_locked(self, path: Path) -> bool:
        """Return True if a process holds the lease at `path`."""

    def supervisor(self, path: Path) -> Supervisor | None:
        """Return the holder of the supervisor's lease at `path`."""

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:
        """Return what the running workers use, by agent."""

    def process_tree(self, pid: int) -> tuple[ProcessNode, ...]:
        """Return a worker and its descendants, each below its parent."""


class KernelProbe:
    """The probe of this machine. CPU is measured between two calls; at the first, since the process started."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], psutil.Process] = {}
        self._resting: dict[str, _ChildUsage] = {}

    def boot_id(self) -> str:
        """Return the id of this boot of the machine."""
        return linux.process.boot_id()

    def is_held(self, agent: AgentDirectory) -> bool:
        """Return True if a worker holds the agent's lease."""
        return store.leases.is_held(agent.lease)

    def lives(self, worker: Status) -> bool:
        """Return True if the process that wrote this status runs, or if that cannot be known."""
        if not worker.start_ticks or worker.boot_id != linux.process.boot_id():
            return True
        return linux.process.start_ticks(worker.pid) == worker.start_ticks

    def is_stopped(self, worker: Status) -> bool:
        """Return True if a signal stopped the process that wrote this status, so that it does nothing."""
        return linux.process.is_stopped(worker.pid) and self.lives(worker)

    def is_locked(self, path: Path) -> bool:
        """Return True if a process holds the lease at `path`."""
        return store.leases.is_held(path)

    def supervisor(self, path: Path) -> Supervisor | None:
        """Return the holder of the supervisor's lease at `path`."""
        return store.leases.holder(path, Supervisor)

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:
        """Return what the running workers and their descendants use, by agent."""
        self._resting = {
            n: found for n, found in self._resting.items() if n in workers and found.is_current(workers[n])
        }
        parents = linux.process.parents() if workers.keys() - self._resting.keys() else {}
        seen: set[tuple[int, int]] = set()
        measured = {}
        for name, status in workers.items():
            below = self._resting.get(name) or self._measure_children(status, parents, seen)
            if status.state != "working":
                self._resting[name] = replace(below, cpu_percent=0)
            if worker := self._read(status.pid, seen):
                cpu, rss = worker
                measured[name] = Usage(round(cpu + below.cpu_percent, 1), rss + below.rss_bytes, below.children)
        self._known = {key: known for key, known in self._known.items() if key in seen}
        return measured

    def _measure_children(self, status: Status, parents: dict[int, int], seen: set[tuple[int, int]]) -> _ChildUsage:
        pids = linux.process.descendants(status.pid, parents)
        readings = [reading for pid in pids if (reading := self._read(pid, seen))]
        cpu, rss = (sum(values) for values in zip((0.0, 0), *readings, strict=True))
        return _ChildUsage(status, cpu, rss, len(readings))

    def process_tree(self, pid: int) -> tuple[ProcessNode, ...]:
        """Return a worker and its descendants, each below its parent."""
        return process_tree(pid)

    def _read(self, pid: int, seen: set[tuple[int, int]]) -> tuple[float, int] | None:
        import psutil

        key = (pid, linux.process.start_ticks(pid))
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


def _since_start(known: "psutil.Process") -> float:
    """Return the CPU in percent of one core since a process started."""
    # Processes age by the real clock, not by an injected one.
    import time

    times = known.cpu_times()
    age = max(time.time() - known.create_time(), 0.01)
    return float(100 * (times.user + times.system) / age)


class NoUsageProbe(KernelProbe):
    """A probe that measures no usage, because that takes time."""

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:  # noqa: ARG002
        """Return no usage."""
        return {}


def process_tree(pid: int) -> tuple[ProcessNode, ...]:
    """Return the process `pid` and its descendants, each below its parent; nothing if it is gone."""
    import psutil

    children: dict[int, list[int]] = {}
    for child, parent in linux.process.parents().items():
        children.setdefault(parent, []).append(child)
    found: list[ProcessNode] = []
    waiting = [(pid, 0)]
    while waiting:
        here, depth = waiting.pop()
        # A process may end after it was listed.
        with contextlib.suppress(psutil.Error):
            found.append(_node(here, depth))
            waiting += [(child, depth + 1) for child in sorted(children.get(here, []), reverse=True)]
    return tuple(found)


def _node(pid: int, depth: int) -> ProcessNode:
    import psutil

    seen = psutil.Process(pid)
    with seen.oneshot():
        program, *arguments = seen.cmdline() or [seen.name()]
        command = " ".join([os.path.basename(program), *arguments])  # noqa: PTH119  as written, not as a path of ours
        return ProcessNode(pid, depth, command, round(linux.process.cpu_ticks(pid) / _TICKS, 1), seen.memory_info().rss)
