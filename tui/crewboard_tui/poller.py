"""Read the team in a thread of its own, which sends the app only what is new.

The app sets the queries of the shown view (`queries.Query`); nothing else is read. A file event has the files of its
agent read; all agents are read in turn, in case an event was lost, and for changes without an event. The first changes
are read at once; while more keep coming, at most four times a second, or eight while the user presses keys. Each
reading sends one message to the app, or none if nothing has changed that the screen shows.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from crewboard import CrewboardError, StorageError, TeamReader, TeamView
from crewboard.protocol import supervisor_client
from crewboard.readmodel import watcher
from crewboard.readmodel.processes import KernelProbe
from crewboard.records.agents import State
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard_tui.queries import FROM_FILES, Query, Readers, Snapshot

if TYPE_CHECKING:
    from crewboard.attach.mirror import MirrorThread

BURST = 1 / 4
"""Seconds between two readings while changes keep coming: more would cost time, and be seen by no one."""

BURST_AT_KEYS = 1 / 8
"""Seconds between two readings in a burst while the user presses keys, and looks for what they change."""

_AT_KEYS = 2.0
"""Seconds after a key in which the user counts as pressing keys."""

_MANY = 4
"""The number of readings that count as a burst if they are at most `BURST` seconds apart."""

SWEPT = 64
"""Agents that one sweep reads while file events arrive, so that a key waits for no reading of thousands."""

KEY_FIRST = 0.05
"""Seconds at most for which reading waits until a key is answered: both need the interpreter."""

KEYS_FIRST = 0.15
"""Seconds at most for which one reading waits for keys."""

RING_EVERY = 5.0
"""Seconds between two attempts to wake a supervisor that is gone."""

_RESTING: frozenset[State] = frozenset({"idle", "paused", "exited", "crashed", "vanished"})
"""The states that do not end by themselves."""

SHOWN_IN_SECONDS = 60.0
"""Seconds below which an age is shown in seconds."""

LATE = 2.0
"""Seconds after which a reading that waits for a database is shown as unanswered."""

log = logging.getLogger(__name__)


class Pace(Struct):
    """The time to gather changes before the next reading: short after quiet, longer in a burst."""

    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_MANY))

    def note(self, now: float) -> None:
        """Note a reading, also one that finds nothing new: it costs as much as another."""
        self.recent.append(now)

    def delay(self, now: float, key_at: float) -> float:
        """Return the seconds to gather changes before the next reading; the last key was pressed at `key_at`."""
        if len(self.recent) < _MANY or now - self.recent[0] >= _MANY * BURST:
            return watcher.GATHER
        return BURST_AT_KEYS if now - key_at < _AT_KEYS else BURST


class KeysFirst:
    """Lets the reading thread wait while the screen answers a key, so that the key waits for no reading."""

    def __init__(self) -> None:
        self._painted = threading.Event()
        self._painted.set()
        self._until = 0.0
        self._left = KEYS_FIRST
        self.key_at = float("-inf")
        """The time of the last key (monotonic)."""

    def note_key(self) -> None:
        """Note that the screen begins to answer a key. Called by the app."""
        self.key_at = time.monotonic()
        self.note_outcome()

    def note_outcome(self) -> None:
        """Note that the screen is about to show the outcome of a key. Called by the app."""
        self._until = time.monotonic() + KEY_FIRST
        self._painted.clear()

    def note_paint(self) -> None:
        """Note that the answer is painted. Called by the screen."""
        self._painted.set()

    def begin(self) -> None:
        """Begin a reading. It waits for at most `KEYS_FIRST` seconds in all, because held keys must not stop it."""
        self._left = KEYS_FIRST

    def wait(self) -> None:
        """Wait until a key is answered, or its time is over. Called by the reading thread."""
        if self._painted.is_set() or self._left <= 0:
            return
        began = time.monotonic()
        self._painted.wait(max(0.0, min(self._until - began, self._left)))
        self._left -= time.monotonic() - began


class TeamPoller:
    """The thread that reads the team. It calls `publish` with each new snapshot.

    Unless `may_ring` is False, it starts a supervisor if one is needed. `provide` sends the user's environment to the
    supervisor if an earlier one was killed and the environment was lost.
    """

    def __init__(
        self,
        team: TeamDirectory,
        publish: Callable[[Snapshot], object],
        *,
        clock: Callable[[], float],
        probe: KernelProbe | None = None,
        may_ring: bool = True,
        provide: Callable[[], object] = lambda: None,
    ) -> None:
        self._team = team
        self._provide = provide
        self._publish = publish
        probe = probe or KernelProbe()
        self.shown: Sequence[str] = ()
        """The agents whose rows are on the screen. Each sweep reads them first."""
        self.keys = KeysFirst()
        """Makes a reading wait while the screen answers a key."""
        self._reader = TeamReader(team, clock=clock, probe=probe, between=self.keys.wait)
        self._readers = Readers(team, probe)
        self._pace = Pace()
        self._queries: frozenset[Query[object]] = frozenset()
        self._answered = self._queries
        self._last: Snapshot | None = None
        self._may_ring = may_ring
        self._rang_at = float("-inf")
        self._swept_at = float("-inf")
        self._next = 0
        """The place on the roster of the first agent of the next sweep."""
        self._began: float | None = None
        """The start of the reading under way (monotonic)."""
        self._mirror: MirrorThread | None = None
        self._watcher = watcher.Watcher(
            team.path,
            self._read,
            answer=self._answer_again,
            pace=lambda: self._pace.delay(time.monotonic(), self.keys.key_at),
            is_calm=self._is_calm,
        )

    def first(self) -> Snapshot:
        """Read the team before the thread starts, so that the first screen shows real data.

        No warning about missing file events is shown until the thread has tested them. Of a large team, only the usage
        of the first agents is measured: the first screen would wait for all.
        """
        self._last = replace(self._snapshot(lambda: self._reader.read(measured=SWEPT)), hinted=True)
        return self._last

    def start(self) -> None:
        """Start reading the team, and keep it up to date if it mirrors a team of another program."""
        self._watcher.start()
        if roster.is_attached(self._team) and not self._team.is_foreign():
            # Imported here because few teams mirror one of another program.
            from crewboard.attach.mirror import MirrorThread

            self._mirror = MirrorThread(self._team)
            self._mirror.start()

    def note_late(self) -> None:
        """Publish that the database does not answer, if a reading takes long. Called by the app at each tick."""
        last, began = self._last, self._began
        if last is None or last.away_since is not None or began is None or not self.is_remote:
            return
        if time.monotonic() - began >= LATE:
            self._last = replace(last, problem="no answer yet", away_since=began)
            self._publish(self._last)

    @property
    def is_remote(self) -> bool:
        """Return True if the records of the team are in a database."""
        return self._team.store != self._team.local

    def stop(self) -> None:
        """Stop reading."""
        self._watcher.stop()
        if self._mirror is not None:
            self._mirror.stop()

    def look_at(self, queries: Iterable[Query[object]]) -> None:
        """Set the queries of the screen; if they are others than before, they are read at once."""
        wanted = frozenset(queries)
        if wanted != self._queries:
            self._queries = wanted
            self._watcher.look()

    def note_key(self) -> None:
        """Note that the user pressed a key. Changes since the last reading are then read sooner."""
        self.keys.note_key()
        self._watcher.hurry()

    def poke(self) -> None:
        """Read at once: the user has just changed something."""
        self._watcher.poke()

    def _read(self) -> None:
        self._pace.note(time.monotonic())
        changed = self._watcher.take_changed()
        is_due = time.monotonic() - self._swept_at >= watcher.SWEEP
        if (changed is None or is_due) and len(self._reader.names) <= SWEPT:
            self._swept_at = time.monotonic()
            self._read_and_publish(None)
            return
        if changed is None or changed or not is_due or self._queries != self._answered:
            self._read_and_publish(changed, measured=0)
        # What has changed is shown before the sweep begins.
        if is_due:
            self._swept_at = time.monotonic()
            self._read_and_publish(self._to_sweep())

    def _to_sweep(self) -> Collection[str] | None:
        """Return the agents that are read without an event: those shown, and others in turn; None for all."""
        names = self._reader.names
        if len(names) <= SWEPT:
            return None
        first = self.shown[: SWEPT - SWEPT // 4]
        count = SWEPT - len(first)
        self._next %= len(names)
        found = names[self._next : self._next + count]
        self._next += count
        return {*first, *found}

    def _read_and_publish(self, changed: Collection[str] | None, *, measured: int | None = None) -> None:
        snapshot = self._snapshot(lambda: self._reader.read(changed, measured=measured))
        last = self._last
        if last is not None and replace(snapshot.view, now=0) == replace(last.view, now=0):
            # Nothing but the time of reading is different: a screen sees by the object that only the answers are new.
            snapshot = replace(snapshot, view=last.view)
        if snapshot != last:
            self._last = snapshot
            self._publish(snapshot)
        view = snapshot.view
        due = time.monotonic() - self._rang_at > RING_EVERY
        gone = not view.supervisor.alive and view.supervisor.hosts is None and view.attached is None
        is_needed = gone and any(
            agent.alive or agent.state == "queued" or supervisor_client.is_unfinalized(self._team.agent(agent.name))
            for agent in view.agents
        )
        if self._may_ring and due and (is_needed or view.unprovided):
            self._rang_at = time.monotonic()
            ring = partial(supervisor_client.start_or_tell, self._ring, self._team, log.warning)
            threading.Thread(target=ring, name="crewboard-ring", daemon=True).start()

    def _ring(self, team: TeamDirectory) -> None:
        supervisor_client.wake_supervisor(team)
        self._provide()

    def _answer_again(self) -> None:
        """Read the queries of the screen if they have changed, without reading the team again."""
        last = self._last
        if last is None or self._queries == self._answered:
            return
        # That the team cannot be read stays true of what was read before.
        away = {"problem": last.problem, "away_since": last.away_since} if last.away_since is not None else {}
        self._last = replace(self._snapshot(lambda: last.view), **away)
        if self._last != last:
            self._publish(self._last)

    def _is_calm(self) -> bool:
        """Return True if nothing on the screen changes without a file event, except for usage and disk space."""
        last = self._last
        from_files = all(isinstance(query, FROM_FILES) for query in self._queries)
        return from_files and last is not None and last.problem is None and is_at_rest(last.view)

    def _snapshot(self, read: Callable[[], TeamView]) -> Snapshot:
        self.keys.begin()
        began = self._began = time.monotonic()
        away_since = None
        try:
            view = read()
            self._readers.note(view)
            return self._answer(Snapshot(view, hinted=self._watcher.hinted))
        except (CrewboardError, OSError) as error:
            problem = str(error)
            if isinstance(error, StorageError) and error.away:
                since = self._last.away_since if self._last is not None else None
                away_since = began if since is None else since
        except Exception as error:
            # Reading goes on at the next change; a thread that died would leave a screen that lies.
            log.exception("reading failed")
            problem = f"an error in crewboard while reading: {type(error).__name__}: {error}"
        finally:
            self._began = None
        nothing = TeamView(self._team.path.name, self._team.path, self._team.root)
        return replace(self._last or Snapshot(nothing), problem=problem, away_since=away_since)

    def _answer(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the answers to the queries; a query that cannot be read keeps its last answer."""
        before = self._last.answers if self._last is not None else {}
        answers, problem = {}, None
        self._answered = self._queries
        for query in self._answered:
            try:
                answers[query] = query.read(self._readers, snapshot.view)
            except (CrewboardError, OSError) as error:
                problem = str(error)
                if query in before:
                    answers[query] = before[query]
        return replace(snapshot, answers=answers, problem=problem)


def is_at_rest(view: TeamView) -> bool:
    """Return True if no agent works, starts or ends, no host is up, and supervisor and store are in order."""
    supervised = (
        view.supervisor.alive or view.supervisor.hosts is not None or not any(agent.alive for agent in view.agents)
    )
    return (
        # A host that is up says something new every other second, and may be lost at any time.
        not any(host.is_up for host in view.hosts)
        and supervised
        and view.supervisor.silent_since is None
        and view.storage is None
        and not view.unprovided
        and all(agent.state in _RESTING and not agent.is_open for agent in view.agents)
    )


def is_still(snapshot: Snapshot, now: float) -> bool:
    """Return True if the team is at rest for so long that a view shows all ages in minutes or longer units."""
    view = snapshot.view
    times = [agent.since for agent in view.agents] + [need.since for need in view.needs]
    times += [task.updated_at for task in view.tasks] + [host.seen for host in view.hosts]
    return snapshot.problem is None and is_at_rest(view) and now - max(times, default=0.0) >= SHOWN_IN_SECONDS
