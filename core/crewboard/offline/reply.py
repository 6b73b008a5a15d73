"""A reply of the embedded model, and how it goes over the wire: as one message, or as a stream of events."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crewboard.offline.policy import Thought
from crewboard.offline.wire import CountRequest, Text, ToolResult, ToolUse, signature

CHARACTERS_A_TOKEN = 4
LEAST_CACHED = 1024
"""Tokens below which the API caches nothing."""

_WORDS = re.compile(r"\S+\s*|\s+")
_MOST_PIECES = 120
"""Pieces that a text is streamed in at most, so that a long one does not take for ever."""

_JSON_PIECE = 24
"""Characters of a tool's input in one piece."""


@dataclass(frozen=True)
class Speed:
    """Seconds before the first word, from word to word, and the least delay whatever the pace is."""

    delay: float = 0
    word: float = 0
    least: float = 0

    def at(self, pace: float) -> "Speed":
        """The speed in a server that takes `pace` times as long."""
        return Speed(max(self.delay * pace, self.least), self.word * pace, self.least)


@dataclass(frozen=True)
class Reply:
    """Content blocks in the API's form, without ids; a stop reason of None means the one that follows from them."""

    content: list[dict[str, Any]]
    stop_reason: str | None = None
    speed: Speed = field(default_factory=Speed)

    @property
    def stopped_by(self) -> str:
        """The stop reason."""
        calls = any(block["type"] == "tool_use" for block in self.content)
        return self.stop_reason or ("tool_use" if calls else "end_turn")


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, in the API's kinds."""

    input: int
    cache_read: int
    cache_write: int
    output: int = 0

    @property
    def total(self) -> int:
        """Every token that goes in."""
        return self.input + self.cache_read + self.cache_write

    def fields(self, output: int) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "input_tokens": self.input,
            "cache_creation_input_tokens": self.cache_write,
            "cache_read_input_tokens": self.cache_read,
            "output_tokens": output,
        }


def of_thought(thought: Thought, speed: Speed) -> Reply:
    """What was thought, as content blocks."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": thought.text}] if thought.text.strip() else []
    blocks += [{"type": "tool_use", "name": call.tool, "input": call.input} for call in thought.calls]
    return Reply(blocks, speed=speed)


def tokens(*texts: str) -> int:
    """How many tokens the texts are counted as."""
    return -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN)


def count(request: CountRequest, *, cached: bool) -> Usage:
    """Count a request. With `cached`, what an earlier request held comes out of the cache, and the rest goes in."""
    base = tokens(request.system_text, *(tool.model_dump_json(exclude_none=True) for tool in request.tools))
    sizes = [_size(message.content) for message in request.messages]
    total = max(1, base + sum(sizes))
    if not cached or total < LEAST_CACHED:
        return Usage(total, 0, 0)
    answered = [place for place, message in enumerate(request.messages) if message.role == "assistant"]
    before = base + sum(sizes[: answered[-1]]) if answered else 0
    read = before if before >= LEAST_CACHED else 0
    return Usage(0, read, total - read)


def _size(content: list[Any]) -> int:
    sizes = [4]
    for block in content:
        if isinstance(block, Text | ToolResult):
            sizes.append(tokens(block.text))
        elif isinstance(block, ToolUse):
            sizes.append(tokens(block.name, json.dumps(block.input)))
        else:
            sizes.append(tokens(block.model_dump_json()))
    return sum(sizes)


def message(reply: Reply, model: str, seed: bytes, usage: Usage, max_tokens: int) -> dict[str, Any]:
    """The reply as a message. `seed` stands for the request: the same request gets the same ids."""
    blocks, stop = _fit(_with_ids(reply.content, seed), reply.stopped_by, max_tokens)
    output = max(1, sum(tokens(_spoken(block)) for block in blocks))
    return {
        "id": f"msg_{_digest(seed, 'message')}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage.fields(output),
    }


def _digest(seed: bytes, what: object) -> str:
    return hashlib.sha256(seed + str(what).encode()).hexdigest()[:24]


def _with_ids(content: list[dict[str, Any]], seed: bytes) -> list[dict[str, Any]]:
    return [_complete(block, _digest(seed, place)) for place, block in enumerate(content)]


def _complete(block: dict[str, Any], digest: str) -> dict[str, Any]:
    if block["type"] == "tool_use":
        return {"id": f"toolu_{digest}", "input": {}, **block}
    if block["type"] == "thinking":
        return {"signature": signature(block["thinking"]), **block}
    return {"citations": None, **block} if block["type"] == "text" else block


def _spoken(block: dict[str, Any]) -> str:
    if block["type"] == "tool_use":
        return str(block["name"]) + json.dumps(block["input"])
    return str(block.get("text") or block.get("thinking") or "")


def _fit(blocks: list[dict[str, Any]], stop: str, max_tokens: int) -> tuple[list[dict[str, Any]], str]:
    """Cut an answer that is longer than `max_tokens`; calls are left whole, for half a call helps nobody."""
    if any(block["type"] != "text" for block in blocks):
        return blocks, stop
    room = max_tokens * CHARACTERS_A_TOKEN
    kept: list[dict[str, Any]] = []
    for block in blocks:
        if len(block["text"]) > room:
            return [*kept, {**block, "text": block["text"][:room]}] if room else kept, "max_tokens"
        kept.append(block)
        room -= len(block["text"])
    return kept, stop


@dataclass(frozen=True)
class Event:
    """One event of a stream. `pause` seconds are waited before it; `counts` if it carries a piece of the reply."""

    data: dict[str, Any]
    pause: float = 0
    counts: bool = False

    def encode(self) -> bytes:
        """The event as it stands in the stream."""
        return f"event: {self.data['type']}\ndata: {json.dumps(self.data)}\n\n".encode()


def events(whole: dict[str, Any], speed: Speed) -> Iterator[Event]:
    """A message as the API streams it."""
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    yield Event({"type": "message_start", "message": start})
    yield Event({"type": "ping"})
    pause = speed.delay
    for index, block in enumerate(whole["content"]):
        yield Event({"type": "content_block_start", "index": index, "content_block": _empty(block)}, pause)
        for delta in _deltas(block):
            yield Event({"type": "content_block_delta", "index": index, "delta": delta}, speed.word, counts=True)
        yield Event({"type": "content_block_stop", "index": index})
        pause = 0
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield Event({"type": "message_delta", "delta": delta, "usage": usage}, pause)
    yield Event({"type": "message_stop"})


def _empty(block: dict[str, Any]) -> dict[str, Any]:
    blank: dict[str, dict[str, Any]] = {
        "text": {"text": ""},
        "tool_use": {"input": {}},
        "thinking": {"thinking": "", "signature": ""},
    }
    return {**block, **blank.get(block["type"], {})}


def _pieces(text: str) -> Iterator[str]:
    """The text word by word, in a long one several words at once."""
    words = _WORDS.findall(text)
    step = -(-len(words) // _MOST_PIECES) or 1
    return ("".join(words[start : start + step]) for start in range(0, len(words), step))


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        for piece in _pieces(block["text"]):
            yield {"type": "text_delta", "text": piece}
    elif block["type"] == "thinking":
        for piece in _pieces(block["thinking"]):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif block["type"] == "tool_use":
        text = json.dumps(block["input"])
        for start in range(0, len(text), _JSON_PIECE):
            yield {"type": "input_json_delta", "partial_json": text[start : start + _JSON_PIECE]}
