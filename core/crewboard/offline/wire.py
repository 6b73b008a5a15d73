"""A request to the Messages API, checked as strictly as the API does, so that what a worker sends wrongly fails here.

The sentences are close to the API's own. What no worker sends (sampling, files by URL) is not accepted. A block of the
model itself may be of any type: a later API may have sent it.
"""

import base64
import hashlib
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from crewboard import media
from crewboard.records import Effort, describe_invalid

_TOOL_NAME = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
_ID = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]+\Z")]


class InvalidRequestError(ValueError):
    """The request is refused with 400; the message says what is wrong and where."""


def sign(thinking: str) -> str:
    """Return the signature of a thinking block, by which a block that was changed is refused."""
    return hashlib.sha256(f"thinking {thinking}".encode()).hexdigest()


def seal(page: dict[str, Any]) -> str:
    """Return what is encrypted of a search result, or of a quotation from one, so that a changed one is refused."""
    seen = page.get("cited_text") or page.get("title")
    return hashlib.sha256(f"web {page.get('url')} {seen}".encode()).hexdigest()


class _Strict(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True): ...


class CacheControl(_Strict):
    type: Literal["ephemeral"]


class _Block(_Strict, kw_only=True, tag_field="type"):
    cache_control: CacheControl | None = None


class Text(_Block, kw_only=True, tag="text"):
    text: str
    citations: list[dict[str, Any]] | None = None


class ToolUse(_Block, kw_only=True, tag="tool_use"):
    id: _ID
    name: _TOOL_NAME
    input: dict[str, Any]
    caller: dict[str, Any] | None = None
    toolset_name: str | None = None


class Base64(_Strict, kw_only=True, tag_field="type", tag="base64"):
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"]
    data: str

    def __post_init__(self) -> None:
        if media.type_of(base64.b64decode(self.data, validate=True)) != self.media_type:
            raise ValueError("source.data: the content is not of this media type")


class Image(_Block, kw_only=True, tag="image"):
    source: Base64


class Document(_Block, kw_only=True, tag="document"):
    source: Base64
    title: str | None = None


def _as_blocks(content: Any) -> Any:  # noqa: ANN401  a text or blocks
    """Expand a string, which is short for one block of text."""
    return [Text(text=content)] if isinstance(content, str) else content


if TYPE_CHECKING:
    _Texts = list[Text]
    _ResultParts = list[Text | Image | Document]
else:
    _Texts = str | list[Text]
    _ResultParts = str | list[Text | Image | Document]


class ToolResult(_Block, kw_only=True, tag="tool_result"):
    tool_use_id: _ID
    content: _ResultParts = []
    is_error: bool | None = None
    toolset_name: str | None = None

    def __post_init__(self) -> None:
        self.content = _as_blocks(self.content)

    @property
    def text(self) -> str:
        """Return the text blocks in one piece."""
        return "\n".join(block.text for block in self.content if isinstance(block, Text))


class Thinking(_Strict, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class RedactedThinking(_Strict, kw_only=True, tag_field="type", tag="redacted_thinking"):
    data: Annotated[str, Meta(min_length=1)]


class Opaque(_Block, kw_only=True, tag="opaque"):
    """A block of a type that is not known here, as it came."""

    block: dict[str, Any]


Block = Text | Image | Document | ToolUse | ToolResult | Thinking | RedactedThinking | Opaque

if TYPE_CHECKING:
    _Blocks = list[Block]
else:
    _Blocks = str | list[Block]


class Message(_Strict, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: _Blocks

    def __post_init__(self) -> None:
        self.content = _as_blocks(self.content)


_OURS = frozenset({"input_schema", "description"})
_WEB = frozenset({"allowed_callers", "max_uses", "allowed_domains", "blocked_domains"})
_FETCH = frozenset({"citations", "max_content_tokens", "url_sources"})
_FIELDS = {"web_search_20260318": ("web_search", _WEB), "web_fetch_20260318": ("web_fetch", _WEB | _FETCH)}
"""The API's own tools for the web: the name and the fields of each type."""


class Tool(_Strict, kw_only=True):
    """A tool of the caller, or one that the API runs."""

    cache_control: CacheControl | None = None
    name: _TOOL_NAME
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: Literal["custom", "web_search_20260318", "web_fetch_20260318"] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    max_uses: Annotated[int, Meta(ge=1)] | None = None
    allowed_domains: Annotated[list[str], Meta(min_length=1)] | None = None
    blocked_domains: Annotated[list[str], Meta(min_length=1)] | None = None
    citations: dict[Literal["enabled"], bool] | None = None
    max_content_tokens: Annotated[int, Meta(ge=1)] | None = None
    url_sources: dict[Literal["user_input", "client_tool_results", "server_tool_results"], dict[str, Any]] | None = None

    @property
    def is_of_api(self) -> bool:
        """Return True if the API runs it."""
        return self.type in _FIELDS

    def __post_init__(self) -> None:
        name, fields = _FIELDS.get(self.type or "custom", (self.name, _OURS))
        if self.name != name:
            raise ValueError(f"name: Input should be {name!r}")
        if not self.is_of_api and self.input_schema is None:
            raise ValueError("input_schema: Field required")
        if self.input_schema is not None and self.input_schema.get("type") != "object":
            raise ValueError("input_schema.type: Input should be 'object'")
        for field in (_OURS | _WEB | _FETCH) - fields:
            if getattr(self, field) is not None:
                raise ValueError(f"{field}: Extra inputs are not permitted")
        if self.allowed_domains and self.blocked_domains:
            raise ValueError("allowed_domains: cannot be used with blocked_domains")
        for domain in (*(self.allowed_domains or ()), *(self.blocked_domains or ())):
            if "://" in domain or not domain.isascii() or " " in domain:
                raise ValueError(f"allowed_domains: {domain!r} is not a domain")


class AdaptiveThinking(_Strict, kw_only=True, tag_field="type", tag="adaptive"):
    display: Literal["summarized", "omitted"] | None = None


class NoThinking(_Strict, kw_only=True, tag_field="type", tag="disabled"): ...


class OutputConfig(_Strict, kw_only=True):
    effort: Effort | None = None


class MessagesRequest(_Strict, kw_only=True):
    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(max_length=100_000)]
    system: _Texts = []
    tools: list[Tool] = []
    max_tokens: Annotated[int, Meta(ge=1)]
    stream: bool = False
    cache_control: CacheControl | None = None
    thinking: AdaptiveThinking | NoThinking | None = None
    output_config: OutputConfig | None = None

    def __post_init__(self) -> None:
        self.system = _as_blocks(self.system)

    @property
    def system_text(self) -> str:
        """Return the whole system prompt."""
        return "\n".join(block.text for block in self.system)


def parse(body: object) -> MessagesRequest:
    """Read a request, or raise `InvalidRequestError`."""
    try:
        request = convert(_with_opaque(body), MessagesRequest)
    except ValidationError as error:
        raise InvalidRequestError(describe_invalid(error, "body")) from error
    names = [tool.name for tool in request.tools]
    _require(len(names) == len(set(names)), "tools: Tool names must be unique.")
    _check_contents(request)
    _check_pairs(request.messages)
    return request


_KNOWN = frozenset({"text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking"})


def _with_opaque(body: object) -> object:
    """Wrap the blocks of the model that have a type which is not known here."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return body

    def wrap(block: object) -> object:
        is_known = not isinstance(block, dict) or not isinstance(block.get("type"), str) or block["type"] in _KNOWN
        if is_known or not isinstance(block, dict):
            return block
        rest = {key: value for key, value in block.items() if key != "cache_control"}
        mark = {"cache_control": block["cache_control"]} if "cache_control" in block else {}
        return {"type": "opaque", "block": rest, **mark}

    messages = [
        {**message, "content": [wrap(block) for block in message["content"]]}
        if isinstance(message, dict) and message.get("role") == "assistant" and isinstance(message.get("content"), list)
        else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


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


_MOST_MARKS = 4


def _check_contents(request: MessagesRequest) -> None:
    messages = request.messages
    _require(messages, "messages: at least one message is required")
    _require(messages[0].role == "user", 'messages: first message must use the "user" role')
    goes_on = messages[-1].role != "assistant" or (
        messages[-1].content and isinstance(messages[-1].content[-1], Opaque)
    )
    _require(goes_on, "This model does not support assistant message prefill.")
    blocks = (*request.tools, *request.system, *(block for each in messages for block in each.content))
    found = sum(getattr(block, "cache_control", None) is not None for block in blocks) + bool(request.cache_control)
    _require(
        found <= _MOST_MARKS, f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {found}."
    )
    for block in request.system:
        _check_text("system", block)
    for index, message in enumerate(messages):
        _require(message.content, f"messages.{index}: all messages must have non-empty content")
        for place, part in enumerate(message.content):
            _check_block(f"messages.{index}.content.{place}", message.role, part)
        thinks_last = isinstance(message.content[-1], Thinking | RedactedThinking)
        last = f"messages.{index}: The final block in an assistant message cannot be `thinking`."
        _require(not thinks_last, last)


def _check_text(where: str, block: Text) -> None:
    _require(block.text, f"{where}: text content blocks must be non-empty")
    _require(block.text.strip(), f"{where}: text content blocks must contain non-whitespace text")


def _check_block(where: str, role: str, block: Block) -> None:
    if isinstance(block, Text):
        for cited in block.citations or ():
            if cited.get("type") == "web_search_result_location":
                _require(cited.get("encrypted_index") == seal(cited), f"{where}: Invalid `encrypted_index` in citation")
        return _check_text("messages", block)
    _require(role != "system", f"{where}: a system message may only hold text")
    writer = "user" if isinstance(block, ToolResult | Image | Document) else "assistant"
    _require(role == writer, f"{where}: `{block.__struct_config__.tag}` blocks can only be in `{writer}` messages")
    if isinstance(block, Thinking):
        genuine = block.signature == sign(block.thinking)
        _require(genuine, f"{where}: Invalid `signature` in `thinking` block")
    if isinstance(block, Opaque) and block.block["type"] == "web_search_tool_result":
        found = block.block.get("content")
        genuine = not isinstance(found, list) or all(page.get("encrypted_content") == seal(page) for page in found)
        _require(genuine, f"{where}: Invalid `encrypted_content` in `web_search_result` block")
    if isinstance(block, ToolResult):
        empty = len(block.content) > 1 and not all(part.text for part in block.content if isinstance(part, Text))
        _require(not empty, f"{where}.tool_result: text content blocks must be non-empty")
        silent = block.is_error and not block.text
        _require(not silent, f"{where}.tool_result: content cannot be empty if `is_error` is true")
    return None


def _check_server_calls(index: int, blocks: list[Block], *, is_last: bool) -> None:
    """Check that calls of the API's own tools have a result in their turn, unless the turn goes on."""
    if is_last or any(isinstance(block, ToolUse) for block in blocks):
        return
    raw = [block.block for block in blocks if isinstance(block, Opaque)]
    done = {block.get("tool_use_id") for block in raw}
    missing = [
        str(block.get("id")) for block in raw if block["type"] == "server_tool_use" and block.get("id") not in done
    ]
    _require(not missing, f"messages.{index}: `server_tool_use` ids were found without a result block: {missing}.")


def _check_pairs(messages: list[Message]) -> None:
    """Check that every call has its one result at the head of the next message, and every result its call before."""
    seen: set[str] = set()
    open_calls: list[str] = []
    before = 0
    all_turns = turns(messages)
    for index, _, blocks in all_turns:
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResult)]
        leading = results if all(isinstance(block, ToolResult) for block in blocks[: len(results)]) else []
        missing = ", ".join(call for call in open_calls if call not in leading)
        late = "`tool_use` ids were found without `tool_result` blocks immediately after"
        _require(not missing, f"messages.{before}: {late}: {missing}.")
        for place, call in enumerate(results):
            where = f"messages.{index}.content.{place}"
            _require(call in open_calls, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}.")
            _require(results.count(call) == 1, f"{where}: each tool_use must have a single result; {call} has more.")
        _check_server_calls(index, blocks, is_last=blocks is all_turns[-1][2])
        open_calls = [block.id for block in blocks if isinstance(block, ToolUse)]
        unique = len(open_calls) == len(set(open_calls)) and not seen.intersection(open_calls)
        _require(unique, f"messages.{index}: `tool_use` ids must be unique")
        seen.update(open_calls)
        before = index
