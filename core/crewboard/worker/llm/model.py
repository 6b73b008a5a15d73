"""Calls the model: streamed through the SDK, retried here so that each wait is shown and can be interrupted."""

import json
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import anthropic
import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from anthropic.lib.streaming import AsyncMessageStream, ParsedMessageStreamEvent

from crewboard import env, pricing
from crewboard.errors import ExitCode
from crewboard.protocol import cooldown
from crewboard.records import Reply, Retry, Tokens
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState

MAX_TOKENS = 16_000
"""Longest reply: room for a whole source file, and short enough for the SDK."""

STUCK_TIMEOUT = 150.0
"""Seconds without an event after which the agent counts as stuck."""

DEFAULT_WINDOW = 200_000
"""Tokens that a model's window holds if the API does not tell."""

SILENCE_TIMEOUT = 120.0
"""Seconds without a byte after which a call is cancelled and repeated."""

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
COOLDOWN_SPREAD = 2.0
"""Seconds over which a team's calls are spread after a cooldown."""
RETRY_BUDGET = 120.0
"""Seconds that all waits of one call may take together. `CREWBOARD_RETRY_BUDGET` overrides it."""

_CONNECT_TIMEOUT = 15.0
_TRUST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_OK = 200
_TOO_LARGE = 413
_TOO_LONG = ("prompt is too long", "exceed context limit")
"""What the API says about a request that exceeds the window. It has no error type of its own."""
_RETRIED_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_SHARED = frozenset({429, 529})
_NO_CREDENTIALS = frozenset({"authentication_error", "permission_error"})
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
    shared: bool = False
    """True if the whole team should pause its calls."""
    too_long: bool = False
    """True if a shorter request may succeed."""


def make_client(*, api_key: str | None = None, base_url: str | None = None) -> AsyncAnthropic:
    """Return a client without retries of its own. Key and address default to those of the environment."""
    timeout = anthropic.Timeout(SILENCE_TIMEOUT, connect=_CONNECT_TIMEOUT)
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
    """The model of one worker."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, rng: Callable[[], float] = random.random) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._rng = rng
        self._budget = env.retry_budget(RETRY_BUDGET)
        self._prices = None if env.is_offline() else pricing.load(run_state.team.root)
        self._client = make_client()
        self._max_tokens = MAX_TOKENS
        """Tokens that a reply of this model may have."""

    async def window(self) -> int:
        """Return how many tokens the model's window holds."""
        try:
            info = await self._client.models.retrieve(self._run_state.spec.model, timeout=10.0)
        except (anthropic.AnthropicError, httpx2.HTTPError, TypeError, ValueError):
            return DEFAULT_WINDOW
        self._max_tokens = min(info.max_tokens or MAX_TOKENS, MAX_TOKENS)
        return info.max_input_tokens or DEFAULT_WINDOW

    async def reply(
        self, system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]], longest: int
    ) -> Reply:
        """Return the model's reply to the conversation, of at most `longest` tokens.

        Raises:
            ModelError: The API refuses the request, or the attempts took longer than the retry budget.
            TooLongError: The request is too long.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        request: dict[str, Any] = {
            "model": self._run_state.spec.model,
            "max_tokens": min(longest, self._max_tokens),
            "system": system,
            "messages": messages,
            "cache_control": {"type": "ephemeral"},
        }
        if tools:
            request["tools"] = tools
        waited = 0.0
        attempt = 1
        while True:
            await self._wait_for_cooldown()
            self._run_state.show("working", "thinking", deadline=self._run_state.now() + STUCK_TIMEOUT)
            outcome = await self._interrupts.run_interruptibly(self._attempt(request))
            if isinstance(outcome, Reply):
                return outcome
            delay = max(outcome.wait, self._delay(attempt))
            if not outcome.retry:
                raise (TooLongError if outcome.too_long else ModelError)(outcome.text, outcome.code)
            if waited + delay > self._budget:
                raise ModelError(f"the API stayed unavailable: {outcome.text}", ExitCode.API_UNAVAILABLE)
            if outcome.shared:
                cooldown.extend(self._run_state.agent, self._run_state.now() + delay, outcome.text)
            await self._wait_for_retry(outcome, attempt, delay)
            waited += delay
            attempt += 1

    def _delay(self, attempt: int) -> float:
        exponential = min(FIRST_DELAY * 2.0 ** (attempt - 1), MAX_DELAY)
        return exponential * (0.8 + 0.4 * self._rng())

    async def _wait_for_cooldown(self) -> None:
        """Wait while the team's calls are paused. Each worker comes back at a random time after that."""
        run_state = self._run_state
        while (pause := cooldown.current(run_state.agent)) is not None and pause.until > run_state.now():
            until = pause.until + self._rng() * COOLDOWN_SPREAD
            await self._wait_until(f"all calls of the team are paused: {pause.error}", until, pause.error)

    async def _wait_for_retry(self, refusal: _Refusal, attempt: int, delay: float) -> None:
        until = self._run_state.now() + delay
        self._run_state.append(Retry(ts=self._run_state.now(), error=refusal.text, attempt=attempt, until=until))
        await self._wait_until(f"retry {attempt}: {refusal.text}", until, refusal.text)

    async def _wait_until(self, doing: str, until: float, error: str) -> None:
        """Wait, and show that. An interrupt ends the wait, and a shutdown request is approved."""
        run_state = self._run_state
        run_state.show("retrying", doing, retry_at=until, last_error=error)

        async def until_then() -> None:
            while (left := until - run_state.now()) > 0:
                await self._interrupts.wait(min(left, 1.5))

        await self._interrupts.run_interruptibly(until_then(), waiting=True)

    async def _attempt(self, request: dict[str, Any]) -> Reply | _Refusal:
        try:
            return await self._stream(request)
        except anthropic.APIStatusError as error:
            return _judge_status(error)
        except anthropic.APIConnectionError as error:
            return _judge_connection(error)
        except httpx2.HTTPError as error:
            return _Refusal(f"the reply was cut off ({type(error).__name__})", retry=True)
        except ValueError as error:
            # The SDK raises it too, when it parses the input of tool calls.
            return _Refusal(f"the reply was malformed: {str(error)[:100]}", retry=True)
        except (anthropic.AnthropicError, TypeError) as error:
            return _Refusal(str(error), retry=False, code=ExitCode.CREDENTIALS)

    async def _stream(self, request: dict[str, Any]) -> Reply | _Refusal:
        run_state = self._run_state
        began = last_shown = run_state.now()
        run_state.clear_live()
        inputs: dict[int, str] = {}
        async with self._client.messages.stream(**request) as stream:
            async for event in _readable(stream):
                if event.type == "text":
                    run_state.stream(event.text)
                elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    inputs[event.index] = inputs.get(event.index, "") + event.delta.partial_json
                if run_state.now() - last_shown > 1:
                    last_shown = run_state.now()
                    run_state.show("working", "writing", deadline=last_shown + STUCK_TIMEOUT)
            message = await stream.get_final_message()
        run_state.flush()
        if message.stop_reason is None:
            return _Refusal("the reply ended early", retry=True)
        if message.stop_reason == "tool_use":
            _check_inputs(inputs.values())
        usage = message.usage
        used = Tokens(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cache_read=usage.cache_read_input_tokens or 0,
            cache_write=usage.cache_creation_input_tokens or 0,
        )
        return Reply(
            ts=run_state.now(),
            content=[block.to_dict(mode="json") for block in message.content],
            stop_reason=message.stop_reason,
            usage=used,
            model=message.model,
            seconds=round(run_state.now() - began, 3),
            cost_usd=self._prices.cost(message.model, used) if self._prices else None,
        )


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


def _check_inputs(inputs: Iterable[str]) -> None:
    """Check that the input of each tool call is complete: the SDK accepts the beginning of an input as all of it.

    Raises:
        ValueError: An input is not JSON.
    """
    for text in filter(None, inputs):
        json.loads(text)


def _judge_connection(error: anthropic.APIConnectionError) -> _Refusal:
    """Return what a failed connection means. A request that cannot be written fails at every attempt."""
    if isinstance(error.__cause__, httpx2.LocalProtocolError):
        # The error's own text holds the header, and so the key.
        text = "the API key cannot be sent: it contains a character that is not allowed in a header"
        return _Refusal(text, retry=False, code=ExitCode.CREDENTIALS)
    if isinstance(error.__cause__, httpx2.UnsupportedProtocol):
        return _Refusal("the base URL starts with neither http:// nor https://", retry=False, code=ExitCode.FAILED)
    return _Refusal(f"no connection: {error.__cause__ or error}", retry=True)


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
    """Return the seconds that the API asks for; 0 if it does not, or sends no number."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
