"""The offline model as strict as the API: it refuses what the API refuses, and answers what only tests ask for."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from crewboard import models
from crewboard.offline import service
from crewboard.offline.conversation import Conversation, Request
from crewboard.offline.http import Client, Incoming
from crewboard.offline.reply import Event, Reply, Speed, tokens
from crewboard.offline.service import ApiError, Service
from crewboard.web import TOOLS as WEB_TOOLS
from tests.api.cache import PromptCache
from tests.api.rules import WholeRequest, is_hop, parse
from tests.api.thinking import Stale, Thoughts, check_binding, find_stale, sign_reply
from tests.api.wire import InvalidRequestError, MessagesRequest, Opaque, unmarked


@dataclass(frozen=True)
class Refusal(Reply):
    """A refusal, and what another model replies where the request has fallbacks."""

    instead: Reply | None = None


_MOST_COMPARED = 1000


FALLBACK = "claude-opus-4-8"
"""The model that takes over."""


def taken_over(reply: Refusal, model: str) -> Reply:
    """Return a refusal as the beginning of what another model replies.

    Source: page `refusals-and-fallback` of the API's documents and anthropic 2.11.0, types/beta/beta_fallback_block.py
    and beta_fallback_message_iteration_usage.py, November 2026.
    """
    if reply.instead is None:
        return reply
    trigger = {"type": "refusal", "category": (reply.stop_details or {}).get("category")}
    hop = {"type": "fallback", "from": {"model": model}, "to": {"model": FALLBACK}, "trigger": trigger}
    # Without output of the first model, there is no place where it ends.
    return replace(reply.instead, content=[*reply.content, *([hop] if reply.content else []), *reply.instead.content])


def with_attempts(whole: dict[str, Any], model: str, declined: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a message that another model finished, with what each of both used: `declined` is of the first."""
    usage = whole["usage"]
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation")
    counts = {name: usage[name] for name in names}
    began = tokens(*(str(block.get("text") or block.get("input") or "") for block in declined)) if declined else 0
    attempts = [
        {"type": "message", "model": model, **counts, "output_tokens": began},
        {"type": "fallback_message", "model": FALLBACK, **counts, "output_tokens": usage["output_tokens"]},
    ]
    return {**whole, "model": FALLBACK, "usage": {**usage, "iterations": attempts}}


def as_beta(whole: dict[str, Any]) -> dict[str, Any]:
    """Return a message as it is in answer to a request with a beta header: with fields that are null here."""
    usage = {"fallback_credit": None, "iterations": None, "speed": None, **whole["usage"]}
    details = whole["stop_details"]
    if details is not None:
        names = ("fallback_credit_token", "fallback_has_prefill_claim", "recommended_model")
        details = {**dict.fromkeys(names), **details}
    return {
        **whole,
        "usage": usage,
        "stop_details": details,
        "context_management": None,
        "diagnostics": whole.get("diagnostics"),
    }


def as_beta_events(stream: Iterator[Event], whole: dict[str, Any]) -> Iterator[Event]:
    """Yield the events of a message that is in answer to a request with a beta header."""
    for event in stream:
        data = event.data
        if data["type"] == "content_block_delta" and data["delta"]["type"] == "thinking_delta":
            data = {**data, "delta": {**data["delta"], "estimated_tokens": None}}
        elif data["type"] == "message_delta":
            more = {name: whole["usage"][name] for name in ("iterations", "fallback_credit")}
            data = {**data, "usage": {**data["usage"], **more}, "context_management": None}
        yield replace(event, data=data)


@dataclass(frozen=True)
class _Fingerprint:
    model: str
    system: bytes
    tools: bytes
    messages: tuple[bytes, ...]
    rest: bytes
    tokens: int


def _joined_digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()


def _fingerprint(asked: MessagesRequest, tokens: int) -> _Fingerprint:
    return _Fingerprint(
        asked.model,
        _joined_digest(*map(unmarked, asked.system)),
        _joined_digest(*map(unmarked, asked.first_tools)),
        tuple(_joined_digest(each.role.encode(), *map(unmarked, each.content)) for each in asked.messages),
        msgspec.json.encode((asked.thinking, asked.output_config)),
        tokens,
    )


class Diagnoses:
    """The reasons why the prompt cache did not fit: a request is compared with the one that a reply answered.

    Only requests with `diagnostics` are kept, by the id of their reply, and compared in this order: model, system,
    tools, messages, the rest. Marks of the cache do not count. Source: page `cache-diagnostics` of the API's documents
    and anthropic 2.11.0, types/cache_miss_*.py, November 2026. There it is not said how long a request is kept; here
    the newest thousand are. The API may answer before its comparison ends; here it never does.
    """

    def __init__(self) -> None:
        self._of_replies: dict[str, _Fingerprint] = {}

    def diagnose(self, asked: WholeRequest, ident: str, tokens: int) -> dict[str, Any]:
        """Return what the reply `ident` to a request of so many tokens says of it, if it asks, and keep the request."""
        if asked.diagnostics is None:
            return {}
        previous, now, reason = asked.diagnostics.previous_message_id, _fingerprint(asked, tokens), None
        if previous is not None:
            before = self._of_replies.get(previous)
            reason = _first_difference(before, now) if before else {"type": "previous_message_not_found"}
        self._of_replies[ident] = now
        while len(self._of_replies) > _MOST_COMPARED:
            del self._of_replies[next(iter(self._of_replies))]
        return {"diagnostics": {"cache_miss_reason": reason} if reason else None}


def _first_difference(before: _Fingerprint, now: _Fingerprint) -> dict[str, Any] | None:
    changed = {
        "model": before.model != now.model,
        "system": before.system != now.system,
        "tools": before.tools != now.tools,
        "messages": before.messages != now.messages[: len(before.messages)],
    }
    for part, differs in changed.items():
        if differs:
            return {"type": f"{part}_changed", "cache_missed_input_tokens": before.tokens}
    return {"type": "unavailable"} if before.rest != now.rest else None


def _check_fallbacks(asked: WholeRequest, betas: str) -> None:
    """Refuse what needs the beta, and other models by name where the model has none.

    Source: anthropic 2.11.0, types/beta/message_create_params.py; the words for a model without others were seen by
    users.
    """
    blocks = [block for message in asked.messages for block in message.content if isinstance(block, Opaque)]
    uses = asked.fallbacks is not None or any(map(is_hop, blocks))
    if uses and models.FALLBACK_BETA not in betas.split(","):
        raise InvalidRequestError("fallbacks: Extra inputs are not permitted")
    if isinstance(asked.fallbacks, list) and not models.falls_back(asked.model):
        raise InvalidRequestError(f"'{asked.model}' does not support the `fallbacks` parameter")


def _check_model(asked: WholeRequest) -> None:
    """Refuse what the model does not take."""
    # The API's own words, here and below.
    most = f"{service.MOST_OUTPUT}, which is the maximum allowed number of output tokens for {asked.model}"
    if asked.max_tokens > service.MOST_OUTPUT:
        raise ApiError(400, f"max_tokens: {asked.max_tokens} > {most}")
    can, kind = models.read(models.offline(asked.model)), asked.thinking.get("type")
    if can is not None and kind is not None and kind not in can.thinking:
        use = 'Use "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.'
        raise ApiError(400, f'"thinking.type.{kind}" is not supported for this model. {use}')
    if any(message.role == "system" for message in asked.messages) and not models.hears_system(asked.model):
        # The API's own words are not known, neither here nor below.
        raise ApiError(400, f"{asked.model} does not support messages of the role `system`")
    if len(asked.first_tools) < len(asked.tools) and not models.defers_tools(asked.model):
        raise ApiError(400, f"{asked.model} does not support `defer_loading`")
    thinking = "off" if asked.thinking_is_off else None
    web = any(str(tool.get("type")).startswith(WEB_TOOLS) for tool in asked.tools)
    if (why := models.refusal(asked.model, can, asked.output_config.get("effort"), thinking, web=web)) is not None:
        raise ApiError(400, why)


def _with_thinking(reply: Reply, asked: WholeRequest) -> Reply:
    """Return a reply that thinks first, as models with preserved thinking do where the request does not say."""
    thinks = any(block["type"] == "thinking" for block in reply.content)
    if thinks or asked.thinking_is_off or not models.preserves_thinking(asked.model):
        return reply
    thought = {"type": "thinking", "thinking": "What is wanted of me?"}
    return replace(reply, content=[thought, *reply.content])


class StrictRequest(Request, kw_only=True):
    """A request as the offline model reads it, and the whole of it."""

    whole: WholeRequest
    stale: list[Stale]
    is_beta: bool


@dataclass
class StrictService(Service):
    """The server's answers, where `script` may give the reply to an agent's request."""

    script: Callable[[Conversation, MessagesRequest], Reply | None] = lambda _talk, _request: None
    record: Callable[[Any], None] = lambda _body: None
    thinks: bool = False
    """True: a reply that has no thinking begins with some, where the request does not turn it off."""
    stale: list[str] = field(default_factory=list)
    """The places in requests at which thinking stood behind a text that has changed."""
    refused: list[str] = field(default_factory=list)
    """Status and text of each error that was no fault."""
    _cache: PromptCache = field(default_factory=PromptCache)
    _thoughts: Thoughts = field(default_factory=Thoughts)
    _diagnoses: Diagnoses = field(default_factory=Diagnoses)

    async def refuse(self, error: ApiError, client: Client, headers: dict[str, str]) -> None:
        """Note an error, and answer with it."""
        status, text = error.args
        self.refused.append(f"{status} {text}")
        await super().refuse(error, client, headers)

    def read(self, incoming: Incoming) -> StrictRequest:
        """Return a request that is valid, and note the thinking that is dropped from it."""
        betas = incoming.headers.get("anthropic-beta", "")
        try:
            body = json.loads(incoming.body)
            self.record(body)
            asked = parse(body)
            self._thoughts.require_latest(asked)
            found = find_stale(asked)
            self.stale += [each.path for each in found]
            check_binding(asked, found, betas)
            _check_fallbacks(asked, betas)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, str(error)) from error
        _check_model(asked)
        plain = msgspec.structs.asdict(msgspec.convert(body, Request))
        return StrictRequest(**plain, whole=asked, stale=found, is_beta="anthropic-beta" in incoming.headers)

    def count(self, asked: Request) -> dict[str, int]:
        """Return the input tokens of a request by the API's kinds, as its prompt cache does."""
        assert isinstance(asked, StrictRequest)
        return self._cache.count(asked.whole)

    def reply(self, talk: Conversation, asked: Request) -> Reply:
        """Return the reply of the script, else of the offline model."""
        assert isinstance(asked, StrictRequest)
        return self.script(talk, asked.whole) or super().reply(talk, asked)

    def whole(self, reply: Reply, asked: Request, seed: str, usage: dict[str, int]) -> dict[str, Any]:
        """Return a reply as a message: of another model, if it is a refusal and the request has fallbacks."""
        assert isinstance(asked, StrictRequest)
        request, total = asked.whole, sum(usage.values())
        if self.thinks:
            reply = _with_thinking(reply, request)
        said, takes_over = reply, False
        if isinstance(reply, Refusal) and reply.instead is not None:
            takes_over = request.fallbacks is not None and models.falls_back(request.model)
            said = taken_over(reply, request.model) if takes_over else reply
        whole = super().whole(said, asked, seed, usage)
        whole["content"] = sign_reply(whole["content"], request)
        whole = with_attempts(whole, request.model, reply.content) if takes_over else whole
        if asked.stale:
            whole["input_transformations"] = [
                {"type": "thinking_dropped", "path": each.path, "reason": "prefix_binding_mismatch"}
                for each in asked.stale
            ]
        self._thoughts.keep(whole["content"])
        whole |= self._diagnoses.diagnose(request, whole["id"], total)
        return as_beta(whole) if asked.is_beta else whole

    def stream(self, whole: dict[str, Any], asked: Request, speed: Speed) -> Iterator[Event]:
        """Yield a message as the events of a stream, in answer to a request with a beta header with what these have."""
        assert isinstance(asked, StrictRequest)
        plain = super().stream(whole, asked, speed)
        return as_beta_events(plain, whole) if asked.is_beta else plain
