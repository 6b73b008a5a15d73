"""Calls the model: streamed through the SDK, retried here so that each wait is shown and can be interrupted."""

import asyncio
import contextlib
import hashlib
import json
import math
import os
import random
import re
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import anthropic
import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient, WorkloadIdentityError

from crewboard import endpoint, env, models, pricing
from crewboard.agent_types import type_of
from crewboard.errors import BadDataError, ExitCode, StorageError
from crewboard.names import LEAD
from crewboard.protocol import cooldown
from crewboard.records.agents import Tokens
from crewboard.records.events import BrokenReply, CacheMiss, Reply, Retry
from crewboard.redaction import redact
from crewboard.store import codec, files
from crewboard.worker.interrupts import (
    FIRST_DELAY,
    MAX_DELAY,
    RETRY_BUDGET,
    SWEEP_INTERVAL,
    Interrupted,
    Interrupts,
)
from crewboard.worker.llm.blocks import CACHE_SECONDS, PageError, ReplyStream, ServerError, with_breakpoints
from crewboard.worker.run_state import RunState

LONGEST_REPLY = 32_000
LONGEST_THOUGHT = 64_000
"""Tokens that a reply may have, and one with a high effort: thinking counts, and `xhigh` and `max` begin at 64k in the
API's page about effort. A model may allow less, and a small window leaves less.
"""

_THINKS_LONG = frozenset({"high", "xhigh", "max"})

_UNTOLD_REPLY = 16_000
"""Tokens that a reply may have on a server of others that tells the window, and not the longest reply."""

_USUAL = models.Size(200_000)
_ASSUMED = models.Size(32_000, 4_000)
"""The size of a model if the API does not tell, and if a server of others does not."""

PROGRESS_TIMEOUT = 120.0
"""Seconds without anything from the server after which a call is cancelled and repeated.
`CREWBOARD_PROGRESS_TIMEOUT` overrides it.
"""

_ONLY_PINGS = 5
"""Times as long that a server may send nothing but pings: it does while it reads a long conversation, and while a model
thinks whose thinking is not shown."""

END_TIMEOUT = 5.0
"""Seconds that a reply may go on after it said why the model stopped: some servers neither end it nor hang up."""

CALL_TIMEOUT = 3600.0
"""Seconds that one call may take in all. The longest reply takes that at 18 tokens a second.
`CREWBOARD_CALL_TIMEOUT` overrides it.
"""

STUCK_GRACE = 30.0
"""Seconds after `PROGRESS_TIMEOUT` at which the agent counts as stuck, because its worker did not end the call."""

COOLDOWN_SPREAD = 2.0
"""Seconds over which a team's calls are spread after a cooldown."""
_LONGEST_SPEND_LIMIT = 32 * 86_400.0
"""Seconds after which a limit of spending is reset: it is that of a month."""

_LONGEST_RESET = 7 * 86_400.0
"""Seconds after which no limit of the API is reset: a header that says so is wrong."""

_CHARACTERS_PER_TOKEN = 4
"""For an estimate, where a server counts no tokens."""

_CONNECT_TIMEOUT = 15.0
_ASK_TIMEOUT = 5.0
_TRUST_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_OK = 200
_NO_PAYMENT = 402
_OF_ACCOUNT = re.compile(
    "credit balance is too low|billing_error|API usage limits|spend(?:ing)? limit"
    "|insufficient_quota|exceeded your current quota|budget has been exceeded|budget_exceeded",
    re.IGNORECASE,
)
"""Words for an account without credit, or at a limit of spending, of the API, of OpenAI behind a gateway, and of a key
of LiteLLM. The API sends both as `invalid_request_error`, or as `billing_error` with 402."""
_MODERATED = re.compile(r"\bflagged\b|\bmoderation\b", re.IGNORECASE)
"""Words of a 403 that is about the input, as OpenRouter sends it."""
_REGAIN = re.compile(r"regain access on (\d{4}-\d\d-\d\d) at (\d\d:\d\d) UTC")
_FORBIDDEN = 403
_TOO_LARGE = 413
_FAILED = 500
_NO_ROOM = 507
_MAY_BE_TOO_LONG = frozenset({400, _TOO_LARGE, 422, _FAILED, _NO_ROOM})
"""Statuses of a request that exceeds the window; some gateways make a 500 of a server's 400."""
_MAY_BE_MEDIA = frozenset({400, 404, 415, 422})
"""Statuses of a request with an image that the model does not take; llama.cpp and gateways have a 500 for it."""
_MAY_BE_UNKNOWN = frozenset({400, 404})
_UNKNOWN_MODEL = re.compile(
    r"^model: |invalid model name|model_not_found|\bmodel\b.*(?:not found|does not exist)", re.IGNORECASE
)
"""Words for a model that a server does not have: of the API, LiteLLM, OpenAI, and of Ollama and vLLM."""
_STALE_THINKING = re.compile(
    "Invalid `signature` in `thinking` block|blocks in the latest assistant message cannot be modified"
)
"""The API's words for thinking that it does not accept, of another conversation, account or model, or not as it was."""
_OF_FORM = re.compile(
    r"\b(?:messages|tools|system|content)[.\[]\d|\b(?:tool_\w+|input_schema|is_error|output_config|max_tokens)\b"
    r"|\bextra (?:inputs?|fields?|keys?)\b|\binput should be\b|\bonly supports?\b"
    r"|\bnot (?:supported|permitted|allowed|implemented)\b"
    r"|\b(?:unsupported|invalid|malformed|unrecogni[sz]ed)\b|\b(?:does not|doesn't) support\b|\bmust (?:be|have|not)\b"
    r"|\b(?:unknown|unexpected) (?:field|key|parameter|argument|property|role)\b|\bis required\b",
    re.IGNORECASE,
)
"""Words of a refusal for what a request has in it: a field or a kind of content, and not for how long it is."""
_DEFERRED_TOOLS = re.compile(r"defer_loading|tool_reference|Tool reference")
"""Words of a refusal for the fields by which tools are loaded on demand."""
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
"""Fields that are left out where a server does not know them, each with the words of such a server. The marks of the
prompt cache have the system prompt in blocks, and a server may say only that it wants a string somewhere. The text of a
result says itself that its call failed. The content of a message that is text alone can be a string. Ids of calls that
another model gave are replaced where they have characters that the API does not take."""
_PLAIN_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SHARED = frozenset({429, 529})
_UNAVAILABLE = frozenset({*_SHARED, 502, 503, 504, *range(520, 528)})
"""Statuses of an outage. A proxy in front of a server has those from 520 on for one that it cannot reach."""
_RETRIED_STATUS = frozenset({408, 409, 500, *_UNAVAILABLE})
_NAMES_MEDIA = re.compile(r"\b(image|image_url|pdf|vision|multimodal|mmproj|document\.source)\b", re.IGNORECASE)
"""Words by which a refusal of a request with images or documents names them as its reason."""
_RATE_LIMITED = 429
_LIMIT_AND_REQUESTED = re.compile(r"\bLimit:? (\d[\d,]*), Requested:? (\d[\d,]*)", re.IGNORECASE)
"""Words of a limit per minute, with the tokens that a single request has."""
_RESET = re.compile(r"(anthropic-ratelimit-.+)-reset")
"""The headers that say when a limit of the API is reset."""
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504,
    "overloaded_error": 529,
}  # fmt: skip
"""The status that each type of error has. In a stream it has that of the stream."""

_SAME_FAILURES = 3
"""Times in a row that a server fails in the same way before more attempts are a waste. Each may be paid for."""

_LARGE = 100_000
"""Bytes of a request that may be too large for a server that has not answered any in this run."""
_SMALLEST_LIMIT = 16_000
"""Bytes of a request that no server finds too large: the first one of an agent has half as many."""
_SAFE_SHARE = 0.8
"""Share of the bytes that a server did not take up to which a request is sent: its limit is below them."""

_LONGEST_ID = 256
"""Characters of an id that the API takes back, as its OpenAPI document says."""

_CREDENTIAL_LIBRARIES = frozenset({"boto3", "botocore", "google", "requests", "urllib3"})
_NO_NETWORK = frozenset({"TransportError", "HTTPClientError", "ConnectionError"})
"""Names of errors of Google's and Amazon's libraries, which are not imported here."""

_NO_CAUSE = re.compile(r"(an? )?(internal|unexpected|unknown|api|server)?[ _]*(server)?[ _]*error( occurred)?\W*")
"""Words that name no cause, so that the next attempt may well do."""

_MOST_SAID = 2000
"""Characters of an error's text that are kept: some send a page."""

_MOST_CAUSE = 200
"""Characters of a cause that are compared: behind them may stand the place where it happened, or the request."""

_MOST_NESTED = 8
"""Levels of an error in which a message is looked for."""

_PAGE = "a web page"
_MOST_TAG = 20


class ModelError(Exception):
    """The call cannot succeed. `code` is the exit code for the reason."""

    def __init__(self, text: str, code: ExitCode) -> None:
        super().__init__(models.with_remedy(text))
        self.code = code


class TooLongError(ModelError):
    """The request has more tokens than the model's window holds, which is `window` if the server says so."""

    window: int | None = None
    is_large: bool = False
    """True if it has too many bytes, and not too many tokens."""


class MaybeTooLongError(ModelError):
    """A server of others refused the longest request so far in words that are not known: it may be too long."""

    was_repeated = False
    """True if it refused the same request several times in the same way."""


class UnknownModelError(ModelError):
    """The server does not have the model, or the model calls no tools: each further call would fail as well."""


class MediaRefusedError(ModelError):
    """The server does not process an image or a document in the request."""


class DeferredToolsError(ModelError):
    """The server does not load the definitions of tools on demand."""


class StaleThinkingError(ModelError):
    """The API does not accept the thinking in the request, because of what stands before it, or who sent it."""


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
    cause: str = ""
    """The cause that the server named for a failure of its own, without numbers; another attempt may fail like this."""
    of_account: bool = False
    """True if the account may not call the API now: it has no credit, or has reached a limit of spending."""
    may_be_outage: bool = True
    """False if the API answered, and the reply was of no use: each further attempt costs as much."""
    kind: type[ModelError] = ModelError
    """The error to raise if it is not retried."""
    window: int | None = None
    """The tokens that the model's window holds, as a refusal of a long request says."""
    is_large: bool = False
    """True if the request had too many bytes."""
    names_media: bool = False
    """True if the server gave an image or a document as the reason."""
    is_of_form: bool = False
    """True if the server gave a field or a kind of content as the reason, which is none of length."""
    status: int | None = None
    """The HTTP status of the answer, if there was one."""
    is_page: bool = False
    """True if the answer was a web page."""
    size: int = 0
    """Bytes of the request, if it was answered."""
    closed_on: int | None = None
    """Bytes of the request on which the server closed the connection without an answer."""

    def __post_init__(self) -> None:
        # What an API or a gateway says may repeat the key. It is journalled, mailed and shown.
        object.__setattr__(self, "text", redact(self.text))

    def error(self) -> ModelError:
        """Return the error to raise."""
        error = self.kind(self.text, self.code)
        if isinstance(error, TooLongError):
            error.window, error.is_large = self.window, self.is_large
        return error


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


def make_client(*, api_key: str | None = None, base_url: str | None = None) -> AsyncAnthropic:
    """Return a client without retries of its own. Key and address default to those of the environment.

    If the environment chooses a cloud platform, it is the SDK's client for that, which has the same `messages`.
    """
    timeout = anthropic.Timeout(PROGRESS_TIMEOUT, connect=_CONNECT_TIMEOUT)
    # No proxy for this machine's own addresses: `endpoint.proxy` says the same.
    direct = {f"all://{host}": None for host in ("127.0.0.0/8", "localhost", "*.localhost", "[::1]")}
    http = DefaultAsyncHttpxClient(verify=_tls_context(), timeout=timeout, mounts=direct)
    common: dict[str, Any] = {"max_retries": 0, "timeout": timeout, "http_client": http}
    client: Any
    match env.platform() if base_url is None else None:
        case "bedrock":
            client = anthropic.AsyncAnthropicBedrockMantle(**common)
        case "vertex":
            # Later the SDK would look for it in vain: `env.forget_api_variables`.
            client = anthropic.AsyncAnthropicVertex(project_id=os.environ["ANTHROPIC_VERTEX_PROJECT_ID"], **common)
        case "foundry":
            client = anthropic.AsyncAnthropicFoundry(**common)
        case _:
            return AsyncAnthropic(api_key=api_key, base_url=base_url, **common)
    return cast("AsyncAnthropic", client)


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

    _has_answered = False
    """True once the server took a request of this run, and so its credentials."""
    _hangs = False
    """True if the server does not answer questions about its models."""
    _largest_taken = 0
    """Bytes of the largest request that the server answered in this run."""
    _taken = 0
    """Bytes of the last one that it answered."""
    _limit = 0
    """Bytes of a request that it did not take because of them, 0 if none is known."""
    _closed = 0
    """Times in a row that the server closed the connection without an answer."""

    def __init__(self, run_state: RunState, interrupts: Interrupts, rng: Callable[[], float] = random.random) -> None:
        self._run_state = run_state
        self._interrupts = interrupts
        self._rng = rng
        self._budget = env.seconds(env.RETRY_BUDGET, RETRY_BUDGET)
        self._progress_timeout = env.seconds(env.PROGRESS_TIMEOUT, PROGRESS_TIMEOUT)
        self._call_timeout = env.seconds(env.CALL_TIMEOUT, CALL_TIMEOUT)
        self._prices = None if env.is_offline() else pricing.load(run_state.team.root)
        self._client = make_client()
        self.is_api = env.is_offline() or self._client.base_url.host == endpoint.API_HOST
        """True if the server is the API itself, or the offline model, and no server of others."""
        self._platform = env.platform()
        self._has_claude = self.is_api or self._platform is not None
        """True if its models are Anthropic's: so are the defaults of what it does not say."""
        run_state.conversation.sends_unsigned = not self._has_claude
        spec = run_state.spec
        self.falls_back = self.is_api and models.falls_back(spec.model)
        """True if the API asks another model, if this one refuses."""
        self.hears_system = self.is_api and models.hears_system(spec.model)
        """True if instructions can be messages of the role `system`."""
        self.defers_tools = self.is_api and models.defers_tools(spec.model)
        """True if tools can be loaded on demand, until the server refuses that."""
        self._project = models.of_project(run_state.team.root).get(spec.model, models.ProjectModel())
        """The model's entry in the project's `models.toml`."""
        self._stated = models.Size(spec.flags.window, spec.flags.max_reply).or_else(self._project.size)
        """Its size as the hire and the project state it."""
        if self._project.images is not None:
            run_state.takes = dict.fromkeys(("image", "document"), self._project.images)
        self._told = models.Size()
        """Its size as the server tells it."""
        self._most_reply: int | None = None
        """Tokens of a reply that the server named when it refused a request for more."""
        self._was_asked_again = False
        self._server = endpoint.host_and_port(str(self._client.base_url))
        self._left_out = {
            field
            for field in _LEFT_OUT
            if not self.is_api and cooldown.is_refused(run_state.agent, self._server, field)
        }
        """Fields that the server does not know."""
        self._has_called = False
        self._config = run_state.team.config.watch()
        self._settings: dict[str, Any] | None = None
        """The effort and thinking of this run's requests, from the first one on: a change would cost the cache."""
        self.thinking_was_dropped = False
        """True if the API left out thinking of the last request, because something before it had changed."""
        self._outage: _Outage | None = None
        """The outage of the API, until a call succeeds."""
        self._coming: ReplyStream | None = None
        """The reply that is streamed now, or that broke off."""
        self.refused_status: int | None = None
        """The HTTP status of the last failed attempt; None if there was no answer."""
        self.refused_with_page = False
        """True if the answer to it was a web page."""

    async def learn_size(self) -> None:
        """Find out how many tokens the model takes, and what else it can do.

        In this order: what the hire says, the project's `models.toml`, the model's description by the server, its list
        of models, and the models that an Ollama has loaded.
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
        """Ask an Ollama for the window of a model that it has loaded for the first reply."""
        if self._run_state.window_is_assumed and not self._was_asked_again and not self._hangs:
            self._was_asked_again = True
            self._told = models.size_in(models.find_in_list(await self._get("/api/ps"), self._run_state.spec.model))
            if self._told.window:
                self.settle_window()

    def settle_window(self) -> None:
        """Use the window that is known, else assume one, and say so once."""
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
        """Return how many tokens a reply may have, if the window has room for it."""
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
        """Return the object that a server sends for a path; an empty one if it sends none."""
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
        """Return the effort and thinking of a request.

        Raises:
            ModelError: The model does not take what the agent was hired with, the web included.
        """
        if self._settings is None:
            spec = self._run_state.spec
            can = self._run_state.capabilities or (models.known(spec.model) if self.is_api else None)
            asked = (spec.flags.effort, spec.flags.thinking or self._project.thinking)
            kind = type_of(spec.type, spec.definition)
            if (why := models.refusal(spec.model, can, *asked, web=spec.flags.web)) is not None:
                raise ModelError(why, ExitCode.USAGE)
            usual = kind.effort, kind.thinking
            self._settings = models.settings(can, asked, usual)
            if self.is_api:
                headers = self._client.default_headers
                self._settings = models.with_binding(self._settings, spec.model, headers)
                self._settings = models.with_fallbacks(self._settings, spec.model, headers)
            self._run_state.note_settings(*models.chosen(can, asked, usual))
        return self._settings

    @property
    def _caches_an_hour(self) -> bool:
        """Return True if the prompt cache is to keep the conversation for an hour.

        Writing costs 2 in place of 1.25 times the input then, and a call after a pause of more than five minutes reads
        for a tenth or less what it would write again. So that pays for agents that wait: a lead, and one that waited so
        long before its present assignment or for a call in it, such as the approval of a plan. What was cached for five
        minutes is gone then, so nothing is written twice because of the change.
        """
        waits = self._run_state.spec.type == LEAD or self._run_state.conversation.pause > CACHE_SECONDS
        return self.is_api and waits

    def _request(
        self, system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]], longest: int
    ) -> dict[str, Any]:
        if _IS_ERROR in self._left_out:
            messages = [_without_is_error(message) for message in messages]
        if self.is_api or _ODD_IDS in self._left_out:
            messages = [_with_plain_ids(message) for message in messages]
        if takes_text := _BLOCKS_OF_TEXT in self._left_out:
            messages = [_with_string(message) for message in messages]
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
        if tools and not takes_text and _BREAKPOINTS not in self._left_out:
            request.update(with_breakpoints(system, tools, messages, an_hour=self._caches_an_hour))
        return request

    def _may_be_media(self, outcome: _Refusal, last: dict[str, Any], *, repeated: bool = False) -> bool:
        """Return True if a server of others refused a request whose last message brought an image, for no known reason.

        It is tried once without: no list of words is complete. A 500 says so only if it is `repeated`.
        """
        blocks = last["content"] if isinstance(last["content"], list) else []
        failed_often = repeated and outcome.status == _FAILED
        unknown = failed_often or (outcome.status in _MAY_BE_MEDIA and not outcome.retry)
        return not self.is_api and outcome.kind is ModelError and unknown and any(map(_is_media, blocks))

    def _of_request(self, outcome: _Refusal) -> _Refusal:
        """Return what a 403 means if it is no matter of credentials: a firewall's page, or after a reply."""
        if outcome.status != _FORBIDDEN or not (outcome.is_page or self._has_answered):
            return outcome
        return replace(outcome, text=outcome.text.replace("the credentials", "the request"), code=ExitCode.FAILED)

    def _mends(self, outcome: _Refusal, longest: int) -> bool:
        """Return True if requests are sent in another way from now on, because of what a server refused.

        That is a reply as long as `longest`, or on a server of others a field.
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
        outcome: _Refusal,
        may_exceed: Callable[[str], bool],
        text: str = "",
        last: dict[str, Any] | None = None,
    ) -> ModelError:
        """Return the error to raise for a refusal, with another `text` if it came several times for a `last` message.

        Servers tell in any language, or not at all, that a request is too long.
        """
        if outcome.is_large and outcome.is_page:
            self._note_limit(outcome.size)
        if last is not None and self._may_be_media(outcome, last, repeated=True):
            return MediaRefusedError(outcome.text, ExitCode.FAILED)
        # What fails again and again in the same way may be too long whatever its status: some have 200 for all.
        is_possible = bool(text) or outcome.status in _MAY_BE_TOO_LONG
        unknown = outcome.kind is ModelError and is_possible and not outcome.is_of_form
        if unknown and not self._has_claude and may_exceed(outcome.text):
            error = MaybeTooLongError(text or outcome.text, ExitCode.FAILED)
            error.was_repeated = bool(text)
            return error
        return ModelError(text, ExitCode.FAILED) if text else outcome.error()

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

        `may_exceed` says whether the request may be too long if it is refused in these words, which do not say that.

        Raises:
            ModelError: The API refuses the request, or it stayed unavailable for longer than the team waits.
            TooLongError: The request is too long.
            MaybeTooLongError: It may be.
            Interrupted: The agent must read its mail.
            WorkerExit: The run ends.
        """
        request = self._request(system, tools, messages, longest)
        contents = [message["content"] for message in messages if isinstance(message["content"], list)]
        has_media = any(_is_media(block) for content in contents for block in content)
        waited = failing_since = 0.0
        attempt = 1
        causes: list[str] = []
        while True:
            paused = await self._wait_for_cooldown()
            waited += paused if failing_since else 0
            self._hold_back(request)
            self._has_called = True
            self._show("thinking")
            try:
                outcome = await self._interrupts.run_interruptibly(self._attempt(request, is_first=attempt == 1))
            finally:
                self._count_broken()
            if isinstance(outcome, Reply):
                self._note_answer()
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
            if same and (outcome.cause or (is_used_up and outcome.status == _FAILED and may_exceed(outcome.text))):
                text = f"failed {_SAME_FAILURES} times in the same way: {outcome.text}"
                raise self._error(outcome, may_exceed, text, messages[-1])
            if is_used_up and not outcome.may_be_outage:
                raise ModelError(f"the API stayed unavailable: {outcome.text}", ExitCode.API_UNAVAILABLE)
            if is_used_up or (self._outage is not None and outcome.may_be_outage):
                self._note_outage(outcome, attempt, failing_since)
                attempt += 1
                continue
            if outcome.shared:
                cooldown.extend(self._run_state.agent, self._server, delay, outcome.text)
            await self._wait_for_retry(outcome, attempt, delay)
            waited += delay
            attempt += 1

    async def _check_size(self, outcome: _Refusal) -> None:
        """Count how often the server closed the connection. If it does so only on larger requests, that is no outage.

        Raises:
            TooLongError: It answers others, and none so large yet.
            Interrupted: The agent must read its mail.
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
        self._end_outage()
        self._note_limit(size)
        raise self._too_large(f"closes the connection on a request of {_in_words(size)}, and answers smaller ones")

    def _note_limit(self, size: int) -> None:
        """Record that the server does not take a request because it has `size` bytes."""
        agent, server = self._run_state.agent, self._server
        if size > _SMALLEST_LIMIT:
            cooldown.note_too_large(agent, server, min(size, cooldown.too_large(agent, server) or size))

    def _note_answer(self) -> None:
        """Note that the server took a request: it is available, and a limit that the request exceeds is gone."""
        self._end_outage()
        self._has_answered = True
        if 0 < self._limit <= self._taken:
            cooldown.note_too_large(self._run_state.agent, self._server, 0)

    def _hold_back(self, request: dict[str, Any]) -> None:
        """Do not send a request of nearly as many bytes as one that the server did not take because of them.

        The first request of a run is sent whatever its size: the limit may have been raised.

        Raises:
            TooLongError: It has.
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
            return error.status_code not in _UNAVAILABLE
        except (anthropic.AnthropicError, httpx2.HTTPError, TimeoutError, ValueError):
            return False
        return True

    def _show(self, doing: str) -> None:
        # While it tries, it keeps its place among the agents that wait.
        since = self._outage.since if self._outage is not None else None
        self._run_state.show("working", doing, timeout=self._progress_timeout + STUCK_GRACE, outage_since=since)

    async def _wait_for_cooldown(self) -> float:
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
                    if not self._has_called and cooldown.may_try(run_state.agent, self._server):
                        break
                await self._wait_in_outage(self._outage, left, until_it_ends=True)
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
        elif time.monotonic() >= max(outage.began + hours * 3600, outage.ends):
            why = f"the API stayed unavailable for {hours:g} h"
        else:
            return
        self._outage = None
        raise ModelError(f"{why}: {outage.error}", ExitCode.API_UNAVAILABLE)

    def _end_outage(self) -> None:
        """Note that the API is available again, for the whole team."""
        self._closed = 0
        if self._outage is not None:
            self._outage = None
            cooldown.end_outage(self._run_state.agent, self._server)

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
                    self._check_outage(outage)
                # The loop then waits until the agent is unpaused, and calls again.
                if self._interrupts.paused:
                    raise Interrupted
                pause = cooldown.current(run_state.agent, self._server) if until_it_ends else None
                if pause is not None and not pause.since:
                    return
                await self._interrupts.wait(min(left, SWEEP_INTERVAL))

        await self._interrupts.run_interruptibly(until_then(), waiting=True)

    async def _attempt(self, request: dict[str, Any], *, is_first: bool) -> Reply | _Refusal:
        progress = asyncio.timeout(self._progress_timeout)
        try:
            async with asyncio.timeout(self._call_timeout), progress:
                return await self._stream(request, progress, is_first=is_first)
        except TimeoutError:
            if progress.expired():
                more = f"; {env.PROGRESS_TIMEOUT} gives a slow server more time"
                text = f"the reply made no progress for {self._progress_timeout:g} s{more}"
                waited = self._progress_timeout
            else:
                text, waited = f"the reply took longer than {self._call_timeout:g} s", self._call_timeout
            return _Refusal(text, retry=True, waited=waited)
        except (anthropic.AnthropicError, httpx2.HTTPError, ServerError, PageError, ValueError, TypeError) as error:
            return _judge(error)
        except Exception as error:
            if self._platform is None or not _is_of_credentials(error):
                raise
            return _judge_credentials(error)

    async def _stream(self, request: dict[str, Any], progress: asyncio.Timeout, *, is_first: bool) -> Reply | _Refusal:
        run_state, began = self._run_state, time.monotonic()
        run_state.clear_live()
        response = (await self._client.messages.create(**request, stream=True)).response
        coming = self._coming = ReplyStream(response)
        try:
            await self._read(coming, progress)
        finally:
            await response.aclose()
        run_state.flush()
        self._taken = _bytes_of(response.request)
        self._largest_taken = max(self._largest_taken, self._taken)
        found = coming.finish(request.get("tools", []), run_state.conversation.call_ids)
        if found is None:
            return _Refusal("the reply ended early", retry=True, may_be_outage=False)
        if found.malformed and is_first:
            # By chance the next one may be whole. If not, the model is told.
            return _Refusal(f"the reply was malformed: {found.malformed}", retry=True, may_be_outage=False)
        self.thinking_was_dropped = _dropped_thinking(coming.said.get("input_transformations"))
        said, details, ident = (coming.said.get(name) for name in ("model", "stop_details", "id"))
        model = said if isinstance(said, str) and said else run_state.spec.model
        # The API does not bill a refusal before it wrote anything.
        used = Tokens() if found.stop_reason == "refusal" and not found.content else coming.used
        if not used.total and found.content:
            used = _estimate(request, found.content)
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
            cache_miss=_cache_miss(coming.said),
        )
        if (refusal := _unstorable(reply)) is None:
            for declining, tokens in coming.declined:
                cost = self._cost(declining, tokens, in_us=coming.is_in_us)
                run_state.append(BrokenReply(ts=run_state.now(), usage=tokens, model=declining, cost_usd=cost))
            self._coming = None
        return refusal or reply

    async def _read(self, coming: ReplyStream, progress: asyncio.Timeout) -> None:
        """Read a reply to its end, or until nothing more comes behind its reason to stop."""
        run_state, last_shown = self._run_state, time.monotonic()
        now = asyncio.get_running_loop().time
        heard, end = now(), asyncio.timeout(None)
        try:
            async with end:
                async for kind, text in coming.pieces():
                    heard = heard if kind == "ping" else now()
                    progress.reschedule(
                        min(now(), heard + self._progress_timeout * (_ONLY_PINGS - 1)) + self._progress_timeout
                    )
                    if coming.stopped:
                        end.reschedule(heard + END_TIMEOUT)
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
        """Return the cost of a reply: at the price of the model that was asked, if that of the reply has none."""
        if self._prices is None:
            return None
        cost = self._prices.cost(model, used, in_us=in_us)
        return self._prices.cost(self._run_state.spec.model, used, in_us=in_us) if cost is None else cost

    @property
    def is_priced(self) -> bool:
        """Return True if a budget in money can be counted."""
        return self._prices is None or self._cost(self._run_state.spec.model, Tokens()) is not None

    def _count_broken(self) -> None:
        """Journal what a reply used that broke off, or that was of no use: the API bills it."""
        coming, self._coming = self._coming, None
        if coming is None or (used := coming.used) == Tokens():
            return
        said = coming.said.get("model")
        model = said if isinstance(said, str) and said else self._run_state.spec.model
        cost = self._cost(model, used, in_us=coming.is_in_us)
        self._run_state.append(BrokenReply(ts=self._run_state.now(), usage=used, model=model, cost_usd=cost))


def _estimate(request: Mapping[str, Any], content: list[dict[str, Any]]) -> Tokens:
    """Return about how many tokens a request and its reply had."""
    asked = _characters([request.get(part) for part in ("system", "tools", "messages")]) // _CHARACTERS_PER_TOKEN
    given = _characters(content) // _CHARACTERS_PER_TOKEN + 1
    return Tokens(input=asked, output=given, estimated=asked + given)


def _characters(value: object) -> int:
    """Return the length of all texts in a value, without images."""
    if isinstance(value, dict):
        return sum(len(name) + _characters(each) for name, each in value.items() if name != "data")
    if isinstance(value, list):
        return sum(map(_characters, value))
    return len(value) if isinstance(value, str) else 1


def _is_media(block: dict[str, Any]) -> bool:
    """Return True for an image or a document, or a result that holds one."""
    inner = block.get("content")
    return block["type"] in ("image", "document") or (isinstance(inner, list) and any(map(_is_media, inner)))


def _without_is_error(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message["content"], list):
        return message
    return {
        **message,
        "content": [{name: each for name, each in block.items() if name != _IS_ERROR} for block in message["content"]],
    }


def _with_string(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a string, if it is text alone."""
    content = message["content"]
    if not isinstance(content, list) or any(block["type"] != "text" for block in content):
        return message
    return {**message, "content": "\n\n".join(block["text"] for block in content)}


def _with_plain_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in which ids of calls have only characters that the API takes, the same ones each time."""
    if not isinstance(message["content"], list):
        return message
    return {**message, "content": [{**block, **_plain_ids(block)} for block in message["content"]]}


def _plain_ids(block: dict[str, Any]) -> dict[str, str]:
    """Return the ids of a block that must be replaced, by the names of their fields."""
    given = {name: block[name] for name in ("id", "tool_use_id") if name in block}
    return {
        name: f"toolu_{hashlib.sha256(ident.encode()).hexdigest()[:24]}"
        for name, ident in given.items()
        if _PLAIN_ID.fullmatch(ident) is None
    }


def _dropped_thinking(changes: object) -> bool:
    """Return True if a reply says that thinking of the request was left out because of its prefix.

    Thinking that does not fit, and was shown to the model all the same, has the same reason and another type.
    """
    return isinstance(changes, list) and any(
        isinstance(change, dict)
        and (change.get("type"), change.get("reason")) == ("thinking_dropped", "prefix_binding_mismatch")
        for change in changes
    )


def _cache_miss(said: Mapping[str, Any]) -> CacheMiss | None:
    """Return what a reply says of the prompt cache; None if it fitted, or the API does not know that yet."""
    found = said.get("diagnostics")
    why = found.get("cache_miss_reason") if isinstance(found, dict) else None
    if not isinstance(why, dict) or not isinstance(why.get("type"), str):
        return None
    missed = why.get("cache_missed_input_tokens")
    return CacheMiss(reason=why["type"], tokens=missed if isinstance(missed, int) else None)


async def rehearse(client: AsyncAnthropic) -> None:
    """Make the calls that a worker makes, so that the SDK has built what it builds on first use."""
    await client.get("/v1/models/m", cast_to=httpx2.Response)
    prompt = [{"role": "user", "content": "."}]
    request: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": prompt}
    stream = ReplyStream((await client.messages.create(**request, stream=True)).response)
    async for _ in stream.pieces():
        pass
    await stream.response.aclose()


def _unstorable(reply: Reply) -> _Refusal | None:
    """Return a refusal if the journal cannot hold a reply."""
    try:
        if len(codec.encode(reply)) <= files.MAX_LINE:
            return None
        reason = f"it is longer than {files.MAX_LINE} bytes"
    except BadDataError as error:
        reason = str(error)
    return _Refusal(f"the reply cannot be stored: {reason}", retry=False, code=ExitCode.FAILED)


def _judge(error: Exception) -> _Refusal:  # noqa: PLR0911  one for each kind of error
    """Return what a failed call means."""
    match error:
        case PageError():
            text = f"the address serves {_PAGE}, no API"
            return _Refusal(text, retry=True, may_be_outage=False, cause=text, status=_OK, is_page=True)
        case ServerError():
            return _judge_status(_OK, error.body)
        case anthropic.APIStatusError():
            found = _judge_status(error.status_code, error.body, _retry_after(error), error.message)
            if error.response.history:
                # A redirect makes a GET of a POST, unless it is a 307 or 308.
                url = str(error.response.url.copy_with(query=None))
                base = url.removesuffix("/v1/messages")
                remedy = f": set {endpoint.BASE_URL} to {base}" if base != url else ""
                found = replace(found, text=f"{found.text}; redirected to {url}{remedy}")
            is_page = error.response.headers.get("content-type", "").startswith("text/html")
            return replace(found, status=error.status_code, is_page=is_page, size=_bytes_of(error.request))
        case anthropic.APIConnectionError():
            return _judge_connection(error)
        case UnicodeEncodeError():
            # Of the request: every attempt would fail.
            return _Refusal(f"the request cannot be encoded: {error}", retry=False, code=ExitCode.FAILED)
        case httpx2.DecodingError() | ValueError():
            text = f"the reply was malformed: {str(error)[:200]}"
            return _Refusal(text, retry=True, may_be_outage=False, cause=_without_numbers(text))
        case httpx2.HTTPError():
            return _Refusal(f"the reply was cut off ({type(error).__name__})", retry=True)
        # The server that hands out access tokens did not answer, or may answer another time.
        case WorkloadIdentityError() if (
            isinstance(error.__cause__, httpx2.HTTPError) or error.status_code in _RETRIED_STATUS
        ):
            return _Refusal(f"no access token: {error}", retry=True, unavailable=True)
        case _:
            return _Refusal(str(error), retry=False, code=ExitCode.CREDENTIALS)


def _is_of_credentials(error: Exception) -> bool:
    """Return True for an error of what finds credentials of a cloud platform: the SDK, or Amazon's or Google's code."""
    library = type(error).__module__.partition(".")[0]
    return type(error) is RuntimeError or isinstance(error, ImportError) or library in _CREDENTIAL_LIBRARIES


def _judge_credentials(error: Exception) -> _Refusal:
    """Return what it means that there are no credentials for a cloud platform; without a network, try again."""
    text = f"no credentials: {error}"
    if {each.__name__ for each in type(error).__mro__} & _NO_NETWORK:
        return _Refusal(text, retry=True, unavailable=True)
    return _Refusal(text, retry=False, code=ExitCode.CREDENTIALS)


def _judge_connection(error: anthropic.APIConnectionError) -> _Refusal:
    """Return the error for a failed connection. Only network errors are retried: an invalid key or URL fails again."""
    if isinstance(error.__cause__, httpx2.LocalProtocolError):
        # The error's own text holds the header, and so the key.
        text = "the API key cannot be sent: it contains a character that is not allowed in a header"
        return _Refusal(text, retry=False, code=ExitCode.CREDENTIALS)
    if isinstance(error.__cause__, httpx2.UnsupportedProtocol):
        return _Refusal("the base URL starts with neither http:// nor https://", retry=False, code=ExitCode.FAILED)
    if isinstance(error.__cause__, httpx2.TooManyRedirects):
        return _Refusal("the server redirects the request in a circle", retry=False, code=ExitCode.FAILED)
    # After a redirect the request is another one.
    cause = error.__cause__
    url = str((cause.request if isinstance(cause, httpx2.RequestError) else error.request).url)
    through = endpoint.proxy(os.environ, url)
    way = f" through the proxy {endpoint.host_and_port(through)}" if through else ""
    is_closed = isinstance(cause, httpx2.ReadError | httpx2.RemoteProtocolError | httpx2.WriteError)
    what = "answer from" if is_closed else "connection to"
    why = str(cause or error) or type(cause).__name__
    text = f"no {what} {endpoint.host_and_port(url)}{way}: {why}"
    return _Refusal(text, retry=True, unavailable=True, closed_on=_bytes_of(error.request) if is_closed else None)


def _bytes_of(request: httpx2.Request) -> int:
    """Return the length of a request's body."""
    return int(request.headers.get("content-length", 0))


def _in_words(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1000:.0f} kB"  # noqa: PLR2004  a megabyte


def _judge_status(status: int, body: object, wait: float = 0, otherwise: str = "") -> _Refusal:
    """Return what an error means. One in the middle of a stream has the status 200; its code or type tells the reason.

    Servers of others put code, type and message beside each other, without an `error` around them.
    """
    said = body.get("error", body) if isinstance(body, dict) else body
    said = said if isinstance(said, dict) else {"message": said if isinstance(said, str) else ""}
    kind, text = str(said.get("type") or "error"), str(said.get("message") or said.get("msg") or "")
    # LiteLLM writes the word.
    kind = "error" if kind == "None" else kind
    in_stream = status == _OK
    if in_stream:
        code = said.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else _STATUS.get(kind, 500)  # noqa: PLR2004
    named = bool(text) and not _is_page(body)
    if (inner := _inner_message(said)) and inner not in text:
        text = f"{text.removesuffix('.')}: {inner}" if text else inner
    # The tags of a page say nothing to a reader.
    text = _PAGE if _is_page(body) else (text or otherwise or str(body))[:_MOST_SAID]
    if status == _NO_PAYMENT or _OF_ACCOUNT.search(f"{kind} {text}"):
        return _Refusal(
            f"the account cannot be used: {text}",
            retry=True,
            wait=_seconds_until_reset(text) or wait,
            unavailable=True,
            of_account=True,
        )
    is_too_long = status in _MAY_BE_TOO_LONG and models.is_too_long(f"{kind} {said.get('code')} {text}")
    window = said.get("n_ctx")
    if is_too_long or (status == _RATE_LIMITED and _exceeds_limit(text)):
        return _Refusal(
            f"the API refused the request ({status} {kind}): {text}",
            retry=False,
            code=ExitCode.FAILED,
            kind=TooLongError,
            window=window if isinstance(window, int) and window > 0 else models.window_in_text(text),
        )
    if status in _RETRIED_STATUS:
        names_cause = named and status == _FAILED and not _NO_CAUSE.fullmatch(text.strip().lower())
        return _Refusal(
            f"during the reply, {kind}: {text}" if in_stream else f"{status} {kind}: {text}",
            retry=True,
            wait=wait,
            shared=not in_stream and status in _SHARED,
            unavailable=not in_stream and status in _UNAVAILABLE,
            cause=_without_numbers(text)[:_MOST_CAUSE] if names_cause else "",
            names_media=status == _FAILED and _NAMES_MEDIA.search(text) is not None,
            is_of_form=_OF_FORM.search(text) is not None,
        )
    if status in (401, 403) and not _MODERATED.search(text):
        return _Refusal(
            f"the API refused the credentials ({kind if in_stream else status}): {text}",
            retry=False,
            code=ExitCode.CREDENTIALS,
        )
    return _Refusal(
        f"the API refused the request ({kind if in_stream else f'{status} {kind}'}): {text}",
        retry=False,
        code=ExitCode.FAILED,
        kind=_kind(status, text),
        status=status,
        is_large=status == _TOO_LARGE,
        names_media=status in _MAY_BE_MEDIA and _NAMES_MEDIA.search(text) is not None,
        is_of_form=_OF_FORM.search(text) is not None,
    )


def _inner_message(value: object, depth: int = 0) -> str:
    """Return the last message within an error: a gateway may put there what the server behind it said."""
    found = ""
    if depth < _MOST_NESTED:
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            said = each.get("message") if isinstance(each, dict) else None
            found = _inner_message(each, depth + 1) or (said if isinstance(said, str) else "") or found
    return found


def _is_page(body: object) -> bool:
    return isinstance(body, str) and body.lstrip()[:_MOST_TAG].lower().startswith(("<!doctype html", "<html"))


def _seconds_until_reset(text: str) -> float:
    """Return the seconds until the day on which an account may be used again; 0 if the text names none."""
    if (match := _REGAIN.search(text)) is None:
        return 0
    at = _seconds(f"{match[1]}T{match[2]}:00+00:00")
    return max(0.0, min(at - time.time(), _LONGEST_SPEND_LIMIT)) if at is not None else 0


def _exceeds_limit(text: str) -> bool:
    """Return True if a rate limit is for less than the one request that was refused: no wait makes room for it."""
    if (numbers := _LIMIT_AND_REQUESTED.search(text)) is None:
        return False
    limit, requested = (int(each.replace(",", "")) for each in numbers.groups())
    return requested > limit


def _without_numbers(text: str) -> str:
    return re.sub(r"\d+", "", text)


def _kind(status: int, text: str) -> type[ModelError]:
    """Return the error for a request that was refused, by which the loop knows what may help."""
    if status == _TOO_LARGE:
        return TooLongError
    if status in _MAY_BE_UNKNOWN and (_UNKNOWN_MODEL.search(text) is not None or models.lacks_tools(text)):
        return UnknownModelError
    if _DEFERRED_TOOLS.search(text) is not None:
        return DeferredToolsError
    return StaleThinkingError if _STALE_THINKING.search(text) is not None else ModelError


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
    forms: tuple[Callable[[str], float], ...] = (
        float,
        lambda given: datetime.fromisoformat(given).timestamp(),
        lambda given: parsedate_to_datetime(given).timestamp(),
    )
    for parse in forms:
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            found = parse(text or "")
            if math.isfinite(found):
                return found
    return None
