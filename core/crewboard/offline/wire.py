"""A request to the Messages API: its shape and its rules, as strict as the API itself.

The strictness is on purpose: what a worker sends wrongly must fail here, not at the first user with a key. The
sentences are close to the API's own, so that what they teach holds for the real one.
"""

import hashlib
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

TOOL_NAME = r"^[a-zA-Z0-9_-]{1,128}$"
MAX_MESSAGES = 100_000


class InvalidRequestError(Exception):
    """The request is refused with 400; the message says what is wrong and where."""


# ------------------------------------------------------------------------------------------------------ shape


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CacheControl(_Strict):
    """Where the cached part of a request ends."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Block(_Strict):
    cache_control: CacheControl | None = None


class Text(_Block):
    """A block of plain text."""

    type: Literal["text"]
    text: str
    citations: list[dict[str, Any]] | None = None


class Source(_Block):
    """An image or a document; accepted, and not looked at."""

    type: Literal["image", "document"]
    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None


class Thinking(_Strict):
    """A thought that goes back unchanged, with the signature that it came with."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class RedactedThinking(_Strict):
    """A thought that is not shown."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUse(_Block):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$")]
    name: Annotated[str, Field(pattern=TOOL_NAME)]
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


def _as_blocks(content: object) -> object:
    """Expand a string, which is short for one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ToolResult(_Block):
    """What a call returned."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$")]
    content: Annotated[list[Annotated[Text | Source, Field(discriminator="type")]], BeforeValidator(_as_blocks)] = []
    is_error: bool | None = None
    toolset_name: str | None = None

    @property
    def text(self) -> str:
        """Return its text blocks in one piece."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


Block = Annotated[Text | Source | Thinking | RedactedThinking | ToolUse | ToolResult, Field(discriminator="type")]
_TYPE_TAGS = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"})


class Message(_Strict):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks)]

    @property
    def text(self) -> str:
        """Return its text blocks in one piece."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


class InputSchema(BaseModel):
    """The JSON schema of a tool's input."""

    model_config = ConfigDict(extra="allow")

    type: Literal["object"]
    properties: dict[str, Any] | None = None
    required: list[str] | None = None


class Tool(_Block):
    """A tool that the model is offered."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    input_schema: InputSchema
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[dict[str, Any]] | None = None


class ToolChoice(_Strict):
    """How the model has to choose."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(_Strict):
    """Whether the model may think aloud."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1024)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class CountRequest(_Strict):
    """The body of `POST /v1/messages/count_tokens`."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)]
    system: Annotated[list[Text], BeforeValidator(_as_blocks)] = []
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    cache_control: CacheControl | None = None
    output_config: dict[str, Any] | None = None
    speed: Literal["standard", "fast"] | None = None

    @property
    def system_text(self) -> str:
        """Return the whole system prompt."""
        return "\n".join(block.text for block in self.system)


class MessagesRequest(CountRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool = False
    stop_sequences: list[str] = []
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    metadata: dict[str, Any] | None = None
    container: str | dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


# ------------------------------------------------------------------------------------------------------ rules

R = TypeVar("R", bound=CountRequest)


def parse(body: object, model: type[R]) -> R:
    """Read a request.

    Raises:
        InvalidRequestError: The API would refuse it.
    """
    try:
        request = model.model_validate(body)
    except ValidationError as error:
        raise InvalidRequestError(_first_complaint(error)) from error
    _check_tools(request)
    _check_contents(request)
    _check_roles(request.messages)
    _check_pairs(request.messages)
    if isinstance(request, MessagesRequest):
        _check_thinking_budget(request)
    return request


def signature(thinking: str) -> str:
    """Return the signature that a thought of the embedded model carries."""
    return hashlib.sha256(thinking.encode(errors="replace")).hexdigest()


def turns(messages: list[Message]) -> list[tuple[int, str, list[Block]]]:
    """Join neighbouring messages of one role, as the API does: place of the first, role, blocks."""
    joined = []
    for role, group in groupby(enumerate(messages), key=lambda pair: pair[1].role):
        members = list(group)
        joined.append((members[0][0], role, [block for _, message in members for block in message.content]))
    return joined


def _first_complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    parts = first["loc"]
    # The tag of a union stands behind the place of the block; it is no part of the address that a caller wrote.
    tags = {index for index in range(1, len(parts)) if isinstance(parts[index - 1], int)}
    where = ".".join(str(part) for index, part in enumerate(parts) if index not in tags or part not in _TYPE_TAGS)
    what = {"missing": "Field required", "extra_forbidden": "Extra inputs are not permitted"}
    return f"{where or 'body'}: {what.get(first['type'], first['msg'])}"


def _require(holds: object, complaint: str) -> None:
    if not holds:
        raise InvalidRequestError(complaint)


def _check_tools(request: CountRequest) -> None:
    names = [tool.name for tool in request.tools]
    _require(len(names) == len(set(names)), "tools: Tool names must be unique.")
    if (choice := request.tool_choice) is None:
        return
    unknown = choice.type == "tool" and choice.name not in names
    _require(not unknown, f"tool_choice.name: Tool '{choice.name}' not found in provided tools")
    needs_tools = choice.type in {"any", "tool"}
    _require(names or not needs_tools, "tool_choice: may only be specified while providing tools")


def _check_contents(request: CountRequest) -> None:
    for block in request.system:
        _check_text("system", block)
    for index, message in enumerate(request.messages):
        _require(message.content, f"messages.{index}: all messages must have non-empty content")
        for place, part in enumerate(message.content):
            _check_block(f"messages.{index}.content.{place}", message.role, part)


def _check_block(where: str, role: str, block: Block) -> None:
    if isinstance(block, Text):
        _check_text("messages", block)
        return
    _require(role != "system", f"{where}: a system message may only hold text")
    if isinstance(block, ToolResult):
        _require(role == "user", f"{where}: `tool_result` blocks can only be in `user` messages")
        _check_result(where, block)
    elif isinstance(block, ToolUse | Thinking):
        _require(role == "assistant", f"{where}: `{block.type}` blocks can only be in `assistant` messages")
    if isinstance(block, Thinking):
        _require(block.signature == signature(block.thinking), f"{where}: Invalid `signature` in `thinking` block")


def _check_result(where: str, block: ToolResult) -> None:
    empty = any(isinstance(text, Text) and not text.text for text in block.content)
    _require(not empty or len(block.content) == 1, f"{where}.tool_result: text content blocks must be non-empty")
    silent = block.is_error and not block.text
    _require(not silent, f"{where}.tool_result: content cannot be empty if `is_error` is true")


def _check_text(where: str, block: Text) -> None:
    _require(block.text, f"{where}: text content blocks must be non-empty")
    _require(block.text.strip(), f"{where}: text content blocks must contain non-whitespace text")


def _check_roles(messages: list[Message]) -> None:
    _require(messages, "messages: at least one message is required")
    _require(messages[0].role == "user", 'messages: first message must use the "user" role')
    _require(
        messages[-1].role != "assistant",
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    )


def _check_thinking_budget(request: MessagesRequest) -> None:
    thinking = request.thinking
    if thinking is None or thinking.type != "enabled":
        return
    budget = thinking.budget_tokens
    if budget is None:
        raise InvalidRequestError("thinking.enabled.budget_tokens: Field required")
    _require(budget < request.max_tokens, "`max_tokens` must be greater than `thinking.budget_tokens`")


def _check_pairs(messages: list[Message]) -> None:
    """Check that every call has its one result at the head of the next message, and every result its call before."""
    seen: set[str] = set()
    open_calls: list[str] = []
    before = 0
    for index, role, blocks in turns(messages):
        leading = takewhile(lambda block: isinstance(block, ToolResult), blocks)
        answered = {block.tool_use_id for block in leading if isinstance(block, ToolResult)}
        missing = ", ".join(call for call in open_calls if call not in answered)
        _require(
            not missing,
            f"messages.{before}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}. "
            "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        )
        _check_results(index, blocks, open_calls)
        open_calls = [block.id for block in blocks if isinstance(block, ToolUse)] if role == "assistant" else []
        unique = len(open_calls) == len(set(open_calls)) and not seen.intersection(open_calls)
        _require(unique, f"messages.{index}: `tool_use` ids must be unique")
        seen.update(open_calls)
        before = index


def _check_results(index: int, blocks: list[Block], open_calls: list[str]) -> None:
    answered: set[str] = set()
    for place, block in enumerate(blocks):
        if not isinstance(block, ToolResult):
            continue
        where, call = f"messages.{index}.content.{place}", block.tool_use_id
        _require(
            call in open_calls,
            f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}. Each `tool_result` block must "
            "have a corresponding `tool_use` block in the previous message.",
        )
        _require(
            call not in answered,
            f"{where}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {call}",
        )
        answered.add(call)
