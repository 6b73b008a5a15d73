"""Hosts of a team for tests: real `crewboard host` processes, each with a root of its own on this machine."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from crewboard.linux import process
from crewboard.store import hosts
from crewboard.store.layout import TeamDirectory
from tests.crew import Crew, eventually

API_KEY = "a-key-of-the-hosts-that-no-record-has"


@dataclass
class Hosts:
    """The hosts of the team of a `crew`, which itself has none on its root."""

    crew: Crew
    folder: Path
    url: str
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(
        self, name: str, *arguments: str, slots: int = 8, root: str = "", wait: bool = True
    ) -> "subprocess.Popen[bytes]":
        """Start a host in the folder of its name, or in `root`, and wait until it is up."""
        place = root or name
        (self.folder / place).mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "crewboard_tui.cli", "host", "--store", self.url, "--name", name,
            "--slots", str(slots), *arguments,
        ]  # fmt: skip
        environment = {**self.crew.environment, "ANTHROPIC_API_KEY": API_KEY}
        with (self.folder / f"{place}.log").open("ab") as log:
            started = self.running[place] = subprocess.Popen(
                command, cwd=self.folder / place, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        if wait:
            eventually(lambda: started.poll() is not None or self.is_up(name, started.pid), f"the host {name}")
            assert started.poll() is None, self.log(name)
        return started

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

    def drain(self, name: str, number: int = signal.SIGTERM) -> int:
        """Ask a host to end, and return its exit code."""
        host = self.running.pop(name)
        host.send_signal(number)
        return host.wait(60)

    def end(self) -> None:
        """End all hosts at once."""
        for name in list(self.running):
            self.kill(name)
