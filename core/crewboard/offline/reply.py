"""A reply of the offline model, its tokens, and how it is sent: as one message, or as a stream of events."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from crewboard.offline.conversation import Call
from crewboard.offline.wire import Block, Document, Image, MessagesRequest, Text, ToolResult, ToolUse, seal, sign

CHARACTERS_A_TOKEN = 4
_LEAST_CACHED = 1024
_LOOK_BACK = 20
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


def _tokens(*texts: str) -> int:
    return -(-sum(map(len, texts)) // CHARACTERS_A_TOKEN)


class PromptCache:
    """The prompt cache of the API: a request reads the longest beginning that an earlier one marked, if it is the same.

    A breakpoint stores the beginning up to it, and finds what was stored there or at most 20 blocks before.
    """

    def __init__(self) -> None:
        self._stored: dict[bytes, None] = {}

    def count(self, request: MessagesRequest) -> dict[str, int]:
        """Return the input tokens of a request by the API's kinds, and store what it marks."""
        read = written = total = 0
        digest = hashlib.sha256(request.model.encode())
        digests: list[bytes] = []
        sizes: list[int] = []
        stored = []
        for text, size, marked in _pieces(request):
            digest.update(text)
            total += size
            digests.append(digest.digest())
            sizes.append(total)
            if marked and total >= _LEAST_CACHED:
                written = total
                stored.append(digest.digest())
                near = range(len(digests) - 1, max(-1, len(digests) - 2 - _LOOK_BACK), -1)
                read = max(read, next((sizes[at] for at in near if digests[at] in self._stored), 0))
        self._stored.update(dict.fromkeys(stored))
        for oldest in list(self._stored)[: max(0, len(self._stored) - _MOST_STORED)]:
            del self._stored[oldest]
        total = max(1, total)
        return {
            "input_tokens": total - written,
            "cache_creation_input_tokens": written - read,
            "cache_read_input_tokens": read,
        }


def _pieces(request: MessagesRequest) -> Iterator[tuple[bytes, int, bool]]:
    """Yield the blocks of a request in the order of the cache: content, tokens, and whether there is a breakpoint."""
    for tool in request.tools:
        text = _unmarked(tool)
        yield text, _tokens(text.decode()), tool.cache_control is not None
    for part in request.system:
        yield b"system" + _unmarked(part), _tokens(part.text), part.cache_control is not None
    # Another way to think begins the conversation anew.
    yield msgspec.json.encode((request.thinking, request.output_config)), 0, False
    last = request.messages[-1].content[-1]
    for message in request.messages:
        yield message.role.encode(), _MESSAGE_TOKENS, False
        for block in message.content:
            marked = getattr(block, "cache_control", None) is not None or (
                block is last and bool(request.cache_control)
            )
            yield _unmarked(block), _size(block), marked


def _unmarked(piece: Any) -> bytes:  # noqa: ANN401  a block or a tool
    plain = msgspec.to_builtins(piece)
    plain.pop("cache_control", None)
    return msgspec.json.encode(plain)


def _size(block: Block) -> int:
    if isinstance(block, ToolUse):
        return _tokens(block.name, json.dumps(block.input))
    if isinstance(block, ToolResult):
        return _tokens(block.text) + sum(_MEDIA_TOKENS for part in block.content if not isinstance(part, Text))
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
    if len(blocks) == 1 and len(blocks[0].get("text", "")) > room:
        blocks, stop = [{**blocks[0], "text": blocks[0]["text"][:room]}], "max_tokens"
    said = (
        block.get("text") or block.get("thinking") or f"{block.get('name')}{block.get('input')}" for block in blocks
    )
    output = max(1, sum(map(_tokens, said)))
    uses = [block["name"] for block in blocks if block["type"] == "server_tool_use"]
    if uses:
        # The API asks the model again after each use, and bills the whole prompt each time.
        again = len(uses) * sum(usage.values())
        counts = {f"{name}_requests": uses.count(name) for name in ("web_search", "web_fetch")}
        usage = {**usage, "input_tokens": usage["input_tokens"] + again, "server_tool_use": counts}
    return {
        "id": f"msg_{_digest(seed, 'message')}", "type": "message", "role": "assistant", "model": model,
        "content": blocks, "stop_reason": stop, "stop_sequence": None, "stop_details": reply.stop_details,
        "usage": {**usage, "output_tokens": output},
    }  # fmt: skip


def _digest(seed: bytes, what: object) -> str:
    return hashlib.sha256(seed + str(what).encode()).hexdigest()[:24]


def _complete(block: dict[str, Any], digest: str) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    match block["type"]:
        case "tool_use":
            defaults = {"id": f"toolu_{digest}", "input": {}}
        case "server_tool_use":
            defaults = {"id": f"srvtoolu_{digest}", "input": {}}
        case "text":
            defaults = {"citations": block.get("citations") and [*map(_sealed_quotation, block["citations"])]}
            block = {key: value for key, value in block.items() if key != "citations"}
        case "web_search_tool_result" if isinstance(block.get("content"), list):
            block = {**block, "content": [{"encrypted_content": seal(page), **page} for page in block["content"]]}
        case "thinking":
            defaults = {"signature": sign(block["thinking"])}
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
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "stop_details": None, "usage": {**usage, "output_tokens": 1}}
    yield Event({"type": "message_start", "message": start})
    yield Event({"type": "ping"})
    pause = speed.delay
    for index, block in enumerate(whole["content"]):
        streamed = _STREAMED.get(block["type"], ())
        empty = {**block, **{name: type(block[name])() for name in streamed if block.get(name)}}
        yield Event({"type": "content_block_start", "index": index, "content_block": empty}, pause)
        for delta in _deltas(block):
            yield Event({"type": "content_block_delta", "index": index, "delta": delta}, speed.word, counts=True)
        yield Event({"type": "content_block_stop", "index": index})
        pause = 0
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None, "stop_details": whole.get("stop_details")}
    yield Event({"type": "message_delta", "delta": delta, "usage": usage}, pause)
    yield Event({"type": "message_stop"})


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
