"""Starts, signals and reaps workers as child processes, and limits their memory where the kernel does that."""

import contextlib
import hashlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crewboard.linux import process
from crewboard.store import files
from crewboard.store.layout import AgentDirectory, TeamDirectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ref:
    """A process: its pid, and its start in clock ticks since boot."""

    pid: int
    ticks: int


@dataclass(frozen=True)
class Ended:
    """The end of a process: an exit code or a signal; neither if that is unknown."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_status(cls, status: int) -> "Ended":
        """Read the status that `wait(2)` gives."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))


class PopenLauncher:
    """A launcher that starts each process as a new interpreter in a session of its own."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes] | None] = {}
        """Known children by pid. None for a child that was not started through `Popen`."""

    def start_worker(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref:
        """Start the agent's worker as a new interpreter. Its output goes to `worker.log`."""
        with open(agent.log, "ab", opener=files.open_private) as log:
            return self.start(["crewboard.worker", str(agent.path)], environment, log.fileno())

    def start(
        self, module: list[str], environment: Mapping[str, str], log: int, stdin: int = subprocess.DEVNULL
    ) -> Ref:
        """Start `python -I -m` with `module` and its arguments. Its output goes to the descriptor `log`."""
        return self.run([sys.executable, "-I", "-m", *module], environment, log, stdin)

    def run(self, command: list[str], environment: Mapping[str, str], log: int, stdin: int) -> Ref:
        """Start a program with its arguments. Its output goes to the descriptor `log`.

        Raises:
            OSError: It cannot be started.
        """
        child = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        )
        self._children[child.pid] = child
        return Ref(child.pid, process.start_ticks(child.pid))

    def adopt(self, pid: int) -> Ref:
        """Register a process that is, or is about to become, a child of this one."""
        self._children[pid] = None
        return Ref(pid, process.start_ticks(pid))

    @staticmethod
    def signal(ref: Ref, number: int, *, tree: bool = False) -> None:
        """Send a signal to a worker and, with `tree`, to all its descendants."""
        below = process.descendants(ref.pid) if tree else []
        process.send_signal(ref.pid, number, ref.ticks)
        for pid in below:
            process.send_signal(pid, number)

    def reap(self) -> dict[int, Ended]:
        """Return how children ended since the last call, by pid. Kill the processes that they left behind."""
        ended = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._children:
                if (child := self._children.pop(pid)) is not None:
                    # Else Popen would wait for a process that is reaped already.
                    child.returncode = status
                ended[pid] = Ended.from_status(status)
        if ended:
            self._kill_orphans()
        return ended

    def _kill_orphans(self) -> None:
        """Kill the unknown children of this process. As a subreaper, it inherits them only from ended children."""
        me = os.getpid()
        parents = process.parents()
        for pid, parent in parents.items():
            if parent == me and pid not in self._children:
                for orphan in [pid, *process.descendants(pid, parents)]:
                    process.send_signal(orphan, signal.SIGKILL)


def kill_marked(marks: Sequence[str]) -> None:
    """Kill each process with one of `marks` in its environment: processes of workers that were not inherited here."""
    needles = [mark.encode() for mark in marks]
    for pid in process.parents():
        with contextlib.suppress(OSError):
            environment = process.environment(pid)
            if any(needle in environment for needle in needles):
                process.send_signal(pid, signal.SIGKILL)


class MemoryGroups:
    """The cgroups that limit the memory of a team's workers, one for each run that began with a limit.

    Without a delegated cgroup, and if the kernel refuses anything, there is none; then the supervisor watches instead.
    """

    def __init__(self, team: TeamDirectory) -> None:
        self._parent = process.find_memory_cgroup()
        digest = hashlib.sha256(os.fsencode(team.path)).hexdigest()[:12]
        self._prefix = f"{process.MEMORY_CGROUP_PREFIX}{digest}-"
        self._groups: dict[tuple[str, int], Path] = {}
        self._limits: dict[tuple[str, int], int | None] = {}
        self._exceeded: set[tuple[str, int]] = set()
        # Those of an earlier supervisor, so that they are removed too.
        for group in self._parent.glob(f"{self._prefix}*") if self._parent is not None else ():
            name, _, run = group.name.removeprefix(self._prefix).rpartition("-")
            if run.isdecimal():
                self._groups[name, int(run)] = group

    def enclose(self, name: str, run: int, pid: int, limit: int) -> None:
        """Put a new worker into a cgroup with a memory limit, if the kernel lets us."""
        if self._parent is None:
            return
        group = self._parent / f"{self._prefix}{name}-{run}"
        try:
            process.make_memory_cgroup(group, limit, pid)
        except OSError as error:
            log.warning("the memory of %s is watched, because its cgroup failed: %s", name, error)
            with contextlib.suppress(OSError):
                group.rmdir()
        else:
            self._groups[name, run] = group
            self._limits[name, run] = limit

    def adopt(self, name: str, run: int, pid: int) -> None:
        """Find the cgroup of a worker that an earlier supervisor started, perhaps below another cgroup."""
        group = process.cgroup(pid)
        if group is not None and group.name == f"{self._prefix}{name}-{run}":
            self._groups[name, run] = group

    def set_limit(self, name: str, run: int, limit: int | None) -> bool:
        """Set the limit of a run to today's; return False if no cgroup limits this run."""
        key = (name, run)
        if key not in self._groups:
            return False
        # Each write above the limit makes the kernel look for processes to kill.
        if key not in self._limits or self._limits[key] != limit:
            try:
                process.set_memory_limit(self._groups[key], limit)
            except OSError:
                return False
            self._limits[key] = limit
        return True

    def exceeded(self, name: str, run: int) -> bool:
        """Return True if the kernel killed this run because it reached its limit."""
        self.sweep()
        return (name, run) in self._exceeded

    def sweep(self) -> None:
        """Remove the cgroups whose processes have all ended, and remember which of them reached their limit."""
        for key, group in list(self._groups.items()):
            if process.exceeded_memory(group):
                self._exceeded.add(key)
            # Refused while a process is in it.
            with contextlib.suppress(OSError):
                group.rmdir()
            if not group.exists():
                del self._groups[key]
                self._limits.pop(key, None)
