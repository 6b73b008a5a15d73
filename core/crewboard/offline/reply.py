"""A reply of the offline model, its tokens, and how it is sent: as one message, or as a stream of events."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from crewboard.offline.conversation import Call
from crewboard.offline.wire import (
    Block,
    Document,
    Image,
    MessagesRequest,
    Text,
    ToolResult,
    ToolUse,
    seal,
    ttl_of,
    unmarked,
)

CHARACTERS_A_TOKEN = 4
_LEAST_CACHED = 1024
_LOOK_BACK = 20
_KEPT_SECONDS = {"5m": 300.0, "1h": 3600.0}
_MOST_STORED = 20_000
_MOST_COMPARED = 1000
_MESSAGE_TOKENS = 4
_MEDIA_TOKENS = 1500
_WORDS = re.compile(r"\S+\s*|\s+")
_MOST_PIECES = 120
_JSON_PIECE = 24


@dataclass(frozen=True)
class Speed:
    """The speed of a reply in seconds: before the first word, between words, and the shortest delay at any pace."""

    delay: float = 0
    word: float = 0
    least: float = 0

    def at(self, pace: float) -> "Speed":
        """Return the speed in a server that takes `pace` times as long."""
        return Speed(max(self.delay * pace, self.least), self.word * pace, self.least)


@dataclass(frozen=True)
class Reply:
    """Content blocks in the API's form, without ids; a stop reason of None means the one that follows from them.

    `instead` is what another model replies if this is a refusal.
    """

    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None
    speed: Speed = field(default_factory=Speed)
    instead: "Reply | None" = None


FALLBACK = "claude-opus-4-8"
"""The model that takes over."""


def taken_over(reply: Reply, model: str) -> Reply:
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
    began = _tokens(*(str(block.get("text") or block.get("input") or "") for block in declined)) if declined else 0
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


def reply_of(text: str, *calls: Call, speed: Speed) -> Reply:
    """Return text and calls as content blocks."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [{"type": "tool_use", "name": call.tool, "input": call.input} for call in calls]
    return Reply(blocks, speed=speed)


def _tokens(*texts: str) -> int:
    return -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN)


class PromptCache:
    """The prompt cache of the API: a request reads the longest beginning that an earlier one marked, if it is the same.

    A breakpoint stores the beginning up to it, and finds what was stored there or at most 20 blocks before. What no
    request used for five minutes is forgotten, or for an hour where a breakpoint asked for that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stored: dict[bytes, tuple[float, float]] = {}
        """By digest: the time at which it is forgotten, and how many seconds a use keeps it; the last used last."""

    def count(self, request: MessagesRequest) -> dict[str, int]:
        """Return the input tokens of a request by the API's kinds, and store what it marks."""
        now = self._clock()
        read = written = an_hour = total = 0
        digest = hashlib.sha256(request.model.encode())
        digests: list[bytes] = []
        sizes: list[int] = []
        used: dict[bytes, float] = {}
        for text, size, ttl in _pieces(request):
            digest.update(text)
            total += size
            digests.append(digest.digest())
            sizes.append(total)
            if ttl and total >= _LEAST_CACHED:
                written = total
                an_hour = total if ttl == "1h" else an_hour
                near = range(len(digests) - 1, max(-1, len(digests) - 2 - _LOOK_BACK), -1)
                found = next((at for at in near if self._is_kept(digests[at], now)), None)
                used[digest.digest()] = _KEPT_SECONDS[ttl]
                if found is not None:
                    read = max(read, sizes[found])
                    _, seconds = self._stored[digests[found]]
                    used[digests[found]] = max(seconds, used.get(digests[found], 0))
        for each, seconds in used.items():
            self._stored.pop(each, None)
            self._stored[each] = now + seconds, seconds
        for oldest in list(self._stored)[: max(0, len(self._stored) - _MOST_STORED)]:
            del self._stored[oldest]
        total = max(1, total)
        return {
            "input_tokens": total - written,
            "ephemeral_5m_input_tokens": written - max(read, an_hour),
            "ephemeral_1h_input_tokens": max(read, an_hour) - read,
            "cache_read_input_tokens": read,
        }

    def _is_kept(self, digest: bytes, now: float) -> bool:
        return digest in self._stored and self._stored[digest][0] > now


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

    def diagnose(self, asked: MessagesRequest, ident: str, tokens: int) -> dict[str, Any]:
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


def _pieces(request: MessagesRequest) -> Iterator[tuple[bytes, int, str | None]]:
    """Yield the blocks of a request in the cache's order: content, tokens, and how long it keeps what ends here."""
    for tool in request.first_tools:
        text = unmarked(tool)
        yield text, _tokens(text.decode()), ttl_of(tool)
    for part in request.system:
        yield b"system" + unmarked(part), _tokens(part.text), ttl_of(part)
    # Another way to think begins the conversation anew.
    before, size = msgspec.json.encode((request.thinking, request.output_config)), 0
    last = request.messages[-1].content[-1]
    for message in request.messages:
        before, size = before + message.role.encode(), size + _MESSAGE_TOKENS
        for block in message.content:
            ttl = ttl_of(block) or (ttl_of(request) if block is last else None)
            # Only blocks count for how far a breakpoint looks back.
            shown = b"".join(map(unmarked, request.tools_at(block)))
            yield before + unmarked(block) + shown, size + _size(block) + _tokens(shown.decode()), ttl
            before, size = b"", 0


def _size(block: Block) -> int:
    if isinstance(block, ToolUse):
        return _tokens(block.name, json.dumps(block.input))
    if isinstance(block, ToolResult):
        return _tokens(block.text) + sum(_MEDIA_TOKENS for part in block.content if isinstance(part, Image | Document))
    if isinstance(block, Text):
        return _tokens(block.text)
    if isinstance(block, Image | Document):
        return _MEDIA_TOKENS
    return _tokens(msgspec.json.encode(block).decode())


def message(reply: Reply, model: str, seed: bytes, usage: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """Return the reply as a message. `seed` identifies the request: the same request gets the same ids."""
    blocks = [_complete(block, _digest(seed, place)) for place, block in enumerate(reply.content)]
    calls = any(block["type"] == "tool_use" for block in blocks)
    stop = reply.stop_reason or ("tool_use" if calls else "end_turn")
    # Only text is cut at `max_tokens`; half a call is of no use.
    room = max_tokens * CHARACTERS_A_TOKEN
    said = [block for block in blocks if block["type"] != "thinking"]
    if len(said) == 1 and len(said[0].get("text", "")) > room:
        blocks, stop = [*blocks[:-1], {**said[0], "text": said[0]["text"][:room]}], "max_tokens"
    texts = (
        block.get("text") or block.get("thinking") or f"{block.get('name')}{block.get('input')}" for block in blocks
    )
    output = max(1, sum(map(_tokens, texts)))
    thought = sum(_tokens(block["thinking"]) for block in blocks if block["type"] == "thinking")
    uses = [block["name"] for block in blocks if block["type"] == "server_tool_use"]
    # The API asks the model again after each use, and bills the whole prompt each time.
    again = len(uses) * sum(usage.values())
    counts = {f"{name}_requests": uses.count(name) for name in ("web_search", "web_fetch")}
    written = {ttl: usage[ttl] for ttl in ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")}
    return {
        "id": f"msg_{_digest(seed, 'message')}", "type": "message", "role": "assistant", "model": model,
        "content": blocks, "stop_reason": stop, "stop_sequence": None, "stop_details": reply.stop_details,
        "container": None,
        "usage": {
            "input_tokens": usage["input_tokens"] + again, "output_tokens": output,
            "cache_read_input_tokens": usage["cache_read_input_tokens"],
            "output_tokens_details": {"thinking_tokens": thought}, "server_tool_use": counts if uses else None,
            "cache_creation_input_tokens": sum(written.values()), "cache_creation": written,
            "inference_geo": "global", "service_tier": "standard",
        },
    }  # fmt: skip


def _digest(seed: bytes, what: object) -> str:
    return hashlib.sha256(seed + str(what).encode()).hexdigest()[:24]


_CALLER = {"type": "direct"}
"""The `caller` of a call that the model made itself, not code that it runs."""


def _complete(block: dict[str, Any], digest: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    match block["type"]:
        case "tool_use":
            defaults = {"id": f"toolu_{digest}", "input": {}, "caller": _CALLER}
        case "server_tool_use":
            defaults = {"id": f"srvtoolu_{digest}", "input": {}, "caller": _CALLER}
        case "text":
            defaults = {"citations": block.get("citations") and [*map(_sealed_quotation, block["citations"])]}
            block = {key: value for key, value in block.items() if key != "citations"}
        case "web_search_tool_result" if isinstance(block.get("content"), list):
            defaults = {"caller": _CALLER}
            block = {**block, "content": [{"encrypted_content": seal(page), **page} for page in block["content"]]}
    return {**defaults, **block}


def _sealed_quotation(cited: Any) -> Any:  # noqa: ANN401  the test may have any
    is_of_search = isinstance(cited, dict) and cited.get("type") == "web_search_result_location"
    return {"encrypted_index": seal(cited), **cited} if is_of_search else cited


@dataclass(frozen=True)
class Event:
    """One event of a stream. `pause` seconds are waited before it; `counts` if it carries a piece of the reply."""

    data: dict[str, Any]
    pause: float = 0
    counts: bool = False

    def encode(self) -> bytes:
        """Return the event in the form that the stream contains."""
        return f"event: {self.data['type']}\ndata: {json.dumps(self.data)}\n\n".encode()


def events(whole: dict[str, Any], speed: Speed) -> Iterator[Event]:
    """Yield a message as the API streams it."""
    is_beta = "context_management" in whole
    first = {"output_tokens": 1, "output_tokens_details": None, "server_tool_use": None}
    usage = {**whole["usage"], **first}
    start = {**whole, "content": [], "stop_reason": None, "stop_details": None, "usage": usage}
    yield Event({"type": "message_start", "message": start})
    yield Event({"type": "ping"})
    pause = speed.delay
    for index, block in enumerate(whole["content"]):
        streamed = _STREAMED.get(block["type"], ())
        empty = {**block, **{name: type(block[name])() for name in streamed if block.get(name)}}
        yield Event({"type": "content_block_start", "index": index, "content_block": empty}, pause)
        for delta in _deltas(block):
            more = {"estimated_tokens": None} if is_beta and delta["type"] == "thinking_delta" else {}
            piece = {"type": "content_block_delta", "index": index, "delta": {**delta, **more}}
            yield Event(piece, speed.word, counts=True)
        yield Event({"type": "content_block_stop", "index": index})
        pause = 0
    delta = {name: whole.get(name) for name in ("stop_reason", "stop_sequence", "stop_details", "container")}
    usage = {name: whole["usage"].get(name) for name in _LAST_USAGE}
    usage |= {name: whole["usage"][name] for name in ("iterations", "fallback_credit") if is_beta}
    more = {"context_management": None} if is_beta else {}
    yield Event({"type": "message_delta", "delta": delta, "usage": usage, **more}, pause)
    yield Event({"type": "message_stop"})


_LAST_USAGE = (
    "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", "output_tokens_details",
    "server_tool_use",
)  # fmt: skip
"""The counts of the whole reply in its last event but one."""

_STREAMED = {
    "tool_use": ("input",), "server_tool_use": ("input",), "text": ("text", "citations"),
    "thinking": ("thinking", "signature"),
}  # fmt: skip
"""The fields of each type of block that are sent in pieces. Blocks of other types are sent whole."""


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] in ("tool_use", "server_tool_use"):
        text = json.dumps(block["input"])
        step = max(_JSON_PIECE, -(-len(text) // _MOST_PIECES))
        for start in range(0, len(text), step):
            yield {"type": "input_json_delta", "partial_json": text[start : start + step]}
        return
    kind = block["type"]
    if kind not in ("text", "thinking"):
        return
    words = _WORDS.findall(block[kind])
    step = -(-len(words) // _MOST_PIECES) or 1
    for start in range(0, len(words), step):
        yield {"type": f"{kind}_delta", kind: "".join(words[start : start + step])}
    for citation in block.get("citations") or ():
        yield {"type": "citations_delta", "citation": citation}
    if kind == "thinking":
        yield {"type": "signature_delta", "signature": block["signature"]}
