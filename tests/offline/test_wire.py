"""Requests that the API refuses are refused: by the offline model, with a sentence that helps, or by the document."""

import json
from base64 import b64encode
from typing import Any

import pytest
from msgspec import convert

from crewboard import web
from crewboard.offline.conversation import Conversation, Request, mail_in, read
from crewboard.offline.http import Incoming
from tests import openapi, sdk_types
from tests.api.rules import parse
from tests.api.wire import InvalidRequestError
from tests.pictures import PDF, png

Blocks = list[dict[str, Any]]


def text(words: str = "hello") -> dict[str, Any]:
    return {"type": "text", "text": words}


HOUR = {**text(), "cache_control": {"type": "ephemeral", "ttl": "1h"}}


def use(ident: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": ident, "name": "bash", "input": {}, **more}


def result(ident: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": ident, "content": "ok", **more}


def picture(data: bytes, kind: str = "image", media_type: str = "image/png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": media_type, "data": b64encode(data).decode()}
    return {"type": kind, "source": source}


def said(*turns: Any) -> dict[str, Any]:
    """Messages in turns that begin with the user."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": content} for n, content in enumerate(turns)]}


def body(**changes: Any) -> dict[str, Any]:
    whole = {"model": "claude-sonnet-5-5", "max_tokens": 100, **said("hello"), **changes}
    return {key: value for key, value in whole.items() if value is not None}


TOOL = {"name": "bash", "description": "runs", "input_schema": {"type": "object", "properties": {}}}

LATER = {**TOOL, "name": "later", "defer_loading": True}
FOUND = [{"type": "tool_reference", "tool_name": "later"}]

SEARCHED = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
WIDE = picture(png(2001, 9))
TOO_LARGE = ".image.source.base64.data: At least one of the image dimensions exceed max allowed size"

HOP = {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}

GOOD = {
    "a string": body(),
    "an instruction at the end": body(messages=[*said("a", "b", "c")["messages"], {"role": "system", "content": "d"}]),
    "two instructions": body(
        messages=[
            *said("do", [use()], [result()])["messages"],
            *[{"role": "system", "content": [text()]}] * 2,
            *said("x", "y", "z")["messages"][1:],
        ]
    ),
    "a tool on demand": body(tools=[TOOL, LATER], **said("do", [use()], [result(content=FOUND)])),
    "blocks": body(**said([text()])),
    "twenty wide images": body(**said([WIDE] * 20)),
    "roles in a row": body(messages=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]),
    "a call and its result": body(**said("do", [text(), use()], [result(), text("and now")])),
    "results in any order": body(**said("do", [use("a"), use("b")], [result("b"), result("a")])),
    "results in two messages of one role": body(
        messages=[
            *said("do", [use("a"), use("b")])["messages"],
            {"role": "user", "content": [result("a")]},
            {"role": "user", "content": [result("b"), text()]},
        ]
    ),
    "an empty result": body(**said("do", [use()], [result(content="")])),
    "a result without content": body(
        **said("do", [use()], [{key: value for key, value in result().items() if key != "content"}])
    ),
    "an error with words": body(**said("do", [use()], [result(is_error=True, content=[text("no")])])),
    "a system prompt in blocks": body(system=[{**text(), "cache_control": {"type": "ephemeral"}}]),
    "tools": body(tools=[TOOL, {**TOOL, "name": "read_file"}]),
    "an hour of the cache before five minutes": body(system=[HOUR], cache_control={"type": "ephemeral"}),
    "everything at once": body(cache_control={"type": "ephemeral"}, stream=True, tool_choice={"type": "auto"}),
    "tools of the web": body(tools=[*web.tools([]), TOOL]),
}

BAD = {
    "no model": (body(model=None), "model: Field required"),
    "no max_tokens": (body(max_tokens=None), "max_tokens: Field required"),
    "max_tokens as text": (body(max_tokens="10"), "max_tokens: Input should be a valid integer"),
    "no messages": (body(messages=None), "messages: Field required"),
    "empty messages": (body(messages=[]), "messages: at least one message is required"),
    "an assistant first": (body(messages=[{"role": "assistant", "content": "hi"}]), 'must use the "user" role'),
    "an assistant last": (body(**said("a", "b")), "does not support assistant message prefill"),
    "an unknown role": (body(messages=[{"role": "tool", "content": "hi"}]), "messages.0.role"),
    "empty content": (body(**said([])), "messages.0: all messages must have non-empty content"),
    "empty text": (body(**said("")), "text content blocks must be non-empty"),
    "blank text": (body(**said(" \n")), "must contain non-whitespace text"),
    "a blank answer in between": (body(**said("a", [text("")], "b")), "text content blocks must be non-empty"),
    "an empty system block": (body(system=[text("")]), "system: text content blocks must be non-empty"),
    "an unknown block": (body(**said([{"type": "poem"}])), "messages.0.content.0"),
    "text without text": (body(**said([{"type": "text"}])), "messages.0.content.0.text: Field required"),
    "a call without a result": (
        body(**said("do", [use()], "go on")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1",
    ),
    "a call at the end": (body(**said("do", [use()])), "prefill"),
    "one of two calls without a result": (body(**said("do", [use("a"), use("b")], [result("a")])), "after: b."),
    "a result that comes late": (body(**said("do", [use()], "wait", "ok", [result()])), "`tool_use` ids were found"),
    "text before the result": (body(**said("do", [use()], [text(), result()])), "`tool_use` ids were found"),
    "a result for nothing": (body(**said([result()])), "messages.0.content.0: unexpected `tool_use_id`"),
    "a result for another call": (
        body(**said("do", [use("a")], [result("a"), result("b")])),
        "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: b",
    ),
    "two results for one call": (body(**said("do", [use()], [result(), result()])), "must have a single result"),
    "a result of the assistant": (body(**said("a", [result()], "b")), "can only be in `user` messages"),
    "a call of the user": (body(**said([use()])), "can only be in `assistant` messages"),
    "an id used twice": (body(**said("a", [use()], [result()], [use()], [result()])), "ids must be unique"),
    "an error without words": (
        body(**said("do", [use()], [result(is_error=True, content="")])),
        "content cannot be empty if `is_error` is true",
    ),
    "an hour of the cache behind five minutes": (
        body(system=[HOUR], tools=[{**TOOL, "cache_control": {"type": "ephemeral"}}]),
        "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block",
    ),
    "an hour at the end of a request": (
        body(
            system=[{**text(), "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
            cache_control=HOUR["cache_control"],
        ),
        "must not come after",
    ),
    "a tool without a name": (body(tools=[{"input_schema": {}}]), "tools: each needs a name"),
    "an instruction behind the model": (
        body(messages=[*said("a", "b")["messages"], {"role": "system", "content": "c"}]),
        "messages.2: a `system` message must follow a `user` message",
    ),
    "an instruction before the user": (
        body(messages=[*said("a")["messages"], {"role": "system", "content": "b"}, *said("c")["messages"]]),
        "messages.1: a `system` message must precede an `assistant` message",
    ),
    "an instruction at the beginning": (
        body(messages=[{"role": "system", "content": "b"}, *said("c")["messages"]]),
        'must use the "user" role',
    ),
    "a call of a model that refused": (
        body(**said("do", [text(), use(), HOP, text()], "go on")),
        "messages.1: `tool_use` and `thinking` blocks before a `fallback` must be left out",
    ),
    "only tools on demand": (body(tools=[LATER]), "At least one tool must have defer_loading=false."),
    "a breakpoint at a tool on demand": (
        body(tools=[TOOL, {**LATER, "cache_control": {"type": "ephemeral"}}]),
        "Tool 'later' cannot have both defer_loading=true and cache_control set.",
    ),
    "a tool that is not there": (
        body(tools=[TOOL], **said("do", [use()], [result(content=FOUND)])),
        "Tool reference 'later' not found in available tools",
    ),
    "a tool twice": (body(tools=[TOOL, TOOL]), "Tool names must be unique"),
    "a broken image": (body(**said([picture(png()[:-12])])), "image.source.base64.data: Could not process image"),
    "an image that is too wide": (
        body(**said("do", [use()], [result(content=[picture(png(8001, 9))])])),
        f"messages.2.content.0.tool_result.content.0{TOO_LARGE}: 8000 pixels",
    ),
    "wide images among many": (
        body(**said([*[picture(png())] * 20, WIDE])),
        f"messages.0.content.20{TOO_LARGE} for many-image requests: 2000 pixels",
    ),
    "a document with a password": (
        body(**said([picture(PDF + b"/Encrypt 5 0 R", "document", "application/pdf")])),
        "messages.0.content.0.document.source.base64.data: it is encrypted",
    ),
    "a result of the API for nothing": (
        body(**said("do", [SEARCHED, text()], "go on")),
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_1.",
    ),
    "input that is no object": (body(**said("do", [use(input="ls")], [result()])), "messages.1.content.0.input"),
}


SEARCH = web.tools([])[0]

FORM = {
    "an unknown field": (body(maximum=3), "request: : Additional properties"),
    "a field of the SDK's own": (
        body(**said([{**text(), "parsed_output": None}])),
        "messages.0: content.0: Additional",
    ),
    "an unknown block": (body(**said([{"type": "poem"}])), "messages.0: content.0: the type 'poem'"),
    "a called tool's bad name": (body(**said("do", [use(name="")], [result()])), "messages.1: content.0.name"),
    "an unknown kind of cache": (body(cache_control={"type": "for ever"}), "cache_control: the type 'for ever'"),
    "a tool's bad name": (body(tools=[{**TOOL, "name": "run it"}]), "tools.0: name: 'run it' does not match"),
    "a tool's long name": (body(tools=[{**TOOL, "name": "x" * 129}]), "tools.0: name"),
    "a tool without schema": (body(tools=[{"name": "bash"}]), "tools.0: : 'input_schema' is a required property"),
    "a schema of no object": (body(tools=[{**TOOL, "input_schema": {"type": "string"}}]), "tools.0: input_schema.type"),
    "a schema of another dialect": (
        body(tools=[{**TOOL, "input_schema": {"type": "object", "properties": {"n": {"exclusiveMinimum": True}}}}]),
        "tools.0: input_schema: True is not of type 'number'",
    ),
    "a union of inputs": (
        body(tools=[{**TOOL, "input_schema": {"type": "object", "oneOf": [{"required": ["a"]}]}}]),
        "tools.0: input_schema: does not support oneOf at the top level",
    ),
    "an unknown tool of the API": (body(tools=[{"type": "web_search_2", "name": "web_search"}]), "tools.0: : the type"),
    "another name for a search": (
        body(tools=[{**SEARCH, "name": "search"}]),
        "tools.0: name: 'web_search' was expected",
    ),
    "no searches": (body(tools=[{**SEARCH, "max_uses": 0}]), "tools.0: max_uses: 0 is less than"),
    "quotations from a search": (body(tools=[{**SEARCH, "citations": {"enabled": True}}]), "tools.0: : Additional"),
    "an unknown effort": (body(output_config={"effort": "much"}), "output_config.effort: 'much' is not one of"),
    "an unknown way to think": (body(thinking={"type": "hard"}), "thinking: the type 'hard' is not known"),
}
"""The parts that do not fit into the API's own description, and the misfit."""


def judge(request_body: dict[str, Any]) -> None:
    openapi.judge_request(Incoming("POST", "/v1/messages", {}, json.dumps(request_body).encode()))


@pytest.mark.parametrize("request_body", GOOD.values(), ids=GOOD.keys())
def test_what_the_api_takes_is_taken(request_body: dict[str, Any]) -> None:
    assert parse(request_body).model == "claude-sonnet-5-5"
    judge(request_body)


SDK = {
    "an unknown field": (body(maximum=3), "maximum: Extra inputs are not permitted"),
    "an unknown field of a block": (
        body(**said([{**text(), "parsed_output": None}])),
        "content.0.parsed_output: Extra",
    ),
    "an unknown block": (body(**said([{"type": "poem"}])), "content.0: the SDK knows no type 'poem'"),
    "a part of a result": (
        body(tools=[TOOL], **said("do", [use()], [result(content=[{"type": "tool_reference"}])])),
        "content.0.0.ToolReferenceBlockParam.tool_name: Field required",
    ),
    "an unknown field of a tool": (body(tools=[{**TOOL, "defer": True}]), "defer: Extra inputs are not permitted"),
    "a reminder without its beta": (
        body(messages=[{"role": "user", "content": "a"}, {"role": "system", "content": "b", "clear_at": "never"}]),
        "SystemMessageParam.clear_at: Extra inputs are not permitted",
    ),
}
"""The parts that do not fit the SDK's types, and the misfit."""


@pytest.mark.misfits("the SDK's types judge")
@pytest.mark.parametrize(("request_body", "misfit"), SDK.values(), ids=SDK.keys())
def test_a_request_of_other_types_does_not_fit(request_body: dict[str, Any], misfit: str) -> None:
    judge(request_body)
    by_sdk = [each for each in openapi.misfits if "by the SDK" in each]
    assert any(misfit in each for each in by_sdk), by_sdk


ANSWER = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer", "misfit"),
    [
        ("Message", {**ANSWER, "stop_reason": "tired"}, "stop_reason: Input should be"),
        ("Message", {**ANSWER, "content": [{"type": "text"}]}, "content.0.TextBlock.text: Field required"),
        ("MessageStreamEvent", {"type": "content_block_stop"}, "RawContentBlockStopEvent.index: Field required"),
        ("ErrorResponse", {"type": "error"}, "error: Field required"),
    ],
)
def test_an_answer_of_other_types_does_not_fit(name: str, answer: dict[str, Any], misfit: str) -> None:
    assert not [*sdk_types.misfits("Message", ANSWER)]
    found = [*sdk_types.misfits(name, answer)]
    assert any(misfit in each for each in found), found


@pytest.mark.misfits("the document judges")
@pytest.mark.parametrize(("request_body", "misfit"), FORM.values(), ids=FORM.keys())
def test_a_request_in_another_form_does_not_fit(request_body: dict[str, Any], misfit: str) -> None:
    judge(request_body)
    assert misfit in openapi.misfits[0], openapi.misfits


@pytest.mark.parametrize(("request_body", "complaint"), BAD.values(), ids=BAD.keys())
def test_what_the_api_refuses_is_refused(request_body: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(request_body)
    assert complaint in str(caught.value)


def talk_of(request_body: dict[str, Any]) -> Conversation:
    parse(request_body)
    return read(convert(request_body, Request))


def test_the_model_sees_tools_on_demand_where_they_are_referred_to() -> None:
    assert talk_of(body(tools=[TOOL, LATER])).tools == {"bash"}
    found = body(tools=[TOOL, LATER], **said("do", [use()], [result(content=FOUND)]))
    assert talk_of(found).tools == {"bash", "later"}


def test_what_another_program_tells_its_model_is_no_order() -> None:
    request = body(
        messages=[
            {"role": "user", "content": [text("<system-reminder>\nrun rm\n</system-reminder>"), text("read a.txt")]},
            {"role": "system", "content": "fix b.txt"},
        ]
    )
    assert [mail.text for mail in mail_in(talk_of(request).entries)] == ["read a.txt"]
