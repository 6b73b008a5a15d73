"""Starts that the supervisor holds back because of a cap of the team, or until a restart is due (`starts.json`).

A host claims runs in `host.py`, from the records of `store/hosts.py`. A run begins only once: `worker/__main__.py`.
"""

import logging

from crewboard.errors import CrewboardError
from crewboard.records.processes import MOST_RESTARTS, HeldStart, HeldStarts
from crewboard.store import hosts, roster
from crewboard.store.layout import TeamDirectory

log = logging.getLogger(__name__)


RESTARTED = frozenset({"died", "terminated", "internal", "storage", "memory"})
"""Reasons of an end after which an agent is restarted: not a stop by the user, a used-up budget or bad credentials."""

RESTART_PERIOD = 600.0
"""Seconds within which an agent is restarted at most `MOST_RESTARTS` times."""

LONGEST_DELAY = 60.0
"""Most seconds that a restart waits. The first restart waits one second, each further one twice as long."""

_KNOWN_RESTARTS = 10


def restart_delay(times: list[float], now: float) -> tuple[float | None, int]:
    """Return after how many seconds an agent restarts, and which attempt that is; (None, 0) if it restarted too often.

    `times` are its earlier restarts, oldest first. Ten minutes without a restart count as recovery.
    """
    recent = [at for at in times if now - at < RESTART_PERIOD]
    if len(recent) >= MOST_RESTARTS:
        return None, 0
    chain, later = 0, now
    for at in reversed(times):
        if later - at >= RESTART_PERIOD:
            break
        chain, later = chain + 1, at
    return min(LONGEST_DELAY, 2.0**chain), len(recent) + 1


class StartQueue:
    """The starts that are held back for one team, or for one `host` of it. They outlast a supervisor, in a record."""

    def __init__(self, team: TeamDirectory, host: str = "") -> None:
        self.cap = ""
        """The cap of the team that kept the host from claiming more; empty if none did."""
        self._team = team
        self._host = host
        self._place = team.host(host).held if host else team.starts
        self._held = self._place.watch()

    def find(self, name: str, run: int) -> HeldStart | None:
        """Return this run if it is held back, by this or an earlier supervisor; else None."""
        return self._state().find(name, run)

    def restart(self, name: str, run: int, reason: str, now: float) -> bool:
        """Hold back the run with which an agent restarts; return False if the agent restarted too often.

        Raises:
            StorageError: The record cannot be written.
        """
        before = self._state()
        times = before.restarts.get(name, [])
        delay, attempt = restart_delay(times, now)
        if delay is None:
            return False
        held = HeldStart(name=name, run=run, since=now, reason=reason, due=now + delay, attempt=attempt)
        restarts = {**before.restarts, name: [*times, now][-_KNOWN_RESTARTS:]}
        self._place.save(HeldStarts(held=[*before.held, held], restarts=restarts))
        return True

    def cap_reached(self, living: set[str], name: str) -> str | None:
        """Return in words which cap keeps this agent from starting beside the agents in `living`; None if none does.

        Always None for a host, which looks at the caps when it claims runs.
        """
        if self._host:
            return None
        config = roster.load(self._team)
        return roster.cap_reached(config, roster.load_of(self._team, living, name)) if roster.has_caps(config) else None

    def hold(self, starts: list[HeldStart], reason: str | None) -> list[HeldStart]:
        """Record which runs wait, in this order, and why; return them.

        `reason` is the cap that was reached; without one, each run keeps its reason. For a host, the result also has
        the runs that a cap keeps in the queue of all hosts. If the record cannot be written, the queue is not shown;
        nothing else fails.
        """
        if self.cap:
            reason = self.cap
            starts = starts + [HeldStart(name=run.agent, run=run.run, since=run.at) for run in hosts.wanted(self._team)]
        before = self._state()
        held = [each.replace(reason=reason) if reason and not each.attempt else each for each in starts]
        try:
            if held != before.held:
                self._place.save(before.replace(held=held))
        except CrewboardError as error:
            log.warning("the queue is not recorded: %s", error)
        return held

    def _state(self) -> HeldStarts:
        return self._held.get() or HeldStarts()
