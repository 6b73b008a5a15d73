"""A reply of the offline model, its tokens, and how it is sent: as one message, or as a stream of events."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
    """Content blocks in the API's form, without ids; a stop reason of None means the one that follows from them."""

    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None
    speed: Speed = field(default_factory=Speed)


def reply_of(text: str, *calls: Call, speed: Speed) -> Reply:
    """Return text and calls as content blocks."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [{"type": "tool_use", "name": call.tool, "input": call.input} for call in calls]
    return Reply(blocks, speed=speed)


def tokens(*texts: str) -> int:
    """Return the number of tokens that texts count as."""
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
                kept = (at for at in near if digests[at] in self._stored and self._stored[digests[at]][0] > now)
                found = next(kept, None)
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


def _pieces(request: MessagesRequest) -> Iterator[tuple[bytes, int, str | None]]:
    """Yield the blocks of a request in the cache's order: content, tokens, and how long it keeps what ends here."""
    for tool in request.first_tools:
        text = unmarked(tool)
        yield text, tokens(text.decode()), ttl_of(tool)
    for part in request.system:
        yield b"system" + unmarked(part), tokens(part.text), ttl_of(part)
    # Another way to think begins the conversation anew.
    before, size = msgspec.json.encode((request.thinking, request.output_config)), 0
    last = request.messages[-1].content[-1]
    for message in request.messages:
        before, size = before + message.role.encode(), size + _MESSAGE_TOKENS
        for block in message.content:
            ttl = ttl_of(block) or (ttl_of(request) if block is last else None)
            # Only blocks count for how far a breakpoint looks back.
            shown = b"".join(map(unmarked, request.tools_at(block)))
            yield before + unmarked(block) + shown, size + _size(block) + tokens(shown.decode()), ttl
            before, size = b"", 0


def _size(block: Block) -> int:
    if isinstance(block, ToolUse):
        return tokens(block.name, json.dumps(block.input))
    if isinstance(block, ToolResult):
        return tokens(block.text) + sum(_MEDIA_TOKENS for part in block.content if isinstance(part, Image | Document))
    if isinstance(block, Text):
        return tokens(block.text)
    if isinstance(block, Image | Document):
        return _MEDIA_TOKENS
    return tokens(msgspec.json.encode(block).decode())


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
    output = max(1, sum(map(tokens, texts)))
    thought = sum(tokens(block["thinking"]) for block in blocks if block["type"] == "thinking")
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
