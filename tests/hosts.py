"""The hosts of a team as tests play them that need no processes: their records and leases."""

from collections.abc import Iterator
from contextlib import contextmanager

from crewboard.records.processes import Host
from crewboard.store import hosts, leases
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process


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


def claim(team: TeamDirectory, host: str, name: str) -> None:
    """Let a host claim the run of an agent; also on a team in files, whose store claims none."""
    team.store.move(team.starts_queue.record(name).name, team.host(host).claims.record(name).name)
