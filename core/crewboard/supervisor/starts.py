"""Starts that the supervisor holds back because a cap of the team is reached: the queue, kept in `starts.json`."""

import logging
from dataclasses import dataclass

from crewboard.errors import CrewboardError
from crewboard.records import HeldStart, HeldStarts
from crewboard.store import CachedFile, TeamDirectory, json_files, roster

log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Candidate:
    """A run that should begin, asked for at `at`; ordered by that. `provided` says that its environment is here."""

    at: float
    name: str
    run: int
    provided: bool = True


class StartQueue:
    """The queue of one team. It is read at the start, so that an agent keeps its place under the next supervisor."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._held = CachedFile(team.starts, HeldStarts)

    def holds(self, name: str, run: int) -> bool:
        """Return True if this run is queued."""
        return self._state().find(name, run) is not None

    def cap_reached(self, living: set[str]) -> str | None:
        """Return in words why no further agent may start beside the `living`; None if one may."""
        config = roster.load(self._team)
        return roster.cap_reached(config, roster.load_of(self._team, living)) if roster.has_caps(config) else None

    def hold(self, candidates: list[Candidate], reason: str | None) -> None:
        """Record which runs wait, in this order, and why; the reason of those that only lack their environment stays.

        A file that cannot be written only means that nothing shows the queue.
        """
        before = self._state()
        held = []
        for each in candidates:
            known = before.find(each.name, each.run)
            why = reason or (known.reason if known is not None else "")
            held.append(HeldStart(name=each.name, run=each.run, since=each.at, reason=why, provided=each.provided))
        if held == before.held:
            return
        try:
            json_files.save(self._team.starts, before.model_copy(update={"held": held}))
        except CrewboardError as error:
            log.warning("the queue is not recorded: %s", error)

    def _state(self) -> HeldStarts:
        return self._held.get() or HeldStarts()
