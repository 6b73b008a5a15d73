"""The supervisor's main loop: compare the desired with the observed state of each agent, and act on the difference.

The steps at the end of a run are in `finalizer.py`; whether the agent is started again is decided here.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from crewboard.errors import BadDataError, CrewboardError, StorageError, UsageError
from crewboard.protocol import reviews, supervisor_client
from crewboard.protocol.supervisor_client import ControlRequest
from crewboard.records.agents import Spec, Status
from crewboard.records.processes import (
    MOST_RESTARTS,
    Exit,
    HeldStart,
    Lease,
    SupervisorFailure,
    describe_exit,
    is_orderly,
)
from crewboard.store import agents, hosts, leases
from crewboard.store.interface import Held
from crewboard.store.json_records import CachedFile
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.supervisor import finalizer
from crewboard.supervisor.hook import HookRunner
from crewboard.supervisor.launcher import Ended, Launcher, MemoryGroups, OfflineModel, Ref
from crewboard.supervisor.notifier import ChangeNotifier
from crewboard.supervisor.start_queue import RESTARTED, StartQueue
from crewboard.unix import process

SWEEP_INTERVAL = 2.0
"""Seconds between two passes when nothing wakes the supervisor and something may change without an event."""

CALM_SWEEP_INTERVAL = 5.0
"""The same seconds, while file events arrive, and no start and no hook waits. Far below `HUNG_AFTER`, because each pass
gives a sign of life.
"""

LIFE_INTERVAL = 1.0
"""Seconds of a long pass after which it gives a sign of life and lets requests in."""

BOARD_DELAY = 1.0
"""Seconds from a change of a request or a task to the next pass, so that a busy board costs one pass a second."""

IDLE_TIMEOUT = 180.0
"""Seconds that a supervisor stays after its last worker ended."""

KILL_GRACE = 2.0
"""Seconds between SIGTERM to a worker and SIGKILL to it and all that it started."""

STOP_GRACE = 10.0
"""Seconds that a worker may take to exit after it agreed to shut down."""

EXIT_STATUS_TIMEOUT = 2.0
"""Seconds to wait until the kernel tells how a process ended that is not a child of this one."""

MEMORY_INTERVAL = 1.0
"""Seconds between two looks at the memory of an agent that has a limit and no cgroup."""

NOTICE_INTERVAL = 0.25
"""Seconds between two rounds of notices about ended runs. When many agents end, each round tells of several ends."""

_LOST_POLL = 0.05

_MAX_ERROR = 200

_STABLE_AFTER = 60.0
"""Seconds without a failure after which an earlier failure of the supervisor is forgotten."""

_MODEL_POLL = 0.02
"""Seconds until the next pass while the offline model starts."""

log = logging.getLogger(__name__)


@dataclass
class Watched:
    """What the supervisor knows of one agent."""

    agent: AgentDirectory
    spec: CachedFile[Spec]
    status: CachedFile[Status]
    exit: CachedFile[Exit]
    ref: Ref | None = None
    """The agent's living worker; None if it has none."""
    run: int = 0
    """The run of that worker."""
    told: Spec | None = None
    """The spec about which that worker was last woken."""
    pidfd: int | None = None
    """A pidfd of a worker that is not a child of this process; else None."""
    start: ControlRequest | None = None
    """The newest request to start a run, kept until that run has begun."""
    killed: int | None = None
    """The run that a command wants killed although the disk takes no spec that says so; None for none."""
    term_at: float | None = None
    """When the worker was asked to end, or will be at the latest (monotonic clock); None if it may run on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment for restarts of an agent that was hired with `--restart`; else empty."""
    has_lease: bool = False
    """True once a host has seen that worker hold the agent's lease."""
    over_memory: int = 0
    """The run that was killed because it used too much memory; 0 for none."""
    ended: dict[int, Ended] = field(default_factory=dict)
    """How child processes of this agent ended, by run, until it is recorded."""


def last_run(watched: Watched) -> int:
    """Return the number of the newest run of an agent that began; 0 if none did."""
    status, ended = watched.status.get(), watched.exit.get()
    return max(status.run if status else 0, ended.run if ended else 0)


def holds_lease(watched: Watched) -> bool:
    """Return True if an agent's worker holds the lease that is now at the agent's path.

    In a database the lease exists even after the directory on this machine was removed or moved.
    """
    if not watched.agent.path.exists():
        return False
    holder = leases.holder(watched.agent.lease, Lease)
    return holder is not None and watched.ref == Ref(holder.pid, holder.start_ticks)


def drop_obsolete_request(watched: Watched, spec: Spec) -> None:
    """Forget a start request, which contains the API key, if its run began, was replaced, or must no longer begin."""
    run = watched.start.run or 0 if watched.start is not None else 0
    if run < spec.run or run <= last_run(watched) or spec.want in ("stopped", "killed"):
        watched.start = None


def note_failure(team: TeamDirectory, error: Exception, agent: str = "") -> None:
    """Record where the supervisor failed, so that readers see repeated failures.

    `agent` is the agent that was handled; empty if the failure had nothing to do with a single agent.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place, now = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}", time.time()

    def edit(old: SupervisorFailure | None) -> SupervisorFailure:
        again = old is not None and (old.place, old.agent) == (place, agent)
        return SupervisorFailure(
            place=place,
            error=f"{type(error).__name__}: {error}"[:_MAX_ERROR],
            agent=agent,
            count=old.count + 1 if old is not None and again else 1,
            since=old.since if old is not None and again else now,
            at=now,
        )

    with contextlib.suppress(CrewboardError):
        team.supervisor_failure.edit(edit, replace_damaged=True)


class Placement(Protocol):
    """Where the agents of a supervisor run: on this machine (`Here`), or on hosts (`LocalHost` in `host.py`).

    The supervisor asks it for every decision that depends on this.
    """

    supervisor: "Supervisor"
    """The supervisor that uses it, set before any method is called."""
    queue: StartQueue
    """The starts that are held back."""
    idle_timeout: float
    """Seconds that the supervisor stays after its last worker ended."""
    elsewhere_interval: float
    """Seconds between two looks at an agent that is elsewhere."""

    @property
    def is_ending(self) -> bool:
        """Return True once this machine takes no more agents, so that none is restarted."""

    def names(self) -> list[str]:
        """Return the names of the agents that are supervised, in order."""

    def look_around(self) -> None:
        """Find out, before each pass, which agents are to run here."""

    def start_request(self, watched: Watched, /) -> ControlRequest | None:
        """Return the request to start a run of an agent, with its environment; None if there is none."""

    def keep_restart(self, name: str, run: int, spec: Spec, now: float, /) -> None:
        """Record that the run with which an agent is restarted begins here."""

    def is_elsewhere(self, watched: Watched, /, *, is_held: bool) -> bool:
        """Return True if another host has to run an agent or to finalize its last run. `is_held`: its lease is held."""

    def take_over(self, watched: Watched, /) -> bool:
        """Return True if the worker that holds an agent's lease is to be watched; end one that must not live on."""

    def has_lost_lease(self, watched: Watched, /) -> bool:
        """Return True if a living worker has lost its lease, so that it must be killed."""

    def why_ended(self, status: Status, /) -> finalizer.Why:
        """Return why a run ended whose end no supervisor saw."""

    def explain(self, watched: Watched, record: Exit, /) -> Exit:
        """Return the record of an end, with another reason if this machine caused the end."""

    def claim_soon(self) -> None:
        """Claim runs from the queue of the team's hosts, a moment after a run may have been put there."""

    def is_known(self, error: Exception, /) -> bool:
        """Return True if an error is logged already, as one of many with the same cause."""


class Here:
    """The placement of a team without hosts: its agents run on this machine, started by the requests of commands."""

    supervisor: "Supervisor"
    idle_timeout = IDLE_TIMEOUT
    elsewhere_interval = CALM_SWEEP_INTERVAL
    is_ending = False

    def __init__(self, team: TeamDirectory) -> None:
        self.queue = StartQueue(team)
        self._team = team

    def names(self) -> list[str]:
        """Return the names of all agents of the team; make the supervisor leave if the team's directory was removed."""
        names = self._team.agent_names()
        if not (names or self._team.agents_exist()):
            self.supervisor.leave()
        return sorted(names)

    def look_around(self) -> None:
        """Make the supervisor leave if the team has hosts now: they run its agents."""
        if hosts.exist(self._team):
            self.supervisor.leave()

    def start_request(self, watched: Watched) -> ControlRequest | None:
        """Return the request that a command sent; None if none did."""
        return watched.start

    def keep_restart(self, name: str, run: int, spec: Spec, now: float) -> None:
        """Do nothing: there is no other machine that could begin the run."""

    def is_elsewhere(self, watched: Watched, *, is_held: bool) -> bool:
        """Return True if a host has to finalize the end of the last run: only hosts know how it ended."""
        status = watched.status.get()
        return (
            not is_held
            and status is not None
            and status.host != ""
            and agents.is_unfinalized(status, watched.exit.get())
            and status.host in self._team.hosts.names()
        )

    def take_over(self, _: Watched) -> bool:
        """Return True: each worker on this machine belongs to this supervisor."""
        return True

    def has_lost_lease(self, _: Watched) -> bool:
        """Return False: a worker that lost its lease ends by itself, and no other one begins on another machine."""
        return False

    def why_ended(self, _: Status) -> finalizer.Why:
        """Return that the reason is not known."""
        return finalizer.UNKNOWN

    def explain(self, _: Watched, record: Exit) -> Exit:
        """Return the record as it is."""
        return record

    def claim_soon(self) -> None:
        """Do nothing: only hosts claim runs from a queue."""

    def is_known(self, _: Exception) -> bool:
        """Return False: every error is logged."""
        return False


class Supervisor:
    """The supervisor of one team, or of the part of it that runs on one host: see `Placement`.

    It works in passes: each one compares the desired with the observed state of every agent. `lock` is the team's lock,
    which this process holds. `stay_reachable` gives a sign of life to other processes, and writes the control server's
    address into the lock if it is missing.
    """

    def __init__(
        self,
        team: TeamDirectory,
        lock: Held,
        stay_reachable: Callable[[], None],
        placement: Placement | None = None,
    ) -> None:
        self.watched: dict[str, Watched] = {}
        """The agents by name. On a team with hosts, these are only agents of this host."""
        self._team = team
        self._lock = lock
        self._stay_reachable = stay_reachable
        self._launcher = Launcher(team)
        self.model = OfflineModel(team, self._launcher)
        self._placement = placement or Here(team)
        self._placement.supervisor = self
        self._has_waiting = False
        """True while runs wait for a cap, for their time or for their environment."""
        self._has_queue = False
        """True while runs wait whose environment only this process has."""
        self._failure = team.supervisor_failure.watch()
        self._wake = asyncio.Event()
        self._board_timer: asyncio.TimerHandle | None = None
        self._notifier = ChangeNotifier(team, self)
        self._hook = HookRunner(team, self._launcher)
        self._memory_groups = MemoryGroups(team)
        self._leaving = False
        self._is_lost = False
        """True once the workers no longer belong to this process: it kills them, and records nothing more
        about them.
        """
        self._ended: list[tuple[Watched, Exit]] = []
        """The ended runs for the next round of notices, with their records."""
        self._told_at = float("-inf")
        self._idle_since = time.monotonic()
        self._next_pass = SWEEP_INTERVAL

    def wake(self) -> None:
        """Start the next pass now."""
        self._wake.set()

    def leave(self) -> None:
        """Make the supervisor end as soon as no worker is left."""
        self._leaving = True

    def on_request(self, request: ControlRequest) -> None:
        """Record what a request asks for, and start the next pass."""
        if request.verb == "start" and request.name is not None:
            self.watch(request.name).start = request
            self._leaving = False
        elif request.verb == "kill" and request.name is not None:
            self.watch(request.name).killed = request.run
        elif request.verb == "leave":
            self.leave()
        self.wake()

    async def run(self) -> None:
        """Reconcile until no worker has run for `idle_timeout` seconds; once asked to leave, for none.

        End early if the team's lock is lost, after ending the workers that lost their leases with it, or if the control
        socket is gone.
        """
        loop, started = asyncio.get_running_loop(), time.monotonic()
        loop.add_signal_handler(signal.SIGCHLD, self.wake)
        self._notifier.start()
        self._launcher.open(self.wake)
        while self._is_needed():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_pass):
                    await self._wake.wait()
            self._wake.clear()
            self._notifier.check()
            if not leases.has(self._lock):
                await self._end_lost_workers()
                break
            if not self._is_reachable():
                log.error("the control socket was removed; ending, so that another supervisor can listen")
                break
            self._next_pass = CALM_SWEEP_INTERVAL
            await self._reconcile_all()
            if not self._is_calm():
                self.pass_again_in(SWEEP_INTERVAL)
            if time.monotonic() - started > _STABLE_AFTER:
                self._forget_failure("")
        self._launcher.close()
        self._notifier.stop()

    def watch(self, name: str) -> Watched:
        """Return what is known of an agent, which is supervised from now on."""
        if name not in self.watched:
            agent = self._team.agent(name)
            self.watched[name] = Watched(agent, agent.spec.watch(), agent.status.watch(), agent.exit.watch())
        return self.watched[name]

    @property
    def workers(self) -> dict[str, Ref]:
        """Return the running workers by agent. Safe to call in any thread."""
        return {name: ref for name, watched in list(self.watched.items()) if (ref := watched.ref) is not None}

    def lose_workers(self) -> None:
        """Kill all workers, and record nothing more about them. Safe to call in any thread."""
        self._is_lost = True
        self.kill_workers()

    def kill_workers(self) -> None:
        """Kill all workers and all that they started. Safe to call in any thread."""
        for ref in self.workers.values():
            self._launcher.signal(ref, signal.SIGKILL, tree=True)

    def terminate(self, watched: Watched) -> None:
        """Ask a worker to end now; the supervisor kills it `KILL_GRACE` seconds later."""
        if watched.ref is not None:
            watched.term_at = time.monotonic()
            self._launcher.signal(watched.ref, signal.SIGTERM)

    def pass_again_in(self, seconds: float) -> None:
        """Make the next pass come after this number of seconds at the latest."""
        self._next_pass = min(self._next_pass, max(seconds, 0.01))

    def _is_calm(self) -> bool:
        """Return True if an event announces everything that a pass would find."""
        return self._notifier.is_working and not (self._has_waiting or self._hook.is_configured)

    async def _end_lost_workers(self) -> None:
        """End the workers that lost their leases with the supervisor. They end by themselves unless they hang."""
        log.error("%s was removed, moved or replaced; ending", self._team.supervisor_lock)
        workers = [(each.ref, each.agent.lease) for each in self.watched.values() if each.ref and not holds_lease(each)]
        lost = [ref for ref, _ in workers]
        for ref in lost:
            self._launcher.signal(ref, signal.SIGTERM)
        deadline = time.monotonic() + KILL_GRACE
        # A worker that was adopted is no child, so no event tells that it ended.
        while time.monotonic() < deadline and any(process.start_ticks(r.pid) == r.ticks for r in lost):  # noqa: ASYNC110
            await asyncio.sleep(_LOST_POLL)
        for ref, lease in workers:
            self._launcher.signal(ref, signal.SIGKILL, tree=True)
            # Else it ends by itself.
            with contextlib.suppress(StorageError):
                leases.free(lease, ref.pid, ref.ticks)

    def _is_needed(self) -> bool:
        if self.workers or self._ended or ((self._has_queue or self._hook.is_waiting) and not self._leaving):
            self._idle_since = time.monotonic()
            return True
        return not self._leaving and time.monotonic() - self._idle_since < self._placement.idle_timeout

    # What the notifier tells.

    def on_board(self) -> None:
        """Make the next pass come at most `BOARD_DELAY` seconds after this call."""
        loop = asyncio.get_running_loop()
        if self._board_timer is None or self._board_timer.when() <= loop.time():
            self._board_timer = loop.call_later(BOARD_DELAY, self.wake)

    def on_spec(self, name: str) -> None:
        """Start a pass after a change of the spec of an agent of this supervisor."""
        if name in self.watched:
            self.wake()

    def on_start(self) -> None:
        """Let this host claim runs that were put into the queue."""
        self._placement.claim_soon()

    def wake_all(self) -> None:
        """Make every worker look at its files now."""
        for ref in self.workers.values():
            self._launcher.signal(ref, supervisor_client.WAKE_SIGNAL)

    def wake_one(self, name: str) -> None:
        """Make an agent's worker look at its files now, if this supervisor has it."""
        watched = self.watched.get(name)
        if watched is not None and watched.ref is not None:
            self._launcher.signal(watched.ref, supervisor_client.WAKE_SIGNAL)

    def claims_tasks(self, name: str) -> bool:
        """Return True if an agent of this supervisor claims tasks by itself, or if that is not known."""
        spec = self.watched[name].spec.get() if name in self.watched else None
        return name in self.watched and (spec is None or spec.flags.autoclaim)

    # A pass.

    async def _reconcile_all(self) -> None:
        ended = self._launcher.reap()
        for watched in self.watched.values():
            if watched.ref is not None and watched.pidfd is None and watched.ref.pid in ended:
                status = watched.status.get()
                # Else the child exited because another process had that run already.
                if status is None or status.run != watched.run or status.pid == watched.ref.pid:
                    watched.ended[watched.run] = ended[watched.ref.pid]
                self._forget_worker(watched)
        with self.noting_failures(""):
            self._placement.look_around()
        candidates: list[HeldStart] = []
        # After the reaping, so that what ended workers wrote last is seen.
        with self.noting_failures(""), self._team.store.glance():
            self._ended = []
            # Once for all agents: what this pass notes is forgotten by the next one at the earliest.
            self._failure.get()
            shown_at = time.monotonic()
            wanted: list[HeldStart] = []
            for name in self._placement.names():
                with self.noting_failures(name):
                    candidate = self._reconcile(self.watch(name))
                    wanted += [candidate] if candidate is not None else []
                if time.monotonic() - shown_at > LIFE_INTERVAL:
                    # The end of hundreds of agents takes longer than it takes to look hung.
                    self._is_reachable()
                    await asyncio.sleep(0)
                    shown_at = time.monotonic()
            candidates = wanted + self._finalize_ended()
        with self.noting_failures(""):
            living = set(self.workers)
            waiting: list[HeldStart] = []
            reason: str | None = None
            for each in sorted(candidates, key=lambda each: (each.since, each.name)):
                if each.attempt:
                    self.pass_again_in(each.due - hosts.now(self._team))
                elif each.provided:
                    reason = reason or self._placement.queue.cap_reached(living, each.name)
                if each.attempt or reason is not None or not each.provided:
                    waiting.append(each)
                    continue
                living.add(each.name)
                with self.noting_failures(each.name):
                    await self._start(self.watched[each.name], each.run)
            waiting = self._placement.queue.hold(waiting, reason)
            self._has_waiting = bool(waiting)
            self._has_queue = any(each.provided for each in waiting)
        self._memory_groups.sweep()
        with self.noting_failures(""):
            reviews.reconcile(self._team, hosts.now(self._team))
        with self.noting_failures(""):
            self._hook.tick()

    @contextlib.contextmanager
    def noting_failures(self, agent: str) -> Iterator[None]:
        """Log errors in the context, and record unexpected ones as failures with this agent; raise none of them.

        So the other agents are still supervised. An empty `agent` stands for the supervisor as a whole.
        """
        text = f"{agent}: " if agent else ""
        try:
            yield
        except (CrewboardError, OSError, ValueError) as error:
            if not self._placement.is_known(error):
                log.error("%s%s", text, error)  # noqa: TRY400  an expected error: the message is enough
        except Exception as error:
            log.exception("%sunexpected error", text)
            note_failure(self._team, error, agent)
        else:
            if agent:
                self._forget_failure(agent)

    def _reconcile(self, watched: Watched) -> HeldStart | None:
        """Act on the difference between desired and observed state; return the run that should begin, else None."""
        spec = watched.spec.get()
        if spec is None:
            return None
        if watched.ref is None:
            is_held = leases.is_held(watched.agent.lease)
            if self._placement.is_elsewhere(watched, is_held=is_held):
                self.pass_again_in(self._placement.elsewhere_interval)
                return None
            if is_held and self._placement.take_over(watched):
                self._adopt(watched)
            if is_held and watched.ref is None:
                # A worker that has not signed its lease yet, or that has just ended.
                self.pass_again_in(0.1)
                return None
        if watched.ref is not None:
            self._supervise(watched, spec, watched.ref)
            return None
        record = self._record_end(watched)
        if record is not None:
            self._ended.append((watched, record))
            return None
        return self._candidate(watched, spec)

    def _supervise(self, watched: Watched, spec: Spec, worker: Ref) -> None:
        """Keep a living worker within its memory limit, end it if that is desired, and wake it if no event does."""
        if watched.killed == watched.run:
            # At once: it could not record its end either.
            self._launcher.signal(worker, signal.SIGKILL, tree=True)
        limit = spec.flags.max_memory
        in_cgroup = self._memory_groups.set_limit(watched.agent.name, watched.run, limit)
        if limit is not None and not in_cgroup:
            # No cgroup keeps it and its descendants below.
            self.pass_again_in(MEMORY_INTERVAL)
            used = process.resident_bytes(worker.pid)
            if used > limit:
                log.warning("%s uses %d bytes, more than its limit of %d", watched.agent.name, used, limit)
                watched.over_memory = watched.run
                self._launcher.signal(worker, signal.SIGKILL, tree=True)
        is_over = spec.want in ("stopped", "killed")
        if spec.parent is not None and not is_over and not leases.is_held(self._team.agent(spec.parent).lease):
            # An explorer ends with its agent, so that no process waits for its report.
            spec = agents.change_spec(watched.agent, lambda old: (old or spec).replace(want="stopped"))
        if spec.want == "killed" and watched.term_at is None:
            self.terminate(watched)
        elif spec.want == "stopped" and watched.term_at is None:
            watched.term_at = time.monotonic() + STOP_GRACE
        if watched.term_at is not None:
            left = watched.term_at + KILL_GRACE - time.monotonic()
            if left <= 0:
                self._launcher.signal(worker, signal.SIGKILL, tree=True)
            self.pass_again_in(left if left > 0 else KILL_GRACE)
        # No file event tells a worker that its spec was edited, its status damaged or its lease removed. Without its
        # lease it must end within 10 s, and by itself it looks every 15 s while it rests.
        status = watched.status.get()
        if watched.told is not spec or watched.status.damaged or not leases.is_held(watched.agent.lease):
            self.wake_one(watched.agent.name)
        watched.told = spec
        if status is not None and status.offline:
            self.model.keep_running()
        if self._placement.has_lost_lease(watched):
            log.error("%s run %d lost its lease, so it is killed", watched.agent.name, watched.run)
            self._launcher.signal(worker, signal.SIGKILL, tree=True)

    def _adopt(self, watched: Watched) -> None:
        """Watch a living worker that an earlier supervisor started."""
        holder, status = leases.holder(watched.agent.lease, Lease), watched.status.get()
        if holder is None and status is not None and process.is_same(status.pid, status.boot_id, status.start_ticks):
            # It has not signed its lease yet.
            holder = Lease(
                pid=status.pid, run=status.run, boot_id=status.boot_id, start_ticks=status.start_ticks, host=status.host
            )
        if holder is None or holder.boot_id not in ("", process.boot_id()):
            return
        try:
            watched.pidfd = process.watch_end(holder.pid)
        except OSError:
            return
        watched.ref = Ref(holder.pid, holder.start_ticks)
        watched.run = holder.run
        self._memory_groups.adopt(watched.agent.name, holder.run, holder.pid)
        asyncio.get_running_loop().add_reader(watched.pidfd, self._on_adopted_exit, watched, watched.pidfd)
        log.info("adopted %s run %d, pid %d", watched.agent.name, holder.run, holder.pid)

    def _on_adopted_exit(self, watched: Watched, pidfd: int) -> None:
        """Find out how an adopted worker ended. The kernel tells it once the worker's own parent has reaped it."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(pidfd)
        deadline = loop.time() + EXIT_STATUS_TIMEOUT

        def check() -> None:
            status = process.exit_status(pidfd)
            if status is None and loop.time() < deadline:
                loop.call_later(0.05, check)
                return
            watched.ended[watched.run] = Ended() if status is None else Ended.from_status(status)
            self._forget_worker(watched)
            self.wake()

        check()

    # What begins.

    def _candidate(self, watched: Watched, spec: Spec) -> HeldStart | None:
        """Return the desired run if it has not begun and was requested from this or an earlier supervisor.

        None if no run should begin.
        """
        watched.start = self._placement.start_request(watched)
        drop_obsolete_request(watched, spec)
        request = watched.start
        if spec.want != "running" or spec.run <= last_run(watched):
            return None
        provided = request is not None and request.run == spec.run
        held = self._placement.queue.find(watched.agent.name, spec.run)
        if held is None:
            return HeldStart(name=watched.agent.name, run=spec.run, since=spec.at) if provided else None
        held = held.replace(provided=provided)
        return held if held.due > hosts.now(self._team) else held.replace(due=0, attempt=0)

    async def _start(self, watched: Watched, run: int) -> None:
        """Start a run exactly once, with the environment of its start request."""
        request = watched.start
        if request is None:
            return
        environment = self.model.worker_environment(request.environment)
        if environment is None:
            self.pass_again_in(_MODEL_POLL)
            return
        watched.ref = await self._launcher.launch(watched.agent, environment)
        if watched.ref is None:
            return
        watched.run = run
        spec = watched.spec.get()
        if spec is not None and spec.flags.max_memory is not None:
            self._memory_groups.enclose(watched.agent.name, run, watched.ref.pid, spec.flags.max_memory)
        # Kept for a restart: no file holds the API key.
        watched.environment = request.environment if spec is not None and spec.flags.restart else {}
        # A request for a later run may have come while the fork was awaited.
        if watched.start is not None and watched.start.run == run:
            watched.start = None
        log.info("started %s run %d, pid %d", watched.agent.name, run, watched.ref.pid)

    # What ends.

    def _record_end(self, watched: Watched) -> Exit | None:
        """Record how the newest run ended unless that is done; return its record if it must be finalized, else None."""
        if self._is_lost:
            return None
        self._record_observed(watched)
        now = hosts.now(self._team)
        status, record = watched.status.get(), watched.exit.get()
        if status is not None and (record is None or record.run < status.run):
            why = self._placement.why_ended(status)
            if memory := self._reason(watched, status.run):
                why = finalizer.Why(memory, seen_at=why.seen_at)
            record = finalizer.record_exit(watched.agent, status.run, Ended(), now, why)
        if record is None or record.buried or leases.is_held(watched.agent.lease):
            return None
        return self._placement.explain(watched, record)

    def _record_observed(self, watched: Watched) -> None:
        """Record how runs ended whose end this process saw, unless its workers count as lost."""
        if self._is_lost:
            return
        now = hosts.now(self._team)
        if watched.killed in watched.ended:
            # First: by the spec, the end is no crash after which the agent is restarted. A damaged one starts nothing.
            with contextlib.suppress(BadDataError, UsageError):
                agents.want(watched.agent, "killed", watched.killed)
        for run, ended in sorted(watched.ended.items()):
            finalizer.record_exit(watched.agent, run, ended, now, finalizer.Why(self._reason(watched, run)))
        watched.ended.clear()

    def _finalize_ended(self) -> list[HeldStart]:
        """Finalize ended runs, unless others were within `NOTICE_INTERVAL`; return the runs that should begin next."""
        if not self._ended:
            return []
        left = self._told_at + NOTICE_INTERVAL - time.monotonic()
        if left > 0:
            self.pass_again_in(left)
            return []
        now, ended, self._ended = hosts.now(self._team), self._ended, []
        records = finalizer.kill_leftovers([(watched.agent, record) for watched, record in ended])
        released, announced, candidates = [], [], []
        for (watched, old), record in zip(ended, records, strict=True):
            with self.noting_failures(watched.agent.name):
                finalizer.release(watched.agent, now)
                released.append((watched.agent, record))
                announced.append((watched, old))
        if released:
            with self.noting_failures(released[0][0].name):
                finalizer.announce(released, now, self._is_leaving)
                for watched, old in announced:
                    self._restart_if_wanted(watched, old)
                    # Read again: a restart wants another run.
                    spec = watched.spec.get()
                    candidate = self._candidate(watched, spec) if spec is not None else None
                    candidates += [candidate] if candidate is not None else []
        self._told_at = time.monotonic()
        return candidates

    def _is_leaving(self, name: str) -> bool:
        """Return True if an agent is to end, by its spec."""
        spec = self.watch(name).spec.get()
        return spec is not None and spec.want in ("stopped", "killed")

    def _restart_if_wanted(self, watched: Watched, record: Exit) -> None:
        """Request another run after a crash, if the agent was hired with `--restart` and did not crash too often."""
        name, run, now = watched.agent.name, record.run + 1, hosts.now(self._team)
        spec = watched.spec.get()
        if spec is None or not spec.flags.restart or (spec.run, spec.want) != (record.run, "running"):
            return
        if record.reason not in RESTARTED or is_orderly(record) or self._placement.is_ending:
            return
        if not self._placement.queue.restart(name, run, describe_exit(record), now):
            log.warning("%s is not restarted again: %d times in ten minutes", name, MOST_RESTARTS)
            return
        self._placement.keep_restart(name, run, spec, now)

        def edit(old: Spec | None) -> Spec:
            if old is None or (old.run, old.want) != (record.run, "running"):
                return old or spec
            return old.replace(run=run, at=now)

        if agents.change_spec(watched.agent, edit).run == run and watched.environment:
            watched.start = ControlRequest("start", name, run, watched.environment)
        self.pass_again_in(0)

    def _forget_worker(self, watched: Watched) -> None:
        """Forget a worker that has ended, and free its lease once it is recorded how it ended."""
        if watched.ref is not None:
            # Else the lease ends by itself, and this is recorded then.
            with contextlib.suppress(CrewboardError):
                # First: for another process, a run without lease and record is one that no process saw end.
                self._record_observed(watched)
                leases.free(watched.agent.lease, watched.ref.pid, watched.ref.ticks)
        watched.ref = None
        watched.term_at = None
        watched.has_lease = False
        if watched.pidfd is not None:
            os.close(watched.pidfd)
            watched.pidfd = None

    def _reason(self, watched: Watched, run: int) -> str:
        """Return `memory` if its memory limit ended a run, `killed` if a command asked for that; else an empty text."""
        if run == watched.killed:
            return "killed"
        is_over = run == watched.over_memory or self._memory_groups.exceeded(watched.agent.name, run)
        return "memory" if is_over else ""

    def _forget_failure(self, agent: str) -> None:
        """Remove the record of a failure with `agent`, or of the supervisor itself if empty: it has worked since."""
        failure = self._failure.last_good
        if failure is not None and failure.agent == agent:
            with contextlib.suppress(StorageError):
                self._team.supervisor_failure.remove()

    def _is_reachable(self) -> bool:
        """Give a sign of life; return False if the socket of this supervisor is gone, so that it gets no requests."""
        try:
            self._stay_reachable()
        except FileNotFoundError:
            return False
        except (CrewboardError, OSError) as error:
            log.error("%s", error)  # noqa: TRY400  an expected error: the message is enough
        return True
