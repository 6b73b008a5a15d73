"""Calls of the model: streamed through the SDK, retried by us so that every wait is seen and can be interrupted."""

import json
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
from anthropic.lib.streaming import AsyncMessageStream, ParsedMessageStreamEvent

from crewboard import env, pricing
from crewboard.errors import ExitCode
from crewboard.protocol import cooldown
from crewboard.records import Reply, Retry, Tokens
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.llm.client import make_client
from crewboard.worker.run_state import RunState

MAX_TOKENS = 16_000
"""Longest reply. Below what the SDK refuses to wait for without streaming, and room for a whole source file."""

DEADLINE = 150.0
"""Seconds without an event after which the agent counts as stuck."""

USUAL_WINDOW = 200_000
"""Tokens that a model's window holds, where the API does not say."""

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
SPREAD = 2.0
"""Seconds over which a team comes back after a rest."""
BUDGET = 120.0
"""Seconds that all waits of one call may take together; `CREWBOARD_RETRY_BUDGET` says another figure."""

_OK = 200
_TOO_LARGE = 413
_TOO_LONG = ("prompt is too long", "exceed context limit")
"""What the API says of a request beyond the model's window; it has no error type of its own."""
_RETRIED_STATUS = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_SHARED = frozenset({429, 529})
_NO_CREDENTIALS = frozenset({"authentication_error", "permission_error"})
_RETRIED_ERROR = frozenset({"overloaded_error", "api_error", "rate_limit_error", "timeout_error"})


class ModelError(Exception):
    """The call cannot succeed; `code` is the exit code that stands for why."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(text)
        self.code = code


class TooLongError(ModelError):
    """The request has more tokens than the model's window."""


@dataclass(frozen=True)
class _Refusal:
    """One failed attempt: what happened, and whether another may help, after at least `wait` seconds."""

    text: str
    again: bool
    code: ExitCode = ExitCode.API_UNAVAILABLE
    wait: float = 0
    shared: bool = False
    """Whether the whole team should hold its calls back."""
    too_long: bool = False
    """Whether a shorter request may be taken."""


class Model:
    """The model of one worker."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, rng: Callable[[], float] = random.random) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._rng = rng
        self._budget = env.retry_budget(BUDGET)
        self._prices = None if env.is_offline() else pricing.load(run_state.agent.team.root)
        self._client = make_client()
        self._most = MAX_TOKENS
        """Tokens that the model's longest reply may have, as far as the API has said."""

    async def window(self) -> int:
        """Tokens that the model's window holds."""
        try:
            info = await self._client.models.retrieve(self._run_state.spec.model, timeout=10.0)
        except (anthropic.AnthropicError, httpx2.HTTPError, TypeError, ValueError):
            return USUAL_WINDOW
        self._most = min(info.max_tokens or MAX_TOKENS, MAX_TOKENS)
        return info.max_input_tokens or USUAL_WINDOW

    async def reply(
        self, system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]], longest: int
    ) -> Reply:
        """One reply to the conversation, of at most `longest` tokens.

        Raises:
            ModelError: The API refuses for good, or kept failing for longer than the budget of time.
            TooLongError: The request is too long.
            Interrupted: Somebody wants the agent to read its mail.
            Leave: The run ends.
        """
        request: dict[str, Any] = {
            "model": self._run_state.spec.model,
            "max_tokens": min(longest, self._most),
            "system": system,
            "messages": messages,
            "cache_control": {"type": "ephemeral"},
        }
        if tools:
            request["tools"] = tools
        waited = 0.0
        attempt = 1
        while True:
            await self._rest_with_team()
            self._run_state.show("working", "thinking", deadline=self._run_state.now() + DEADLINE)
            outcome = await self._interrupts.run_interruptibly(self._attempt(request))
            if isinstance(outcome, Reply):
                return outcome
            delay = max(outcome.wait, self._delay(attempt))
            if not outcome.again:
                raise (TooLongError if outcome.too_long else ModelError)(outcome.text, outcome.code)
            if waited + delay > self._budget:
                raise ModelError(f"the API stayed unavailable: {outcome.text}", ExitCode.API_UNAVAILABLE)
            if outcome.shared:
                cooldown.extend(self._run_state.agent, self._run_state.now() + delay, outcome.text)
            await self._wait(outcome, attempt, delay)
            waited += delay
            attempt += 1

    def _delay(self, attempt: int) -> float:
        exponential = min(FIRST_DELAY * 2.0 ** (attempt - 1), LONGEST_DELAY)
        return exponential * (0.8 + 0.4 * self._rng())

    async def _rest_with_team(self) -> None:
        """Wait while the API asked the team for a rest; come back one after the other."""
        run_state = self._run_state
        while (rest := cooldown.current(run_state.agent)) is not None and rest.until > run_state.now():
            until = rest.until + self._rng() * SPREAD
            await self._pass_time(f"the team rests: {rest.error}", until, rest.error)

    async def _wait(self, refusal: _Refusal, attempt: int, delay: float) -> None:
        until = self._run_state.now() + delay
        self._run_state.append(Retry(ts=self._run_state.now(), error=refusal.text, attempt=attempt, until=until))
        await self._pass_time(f"retry {attempt}: {refusal.text}", until, refusal.text)

    async def _pass_time(self, doing: str, until: float, error: str) -> None:
        """Wait visibly. An interrupt ends the wait, and a worker in it agrees to shut down."""
        run_state = self._run_state
        run_state.show("retrying", doing, retry_at=until, last_error=error)

        async def pass_time() -> None:
            while (left := until - run_state.now()) > 0:
                await self._interrupts.wait(min(left, 1.5))

        await self._interrupts.run_interruptibly(pass_time(), waiting=True)

    async def _attempt(self, request: dict[str, Any]) -> Reply | _Refusal:
        try:
            return await self._stream(request)
        except anthropic.APIStatusError as error:
            return _judge_status(error)
        except anthropic.APIConnectionError as error:
            return _judge_connection(error)
        except httpx2.HTTPError as error:
            return _Refusal(f"the reply was cut off ({type(error).__name__})", again=True)
        except ValueError as error:  # also of the SDK, which reads the input of tool calls
            return _Refusal(f"the reply was malformed: {str(error)[:100]}", again=True)
        except (anthropic.AnthropicError, TypeError) as error:
            return _Refusal(str(error), again=False, code=ExitCode.CREDENTIALS)

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
                    run_state.show("working", "writing", deadline=last_shown + DEADLINE)
            message = await stream.get_final_message()
        run_state.flush()
        if message.stop_reason is None:
            return _Refusal("the reply ended without its end", again=True)
        if message.stop_reason == "tool_use":
            _check_whole(inputs.values())
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
    """What the API sends, and at the end of it a whole message.

    Raises:
        ValueError: It makes no sense; the SDK trips over that in many ways.
    """
    try:
        async for event in stream:
            yield event
        _ = stream.current_message_snapshot
    except (AssertionError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_whole(inputs: Iterable[str]) -> None:
    """Let no tool be called with half of what was meant: the SDK takes the beginning of an input for all of it.

    Raises:
        ValueError: The input of a tool call is no JSON.
    """
    for text in filter(None, inputs):
        json.loads(text)


def _judge_connection(error: anthropic.APIConnectionError) -> _Refusal:
    """What it means that no answer came. A request that cannot even be written will not be, however often."""
    if isinstance(error.__cause__, httpx2.LocalProtocolError):  # its words hold the header, and so the key
        words = "the API key cannot be sent: it holds a character that no key has"
        return _Refusal(words, again=False, code=ExitCode.CREDENTIALS)
    if isinstance(error.__cause__, httpx2.UnsupportedProtocol):
        return _Refusal("the base URL begins with neither http:// nor https://", again=False, code=ExitCode.FAILED)
    return _Refusal(f"no connection: {error.__cause__ or error}", again=True)


def _judge_status(error: anthropic.APIStatusError) -> _Refusal:
    """What a refusal of the API means. An error event within a stream has status 200, and its type says what it is."""
    kind = str(getattr(error, "type", None) or "error")
    said = error.body.get("error", {}) if isinstance(error.body, dict) else {}
    words = str(said.get("message", "") if isinstance(said, dict) else "") or error.message
    in_stream = error.status_code == _OK
    if error.status_code in _RETRIED_STATUS or (in_stream and kind in _RETRIED_ERROR):
        return _Refusal(
            f"in mid-reply, {kind}: {words}" if in_stream else f"{error.status_code} {kind}: {words}",
            again=True,
            wait=_retry_after(error),
            shared=error.status_code in _SHARED,
        )
    if error.status_code in (401, 403) or (in_stream and kind in _NO_CREDENTIALS):
        return _Refusal(
            f"the API refused the credentials ({kind if in_stream else error.status_code}): {words}",
            again=False,
            code=ExitCode.CREDENTIALS,
        )
    return _Refusal(
        f"the API refused the request ({error.status_code} {kind}): {words}",
        again=False,
        code=ExitCode.FAILED,
        too_long=error.status_code == _TOO_LARGE or any(said in words for said in _TOO_LONG),
    )


def _retry_after(error: anthropic.APIStatusError) -> float:
    """Seconds that the API asks for; 0 where it does not say or says nonsense."""
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
