"""The waits before calls of the model: for a retry, while the team's calls are paused, and for the end of an outage.

`Model.reply` in `model.py` is the loop that retries and calls this; `refusals.py` decides what is retried.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from crewboard.errors import ExitCode
from crewboard.protocol import cooldown
from crewboard.records.events import Retry
from crewboard.worker.interrupts import SWEEP_INTERVAL, Interrupted, Interrupts
from crewboard.worker.llm.refusals import ModelError, Refusal
from crewboard.worker.run_state import RunState

COOLDOWN_SPREAD = 2.0
"""Seconds over which the calls of a team's workers are spread after a cooldown, at random."""


@dataclass
class _Outage:
    """An outage as one worker knows it.

    `since` is when it began, in epoch seconds, and `began` when this worker began to wait for its end, by the monotonic
    clock. `until`, the monotonic time of the next attempt, and `failures` are used only if the calls of other workers
    may succeed; the pauses of an outage of the whole team are in the cooldown.
    """

    since: float
    began: float
    error: str
    until: float = 0
    failures: int = 0
    ends: float = 0
    """When the outage ends, by the monotonic clock, with a margin; 0 if the API did not say. The agent waits until then
    even if that is beyond `outage_hours`."""


class Outages:
    """The waits of one worker before its calls of one server."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, server: str, rng: Callable[[], float]) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._server = server
        self._rng = rng
        self._config = run_state.team.config.watch()
        self._outage: _Outage | None = None
        """The outage that this worker waits out; None if there is none."""

    @property
    def since(self) -> float | None:
        """Return when the outage began, in epoch seconds; None if there is none."""
        return self._outage.since if self._outage is not None else None

    async def wait_for_cooldown(self, *, is_first: bool) -> float:
        """Wait while the calls of the team, or of this worker in an outage, are paused; return the seconds waited.

        After a cooldown each worker waits for a random time more; after a pause in an outage, for its turn. The first
        call of a run (`is_first`) may try once before an outage of the team is over.

        Raises:
            ModelError: The team does not wait for the end of outages, or this one has lasted too long.
            Interrupted: The agent must read its mail, or is paused.
            WorkerExit: The run ends.
        """
        run_state, began = self._run_state, time.monotonic()
        if self._outage is not None and (own := self._outage.until - time.monotonic()) > 0:
            await self._wait_in_outage(self._outage, own)
        while (pause := cooldown.current(run_state.agent, self._server)) is not None:
            now = run_state.now()
            if (left := cooldown.left(pause, now)) <= 0:
                break
            if cooldown.is_outage(pause, now):
                if self._outage is None:
                    self._outage = _Outage(pause.since, time.monotonic(), pause.error)
                    if is_first and cooldown.may_try(run_state.agent, self._server):
                        break
                await self._wait_in_outage(self._outage, left, until_it_ends=True)
                await self._wait_in_outage(self._outage, cooldown.place_in_line(run_state.agent) * cooldown.WAKE_STEP)
            else:
                seconds = left + self._rng() * COOLDOWN_SPREAD
                await self._wait(f"all calls of the team are paused: {pause.error}", seconds, pause.error)
        return time.monotonic() - began

    async def wait_for_retry(self, refusal: Refusal, attempt: int, delay: float) -> None:
        """Journal a retry and wait `delay` seconds.

        If the limit that was reached is shared, the calls of the whole team wait.

        Raises:
            Interrupted: The agent must read its mail, or is paused.
            WorkerExit: The run ends.
        """
        if refusal.shared:
            cooldown.extend(self._run_state.agent, self._server, delay, refusal.text)
        now = self._run_state.now()
        self._run_state.append(Retry(ts=now, error=refusal.text, attempt=attempt, until=now + delay))
        await self._wait(f"retry {attempt}: {refusal.text}", delay, refusal.text)

    def note(self, refusal: Refusal, attempt: int, since: float) -> None:
        """Journal an attempt that failed in an outage, and set the time of the next one; `wait_for_cooldown` waits.

        The outage began at `since`, in epoch seconds, if none is known yet.

        Raises:
            ModelError: The team does not wait for the end of outages, or this one has lasted too long.
        """
        now = time.monotonic()
        outage = self._outage = self._outage or _Outage(since, now, refusal.text)
        outage.error = refusal.text
        self._check(outage)
        if refusal.of_account and refusal.wait:
            outage.ends = now + refusal.wait + cooldown.MAX_OUTAGE_PAUSE
        if refusal.unavailable:
            pause = cooldown.extend_outage(
                self._run_state.agent, self._server, refusal.wait, refusal.text, outage.since
            )
        else:
            outage.failures += 1
            pause = cooldown.outage_pause(outage.failures, refusal.wait) * (1 + 0.2 * self._rng())
            outage.until = now + pause
        at = self._run_state.now()
        self._run_state.append(Retry(ts=at, error=refusal.text, attempt=attempt, until=at + pause))

    def end(self) -> None:
        """Record for the whole team that the API is available again, if this worker knew of an outage."""
        if self._outage is not None:
            self._outage = None
            cooldown.end_outage(self._run_state.agent, self._server)

    def _check(self, outage: _Outage) -> None:
        """Return if the agent must wait longer.

        Raises:
            ModelError: The team does not wait for the end of outages, or this one has lasted too long.
        """
        config = self._config.get() or self._config.last_good
        if config is None:
            return
        hours = config.outage_hours
        if config.on_outage == "fail":
            why = "the API stayed unavailable"
        elif time.monotonic() >= max(outage.began + hours * 3600, outage.ends):
            why = f"the API stayed unavailable for {hours:g} h"
        else:
            return
        self._outage = None
        raise ModelError(f"{why}: {outage.error}", ExitCode.API_UNAVAILABLE)

    async def _wait_in_outage(self, outage: _Outage, seconds: float, *, until_it_ends: bool = False) -> None:
        """Wait in an outage; if `until_it_ends`, only until another agent has found the API available."""
        if seconds > 0:
            doing = f"the API is unavailable: {outage.error}"
            await self._wait(doing, seconds, outage.error, outage, until_it_ends=until_it_ends)

    async def _wait(
        self, doing: str, seconds: float, error: str, outage: _Outage | None = None, *, until_it_ends: bool = False
    ) -> None:
        """Wait, and show `doing` and `error` in the status meanwhile. Approve shutdown requests.

        Raises:
            ModelError: The agent must not wait longer for the end of the `outage`.
            Interrupted: The agent must read its mail, or is paused.
            WorkerExit: The run ends.
        """
        run_state = self._run_state
        since = outage.since if outage is not None else None
        retry_at = run_state.now() + seconds
        run_state.show("retrying", doing, retry_at=retry_at, last_error=error, outage_since=since)
        end = time.monotonic() + seconds

        async def until_then() -> None:
            while (left := end - time.monotonic()) > 0:
                if outage is not None:
                    self._check(outage)
                # The loop then waits until the agent is unpaused, and calls again.
                if self._interrupts.paused:
                    raise Interrupted
                pause = cooldown.current(run_state.agent, self._server) if until_it_ends else None
                if pause is not None and not pause.since:
                    return
                await self._interrupts.wait(min(left, SWEEP_INTERVAL))

        await self._interrupts.run_interruptibly(until_then(), waiting=True)
