"""Starting workers from a warm parent where there is one, and as new interpreters where there is not."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping

from crewboard import env
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.supervisor.launcher import Ended, PopenLauncher, Ref
from crewboard.supervisor.prefork_client import STUCK_AFTER, PreforkClient, can_prefork, code_fingerprint

log = logging.getLogger(__name__)


class PreforkLauncher:
    """Forks workers from a warm parent; falls back on new interpreters."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._cold = PopenLauncher()
        self._zygote: PreforkClient | None = None
        self._failed = ""
        """The stamp of code that did not come up."""
        self._wake: Callable[[], None] = lambda: None
        self._enabled = sys.platform == "linux" and env.may_prefork()

    def open(self, wake: Callable[[], None]) -> None:
        """Begin to warm up; `wake` is called whenever a start that was put off should be tried again."""
        self._wake = wake
        self._current()

    def close(self) -> None:
        """End the warm parent."""
        if self._zygote is not None:
            self._forget(self._zygote)

    def launch(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref | None:
        """Start the agent's worker; None if it is quicker to wait for the warm parent, and to try again when woken."""
        zygote = self._current() if can_prefork(environment) else None
        if zygote is not None and zygote.is_coming():
            asyncio.get_running_loop().call_later(STUCK_AFTER, self._wake)
            return None
        if zygote is not None and zygote.is_ready:
            pid = zygote.bear(agent, environment)
            if pid is not None:
                return self._cold.adopt(pid)
            self._forget(zygote)
        return self._cold.launch(agent, environment)

    def start(self, module: list[str], environment: Mapping[str, str], log: int) -> Ref:
        """Start `python -I -m` with `module` and its arguments, its output into the descriptor `log`."""
        return self._cold.start(module, environment, log)

    def signal(self, ref: Ref, number: int, *, tree: bool = False) -> None:
        """Signal a worker; with `tree`, everything below it too."""
        self._cold.signal(ref, number, tree=tree)

    def reap(self) -> dict[int, Ended]:
        """What has ended since the last call, by pid; what fell to us by that is ended too."""
        return self._cold.reap()

    # ------------------------------------------------------------------------------------------ the warm parent

    def _current(self) -> PreforkClient | None:
        """The parent that has the code of today: an old one is ended, and a new one begun, where that may help."""
        if not self._enabled:
            return None
        stamp = code_fingerprint()
        if self._zygote is not None and self._zygote.stamp != stamp:
            log.info("the code changed; the warm parent is begun anew")
            self._forget(self._zygote)
        if self._zygote is None and stamp != self._failed:
            self._begin(stamp)
        return self._zygote

    def _begin(self, stamp: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            zygote = self._zygote = PreforkClient(self._team, self._cold, stamp)
        except OSError as error:
            log.warning("no warm parent: %s", error)
            return
        loop.add_reader(zygote.control, self._hear, zygote)

    def _hear(self, zygote: PreforkClient) -> None:
        if zygote.hear():
            log.info("warm after %.2f s, pid %d", time.monotonic() - zygote.born_at, zygote.ref.pid)
        else:
            self._failed = self._failed if zygote.is_ready else zygote.stamp
            log.warning("the warm parent ended, pid %d", zygote.ref.pid)
            self._forget(zygote)
        self._wake()

    def _forget(self, zygote: PreforkClient) -> None:
        asyncio.get_running_loop().remove_reader(zygote.control)
        zygote.end()
        self._zygote = None
