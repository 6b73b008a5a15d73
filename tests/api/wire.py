"""A request to the Messages API, taken apart by types.

Its form is judged by the API's own description (`tests/openapi.py`), and by the rules that are in no schema
(`tests/api/rules.py`). A block of the model itself may be of any type: a later API may have sent it.
"""

import base64
from itertools import groupby
from json import dumps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec import Struct, ValidationError, convert, json, to_builtins

from crewboard import media
from crewboard.records.base import describe_invalid


class InvalidRequestError(ValueError):
    """The request is refused with 400; the message says what is wrong and where."""


class _Block(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    cache_control: dict[str, Any] | None = None


class Text(_Block, kw_only=True, tag="text"):
    text: str
    citations: list[dict[str, Any]] | None = None


class ToolUse(_Block, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class Base64(Struct, tag_field="type", tag="base64"):
    media_type: str
    data: str

    def __post_init__(self) -> None:
        if media.type_of(self.bytes) != self.media_type:
            raise ValueError("source.data: the content is not of this media type")

    @property
    def bytes(self) -> bytes:
        """Return what is encoded."""
        return base64.b64decode(self.data, validate=True)


class Image(_Block, kw_only=True, tag="image"):
    source: Base64


class Document(_Block, kw_only=True, tag="document"):
    source: Base64
    title: str | None = None


def _as_blocks(content: Any) -> Any:  # noqa: ANN401  a text or blocks
    """Expand a string, which is short for one block of text."""
    return [Text(text=content)] if isinstance(content, str) else content


class ToolReference(_Block, kw_only=True, tag="tool_reference"):
    """The place in a result where the model is shown a tool of the request that is loaded on demand."""

    tool_name: str


if TYPE_CHECKING:
    _Texts = list[Text]
    _ResultParts = list[Text | Image | Document | ToolReference]
else:
    _Texts = str | list[Text]
    _ResultParts = str | list[Text | Image | Document | ToolReference]


class ToolResult(_Block, kw_only=True, tag="tool_result"):
    tool_use_id: str
    content: _ResultParts = []
    is_error: bool | None = None

    def __post_init__(self) -> None:
        self.content = _as_blocks(self.content)

    @property
    def text(self) -> str:
        """Return the text blocks in one piece."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))

    @property
    def found(self) -> list[str]:
        """Return the names of the tools that the model is shown here."""
        return [part.tool_name for part in self.content if isinstance(part, ToolReference)]


class Thinking(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class RedactedThinking(Struct, tag_field="type", tag="redacted_thinking"):
    data: str


class Opaque(_Block, kw_only=True, tag="opaque"):
    """A block of a type that is not known here, as it came."""

    block: dict[str, Any]


Block = Text | Image | Document | ToolUse | ToolResult | Thinking | RedactedThinking | Opaque

if TYPE_CHECKING:
    _Blocks = list[Block]
else:
    _Blocks = str | list[Block]


class Message(Struct):
    role: Literal["user", "assistant", "system"]
    content: _Blocks

    def __post_init__(self) -> None:
        self.content = _as_blocks(self.content)


class MessagesRequest(Struct):
    """A request. Tools and settings are as they came."""

    model: str
    messages: list[Message]
    max_tokens: int
    system: _Texts = []
    tools: list[dict[str, Any]] = []
    stream: bool = False
    cache_control: dict[str, Any] | None = None
    thinking: dict[str, Any] = {}
    output_config: dict[str, Any] = {}

    def __post_init__(self) -> None:
        self.system = _as_blocks(self.system)

    @property
    def first_tools(self) -> list[dict[str, Any]]:
        """Return the tools that the model is shown from the beginning: the others come where they are referred to."""
        return [tool for tool in self.tools if not tool.get("defer_loading")]

    def tools_at(self, block: Any) -> list[dict[str, Any]]:  # noqa: ANN401  any block
        """Return the tools that a block refers to."""
        found = block.found if isinstance(block, ToolResult) else []
        return [tool for tool in self.tools if tool["name"] in found]

    @property
    def system_text(self) -> str:
        """Return the whole system prompt."""
        return "\n".join(block.text for block in self.system)


R = TypeVar("R", bound=MessagesRequest)


def parse(body: object, kind: type[R]) -> R:
    """Read a request of this kind, or raise `InvalidRequestError`."""
    try:
        asked = convert(_with_opaque(body), kind)
    except ValidationError as error:
        raise InvalidRequestError(describe_invalid(error, "body")) from error
    if not asked.messages:
        raise InvalidRequestError("messages: at least one message is required")
    return asked


_KNOWN = frozenset({"text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"})


def _with_opaque(body: object) -> object:
    """Wrap the blocks of the model that have a type which is not known here."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return body
    messages = [
        {**message, "content": [wrap(block) for block in message["content"]]}
        if isinstance(message, dict) and message.get("role") == "assistant" and isinstance(message.get("content"), list)
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


def wrap(block: object) -> object:
    """Return a block of the model; one of a type that is not known here is put into an `Opaque`."""
    is_known = not isinstance(block, dict) or not isinstance(block.get("type"), str) or block["type"] in _KNOWN
    if is_known or not isinstance(block, dict):
        return block
    rest = {key: value for key, value in block.items() if key != "cache_control"}
    mark = {"cache_control": block["cache_control"]} if "cache_control" in block else {}
    return {"type": "opaque", "block": rest, **mark}


def unmarked(piece: Any) -> bytes:  # noqa: ANN401  a block or a tool
    """Return a piece of a request as JSON, without the mark of the prompt cache, and with `?` for half surrogates."""
    plain = to_builtins(piece)
    plain.pop("cache_control", None)
    try:
        return json.encode(plain)
    except UnicodeEncodeError:
        return json.encode(json.decode(dumps(plain, ensure_ascii=False).encode("utf-8", "replace")))


def ttl_of(piece: Any) -> str | None:  # noqa: ANN401  as above
    """Return how long the prompt cache keeps what ends with a block or a tool, `5m` or `1h`; None without a breakpoint.

    A request as a whole has its breakpoint at its end.
    """
    mark = piece.get("cache_control") if isinstance(piece, dict) else getattr(piece, "cache_control", None)
    return None if mark is None else str(mark.get("ttl") or "5m")


def turns(messages: list[Message]) -> list[tuple[int, str, list[Block]]]:
    """Join neighbouring messages of one role, as the API does: place of the first, role, blocks."""
    joined = []
    for role, group in groupby(enumerate(messages), key=lambda pair: pair[1].role):
        members = list(group)
        joined.append((members[0][0], role, [block for _, message in members for block in message.content]))
    return joined
