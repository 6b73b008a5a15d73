"""The hosts of a team, played by a test: their records and leases, and one that claims runs and starts workers."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from crewboard import env, store
from crewboard.linux import process
from crewboard.records import Host
from crewboard.store import hosts, leases
from crewboard.store.layout import TeamDirectory
from tests.crew import Crew


@contextmanager
def up(team: TeamDirectory, name: str, *labels: str, slots: int = 4) -> Iterator[Host]:
    """Hold the lease of a host that starts nothing. It stays known after this."""
    hosts.make(team, name)
    host = Host(name=name, slots=slots, labels=[*labels], boot_id=process.boot_id())
    held = leases.take(hosts.lease(team, name))
    assert held is not None
    hosts.save(team, host)
    try:
        yield host
    finally:
        leases.release(held)


@contextmanager
def working(crew: Crew, name: str, *labels: str) -> Iterator[Host]:
    """Play a host: claim what it may, start the workers, and kill those that are to be killed."""
    workers: dict[str, subprocess.Popen[bytes]] = {}
    ends = threading.Event()

    def serve(host: Host) -> None:
        while not ends.wait(0.05):
            hosts.claim(crew.directory, host, 1)
            for run in hosts.claimed(crew.directory, name):
                workers[run.agent] = _start(crew, run.agent, name)
                workers[f"{run.agent} {run.run}"] = workers[run.agent]
                hosts.begun(crew.directory, name, run.agent)
            for agent, worker in workers.items():
                spec = store.agents.spec(crew.agent(agent)) if " " not in agent else None
                if spec is not None and spec.want == "killed":
                    worker.kill()
                    worker.wait()
                    store.leases.free(crew.agent(agent).lease, worker.pid, _ticks.get(worker.pid, 0))

    with up(crew.directory, name, *labels) as host:
        thread = threading.Thread(target=serve, args=(host,))
        thread.start()
        try:
            yield host
        finally:
            ends.set()
            thread.join()
            for worker in workers.values():
                worker.kill()
                worker.wait()


_ticks: dict[int, int] = {}


def _start(crew: Crew, agent: str, host: str) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [sys.executable, "-I", "-m", "crewboard.worker", str(crew.agent(agent).path)],
        env={**crew.environment, env.HOST: host}, cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _ticks[worker.pid] = process.start_ticks(worker.pid)
    return worker
