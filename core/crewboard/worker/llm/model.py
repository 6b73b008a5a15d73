"""Calls the model: streamed through the SDK, retried here so that each wait is shown and can be interrupted."""

import asyncio
import contextlib
import math
import os
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx2
from anthropic import AsyncAnthropic, AsyncStream, DefaultAsyncHttpxClient, NotGiven
from anthropic.lib.streaming import AsyncMessageStream, ParsedMessageStreamEvent
from anthropic.types import ParsedMessage, RawMessageStreamEvent

from crewboard import env, models, pricing, store
from crewboard.agent_types import type_of
from crewboard.protocol import cooldown
from crewboard.records import BadDataError, Config, ExitCode, Reply, Retry, StorageError, Tokens
from crewboard.redaction import redact
from crewboard.store import CachedFile
from crewboard.worker.interrupts import SWEEP_INTERVAL, Interrupted, Interrupts
from crewboard.worker.llm.blocks import Events, InputError, read_input, with_breakpoints, without_lone_surrogates
from crewboard.worker.run_state import RunState

MAX_TOKENS = 16_000
"""Longest reply: room for a whole source file, and short enough for the SDK."""

DEFAULT_WINDOW = 200_000
"""Tokens that a model's window holds if the API does not tell."""

PROGRESS_TIMEOUT = 120.0
"""Seconds without a part of the reply after which a call is cancelled and repeated; headers and pings are no part of
it. The API sends pings while it reads a long conversation, which takes at most a minute.
`CREWBOARD_PROGRESS_TIMEOUT` overrides it.
"""

CALL_TIMEOUT = 600.0
"""Seconds that one call may take in all: the SDK's own limit. The longest reply takes 530 s at 30 tokens a second.
`CREWBOARD_CALL_TIMEOUT` overrides it.
"""

STUCK_GRACE = 30.0
"""Seconds after `PROGRESS_TIMEOUT` at which the agent counts as stuck, because its worker did not end the call."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
COOLDOWN_SPREAD = 2.0
"""Seconds over which a team's calls are spread after a cooldown."""
RETRY_BUDGET = 120.0
"""Seconds that all waits of one call may take together, those for a server that did not answer included.
What lasts longer is an outage of the API.

One retry is made in any case. `CREWBOARD_RETRY_BUDGET` overrides it.
"""

_LONGEST_RESET = 7 * 86_400.0
"""Seconds after which no limit of the API is reset: a header that says so is wrong."""

_CONNECT_TIMEOUT = 15.0
_TRUST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_OK = 200
_TOO_LARGE = 413
_TOO_LONG = ("prompt is too long", "exceed context limit")
"""The API's words for a request that exceeds the window. It has no error type of its own."""
_RETRIED_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_SHARED = frozenset({429, 529})
_UNAVAILABLE = frozenset({*_SHARED, 502, 503, 504})
_RATE_LIMITED = 429
_RESET = re.compile(r"(anthropic-ratelimit-.+)-reset")
"""The headers that say when a limit of the API is reset."""
_NO_CREDENTIALS = frozenset({"authentication_error", "permission_error"})
_PARSED: object = ParsedMessage.__class_getitem__(AsyncMessageStream.__parameters__)  # type: ignore[attr-defined]
"""The SDK names this class in each call, and pydantic, which holds it weakly, would build it anew: 5 ms."""
_RETRIED_ERROR = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})


class ModelError(Exception):
    """The call cannot succeed. `code` is the exit code for the reason."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(text)
        self.code = code


class TooLongError(ModelError):
    """The request has more tokens than the model's window holds."""


@dataclass(frozen=True)
class _Refusal:
    """One failed attempt: what happened, and whether to try again, after at least `wait` seconds."""

    text: str
    retry: bool
    code: ExitCode = ExitCode.API_UNAVAILABLE
    wait: float = 0
    waited: float = 0
    """Seconds that passed without an answer."""
    shared: bool = False
    """True if the whole team should pause its calls."""
    unavailable: bool = False
    """True if other calls would fail as well: an outage with this error is the whole team's."""
    may_be_outage: bool = True
    """False if the API answered, and the reply was of no use: each further attempt costs as much."""
    too_long: bool = False
    """True if a shorter request may succeed."""

    def __post_init__(self) -> None:
        # What an API or a gateway says may repeat the key. It is journalled, mailed and shown.
        object.__setattr__(self, "text", redact(self.text))


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


def make_client(*, api_key: str | None = None, base_url: str | None = None) -> AsyncAnthropic:
    """Return a client without retries of its own. Key and address default to those of the environment."""
    timeout = anthropic.Timeout(PROGRESS_TIMEOUT, connect=_CONNECT_TIMEOUT)
    http = DefaultAsyncHttpxClient(verify=_tls_context(), timeout=timeout)
    return AsyncAnthropic(api_key=api_key, base_url=base_url, max_retries=0, timeout=timeout, http_client=http)


def _tls_context() -> ssl.SSLContext:
    """Return the TLS context that the SDK's own client would use.

    Reading the machine's certificates takes 25–50 ms and 5 MiB. A worker that was forked from a prefork server reuses
    the server's context, as long as the environment and the files are the same.
    """
    paths = ssl.get_default_verify_paths()
    times = [Path(path).stat().st_mtime_ns for path in (paths.cafile, paths.capath) if path]
    return _cached_context(*map(os.environ.get, _TRUST_VARIABLES), *times)


@lru_cache(maxsize=1)
def _cached_context(*_key: str | int | None) -> ssl.SSLContext:
    return httpx2.create_ssl_context()


class Model:
    """Client for one worker's model calls: retries, timeouts, cooldown and cost."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, rng: Callable[[], float] = random.random) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._rng = rng
        self._budget = env.seconds(env.RETRY_BUDGET, RETRY_BUDGET)
        self._progress_timeout = env.seconds(env.PROGRESS_TIMEOUT, PROGRESS_TIMEOUT)
        self._call_timeout = env.seconds(env.CALL_TIMEOUT, CALL_TIMEOUT)
        self._prices = None if env.is_offline() else pricing.load(run_state.team.root)
        self._client = make_client()
        self._max_tokens = MAX_TOKENS
        """Tokens that a reply of this model may have."""
        self._config = CachedFile(run_state.team.config, Config)
        self._settings: dict[str, Any] | None = None
        """The effort and thinking of this run's requests, from the first one on: a change would cost the cache."""
        self._outage: _Outage | None = None
        """The outage of the API, until a call succeeds."""

    async def window(self) -> int:
        """Return how many tokens the model's window holds."""
        try:
            info = await self._client.models.retrieve(self._run_state.spec.model, timeout=10.0)
        except (anthropic.AnthropicError, httpx2.HTTPError, TypeError, ValueError):
            return DEFAULT_WINDOW
        self._run_state.capabilities = models.read(info.to_dict(mode="json", warnings=False))
        self._max_tokens = min(info.max_tokens or MAX_TOKENS, MAX_TOKENS)
        return info.max_input_tokens or DEFAULT_WINDOW

    def settings(self) -> dict[str, Any]:
        """Return the effort and thinking of a request.

        Raises:
            ModelError: The model does not take what the agent was hired with, the web included.
        """
        if self._settings is None:
            spec, can = self._run_state.spec, self._run_state.capabilities
            asked, kind = (spec.flags.effort, spec.flags.thinking), type_of(spec.type, spec.definition)
            if (why := models.refusal(spec.model, can, *asked, web=spec.flags.web)) is not None:
                raise ModelError(why, ExitCode.USAGE)
            usual = kind.effort, kind.thinking
            self._settings = models.settings(can, asked, usual)
            self._run_state.note_settings(*models.chosen(can, asked, usual))
        return self._settings

    async def reply(
        self, system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]], longest: int
    ) -> Reply:
        """Return the model's reply to the conversation, of at most `longest` tokens.

        Raises:
            ModelError: The API refuses the request, or it stayed unavailable for longer than the team waits.
            TooLongError: The request is too long.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        request: dict[str, Any] = {
            "model": self._run_state.spec.model,
            "max_tokens": min(longest, self._max_tokens),
            "system": system,
            "messages": messages,
            **self.settings(),
        }
        if tools:
            request.update(with_breakpoints(system, tools, messages))
        waited = 0.0
        attempt = 1
        failing_since = 0.0
        while True:
            paused = await self._wait_for_cooldown()
            waited += paused if failing_since else 0
            self._show("thinking")
            outcome = await self._interrupts.run_interruptibly(self._attempt(request))
            if isinstance(outcome, Reply):
                self._end_outage()
                return outcome
            delay = max(outcome.wait, self._delay(attempt))
            if not outcome.retry:
                raise (TooLongError if outcome.too_long else ModelError)(outcome.text, outcome.code)
            waited += outcome.waited
            failing_since = failing_since or self._run_state.now()
            is_used_up = waited + delay > self._budget and (attempt > 1 or not outcome.waited)
            if is_used_up and not outcome.may_be_outage:
                raise ModelError(f"the API stayed unavailable: {outcome.text}", ExitCode.API_UNAVAILABLE)
            if is_used_up or (self._outage is not None and outcome.may_be_outage):
                self._note_outage(outcome, attempt, failing_since)
                attempt += 1
                continue
            if outcome.shared:
                cooldown.extend(self._run_state.agent, delay, outcome.text)
            await self._wait_for_retry(outcome, attempt, delay)
            waited += delay
            attempt += 1

    def _show(self, doing: str) -> None:
        # While it tries, it keeps its place among the agents that wait.
        since = self._outage.since if self._outage is not None else None
        self._run_state.show("working", doing, timeout=self._progress_timeout + STUCK_GRACE, outage_since=since)

    def _delay(self, attempt: int) -> float:
        exponential = min(FIRST_DELAY * 2.0 ** (attempt - 1), MAX_DELAY)
        return exponential * (0.8 + 0.4 * self._rng())

    async def _wait_for_cooldown(self) -> float:
        """Wait while the team's calls are paused, or this worker's in an outage; return for how many seconds.

        After a cooldown each worker tries again at a random time; after a pause in an outage, in its turn.
        """
        run_state, began = self._run_state, time.monotonic()
        if self._outage is not None and (own := self._outage.until - time.monotonic()) > 0:
            await self._wait_in_outage(self._outage, own)
        while (pause := cooldown.current(run_state.agent)) is not None:
            now = run_state.now()
            if (left := cooldown.left(pause, now)) <= 0:
                break
            if cooldown.is_outage(pause, now):
                if self._outage is None:
                    self._outage = _Outage(pause.since, time.monotonic(), pause.error)
                await self._wait_in_outage(self._outage, left)
                await self._wait_in_outage(self._outage, cooldown.place_in_line(run_state.agent) * cooldown.WAKE_STEP)
            else:
                seconds = left + self._rng() * COOLDOWN_SPREAD
                await self._wait(f"all calls of the team are paused: {pause.error}", seconds, pause.error)
        return time.monotonic() - began

    async def _wait_for_retry(self, refusal: _Refusal, attempt: int, delay: float) -> None:
        now = self._run_state.now()
        self._run_state.append(Retry(ts=now, error=refusal.text, attempt=attempt, until=now + delay))
        await self._wait(f"retry {attempt}: {refusal.text}", delay, refusal.text)

    def _note_outage(self, refusal: _Refusal, attempt: int, since: float) -> None:
        """Set when the next attempt is made, after one that failed in an outage.

        Raises:
            ModelError: The team does not wait for the end of outages, or no longer.
        """
        now = time.monotonic()
        outage = self._outage = self._outage or _Outage(since, now, refusal.text)
        outage.error = refusal.text
        self._check_outage(outage)
        if refusal.unavailable:
            pause = cooldown.extend_outage(self._run_state.agent, refusal.wait, refusal.text, outage.since)
        else:
            outage.failures += 1
            pause = cooldown.outage_pause(outage.failures, refusal.wait) * (1 + 0.2 * self._rng())
            outage.until = now + pause
        at = self._run_state.now()
        self._run_state.append(Retry(ts=at, error=refusal.text, attempt=attempt, until=at + pause))

    def _check_outage(self, outage: _Outage) -> None:
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
        elif time.monotonic() - outage.began >= hours * 3600:
            why = f"the API stayed unavailable for {hours:g} h"
        else:
            return
        self._outage = None
        raise ModelError(f"{why}: {outage.error}", ExitCode.API_UNAVAILABLE)

    def _end_outage(self) -> None:
        """Note that the API is available again, for the whole team."""
        if self._outage is not None:
            self._outage = None
            cooldown.end_outage(self._run_state.agent)

    async def _wait_in_outage(self, outage: _Outage, seconds: float) -> None:
        if seconds > 0:
            await self._wait(f"the API is unavailable: {outage.error}", seconds, outage.error, outage)

    async def _wait(self, doing: str, seconds: float, error: str, outage: _Outage | None = None) -> None:
        """Wait, and show that. An interrupt or a pause ends the wait, and a shutdown request is approved."""
        run_state = self._run_state
        since = outage.since if outage is not None else None
        retry_at = run_state.now() + seconds
        run_state.show("retrying", doing, retry_at=retry_at, last_error=error, outage_since=since)
        end = time.monotonic() + seconds

        async def until_then() -> None:
            while (left := end - time.monotonic()) > 0:
                if outage is not None:
                    self._check_outage(outage)
                # The loop then waits until the agent is unpaused, and calls again.
                if self._interrupts.paused:
                    raise Interrupted
                await self._interrupts.wait(min(left, SWEEP_INTERVAL))

        await self._interrupts.run_interruptibly(until_then(), waiting=True)

    async def _attempt(self, request: dict[str, Any]) -> Reply | _Refusal:
        progress = asyncio.timeout(self._progress_timeout)
        try:
            async with asyncio.timeout(self._call_timeout), progress:
                return await self._stream(request, progress)
        except TimeoutError:
            if progress.expired():
                text, waited = f"the reply made no progress for {self._progress_timeout:g} s", self._progress_timeout
            else:
                text, waited = f"the reply took longer than {self._call_timeout:g} s", self._call_timeout
            return _Refusal(text, retry=True, waited=waited)
        except (anthropic.AnthropicError, httpx2.HTTPError, ValueError, TypeError) as error:
            return _judge(error)

    async def _stream(self, request: dict[str, Any], progress: asyncio.Timeout) -> Reply | _Refusal:
        run_state = self._run_state
        began = last_shown = time.monotonic()
        run_state.clear_live()
        events = Events(await self._client.messages.create(**request, stream=True))
        async with _stream_of(events) as stream:
            async for event in _readable(stream):
                progress.reschedule(asyncio.get_running_loop().time() + self._progress_timeout)
                if event.type == "text":
                    run_state.stream(event.text)
                if time.monotonic() - last_shown > 1:
                    last_shown = time.monotonic()
                    # A reply that is being paid for must not end because the disk is full just now.
                    with contextlib.suppress(StorageError):
                        self._show("thinking" if event.type == "thinking" else "writing")
            message = await stream.get_final_message()
        run_state.flush()
        if message.stop_reason is None:
            return _Refusal("the reply ended early", retry=True, may_be_outage=False)
        refused = {}
        for index, text in events.inputs.items():
            try:
                events.blocks[index]["input"] = read_input(text)
            except InputError as error:
                refused[str(events.blocks[index].get("id", index))] = str(error)
            except ValueError:
                # A reply that was cut off ends within an input; its calls are not run.
                if message.stop_reason == "tool_use":
                    raise
        content = without_lone_surrogates([events.blocks[index] for index in sorted(events.blocks)])
        usage = message.usage
        on_the_web = usage.server_tool_use
        used = Tokens(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cache_read=usage.cache_read_input_tokens or 0,
            cache_write=usage.cache_creation_input_tokens or 0,
            # Another endpoint than the API may leave one of them out.
            web_searches=getattr(on_the_web, "web_search_requests", None) or 0,
            web_fetches=getattr(on_the_web, "web_fetch_requests", None) or 0,
        )
        reply = Reply(
            ts=run_state.now(),
            content=content,
            stop_reason=message.stop_reason,
            usage=used,
            model=message.model,
            seconds=round(time.monotonic() - began, 3),
            cost_usd=self._prices.cost(message.model, used) if self._prices else None,
            refused=refused,
            stop_details=message.stop_details.to_dict(mode="json", warnings=False) if message.stop_details else None,
        )
        return _unstorable(reply) or reply


def _stream_of(events: "Events") -> AsyncMessageStream[None]:
    # The stream only iterates and closes what it is given.
    return AsyncMessageStream(cast("AsyncStream[RawMessageStreamEvent]", events), output_format=NotGiven())


async def rehearse(client: AsyncAnthropic) -> None:
    """Make the calls that a worker makes, so that the SDK has built what it builds on first use."""
    await client.models.retrieve("m")
    prompt = [{"role": "user", "content": "."}]
    request: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": prompt}
    async with _stream_of(Events(await client.messages.create(**request, stream=True))) as stream:
        async for _ in _readable(stream):
            pass
        message = await stream.get_final_message()
    for block in message.content:
        block.to_dict(mode="json")


async def _readable(stream: AsyncMessageStream[None]) -> AsyncIterator["ParsedMessageStreamEvent[None]"]:
    """Yield what the API sends, and check that it makes a whole message.

    Raises:
        ValueError: It does not. The SDK raises errors of many types in that case.
    """
    try:
        async for event in stream:
            yield event
        _ = stream.current_message_snapshot
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _unstorable(reply: Reply) -> _Refusal | None:
    """Return a refusal if the journal cannot hold a reply."""
    try:
        if len(store.codec.encode(reply)) <= store.files.MAX_LINE:
            return None
        reason = f"it is longer than {store.files.MAX_LINE} bytes"
    except BadDataError as error:
        reason = str(error)
    return _Refusal(f"the reply cannot be stored: {reason}", retry=False, code=ExitCode.FAILED)


def _judge(error: Exception) -> _Refusal:
    """Return what a failed call means."""
    match error:
        case anthropic.APIStatusError():
            return _judge_status(error)
        case anthropic.APIConnectionError():
            return _judge_connection(error)
        case httpx2.HTTPError():
            return _Refusal(f"the reply was cut off ({type(error).__name__})", retry=True)
        case UnicodeEncodeError():
            # Of the request: every attempt would fail.
            return _Refusal(f"the request cannot be encoded: {error}", retry=False, code=ExitCode.FAILED)
        case ValueError():
            return _Refusal(f"the reply was malformed: {str(error)[:100]}", retry=True, may_be_outage=False)
        case _:
            return _Refusal(str(error), retry=False, code=ExitCode.CREDENTIALS)


def _judge_connection(error: anthropic.APIConnectionError) -> _Refusal:
    """Return the error for a failed connection. Only network errors are retried: an invalid key or URL fails again."""
    if isinstance(error.__cause__, httpx2.LocalProtocolError):
        # The error's own text holds the header, and so the key.
        text = "the API key cannot be sent: it contains a character that is not allowed in a header"
        return _Refusal(text, retry=False, code=ExitCode.CREDENTIALS)
    if isinstance(error.__cause__, httpx2.UnsupportedProtocol):
        return _Refusal("the base URL starts with neither http:// nor https://", retry=False, code=ExitCode.FAILED)
    return _Refusal(f"no connection: {error.__cause__ or error}", retry=True, unavailable=True)


def _judge_status(error: anthropic.APIStatusError) -> _Refusal:
    """Return what an error of the API means. An error event in a stream has status 200; its type tells the reason."""
    kind = str(getattr(error, "type", None) or "error")
    said = error.body.get("error", {}) if isinstance(error.body, dict) else {}
    text = str(said.get("message", "") if isinstance(said, dict) else "") or error.message
    in_stream = error.status_code == _OK
    if error.status_code in _RETRIED_STATUS or (in_stream and kind in _RETRIED_ERROR):
        return _Refusal(
            f"during the reply, {kind}: {text}" if in_stream else f"{error.status_code} {kind}: {text}",
            retry=True,
            wait=_retry_after(error),
            shared=error.status_code in _SHARED,
            unavailable=error.status_code in _UNAVAILABLE,
        )
    if error.status_code in (401, 403) or (in_stream and kind in _NO_CREDENTIALS):
        return _Refusal(
            f"the API refused the credentials ({kind if in_stream else error.status_code}): {text}",
            retry=False,
            code=ExitCode.CREDENTIALS,
        )
    return _Refusal(
        f"the API refused the request ({error.status_code} {kind}): {text}",
        retry=False,
        code=ExitCode.FAILED,
        too_long=error.status_code == _TOO_LARGE or any(said in text for said in _TOO_LONG),
    )


def _retry_after(error: anthropic.APIStatusError) -> float:
    """Return the seconds until the time that the API names; 0 if it names none.

    That is `retry-after`, else for a rate limit the latest reset of a limit that is used up.
    """
    headers = error.response.headers
    now = _seconds(headers.get("date")) or time.time()
    if (given := headers.get("retry-after")) is not None:
        try:
            return min(max(0.0, float(given)), _LONGEST_RESET)
        except ValueError:
            return min(max(0.0, (_seconds(given) or now) - now), _LONGEST_RESET)
    resets = [
        _seconds(value) or now
        for name, value in headers.items()
        if (match := _RESET.fullmatch(name)) and headers.get(f"{match[1]}-remaining", "0") == "0"
    ]
    wait = max(resets, default=now) - now if error.status_code == _RATE_LIMITED else 0.0
    return min(max(0.0, wait), _LONGEST_RESET)


def _seconds(text: str | None) -> float | None:
    """Return the epoch seconds of a time in a header: a number, RFC 3339 or the form of `date`; None if it is none."""
    for parse in (float, lambda given: datetime.fromisoformat(given).timestamp(), _http_date):
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            found = parse(text or "")
            if math.isfinite(found):
                return found
    return None


def _http_date(text: str) -> float:
    return parsedate_to_datetime(text).timestamp()
