"""What makes a supervisor a host: its lease and record, the runs that it claims, and those of hosts that were lost.

A team in PostgreSQL may have a host on each of several machines (`crewboard host`). A host starts workers with its own
environment, so that no record holds an API key.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata

from crewboard import env, linux, store
from crewboard.records import Config, Exit, Host, Status, Usage, WantedRun, is_name
from crewboard.store import AgentDirectory, TeamDirectory
from crewboard.supervisor.finalizer import LostRun
from crewboard.supervisor.launcher import Ref

TELL_INTERVAL = 2.0
"""Seconds between two records of a host."""

CLAIM_DELAY = 0.1
"""Seconds that a full host waits before it claims a run; one that is half full waits half of it."""

LOOK_INTERVAL = 2.0
"""Seconds between two looks for hosts that were lost."""

_LOOK_AGAIN = 30.0
"""Seconds after which all agents are looked at again for runs of a host that is gone: one may have begun late."""

_CLOCK_INTERVAL = 60.0

_SHARE = 4
"""A host claims this part of its free slots at once, so that several hosts share what is in the queue."""


@dataclass
class Looked:
    """The agents whose last run may be one of a lost host, and when all were looked at (monotonic)."""

    agents: list[str]
    at: float


class LocalHost:
    """The host that this supervisor is. `before` is the record of its predecessor of the same name, if there was one.

    `record` is the one that this host writes.
    """

    def __init__(self, team: TeamDirectory, record: Host, before: Host | None, environment: Mapping[str, str]) -> None:
        self.record = record
        self.environment = {**environment, env.HOST: record.name}
        self.cap = ""
        """Which cap of the team kept this host from claiming more; empty if none did."""
        self._team = team
        self._before = before
        self._seen_at = team.host(record.name).below("host.json").changed_at()
        self._looked: dict[str, Looked] = {}
        self._looked_at = float("-inf")
        self._clock_at = float("-inf")
        self._meter = UsageMeter()

    @property
    def name(self) -> str:
        """Return its name."""
        return self.record.name

    # What it runs.

    def find_own(self) -> set[str]:
        """Return the agents whose worker, or last unfinalized run, is one of this host, and those without any host."""
        found = set()
        for name in self._team.agent_names():
            agent = self._team.agent(name)
            status = store.json_records.load_or_none(agent.status, Status)
            holder = store.leases.last_holder(agent.lease)
            is_here = holder is not None and holder.host == self.name and store.leases.is_held(agent.lease)
            if is_here or (status is not None and status.host in (self.name, "") and not _is_finalized(agent, status)):
                found.add(name)
        return found

    def claimed(self) -> dict[str, WantedRun]:
        """Return the runs that this host claimed and that have not begun, by agent."""
        return {run.agent: run for run in store.hosts.claimed(self._team, self.name)}

    def claim(self, used: int) -> bool:
        """Claim a part of the runs that can begin here, `used` slots are taken. Return True if more may be claimed."""
        self.cap = ""
        free = self.record.slots - used
        if self.record.draining or free <= 0:
            return False
        config = store.roster.load(self._team)
        if not store.roster.has_caps(config):
            return bool(store.hosts.claim(self._team, self.record, max(1, free // _SHARE)))
        wanted = store.hosts.wanted(self._team)
        return bool(wanted) and self._team.lock("claims").locked(lambda: self._claim_below_caps(config))

    def _claim_below_caps(self, config: Config) -> bool:
        """Claim a run unless a cap of the team is reached over all hosts."""
        hosts = self._team.hosts.names()
        living = {run.agent for host in hosts for run in store.hosts.claimed(self._team, host)}
        living |= {name for name in self._team.agent_names() if store.leases.is_held(self._team.agent(name).lease)}
        self.cap = store.roster.cap_reached(config, store.roster.load_of(self._team, living)) or ""
        return not self.cap and bool(store.hosts.claim(self._team, self.record, 1))

    def delay(self, used: int) -> float:
        """Return the seconds to wait before the next claim: the emptier host is quicker."""
        return CLAIM_DELAY * min(1.0, used / self.record.slots)

    # What was lost.

    def find_lost(self) -> list[LostRun]:
        """Return the runs that ended with their hosts; put what those had claimed back into the queue."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_INTERVAL:
            return []
        self._looked_at = now
        found: list[LostRun] = []
        for name in self._team.hosts.names():
            if name == self.name or not is_name(name):
                continue
            if store.hosts.is_up(self._team, name):
                self._looked.pop(name, None)
            else:
                found += self._lost_with(name, now)
        return found

    def _lost_with(self, host: str, now: float) -> list[LostRun]:
        for run in store.hosts.claimed(self._team, host):
            if store.agents.last_run(self._team.agent(run.agent)) >= run.run:
                store.hosts.begun(self._team, host, run.agent)
        store.hosts.give_back(self._team, host)
        looked = self._looked.get(host)
        if looked is None or now - looked.at > _LOOK_AGAIN:
            looked = Looked(self._team.agent_names(), now)
        left, found = [], []
        for name in looked.agents:
            agent = self._team.agent(name)
            status = store.json_records.load_or_none(agent.status, Status)
            if status is None or status.host != host or _is_finalized(agent, status):
                continue
            left.append(name)
            if not store.leases.is_held(agent.lease):
                reason, evidence = self._why(status, store.hosts.load(self._team, host), self._last_seen(host))
                found.append(LostRun(agent, status.run, host, reason, evidence))
        self._looked[host] = Looked(left, looked.at)
        return found

    def reason_of_own(self, status: Status) -> tuple[str, str]:
        """Return reason and evidence of the end of a run of this host that its predecessor left, as `_why` does."""
        if status.host != self.name:
            return "", ""
        return self._why(status, self._before, self._seen_at)

    def _why(self, status: Status, host: Host | None, seen_at: float) -> tuple[str, str]:
        """Return why a run ended that nothing observed: its machine was started again, or its host was lost."""
        boots = {each.boot_id for each in (host, self.record) if each is not None and each.name == status.host}
        has_moved = host is not None and host.name == self.name and host.machine != self.record.machine
        if boots and status.boot_id and boots != {status.boot_id} and not has_moved:
            return "reboot", ""
        if not seen_at:
            return "lost", f"{status.host} left no record"
        ago = max(0, self._team.store.now() - seen_at)
        return "lost", f"{status.host} was last seen {ago:.0f} s ago"

    @property
    def has_doubts(self) -> bool:
        """Return True if the last look at hosts that were lost left runs whose workers may be alive."""
        return any(looked.agents for looked in self._looked.values())

    def _last_seen(self, host: str) -> float:
        """Return when a host last wrote its record, by the clock of the store."""
        return self._team.host(host).below("host.json").changed_at()

    # What it says of itself.

    def tell(self, workers: Mapping[str, Ref]) -> None:
        """Write what this machine and the workers use.

        Raises:
            StorageError: The write failed.
        """
        ahead = self.record.clock_offset
        if time.monotonic() - self._clock_at > _CLOCK_INTERVAL:
            ahead = round(store.hosts.compare_clocks(self._team).ahead, 3)
            self._clock_at = time.monotonic()
        self.record = self.record.replace(
            load=round(os.getloadavg()[0], 2),
            clock_offset=ahead,
            at=time.time(),
            usage=self._meter.measure(workers),
        )
        store.hosts.save(self._team, self.record)


def describe(name: str, slots: int, labels: list[str]) -> Host:
    """Return the record of a host that begins now in this process."""
    me = os.getpid()
    return Host(
        name=name,
        slots=slots,
        labels=labels,
        machine=os.uname().nodename,
        version=metadata.version("crewboard"),
        pid=me,
        boot_id=linux.process.boot_id(),
        start_ticks=linux.process.start_ticks(me),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        since=time.time(),
        at=time.time(),
    )


def _is_finalized(agent: AgentDirectory, status: Status) -> bool:
    record = store.json_records.load_or_none(agent.exit, Exit)
    return record is not None and record.run >= status.run and record.buried


@dataclass
class UsageMeter:
    """Measures what workers and the processes below them use, in percent of one core since the last time."""

    _used: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds of processor time of each process, by pid and start."""
    _at: float = 0

    def measure(self, workers: Mapping[str, Ref]) -> dict[str, Usage]:
        """Return what each agent uses; nothing at the first time but its memory."""
        if not workers:
            return {}
        now, used = time.monotonic(), dict[tuple[int, int], float]()
        children = linux.process.children_of(linux.process.parents())
        found = {}
        for name, ref in workers.items():
            below = linux.process.below(ref.pid, children)
            readings = [each for pid in (ref.pid, *below) if (each := linux.process.measure(pid)) is not None]
            spent = 0.0
            for each in readings:
                key = each.pid, each.start_ticks
                used[key] = each.cpu_seconds
                spent += each.cpu_seconds - self._used.get(key, 0 if self._at else each.cpu_seconds)
            percent = round(100 * spent / max(now - self._at, 0.01), 1)
            found[name] = Usage(cpu=percent, memory=sum(each.rss_bytes for each in readings), children=len(below))
        self._used, self._at = used, now
        return found
