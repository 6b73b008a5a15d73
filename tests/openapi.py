"""The API's own description of itself, which judges what tests send to the offline model, and what that answers.

It is the OpenAPI document that `llm-comply` ships. Beside it the SDK's types judge (`tests/sdk_types.py`). A misfit
fails the test during which it was found; a test that wants one is marked `misfits`, with the reason.
"""

import json
import marshal
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from crewboard.offline.http import Client, Incoming
from tests import sdk_types

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

NEWER = (
    ("CreateMessageParams", "diagnostics", "types/message_create_params.py"),
    ("WebFetchTool_20260318", "url_sources", "types/web_fetch_tool_20260318_param.py"),
    ("BetaWebFetchTool_20260318", "url_sources", "types/beta/beta_web_fetch_tool_20260318_param.py"),
    ("BetaThinkingConfigAdaptive", "block_binding", "types/beta/beta_thinking_config_adaptive_param.py"),
)
"""Fields of requests that are newer than the document, of September 2026: its name of the object, the field, and where
anthropic 2.11.0 has it."""

NEWER_TYPES = (
    ("ThinkingConfigParam", "between_tools", "anthropic 2.11.0, types/thinking_config_between_tools_param.py"),
    ("BetaThinkingConfigParam", "between_tools", "the same, types/beta/beta_thinking_config_between_tools_param.py"),
    ("ErrorResponse/properties/error", "request_too_large", "page `errors` of the API's documents, HTTP 413"),
)
"""Types that the document lacks: its name of what may be of that type, the type, and the source."""

misfits: list[str] = []
"""The misfits that were found and not told yet."""

judges = False
"""Tests are judged, measurements are not."""


def load() -> None:
    """Make what judges, once. It takes two seconds of processor time, which no client should wait for."""
    _components()
    sdk_types.load()


@cache
def _components() -> dict[str, Any]:
    whole = json.loads(files("llm_comply").joinpath("specs/anthropic.json").read_bytes())
    components: dict[str, Any] = whole["components"]
    schemas = components["schemas"]
    for name, field, _ in NEWER:
        known = schemas[name]["properties"]
        assert field not in known, f"the document has {field} of {name} now: remove it from NEWER"
        known[field] = {}
    for path, kind, _ in NEWER_TYPES:
        union = schemas
        for step in path.split("/"):
            union = union[step]
        assert kind not in union["discriminator"]["mapping"], f"the document has {kind} now: remove it from NEWER_TYPES"
        schemas[kind] = {"properties": {"type": {"const": kind}}}
        union["oneOf"].append({"$ref": f"#/components/schemas/{kind}"})
    return components


@cache
def _validator(name: str) -> "Validator":
    # Imported here because most test runners start no server.
    from jsonschema import ValidationError
    from jsonschema.validators import Draft202012Validator, extend

    components = _components()

    def one_of(validator: Any, options: list[Any], value: Any, part: Any) -> Iterator[Any]:  # noqa: ANN401
        """Judge by the one schema that the value's type names: it is found at once, and the errors are about it."""
        kind = value.get("type") if isinstance(value, Mapping) else None
        schemas = [components["schemas"][each["$ref"].rpartition("/")[2]] for each in options]
        known = [option for option, schema in zip(options, schemas, strict=True) if kind in _types_of(schema)]
        if known:
            yield from validator.descend(value, known[0])
        else:
            yield ValidationError(f"the type {kind!r} is not known")

    whole = {"$ref": f"#/components/schemas/{name}", "components": components}
    return extend(Draft202012Validator, {"oneOf": one_of})(whole)


def _types_of(schema: dict[str, Any]) -> set[str | None]:
    """Return what a block or a tool may call its own type; None if it need not say."""
    found = schema["properties"]["type"]
    return {each.get("const") for each in found.get("anyOf", [found])}


def _judge(name: str, value: object, where: str) -> None:
    for error in _validator(name).iter_errors(value):
        deepest = error
        while deepest.context:
            deepest = max(deepest.context, key=lambda each: len(each.absolute_path))
        path = ".".join(map(str, deepest.absolute_path))
        misfits.append(f"{where}: {path}: {deepest.message[:300]}")
    misfits.extend(f"{where}: by the SDK: {each}" for each in sdk_types.misfits(name, value))


_fitting: set[tuple[str, int]] = set()
"""The values that were judged before: conversations and tools come again and again."""


def _judge_once(name: str, value: Any, where: str) -> None:  # noqa: ANN401  any JSON
    key = name, hash(marshal.dumps(value, 2))
    if key not in _fitting:
        before = len(misfits)
        _judge(name, value, where)
        if len(misfits) == before:
            _fitting.add(key)


def judge_request(incoming: Incoming) -> None:
    """Judge the body of a request, where it has one."""
    if incoming.method != "POST":
        return
    try:
        body = json.loads(incoming.body)
    except ValueError as error:
        misfits.append(f"request: {error}")
        return
    _judge_dialect(body)
    whole = "BetaCreateMessageParams" if "anthropic-beta" in incoming.headers else "CreateMessageParams"
    for key in ("messages", "tools"):
        if isinstance(body, dict) and isinstance(body.get(key), list):
            for place, part in enumerate(body[key]):
                _judge_once(f"{whole}/properties/{key}/items", part, f"request: {key}.{place}")
            body = {**body, key: []}
    _judge(whole, body, "request")


_UNIONS = frozenset({"anyOf", "allOf", "oneOf"})


def _judge_dialect(body: Any) -> None:  # noqa: ANN401  any JSON
    """Judge the schemas of tools, which the API refuses in another dialect than draft 2020-12, whatever they say.

    Its words are of https://github.com/anthropics/claude-code/issues/586 and
    https://github.com/Hmbown/Codewhale/issues/4329.
    """
    tools = body.get("tools") if isinstance(body, dict) else None
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        schema = tool.get("input_schema") if isinstance(tool, dict) else None
        key = "dialect", hash(marshal.dumps(schema, 2))
        if not isinstance(schema, dict) or key in _fitting:
            continue
        where = f"request: tools.{place}: input_schema"
        found = [f"{where}: {error.message[:300]}" for error in _dialect().iter_errors(schema)]
        if unions := _UNIONS & schema.keys():
            found.append(f"{where}: does not support {', '.join(sorted(unions))} at the top level")
        misfits.extend(found)
        if not found:
            _fitting.add(key)


@cache
def _dialect() -> "Validator":
    from jsonschema import Draft202012Validator

    return Draft202012Validator(Draft202012Validator.META_SCHEMA)


class JudgedClient(Client):
    """The other end of a connection, as `client` is: what it is sent is judged first."""

    def __init__(self, client: Client, incoming: Incoming) -> None:
        self.__dict__ = client.__dict__
        self._path = incoming.path
        self._form = "Beta" if "anthropic-beta" in incoming.headers else ""

    async def answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        name = "ErrorResponse" if status >= 400 else "ModelInfo" if "/models/" in self._path else f"{self._form}Message"
        _judge(name, body, f"answer {status}")
        await super().answer(status, body, headers)

    def write(self, data: bytes) -> None:
        event = data.decode().partition("\ndata: ")[2]
        try:
            _judge_event(json.loads(event), f"{self._form}MessageStreamEvent")
        except ValueError:
            misfits.append(f"event: no JSON: {event[:300]}")
        super().write(data)


def _judge_event(event: Any, name: str) -> None:  # noqa: ANN401  any JSON
    match event:
        case {"type": "ping"}:
            # Not in the document.
            pass
        case {"type": "error"}:
            _judge("ErrorResponse", event, "event")
        case {"type": "content_block_delta", "delta": dict() as delta}:
            # Of most of a reply: pieces of text, which fit or not whatever they say.
            texts = {key: "" for key, value in delta.items() if isinstance(value, str) and key != "type"}
            _judge_once(name, {**event, "delta": {**delta, **texts}}, "event")
        case _:
            _judge(name, event, "event")
