"""The processes of a team, as the kernel knows them: leases, the tree below a worker, CPU and memory."""

import os
import time

from msgspec import Struct
from msgspec.structs import replace

from crewboard.protocol.prefork import SERVER_MODULE
from crewboard.records.agents import Status
from crewboard.records.processes import Host, Supervisor
from crewboard.store import leases
from crewboard.store.interface import Key
from crewboard.unix import process

_ProcessKey = tuple[int, int]
"""The pid of a process, and when it started, in clock ticks since boot."""

_PIDS_LAST = 5.0
"""Seconds within which the kernel gives no pid to another process, because it uses all other pids first."""


class ProcessNode(Struct, frozen=True):
    """One process of a tree. `depth` is 0 for the worker; `cpu_seconds` is the CPU time that it has used."""

    pid: int
    depth: int
    command: str
    cpu_seconds: float
    rss_bytes: int


class Usage(Struct, frozen=True):
    """The resources of a worker and its descendants: CPU in percent of one core, resident memory in bytes.

    `private_bytes` leaves out memory that the worker shares with others; None until the worker has reported it.
    """

    cpu_percent: float
    rss_bytes: int
    children: int = 0
    private_bytes: int | None = None

    @property
    def memory(self) -> int:
        """Return the memory that the agent costs, in bytes.

        Until the worker has reported its private memory, this includes memory that it shares with other processes.
        """
        return self.rss_bytes if self.private_bytes is None else self.private_bytes


class _ChildUsage(Struct, frozen=True):
    """The resources of a worker's descendants when it had this status. An idle worker starts and ends no processes."""

    status: Status
    cpu_percent: float
    rss_bytes: int
    children: int

    def is_current(self, status: Status) -> bool:
        """Return True if the worker has been in the same state since."""
        was = self.status
        return (was.pid, was.state, was.since) == (status.pid, status.state, status.since)


class KernelProbe:
    """A reader's questions to the kernel, in one object, so that tests and screenshots can answer them.

    CPU is measured between two calls; at the first call, since the process started.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[_ProcessKey, tuple[float, float]]] = {}
        """The measured processes of each agent: the CPU seconds that each had used, and when (monotonic clock)."""
        self._resting: dict[str, _ChildUsage] = {}
        self._server: process.Measurement | None = None
        """The last measurement of the prefork server; None if there is none."""
        self._parents: dict[int, int] = {}
        self._listed_at = float("-inf")
        """When the parents of all processes were last looked at (monotonic clock)."""

    def boot_id(self) -> str:
        """Return the id of the present boot of this machine."""
        return process.boot_id()

    def is_held(self, lease: Key) -> bool:
        """Return True if a process holds a lease."""
        return leases.is_held(lease)

    def lives(self, worker: Status) -> bool:
        """Return True if the process that wrote this status is alive, or if that cannot be known."""
        if not worker.start_ticks or worker.boot_id != process.boot_id():
            return True
        return process.start_ticks(worker.pid) == worker.start_ticks

    def is_stopped(self, worker: Status) -> bool:
        """Return True if a signal has stopped the process that wrote this status (SIGSTOP)."""
        return process.is_stopped(worker.pid) and self.lives(worker)

    def sees(self, host: Host) -> bool:
        """Return True if the processes of a host of the team can be looked at from here.

        The boot alone does not tell: two containers on one machine have the same boot, and different processes for one
        pid.
        """
        same_boot = host.boot_id == process.boot_id()
        return same_boot and host.pid > 0 and process.start_ticks(host.pid) == host.start_ticks

    def supervisor(self, lease: Key) -> Supervisor | None:
        """Return the holder of the supervisor's lease; None if there is none."""
        return leases.holder(lease, Supervisor)

    def measure(self, workers: dict[str, Status]) -> dict[str, Usage]:
        """Return what running workers and their descendants use, by agent. `workers` are their statuses by agent."""
        outdated = [
            name for name, found in self._resting.items() if name in workers and not found.is_current(workers[name])
        ]
        for name in outdated:
            del self._resting[name]
        children: dict[int, list[int]] = {}
        if workers.keys() - self._resting.keys():
            children = self._list_children()
        measured = {}
        for name, status in workers.items():
            before, self._known[name] = self._known.get(name, {}), {}
            below = self._resting.get(name)
            if below is None:
                pids = process.below(status.pid, children)
                readings = [reading for pid in pids if (reading := self._read(name, pid, before))]
                cpu, rss = (sum(values) for values in zip((0.0, 0), *readings, strict=True))
                below = _ChildUsage(status, cpu, rss, len(readings))
            if status.state != "working":
                self._resting[name] = replace(below, cpu_percent=0)
            if worker := self._read(name, status.pid, before):
                cpu, rss = worker
                private = status.private_bytes + below.rss_bytes if status.private_bytes else None
                percent = round(cpu + below.cpu_percent, 1)
                measured[name] = Usage(percent, rss + below.rss_bytes, below.children, private)
        return measured

    def shared_bytes(self, supervisor: int) -> int | None:
        """Return the bytes of memory that workers share: those of the supervisor's prefork server; None if it has none.

        `supervisor` is the pid of the supervisor.
        """
        known = self._server
        self._server = process.measure(known.pid) if known is not None else None
        if known is None or self._server is None or self._server.start_ticks != known.start_ticks:
            children = self._list_children().get(supervisor, [])
            servers = (process.measure(pid) for pid in children if SERVER_MODULE in process.arguments(pid))
            # A process that is about to become a worker is like the server, which is older.
            found = [server for server in servers if server is not None]
            self._server = min(found, key=lambda server: server.start_ticks, default=None)
        return self._server.rss_bytes if self._server is not None else None

    def process_tree(self, pid: int) -> tuple[ProcessNode, ...]:
        """Return the process `pid` and its descendants, each below its parent; empty if it is gone."""
        return process_tree(pid)

    def _list_children(self) -> dict[int, list[int]]:
        """Return the children of each process by pid. Processes that were just listed are not looked at again."""
        now = time.monotonic()
        self._parents = process.parents(self._parents if now - self._listed_at < _PIDS_LAST else None)
        self._listed_at = now
        return process.children_of(self._parents)

    def _read(self, name: str, pid: int, before: dict[_ProcessKey, tuple[float, float]]) -> tuple[float, int] | None:
        """Return CPU in percent and resident bytes of a process of the agent `name`; None if it is gone.

        CPU is since the last measurement, if that is in `before`.
        """
        found = process.measure(pid)
        if found is None:
            return None
        key, now = (pid, found.start_ticks), time.monotonic()
        self._known[name][key] = (found.cpu_seconds, now)
        if key in before:
            used, at = before[key]
            used, seconds = found.cpu_seconds - used, now - at
        else:
            # Processes age by the real clock, not by an injected one.
            used, seconds = found.cpu_seconds, time.time() - process.started_at(found.start_ticks)
        return round(100 * used / max(seconds, 0.01), 1), found.rss_bytes


def process_tree(pid: int) -> tuple[ProcessNode, ...]:
    """Return the process `pid` and its descendants, each below its parent; empty if it is gone."""
    children = process.children_of(process.parents())
    found: list[ProcessNode] = []
    waiting = [(pid, 0)]
    while waiting:
        here, depth = waiting.pop()
        used, command = process.measure(here), process.arguments(here)
        # A process may end after it was listed.
        if used is None or not command:
            continue
        program, *arguments = command
        name = os.path.basename(program)  # noqa: PTH119  as written, not as a path of ours
        shown = " ".join([name, *arguments])
        if name in ("bwrap", "bash"):
            # Imported here because readers that show no processes do not need it.
            from crewboard.sandbox.sandbox import command_of, without_sandbox

            # Of a command in the sandbox, only the command itself.
            if (own := command_of(command)) is not None:
                shown = f"{name} {own}" if name == "bwrap" else own
            elif name == "bwrap":
                shown = " ".join([name, *without_sandbox(arguments)])
        found.append(ProcessNode(here, depth, shown, round(used.cpu_seconds, 1), used.rss_bytes))
        waiting += [(child, depth + 1) for child in sorted(children.get(here, []), reverse=True)]
    return tuple(found)
