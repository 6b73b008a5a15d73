"""A request to the Messages API, checked as strictly as the API does, so that what a worker sends wrongly fails here.

The sentences are close to the API's own. What no worker sends (images, thinking, sampling) is not accepted.
"""

from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

_TOOL_NAME = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
_ID = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$")]


class InvalidRequestError(ValueError):
    """The request is refused with 400; the message says what is wrong and where."""


class _Strict(BaseModel, extra="forbid", strict=True): ...


class CacheControl(_Strict):
    type: Literal["ephemeral"]


class _Block(_Strict):
    cache_control: CacheControl | None = None


class Text(_Block):
    type: Literal["text"]
    text: str
    citations: list[dict[str, Any]] | None = None


class ToolUse(_Block):
    type: Literal["tool_use"]
    id: _ID
    name: _TOOL_NAME
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


def _as_blocks(content: object) -> object:
    """Expand a string, which is short for one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ToolResult(_Block):
    type: Literal["tool_result"]
    tool_use_id: _ID
    content: Annotated[list[Text], BeforeValidator(_as_blocks)] = []
    is_error: bool | None = None
    toolset_name: str | None = None

    @property
    def text(self) -> str:
        """Return the text blocks in one piece."""
        return "\n".join(block.text for block in self.content)


Block = Annotated[Text | ToolUse | ToolResult, Field(discriminator="type")]
_TYPE_TAGS = frozenset({"text", "tool_use", "tool_result"})


class Message(_Strict):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks)]


class InputSchema(BaseModel, extra="allow"):
    type: Literal["object"]


class Tool(_Block):
    name: _TOOL_NAME
    input_schema: InputSchema
    description: str | None = None
    type: Literal["custom"] | None = None


class MessagesRequest(_Strict):
    model: Annotated[str, Field(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Field(max_length=100_000)]
    system: Annotated[list[Text], BeforeValidator(_as_blocks)] = []
    tools: list[Tool] = []
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool = False
    cache_control: CacheControl | None = None

    @property
    def system_text(self) -> str:
        """Return the whole system prompt."""
        return "\n".join(block.text for block in self.system)


def parse(body: object) -> MessagesRequest:
    """Read a request, or raise `InvalidRequestError`."""
    try:
        request = MessagesRequest.model_validate(body)
    except ValidationError as error:
        raise InvalidRequestError(_first_complaint(error)) from error
    names = [tool.name for tool in request.tools]
    _require(len(names) == len(set(names)), "tools: Tool names must be unique.")
    _check_contents(request)
    _check_pairs(request.messages)
    return request


def turns(messages: list[Message]) -> list[tuple[int, str, list[Block]]]:
    """Join neighbouring messages of one role, as the API does: place of the first, role, blocks."""
    joined = []
    for role, group in groupby(enumerate(messages), key=lambda pair: pair[1].role):
        members = list(group)
        joined.append((members[0][0], role, [block for _, message in members for block in message.content]))
    return joined


def _require(holds: object, complaint: str) -> None:
    if not holds:
        raise InvalidRequestError(complaint)


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    parts = first["loc"]
    # The tag of a union stands behind the place of the block; it is no part of the address that a caller wrote.
    tags = {index for index in range(1, len(parts)) if isinstance(parts[index - 1], int)}
    where = ".".join(str(part) for index, part in enumerate(parts) if index not in tags or part not in _TYPE_TAGS)
    what = {"missing": "Field required", "extra_forbidden": "Extra inputs are not permitted"}
    return f"{where or 'body'}: {what.get(first['type'], first['msg'])}"


def _check_contents(request: MessagesRequest) -> None:
    messages = request.messages
    _require(messages, "messages: at least one message is required")
    _require(messages[0].role == "user", 'messages: first message must use the "user" role')
    _require(messages[-1].role != "assistant", "This model does not support assistant message prefill.")
    for block in request.system:
        _check_text("system", block)
    for index, message in enumerate(messages):
        _require(message.content, f"messages.{index}: all messages must have non-empty content")
        for place, part in enumerate(message.content):
            _check_block(f"messages.{index}.content.{place}", message.role, part)


def _check_text(where: str, block: Text) -> None:
    _require(block.text, f"{where}: text content blocks must be non-empty")
    _require(block.text.strip(), f"{where}: text content blocks must contain non-whitespace text")


def _check_block(where: str, role: str, block: Block) -> None:
    if isinstance(block, Text):
        return _check_text("messages", block)
    _require(role != "system", f"{where}: a system message may only hold text")
    writer = "user" if isinstance(block, ToolResult) else "assistant"
    _require(role == writer, f"{where}: `{block.type}` blocks can only be in `{writer}` messages")
    if isinstance(block, ToolResult):
        empty = len(block.content) > 1 and not all(text.text for text in block.content)
        _require(not empty, f"{where}.tool_result: text content blocks must be non-empty")
        silent = block.is_error and not block.text
        _require(not silent, f"{where}.tool_result: content cannot be empty if `is_error` is true")
    return None


def _check_pairs(messages: list[Message]) -> None:
    """Check that every call has its one result at the head of the next message, and every result its call before."""
    seen: set[str] = set()
    open_calls: list[str] = []
    before = 0
    for index, _, blocks in turns(messages):
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResult)]
        leading = results if all(isinstance(block, ToolResult) for block in blocks[: len(results)]) else []
        missing = ", ".join(call for call in open_calls if call not in leading)
        late = "`tool_use` ids were found without `tool_result` blocks immediately after"
        _require(not missing, f"messages.{before}: {late}: {missing}.")
        for place, call in enumerate(results):
            where = f"messages.{index}.content.{place}"
            _require(call in open_calls, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}.")
            _require(results.count(call) == 1, f"{where}: each tool_use must have a single result; {call} has more.")
        open_calls = [block.id for block in blocks if isinstance(block, ToolUse)]
        unique = len(open_calls) == len(set(open_calls)) and not seen.intersection(open_calls)
        _require(unique, f"messages.{index}: `tool_use` ids must be unique")
        seen.update(open_calls)
        before = index
