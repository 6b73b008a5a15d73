"""Starts that the supervisor holds back, kept in `starts.json`: over a cap of the team, or until a restart is due."""

import logging

from crewboard.errors import CrewboardError
from crewboard.records.processes import MOST_RESTARTS, HeldStart, HeldStarts
from crewboard.store import hosts, roster
from crewboard.store.layout import TeamDirectory

log = logging.getLogger(__name__)


RESTARTED = frozenset({"died", "terminated", "internal", "storage", "memory"})
"""Reasons of an end after which an agent is restarted: not a stop by the user, a used-up budget or bad credentials."""

RESTART_PERIOD = 600.0
"""Seconds in which an agent is restarted `MOST_RESTARTS` times at most."""

LONGEST_DELAY = 60.0
"""Seconds that a restart waits at most; the first one waits one second, each further one twice as long."""

_KNOWN_RESTARTS = 10


def restart_delay(times: list[float], now: float) -> tuple[float | None, int]:
    """Return after how many seconds an agent restarts, and which attempt that is; None if it was restarted too often.

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
    """The queue of one team, or of its `host`. It is loaded when the supervisor starts, for its record lasts."""

    def __init__(self, team: TeamDirectory, host: str = "") -> None:
        self.cap = ""
        """The cap of the team that kept the host from claiming more; empty if none did."""
        self._team = team
        self._host = host
        self._place = team.host(host).held if host else team.starts
        self._held = self._place.watch()

    def find(self, name: str, run: int) -> HeldStart | None:
        """Return this run if it is held back, also by an earlier supervisor."""
        return self._state().find(name, run)

    def restart(self, name: str, run: int, reason: str, now: float) -> bool:
        """Hold back the run with which an agent restarts; return False if it was restarted too often.

        Raises:
            StorageError: It cannot be recorded.
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
        """Return in words why this agent may not start in addition to the `living`; None if it may.

        A host looks at the caps with the claim.
        """
        if self._host:
            return None
        config = roster.load(self._team)
        return roster.cap_reached(config, roster.load_of(self._team, living, name)) if roster.has_caps(config) else None

    def hold(self, starts: list[HeldStart], reason: str | None) -> list[HeldStart]:
        """Record which runs wait, in this order, and why; the reason of those that only lack their environment stays.

        Return what waits: on a host also the runs that a cap of the team keeps in the queue of all hosts. If the file
        cannot be written, the queue is not shown; nothing else fails.
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
