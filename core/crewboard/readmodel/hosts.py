"""The reader of a team's hosts: what each offers, which agents it runs, and which were lost with it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from crewboard.errors import StorageError
from crewboard.readmodel.processes import KernelProbe
from crewboard.readmodel.states import HostState, SeenHost
from crewboard.readmodel.team import AgentView, HostView
from crewboard.records.agents import Status
from crewboard.records.processes import HeldStarts, Host, Usage
from crewboard.store import hosts
from crewboard.store.interface import Key, Version
from crewboard.store.json_records import CachedFile
from crewboard.store.layout import TeamDirectory

FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which a host that is gone is no longer shown: some names are never used again."""


class HostReader:
    """A reader of the hosts of a team. For a team without hosts, it looks only for a folder that does not exist."""

    def __init__(self, team: TeamDirectory, probe: KernelProbe) -> None:
        self._team = team
        self._probe = probe
        self._folder: Version | None = None
        self._files: dict[str, CachedFile[Host]] = {}
        self._held: dict[str, CachedFile[HeldStarts]] = {}
        self._running: dict[str, list[str]] = {}
        """The names of the agents that run on each host."""
        self._full: frozenset[str] = frozenset()
        self._records: dict[str, Host] = {}
        self.seen: Mapping[str, SeenHost] = {}
        """The hosts as they were at the last read, by name."""

    def read(self, is_locked: Callable[[Key], bool]) -> None:
        """Read the records of the hosts, and which hosts hold their leases.

        `is_locked` returns True if the lease with a key is held. If the folder of hosts cannot be read, the last read
        stays.
        """
        try:
            folder = self._team.hosts.changed()
            if folder != self._folder:
                names = sorted(self._team.hosts.names()) if folder is not None else []
                self._files = {name: self._files.get(name) or self._team.host(name).record.watch() for name in names}
                self._held = {name: self._team.host(name).held.watch() for name in names}
                self._folder = folder
        except StorageError:
            # What was read before is better than nothing.
            return
        known, before = self._records, self.seen
        self._records = {name: host for name, file in self._files.items() if (host := file.get()) is not None}
        found: dict[str, SeenHost] = {}
        for name, host in self._records.items():
            # A host that comes back says so in its record, so those that are gone cost one look and not two.
            is_gone = name in before and not before[name].is_up and host is known[name]
            is_up = not is_gone and is_locked(hosts.lease(self._team, name))
            state: HostState = "up" if is_up else "lost"
            if host.draining:
                state = "draining" if is_up else "ended"
            found[name] = SeenHost(
                name=host.name,
                state=state,
                labels=hosts.labels(host),
                boot_id=host.boot_id,
                is_here=self._probe.sees(host),
                is_full=host.name in self._full,
                offline=host.offline,
                # While a host is up, this changes with each of its records, and nothing depends on it.
                seen=0 if is_up else round(host.at - host.clock_offset),
            )
        self.seen = found

    def held_starts(self, of_team: HeldStarts) -> HeldStarts:
        """Return the runs that wait: those of the team's own record, and those that a host holds back."""
        records = (self._held[name].get() for name, host in self.seen.items() if host.is_up)
        found = [held for record in records if record is not None for held in record.held]
        return of_team.replace(held=[*of_team.held, *found]) if found else of_team

    def is_here(self, worker: Status) -> bool:
        """Return True if the process that wrote a status is on this machine and can be looked at.

        Always True on a team without hosts.
        """
        host = self.seen.get(worker.host)
        return not worker.host or (host is not None and host.is_here and host.boot_id == worker.boot_id)

    def usage(self, host: str, agent: str) -> Usage | None:
        """Return what an agent uses, as its host last measured it; None if that is not known."""
        return self._records[host].usage.get(agent) if host in self._records else None

    def count(self, agents: Iterable[AgentView]) -> bool:
        """Count the agents that run on each host; return True if the set of full hosts has changed.

        In that case the reasons why agents wait may change.
        """
        if not self._records:
            return False
        self._running = {}
        for agent in agents:
            if agent.status.host and agent.alive:
                self._running.setdefault(agent.status.host, []).append(agent.name)
        full = frozenset(name for name, host in self._records.items() if len(self._running.get(name, ())) >= host.slots)
        if full == self._full:
            return False
        self._full = full
        self.seen = {name: replace(host, is_full=name in full) for name, host in self.seen.items()}
        return True

    def views(self, agents: Sequence[AgentView], now: float) -> tuple[HostView, ...]:
        """Return the hosts with the agents that run on them: those that lost agents first, then those that are up.

        A host that was not seen for a day is left out, unless agents were lost with it, or run on without it.
        """
        if not self._records:
            return ()
        lost: dict[str, list[str]] = {}
        for agent in agents:
            if agent.ended_with_host and not agent.acknowledged:
                lost.setdefault(agent.status.host, []).append(agent.name)
        found = (
            HostView(host, self.seen[name], tuple(self._running.get(name, ())), tuple(lost.get(name, ())))
            for name, host in self._records.items()
            if self.seen[name].is_up or name in lost or name in self._running or now - host.at < FORGOTTEN_AFTER
        )
        return tuple(sorted(found, key=lambda host: (not host.lost, not host.is_up, host.name)))


def no_hosts(team: TeamDirectory) -> str:
    """Return in words why a team has no hosts, and how to start one.

    Raises:
        StorageError: It is not known where the team is stored.
    """
    if team.address is None:
        return (
            "no hosts: this team is in files, all agents run here; `team create NAME --store URL` makes one for hosts"
        )
    return "no hosts yet: no machine runs agents of this team; `crewboard host`, run on a machine, starts one there"
