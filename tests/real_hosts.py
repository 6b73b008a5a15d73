"""Hosts of a team for tests: real processes, each with a root of its own on this machine."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from crewboard.commands import hosts as commands_hosts
from crewboard.protocol import supervisor_client
from crewboard.records.processes import Host
from crewboard.store import hosts
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from tests.crew import WAIT_TIMEOUT, Crew, eventually

API_KEY = "a-key-of-the-hosts-that-no-record-has"


class Forked:
    """A host that was forked by `tests.preloaded`, with the methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ticks = process.start_ticks(pid)

    def poll(self) -> int | None:
        """Return None while it runs. How it ended is not known."""
        # One that begins again in a thread looks until that as if it ended, but for that thread.
        threads = self._count_threads()
        ticks = process.start_ticks(self.pid)
        if threads > 1 and ticks == 0:
            return None
        return None if ticks == self._ticks and (threads > 1 or not process.is_ending(self.pid)) else 0

    def _count_threads(self) -> int:
        with contextlib.suppress(OSError):
            return sum(1 for _ in Path(f"/proc/{self.pid}/task").iterdir())
        return 0

    def wait(self, timeout: float = WAIT_TIMEOUT) -> int:
        """Wait until it has ended."""
        eventually(lambda: self.poll() is not None, f"the end of process {self.pid}", timeout)
        return 0

    def send_signal(self, number: int) -> None:
        process.send_signal(self.pid, number, self._ticks)


Process = subprocess.Popen[bytes] | Forked


@dataclass
class Hosts:
    """The hosts of the team of a `crew`, which itself has none on its root."""

    crew: Crew
    folder: Path
    url: str
    running: dict[str, Process] = field(default_factory=dict)

    def start(self, name: str, *labels: str, slots: int = 8) -> Process:
        """Fork a host in the folder of its name, and wait until it is up."""
        (self.folder / name).mkdir(exist_ok=True)
        team = commands_hosts.join(self.folder / name, self.crew.directory.path.name, self.url)
        before = hosts.load(self.crew.directory, name)
        with (self.folder / f"{name}.log").open("ab") as log:
            given = ("--host", name, str(slots), *labels)
            supervisor_client._spawn(team, self._environment, log.fileno(), *given)

        def look() -> Host | None:
            record = hosts.load(self.crew.directory, name)
            is_new = record is not None and (before is None or record.since != before.since)
            return record if is_new and hosts.is_up(self.crew.directory, name) else None

        started = self.running[name] = Forked(eventually(look, f"the host {name}").pid)
        return started

    def command(self, name: str, *arguments: str, root: str = "") -> "subprocess.Popen[bytes]":
        """Start a host as users do, in the folder of its name or in `root`, and do not wait for it."""
        place = root or name
        (self.folder / place).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "crewboard_tui.cli", "host", "--store", self.url, "--name", name, *arguments]
        with (self.folder / f"{place}.log").open("ab") as log:
            started = self.running[place] = subprocess.Popen(
                command, cwd=self.folder / place, env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        return started

    @property
    def _environment(self) -> dict[str, str]:
        return {**self.crew.environment, "ANTHROPIC_API_KEY": API_KEY}

    def is_up(self, name: str, pid: int) -> bool:
        record = hosts.load(self.crew.directory, name)
        return record is not None and record.pid == pid and hosts.is_up(self.crew.directory, name)

    def log(self, name: str) -> str:
        """Return what a host printed."""
        return (self.folder / f"{name}.log").read_text()

    def directory(self, name: str) -> TeamDirectory:
        """Return the team as it is seen from the root of a host."""
        return TeamDirectory(self.folder / name / ".crewboard" / self.crew.directory.path.name)

    def kill(self, name: str) -> None:
        """Kill every process of a host at once, as if its machine had lost power."""
        host = self.running.pop(name)
        if host.poll() is not None:
            return
        below = process.descendants(host.pid)
        os.kill(host.pid, signal.SIGSTOP)
        for pid in [*below, *process.descendants(host.pid), host.pid]:
            process.send_signal(pid, signal.SIGKILL)
        host.wait()
        # bubblewrap that is killed while it starts leaves a process that waits for it for ever.
        for pid, ticks in self._left(name):
            process.send_signal(pid, signal.SIGKILL, ticks)

    def _left(self, name: str) -> list[tuple[int, int]]:
        """Return the processes whose command line names the folder of a host, with their start times."""
        root = f"{self.folder / name}/"
        started = [(pid, process.start_ticks(pid)) for pid in process.parents()]
        return [each for each in started if any(root in argument for argument in process.arguments(each[0]))]

    def lose(self, *leases: str) -> None:
        """Let the time of leases be over for their holders, which else takes a few seconds."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            for lease in leases:
                folder, _, name = lease.rpartition("/")
                query = "UPDATE crewboard.leases SET until = '-infinity' WHERE folder = %s AND name = %s"
                connection.execute(query, (folder, name))

    def drain(self, name: str, number: int = signal.SIGTERM) -> int:
        """Ask a host to end, and return its exit code."""
        host = self.running.pop(name)
        host.send_signal(number)
        return host.wait(60)

    def end(self) -> None:
        """End all hosts at once."""
        for name in list(self.running):
            self.kill(name)
