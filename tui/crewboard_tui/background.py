"""Jobs that must not block the screen, and the messages that report them.

Each command runs in a thread of its own: starting a worker takes a second.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from textual.message import Message

from crewboard import CrewboardError, StorageError, TryLaterError
from crewboard_tui.poller import TeamPoller
from crewboard_tui.queries import Snapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

Then = Callable[[bool, str], None]
"""A function that is called in the app's loop after a command, with True if it worked, and its message."""


class TeamRead(Message):
    """Sent by the poller `reading` after it found something new that may be on the screen."""

    def __init__(self, reading: TeamPoller, snapshot: Snapshot) -> None:
        super().__init__()
        self.reading = reading
        self.snapshot = snapshot


class JobDone(Message):
    """Sent when a command ends: `says` is the message for the user, `error` is True if the command failed.

    `then` informs the screen that started it. `settle` updates the drafts; it is always called, even if the dashboard
    was closed in the meantime.
    """

    def __init__(
        self,
        says: str,
        error: bool,  # noqa: FBT001
        then: Callable[[bool, str], None] | None = None,
        settle: Callable[[bool, str], None] | None = None,
    ) -> None:
        super().__init__()
        self.says = says
        self.error = error
        self.then = then
        self.settle = settle


class BackgroundJobs:
    """Runs commands, each in a daemon thread, so that none can prevent the dashboard from ending."""

    def __init__(self, post: Callable[[Message], bool]) -> None:
        self._post = post
        self._running: list[tuple[str, threading.Thread]] = []
        self._unheard: dict[int, JobDone] = {}

    def start(
        self,
        label: str,
        command: Callable[[], str],
        then: Then | None = None,
        settle: Then | None = None,
        if_away: str = "",
    ) -> None:
        """Run `command`, which returns a message about what it did. `label` is shown while it runs.

        `then` and `settle` are as in `JobDone`. If the command fails because the database of the team is away, the
        message is `if_away`.
        """
        given = (command, then, settle, if_away)
        thread = threading.Thread(target=self._run, args=given, name=f"crewboard {label}", daemon=True)
        self._running = [*self.running(), (label, thread)]
        thread.start()

    async def wait_for(
        self, label: str, command: Callable[[], T], says: Callable[[T], str] = lambda _: "", if_away: str = ""
    ) -> T | None:
        """Run `command` in a thread, and return what it returns; None if it fails, and its error is then shown.

        `says` returns the message about that value. `label` and `if_away` are as in `start`.
        """
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        value: T | None = None

        def run() -> str:
            nonlocal value
            value = command()
            return says(value)

        def settle(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            # Who waits may be gone: the dashboard is being left.
            if not ended.done():
                ended.set_result(worked)

        self.start(label, run, settle=settle, if_away=if_away)
        return value if await ended else None

    def running(self) -> list[tuple[str, threading.Thread]]:
        """Return the label and the thread of each job that is still running."""
        return [(label, thread) for label, thread in self._running if thread.is_alive()]

    def hear(self, done: JobDone) -> None:
        """Call `settle` of a job before its outcome is reported."""
        self._unheard.pop(id(done), None)
        if done.settle is not None:
            done.settle(not done.error, done.says)

    def hear_rest(self) -> list[str]:
        """Settle the jobs that ended after the app had stopped; return the messages of those that failed."""
        rest = list(self._unheard.values())
        for done in rest:
            self.hear(done)
        return [done.says for done in rest if done.error]

    def _run(self, command: Callable[[], str], then: Then | None, settle: Then | None, if_away: str) -> None:
        try:
            done = JobDone(command(), error=False, then=then, settle=settle)
        except CrewboardError as error:
            is_away = isinstance(error, StorageError) and error.away
            done = JobDone((is_away and if_away) or str(error), error=True, then=then, settle=settle)
        except OSError as error:
            done = JobDone(f"the system refused: {error}", error=True, then=then, settle=settle)
        except Exception as error:
            # A bug must not vanish in a thread that is never joined.
            log.exception("a command failed")
            says = f"an error in crewboard: {type(error).__name__}: {error}"
            done = JobDone(says, error=True, then=then, settle=settle)
        self._unheard[id(done)] = done  # the dashboard may be gone before it is told
        self._post(done)


def run_for_each(names: Sequence[str], command: Callable[[str], str], done: str) -> str:
    """Run `command` for each of `names` at the same time, and return a sentence about it.

    For one name it is the command's own sentence, for several `3 DONE: a, b, c`.

    Raises:
        CrewboardError: The command failed for the only name.
        TryLaterError: It failed for some of several names; the message says for which, and why.
    """
    if len(names) == 1:
        return command(names[0])
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
        runs = {name: pool.submit(command, name) for name in names}
    failed: dict[str, str] = {}
    for name, run in runs.items():
        try:
            run.result()
        except (CrewboardError, OSError) as error:
            is_away = isinstance(error, StorageError) and error.away
            failed[name] = "the database is away" if is_away else str(error)
    worked = [name for name in names if name not in failed]
    if not failed:
        return f"{len(names)} {done}: {', '.join(names)}"
    reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
    raise TryLaterError(
        f"{len(worked)} of {len(names)} {done}{': ' if worked else ''}{', '.join(worked)}; not {reasons}"
    )
