"""The hosts of a team in PostgreSQL, and the queue of runs that they claim.

A host is the supervisor of one machine that runs agents of the team (`crewboard host`). It holds the lease of its
folder while it lives. A run that is wanted is a record in the queue; a host claims it by moving it into its own folder,
and removes it once the run has begun.
"""

import time
from collections.abc import Collection

from msgspec import Struct

from crewboard.records import Host, WantedRun
from crewboard.store import json_records, leases
from crewboard.store.interface import Key
from crewboard.store.layout import TeamDirectory

HOST_LABEL = "host:"
"""Before the name of a host, this makes the label that only that host has."""


class Clock(Struct, frozen=True):
    """How many seconds the clock of this machine is ahead of the store's, and how long the store took to answer.

    Half of that may be an error of the first.
    """

    ahead: float
    round_trip: float


def compare_clocks(team: TeamDirectory, times: int = 3) -> Clock:
    """Ask the store for its time, and return the most certain of several answers.

    Raises:
        StorageError: The store failed.
    """
    return min((_compare_clocks(team) for _ in range(times)), key=lambda clock: clock.round_trip)


def _compare_clocks(team: TeamDirectory) -> Clock:
    began, began_at = time.monotonic(), time.time()
    there = team.store.now()
    took = time.monotonic() - began
    return Clock(began_at + took / 2 - there, took)


def exist(team: TeamDirectory) -> bool:
    """Return True if a team has or had hosts: then no supervisor is started for a command.

    Raises:
        StorageError: The store failed.
    """
    return bool(team.hosts.names())


def lease(team: TeamDirectory, name: str) -> Key:
    """Return the lease that a host holds while it lives."""
    return team.host(name).below("lease")


def load(team: TeamDirectory, name: str) -> Host | None:
    """Return what a host says of itself; None if there is none, or its record is damaged."""
    return json_records.load_or_none(team.host(name).below("host.json"), Host)


def load_all(team: TeamDirectory) -> list[Host]:
    """Return every host, also those that ended, by name."""
    found = (load(team, name) for name in sorted(team.hosts.names()))
    return [host for host in found if host is not None]


def save(team: TeamDirectory, host: Host) -> None:
    """Write what a host says of itself.

    Raises:
        LostLeaseError: This process may not write any more.
        StorageError: The write failed.
    """
    json_records.save(team.host(host.name).below("host.json"), host)


def is_up(team: TeamDirectory, name: str) -> bool:
    """Return True if a host is alive.

    Raises:
        StorageError: That is unknown.
    """
    return leases.is_held(lease(team, name))


def labels(host: Host) -> frozenset[str]:
    """Return all labels of a host, with the one that only it has."""
    return frozenset({*host.labels, HOST_LABEL + host.name})


def want(team: TeamDirectory, run: WantedRun) -> None:
    """Put a run into the queue, in place of an earlier one of the same agent.

    Raises:
        StorageError: The write failed.
    """
    json_records.save(team.starts_queue.below(f"{run.agent}.json"), run, durable=True)


def wanted(team: TeamDirectory) -> list[WantedRun]:
    """Return the runs that no host has claimed, the oldest first."""
    return _runs(team.starts_queue)


def claim(team: TeamDirectory, host: Host, most: int) -> None:
    """Claim up to `most` runs of the queue that a host can begin: they are in `claimed` then.

    Raises:
        LostLeaseError: The host lost its lease.
        StorageError: The store failed.
    """
    team.store.claim(team.starts_queue.name, _claims(team, host.name).name, labels(host), most)


def claimed(team: TeamDirectory, name: str) -> list[WantedRun]:
    """Return the runs that a host has claimed and not begun, the oldest first."""
    return _runs(_claims(team, name))


def begun(team: TeamDirectory, name: str, agent: str) -> None:
    """Remove a claim whose run began or is not wanted any more."""
    _claims(team, name).below(f"{agent}.json").remove()


def give_back(team: TeamDirectory, name: str) -> None:
    """Put what a host claimed and did not begin back into the queue, unless a later run is wanted."""
    for run in claimed(team, name):
        if not team.starts_queue.below(f"{run.agent}.json").exists():
            team.store.move(
                f"{_claims(team, name).name}/{run.agent}.json", f"{team.starts_queue.name}/{run.agent}.json"
            )
        else:
            begun(team, name, run.agent)


def make(team: TeamDirectory, name: str) -> None:
    """Create the folders of a host.

    Raises:
        StorageError: The write failed.
    """
    for folder in (team.hosts, team.starts_queue, team.host(name), _claims(team, name)):
        team.store.make_folder(folder.name)


def _claims(team: TeamDirectory, name: str) -> Key:
    return team.host(name).below("starts")


def _runs(folder: Key) -> list[WantedRun]:
    records = (json_records.load_or_none(folder.below(name), WantedRun) for name in folder.names())
    return sorted((run for run in records if run is not None), key=lambda run: (run.at, run.agent))


def needs_of(host: str | None, needs: Collection[str]) -> list[str]:
    """Return the labels that a host must have to run an agent that was hired with these options."""
    return sorted({*needs, *([HOST_LABEL + host] if host else [])})
