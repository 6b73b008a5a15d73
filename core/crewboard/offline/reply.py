"""A reply of the offline model, its tokens, and how it is sent: as one message, or as a stream of events."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crewboard.offline.conversation import Call
from crewboard.offline.wire import Block, MessagesRequest, ToolUse

CHARACTERS_A_TOKEN = 4
_LEAST_CACHED = 1024
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
    speed: Speed = field(default_factory=Speed)


def reply_of(text: str, *calls: Call, speed: Speed) -> Reply:
    """Return text and calls as content blocks."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [{"type": "tool_use", "name": call.tool, "input": call.input} for call in calls]
    return Reply(blocks, speed=speed)


def _tokens(*texts: str) -> int:
    return -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN)


def count(request: MessagesRequest, *, cached: bool) -> dict[str, int]:
    """Return the input tokens by the API's kinds; with `cached`, what an earlier request held comes from the cache."""
    base = _tokens(request.system_text, *(tool.model_dump_json(exclude_none=True) for tool in request.tools))
    sizes = [4 + sum(map(_size, message.content)) for message in request.messages]
    total = max(1, base + sum(sizes))
    if not cached or total < _LEAST_CACHED:
        return {"input_tokens": total, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    answered = [place for place, message in enumerate(request.messages) if message.role == "assistant"]
    before = base + sum(sizes[: answered[-1]]) if answered else 0
    read = before if before >= _LEAST_CACHED else 0
    return {"input_tokens": 0, "cache_creation_input_tokens": total - read, "cache_read_input_tokens": read}


def _size(block: Block) -> int:
    return _tokens(block.name, json.dumps(block.input)) if isinstance(block, ToolUse) else _tokens(block.text)


def message(reply: Reply, model: str, seed: bytes, usage: dict[str, int], max_tokens: int) -> dict[str, Any]:
    """Return the reply as a message. `seed` identifies the request: the same request gets the same ids."""
    blocks = [_complete(block, _digest(seed, place)) for place, block in enumerate(reply.content)]
    calls = any(block["type"] == "tool_use" for block in blocks)
    stop = reply.stop_reason or ("tool_use" if calls else "end_turn")
    # Only text is cut at `max_tokens`; half a call is of no use.
    room = max_tokens * CHARACTERS_A_TOKEN
    if len(blocks) == 1 and len(blocks[0].get("text", "")) > room:
        blocks, stop = [{**blocks[0], "text": blocks[0]["text"][:room]}], "max_tokens"
    said = (block.get("text") or f"{block.get('name')}{block.get('input')}" for block in blocks)
    output = max(1, sum(map(_tokens, said)))
    return {
        "id": f"msg_{_digest(seed, 'message')}", "type": "message", "role": "assistant", "model": model,
        "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": {**usage, "output_tokens": output},
    }  # fmt: skip


def _digest(seed: bytes, what: object) -> str:
    return hashlib.sha256(seed + str(what).encode()).hexdigest()[:24]


def _complete(block: dict[str, Any], digest: str) -> dict[str, Any]:
    defaults = {"id": f"toolu_{digest}", "input": {}} if block["type"] == "tool_use" else {"citations": None}
    return {**defaults, **block}


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
        step = max(_JSON_PIECE, -(-len(text) // _MOST_PIECES))
        for start in range(0, len(text), step):
            yield {"type": "input_json_delta", "partial_json": text[start : start + step]}
        return
    words = _WORDS.findall(block["text"])
    step = -(-len(words) // _MOST_PIECES) or 1
    for start in range(0, len(words), step):
        yield {"type": "text_delta", "text": "".join(words[start : start + step])}
