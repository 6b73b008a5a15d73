"""The types of the API's own SDK, which judge what tests send to the offline model, and what that answers.

They are newer than the OpenAPI document of `tests/openapi.py`, but say nothing of limits and patterns, and the classes
of answers allow fields that they do not name. Of a union, an object is judged by the member that its `type` names.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import NoExtraItems, get_type_hints, is_typeddict

_MOST_ERRORS = 3

_OTHER_ERROR = "request_too_large"
"""A type of error that the SDK does not name: page `errors` of the API's documents has it for HTTP 413."""


def load() -> None:
    """Make all that `misfits` judges by."""
    _types(beta=False)
    _types(beta=True)
    _answers()


def misfits(name: str, value: Any) -> Iterator[str]:  # noqa: ANN401  any JSON
    """Yield what of a value does not fit, with its place. `name` is that of its schema in the OpenAPI document."""
    whole, _, part = name.partition("/properties/")
    if not whole.endswith("CreateMessageParams"):
        if name != "ErrorResponse" or value.get("error", {}).get("type") != _OTHER_ERROR:
            yield from _misfits(_answers()[name], value, "")
        return
    types = _types(beta=whole.startswith("Beta"))
    if part == "messages/items":
        yield from _judge_message(types, value)
    elif part == "tools/items":
        yield from _judge_by_type(types["tool"], value, "")
    elif isinstance(value, dict):
        # pydantic takes a text for an iterable before it looks at the other member of the union.
        value = {k: v for k, v in value.items() if (k, v) != ("fallbacks", "default")}
        yield from _misfits(types["streaming" if value.get("stream") else "request"], value, "")


def _judge_message(types: Mapping[str, Any], message: Any) -> Iterator[str]:  # noqa: ANN401  any JSON
    blocks = message.get("content") if isinstance(message, dict) else None
    if not isinstance(blocks, list):
        yield from _misfits(types["message"], message, "")
        return
    yield from _misfits(types["message"], {**message, "content": "x"}, "")
    known = types["system"] if message.get("role") == "system" else types["block"]
    for place, block in enumerate(blocks):
        yield from _judge_by_type(known, block, f"content.{place}")


def _judge_by_type(known: Mapping[str, TypeAdapter[Any]], part: Any, where: str) -> Iterator[str]:  # noqa: ANN401
    kind = str(part.get("type") or "custom") if isinstance(part, dict) else ""
    if kind not in known:
        yield f"{where}: the SDK knows no type {kind!r}"
    else:
        yield from _misfits(known[kind], part, where)


def _misfits(judge: TypeAdapter[Any], value: Any, where: str) -> Iterator[str]:  # noqa: ANN401  any JSON
    try:
        _consume(judge.validate_python(value))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # Of a union, those are told that are about the member which the value says to be.
        others = [each["loc"][:-1] for each in errors if each["loc"][-1:] in (("type",), ("role",))]
        told = [each for each in errors if each["loc"][:-1] not in others]
        for each in (told or errors)[:_MOST_ERRORS]:
            path = ".".join(map(str, (*filter(None, [where]), *each["loc"])))
            yield f"{path}: {each['msg'][:200]}"


def _consume(value: object) -> None:
    """Walk through what was validated: pydantic judges the items of an iterable when they are read."""
    if isinstance(value, Mapping):
        for each in value.values():
            _consume(each)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for each in value:
            _consume(each)


@cache
def _types(*, beta: bool) -> dict[str, Any]:
    # Imported here because most test runners start no server.
    import anthropic.types as plain
    from anthropic.types import beta as newer
    from anthropic.types import message_create_params
    from anthropic.types.beta import beta_system_message_param
    from anthropic.types.beta import message_create_params as newer_params

    _forbid_more()
    params: Any = newer_params if beta else message_create_params
    message: Any = newer.BetaMessageParam if beta else plain.MessageParam
    block, tool, system = (
        (newer.BetaContentBlockParam, newer.BetaToolUnionParam, beta_system_message_param.ContentBlock)
        if beta
        else (plain.ContentBlockParam, plain.ToolUnionParam, plain.TextBlockParam)
    )
    return {
        "request": TypeAdapter(params.MessageCreateParamsNonStreaming),
        "streaming": TypeAdapter(params.MessageCreateParamsStreaming), "message": TypeAdapter(message),
        "block": _by_type(block), "tool": _by_type(tool), "system": _by_type(system),
    }  # fmt: skip


@cache
def _answers() -> dict[str, TypeAdapter[Any]]:
    from anthropic.types import ErrorResponse, Message, ModelInfo, RawMessageStreamEvent
    from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent

    return {
        "Message": TypeAdapter(Message), "ModelInfo": TypeAdapter(ModelInfo),
        "BetaMessage": TypeAdapter(BetaMessage), "BetaMessageStreamEvent": TypeAdapter(BetaRawMessageStreamEvent),
        "ErrorResponse": TypeAdapter(ErrorResponse), "MessageStreamEvent": TypeAdapter(RawMessageStreamEvent),
    }  # fmt: skip


def _forbid_more() -> None:
    """Let no object of a request have fields that the SDK's types do not name, unless they say so themselves."""
    modules = [module for name, module in sys.modules.items() if name.startswith("anthropic.types")]
    for each in {each for module in modules for each in vars(module).values() if is_typeddict(each)}:
        takes_more = getattr(each, "__extra_items__", NoExtraItems) is not NoExtraItems
        if not hasattr(each, "__pydantic_config__"):
            # Most are never needed: a run of tests sends a few kinds of blocks.
            each.__pydantic_config__ = ConfigDict(extra="allow" if takes_more else "forbid", defer_build=True)


def _by_type(union: Any) -> dict[str, TypeAdapter[Any]]:  # noqa: ANN401  a type
    """Return the judge for each `type` that an object of a union may have; a tool of ours need not say."""
    found: dict[str, TypeAdapter[Any]] = {}
    # Beside them are the classes of answers, which may be handed to the SDK as they are.
    for each in filter(is_typeddict, get_args(union) or (union,)):
        hint = get_type_hints(each)["type"]
        for kind in _literals(hint):
            found[kind] = TypeAdapter(each)
    return found


def _literals(hint: Any) -> Iterator[str]:  # noqa: ANN401  a type
    for each in get_args(hint):
        if isinstance(each, str):
            yield each
        else:
            yield from _literals(each)
