"""The supervisor itself: compares what each agent should be with what lives, and acts on the difference."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crewboard.errors import CrewboardError
from crewboard.linux import process
from crewboard.names import is_name
from crewboard.records import Exit, Lease, Spec, Status
from crewboard.store import leases
from crewboard.store.json_files import CachedFile
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.supervisor import finalizer, offline_model
from crewboard.supervisor.launcher import Ended, Launcher, Ref
from crewboard.supervisor.notifier import ChangeNotifier

SWEEP = 2.0
"""Seconds between two looks when nothing calls for one."""

LINGER = 180.0
"""Seconds that a supervisor stays after its last worker."""

GRACE = 2.0
"""Seconds between asking a process to end and ending it with all that it started."""

LEAVE_PATIENCE = 10.0
"""Seconds that a worker has to leave after it agreed to shut down."""

STATUS_PATIENCE = 2.0
"""Seconds to wait for the kernel's word on how a process that is not our child ended."""

log = logging.getLogger(__name__)


@dataclass
class Watched:
    """One agent as the supervisor knows it."""

    agent: AgentDirectory
    spec: CachedFile[Spec]
    status: CachedFile[Status]
    exit: CachedFile[Exit]
    ref: Ref | None = None
    """Its living worker."""
    run: int = 0
    """The run of that worker."""
    pidfd: int | None = None
    """Set for a worker that is not our child."""
    environment: dict[str, str] | None = None
    """What a ring brought for the run that is wanted; kept until it began."""
    environment_run: int = 0
    told_at: float | None = None
    """When it was told to end (monotonic)."""
    ended: dict[int, Ended] = field(default_factory=dict)
    """How runs of our own children ended, until it is recorded."""


class Supervisor:
    """One team's supervisor. `introduce` says in its lock where it listens, if that does not stand there."""

    def __init__(self, team: TeamDirectory, launcher: Launcher, introduce: Callable[[], None]) -> None:
        self._team = team
        self._introduce = introduce
        self._launcher = launcher
        self._watched: dict[str, Watched] = {}
        self._wake = asyncio.Event()
        self._doorbells = ChangeNotifier(team)
        self._leaving = False
        self._alone_since = time.monotonic()
        self._next_look = SWEEP

    def on_ring(self, ring: dict[str, Any]) -> None:
        """Take a ring: note what a start brought, then look."""
        name, run = ring.get("name"), ring.get("run")
        if ring.get("verb") == "start" and isinstance(name, str) and is_name(name) and isinstance(run, int):
            watched = self._watch(name)
            watched.environment = {str(k): str(v) for k, v in (ring.get("environment") or {}).items()}
            watched.environment_run = run
            self._leaving = False
        elif ring.get("verb") == "leave":
            self._leaving = True
        self._wake.set()

    async def run(self) -> None:
        """Work until the last worker has been gone for a while, or at once after it when told to leave."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._wake.set)
        self._doorbells.start(loop)
        self._launcher.open(self._wake.set)
        while self._has_reason_to_stay():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._next_look)
            self._wake.clear()
            self._next_look = SWEEP
            self._look()
        self._launcher.close()
        self._doorbells.stop()

    def _has_reason_to_stay(self) -> bool:
        if any(watched.ref for watched in self._watched.values()):
            self._alone_since = time.monotonic()
            return True
        return not self._leaving and time.monotonic() - self._alone_since < LINGER

    def _look_again_in(self, seconds: float) -> None:
        self._next_look = min(self._next_look, max(seconds, 0.01))

    # ------------------------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        self._stay_known()
        self._reap()
        for name in self._hired():
            watched = self._watch(name)
            try:
                self._reconcile(watched)
            except (CrewboardError, OSError, ValueError) as error:
                log.error("%s: %s", name, error)  # noqa: TRY400  the sentence says it; there is no bug to trace

    def _stay_known(self) -> None:
        """Mend the lock if it was damaged: a supervisor that nobody can ring starts and ends nobody."""
        try:
            self._introduce()
        except CrewboardError as error:
            log.error("%s", error)  # noqa: TRY400  as below

    def _hired(self) -> list[str]:
        try:
            return sorted(path.name for path in self._team.agents.iterdir() if is_name(path.name))
        except OSError:
            self._leaving = True  # the team was purged
            return []

    def _watch(self, name: str) -> Watched:
        if name not in self._watched:
            agent = self._team.agent(name)
            self._watched[name] = Watched(
                agent, CachedFile(agent.spec, Spec), CachedFile(agent.status, Status), CachedFile(agent.exit, Exit)
            )
        return self._watched[name]

    def _reap(self) -> None:
        ended = self._launcher.reap()
        for watched in self._watched.values():
            if watched.ref is not None and watched.pidfd is None and watched.ref.pid in ended:
                if not self._was_superfluous(watched):
                    watched.ended[watched.run] = ended[watched.ref.pid]
                self._forget_worker(watched)

    @staticmethod
    def _was_superfluous(watched: Watched) -> bool:
        """Whether our child left because another process had that run already."""
        status = watched.status.get()
        return (
            status is not None
            and watched.ref is not None
            and status.run == watched.run
            and status.pid != watched.ref.pid
        )

    @staticmethod
    def _forget_worker(watched: Watched) -> None:
        watched.ref = None
        watched.told_at = None
        if watched.pidfd is not None:
            os.close(watched.pidfd)
            watched.pidfd = None

    # -------------------------------------------------------------------------------------------------- acting

    def _reconcile(self, watched: Watched) -> None:
        spec = watched.spec.get()
        if spec is None:
            return
        if watched.ref is None and leases.is_held(watched.agent.lease):
            self._adopt(watched)
        if watched.ref is not None:
            self._end_if_wanted(watched, spec)
            return
        if leases.is_held(watched.agent.lease):
            self._look_again_in(0.1)  # a worker that has not signed its lease yet
            return
        self._bury(watched)
        self._start_if_wanted(watched, spec)

    def _adopt(self, watched: Watched) -> None:
        """Watch over a living worker that an earlier supervisor started."""
        holder = leases.holder(watched.agent.lease, Lease) or self._by_status(watched)
        if holder is None:
            return
        try:
            watched.pidfd = os.pidfd_open(holder.pid)
        except OSError:
            return
        watched.ref = Ref(holder.pid, holder.start_ticks)
        watched.run = holder.run
        asyncio.get_running_loop().add_reader(watched.pidfd, self._adopted_ended, watched, watched.pidfd)
        log.info("adopted %s run %d, pid %d", watched.agent.name, holder.run, holder.pid)

    @staticmethod
    def _by_status(watched: Watched) -> Lease | None:
        """Who holds a lease that does not say so, as far as the status tells."""
        status = watched.status.get()
        if status is None or not process.is_same(status.pid, status.boot_id, status.start_ticks):
            return None
        return Lease(pid=status.pid, run=status.run, boot_id=status.boot_id, start_ticks=status.start_ticks)

    def _adopted_ended(self, watched: Watched, pidfd: int) -> None:
        """Learn how an adopted worker ended; its own parent must have reaped it before the kernel tells."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(pidfd)
        deadline = loop.time() + STATUS_PATIENCE

        def ask() -> None:
            status = process.exit_status(pidfd)
            if status is None and loop.time() < deadline:
                loop.call_later(0.05, ask)
                return
            watched.ended[watched.run] = Ended() if status is None else Ended.from_status(status)
            self._forget_worker(watched)
            self._wake.set()

        ask()

    def _start_if_wanted(self, watched: Watched, spec: Spec) -> None:
        """Start the wanted run, once, with the environment that a ring brought for it."""
        begun = self._last_run(watched)
        if spec.want != "running" or spec.run <= begun or watched.environment_run != spec.run:
            return
        if watched.environment is None:
            return
        environment = offline_model.environment_for(self._team, self._launcher, watched.environment)
        watched.ref = self._launcher.launch(watched.agent, environment)
        if watched.ref is None:
            return
        watched.environment = None
        watched.run = spec.run
        log.info("started %s run %d, pid %d", watched.agent.name, spec.run, watched.ref.pid)

    @staticmethod
    def _last_run(watched: Watched) -> int:
        status, ended = watched.status.get(), watched.exit.get()
        return max(status.run if status else 0, ended.run if ended else 0)

    def _end_if_wanted(self, watched: Watched, spec: Spec) -> None:
        if watched.ref is None:
            return
        if spec.want == "killed" and watched.told_at is None:
            watched.told_at = time.monotonic()
            self._launcher.signal(watched.ref, signal.SIGTERM)
        elif spec.want == "stopped" and watched.told_at is None:
            watched.told_at = time.monotonic() + LEAVE_PATIENCE
        if watched.told_at is not None:
            left = watched.told_at + GRACE - time.monotonic()
            if left <= 0:
                self._launcher.signal(watched.ref, signal.SIGKILL, tree=True)
            self._look_again_in(left if left > 0 else GRACE)

    def _bury(self, watched: Watched) -> None:
        """Make the end of the newest run known, if it is not yet."""
        now = time.time()
        for run, ended in sorted(watched.ended.items()):
            finalizer.record_exit(watched.agent, run, ended, now)
        watched.ended.clear()
        status, record = watched.status.get(), watched.exit.get()
        if status is not None and (record is None or record.run < status.run):
            record = finalizer.record_exit(watched.agent, status.run, Ended(), now)
        if record is not None and not record.buried and not leases.is_held(watched.agent.lease):
            finalizer.finalize(watched.agent, record, now)
