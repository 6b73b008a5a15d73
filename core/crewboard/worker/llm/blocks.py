"""Blocks of the Messages API: breakpoints of the prompt cache in a request, and the pieces of a streamed reply."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from anthropic import AsyncStream
from anthropic.types import RawMessageStreamEvent

from crewboard.records import check_depth

MAX_INPUT = 1024 * 1024
"""Bytes that the input of one tool call may have: far more than a reply of `MAX_TOKENS` can hold."""


class InputError(Exception):
    """A tool input that cannot be stored; the text says why."""


@dataclass
class Events:
    """The events of one reply, its blocks as they came, and the inputs of tool calls, which are taken out.

    The SDK's own blocks lose pieces of a type that it does not know. It parses an input again with each piece of it,
    accepts the beginning of one as all of it, and fails at one that holds half of a surrogate pair.
    """

    raw: AsyncStream[RawMessageStreamEvent]
    inputs: dict[int, str] = field(default_factory=dict)
    """The input of each tool call as JSON, by the index of its block. Of a long one, a little more than `MAX_INPUT`."""

    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Each block, without such an input, by its index."""

    async def __aiter__(self) -> AsyncIterator[RawMessageStreamEvent]:
        async for event in self.raw:
            if event.type == "content_block_start":
                self.blocks[event.index] = event.content_block.to_dict(mode="json", warnings=False)
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                text = self.inputs.get(event.index, "")
                if len(text) <= MAX_INPUT:
                    self.inputs[event.index] = text + event.delta.partial_json
                event.delta.partial_json = ""
            elif event.type == "content_block_delta":
                _add_piece(self.blocks[event.index], event.delta.to_dict(mode="json", warnings=False))
            yield event

    async def close(self) -> None:
        """Close the response."""
        await self.raw.close()


def _add_piece(block: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a piece to a block: texts and lists grow, other values and the signature are replaced."""
    if piece.get("type") == "citations_delta":
        piece = {"citations": [piece["citation"]]}
    for name, value in piece.items():
        old: Any = block.get(name)
        if name in ("text", "thinking") and not isinstance(value, str):
            raise ValueError(f"a piece of {name} is no text")
        grows = type(value) is type(old) and isinstance(old, str | list) and name != "signature"
        if name != "type":
            block[name] = old + value if grows else value


_CACHED_BLOCKS = frozenset({"text", "image", "document", "tool_use", "tool_result"})
"""Types of blocks at which the prompt cache may have a breakpoint."""

_BREAKPOINT = {"cache_control": {"type": "ephemeral"}}


def with_breakpoints(
    system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the parts of a request with breakpoints for the prompt cache, of which the API takes four.

    After the tools and after the system prompt, for when only what follows changes. In the conversation, after the
    newest turn, and where the last request had its newest: the API itself looks only 20 blocks back for that, fewer
    than the results of one reply may be.
    """
    marked = list(messages)
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    # A turn that the API paused is the last one, and the model's.
    newest = {len(messages) - 1, *users[-2:]}
    for place in sorted(newest)[-2:]:
        content = messages[place]["content"]
        last = max((at for at, block in enumerate(content) if block.get("type") in _CACHED_BLOCKS), default=None)
        if last is not None:
            blocks = [*content[:last], {**content[last], **_BREAKPOINT}, *content[last + 1 :]]
            marked[place] = {**messages[place], "content": blocks}
    return {
        "tools": [*tools[:-1], {**tools[-1], **_BREAKPOINT}],
        "system": [{"type": "text", "text": system, **_BREAKPOINT}],
        "messages": marked,
    }


def read_input(text: str) -> dict[str, Any]:
    """Return the input of a tool call.

    Raises:
        ValueError: It is not JSON.
        InputError: It cannot be kept, so the call must be refused.
    """
    if len(text) > MAX_INPUT:
        raise InputError(f"its input is longer than {MAX_INPUT} bytes")
    try:
        value = json.loads(text or "{}")
    except RecursionError:
        raise InputError("its input is nested too deeply") from None
    if not isinstance(value, dict):
        raise InputError("its input is not an object")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        check_depth(value)
    except UnicodeEncodeError:
        raise InputError("its input contains half of a surrogate pair") from None
    except ValueError as error:
        raise InputError(f"its input cannot be stored: {error}") from None
    return value


def without_lone_surrogates(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of a reply with `?` for halves of surrogate pairs, which the API does not accept back."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        replaced: list[dict[str, Any]] = json.loads(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
        return replaced
    return content
