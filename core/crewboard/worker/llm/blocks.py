"""Blocks of the Messages API: breakpoints of the prompt cache in a request, and the reply as it streams in.

The API sends what its documents say. Other servers leave out usage, ids or inputs, send numbers as null, give an id
twice, end a call with the stop reason of a text, or answer a streaming request with one JSON text. This module corrects
all that, so that a journalled reply can be run, shown and sent back.
"""

import codecs
import json
import math
import re
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import httpx2
from anthropic import AsyncStream

from crewboard.records.agents import Tokens
from crewboard.records.base import check_depth
from crewboard.records.events import INCOMPLETE, NOT_RUN, CacheMiss
from crewboard.store.files import MAX_LINE

MAX_INPUT = 1024 * 1024
"""The most bytes of the input of one tool call: more than the longest reply can hold."""

_MOST_TOKENS = 10**9
"""Tokens of one reply above which a server's count is taken for nonsense, and so for 0."""

_MOST_QUOTED = 200
"""Characters of a server's text that an error quotes, as of a call's input that is not JSON."""

_OTHER_NAMES = {
    "stop": "end_turn", "eos": "end_turn", "length": "max_tokens", "max_output_tokens": "max_tokens",
    "model_length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal", "safety": "refusal",
}  # fmt: skip
"""The API's stop reasons for those that gateways pass on in the words of the API behind them, some in capitals."""

_KINDS_OF_PIECES = {"text": "text", "thinking": "thinking", "partial_json": "input_json"}
"""The type of a piece of a block that does not name its type, by the field that it has."""

_KEPT_OF_MESSAGE = ("id", "model", "stop_reason", "stop_details", "input_transformations", "diagnostics")
"""The fields of the whole message that are kept, apart from its blocks and its usage."""

_TOOK_OVER = "fallback_message"
"""The type of the entry in `usage.iterations` of a model that took over from one that refused."""

_MOST_BESIDE_CALL = 200
"""Characters that may stand before a call written as text; with more, the text is an answer that quotes a call."""

_THOUGHT = re.compile(r"\A.*?</think>", re.DOTALL)
_WRITTEN_CALL = re.compile(
    r"<(tool_call|function_call)>(?P<tagged>.*?)(?:</\1>|\Z)"
    r"|(?P<function><function=.*?)(?:</function>|\Z)"
    r"|\[TOOL_CALLS\](?P<listed>.*)"
    r"|```(?:json|tool_call|tool_code)?\s*(?P<fenced>[{\[].*?)(?:```|\Z)"
    r"|\A\s*(?P<bare>[{\[].*)",
    re.DOTALL,
)
"""A call in the form in which a model writes it, passed on as text by a server that has no parser for it: the forms of
Qwen and GLM, of Llama, of Mistral, and of models that write JSON alone."""
_WRITTEN_NAME = re.compile(r"\A\s*([\w.-]+)|<function=([\w.-]+)|\"name\"\s*:\s*\"([\w.-]+)\"")
_INPUTS = frozenset({"arguments", "parameters", "input"})
_PARTS_OF_CALL = _INPUTS | {"name", "type", "id", "function"}
"""The only keys that JSON of a call has, `name` and one of `_INPUTS` among them. A tool's definition has others too."""

_TEXTS = ("text", "thinking")
"""Types of blocks that must have a text, in the field that is called like the type."""


class InputError(Exception):
    """A tool input that cannot be stored; the text says why."""


class BrokenInputError(InputError):
    """A tool input that is not JSON, or lacks a field that its tool requires: another attempt may give a whole one."""


class ServerError(Exception):
    """A server sent an error in place of a reply, or in the middle of one. `body` is the error as it came."""

    def __init__(self, body: object) -> None:
        super().__init__(str(body))
        self.body = body


class PageError(Exception):
    """A server sent a web page in place of a reply."""


class Finished(NamedTuple):
    """A whole reply in the form that is journalled.

    `refused` says, by id of the call, why an input cannot be kept. `malformed` is one of these reasons if the model may
    give a whole input in another attempt; else None.
    """

    content: list[dict[str, Any]]
    stop_reason: str
    refused: dict[str, str]
    malformed: str | None


@dataclass
class ReplyStream:
    """One reply, as it is read from the response of the server."""

    response: httpx2.Response
    blocks: list[dict[str, Any]] = field(default_factory=list)
    """The blocks so far, without the inputs of calls that came in pieces."""
    inputs: dict[int, str] = field(default_factory=dict)
    """The inputs that came in pieces, as JSON, by the place of the block in `blocks`. A long one is cut soon after
    `MAX_INPUT` characters, and is refused later."""
    said: dict[str, Any] = field(default_factory=dict)
    """The fields in `_KEPT_OF_MESSAGE` that came, each with its newest value."""
    usage: dict[str, Any] = field(default_factory=dict)
    """The newest value of each field of the usage, which is a total so far."""
    ended: bool = False
    """True if the server said that the message is whole."""
    stopped: bool = False
    """True if the server gave the stop reason, which comes after all content."""
    _places: dict[Any, int] = field(default_factory=dict)
    """The place in `blocks` of the newest block with each index that the server gave."""
    _repeated: dict[int, str] = field(default_factory=dict)
    """The newest piece of an input, by the place of its block, as long as each piece began with the one before it."""

    async def pieces(self) -> AsyncIterator[tuple[str, str]]:
        """Read the reply, and yield the type and the text of each piece.

        The type is `text`, `thinking`, `ping`, or empty for anything else, which has no text here.

        Raises:
            ValueError: The response is not a reply.
            ServerError: The server sent an error.
            PageError: The server sent a web page.
        """
        try:
            async for event in _events(self.response):
                yield self._take(event)
        except (ServerError, httpx2.HTTPError):
            # What fails after the end of the reply is not the reply.
            if not (self.ended or self.stopped):
                raise
        except (AttributeError, LookupError, TypeError, RecursionError, ArithmeticError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def _take(self, event: dict[str, Any]) -> tuple[str, str]:
        # Some servers count their tokens after the end.
        if self.ended and event.get("type") != "message_delta":
            return "", ""
        match event.get("type"):
            case "message_start":
                self._note(_object(event.get("message")))
            case "message_delta":
                delta = _object(event.get("delta"))
                self.stopped = self.stopped or bool(delta.get("stop_reason"))
                usage = event.get("usage") or delta.get("usage")
                # Of the model that took over, in place of those at the start.
                changes = event.get("input_transformations")
                self._note({**delta, "usage": usage, "input_transformations": changes})
            case "message_stop":
                self.ended = True
            case "ping":
                return "ping", ""
            case "content_block_start" if isinstance(block := event.get("content_block"), dict):
                self._begin(event.get("index"), block)
            case "content_block_delta":
                return self._add(event.get("index"), _object(event.get("delta")))
            case "content_block_stop":
                place = self._places.get(event.get("index"), len(self.blocks) - 1)
                if place >= 0 and _is_call(self.blocks[place]) and not self.inputs.get(place):
                    # The input of a call came nowhere else.
                    given = self.blocks[place].get("input") or _object(event.get("content_block")).get("input")
                    self.blocks[place]["input"] = given
            case "message":
                self._note(event)
                content = event.get("content")
                for each in [content] if isinstance(content, str | dict) else content or ():
                    self._begin(None, {"type": "text", "text": each} if isinstance(each, str) else _object(each))
                self.ended = True
                return "text", "".join(str(each.get("text") or "") for each in self.blocks)
        return "", ""

    def _note(self, message: Mapping[str, Any]) -> None:
        self.usage |= {name: value for name, value in _object(message.get("usage")).items() if value is not None}
        for name in _KEPT_OF_MESSAGE:
            if message.get(name) is not None:
                self.said[name] = message[name]

    def _begin(self, index: object, block: dict[str, Any]) -> int:
        # Some servers give all calls of a reply one index, one after the other.
        self._places[index] = len(self.blocks)
        self.blocks.append(dict(block))
        return len(self.blocks) - 1

    def _add(self, index: object, piece: dict[str, Any]) -> tuple[str, str]:
        """Add a piece to its block, which is the newest one if there is no index; return its type and its text.

        Raises:
            ValueError: The piece is part of an input, and there is no call.
        """
        given = piece.get("type") or next((kind for name, kind in _KINDS_OF_PIECES.items() if name in piece), "")
        kind = str(given).removesuffix("_delta")
        place = self._places.get(index) if index is not None else len(self.blocks) - 1 if self.blocks else None
        if kind == "input_json" and (place is None or not _is_call(self.blocks[place])):
            # Some gateways count calls from 0, and blocks too.
            place = next((at for at in reversed(range(len(self.blocks))) if _is_call(self.blocks[at])), None)
            if place is None:
                raise ValueError("an input of a call that did not begin")
        if kind in ("", "text") and isinstance(said := piece.get("content"), str):
            # Some servers call the text of a piece so, some send both.
            kind, piece = "text", {"type": "text_delta", "text": piece.get("text") or said}
        if place is None and kind not in _TEXTS:
            return "", ""
        place = self._begin(index, {"type": kind}) if place is None else place
        if kind == "input_json":
            more = piece.get("partial_json")
            more = more if isinstance(more, str) else "" if more is None else json.dumps(more)
            so_far = self.inputs.get(place, "")
            if more:
                repeats = not so_far or (place in self._repeated and more.startswith(self._repeated[place]))
                if repeats and len(more) <= MAX_INPUT:
                    self._repeated[place] = more
                else:
                    self._repeated.pop(place, None)
                if len(so_far) <= MAX_INPUT:
                    self.inputs[place] = so_far + more
            return "", ""
        _add_piece(self.blocks[place], piece)
        return (kind, str(piece.get(kind) or "")) if kind in _TEXTS else ("", "")

    @property
    def used(self) -> Tokens:
        """Return the tokens that the server has counted so far; 0 for each kind without a valid count.

        If another model took over, only its tokens are counted; `declined` has the others.
        """
        served = [each for each in self._attempts if each.get("type") == _TOOK_OVER]
        return _tokens_in({**self.usage, **(served[-1] if served else {})})

    @property
    def model(self) -> str:
        """Return the model that replied; an empty text if the server does not say."""
        said = self.said.get("model")
        return said if isinstance(said, str) else ""

    @property
    def dropped_thinking(self) -> bool:
        """Return True if the API ignored thinking in the request, because the text before it had changed."""
        changes = self.said.get("input_transformations")
        dropped = ("thinking_dropped", "prefix_binding_mismatch")
        return isinstance(changes, list) and any(
            (each.get("type"), each.get("reason")) == dropped for each in map(_object, changes)
        )

    @property
    def cache_miss(self) -> CacheMiss | None:
        """Return why the prompt cache was not used, as the API says; None if it was, or if the API does not say."""
        why = _object(_object(self.said.get("diagnostics")).get("cache_miss_reason"))
        kind, missed = why.get("type"), why.get("cache_missed_input_tokens")
        if not isinstance(kind, str):
            return None
        return CacheMiss(reason=kind, tokens=missed if isinstance(missed, int) else None)

    @property
    def is_in_us(self) -> bool:
        """Return True if the reply was made in the US, as the API says, which costs more."""
        return self.usage.get("inference_geo") == "us"

    @property
    def declined(self) -> list[tuple[str, Tokens]]:
        """Return the models that began the reply and refused to go on, with their tokens.

        The list is empty if no other model took over. Models without output are left out: the API does not bill them.
        """
        if not any(each.get("type") == _TOOK_OVER for each in self._attempts):
            return []
        found = [
            (str(each.get("model") or ""), _tokens_in(each)) for each in self._attempts if each["type"] == "message"
        ]
        return [(model, used) for model, used in found if used.output]

    @property
    def _attempts(self) -> list[dict[str, Any]]:
        attempts = self.usage.get("iterations")
        return [each for each in map(_object, attempts) if each.get("type")] if isinstance(attempts, list) else []

    @property
    def _stop_reason(self) -> str | None:
        """Return the stop reason in the API's words; None if the server gave none and did not say that it is whole."""
        stop = self.said.get("stop_reason")
        if isinstance(stop, str) and stop:
            return _OTHER_NAMES.get(stop.lower(), stop.lower())
        return "end_turn" if self.ended else None

    def finish(self, tools: list[dict[str, Any]], used_ids: Collection[str]) -> Finished | None:
        """Return the reply in the form that is journalled; None if it ended before it was whole.

        `tools` are those of the request, `used_ids` the ids of calls that the conversation has already. A call gets a
        new id if it has none, or has one of these ids or that of another call of this reply.
        """
        if (stop := self._stop_reason) is None:
            return None
        content: list[dict[str, Any]] = []
        failed: dict[str, InputError] = {}
        ids = set(used_ids)
        for place, raw in enumerate(self.blocks):
            if not isinstance(raw.get("type"), str):
                continue
            block, kind = dict(raw), raw["type"]
            if kind in _TEXTS and not isinstance(raw.get(kind), str):
                is_elsewhere = kind == "text" and isinstance(raw.get("content"), str)
                block[kind] = block.pop("content") if is_elsewhere else ""
            # The API does not accept back halves of surrogate pairs.
            block = json.loads(json.dumps(block, ensure_ascii=False).encode("utf-8", "replace"))
            content.append(block)
            if (given := self._input(place, raw)) is None:
                continue
            if block["type"] == "tool_use":
                if not isinstance(block.get("name"), str) or not block["name"]:
                    block["name"] = "unnamed"
                if not isinstance(block.get("id"), str) or not block["id"] or block["id"] in ids:
                    block["id"] = f"toolu_{uuid.uuid4().hex}"
                ids.add(block["id"])
            block["input"] = {}
            try:
                block["input"] = read_input(given)
                # A reply that breaks off in a call may be said to be whole.
                if stop != "tool_use":
                    schema = next(
                        (_object(tool.get("input_schema")) for tool in tools if tool.get("name") == block["name"]), {}
                    )
                    if lacking := [name for name in schema.get("required", ()) if name not in block["input"]]:
                        raise BrokenInputError(f"its input lacks {', '.join(lacking)}")
            except InputError as error:
                failed[str(block.get("id"))] = error
        broken = next((str(error) for error in failed.values() if isinstance(error, BrokenInputError)), None)
        if broken and stop not in ("tool_use", *NOT_RUN):
            stop = INCOMPLETE
        refused = {ident: str(error) for ident, error in failed.items()}
        return Finished(without_declined(content), stop, refused, broken if stop == "tool_use" else None)

    def _input(self, place: int, block: dict[str, Any]) -> str | None:
        """Return the input of a call as JSON, however the server sent it; None if the block has none and needs none."""
        if (came := self.inputs.get(place)) and (newest := self._repeated.get(place)) and not _is_json(came):
            # Some servers send all that they have so far with each piece.
            return newest
        if came or block["type"] != "tool_use":
            return came or None
        given = block.get("input")
        return given if isinstance(given, str) else json.dumps({} if given is None else given)


def without_declined(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a reply without the calls and the thinking before a `fallback`, of a model that then refused to go on.

    The API takes neither of them back, and the calls must not be run: page `refusals-and-fallback` of its documents,
    *Continuing the conversation*. Text before it stays, and so do calls of the API's own tools that have a result.
    """
    last = max((at for at, block in enumerate(content) if block["type"] == "fallback"), default=0)
    done = {block.get("tool_use_id") for block in content[:last]}
    called = {block.get("id") for block in content[:last] if block["type"] == "server_tool_use"} & done
    kept = [
        block
        for block in content[:last]
        if block["type"] in ("text", "fallback") or called & {block.get("id"), block.get("tool_use_id")} - {None}
    ]
    return [*kept, *content[last:]]


def _tokens_in(usage: Mapping[str, Any]) -> Tokens:
    on_the_web = _object(usage.get("server_tool_use"))
    # OpenAI's names, among whose tokens of the prompt are those that the cache had.
    asked = _count(usage.get("prompt_tokens"))
    read = min(_count(_object(usage.get("prompt_tokens_details")).get("cached_tokens")), asked)
    written = _count(usage.get("cache_creation_input_tokens"))
    an_hour = _count(_object(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return Tokens(
        input=_count(usage.get("input_tokens", asked - read)),
        output=_count(usage.get("output_tokens", usage.get("completion_tokens"))),
        cache_read=_count(usage.get("cache_read_input_tokens", read)),
        cache_write=written,
        cache_write_1h=min(an_hour, written),
        web_searches=_count(on_the_web.get("web_search_requests")),
        web_fetches=_count(on_the_web.get("web_fetch_requests")),
    )


async def _events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a reply, each a JSON object.

    A message that did not come as a stream is one event of the type `message`, after an empty one for each part that
    was read.

    Raises:
        ValueError: The response is neither a stream of events nor a message, or is too long.
        ServerError: The server sent an error.
        PageError: The server sent a web page.
    """
    chunks, head = response.aiter_bytes(), b""
    async for chunk in chunks:
        head += chunk
        if head.strip():
            head = head.removeprefix(codecs.BOM_UTF8)
            break
    if head.lstrip()[:1] == b"{":
        async for chunk in chunks:
            head += chunk
            if len(head) > MAX_LINE:
                raise ValueError(f"a reply of more than {MAX_LINE} bytes cannot be stored")
            yield {}
        first, _, rest = head.strip().partition(b"\n")
        if rest and _is_json(first):
            raise ValueError(
                f"the server sent JSON lines (ndjson), and not events: {_quote(first.decode('utf-8', 'replace'))}"
            )
        body = _parse(head)
        if "choices" in body:
            raise ValueError(f"the server sent a reply of another API, such as OpenAI's: {_quote(json.dumps(body))}")
        if "content" not in body:
            raise ServerError(body)
        yield {**body, "type": "message"}
        return
    # The header is not asked: some gateways call each answer `text/html`.
    if head.lstrip()[:1] == b"<":
        raise PageError
    is_reply = False
    # The SDK's decoder reads nothing else of a response.
    async for sent in AsyncStream.raw_events(cast("httpx2.Response", _Body(head, chunks))):
        if (event := _event_of(sent.event, sent.data)) is not None:
            is_reply = is_reply or event["type"] != "ping"
            yield event
    if not is_reply:
        kind = response.headers.get("content-type", "").partition(";")[0] or "a text"
        began = _quote(head.decode("utf-8", "replace").strip())
        raise ValueError(f"the server sent {kind}, and no reply{f': {began}' if began else ''}")


def _event_of(name: str | None, data: str) -> dict[str, Any] | None:
    """Return an event by its name and its data; None for one that is no part of a reply and no ping.

    Raises:
        ServerError: The event is an error.
        ValueError: The data are not JSON.
    """
    if name == "ping":
        return {"type": "ping"}
    if not data or data.strip() == "[DONE]":
        return None
    if name == "error":
        raise ServerError(json.loads(data) if _is_json(data) else data)
    event = {"type": name, **_parse(data)}
    kind = event["type"]
    if kind == "error" or (kind is None and ("error" in event or "code" in event)):
        raise ServerError(event)
    return event if kind is not None else None


@dataclass
class _Body:
    """The body of a response of which the beginning, `head`, has been read, with the interface that the SDK reads."""

    head: bytes
    rest: AsyncIterator[bytes]

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        yield self.head
        async for chunk in self.rest:
            yield chunk


def _parse(data: str | bytes) -> dict[str, Any]:
    # NaN and Infinity are no JSON, and some servers send them.
    return _object(json.loads(data, parse_constant=lambda _: None))


def _is_json(data: str | bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _quote(text: str) -> str:
    """Return the beginning of a text, with anything replaced that cannot be stored as UTF-8."""
    return text[:_MOST_QUOTED].encode("utf-8", "replace").decode()


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int:
    """Return a value as a number of tokens; 0 if it cannot be one."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return 0
    return int(value) if 0 < value <= _MOST_TOKENS else 0


def _add_piece(block: dict[str, Any], piece: dict[str, Any]) -> None:
    """Add a piece to a block: texts and lists grow, other values and the signature are replaced.

    The estimate of its tokens is left out of a piece of thinking: the API sends it, but refuses it when it comes back.

    Raises:
        ValueError: The piece has no text where it must, or the text becomes too long to be stored.
    """
    if piece.get("type") == "citations_delta":
        piece = {"citations": [piece["citation"]]}
    elif piece.get("type") == "thinking_delta":
        piece = {"thinking": piece.get("thinking")}
    for name, value in piece.items():
        if name == "type" or (name in _TEXTS and value is None):
            continue
        if name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"a piece of {name} is no text")
        old: Any = block.get(name)
        if name in _TEXTS and len(old or "") > MAX_LINE:
            raise ValueError(f"a {name} of more than {MAX_LINE} characters cannot be stored")
        grows = type(value) is type(old) and isinstance(old, str | list) and name != "signature"
        block[name] = old + value if grows else value


def _is_call(block: dict[str, Any]) -> bool:
    return str(block.get("type")).endswith("tool_use")


def read_input(text: str) -> dict[str, Any]:
    """Return the input of a tool call from its JSON; an empty text is an empty object.

    Raises:
        BrokenInputError: The text is not JSON.
        InputError: The input cannot be stored, so the call must be refused.
    """
    if len(text) > MAX_INPUT:
        raise InputError(f"its input is longer than {MAX_INPUT} bytes")
    try:
        value = json.loads(text or "{}")
        # Some servers encode it twice.
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = json.loads(value)
    except RecursionError:
        raise InputError("its input is nested too deeply") from None
    except ValueError as error:
        raise BrokenInputError(f"its input is no JSON: {error}: {_quote(text)}") from None
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


def call_in_text(text: str, tools: list[dict[str, Any]]) -> str | None:
    """Return the name of the tool that a text calls first, if it is little else than calls of `tools`; else None."""
    said = _THOUGHT.sub("", text).strip()
    first = _WRITTEN_CALL.search(said)
    if first is None or first.start() > _MOST_BESIDE_CALL:
        return None
    calls = said[first.start() :]
    if _WRITTEN_CALL.sub("", calls).strip():
        return None
    offered = {tool["name"] for tool in tools}
    named = [_offered_in(found, offered) for found in _WRITTEN_CALL.finditer(calls)]
    return named[0] if all(named) else None


def _offered_in(call: re.Match[str], offered: set[str]) -> str | None:
    """Return the name of the tool in a call that a model wrote as text; None if it is none of those `offered`."""
    if (text := call["fenced"] or call["bare"]) is None:
        body = call["tagged"] or call["function"] or call["listed"] or ""
        names = ["".join(each.groups("")) for each in _WRITTEN_NAME.finditer(body)]
    else:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            return None
        listed = [_object(each) for each in (said if isinstance(said, list) else [said])]
        calls = [_object(each.get("function")) or each for each in listed]
        # Any other JSON names no tool.
        are_calls = all(
            isinstance(each.get("name"), str) and _INPUTS & each.keys() and each.keys() <= _PARTS_OF_CALL
            for each in calls
        )
        names = [each["name"] for each in calls] if are_calls else []
    return next((each for name in names if (each := name.removeprefix("functions.")) in offered), None)


_CACHED_BLOCKS = frozenset({"text", "image", "document", "tool_use", "tool_result"})
"""Types of blocks that may have a breakpoint of the prompt cache."""

CACHE_SECONDS = 300.0
"""Seconds that the prompt cache keeps an entry after its last use, unless a request asks for an hour."""


def with_breakpoints(
    system: str, tools: list[dict[str, Any]], messages: list[dict[str, Any]], *, an_hour: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """Return `tools`, `system` and `messages` of a request with breakpoints for the prompt cache, at most four.

    The cache keeps what is before them for five minutes after its last use, or for `an_hour`. All have the same time,
    because the API refuses one of an hour after one of five minutes.

    One is after the tools and one after the system prompt, for requests in which only what follows has changed. Two
    are in the conversation, after the newest turn and where the last request had its newest one: the API looks only
    20 blocks back for the latter, and the results of one reply may be more.
    """
    mark = {"cache_control": {"type": "ephemeral", **({"ttl": "1h"} if an_hour else {})}}
    marked = list(messages)
    users = [place for place, message in enumerate(messages) if message["role"] == "user"]
    # A turn that the API paused is the last one, and the model's. What the system says at the end is read again.
    newest = {*users[-2:], *([len(messages) - 1] if messages[-1]["role"] == "assistant" else [])}
    for place in sorted(newest)[-2:]:
        content = messages[place]["content"]
        last = max((at for at, block in enumerate(content) if block.get("type") in _CACHED_BLOCKS), default=None)
        if last is not None:
            blocks = [*content[:last], {**content[last], **mark}, *content[last + 1 :]]
            marked[place] = {**messages[place], "content": blocks}
    # The API refuses a breakpoint at a tool that it does not show yet.
    shown = max(at for at, tool in enumerate(tools) if not tool.get("defer_loading"))
    return {
        "tools": [*tools[:shown], {**tools[shown], **mark}, *tools[shown + 1 :]],
        "system": [{"type": "text", "text": system, **mark}],
        "messages": marked,
    }
