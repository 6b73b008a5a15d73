"""Read the team in a thread of its own, which sends the app only what is new.

The app says what the shown view asks (`queries.Query`); nothing else is read. One message goes to the app for each
batch of changes, at most eight a second while they keep coming, and none while nothing changes.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import crewboard as core
from crewboard import OPERATOR, CrewboardError, TeamReader, TeamView
from crewboard_tui.queries import Query, Readers, Snapshot

BURST = 1 / 8
"""Seconds between two publications while changes keep coming."""

RING_EVERY = 5.0
"""Seconds between two attempts to wake a supervisor that is gone."""

log = logging.getLogger(__name__)


@dataclass
class Pace:
    """The time to gather changes before the next snapshot: short after quiet, longer in a burst."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=4))

    def note(self, now: float) -> None:
        """Something was published."""
        self.recent.append(now)

    def delay(self, now: float) -> float:
        """Seconds to gather from now on."""
        busy = len(self.recent) == self.recent.maxlen and now - self.recent[0] < 1
        return BURST if busy else core.readmodel.watcher.GATHER


class TeamPoller:
    """The thread that reads the team. It calls `publish` with what is new.

    `provide` sends the user's environment to the supervisor if an earlier one was killed and it was lost.
    """

    def __init__(
        self,
        team: core.store.TeamDirectory,
        publish: Callable[[Snapshot], object],
        *,
        clock: Callable[[], float],
        probe: core.readmodel.Probe | None = None,
        may_ring: bool = True,
        provide: Callable[[], object] = lambda: None,
    ) -> None:
        self._team = team
        self._provide = provide
        self._publish = publish
        probe = probe or core.readmodel.KernelProbe()
        self._reader = TeamReader(team, clock=clock, probe=probe)
        self._readers = Readers(team, probe)
        self._pace = Pace()
        self._queries: frozenset[Query[object]] = frozenset()
        self._last: Snapshot | None = None
        self._may_ring = may_ring
        self._rang_at = float("-inf")
        self._watcher = core.readmodel.watcher.Watcher(
            team.path, self._read, pace=lambda: self._pace.delay(time.monotonic())
        )

    def first(self) -> Snapshot:
        """Read the team before the thread starts, so that the first screen shows real data.

        No warning about missing file events is shown until the thread has tested them.
        """
        self._last = replace(self._snapshot(), hinted=True)
        return self._last

    def start(self) -> None:
        """Start reading the team."""
        self._watcher.start()

    def stop(self) -> None:
        """Stop reading."""
        self._watcher.stop()

    def look_at(self, queries: Iterable[Query[object]]) -> None:
        """Say what the screen asks now; it is read at once."""
        wanted = frozenset(queries)
        if wanted != self._queries:
            self._queries = wanted
            self._watcher.poke()

    def poke(self) -> None:
        """Read at once: the user has just changed something."""
        self._watcher.poke()

    def _read(self) -> None:
        snapshot = self._snapshot()
        if self._last is None or _differs(snapshot, self._last):
            self._last = snapshot
            self._pace.note(time.monotonic())
            self._publish(snapshot)
        self._wake_supervisor(snapshot.view)

    def _snapshot(self) -> Snapshot:
        try:
            view = self._reader.read()
            self._readers.note(view)
            return self._answer(Snapshot(view, hinted=self._watcher.hinted))
        except (CrewboardError, OSError) as error:
            problem = str(error)
        except Exception as error:
            # Reading goes on at the next change; a thread that died would leave a screen that lies.
            log.exception("reading failed")
            problem = f"an error in crewboard while reading: {type(error).__name__}: {error}"
        return replace(self._last or Snapshot(_nothing(self._team)), problem=problem)

    def _answer(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the answers; one that cannot be read keeps what it was, and the rest is shown."""
        before = self._last.answers if self._last is not None else {}
        answers, problem = {}, None
        for query in self._queries:
            try:
                answers[query] = query.read(self._readers, snapshot.view)
            except (CrewboardError, OSError) as error:
                problem = str(error)
                if query in before:
                    answers[query] = before[query]
        return replace(snapshot, answers=answers, problem=problem)

    def _wake_supervisor(self, view: TeamView) -> None:
        """Wake a supervisor that was killed: no other process may notice that it is gone."""
        due = time.monotonic() - self._rang_at > RING_EVERY
        gone = not view.supervisor.alive and self._is_needed(view)
        if self._may_ring and due and (gone or view.unprovided):
            self._rang_at = time.monotonic()
            threading.Thread(target=self._ring, name="crewboard-ring", daemon=True).start()

    def _is_needed(self, view: TeamView) -> bool:
        return view.unprovided or any(
            agent.alive
            or agent.state == "queued"
            or core.protocol.supervisor_client.is_unfinalized(self._team.agent(agent.name))
            for agent in view.agents
        )

    def _ring(self) -> None:
        try:
            core.protocol.supervisor_client.wake_supervisor(self._team)
            self._provide()
        except (CrewboardError, OSError) as error:
            log.warning("no supervisor: %s", error)


def _nothing(team: core.store.TeamDirectory) -> TeamView:
    """Return the view of a team of which nothing could be read."""
    return TeamView(
        name=team.path.name, path=team.path, root=team.root, description="", plan_approver=OPERATOR,
        model_backend="api", supervisor=core.readmodel.SupervisorView(None, alive=False), agents=(), requests=(),
        tasks=(), needs=(),
    )  # fmt: skip


def _differs(new: Snapshot, old: Snapshot) -> bool:
    """Return True if anything but the time of reading is different."""
    return replace(new, view=replace(new.view, now=0)) != replace(old, view=replace(old.view, now=0))
