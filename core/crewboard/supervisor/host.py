"""A host: the supervisor of one machine of a team, the runs that it claims, and those of hosts that were lost.

A team in PostgreSQL may have a host on each of several machines (`crewboard host`). A host starts workers with its own
environment, so that no record holds an API key. Which runs fit its labels is decided in `store/hosts.py` and
schema.sql.
"""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from crewboard import engines, env
from crewboard.errors import StorageError
from crewboard.names import OPERATOR, is_name
from crewboard.protocol import requests
from crewboard.protocol.requests import SHUTDOWN_TIMEOUT
from crewboard.protocol.supervisor_client import ControlRequest
from crewboard.records.agents import Spec, Status
from crewboard.records.base import JsonValue
from crewboard.records.processes import Exit, Host, Lease, Usage, WantedRun
from crewboard.records.team import Config
from crewboard.store import agents as store_agents
from crewboard.store import hosts as store_hosts
from crewboard.store import leases, mailbox, roster
from crewboard.store.agents import START_TIMEOUT
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import finalizer
from crewboard.supervisor.finalizer import LostRun, Why
from crewboard.supervisor.reconciler import Supervisor, Watched, holds_lease, last_run
from crewboard.supervisor.start_queue import StartQueue
from crewboard.unix import process

if TYPE_CHECKING:
    from crewboard.supervisor.launcher import Ref

log = logging.getLogger(__name__)

TELL_INTERVAL = 2.0
"""Seconds between two records of a host, and the longest time between two looks for lost hosts."""

_LOOK_INTERVAL = 0.25
"""Shortest time in seconds between two looks for lost hosts: leases of many workers end soon after each other."""

CLAIM_DELAY = 0.1
"""Seconds that a full host waits before it claims a run; a host that is half full waits half of them."""

_LOOK_AGAIN = 30.0
"""Seconds after which all agents are looked at again for runs of a host that is gone: one may have begun late."""

_CLOCK_INTERVAL = 60.0

_CLAIMS_INTERVAL = 1.0
"""Seconds between two looks at whether claimed runs have begun."""

_SHARE = 4
"""A host claims one part in this number of its free slots at once, so that several hosts share the queue."""


@dataclass
class Looked:
    """The agents whose last run may be one of a lost host, and when all agents were looked at (monotonic clock)."""

    agents: list[str]
    at: float


@dataclass
class Outage:
    """An outage of the database. A host logs once that it began, and once that it is over."""

    answered_at: float = field(default_factory=time.time)
    """The time of the database's last answer, in epoch seconds."""
    is_on: bool = False
    _is_left: bool = False

    @property
    def seconds(self) -> float:
        """Return for how many seconds the database has not answered."""
        return time.time() - self.answered_at

    def leave(self) -> None:
        """Record and log nothing more: this process begins again, and its threads may still see the database return."""
        self._is_left = True

    def begin(self, error: Exception) -> None:
        """Record that the database is away, and log it unless it was known."""
        if self._is_left:
            return
        if not self.is_on:
            at = time.strftime("%H:%M:%S", time.localtime(self.answered_at))
            log.warning("database away since %s: %s; waiting", at, error)
        self.is_on = True

    def end(self) -> None:
        """Record that the database answers, and log it if it was away."""
        if self._is_left:
            return
        if self.is_on:
            log.info("database back after %.0f s", self.seconds)
        self.answered_at, self.is_on = time.time(), False


class LocalHost:
    """The host that this process is: the placement of a supervisor that has a part of a team's agents.

    Its agents are those whose claim, lease or status names this host. `record` is the record that it writes about
    itself, `before` that of an earlier host of the same name, if there was one. `away` is for how many seconds the
    database was away before this host began.
    """

    supervisor: Supervisor
    idle_timeout = math.inf
    elsewhere_interval = 0.5
    """Seconds between two looks at an agent that is to begin here, but whose earlier run its other host has
    not finalized.
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
        self.queue = StartQueue(team, record.name)
        self._team = team
        self._before = before
        self._away = away
        self._began_at = store_hosts.now(team)
        self._seen_at = team.host(record.name).record.changed_at()
        self._looked: dict[str, Looked] = {}
        self._clock_at = float("-inf")
        self._meter = UsageMeter()
        self._claims: dict[str, WantedRun] = {}
        """The runs that this host claimed and that have not begun, by agent."""
        self._claim_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._asked: set[str] = set()
        """The workers that were asked to shut down because this host ends."""
        self._drained: set[tuple[str, int]] = set()
        """The runs, by agent and number, that were terminated because this host ends."""
        self._drain_until: float | None = None
        """When the workers are terminated because this host ends (monotonic clock); None while it is not to end."""

    @property
    def name(self) -> str:
        """Return the host's name."""
        return self.record.name

    @property
    def began_again(self) -> bool:
        """Return True if this process was the host before, lost its lease, killed its workers and began again."""
        before, now = self._before, self.record
        return before is not None and (before.machine, before.boot_id, before.pid, before.start_ticks) == (
            now.machine, now.boot_id, now.pid, now.start_ticks
        )  # fmt: skip

    # What it runs.

    def begin(self) -> None:
        """Watch agents that run here already, and write the host's record from now on.

        It is called in the supervisor's event loop.
        """
        loop = asyncio.get_running_loop()
        with self._team.store.glance():
            for name in self._team.agent_names():
                agent = self._team.agent(name)
                status, holder = agent.status.load_or_none(), leases.last_holder(agent.lease)
                ended = agent.exit.load_or_none()
                is_here = holder is not None and holder.host == self.name and leases.is_held(agent.lease)
                if is_here or self._is_own_end(status, ended):
                    self.supervisor.watch(name)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        # A host that `nohup` started outlives its terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.call_later(TELL_INTERVAL, self._tell, loop)

    def _is_own_end(self, status: Status | None, ended: Exit | None) -> bool:
        """Return True if this host has to finalize the last run of an agent."""
        is_own = status is not None and status.host in (self.name, "")
        return is_own and store_agents.is_unfinalized(status, ended)

    def names(self) -> list[str]:
        """Return the names of agents that run here, or are about to, sorted."""
        return sorted(self.supervisor.watched)

    def look_around(self) -> None:
        """Claim runs, drop claims that are over, forget agents that are no longer here, and go on draining."""
        watched = self.supervisor.watched
        self._claims = self._claimed()
        for name in list(self._claims):
            one, claim = self.supervisor.watch(name), self._claims[name]
            spec = one.spec.get()
            if spec is None or claim.run > spec.run:
                # The spec follows a claim at once.
                is_over = store_hosts.now(self._team) - claim.at > START_TIMEOUT
            else:
                is_over = claim.run < spec.run or claim.run <= last_run(one) or spec.want in ("stopped", "killed")
            if is_over:
                store_hosts.begun(self._team, self.name, name)
                del self._claims[name]
        self.claim_soon()
        if self._claims:
            # No event tells that a run began.
            self.supervisor.pass_again_in(_CLAIMS_INTERVAL)
        for name, each in list(watched.items()):
            is_busy = each.ref or each.ended or name in self._claims
            if not is_busy and not self._is_own_end(each.status.get(), each.exit.get()):
                del watched[name]
        if self._drain_until is not None:
            self._continue_drain(self._drain_until)

    def _continue_drain(self, until: float) -> None:
        """Give back runs that have not begun, and ask each worker once to shut down.

        Workers that are left at the time `until` (monotonic clock) are terminated.
        """
        running = self.supervisor.workers
        store_hosts.give_back(self._team, self.name, but=running)
        for name in self._claims.keys() - running.keys():
            self.supervisor.watched[name].start = None
        self._claims = {name: run for name, run in self._claims.items() if name in running}
        for name in running:
            agent = self.supervisor.watched[name]
            if name not in self._asked:
                self._asked.add(name)
                ident = f"shutdown-{mailbox.new_id()[:12]}"
                payload: dict[str, JsonValue] = {"reason": f"because the host {self.name} ends"}
                requests.ask(self._team, ident, "shutdown", OPERATOR, name, payload, store_hosts.now(self._team))
                self.supervisor.wake_one(name)
            if time.monotonic() >= until and agent.term_at is None:
                self._drained.add((name, agent.run))
                self.supervisor.terminate(agent)
        self.supervisor.pass_again_in(max(until - time.monotonic(), 0.1))

    # What begins here.

    def _claimed(self) -> dict[str, WantedRun]:
        """Return the runs that this host claimed and that have not begun, by agent."""
        return {run.agent: run for run in store_hosts.claimed(self._team, self.name)}

    def claim_soon(self) -> None:
        """Claim runs after a delay that is longer the more agents run here, so that the emptier host is quicker."""
        if self._claim_timer is None:
            delay = CLAIM_DELAY * min(1.0, self._used() / self.record.slots)
            self._claim_timer = asyncio.get_running_loop().call_later(delay, self._claim_now)

    def _claim_now(self) -> None:
        self._claim_timer = None
        with self.supervisor.noting_failures(""):
            if self._claim(self._used()):
                self._claims = self._claimed()
                for name in self._claims:
                    self.supervisor.watch(name)
                self.claim_soon()
                self.supervisor.wake()

    def _used(self) -> int:
        """Return how many slots of this host are taken."""
        return len(self._claims.keys() | self.supervisor.workers.keys())

    def _claim(self, used: int) -> bool:
        """Claim some of the runs that can begin here; `used` slots are taken. Return True if more may be claimed."""
        self.queue.cap = ""
        free = self.record.slots - used
        if self.record.draining or free <= 0:
            return False
        config, share = roster.load(self._team), max(1, free // _SHARE)
        if not roster.has_caps(config):
            return bool(store_hosts.claim(self._team, self.record, share))
        wanted = store_hosts.wanted(self._team)
        return bool(wanted) and self._team.lock("claims").locked(lambda: self._claim_below_caps(config, share))

    def _claim_below_caps(self, config: Config, most: int) -> bool:
        """Claim runs one by one until a cap of the team is reached over all hosts. Return as `_claim` does."""
        hosts = self._team.hosts.names()
        living = {run.agent for host in hosts for run in store_hosts.claimed(self._team, host)}
        living |= {name for name in self._team.agent_names() if leases.is_held(self._team.agent(name).lease)}
        for _ in range(most):
            self.queue.cap = roster.cap_reached(config, roster.load_of(self._team, living)) or ""
            claimed = [] if self.queue.cap else store_hosts.claim(self._team, self.record, 1)
            if not claimed:
                return False
            living.update(claimed)
        return True

    def start_request(self, watched: Watched) -> ControlRequest | None:
        """Return the kept request to start an agent's run, else one for the run that this host claimed.

        A request for a claimed run has the host's own environment. None if there is neither.
        """
        claim = self._claims.get(watched.agent.name)
        if claim is None or watched.start is not None:
            return watched.start
        # The agent was hired on another machine.
        self._team.local.make_folder(f"agents/{watched.agent.name}")
        return ControlRequest("start", claim.agent, claim.run, self.environment)

    def keep_restart(self, name: str, run: int, spec: Spec, now: float) -> None:
        """Claim the run with which an agent is restarted: if this host is lost meanwhile, another one begins it."""
        needs = store_hosts.needs_of(spec.flags.host, spec.flags.needs, spec.engine_name)
        self._claims[name] = WantedRun(agent=name, run=run, needs=needs, at=now)
        store_hosts.keep(self._team, self.name, self._claims[name])

    # What ends here.

    def is_elsewhere(self, watched: Watched, *, is_held: bool) -> bool:  # noqa: ARG002  the holder says more
        """Return True if an earlier run of an agent lives on another host, or another host has to finalize its end."""
        holder = leases.holder(watched.agent.lease, Lease)
        if holder is not None:
            return holder.host != self.name
        status = watched.status.get()
        is_others = status is not None and status.host not in (self.name, "")
        return is_others and store_agents.is_unfinalized(status, watched.exit.get())

    def take_over(self, watched: Watched) -> bool:
        """Return True if the worker that holds an agent's lease lives, and may live on.

        A worker that this process killed before it began again is ended. The end of a dead worker of this host is
        explained by the end of the host (`why_ended`).
        """
        lease = watched.agent.lease
        holder = leases.holder(lease, Lease)
        if holder is None or holder.host != self.name:
            return True
        is_here = process.is_same(holder.pid, holder.boot_id, holder.start_ticks)
        lives = is_here and not process.is_ending(holder.pid)
        was_killed = self.began_again and process.started_at(holder.start_ticks) < self.record.since
        if not was_killed:
            return lives
        if lives:
            # On a busy machine, that takes its time.
            process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)
        else:
            leases.free(lease, holder.pid, holder.start_ticks)
        return False

    def has_lost_lease(self, watched: Watched) -> bool:
        """Return True if a worker that is not ending has lost its lease, as after it was stopped for long.

        The lease is then free, or another worker has it.
        """
        if holds_lease(watched):
            watched.has_lease = True
            return False
        lease = watched.agent.lease
        # Neither, if the holder cannot be read.
        is_replaced = not leases.is_held(lease) or leases.holder(lease, Lease) is not None
        return watched.has_lease and is_replaced and watched.ref is not None and not process.is_ending(watched.ref.pid)

    def explain(self, watched: Watched, record: Exit) -> Exit:
        """Return the record of an end; its reason is `host_ended` if the worker ended because this host ends."""
        if record.reason not in ("terminated", "died"):
            return record
        # Slurm sends SIGTERM to all processes of a job, and not to the host alone.
        was_asked = self.is_ending and (record.reason == "terminated" or record.signal == signal.SIGTERM)
        if not was_asked and (watched.agent.name, record.run) not in self._drained:
            return record
        return record.replace(reason="host_ended")

    def why_ended(self, status: Status) -> Why:
        """Return why a run ended that an earlier host of the same name left; unknown for other runs."""
        return self._why(status, self._before, self._seen_at) if status.host == self.name else finalizer.UNKNOWN

    # What was lost.

    def find_lost(self) -> list[LostRun]:
        """Return the runs that ended with their hosts; put what those hosts had claimed into the queue."""
        now, found = time.monotonic(), list[LostRun]()
        for host in self._team.hosts.names():
            if host == self.name or not is_name(host):
                continue
            if store_hosts.is_up(self._team, host):
                self._looked.pop(host, None)
                continue
            for run in store_hosts.claimed(self._team, host):
                if store_agents.last_run(self._team.agent(run.agent)) >= run.run:
                    store_hosts.begun(self._team, host, run.agent)
            store_hosts.give_back(self._team, host)
            looked = self._looked.get(host)
            if looked is None or now - looked.at > _LOOK_AGAIN:
                looked = Looked(self._team.agent_names(), now)
            left = []
            for name in looked.agents:
                agent = self._team.agent(name)
                status = agent.status.load_or_none()
                ended = agent.exit.load_or_none()
                if status is None or status.host != host or not store_agents.is_unfinalized(status, ended):
                    continue
                left.append(name)
                if not leases.is_held(agent.lease):
                    # By the clock of the store.
                    seen_at = self._team.host(host).record.changed_at()
                    why = self._why(status, store_hosts.load(self._team, host), seen_at)
                    found.append(LostRun(agent, status.run, host, why))
            self._looked[host] = Looked(left, looked.at)
        return found

    def _why(self, status: Status, host: Host | None, seen_at: float) -> Why:
        """Return why a run ended that no process observed, with evidence in words that stay true.

        Its machine was started again, or its `host` was lost; `seen_at` is when that host last wrote its record, 0 if
        never.
        """
        boots = {each.boot_id for each in (host, self.record) if each is not None and each.name == status.host}
        has_moved = host is not None and host.name == self.name and host.machine != self.record.machine
        if boots and status.boot_id and boots != {status.boot_id} and not has_moved:
            return Why("reboot", "", seen_at)
        name = status.host
        if not seen_at:
            return Why("lost", f"{name} left no record", seen_at)
        if name == self.name and self.began_again:
            # It may have written once more, between the return of the database and its end.
            silent = max(0, self._began_at - seen_at, self._away)
            if self._away:
                return Why("lost", f"{name} could not reach the database for {silent:.0f} s", seen_at)
            return Why("lost", f"{name} was silent for {silent:.0f} s, and lost its lease", seen_at)
        silent = max(0, store_hosts.now(self._team) - seen_at)
        was_away = self._away and seen_at < self._began_at
        also = f"; {self.name} could not reach the database" if was_away else ""
        return Why("lost", f"{name} was silent for {silent:.0f} s, and lost its lease{also}", seen_at)

    def _look_for_lost(self) -> None:
        """Finalize the runs that ended with their hosts. Look again once a lease ends that is not renewed."""
        if self._look_timer is not None:
            self._look_timer.cancel()
        with self.supervisor.noting_failures(""):
            with self._team.store.glance() as glance:
                lost, next_end = self.find_lost(), glance.next_end()
            if next_end < TELL_INTERVAL:
                delay = max(next_end, _LOOK_INTERVAL)
                self._look_timer = asyncio.get_running_loop().call_later(delay, self._look_for_lost)
            if lost:
                finalizer.finalize_lost(lost, store_hosts.now(self._team))
                # What is wanted in their place may wait for that.
                self.supervisor.wake()
        # A host that was lost or is full leaves runs to others, of which no hint tells.
        self.claim_soon()

    # What it says of itself.

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the record of this host, and look for lost hosts, now and every `TELL_INTERVAL` seconds."""
        loop.call_later(TELL_INTERVAL, self._tell, loop)
        self._tell_now()
        self._look_for_lost()

    def _tell_now(self) -> None:
        with self.supervisor.noting_failures(""):
            self.tell()

    def tell(self) -> None:
        """Write the host's record, with what this machine and the workers use.

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
            usage=self._meter.measure(self.supervisor.workers),
        )
        store_hosts.save(self._team, self.record)
        self.outage.end()

    def is_known(self, error: Exception) -> bool:
        """Return True if an error is one of many in an outage of the database, which is logged only once."""
        if not (isinstance(error, StorageError) and error.away):
            return False
        self.outage.begin(error)
        return True

    # Its end.

    @property
    def is_ending(self) -> bool:
        """Return True if this host was asked to end."""
        return self._drain_until is not None

    def _hang_up(self) -> None:
        """End this host because its terminal was closed.

        The shell and the kernel each send the signal, and the second one must not kill the workers.
        """
        if not self.is_ending:
            self._drain()

    def _drain(self) -> None:
        """Begin to end this host: claim nothing more, and ask the workers to shut down. A second call kills them."""
        running = {name: self.supervisor.watched[name] for name in self.supervisor.workers}
        if self._drain_until is not None:
            log.warning("asked to end again: ends all agents at once")
            self._drain_until = time.monotonic()
            self._drained |= {(name, each.run) for name, each in running.items()}
            self.supervisor.kill_workers()
        else:
            self._drain_until = time.monotonic() + SHUTDOWN_TIMEOUT
            self.supervisor.leave()
            statuses: dict[str, Status | None] = dict.fromkeys(running)
            # Without the database, each may be at work.
            with self.supervisor.noting_failures(""):
                statuses.update({name: each.status.get() for name, each in running.items()})
            text = "takes no more agents, and runs none"
            if statuses:
                text = f"takes no more agents, and asks {', '.join(sorted(statuses))} to shut down"
            if busy := sorted(name for name, status in statuses.items() if status is None or status.is_at_work):
                text += f"; waits {SHUTDOWN_TIMEOUT:g} s at most for what is at work: {', '.join(busy)}"
                text += "; Ctrl-C or SIGTERM ends all at once"
            log.info("draining: %s", text)
            self.record = self.record.replace(draining=True)
            self._tell_now()
        self.supervisor.wake()


def describe(name: str, slots: int, labels: list[str], root: Path | None = None) -> Host:
    """Return the record of a host that begins now in this process, with the engines that its agents can use.

    Programs in `root` are not used as engines; None for no engines.
    """
    me = os.getpid()
    return Host(
        name=name,
        slots=slots,
        labels=labels,
        engines=[each.engine.name for each in engines.find_all(root) if each.path is not None] if root else [],
        machine=os.uname().nodename,
        version=metadata.version("crewboard"),
        pid=me,
        boot_id=process.boot_id(),
        start_ticks=process.start_ticks(me),
        cores=process.cores(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        since=time.time(),
        at=time.time(),
    )


@dataclass
class UsageMeter:
    """Measures what workers and the processes below them use, in percent of one core since the last time."""

    _used: dict[tuple[int, int], float] = field(default_factory=dict)
    """Seconds of CPU time of each process at the last call, by pid and start."""
    _at: float = 0

    def measure(self, workers: Mapping[str, "Ref"]) -> dict[str, Usage]:
        """Return what each agent uses, by name. `workers` are the workers by agent.

        CPU is measured since the last call; at the first call it is 0.
        """
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
