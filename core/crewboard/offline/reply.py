"""A reply of the offline model in the API's form: as one message, or as a stream of events."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crewboard.offline.conversation import Call

CHARACTERS_A_TOKEN = 4
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
        """Return the speed with delays multiplied by `pace`."""
        return Speed(max(self.delay * pace, self.least), self.word * pace, self.least)


@dataclass(frozen=True)
class Reply:
    """A reply as content blocks in the API's form, without ids.

    With a `stop_reason` of None, it becomes `tool_use` or `end_turn`, as the blocks have calls or not.
    """

    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None
    speed: Speed = field(default_factory=Speed)


def reply_of(text: str, *calls: Call, speed: Speed) -> Reply:
    """Return a reply that says `text`, if it is not blank, and then makes the calls."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text.strip() else []
    blocks += [{"type": "tool_use", "name": call.tool, "input": call.input} for call in calls]
    return Reply(blocks, speed=speed)


def tokens(*texts: str) -> int:
    """Return the tokens that all texts together count as, by their length."""
    return -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN)


def seal(page: dict[str, Any]) -> str:
    """Return what stands for the encrypted content of a search result, or the encrypted index of a citation."""
    seen = page.get("cited_text") or page.get("title")
    return _digest("web", page.get("url"), seen)


def message(reply: Reply, model: str, seed: object, usage: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    """Return the reply as a message of the API. The same `seed`, which identifies the request, gives the same ids.

    `usage` are the input tokens as `Service.count` returns them. A reply of text alone is cut at `max_tokens`.
    """
    blocks = [_complete(block, _digest(seed, place)[:24]) for place, block in enumerate(reply.content)]
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
        "id": f"msg_{_digest(seed, 'message')[:24]}", "type": "message", "role": "assistant", "model": model,
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


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()


def _complete(block: dict[str, Any], digest: str) -> dict[str, Any]:
    """Return a block with the fields that the API adds: ids, the caller, and the encrypted part of a search."""
    # Not code that the model runs, but the model itself.
    caller = {"caller": {"type": "direct"}}
    match block["type"]:
        case "tool_use" | "server_tool_use" as kind:
            prefix = "toolu" if kind == "tool_use" else "srvtoolu"
            return {"id": f"{prefix}_{digest}", "input": {}, **caller, **block}
        case "text":
            cited = [
                {"encrypted_index": seal(each), **each} if each.get("type") == "web_search_result_location" else each
                for each in block.get("citations") or ()
            ]
            return {**block, "citations": cited or None}
        case "web_search_tool_result" if isinstance(block.get("content"), list):
            found = [{"encrypted_content": seal(page), **page} for page in block["content"]]
            return {**caller, **block, "content": found}
    return block


@dataclass(frozen=True)
class Event:
    """One event of a stream. The server waits `pause` seconds before it."""

    data: dict[str, Any]
    pause: float = 0

    def encode(self) -> bytes:
        """Return the event as bytes of a stream of server-sent events."""
        return f"event: {self.data['type']}\ndata: {json.dumps(self.data)}\n\n".encode()


def events(whole: dict[str, Any], speed: Speed) -> Iterator[Event]:
    """Yield the events by which the API streams the message `whole`."""
    first = {"output_tokens": 1, "output_tokens_details": None, "server_tool_use": None}
    start = {**whole, "content": [], "stop_reason": None, "stop_details": None, "usage": {**whole["usage"], **first}}
    yield Event({"type": "message_start", "message": start})
    yield Event({"type": "ping"})
    pause = speed.delay
    for index, block in enumerate(whole["content"]):
        streamed = _STREAMED.get(block["type"], ())
        empty = {**block, **{name: type(block[name])() for name in streamed if block.get(name)}}
        yield Event({"type": "content_block_start", "index": index, "content_block": empty}, pause)
        for delta in _deltas(block):
            yield Event({"type": "content_block_delta", "index": index, "delta": delta}, speed.word)
        yield Event({"type": "content_block_stop", "index": index})
        pause = 0
    delta = {name: whole.get(name) for name in ("stop_reason", "stop_sequence", "stop_details", "container")}
    usage = {name: whole["usage"].get(name) for name in _LAST_USAGE}
    yield Event({"type": "message_delta", "delta": delta, "usage": usage}, pause)
    yield Event({"type": "message_stop"})


_LAST_USAGE = (
    "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", "output_tokens_details",
    "server_tool_use",
)  # fmt: skip
"""The fields of `usage` in the event `message_delta`, the last but one of a stream."""

_STREAMED = {
    "tool_use": ("input",), "server_tool_use": ("input",), "text": ("text", "citations"),
    "thinking": ("thinking", "signature"),
}  # fmt: skip
"""The fields of each type of block that are sent in pieces. Blocks of other types are sent whole."""


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas in which a block is sent; none for a block that is sent whole."""
    kind = block["type"]
    if kind in ("tool_use", "server_tool_use"):
        text = json.dumps(block["input"])
        step = max(_JSON_PIECE, -(-len(text) // _MOST_PIECES))
        for start in range(0, len(text), step):
            yield {"type": "input_json_delta", "partial_json": text[start : start + step]}
    elif kind in ("text", "thinking"):
        words = _WORDS.findall(block[kind])
        step = -(-len(words) // _MOST_PIECES) or 1
        for start in range(0, len(words), step):
            yield {"type": f"{kind}_delta", kind: "".join(words[start : start + step])}
        for citation in block.get("citations") or ():
            yield {"type": "citations_delta", "citation": citation}
        if kind == "thinking":
            yield {"type": "signature_delta", "signature": block["signature"]}
