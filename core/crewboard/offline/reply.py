"""A reply of the embedded model, its tokens, and how it is sent: as one message, or as a stream of events."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crewboard.offline.conversation import Call
from crewboard.offline.wire import Block, CountRequest, ToolUse

CHARACTERS_A_TOKEN = 4
_LEAST_CACHED = 1024
"""Tokens below which the API caches nothing."""

_WORDS = re.compile(r"\S+\s*|\s+")
_MOST_PIECES = 120
"""Pieces that a text is streamed in at most, so that a long one does not take for ever."""

_JSON_PIECE = 24
"""Characters of a tool's input in one piece."""


@dataclass(frozen=True)
class Speed:
    """Seconds before the first word, from word to word, and the least delay at any pace."""

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
    speed: Speed = field(default_factory=Speed)


def reply_of(text: str, *calls: Call, speed: Speed) -> Reply:
    """Return text and calls as content blocks."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [{"type": "tool_use", "name": call.tool, "input": call.input} for call in calls]
    return Reply(blocks, speed=speed)


# ------------------------------------------------------------------------------------------------------ tokens


@dataclass(frozen=True)
class Usage:
    """Input tokens of one request, in the API's kinds."""

    input: int
    cache_read: int
    cache_write: int

    @property
    def total(self) -> int:
        """Return every token that goes in."""
        return self.input + self.cache_read + self.cache_write


def _tokens(*texts: str) -> int:
    return -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN)


def count(request: CountRequest, *, cached: bool) -> Usage:
    """Count a request. With `cached`, what an earlier request held comes out of the cache, and the rest goes in."""
    base = _tokens(request.system_text, *(tool.model_dump_json(exclude_none=True) for tool in request.tools))
    sizes = [4 + sum(map(_size, message.content)) for message in request.messages]
    total = max(1, base + sum(sizes))
    if not cached or total < _LEAST_CACHED:
        return Usage(total, 0, 0)
    answered = [place for place, message in enumerate(request.messages) if message.role == "assistant"]
    before = base + sum(sizes[: answered[-1]]) if answered else 0
    read = before if before >= _LEAST_CACHED else 0
    return Usage(0, read, total - read)


def _size(block: Block) -> int:
    return _tokens(block.name, json.dumps(block.input)) if isinstance(block, ToolUse) else _tokens(block.text)


# ----------------------------------------------------------------------------------------------------- message


def message(reply: Reply, model: str, seed: bytes, usage: Usage, max_tokens: int) -> dict[str, Any]:
    """Return the reply as a message. `seed` stands for the request: the same request gets the same ids."""
    blocks = [_complete(block, _digest(seed, place)) for place, block in enumerate(reply.content)]
    calls = any(block["type"] == "tool_use" for block in blocks)
    stop = reply.stop_reason or ("tool_use" if calls else "end_turn")
    if blocks and all(block["type"] == "text" for block in blocks):
        # Only text is cut at `max_tokens`; half a call is of no use.
        room = max_tokens * CHARACTERS_A_TOKEN
        text = "".join(block["text"] for block in blocks)
        if len(text) > room:
            blocks, stop = [{**blocks[0], "text": text[:room]}], "max_tokens"
    said = (block.get("text") or f"{block.get('name')}{block.get('input')}" for block in blocks)
    return {
        "id": f"msg_{_digest(seed, 'message')}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": usage.input,
            "cache_creation_input_tokens": usage.cache_write,
            "cache_read_input_tokens": usage.cache_read,
            "output_tokens": max(1, sum(map(_tokens, said))),
        },
    }


def _digest(seed: bytes, what: object) -> str:
    return hashlib.sha256(seed + str(what).encode()).hexdigest()[:24]


def _complete(block: dict[str, Any], digest: str) -> dict[str, Any]:
    defaults = {"id": f"toolu_{digest}", "input": {}} if block["type"] == "tool_use" else {"citations": None}
    return {**defaults, **block}


# ------------------------------------------------------------------------------------------------------ stream


@dataclass(frozen=True)
class Event:
    """One event of a stream. `pause` seconds are waited before it; `counts` if it carries a piece of the reply."""

    data: dict[str, Any]
    pause: float = 0
    counts: bool = False

    def encode(self) -> bytes:
        """Return the event as it stands in the stream."""
        return f"event: {self.data['type']}\ndata: {json.dumps(self.data)}\n\n".encode()


def events(whole: dict[str, Any], speed: Speed) -> Iterator[Event]:
    """Yield a message as the API streams it."""
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield Event({"type": "message_start", "message": start})
    yield Event({"type": "ping"})
    pause = speed.delay
    for index, block in enumerate(whole["content"]):
        streamed = "input" if block["type"] == "tool_use" else "text"
        empty = {**block, streamed: type(block[streamed])()}
        yield Event({"type": "content_block_start", "index": index, "content_block": empty}, pause)
        for delta in _deltas(block):
            yield Event({"type": "content_block_delta", "index": index, "delta": delta}, speed.word, counts=True)
        yield Event({"type": "content_block_stop", "index": index})
        pause = 0
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield Event({"type": "message_delta", "delta": delta, "usage": usage}, pause)
    yield Event({"type": "message_stop"})


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "tool_use":
        text = json.dumps(block["input"])
        for start in range(0, len(text), _JSON_PIECE):
            yield {"type": "input_json_delta", "partial_json": text[start : start + _JSON_PIECE]}
        return
    words = _WORDS.findall(block["text"])
    step = -(-len(words) // _MOST_PIECES) or 1
    for start in range(0, len(words), step):
        yield {"type": "text_delta", "text": "".join(words[start : start + step])}
