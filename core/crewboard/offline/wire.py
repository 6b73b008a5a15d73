"""The shape of a request to the Messages API, as strict as the API itself: a field that it does not know is refused.

The strictness is on purpose. What a worker sends wrongly must fail here, not at the first user with a key.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

TOOL_NAME = r"^[a-zA-Z0-9_-]{1,128}$"
MAX_MESSAGES = 100_000


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
    """A string is short for one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class ToolResult(_Block):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]+$")]
    content: Annotated[list[Annotated[Text | Source, Field(discriminator="type")]], BeforeValidator(_as_blocks)] = []
    is_error: bool | None = None
    toolset_name: str | None = None

    @property
    def text(self) -> str:
        """Everything that it says, in one piece."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


Block = Annotated[Text | Source | Thinking | RedactedThinking | ToolUse | ToolResult, Field(discriminator="type")]


class Message(_Strict):
    """One message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks)]

    @property
    def text(self) -> str:
        """Its text blocks, in one piece."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


class Tool(_Block):
    """A tool that the model is offered."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    input_schema: "InputSchema"
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[dict[str, Any]] | None = None


class InputSchema(BaseModel):
    """The JSON schema of a tool's input."""

    model_config = ConfigDict(extra="allow")

    type: Literal["object"]
    properties: dict[str, Any] | None = None
    required: list[str] | None = None


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
        """The whole system prompt."""
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
