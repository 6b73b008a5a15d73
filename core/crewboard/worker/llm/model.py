"""Calls of the model, streamed through the SDK, and retried here so that each wait is shown and can be interrupted.

`Model.reply` is the loop that retries. `refusals.py` decides which failures are retried; `outages.py` does the waiting.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import random
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import anthropic
import httpx2

from crewboard import endpoint, env, models, pricing
from crewboard.agent_types import type_of
from crewboard.errors import BadDataError, ExitCode, StorageError
from crewboard.names import LEAD
from crewboard.protocol import cooldown
from crewboard.records.agents import Tokens
from crewboard.records.events import BrokenReply, Reply
from crewboard.store import codec, files
from crewboard.worker.interrupts import (
    FIRST_DELAY,
    MAX_DELAY,
    RETRY_BUDGET,
    Interrupts,
)
from crewboard.worker.llm import refusals
from crewboard.worker.llm.blocks import CACHE_SECONDS, PageError, ReplyStream, ServerError, with_breakpoints
from crewboard.worker.llm.client import PROGRESS_TIMEOUT, make_client
from crewboard.worker.llm.outages import Outages
from crewboard.worker.llm.refusals import MaybeTooLongError, MediaRefusedError, ModelError, Refusal, TooLongError
from crewboard.worker.run_state import RunState

LONGEST_REPLY = 32_000
LONGEST_THOUGHT = 64_000
"""The most tokens of a reply, and of one with an effort in `_THINKS_LONG`. Thinking counts: the API's page about effort
begins at 64k for `xhigh` and `max`. A model may allow less, and a small window leaves less.
"""

_THINKS_LONG = frozenset({"high", "xhigh", "max"})

_UNTOLD_REPLY = 16_000
"""The most tokens of a reply on a third-party server that tells the window's size but not the longest reply."""

_USUAL = models.Size(200_000)
_ASSUMED = models.Size(32_000, 4_000)
"""The size of a model that is assumed if Anthropic's server does not tell it, and if a third-party server does not."""

_ONLY_PINGS = 5
"""Factor by which `progress_timeout` is longer while a server sends only pings. It does so while it reads a long
conversation, and while the model thinks and its thinking is not shown."""

END_TIMEOUT = 5.0
"""Seconds to wait for the end of a reply once the server said why the model stopped: some servers never end it."""

CALL_TIMEOUT = 3600.0
"""Seconds that one call may take in all: the longest reply at 18 tokens a second.
`CREWBOARD_CALL_TIMEOUT` overrides it.
"""

STUCK_GRACE = 30.0
"""Seconds after `PROGRESS_TIMEOUT` at which the agent counts as stuck, because its worker did not end the call."""


_CHARACTERS_PER_TOKEN = 4
"""Used to estimate the tokens of a call where the server counts none."""

_ASK_TIMEOUT = 5.0
_BREAKPOINTS, _IS_ERROR, _ODD_IDS, _BLOCKS_OF_TEXT = "cache_control", "is_error", "odd ids", "blocks of text"
_LEFT_OUT = {
    _BREAKPOINTS: re.compile(
        r"cache_control|prompt.cach|\bsystem\b.{0,80}\bstr(?:ing)?\b"
        r"|\bexpected (?:a |type |an? instance of )?[`'\"]?str(?:ing)?\b.{0,60}\b(?:array|list|sequence)\b"
        r"|\b(?:array|list|sequence)\b.{0,30}\bexpected (?:a )?[`'\"]?str(?:ing)?\b",
        re.IGNORECASE | re.DOTALL,
    ),
    _BLOCKS_OF_TEXT: models.WANTS_TEXT,
    _IS_ERROR: re.compile(r"\bis_error\b"),
    _ODD_IDS: re.compile(r"(?:\b|_)id\b.{0,80}\bpattern\b", re.IGNORECASE | re.DOTALL),
}
"""What is left out or sent in another form once a server has refused it, each with the words of such refusals.

Marks of the prompt cache need the system prompt as blocks, so a server may say only that it wants a string somewhere.
`is_error` is not missed: the text of a result says that its call failed. Content that is only text can be one string.
Ids of calls that another model gave are replaced if they have characters that the API does not take."""
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]+")

_SAME_FAILURES = 3
"""Number of equal failures in a row after which a call is not tried again: each attempt may be billed."""

_LARGE = 100_000
"""Bytes above which a request may be too large for a server that has not answered any request in this run."""
_SMALLEST_LIMIT = 16_000
"""Bytes up to which no request counts as too large: the first request of an agent has about half as many."""
_SAFE_SHARE = 0.8
"""Share of the size of a refused request up to which requests are sent: the limit of the server is below that size."""

_LONGEST_ID = 256
"""The most characters of a reply's id that the API takes back, as its OpenAPI document says."""


class Model:
    """The model calls of one worker, with retries, timeouts, the cooldown of the team, and cost."""

    _has_answered = False
    """True once the server answered a request of this run, and so has accepted the credentials."""
    _hangs = False
    """True once the server did not answer a question about its models in time."""
    _largest_taken = 0
    """Bytes of the largest request that the server answered in this run."""
    _taken = 0
    """Bytes of the last request that the server answered."""
    _limit = 0
    """Bytes of a request that the server refused as too large; 0 if none is known."""
    _heard = 0.0
    """The event loop's time when the current call began or last brought a part of a reply."""
    _closed = 0
    """Times in a row that the server closed the connection without an answer."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, rng: Callable[[], float] = random.random) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._rng = rng
        self._budget = env.seconds(env.RETRY_BUDGET, RETRY_BUDGET)
        self.progress_timeout = env.seconds(env.PROGRESS_TIMEOUT, PROGRESS_TIMEOUT)
        """Seconds after which a call is cancelled and repeated if the server sent nothing."""
        self._call_timeout = env.seconds(env.CALL_TIMEOUT, CALL_TIMEOUT)
        self._prices = None if env.is_offline() else pricing.load(run_state.team.root)
        self._client = make_client()
        self.is_api = env.is_offline() or self._client.base_url.host == endpoint.API_HOST
        """True if the server is the API itself or the offline model: no cloud platform and no third-party server."""
        self._platform = env.platform()
        self._has_claude = self.is_api or self._platform is not None
        """True if the server has Anthropic's models: the API, the offline model or a cloud platform. It decides which
        size is assumed."""
        run_state.conversation.sends_unsigned = not self._has_claude
        spec = run_state.spec
        self.falls_back = self.is_api and models.falls_back(spec.model)
        """True if the API lets another model answer when this one refuses."""
        self.hears_system = self.is_api and models.hears_system(spec.model)
        """True if instructions can be messages of the role `system`."""
        self.defers_tools = self.is_api and models.defers_tools(spec.model)
        """True if the server can load definitions of tools on demand; the caller sets it to False once it refuses."""
        self._project = models.of_project(run_state.team.root).get(spec.model, models.ProjectModel())
        """The model's entry in the project's `models.toml`."""
        self._stated = models.Size(spec.flags.window, spec.flags.max_reply).or_else(self._project.size)
        """The model's size as stated in the hire, else in the project's `models.toml`."""
        if self._project.images is not None:
            run_state.takes = dict.fromkeys(("image", "document"), self._project.images)
        self._told = models.Size()
        """The model's size as the server tells it."""
        self._most_reply: int | None = None
        """The most tokens of a reply, as the server said when it refused a request for more; None if it has not."""
        self._was_asked_again = False
        self._server = endpoint.host_and_port(str(self._client.base_url))
        self._outages = Outages(run_state, interrupts, self._server, rng)
        self._left_out = {
            field
            for field in _LEFT_OUT
            if (field == _ODD_IDS if self.is_api else cooldown.is_refused(run_state.agent, self._server, field))
        }
        """The keys of `_LEFT_OUT` that apply to this server."""
        self._has_called = False
        self._settings: dict[str, Any] | None = None
        """The effort and thinking of all requests of this run; None before the first one. They stay, because a change
        would make the prompt cache useless."""
        self.thinking_was_dropped = False
        """True if the API ignored thinking in the last request, because the text before that thinking had changed."""
        self._coming: ReplyStream | None = None
        """The reply that is being streamed, or that broke off and is not counted yet; None if there is none."""
        self.refused_status: int | None = None
        """The HTTP status of the last failed attempt; None if none failed, or without an HTTP answer."""
        self.refused_with_page = False
        """True if the answer to the last failed attempt was a web page."""

    async def learn_size(self) -> None:
        """Learn the size of the model's window and what else the model can do, and note both in the run state.

        The size comes from the first of these that states it: the hire, the project's `models.toml`, the server's
        description of the model, its list of models, and the list of models that an Ollama server has loaded.
        """
        model = self._run_state.spec.model
        if self._platform is not None:
            # These describe no models.
            self._run_state.capabilities = models.on_platform(model)
            self.settle_window()
            return
        said = await self._get(f"/v1/models/{quote(model, safe='')}")
        self._told = models.size_in(said)
        self._run_state.capabilities = models.read(said)
        for path in () if self.is_api else ("/v1/models", "/api/ps"):
            if self._stated.window or self._told.window or self._hangs:
                break
            self._told = self._told.or_else(models.size_in(models.find_in_list(await self._get(path), model)))
        self.settle_window()

    async def ask_again(self) -> None:
        """Ask the server once more, and only once, for the window's size if it is only assumed.

        An Ollama server tells the size only after the first reply, which has loaded the model.
        """
        if self._run_state.window_is_assumed and not self._was_asked_again and not self._hangs:
            self._was_asked_again = True
            self._told = models.size_in(models.find_in_list(await self._get("/api/ps"), self._run_state.spec.model))
            if self._told.window:
                self.settle_window()

    def settle_window(self) -> None:
        """Note the window's size in the run state; if it is not known, an assumed one.

        The first time that the size is assumed on a third-party server, a line on stderr says so.
        """
        known = self._stated.or_else(self._told)
        run_state, usual = self._run_state, _USUAL if self._has_claude else _ASSUMED
        assumes = known.window is None and not self._has_claude
        if assumes and not run_state.window_is_assumed:
            sys.stderr.write(
                f"{run_state.name}: the server does not say how much {run_state.spec.model} takes in, so "
                f"{_ASSUMED.window} tokens are assumed; say it with `--window`, or in .crewboard/models.toml\n"
            )
        run_state.set_window(known.window or usual.window or 0, assumed=assumes)

    @property
    def longest_reply(self) -> int:
        """Return the most tokens of a reply, without regard to the room that is left in the window."""
        told, known = self._told.reply, self._stated.reply
        if known is not None:
            # The API refuses more. What other servers say of themselves may be wrong.
            known = min(known, told or known) if self.is_api else known
        elif self._run_state.window_is_assumed:
            known = _ASSUMED.reply or 0
        else:
            effort = self.settings().get("output_config", {}).get("effort")
            longest = LONGEST_THOUGHT if effort in _THINKS_LONG else LONGEST_REPLY
            known = min(longest, told or (longest if self._has_claude else _UNTOLD_REPLY))
        return min(known, self._most_reply or known)

    async def _get(self, path: str) -> Mapping[str, Any]:
        """Return the JSON object that the server sends for a path; an empty one if it sends none, or not in time."""
        try:
            # The client's own time is that between two pieces of an answer.
            async with asyncio.timeout(_ASK_TIMEOUT):
                answer = await self._client.get(path, cast_to=httpx2.Response, options={"timeout": _ASK_TIMEOUT})
            said = answer.json()
        except (anthropic.APITimeoutError, TimeoutError):
            self._hangs = True
            sys.stderr.write(
                f"{self._run_state.name}: {self._server} does not answer {path} within {_ASK_TIMEOUT:g} s, so it is "
                "not asked about its models\n"
            )
            return {}
        # A server that answers every path may send anything.
        except (anthropic.AnthropicError, httpx2.HTTPError, TypeError, ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}

    def settings(self) -> dict[str, Any]:
        """Return the fields of a request that set effort, thinking and the fallback to another model.

        Raises:
            ModelError: The model does not support the effort, the thinking or the web that the agent was hired with.
        """
        if self._settings is None:
            spec = self._run_state.spec
            can = self._run_state.capabilities or (models.known(spec.model) if self.is_api else None)
            asked = (spec.flags.effort, spec.flags.thinking or self._project.thinking)
            kind = type_of(spec.type, spec.definition)
            if (why := models.refusal(spec.model, can, *asked, web=spec.flags.web)) is not None:
                raise ModelError(why, ExitCode.USAGE)
            effort, thinking = models.chosen(can, asked, (kind.effort, kind.thinking))
            self._settings = models.settings(can, effort, thinking)
            if self.is_api:
                headers = self._client.default_headers
                self._settings = models.with_binding(self._settings, spec.model, headers)
                self._settings = models.with_fallbacks(self._settings, spec.model, headers)
            self._run_state.note_settings(effort, thinking)
        return self._settings

    def _request(
        self, system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]], longest: int
    ) -> dict[str, Any]:
        messages = [{**message, "content": _without(message["content"], self._left_out)} for message in messages]
        request = {
            "model": self._run_state.spec.model,
            "max_tokens": longest,
            "system": system,
            "messages": messages,
            **self.settings(),
        }
        if tools:
            request["tools"] = tools
        if tools and self.is_api:
            # The API compares the request with the last one of the conversation; others may refuse to.
            request["diagnostics"] = {"previous_message_id": self._run_state.conversation.last_id or None}
        if tools and self._left_out.isdisjoint((_BLOCKS_OF_TEXT, _BREAKPOINTS)):
            # Writing costs 2 in place of 1.25 times the input if the cache is to keep it for an hour, and a call after
            # a pause of more than five minutes reads for a tenth or less what it would write again. So that pays for
            # agents that wait: a lead, and one that waited so long before its present assignment or for a call in it,
            # such as the approval of a plan. What was cached for five minutes is gone then, so nothing is written
            # twice because of the change.
            waits = self._run_state.spec.type == LEAD or self._run_state.conversation.pause > CACHE_SECONDS
            request.update(with_breakpoints(system, tools, messages, an_hour=self.is_api and waits))
        return request

    def _may_be_media(self, outcome: Refusal, last: dict[str, Any], *, repeated: bool = False) -> bool:
        """Return True if a refusal may be because of an image or a document in the last message, without naming it.

        That is one by a server other than the API, for no known reason. A status of 500 counts only if it is
        `repeated`.
        """
        failed_often = repeated and outcome.status == refusals.FAILED
        unknown = failed_often or (outcome.status in refusals.MAY_BE_MEDIA and not outcome.retry)
        return not self.is_api and outcome.kind is ModelError and unknown and any(map(_is_media, last["content"]))

    def _of_request(self, outcome: Refusal) -> Refusal:
        """Return a refusal with the code FAILED in place of CREDENTIALS if it is about the request, else unchanged.

        It is about the request if it is a 403 with a web page, as of a firewall, or if it is any 403 or web page of a
        server that has answered a request of this run.
        """
        if outcome.is_page and outcome.status != refusals.FORBIDDEN and self._has_answered:
            return replace(outcome, code=ExitCode.FAILED)
        if outcome.status != refusals.FORBIDDEN or not (outcome.is_page or self._has_answered):
            return outcome
        return replace(outcome, text=outcome.text.replace("the credentials", "the request"), code=ExitCode.FAILED)

    def _mends(self, outcome: Refusal, longest: int) -> bool:
        """Change how requests are sent if a refusal asks for it; return True if the request is to be sent again.

        Either the server names the most tokens of a reply, below the `longest` that was asked for, or a server other
        than the API refuses fields in `_LEFT_OUT`.
        """
        if outcome.kind is ModelError and (most := models.reply_in_text(outcome.text, longest)) is not None:
            self._most_reply = most
            return True
        found = {field for field, words in _LEFT_OUT.items() if words.search(outcome.text)} - self._left_out
        if self.is_api or not found:
            return False
        for field in found:
            cooldown.note_refused(self._run_state.agent, self._server, field)
        self._left_out |= found
        return True

    def _error(
        self,
        outcome: Refusal,
        may_exceed: Callable[[str], bool],
        text: str = "",
        last: dict[str, Any] | None = None,
    ) -> ModelError:
        """Return the error to raise for a refusal.

        If the same refusal came several times, `text` replaces its own, and `last` is the last message of the request.
        On a third-party server, the error is a MaybeTooLongError if `may_exceed` returns True for the refusal's text:
        servers may say in any language, or not at all, that a request is too long.
        """
        if outcome.is_large and outcome.is_page:
            self._note_limit(outcome.size)
        if last is not None and self._may_be_media(outcome, last, repeated=True):
            return MediaRefusedError(outcome.text, ExitCode.FAILED)
        # What fails again and again in the same way may be too long whatever its status: some have 200 for all.
        is_possible = bool(text) or outcome.status in refusals.MAY_BE_TOO_LONG
        is_of_request = is_possible and outcome.code != ExitCode.CREDENTIALS
        unknown = outcome.kind is ModelError and is_of_request and not outcome.is_of_form
        if unknown and not self._has_claude and may_exceed(outcome.text):
            error = MaybeTooLongError(text or outcome.text, ExitCode.FAILED)
            error.was_repeated = bool(text)
            return error
        code = outcome.code if outcome.code == ExitCode.CREDENTIALS else ExitCode.FAILED
        return ModelError(text, code) if text else outcome.error()

    async def reply(
        self,
        system: str,
        tools: list[dict[str, Any]],
        messages: list[dict[str, Any]],
        longest: int,
        *,
        may_exceed: Callable[[str], bool] = lambda _: False,
    ) -> Reply:
        """Return the model's reply to the conversation, of at most `longest` tokens.

        Failures that may pass are retried. `may_exceed` gets the text of a refusal that does not name the length as its
        reason, and returns True if the request may be too long all the same.

        Raises:
            ModelError: The server refuses the request, fails repeatedly in the same way, or stayed unavailable for
                longer than the team waits; the kinds of this error are in `refusals.py`.
            TooLongError: The request is too long.
            MaybeTooLongError: The request may be too long.
            MediaRefusedError: The server refuses an image or a document, or may do so.
            Interrupted: The agent must read its mail, or was paused while it waited for a retry.
            WorkerExit: The run ends.
        """
        request = self._request(system, tools, messages, longest)
        has_media = any(_is_media(block) for message in messages for block in message["content"])
        waited = failing_since = 0.0
        attempt = 1
        causes: list[str] = []
        while True:
            paused = await self._outages.wait_for_cooldown(is_first=not self._has_called)
            waited += paused if failing_since else 0
            self._hold_back(request)
            self._has_called = True
            self._show("thinking")
            try:
                outcome = await self._interrupts.run_interruptibly(self._attempt(request, is_first=attempt == 1))
            finally:
                self._count_broken()
            if isinstance(outcome, Reply):
                # The server is available, and a limit that the request exceeds is gone.
                self._closed, self._has_answered = 0, True
                self._outages.end()
                if 0 < self._limit <= self._taken:
                    cooldown.note_too_large(self._run_state.agent, self._server, 0)
                return outcome
            outcome = self._of_request(outcome)
            self.refused_status, self.refused_with_page = outcome.status, outcome.is_page
            if has_media and (outcome.names_media or self._may_be_media(outcome, messages[-1])):
                raise MediaRefusedError(outcome.text, ExitCode.FAILED)
            if self._mends(outcome, request["max_tokens"]):
                request = self._request(system, tools, messages, min(longest, self._most_reply or longest))
                continue
            delay = max(outcome.wait, min(FIRST_DELAY * 2.0 ** (attempt - 1), MAX_DELAY) * (0.8 + 0.4 * self._rng()))
            if not outcome.retry:
                raise self._error(outcome, may_exceed)
            await self._check_size(outcome)
            causes.append(outcome.cause)
            waited += outcome.waited
            failing_since = failing_since or self._run_state.now()
            is_used_up = outcome.of_account or (waited + delay > self._budget and (attempt > 1 or not outcome.waited))
            same = causes[-_SAME_FAILURES:] == [outcome.cause] * _SAME_FAILURES
            # One that names no cause may be another one each time, and pass.
            if same and (
                outcome.cause or (is_used_up and outcome.status == refusals.FAILED and may_exceed(outcome.text))
            ):
                text = f"failed {_SAME_FAILURES} times in the same way: {outcome.text}"
                raise self._error(outcome, may_exceed, text, messages[-1])
            if is_used_up and not outcome.may_be_outage:
                raise ModelError(f"the API stayed unavailable: {outcome.text}", outcome.code)
            if is_used_up or (self._outages.since is not None and outcome.may_be_outage):
                self._outages.note(outcome, attempt, failing_since)
                attempt += 1
                continue
            await self._outages.wait_for_retry(outcome, attempt, delay)
            waited += delay
            attempt += 1

    async def _check_size(self, outcome: Refusal) -> None:
        """Count how often in a row the server closed the connection, and find out if the size is the reason.

        Raises:
            TooLongError: The server closed the connection several times on this request, but is up, and has not
                answered a request of this size in this run.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        self._closed = self._closed + 1 if outcome.closed_on is not None else 0
        size = outcome.closed_on or 0
        is_larger = size > max(self._largest_taken or _LARGE, _SMALLEST_LIMIT)
        if (
            self._closed < _SAME_FAILURES
            or not is_larger
            or not await self._interrupts.run_interruptibly(self._is_up())
        ):
            return
        self._closed = 0
        self._outages.end()
        self._note_limit(size)
        raise self._too_large(f"closes the connection on a request of {_in_words(size)}, and answers smaller ones")

    def _note_limit(self, size: int) -> None:
        """Record for the team that the server does not take requests of `size` bytes, unless a lower limit is known."""
        agent, server = self._run_state.agent, self._server
        if size > _SMALLEST_LIMIT:
            cooldown.note_too_large(agent, server, min(size, cooldown.too_large(agent, server) or size))

    def _hold_back(self, request: dict[str, Any]) -> None:
        """Refuse a request that is nearly as large, in bytes, as one that the server refused as too large.

        Until the server has answered a request of this run, any size is sent: the limit may have been raised.

        Raises:
            TooLongError: The request is too large.
        """
        self._limit = known = cooldown.too_large(self._run_state.agent, self._server)
        if known and self._has_answered:
            size = len(json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
            if size > max(known * _SAFE_SHARE, self._largest_taken):
                raise self._too_large(f"did not take a request of {_in_words(known)}, and this has {_in_words(size)}")

    def _too_large(self, what: str) -> TooLongError:
        error = TooLongError(
            f"{self._server} {what}: let it, or the proxy before it, take larger ones, or resume with a smaller "
            "`--window`",
            ExitCode.FAILED,
        )
        error.is_large = True
        return error

    async def _is_up(self) -> bool:
        try:
            async with asyncio.timeout(_ASK_TIMEOUT):
                await self._client.get("/v1/models", cast_to=httpx2.Response, options={"timeout": _ASK_TIMEOUT})
        except anthropic.APIStatusError as error:
            return error.status_code not in refusals.UNAVAILABLE
        except (anthropic.AnthropicError, httpx2.HTTPError, TimeoutError, ValueError):
            return False
        return True

    def _show(self, doing: str) -> None:
        # While it tries, it keeps its place among the agents that wait.
        timeout = self.progress_timeout + STUCK_GRACE
        self._run_state.show("working", doing, timeout=timeout, outage_since=self._outages.since)

    async def _attempt(self, request: dict[str, Any], *, is_first: bool) -> Reply | Refusal:
        progress = asyncio.timeout(self.progress_timeout)
        self._heard = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._call_timeout), progress:
                return await self._stream(request, progress, is_first=is_first)
        except TimeoutError:
            if progress.expired():
                more = f"; {env.PROGRESS_TIMEOUT} gives a slow server more time"
                # Longer than the limit if pings came.
                silence = (progress.when() or self._heard) - self._heard
                text = f"the reply made no progress for {round(silence, 1):g} s{more}"
                waited = self.progress_timeout
            else:
                text, waited = f"the reply took longer than {self._call_timeout:g} s", self._call_timeout
            return Refusal(text, retry=True, waited=waited)
        except (anthropic.AnthropicError, httpx2.HTTPError, ServerError, PageError, ValueError, TypeError) as error:
            return refusals.judge(error)
        except Exception as error:
            if self._platform is None or not refusals.is_of_credentials(error):
                raise
            return refusals.judge_credentials(error)

    async def _stream(self, request: dict[str, Any], progress: asyncio.Timeout, *, is_first: bool) -> Reply | Refusal:
        run_state, began = self._run_state, time.monotonic()
        run_state.clear_live()
        response = (await self._client.messages.create(**request, stream=True)).response
        coming = self._coming = ReplyStream(response)
        try:
            await self._read(coming, progress)
        finally:
            await response.aclose()
        run_state.flush()
        self._taken = refusals.bytes_of(response.request)
        self._largest_taken = max(self._largest_taken, self._taken)
        found = coming.finish(request.get("tools", []), run_state.conversation.call_ids)
        if found is None:
            return Refusal("the reply ended early", retry=True, may_be_outage=False)
        if found.malformed and is_first:
            # By chance the next one may be whole. If not, the model is told.
            return Refusal(f"the reply was malformed: {found.malformed}", retry=True, may_be_outage=False)
        self.thinking_was_dropped = coming.dropped_thinking
        details, ident = coming.said.get("stop_details"), coming.said.get("id")
        model = coming.model or run_state.spec.model
        # The API does not bill a refusal before it wrote anything.
        used = Tokens() if found.stop_reason == "refusal" and not found.content else coming.used
        if found.content:
            # A server may count the reply alone, or neither.
            parts = [request.get(part) for part in ("system", "tools", "messages")]
            asked = 0 if used.prompt else _characters(parts) // _CHARACTERS_PER_TOKEN
            given = 0 if used.output else _characters(found.content) // _CHARACTERS_PER_TOKEN + 1
            used += Tokens(input=asked, output=given, estimated=asked + given)
        reply = Reply(
            ts=run_state.now(),
            content=found.content,
            stop_reason=found.stop_reason,
            usage=used,
            model=model,
            seconds=round(time.monotonic() - began, 3),
            cost_usd=self._cost(model, used, in_us=coming.is_in_us),
            refused=found.refused,
            stop_details=details if isinstance(details, dict) else None,
            # Only if the API takes it back.
            id=ident if self.is_api and isinstance(ident, str) and len(ident) <= _LONGEST_ID else "",
            cache_miss=coming.cache_miss,
        )
        if (refusal := _unstorable(reply)) is None:
            for declining, tokens in coming.declined:
                cost = self._cost(declining, tokens, in_us=coming.is_in_us)
                run_state.append(BrokenReply(ts=run_state.now(), usage=tokens, model=declining, cost_usd=cost))
            self._coming = None
        return refusal or reply

    async def _read(self, coming: ReplyStream, progress: asyncio.Timeout) -> None:
        """Read a reply to its end, or until nothing more comes after its reason to stop. Show the pieces meanwhile.

        Raises:
            TimeoutError: The time of `progress` or of the whole call is over.
        """
        run_state, last_shown = self._run_state, time.monotonic()
        now = asyncio.get_running_loop().time
        end = asyncio.timeout(None)
        try:
            async with end:
                async for kind, text in coming.pieces():
                    self._heard = self._heard if kind == "ping" else now()
                    progress.reschedule(
                        min(now(), self._heard + self.progress_timeout * (_ONLY_PINGS - 1)) + self.progress_timeout
                    )
                    if coming.stopped:
                        end.reschedule(self._heard + END_TIMEOUT)
                    if kind == "text":
                        run_state.stream(text)
                    if time.monotonic() - last_shown > 1:
                        last_shown = time.monotonic()
                        # A reply that is being paid for must not end because the disk is full just now.
                        with contextlib.suppress(StorageError):
                            self._show("thinking" if kind == "thinking" else "writing")
        except TimeoutError:
            if not end.expired():
                raise
            sys.stderr.write(f"{run_state.name}: the server did not end its reply, which was whole\n")

    def _cost(self, model: str, used: Tokens, *, in_us: bool = False) -> float | None:
        """Return the cost of a reply in USD, at the price of its `model`, else of the one that was asked for.

        None if neither has a known price, or on the offline model.
        """
        if self._prices is None:
            return None
        cost = self._prices.cost(model, used, in_us=in_us)
        return self._prices.cost(self._run_state.spec.model, used, in_us=in_us) if cost is None else cost

    @property
    def is_priced(self) -> bool:
        """Return True if a budget in money can be counted: the model has a known price, or it is the offline model."""
        return self._prices is None or self._cost(self._run_state.spec.model, Tokens()) is not None

    def _count_broken(self) -> None:
        """Journal the tokens of a reply that broke off or could not be used, if it has any: the API bills them."""
        coming, self._coming = self._coming, None
        if coming is None or (used := coming.used) == Tokens():
            return
        model = coming.model or self._run_state.spec.model
        cost = self._cost(model, used, in_us=coming.is_in_us)
        self._run_state.append(BrokenReply(ts=self._run_state.now(), usage=used, model=model, cost_usd=cost))


def _characters(value: object) -> int:
    """Return the number of characters in a JSON value, without data of images; 1 for a number, a boolean or null."""
    if isinstance(value, dict):
        return sum(len(name) + _characters(each) for name, each in value.items() if name != "data")
    if isinstance(value, list):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 1


def _is_media(block: dict[str, Any]) -> bool:
    """Return True if a block is an image or a document, or a tool result that holds one."""
    inner = block.get("content")
    return block["type"] in ("image", "document") or (isinstance(inner, list) and any(map(_is_media, inner)))


def _without(content: list[dict[str, Any]], left_out: Collection[str]) -> list[dict[str, Any]] | str:
    """Return the content of a message in the form that `left_out`, keys of `_LEFT_OUT`, requires.

    It is a string, in place of blocks, if blocks of text are left out and there are no others.
    """
    if _IS_ERROR in left_out:
        content = [{name: each for name, each in block.items() if name != _IS_ERROR} for block in content]
    if _ODD_IDS in left_out:
        content = [dict(block) for block in content]
        for block, name in itertools.product(content, ("id", "tool_use_id")):
            if name in block and not _PLAIN_ID.fullmatch(block[name]):
                # The same for a call and its result.
                block[name] = f"toolu_{hashlib.sha256(block[name].encode()).hexdigest()[:24]}"
    if _BLOCKS_OF_TEXT in left_out and all(block["type"] == "text" for block in content):
        return "\n\n".join(block["text"] for block in content)
    return content


def _unstorable(reply: Reply) -> Refusal | None:
    """Return a refusal if the journal cannot hold a reply, because it is too long or not valid; None if it can."""
    try:
        if len(codec.encode(reply)) <= files.MAX_LINE:
            return None
        reason = f"it is longer than {files.MAX_LINE} bytes"
    except BadDataError as error:
        reason = str(error)
    return Refusal(f"the reply cannot be stored: {reason}", retry=False, code=ExitCode.FAILED)


def _in_words(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1000:.0f} kB"  # noqa: PLR2004  a megabyte
