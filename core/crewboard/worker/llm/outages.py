"""Waits before calls of the model: for a retry, while the team's calls are paused, and for the end of an outage."""

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
"""Seconds over which a team's calls are spread after a cooldown."""


@dataclass
class _Outage:
    """The outage as one worker knows it: when it began (epoch seconds), and since when this worker waits for its end.

    `began` and `until` are times of the monotonic clock. `until` and `failures` describe an outage of this worker only;
    an outage of the team is in the cooldown.
    """

    since: float
    began: float
    error: str
    until: float = 0
    failures: int = 0
    ends: float = 0
    """Its end (monotonic) if the API named one, else 0: until then the agent waits even beyond `outage_hours`."""


class Outages:
    """The waits of one worker before its calls of one server."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, server: str, rng: Callable[[], float]) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._server = server
        self._rng = rng
        self._config = run_state.team.config.watch()
        self._outage: _Outage | None = None
        """The outage of the API, until a call succeeds."""

    @property
    def since(self) -> float | None:
        """Return when the outage began, in epoch seconds; None if there is none."""
        return self._outage.since if self._outage is not None else None

    async def wait_for_cooldown(self, *, is_first: bool) -> float:
        """Wait while the team's calls are paused, or this worker's in an outage; return for how many seconds.

        After a cooldown each worker tries again at a random time; after a pause in an outage, in its turn. The first
        call of a run may try once before.
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
        """Wait before the next attempt, for the whole team if the limit that was reached is shared."""
        if refusal.shared:
            cooldown.extend(self._run_state.agent, self._server, delay, refusal.text)
        now = self._run_state.now()
        self._run_state.append(Retry(ts=now, error=refusal.text, attempt=attempt, until=now + delay))
        await self._wait(f"retry {attempt}: {refusal.text}", delay, refusal.text)

    def note(self, refusal: Refusal, attempt: int, since: float) -> None:
        """Set when the next attempt is made, after one that failed in an outage.

        Raises:
            ModelError: The team does not wait for the end of outages, or no longer.
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
        """Note that the API is available again, for the whole team."""
        if self._outage is not None:
            self._outage = None
            cooldown.end_outage(self._run_state.agent, self._server)

    def _check(self, outage: _Outage) -> None:
        """Raise ModelError unless the agent must wait longer.

        Raises:
            ModelError: The team does not wait for the end of outages, or no longer.
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
        """Wait; not longer than until another agent found the API available, if `until_it_ends`."""
        if seconds > 0:
            doing = f"the API is unavailable: {outage.error}"
            await self._wait(doing, seconds, outage.error, outage, until_it_ends=until_it_ends)

    async def _wait(
        self, doing: str, seconds: float, error: str, outage: _Outage | None = None, *, until_it_ends: bool = False
    ) -> None:
        """Wait, and show that. An interrupt or a pause ends the wait, and a shutdown request is approved."""
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
