"""The rules for requests to the Messages API that are in no schema. The sentences are close to the API's own."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert

from crewboard import media
from crewboard.offline.reply import seal
from tests.api import wire
from tests.api.wire import (
    Block,
    Document,
    Image,
    InvalidRequestError,
    Message,
    MessagesRequest,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    ttl_of,
    turns,
)


class Diagnostics(Struct, forbid_unknown_fields=True):
    previous_message_id: Annotated[str, Meta(max_length=256)] | None = None


class WholeRequest(MessagesRequest):
    """A request with the fields that the offline model does not read."""

    diagnostics: Diagnostics | None = None
    fallbacks: Literal["default"] | list[dict[str, Any]] | None = None

    @property
    def thinking_is_off(self) -> bool:
        """Return True if the request turns thinking off."""
        return self.thinking.get("type") in ("disabled", "between_tools")


def parse(body: object) -> WholeRequest:
    """Read a request that keeps the rules, or raise `InvalidRequestError`."""
    request = wire.parse(body, WholeRequest)
    names = [tool.get("name") for tool in request.tools]
    _require(all(names), "tools: each needs a name")
    _require(len(names) == len(set(names)), "tools: Tool names must be unique.")
    _check_contents(request)
    _check_media(request)
    _check_deferred(request)
    _check_system(request)
    _check_fallbacks(request)
    _check_server_results(request.messages)
    _check_pairs(request.messages)
    return request


def _check_system(request: MessagesRequest) -> None:
    """Check the places of messages of the role `system`.

    Source: page `build-with-claude/mid-conversation-system-messages` of the API's documents, *Limitations*, September
    2026. The API's own words are not known.
    """
    all_turns = turns(request.messages)
    for (_, before, blocks), (index, role, _), (_, after, _) in zip(
        all_turns, all_turns[1:], [*all_turns[2:], (0, "assistant", [])], strict=False
    ):
        if role != "system":
            continue
        last = blocks[-1] if blocks else None
        is_paused = before == "assistant" and isinstance(last, Opaque) and last.block["type"] != "server_tool_use"
        where = f"messages.{index}: a `system` message"
        _require(before == "user" or is_paused, f"{where} must follow a `user` message or a server tool's result")
        _require(after == "assistant", f"{where} must precede an `assistant` message or end the conversation")


def _check_fallbacks(request: MessagesRequest) -> None:
    """Check that nothing is sent back that must not be, of a model that refused to go on.

    Source: page `build-with-claude/refusals-and-fallback` of the API's documents, *Continuing the conversation*, as
    anthropic 2.11.0 refers to it in types/beta/beta_fallback_block_param.py. The API's own words are not known.
    """
    for index, message in enumerate(request.messages):
        hops = [at for at, block in enumerate(message.content) if isinstance(block, Opaque) and is_hop(block)]
        before = message.content[: hops[-1]] if hops else []
        left = any(isinstance(block, ToolUse | Thinking | RedactedThinking) for block in before)
        _require(not left, f"messages.{index}: `tool_use` and `thinking` blocks before a `fallback` must be left out")


def is_hop(block: Opaque) -> bool:
    """Return True for the place where another model took over."""
    return bool(block.block["type"] == "fallback")


def _check_media(request: MessagesRequest) -> None:
    """Check the images and documents.

    Source: pages `build-with-claude/vision` and `pdf-support` of the API's documents, November 2026. The API's words
    are of https://github.com/anthropics/claude-code/issues/4778 and /49537; those about documents are not known.
    """
    found: list[tuple[str, Image | Document]] = []
    for index, message in enumerate(request.messages):
        for place, block in enumerate(message.content):
            where = f"messages.{index}.content.{place}"
            inner = enumerate(block.content) if isinstance(block, ToolResult) else ()
            parts = [(where, block), *((f"{where}.tool_result.content.{at}", part) for at, part in inner)]
            found += [(path, part) for path, part in parts if isinstance(part, Image | Document)]
    sizes = {
        f"{path}.image.source.base64.data": media.pixels(part.source.media_type, part.source.bytes)
        for path, part in found
        if isinstance(part, Image)
    }
    are_many = len(sizes) > media.MANY_IMAGES
    most, of_many = (media.MAX_PIXELS_OF_MANY, " for many-image requests") if are_many else (media.MAX_PIXELS, "")
    for path, size in sizes.items():
        _require(size, f"{path}: Could not process image")
        too_large = f"At least one of the image dimensions exceed max allowed size{of_many}: {most} pixels"
        _require(max(size or ()) <= most, f"{path}: {too_large}")
    for path, part in found:
        if isinstance(part, Document):
            why = media.refusal(part.source.media_type, part.source.bytes)
            _require(why is None, f"{path}.document.source.base64.data: {why}")


_MOST_DEFERRED = 10_000


def _check_deferred(request: MessagesRequest) -> None:
    """Check tools that are loaded on demand.

    Source: page `agents-and-tools/tool-use/tool-search-tool` of the API's documents, *Error handling*, *Prompt caching*
    and *Limits*, September 2026; the text about the cache is of https://github.com/router-for-me/CLIProxyAPI/issues/4561.
    """
    deferred = [tool for tool in request.tools if tool.get("defer_loading")]
    some = len(deferred) < len(request.tools) or not deferred
    _require(some, "At least one tool must have defer_loading=false. All tools cannot be deferred.")
    _require(len(deferred) <= _MOST_DEFERRED, f"tools: at most {_MOST_DEFERRED} may have defer_loading=true")
    for tool in deferred:
        both = f"Tool '{tool['name']}' cannot have both defer_loading=true and cache_control set."
        _require("cache_control" not in tool, f"{both} Tools with defer_loading cannot use prompt caching.")
    names = {tool["name"] for tool in request.tools}
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    for name in (name for result in results for name in result.found):
        _require(name in names, f"Tool reference '{name}' not found in available tools")


def read_blocks(content: list[dict[str, Any]]) -> list[Block]:
    """Return blocks of the model as they are in a request that sends them back."""
    return convert([wire.wrap(block) for block in content], list[Block])


def _require(holds: object, complaint: str) -> None:
    if not holds:
        raise InvalidRequestError(complaint)


_MOST_MARKS = 4


def _check_contents(request: MessagesRequest) -> None:
    messages = request.messages
    _require(messages[0].role == "user", 'messages: first message must use the "user" role')
    goes_on = messages[-1].role != "assistant" or (
        messages[-1].content and isinstance(messages[-1].content[-1], Opaque)
    )
    _require(goes_on, "This model does not support assistant message prefill.")
    blocks = (*request.tools, *request.system, *(block for each in messages for block in each.content), request)
    found = [ttl for ttl in map(ttl_of, blocks) if ttl is not None]
    count = f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {len(found)}."
    _require(len(found) <= _MOST_MARKS, count)
    order = "blocks are processed in the following order: `tools`, `system`, `messages`."
    _require(
        # Sorted, those of an hour are first.
        found == sorted(found),
        f"a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. Note that {order}",
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


def _waiting_server_calls(blocks: list[Block]) -> list[str]:
    """Return the calls of the API's own tools that have no result in their turn."""
    raw = [block.block for block in blocks if isinstance(block, Opaque)]
    done = {block.get("tool_use_id") for block in raw}
    return [str(block.get("id")) for block in raw if block["type"] == "server_tool_use" and block.get("id") not in done]


def _check_server_results(messages: list[Message]) -> None:
    """Check that every result of the API's own tools has its call before it.

    The API's words are of https://github.com/anthropics/claude-code/issues/69828.
    """
    called: set[object] = set()
    for index, message in enumerate(messages):
        for place, block in enumerate(message.content):
            raw = block.block if isinstance(block, Opaque) else {}
            kind, ident = str(raw.get("type")), raw.get("tool_use_id")
            if kind.endswith("_tool_use"):
                called.add(raw.get("id"))
            _require(
                ident is None or ident in called,
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `{kind}` blocks: {ident}. Each "
                f"`{kind}` block must have a corresponding `server_tool_use` block before it.",
            )


def _check_pairs(messages: list[Message]) -> None:
    """Check that every call has its one result at the head of the next message, and every result its call before."""
    seen: set[str] = set()
    open_calls: list[str] = []
    waiting: list[str] = []
    before = 0
    all_turns = turns(messages)
    for index, _, blocks in all_turns:
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResult)]
        alone = not waiting or len(results) == len(blocks)
        _require(alone, f"messages.{index}: must contain nothing except the tool_result blocks: {waiting} waits.")
        leading = results if all(isinstance(block, ToolResult) for block in blocks[: len(results)]) else []
        missing = ", ".join(call for call in open_calls if call not in leading)
        late = "`tool_use` ids were found without `tool_result` blocks immediately after"
        _require(not missing, f"messages.{before}: {late}: {missing}.")
        for place, call in enumerate(results):
            where = f"messages.{index}.content.{place}"
            _require(call in open_calls, f"{where}: unexpected `tool_use_id` found in `tool_result` blocks: {call}.")
            _require(results.count(call) == 1, f"{where}: each tool_use must have a single result; {call} has more.")
        waiting = _waiting_server_calls(blocks)
        goes_on = blocks is all_turns[-1][2] or any(isinstance(block, ToolUse) for block in blocks)
        lacks = f"messages.{index}: `server_tool_use` ids were found without a result block: {waiting}."
        _require(goes_on or not waiting, lacks)
        open_calls = [block.id for block in blocks if isinstance(block, ToolUse)]
        unique = len(open_calls) == len(set(open_calls)) and not seen.intersection(open_calls)
        _require(unique, f"messages.{index}: `tool_use` ids must be unique")
        seen.update(open_calls)
        before = index
