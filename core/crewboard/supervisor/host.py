"""A host: the supervisor of one machine of a team, the runs that it claims, and those of hosts that were lost.

A team in PostgreSQL may have a host on each of several machines (`crewboard host`). A host starts workers with its own
environment, so that no record holds an API key.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING

from crewboard import env
from crewboard.errors import StorageError
from crewboard.linux import process
from crewboard.names import OPERATOR, is_name
from crewboard.protocol import approvals
from crewboard.protocol.approvals import SHUTDOWN_TIMEOUT
from crewboard.protocol.supervisor_client import ControlRequest
from crewboard.records.agents import Spec, Status
from crewboard.records.base import JsonValue
from crewboard.records.processes import Exit, Host, Lease, Usage, WantedRun
from crewboard.records.team import Config
from crewboard.store import agents as store_agents
from crewboard.store import hosts as store_hosts
from crewboard.store import json_records, leases, mailbox, roster
from crewboard.store.agents import START_TIMEOUT
from crewboard.store.interface import Held
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import finalizer
from crewboard.supervisor.finalizer import LostRun
from crewboard.supervisor.reconciler import Supervisor, Watched, last_run

if TYPE_CHECKING:
    from crewboard.supervisor.launcher import Ref
    from crewboard.supervisor.offline_model import OfflineModel
    from crewboard.supervisor.prefork_launcher import PreforkLauncher
    from crewboard.supervisor.starts import Candidate

log = logging.getLogger(__name__)

TELL_INTERVAL = 2.0
"""Seconds between two records of a host, and the longest time between two looks for lost hosts."""

_LOOK_INTERVAL = 0.25
"""Shortest time in seconds between two looks for lost hosts: leases of many workers end soon after each other."""

CLAIM_DELAY = 0.1
"""Seconds that a full host waits before it claims a run; one that is half full waits half of it."""

_LOOK_AGAIN = 30.0
"""Seconds after which all agents are looked at again for runs of a host that is gone: one may have begun late."""

_CLOCK_INTERVAL = 60.0

_CLAIMS_INTERVAL = 1.0
"""Seconds between two looks whether claimed runs have begun."""

_ELSEWHERE_INTERVAL = 0.5
"""Seconds between two looks whether the earlier run of an agent that is to begin here was finalized by its host."""

_SHARE = 4
"""A host claims this part of its free slots at once, so that several hosts share what is in the queue."""


@dataclass
class Looked:
    """The agents whose last run may be one of a lost host, and when all were looked at (monotonic)."""

    agents: list[str]
    at: float


@dataclass
class Outage:
    """An outage of the database: a host logs once that it began, and once that it is over."""

    answered_at: float = field(default_factory=time.time)
    """When the database answered last."""
    is_on: bool = False
    _is_left: bool = False

    @property
    def seconds(self) -> float:
        """Return since how many seconds the database has not answered."""
        return time.time() - self.answered_at

    def leave(self) -> None:
        """Leave it as it is to the process that begins again: threads of this one may yet see the database back."""
        self._is_left = True

    def begin(self, error: Exception) -> None:
        """Log that the database is away, unless that is known."""
        if self._is_left:
            return
        if not self.is_on:
            at = time.strftime("%H:%M:%S", time.localtime(self.answered_at))
            log.warning("database away since %s: %s; waiting", at, error)
        self.is_on = True

    def end(self) -> None:
        """Note that the database answers; log it if it was away."""
        if self._is_left:
            return
        if self.is_on:
            log.info("database back after %.0f s", self.seconds)
        self.answered_at, self.is_on = time.time(), False


class LocalHost:
    """The host that this supervisor is. `before` is the record of its predecessor of the same name, if there was one.

    `record` is the one that this host writes. `away`: for how many seconds the database was away before it began.
    """

    def __init__(
        self,
        team: TeamDirectory,
        record: Host,
        before: Host | None,
        environment: Mapping[str, str],
        *,
        away: float = 0,
        outage: Outage | None = None,
    ) -> None:
        self.outage = outage or Outage()
        self.record = record.replace(offline=env.is_offline(environment))
        self.environment = {**environment, env.HOST: record.name}
        self.cap = ""
        """Which cap of the team kept this host from claiming more; empty if none did."""
        self._team = team
        self._before = before
        self._away = away
        self._began_at = store_hosts.now(team)
        self._seen_at = team.host(record.name).below("host.json").changed_at()
        self._looked: dict[str, Looked] = {}
        self._clock_at = float("-inf")
        self._meter = UsageMeter()

    @property
    def name(self) -> str:
        """Return its name."""
        return self.record.name

    @property
    def began_again(self) -> bool:
        """Return True if this process was the host before, and killed its workers because it lost its lease."""
        before, now = self._before, self.record
        return before is not None and (before.machine, before.boot_id, before.pid, before.start_ticks) == (
            now.machine, now.boot_id, now.pid, now.start_ticks
        )  # fmt: skip

    def has_killed(self, worker: Lease) -> bool:
        """Return True if this process killed a worker when it lost its lease, before it began again."""
        return self.began_again and process.started_at(worker.start_ticks) < self.record.since

    # What it runs.

    def find_own(self) -> set[str]:
        """Return the agents whose worker, or last unfinalized run, is one of this host, and those without any host."""
        found = set()
        for name in self._team.agent_names():
            agent = self._team.agent(name)
            status = json_records.load_or_none(agent.status, Status)
            holder = leases.last_holder(agent.lease)
            ended = json_records.load_or_none(agent.exit, Exit)
            is_here = holder is not None and holder.host == self.name and leases.is_held(agent.lease)
            was_here = status is not None and status.host in (self.name, "")
            if is_here or (was_here and store_agents.is_unfinalized(status, ended)):
                found.add(name)
        return found

    def claimed(self) -> dict[str, WantedRun]:
        """Return the runs that this host claimed and that have not begun, by agent."""
        return {run.agent: run for run in store_hosts.claimed(self._team, self.name)}

    def claim(self, used: int) -> bool:
        """Claim a part of the runs that can begin here, `used` slots are taken. Return True if more may be claimed."""
        self.cap = ""
        free = self.record.slots - used
        if self.record.draining or free <= 0:
            return False
        config, share = roster.load(self._team), max(1, free // _SHARE)
        if not roster.has_caps(config):
            return bool(store_hosts.claim(self._team, self.record, share))
        wanted = store_hosts.wanted(self._team)
        return bool(wanted) and self._team.lock("claims").locked(lambda: self._claim_below_caps(config, share))

    def _claim_below_caps(self, config: Config, most: int) -> bool:
        """Claim runs one by one until a cap of the team is reached over all hosts. Return as `claim`."""
        hosts = self._team.hosts.names()
        living = {run.agent for host in hosts for run in store_hosts.claimed(self._team, host)}
        living |= {name for name in self._team.agent_names() if leases.is_held(self._team.agent(name).lease)}
        for _ in range(most):
            self.cap = roster.cap_reached(config, roster.load_of(self._team, living)) or ""
            claimed = [] if self.cap else store_hosts.claim(self._team, self.record, 1)
            if not claimed:
                return False
            living.update(claimed)
        return True

    def delay(self, used: int) -> float:
        """Return the seconds to wait before the next claim: the emptier host is quicker."""
        return CLAIM_DELAY * min(1.0, used / self.record.slots)

    # What was lost.

    def find_lost(self) -> list[LostRun]:
        """Return the runs that ended with their hosts; put what those had claimed back into the queue."""
        now, found = time.monotonic(), list[LostRun]()
        for name in self._team.hosts.names():
            if name == self.name or not is_name(name):
                continue
            if store_hosts.is_up(self._team, name):
                self._looked.pop(name, None)
            else:
                found += self._lost_with(name, now)
        return found

    def _lost_with(self, host: str, now: float) -> list[LostRun]:
        for run in store_hosts.claimed(self._team, host):
            if store_agents.last_run(self._team.agent(run.agent)) >= run.run:
                store_hosts.begun(self._team, host, run.agent)
        store_hosts.give_back(self._team, host)
        looked = self._looked.get(host)
        if looked is None or now - looked.at > _LOOK_AGAIN:
            looked = Looked(self._team.agent_names(), now)
        left, found = [], []
        for name in looked.agents:
            agent = self._team.agent(name)
            status = json_records.load_or_none(agent.status, Status)
            ended = json_records.load_or_none(agent.exit, Exit)
            if status is None or status.host != host or not store_agents.is_unfinalized(status, ended):
                continue
            left.append(name)
            if not leases.is_held(agent.lease):
                seen_at = self._last_seen(host)
                reason, evidence = self._why(status, store_hosts.load(self._team, host), seen_at)
                found.append(LostRun(agent, status.run, host, reason, evidence, seen_at))
        self._looked[host] = Looked(left, looked.at)
        return found

    def reason_of_own(self, status: Status) -> tuple[str, str, float]:
        """Return why a run of this host ended that its predecessor left, as `_why` does, and when that last wrote."""
        if status.host != self.name:
            return "", "", 0
        return *self._why(status, self._before, self._seen_at), self._seen_at

    def _why(self, status: Status, host: Host | None, seen_at: float) -> tuple[str, str]:
        """Return why a run ended that nothing observed: its machine was started again, or its host was lost."""
        boots = {each.boot_id for each in (host, self.record) if each is not None and each.name == status.host}
        has_moved = host is not None and host.name == self.name and host.machine != self.record.machine
        if boots and status.boot_id and boots != {status.boot_id} and not has_moved:
            return "reboot", ""
        return "lost", self._why_lost(status.host, seen_at)

    def _why_lost(self, host: str, seen_at: float) -> str:
        """Return in words that stay true why a host counts as lost; `seen_at` is when it last wrote, 0 if never."""
        if not seen_at:
            return f"{host} left no record"
        if host == self.name and self.began_again:
            # It may have written once more, between the return of the database and its end.
            silent = f"{max(0, self._began_at - seen_at, self._away):.0f} s"
            return f"{host} could not reach the database for {silent}" if self._away else _silent(host, silent)
        why = _silent(host, f"{max(0, store_hosts.now(self._team) - seen_at):.0f} s")
        return f"{why}; {self.name} could not reach the database" if self._away and seen_at < self._began_at else why

    def _last_seen(self, host: str) -> float:
        """Return when a host last wrote its record, by the clock of the store."""
        return self._team.host(host).below("host.json").changed_at()

    # What it says of itself.

    def tell(self, workers: Mapping[str, "Ref"]) -> None:
        """Write what this machine and the workers use.

        Raises:
            StorageError: The write failed.
        """
        ahead = self.record.clock_offset
        if time.monotonic() - self._clock_at > _CLOCK_INTERVAL:
            ahead = round(store_hosts.compare_clocks(self._team).ahead, 3)
            self._clock_at = time.monotonic()
        self.record = self.record.replace(
            load=round(os.getloadavg()[0], 2),
            clock_offset=ahead,
            at=time.time(),
            usage=self._meter.measure(workers),
        )
        store_hosts.save(self._team, self.record)
        self.outage.end()


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
        boot_id=process.boot_id(),
        start_ticks=process.start_ticks(me),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        since=time.time(),
        at=time.time(),
    )


def _silent(host: str, duration: str) -> str:
    return f"{host} was silent for {duration}, and lost its lease"


@dataclass
class UsageMeter:
    """Measures what workers and the processes below them use, in percent of one core since the last time."""

    _used: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds of processor time of each process, by pid and start."""
    _at: float = 0

    def measure(self, workers: Mapping[str, "Ref"]) -> dict[str, Usage]:
        """Return what each agent uses; nothing at the first time but its memory."""
        if not workers:
            return {}
        now, used = time.monotonic(), dict[tuple[int, int], float]()
        children = process.children_of(process.parents())
        found = {}
        for name, ref in workers.items():
            below = process.below(ref.pid, children)
            readings = [each for pid in (ref.pid, *below) if (each := process.measure(pid)) is not None]
            spent = 0.0
            for each in readings:
                key = each.pid, each.start_ticks
                used[key] = each.cpu_seconds
                spent += each.cpu_seconds - self._used.get(key, 0 if self._at else each.cpu_seconds)
            percent = round(100 * spent / max(now - self._at, 0.01), 1)
            found[name] = Usage(cpu=percent, memory=sum(each.rss_bytes for each in readings), children=len(below))
        self._used, self._at = used, now
        return found


class HostSupervisor(Supervisor):
    """The supervisor of the part of a team that runs on one host: the agents of which a claim, lease or status says so.

    `host` is that host.
    """

    def __init__(
        self,
        team: TeamDirectory,
        launcher: "PreforkLauncher",
        model: "OfflineModel",
        lock: Held,
        stay_reachable: Callable[[], None],
        host: LocalHost,
    ) -> None:
        super().__init__(
            team, launcher, model, lock, stay_reachable, store_hosts.held(team, host.name),
            wake_one=self._wake_named, on_spec=self._look_at, on_start=self._claim_soon,
        )  # fmt: skip
        self._host = host
        self._claims: dict[str, WantedRun] = {}
        """The runs that this host claimed and that have not begun, by agent."""
        self._claim_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._asked: set[str] = set()
        """The workers that were asked to shut down because this host ends."""
        self._drained: set[tuple[str, int]] = set()
        """The runs that were terminated because this host ends: agents and runs."""
        self._is_lost = False
        """True once this host lost its lease: it kills its workers, and says nothing more of them."""
        self._drain_until: float | None = None
        """When the workers of a host that ends are terminated (monotonic); None while it does not end."""

    def on_request(self, _: ControlRequest) -> None:
        """Start the next pass: hosts find what they start in the store."""
        self._wake.set()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._team.store.glance():
            own = self._host.find_own()
        for name in own:
            self._watch(name)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        # A host that `nohup` started outlives its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.call_later(TELL_INTERVAL, self._tell, loop)

    def _wake_named(self, name: str) -> None:
        """Make an agent's worker look at its files, if it runs here."""
        if name in self._watched:
            self._wake_worker(self._watched[name])

    def _claims_tasks(self, name: str) -> bool:
        # Others are woken by their own hosts.
        return name in self._watched and super()._claims_tasks(name)

    def _look_at(self, name: str) -> None:
        """Start a pass after a change of the spec of an agent of this host."""
        if name in self._watched:
            self._wake.set()

    def _is_needed(self) -> bool:
        return self._drain_until is None or self.has_workers or bool(self._ended)

    def _agent_names(self) -> list[str]:
        return sorted(self._watched)

    # What begins here.

    def _look_around(self) -> None:
        """Claim runs, and forget agents that are no longer here."""
        self._claims = self._host.claimed()
        for name in list(self._claims):
            if self._is_claim_over(name):
                store_hosts.begun(self._team, self._host.name, name)
                del self._claims[name]
        self._claim_soon()
        if self._claims:
            # No event tells that a run began.
            self._pass_again_in(_CLAIMS_INTERVAL)
        for name, watched in list(self._watched.items()):
            if not (watched.ref or watched.ended or name in self._claims) and not self._has_own_end(watched):
                del self._watched[name]
        if self._drain_until is not None:
            self._continue_drain(self._drain_until)

    def _is_claim_over(self, name: str) -> bool:
        """Return True if a claimed run began, was replaced, or must no longer begin."""
        watched, claim = self._watch(name), self._claims[name]
        spec = watched.spec.get()
        if spec is None or claim.run > spec.run:
            # The spec follows a claim at once.
            return store_hosts.now(self._team) - claim.at > START_TIMEOUT
        return claim.run < spec.run or claim.run <= last_run(watched) or spec.want in ("stopped", "killed")

    def _claim_soon(self) -> None:
        """Claim runs after a time that is longer the more agents run here."""
        if self._claim_timer is None:
            delay = self._host.delay(self._used())
            self._claim_timer = asyncio.get_running_loop().call_later(delay, self._claim_now)

    def _claim_now(self) -> None:
        self._claim_timer = None
        with self._noting_failures(""):
            if self._host.claim(self._used()):
                self._claims = self._host.claimed()
                for name in self._claims:
                    self._watch(name)
                self._claim_soon()
                self._wake.set()

    def _used(self) -> int:
        """Return how many slots are taken."""
        return len(self._claims.keys() | {name for name, watched in self._watched.items() if watched.ref})

    def _candidate(self, watched: Watched, spec: Spec) -> "Candidate | None":
        claim = self._claims.get(watched.agent.name)
        if claim is not None and watched.start is None:
            watched.start = ControlRequest("start", claim.agent, claim.run, self._host.environment)
        return super()._candidate(watched, spec)

    async def _start(self, watched: Watched, run: int) -> None:
        # The agent was hired on another machine.
        self._team.local.make_folder(f"agents/{watched.agent.name}")
        await super()._start(watched, run)

    def _restart_if_wanted(self, watched: Watched, record: Exit) -> None:
        if self._drain_until is None:
            super()._restart_if_wanted(watched, record)

    def _note_restart(self, name: str, run: int, spec: Spec, now: float) -> None:
        """Claim the run with which an agent is restarted: if this host is lost meanwhile, another one begins it."""
        needs = store_hosts.needs_of(spec.flags.host, spec.flags.needs)
        claim = WantedRun(agent=name, run=run, needs=needs, at=now)
        store_hosts.keep(self._team, self._host.name, claim)
        self._claims[name] = claim

    def _cap_reached(self, living: set[str]) -> str | None:  # noqa: ARG002  it was looked at with the claim
        return None

    def _hold(self, waiting: list["Candidate"], reason: str | None, _: Sequence[WantedRun] = ()) -> None:
        """Note also the runs in the queue, if a cap of the team keeps them there."""
        wanted = store_hosts.wanted(self._team) if self._host.cap else []
        super()._hold(waiting, self._host.cap or reason, wanted)

    # What ends here.

    def _reconcile(self, watched: Watched) -> "Candidate | None":
        if watched.ref is None and self._is_elsewhere(watched):
            self._pass_again_in(_ELSEWHERE_INTERVAL)
            return None
        return super()._reconcile(watched)

    def _is_elsewhere(self, watched: Watched) -> bool:
        """Return True if an earlier run of an agent lives on another host, or that one has to finalize its end."""
        holder = leases.holder(watched.agent.lease, Lease)
        if holder is not None:
            return holder.host != self._host.name
        status = watched.status.get()
        return (
            status is not None
            and status.host not in (self._host.name, "")
            and store_agents.is_unfinalized(status, watched.exit.get())
        )

    def _has_own_end(self, watched: Watched) -> bool:
        """Return True if this host has to finalize the last run of an agent, or its worker lives."""
        status = watched.status.get()
        return (
            status is not None
            and status.host in (self._host.name, "")
            and store_agents.is_unfinalized(status, watched.exit.get())
        )

    def _adopt(self, watched: Watched) -> None:
        """Watch a worker that lives. Why a dead one of this host ended is found from the host: see `reason_of_own`."""
        lease = watched.agent.lease
        holder = leases.holder(lease, Lease)
        if holder is None or holder.host != self._host.name:
            super()._adopt(watched)
        elif not self._host.has_killed(holder):
            if _lives(holder):
                super()._adopt(watched)
        elif _lives(holder):
            # On a busy machine, that takes its time.
            process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)
        else:
            leases.free(lease, holder.pid, holder.start_ticks)

    def _record_observed(self, watched: Watched) -> None:
        # The host that begins again, or another one, records that the run was lost.
        if not self._is_lost:
            super()._record_observed(watched)

    def _record_end(self, watched: Watched) -> Exit | None:
        if self._is_lost:
            return None
        record = super()._record_end(watched)
        if record is None or record.reason not in ("terminated", "died"):
            return record
        # Slurm sends SIGTERM to all processes of a job, and not to the host alone.
        was_asked = self.is_draining and (record.reason == "terminated" or record.signal == signal.SIGTERM)
        is_drained = was_asked or (watched.agent.name, record.run) in self._drained
        if not is_drained:
            return record
        # A worker that was killed did not say whether it was at work.
        status = watched.status.get()
        was_at_work = status is not None and status.run == record.run and status.is_at_work
        return record.replace(reason="host_ended", unfinished=record.unfinished or was_at_work)

    def _unobserved_reason(self, status: Status) -> tuple[str, str, float]:
        return self._host.reason_of_own(status)

    def _wake_if_changed(self, watched: Watched, spec: Spec) -> None:
        """Kill a worker that lost its lease, as one that was stopped for long, with all that it started."""
        super()._wake_if_changed(watched, spec)
        if watched.ref is None:
            return
        if self._holds_lease(watched):
            watched.has_lease = True
        elif watched.has_lease and self._is_replaced(watched) and not process.is_ending(watched.ref.pid):
            log.error("%s run %d lost its lease, so it is killed", watched.agent.name, watched.run)
            self._launcher.signal(watched.ref, signal.SIGKILL, tree=True)

    @staticmethod
    def _is_replaced(watched: Watched) -> bool:
        """Return True if the lease of a worker that is not its holder is free or another's, and can be read."""
        lease = watched.agent.lease
        return not leases.is_held(lease) or leases.holder(lease, Lease) is not None

    # What it says of itself, and its end.

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the record of this host, and look for others that were lost, now and every `TELL_INTERVAL`."""
        loop.call_later(TELL_INTERVAL, self._tell, loop)
        self._tell_now()
        self._look_for_lost()

    def _look_for_lost(self) -> None:
        """Finalize the runs that ended with their hosts. Look again as soon as a lease ends that is not renewed."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        with self._noting_failures(""):
            with self._team.store.glance():
                lost, next_end = self._host.find_lost(), self._team.store.next_end()
            if next_end < TELL_INTERVAL:
                delay = max(next_end, _LOOK_INTERVAL)
                self._look_timer = asyncio.get_running_loop().call_later(delay, self._look_for_lost)
            if lost:
                finalizer.finalize_lost(lost, store_hosts.now(self._team))
                # What is wanted in their place may wait for that.
                self._wake.set()
        # A host that was lost or is full leaves runs to others, of which no hint tells.
        self._claim_soon()

    def _tell_now(self) -> None:
        with self._noting_failures(""):
            self._host.tell({name: each.ref for name, each in self._watched.items() if each.ref is not None})

    def _log_failure(self, agent: str, error: Exception) -> None:
        # In an outage, everything fails for the same reason many times a second.
        if isinstance(error, StorageError) and error.away:
            self._host.outage.begin(error)
        else:
            super()._log_failure(agent, error)

    def _hang_up(self) -> None:
        """End this host because its terminal was closed.

        The shell and the kernel each send the signal, and the second one must not kill the workers.
        """
        if not self.is_draining:
            self._drain()

    def _drain(self) -> None:
        """Begin to end this host: claim nothing more, and ask the workers to shut down. The second time, kill them."""
        if self._drain_until is not None:
            log.warning("asked to end again: ends all agents at once")
            self._drain_until = time.monotonic()
            self._drained |= {(name, each.run) for name, each in self._watched.items() if each.ref is not None}
            self.kill_workers()
        else:
            self._drain_until = time.monotonic() + SHUTDOWN_TIMEOUT
            running = {name: each for name, each in self._watched.items() if each.ref is not None}
            statuses: dict[str, Status | None] = dict.fromkeys(running)
            # Without the database, each may be at work.
            with self._noting_failures(""):
                statuses.update({name: each.status.get() for name, each in running.items()})
            log.info("draining: %s", _describe_drain(statuses))
            self._host.record = self._host.record.replace(draining=True)
            self._tell_now()
        self._wake.set()

    def _continue_drain(self, until: float) -> None:
        """Give back what has not begun; ask each worker once to shut down, and end those that are left in the end."""
        running = {name: each for name, each in self._watched.items() if each.ref is not None}
        store_hosts.give_back(self._team, self._host.name, but=running)
        for name in self._claims.keys() - running.keys():
            self._watched[name].start = None
        self._claims = {name: run for name, run in self._claims.items() if name in running}
        for name, watched in running.items():
            if name not in self._asked:
                self._asked.add(name)
                ident = f"shutdown-{mailbox.new_id()[:12]}"
                payload: dict[str, JsonValue] = {"reason": f"because the host {self._host.name} ends"}
                approvals.ask(self._team, ident, "shutdown", OPERATOR, name, payload, store_hosts.now(self._team))
                self._wake_worker(watched)
            if time.monotonic() >= until and watched.term_at is None and watched.ref is not None:
                watched.term_at = time.monotonic()
                self._drained.add((name, watched.run))
                self._launcher.signal(watched.ref, signal.SIGTERM)
        self._pass_again_in(max(until - time.monotonic(), 0.1))

    @property
    def is_draining(self) -> bool:
        """Return True if this host was asked to end."""
        return self._drain_until is not None

    def lose_workers(self) -> None:
        """Kill all workers because this host lost its lease. Safe to call in any thread."""
        self._is_lost = True
        self.kill_workers()

    def kill_workers(self) -> None:
        """Kill all workers and all that they started. Safe to call in any thread."""
        for watched in list(self._watched.values()):
            if (ref := watched.ref) is not None:
                self._launcher.signal(ref, signal.SIGKILL, tree=True)


def _describe_drain(workers: Mapping[str, Status | None]) -> str:
    """Return in words what a host that ends waits for, and for how long."""
    if not workers:
        return "takes no more agents, and runs none"
    text = f"takes no more agents, and asks {', '.join(sorted(workers))} to shut down"
    busy = sorted(name for name, status in workers.items() if status is None or status.is_at_work)
    if not busy:
        return text
    most = f"{SHUTDOWN_TIMEOUT:g} s"
    return f"{text}; waits {most} at most for what is at work: {', '.join(busy)}; Ctrl-C or SIGTERM ends all at once"


def _lives(holder: Lease) -> bool:
    """Return True if the process that holds a lease lives on this machine."""
    is_here = process.is_same(holder.pid, holder.boot_id, holder.start_ticks)
    return is_here and not process.is_ending(holder.pid)
