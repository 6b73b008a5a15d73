"""The prompt cache of the API, as it counts and forgets."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator

import msgspec

from crewboard.offline.reply import tokens
from tests.api.wire import Block, Document, Image, MessagesRequest, Text, ToolResult, ToolUse, ttl_of, unmarked

_LEAST_CACHED = 1024
_LOOK_BACK = 20
_KEPT_SECONDS = {"5m": 300.0, "1h": 3600.0}
_MOST_STORED = 20_000
_MESSAGE_TOKENS = 4
_MEDIA_TOKENS = 1500


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
