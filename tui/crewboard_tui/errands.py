"""Commands take their time: a worker needs a second to come up. Each runs in a thread of its own, never in the loop."""

import logging
import threading
from collections.abc import Callable

from textual.message import Message

from crewboard.errors import CrewboardError
from crewboard_tui.messages import ErrandDone

log = logging.getLogger(__name__)

Then = Callable[[bool, str], None]
"""Called in the app's loop afterwards: whether it worked, and the sentence that says so."""


class Errands:
    """The commands that are under way. Daemon threads, so that none can keep the dashboard from ending."""

    def __init__(self, post: Callable[[Message], bool]) -> None:
        self._post = post
        self._running: list[tuple[str, threading.Thread]] = []

    def start(self, label: str, command: Callable[[], str], then: Then | None = None) -> None:
        """Run `command`, which returns the sentence that says what it did. `label` says what is being done."""
        thread = threading.Thread(target=self._run, args=(command, then), name=f"crewboard {label}", daemon=True)
        self._running = [*self.running(), (label, thread)]
        thread.start()

    def running(self) -> list[tuple[str, threading.Thread]]:
        """What is still under way."""
        return [(label, thread) for label, thread in self._running if thread.is_alive()]

    def _run(self, command: Callable[[], str], then: Then | None) -> None:
        try:
            done = ErrandDone(command(), error=False, then=then)
        except CrewboardError as error:
            done = ErrandDone(str(error), error=True, then=then)
        except OSError as error:
            done = ErrandDone(f"the system refused: {error}", error=True, then=then)
        except Exception as error:
            # A fault of ours must not vanish in a thread that nobody joins.
            log.exception("a command failed")
            done = ErrandDone(f"an error in crewboard: {type(error).__name__}: {error}", error=True, then=then)
        self._post(done)
