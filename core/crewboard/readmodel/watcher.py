"""The watcher, which says when to read again: by the store's hints of changes, and in any case after a time (a sweep).

The store's thread only records what changed. The thread of the `Watcher` publishes at once after a quiet time, and then
gathers further changes for a while, so that a burst costs a few reads and not one for each event.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crewboard.errors import CrewboardError
from crewboard.store.interface import Listener
from crewboard.store.layout import TeamDirectory

GATHER = 0.01
"""Seconds for which further changes are gathered after one was published."""

SWEEP = 1.0
"""Seconds without a hint after which a reader reads anyway."""

CALM_SWEEP = 5.0
"""The same seconds, while hints arrive and the reader says that nothing can change without one."""


class Watcher:
    """Calls `publish`, in its own thread, when the team may have changed, and at least every `SWEEP` seconds.

    - `answer` is called in its place if only `look` was called, and the team was read within `SWEEP` seconds.
    - `pace` returns how many seconds to gather further changes after a call; each `hurry` asks for it again.
    - `is_calm` returns True if nothing can change now without a hint: then `CALM_SWEEP` is enough.

    The team need not exist yet.
    """

    def __init__(
        self,
        path: Path,
        publish: Callable[[], None],
        *,
        answer: Callable[[], None] = lambda: None,
        pace: Callable[[], float] = lambda: GATHER,
        is_calm: Callable[[], bool] = lambda: False,
    ) -> None:
        self._path = path
        self._publish = publish
        self._answer = answer
        self._pace = pace
        self._is_calm = is_calm
        self._wake = threading.Event()
        self._changed = _Change(self._wake)
        self._poked = threading.Event()
        self._is_poked = False
        """True if the whole team must be read, and not only what `answer` needs."""
        self._ended = threading.Event()
        self._events: Listener | None = None
        self._watched: int | None = None
        # What happened before the events began, they do not tell.
        self._all_changed = True
        self.refusal: str | None = None
        """Why the system grants no file events; None if it does."""
        self._thread = threading.Thread(target=self._run, name="crewboard-watch", daemon=True)

    @property
    def hinted(self) -> bool:
        """Return True if hints arrive, or no team exists yet. On a network file system there are none."""
        return self._watched is None or self._has_events

    @property
    def _has_events(self) -> bool:
        return self._events is not None and self._events.is_alive()

    def start(self) -> None:
        """Start to watch. If the system grants no file events, only the sweep works."""
        self._thread.start()

    def poke(self) -> None:
        """Make the watcher publish at once, without gathering changes first."""
        self._all_changed = True
        self._is_poked = True
        self.look()

    def look(self) -> None:
        """Make the watcher call `answer` at once, because the reader needs more about an unchanged team.

        If the team was not read within `SWEEP` seconds, the watcher calls `publish` instead.
        """
        self._poked.set()
        self._wake.set()

    def hurry(self) -> None:
        """Make the watcher ask `pace` again, for changes that are being gathered."""
        self._poked.set()

    def take_changed(self) -> frozenset[str] | None:
        """Return the names of agents whose files changed since the last call; None if any file of the team may have."""
        everything, self._all_changed = self._all_changed, False
        if not self._has_events:
            return None
        changed = self._changed.take()
        return None if everything else changed

    def stop(self) -> None:
        """End the watcher's thread and the thread of the hints, without waiting for them.

        Both threads are daemons, and may be in a call to the reader.
        """
        self._ended.set()
        self.poke()

    def _arm(self) -> None:
        """Watch the directory that is at the path now, unless that is done: it may be new, or hints may have ended."""
        try:
            inode = self._path.stat().st_ino
        except OSError:
            return
        if inode == self._watched and (self._events is None or self.hinted):
            return
        self._disarm()
        self._watched = inode
        self._all_changed = True
        try:
            self._events = TeamDirectory(self._path).listen(self._changed.note, deep=True)
            self.refusal = None
        except CrewboardError as error:
            self.refusal = str(error)

    def _disarm(self) -> None:
        if self._events is not None:
            self._events.stop()
            self._events = None

    def _run(self) -> None:
        self._arm()
        is_question = is_swept = False
        published = 0.0
        while not self._ended.is_set():
            self._wake.clear()
            self._poked.clear()
            if is_question:
                self._answer()
            else:
                self._changed.clear()
                self._is_poked = False
                published = time.monotonic()
                self._publish()
                if not is_swept:
                    # Gather further changes until they are to be published. During a burst, hints are held and heard
                    # together at its end: each one alone would wake the thread that hears it.
                    with self._changed.held():
                        self._answer_for(lambda: self._pace() - GATHER)
                    self._answer_for(lambda: GATHER)
            is_question = is_swept = False
            if not (self._changed.is_set() or self._is_poked):
                is_swept = not self._wake.wait(CALM_SWEEP if self._has_events and self._is_calm() else SWEEP)
                if is_swept:
                    self._arm()
                else:
                    # Questions that keep coming do not put off the sweep.
                    is_recent = time.monotonic() - published < SWEEP
                    is_question = is_recent and not (self._changed.is_set() or self._is_poked)
        self._disarm()

    def _answer_for(self, seconds: Callable[[], float]) -> None:
        """Answer questions for so long, which may change meanwhile. End at once after a `poke`."""
        began = time.monotonic()
        while not self._is_poked and (left := began + seconds() - time.monotonic()) > 0 and self._poked.wait(left):
            if not self._is_poked:
                self._poked.clear()
                self._answer()


class _Change(threading.Event):
    """An event that hints set, and the agents that they name. It also sets `wake`, which has other reasons, too."""

    def __init__(self, wake: threading.Event) -> None:
        super().__init__()
        self._wakes = wake
        self._noting = threading.Lock()
        self._heard = threading.Event()
        """Cleared while hints wait in the thread that brings them, and further hints in the system."""
        self._heard.set()
        self._agents: set[str] = set()
        self._all = False

    def set(self) -> None:
        super().set()
        self._wakes.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let hints wait until the context ends."""
        self._heard.clear()
        try:
            yield
        finally:
            self._heard.set()

    def note(self, name: str) -> None:
        """Record the agent that a name belongs to. The few names that belong to no agent are always read."""
        self._heard.wait()
        agent = agent_of(name)
        with self._noting:
            if not name:
                self._all = True
            elif agent:
                self._agents.add(agent)
        self.set()

    def take(self) -> frozenset[str] | None:
        """Return the names of agents recorded since the last call; None if all may have changed."""
        with self._noting:
            everything, self._all = self._all, False
            changed, self._agents = self._agents, set()
        return None if everything else frozenset(changed)


def agent_of(name: str) -> str:
    """Return the name of the agent, or of the mailbox, to which a name in the store belongs; else an empty text.

    Such names are those of files directly in an agent's folder, and of mailboxes.
    """
    match name.split("/"):
        case ["agents", agent, _]:
            return agent
        case ["inbox", mailbox, *_]:
            return mailbox.removesuffix(".jsonl")
    return ""
