"""What the Messages API refuses, refused here too: the shape of a request, and the order that its messages must keep.

The sentences are close to the API's own, so that what they teach holds for the real one.
"""

import hashlib
from collections.abc import Iterator
from itertools import groupby
from typing import TypeVar

from pydantic import ValidationError

from crewboard.offline.wire import (
    Block,
    CountRequest,
    Message,
    MessagesRequest,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)

R = TypeVar("R", bound=CountRequest)

_TYPE_TAGS = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"})


class InvalidRequestError(Exception):
    """The request is refused with 400; the message says what is wrong and where."""


def parse(body: object, model: type[R]) -> R:
    """Read a request.

    Raises:
        InvalidRequestError: The API would not take it.
    """
    try:
        request = model.model_validate(body)
    except ValidationError as error:
        raise InvalidRequestError(_first_complaint(error)) from error
    _check_tools(request)
    _check_texts(request)
    _check_roles(request.messages)
    _check_pairs(request.messages)
    if isinstance(request, MessagesRequest):
        _check_thinking_budget(request)
    return request


def signature(thinking: str) -> str:
    """The signature that a thought of the embedded model carries."""
    return hashlib.sha256(thinking.encode(errors="replace")).hexdigest()


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    parts = first["loc"]
    # The tag of a union stands behind the place of the block; it is no part of the address that a caller wrote.
    tags = {index for index in range(1, len(parts)) if isinstance(parts[index - 1], int)}
    where = ".".join(str(part) for index, part in enumerate(parts) if index not in tags or part not in _TYPE_TAGS)
    what = {"missing": "Field required", "extra_forbidden": "Extra inputs are not permitted"}
    return f"{where or 'body'}: {what.get(first['type'], first['msg'])}"


def _check_tools(request: CountRequest) -> None:
    names = [tool.name for tool in request.tools]
    if len(names) != len(set(names)):
        raise InvalidRequestError("tools: Tool names must be unique.")
    choice = request.tool_choice
    if choice is None:
        return
    if choice.type == "tool" and choice.name not in names:
        raise InvalidRequestError(f"tool_choice.name: Tool '{choice.name}' not found in provided tools")
    if choice.type in {"any", "tool"} and not names:
        raise InvalidRequestError("tool_choice: may only be specified while providing tools")


def _check_texts(request: CountRequest) -> None:
    for block in request.system:
        _check_text("system", block)
    for index, message in enumerate(request.messages):
        if not message.content:
            raise InvalidRequestError(f"messages.{index}: all messages must have non-empty content")
        for place, part in enumerate(message.content):
            _check_block(f"messages.{index}.content.{place}", message.role, part)


def _check_block(where: str, role: str, block: Block) -> None:
    if isinstance(block, Text):
        _check_text("messages", block)
    elif role == "system":
        raise InvalidRequestError(f"{where}: a system message may only hold text")
    elif isinstance(block, ToolResult):
        _check_result(where, role, block)
    elif isinstance(block, ToolUse) and role != "assistant":
        raise InvalidRequestError(f"{where}: `tool_use` blocks can only be in `assistant` messages")
    elif isinstance(block, Thinking):
        if role != "assistant":
            raise InvalidRequestError(f"{where}: `thinking` blocks can only be in `assistant` messages")
        if block.signature != signature(block.thinking):
            raise InvalidRequestError(f"{where}: Invalid `signature` in `thinking` block")


def _check_result(where: str, role: str, block: ToolResult) -> None:
    if role != "user":
        raise InvalidRequestError(f"{where}: `tool_result` blocks can only be in `user` messages")
    for text in block.content:
        if isinstance(text, Text) and not text.text and len(block.content) > 1:
            raise InvalidRequestError(f"{where}.tool_result: text content blocks must be non-empty")
    if block.is_error and not block.text:
        raise InvalidRequestError(f"{where}.tool_result: content cannot be empty if `is_error` is true")


def _check_text(where: str, block: Text) -> None:
    if not block.text:
        raise InvalidRequestError(f"{where}: text content blocks must be non-empty")
    if not block.text.strip():
        raise InvalidRequestError(f"{where}: text content blocks must contain non-whitespace text")


def _check_roles(messages: list[Message]) -> None:
    if not messages:
        raise InvalidRequestError("messages: at least one message is required")
    if messages[0].role != "user":
        raise InvalidRequestError('messages: first message must use the "user" role')
    if messages[-1].role == "assistant":
        raise InvalidRequestError(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def _check_thinking_budget(request: MessagesRequest) -> None:
    thinking = request.thinking
    if thinking is None or thinking.type != "enabled":
        return
    if thinking.budget_tokens is None:
        raise InvalidRequestError("thinking.enabled.budget_tokens: Field required")
    if thinking.budget_tokens >= request.max_tokens:
        raise InvalidRequestError("`max_tokens` must be greater than `thinking.budget_tokens`")


def turns(messages: list[Message]) -> list[tuple[int, str, list[Block]]]:
    """The conversation with messages of one role in a row joined, as the API joins them: place, role, blocks."""
    numbered = list(enumerate(messages))
    joined = []
    for role, group in groupby(numbered, key=lambda pair: pair[1].role):
        members = list(group)
        joined.append((members[0][0], role, [block for _, message in members for block in message.content]))
    return joined


def _check_pairs(messages: list[Message]) -> None:
    """Every call has its one result at the head of the next message, and every result its call in the one before."""
    seen: set[str] = set()
    open_calls: list[str] = []
    before = 0
    for index, role, blocks in turns(messages):
        leading = [block.tool_use_id for block in _leading_results(blocks)]
        if missing := [call for call in open_calls if call not in leading]:
            raise InvalidRequestError(
                f"messages.{before}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in "
                "the next message."
            )
        _check_results(index, blocks, open_calls)
        open_calls = [block.id for block in blocks if isinstance(block, ToolUse)] if role == "assistant" else []
        if len(open_calls) != len(set(open_calls)) or seen.intersection(open_calls):
            raise InvalidRequestError(f"messages.{index}: `tool_use` ids must be unique")
        seen.update(open_calls)
        before = index


def _leading_results(blocks: list[Block]) -> Iterator[ToolResult]:
    for block in blocks:
        if not isinstance(block, ToolResult):
            return
        yield block


def _check_results(index: int, blocks: list[Block], open_calls: list[str]) -> None:
    answered: set[str] = set()
    for place, block in enumerate(blocks):
        if not isinstance(block, ToolResult):
            continue
        if block.tool_use_id not in open_calls:
            raise InvalidRequestError(
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{block.tool_use_id}. Each `tool_result` block must have a corresponding `tool_use` block in "
                "the previous message."
            )
        if block.tool_use_id in answered:
            raise InvalidRequestError(
                f"messages.{index}.content.{place}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {block.tool_use_id}"
            )
        answered.add(block.tool_use_id)
