"""Thinking as the API binds it: a block is accepted only unchanged, and only behind what it was written behind.

The signature of a block names the block and its prefix: the system prompt, the tools and all blocks before it, without
the marks of the prompt cache. A tool that is loaded on demand is a part of it where it is referred to. Source: pages
`preserved-thinking` and `prefix-checks` of the API's documents, November 2026. There it is not said whether blank texts
of the model, which the API does not accept back, belong to a prefix; here they do not.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from crewboard import models
from tests.api.rules import read_blocks
from tests.api.wire import (
    Block,
    InvalidRequestError,
    MessagesRequest,
    RedactedThinking,
    Text,
    Thinking,
    ToolUse,
    turns,
    unmarked,
)

BETA = "thinking-binding-controls-2026-08-01"
"""The beta header without which `block_binding` is refused."""

_SEPARATOR = "."


@dataclass(frozen=True)
class Stale:
    """A block of thinking behind something that has changed, by its place in the request."""

    message: int
    content: int

    @property
    def path(self) -> str:
        """Return the place in the form of the API's errors."""
        return f"messages.{self.message}.content.{self.content}"


class Thoughts:
    """The thinking that one server has sent."""

    def __init__(self) -> None:
        self._of_calls: dict[str, list[Any]] = {}

    def keep(self, content: list[dict[str, Any]]) -> None:
        """Note the thinking of a reply."""
        thoughts = [block for block in content if block["type"] in ("thinking", "redacted_thinking")]
        if thoughts:
            self._of_calls.update({block["id"]: thoughts for block in content if block["type"] == "tool_use"})

    def require_latest(self, asked: MessagesRequest) -> None:
        """Check that the last turn of the model has all its thinking, or none: it may be taken out by hand.

        Raises:
            InvalidRequestError: Only a part of it is there.
        """
        blocks = next((blocks for _, role, blocks in reversed(turns(asked.messages)) if role == "assistant"), [])
        sent = [msgspec.to_builtins(block) for block in blocks if isinstance(block, Thinking | RedactedThinking)]
        expected = next((self._of_calls.get(block.id, []) for block in blocks if isinstance(block, ToolUse)), [])
        if sent and not all(thought in sent for thought in expected):
            raise InvalidRequestError(
                "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."
            )


def _text_digest(thinking: str) -> str:
    return hashlib.sha256(f"thinking {thinking}".encode()).hexdigest()


def sign_reply(content: list[dict[str, Any]], asked: MessagesRequest) -> list[dict[str, Any]]:
    """Return the blocks of a reply to a request, with the signatures of its thinking that lacks one."""
    if not any(block["type"] == "thinking" and "signature" not in block for block in content):
        return content
    signed = list(content)
    *_, (_, _, prefix) = _prefixes(asked)
    for place, block in enumerate(content):
        if block["type"] == "thinking" and "signature" not in block:
            signature = f"{_text_digest(block['thinking'])}{_SEPARATOR}{prefix.hexdigest()}"
            signed[place] = {**block, "signature": signature}
        _add(prefix, read_blocks([signed[place]]))
    return signed


def find_stale(asked: MessagesRequest) -> list[Stale]:
    """Return the thinking in a request that stands behind something else than it was written behind.

    Raises:
        InvalidRequestError: A block was changed itself, so that it is refused in any case.
    """
    if not any(isinstance(block, Thinking) for message in asked.messages for block in message.content):
        return []
    stale: list[Stale] = []
    for at, block, prefix in _prefixes(asked):
        if not isinstance(block, Thinking):
            continue
        text, _, bound_to = block.signature.partition(_SEPARATOR)
        if text != _text_digest(block.thinking):
            raise InvalidRequestError(f"{Stale(*at).path}: Invalid `signature` in `thinking` block")
        if bound_to != prefix.hexdigest() and models.preserves_thinking(asked.model):
            stale.append(Stale(*at))
    return stale


def check_binding(asked: MessagesRequest, stale: Sequence[Stale], betas: str) -> None:
    """Check that a request with this stale thinking is accepted. `betas` is the header of that name.

    Raises:
        InvalidRequestError: The request is refused.
    """
    binding = asked.thinking.get("block_binding")
    if binding is not None and BETA not in betas.split(","):
        raise InvalidRequestError(f"thinking.block_binding: this requires `{BETA}` in the `anthropic-beta` header")
    if stale and (binding is None or binding.get("prefix_mismatch_behavior") != "drop_block"):
        raise InvalidRequestError(
            f"{stale[0].path}: Invalid `signature` in `thinking` block. The block is bound to a different "
            "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
            '"drop_block".'
        )


def _prefixes(asked: MessagesRequest) -> Iterator[tuple[tuple[int, int], Block | None, Any]]:
    """Yield each block of a request with its place and the hash of all before it; None at the end."""
    digest = hashlib.sha256()
    for part in (*asked.system, *asked.first_tools):
        digest.update(unmarked(part))
    role = ""
    for index, message in enumerate(asked.messages):
        if message.role != role:
            role = message.role
            digest.update(role.encode())
        for place, block in enumerate(message.content):
            yield (index, place), block, digest
            _add(digest, [block])
            for tool in asked.tools_at(block):
                digest.update(unmarked(tool))
    if role != "assistant":
        digest.update(b"assistant")
    yield (len(asked.messages), 0), None, digest


def _add(digest: Any, blocks: Iterable[Block]) -> None:  # noqa: ANN401  hashlib names no type
    for block in blocks:
        if not (isinstance(block, Text) and not block.text.strip()):
            digest.update(unmarked(block))
