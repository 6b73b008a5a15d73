"""How a worker comes to be and ends: the seam behind which another engine could stand."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from crewboard.linux import process
from crewboard.store import files
from crewboard.store.layout import AgentDirectory


@dataclass(frozen=True)
class Ref:
    """A process that a launcher knows: pid, and clock ticks since boot at its start."""

    pid: int
    ticks: int


@dataclass(frozen=True)
class Ended:
    """How a process ended: an exit code or a signal, neither when nobody could tell."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_status(cls, status: int) -> "Ended":
        """From the status that `wait(2)` gives."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))


class Launcher(Protocol):
    """Starts, signals and reaps workers."""

    def open(self, wake: Callable[[], None]) -> None:
        """Prepare; `wake` is called whenever a start that was put off should be tried again."""

    def close(self) -> None:
        """End what was prepared. Workers stay."""

    def launch(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref | None:
        """Start the agent's worker; None if that is put off until `wake` is called."""

    def start(self, module: list[str], environment: Mapping[str, str], log: int) -> Ref:
        """Start `python -I -m` with `module` and its arguments, its output into the descriptor `log`."""

    def signal(self, ref: Ref, number: int, *, tree: bool = False) -> None:
        """Signal a worker; with `tree`, everything that it started too."""

    def reap(self) -> dict[int, Ended]:
        """What has ended since the last call, by pid. Ends what the ended left behind."""


class PopenLauncher:
    """Workers as children of this process, each a new interpreter in a session of its own."""

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes] | None] = {}
        """Everything that is ours by right, as far as we started it through `Popen`."""

    def launch(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref:
        """Start the agent's worker, its output into `worker.log`."""
        with open(agent.log, "ab", opener=files.open_private) as log:
            return self.start(["crewboard.worker", str(agent.path)], environment, log.fileno())

    def start(
        self, module: list[str], environment: Mapping[str, str], log: int, stdin: int = subprocess.DEVNULL
    ) -> Ref:
        """Start `python -I -m` with `module` and its arguments, its output into the descriptor `log`."""
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", *module],
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
        """Take a process that fell to us, or is about to, for a child of ours."""
        self._children[pid] = None
        return Ref(pid, process.start_ticks(pid))

    def signal(self, ref: Ref, number: int, *, tree: bool = False) -> None:
        """Signal a worker; with `tree`, everything below it too."""
        below = process.descendants(ref.pid) if tree else []
        process.send_signal(ref.pid, number, ref.ticks)
        for pid in below:
            process.send_signal(pid, number)

    def reap(self) -> dict[int, Ended]:
        """What has ended since the last call, by pid; what fell to us by that is ended too."""
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
                    child.returncode = status  # Popen must not wait for it again
                ended[pid] = Ended.from_status(status)
        if ended:
            self._end_orphans()
        return ended

    def _end_orphans(self) -> None:
        """End what fell to us as subreaper: only the dead leave children behind here."""
        me = os.getpid()
        family = process.parents()
        for pid, parent in family.items():
            if parent == me and pid not in self._children:
                for orphan in [pid, *process.descendants(pid, family)]:
                    process.send_signal(orphan, signal.SIGKILL)


def end_marked(mark: str) -> None:
    """End every process that carries `mark` in its environment: what a worker left that was nobody's child here."""
    needle = mark.encode()
    for pid in process.parents():
        with contextlib.suppress(OSError):
            if needle in process.environment(pid):
                process.send_signal(pid, signal.SIGKILL)
