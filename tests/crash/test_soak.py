"""Soak test: thirty-two workers for ten minutes; memory, descriptors, threads and files do not grow."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest

from crewboard.readmodel.reader import TeamReader
from crewboard.store import mailbox
from tests.crew import Crew, eventually

WORKERS = 32
SECONDS = float(os.environ.get("CREWBOARD_SOAK", "600"))
PAUSE = 8.0
"""Seconds between two rounds of mail to all agents."""

MB = 1024 * 1024


@dataclass(frozen=True)
class Sample:
    """Resource use at one time: of all processes of the team, and of this one, which reads it as a dashboard does."""

    memory: int
    largest: int
    descriptors: int
    threads: int
    processes: int
    own_descriptors: int
    own_memory: int
    files: int
    """Bytes of all files except logs."""
    odd_files: int
    """Number of temporary files and copies of damaged files."""


class Soak:
    """A team that gets mail, with its resource use."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.names = [f"w{number}" for number in range(WORKERS)]
        self._reader = TeamReader(crew.directory)
        self._me = psutil.Process()
        self.rounds = 0

    def begin(self) -> None:
        for name in self.names:
            self.crew.hire(name, "explore", "say hello")

    def round(self) -> None:
        """Send mail to all agents, and wait until all have read it and are idle."""
        self.rounds += 1
        for name in self.names:
            text = "list the files" if self.rounds % 5 == 0 else "say fine"
            mailbox.send(self.crew.directory, mailbox.compose("operator", name, "message", text))
        eventually(self._all_idle, f"the end of round {self.rounds}", 120)
        self.crew.model.requests.clear()

    def _all_idle(self) -> bool:
        agents = self._reader.read().agents
        assert all(agent.alive for agent in agents)
        return all(agent.state == "idle" and agent.unread == 0 for agent in agents)

    def measure(self) -> Sample:
        """Measure while all are idle: a process, or a temporary file, may be gone before it was looked at."""

        def look() -> Sample | None:
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                return self._look()
            return None

        return eventually(look, "a measurement")

    def _look(self) -> Sample:
        processes = [psutil.Process(self.crew.supervisor_pid())]
        processes += [process for process in processes[0].children(recursive=True) if process.is_running()]
        readings = [(process.memory_info().rss, process.num_fds(), process.num_threads()) for process in processes]
        sizes = {path: path.stat().st_size for path in self.crew.directory.path.rglob("*") if path.is_file()}
        logs = (".jsonl", ".md", ".log")
        return Sample(
            memory=sum(rss for rss, _, _ in readings),
            largest=max(rss for rss, _, _ in readings),
            descriptors=sum(fds for _, fds, _ in readings),
            threads=sum(threads for _, _, threads in readings),
            processes=len(processes),
            own_descriptors=self._me.num_fds(),
            own_memory=self._me.memory_info().rss,
            files=sum(size for path, size in sizes.items() if path.suffix not in logs),
            odd_files=sum(path.suffix == ".tmp" or ".damaged-" in path.name for path in sizes),
        )


def middle(samples: list[Sample], what: str) -> float:
    return float(statistics.median(getattr(sample, what) for sample in samples))


@pytest.mark.files_only("measures files")
@pytest.mark.long
@pytest.mark.timeout(SECONDS + 600)
def test_what_a_team_uses_stays_level(crew_on: Callable[..., Crew]) -> None:
    soak = Soak(crew_on(window=50_000_000))
    soak.begin()
    samples: list[Sample] = []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        began = time.monotonic()
        soak.round()
        samples.append(soak.measure())
        time.sleep(max(0.0, PAUSE - (time.monotonic() - began)))
    third = len(samples) // 3
    early, late = samples[third : 2 * third], samples[-third:]
    assert third >= 3
    growth = {what: middle(late, what) - middle(early, what) for what in Sample.__dataclass_fields__}
    print({what: (middle(early, what), round(change)) for what, change in growth.items()}, soak.rounds)
    assert growth["processes"] == 0
    assert abs(growth["descriptors"]) <= WORKERS // 4
    assert abs(growth["threads"]) <= WORKERS // 4
    assert abs(growth["own_descriptors"]) <= 4
    assert growth["memory"] < middle(early, "memory") * 0.1
    assert growth["largest"] < 8 * MB
    assert growth["own_memory"] < 32 * MB
    assert growth["files"] < 64 * 1024
    assert middle(late, "odd_files") == 0
