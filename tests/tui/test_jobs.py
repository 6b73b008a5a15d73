"""Jobs in the background: what they return to whom waits for it, and what is said of them."""

import asyncio
import threading
from functools import partial

import pytest
from textual.message import Message

from crewboard import UsageError
from crewboard_tui.background import BackgroundJobs, JobDone
from tests.tui.stage import WAIT_TIMEOUT


class Told:
    """Jobs that report into this loop, as they report to the app."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._done = asyncio.Queue[Message]()

        def post(message: Message) -> bool:
            loop.call_soon_threadsafe(self._done.put_nowait, message)
            return True

        self.jobs = BackgroundJobs(post)

    async def hear(self) -> JobDone:
        """Wait for the end of a job, and deal with it as the app does."""
        done = await asyncio.wait_for(self._done.get(), WAIT_TIMEOUT)
        assert isinstance(done, JobDone)
        self.jobs.hear(done)
        return done


async def test_a_job_returns_what_it_made_and_says_so() -> None:
    told = Told()
    waits = asyncio.create_task(told.jobs.wait_for("counting", lambda: 3, lambda count: f"{count} counted"))
    assert (await told.hear()).says == "3 counted"
    assert await waits == 3


async def test_a_job_that_fails_returns_nothing_and_says_why() -> None:
    def fail() -> int:
        raise UsageError("there is nothing to count")

    told = Told()
    waits = asyncio.create_task(told.jobs.wait_for("counting", fail))
    done = await told.hear()
    assert (done.error, done.says) == (True, "there is nothing to count")
    assert await waits is None


async def test_a_job_ends_well_after_its_page_was_left() -> None:
    told, may_end = Told(), threading.Event()
    waits = asyncio.create_task(told.jobs.wait_for("counting", partial(may_end.wait, WAIT_TIMEOUT)))
    await asyncio.sleep(0)
    assert told.jobs.running()
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    may_end.set()
    assert not (await told.hear()).error
    assert told.jobs.hear_rest() == []
