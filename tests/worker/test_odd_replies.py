"""Replies of servers that are a little off: settled before they are kept, so that none ends a worker."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from threading import Event
from typing import Any, cast

import pytest

from crewboard import endpoint
from crewboard.commands import hire as hiring
from crewboard.commands import messages, stop
from crewboard.commands.context import CommandLine
from crewboard.protocol import cooldown
from crewboard.readmodel.activity import describe
from crewboard.records.events import BrokenReply, Intake, Reply, Retry, RunStarted, ToolResult
from crewboard.records.messages import RETRY
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard.worker.interrupts import Interrupts
from crewboard_tui.cli.answers import answers
from tests.crash.scenarios import hire, worker
from tests.crew import Crew, eventually
from tests.raw import Raw, RawServer, as_json, sse
from tests.worker.test_outage import Waits

pytestmark = pytest.mark.xdist_group("sdk")

of_answers = pytest.mark.files_only("a store keeps an answer of a server as bytes, whatever is in them")

Make = Callable[..., Crew]
Json = dict[str, Any]

TOOLS = [{"name": "look", "input_schema": {"type": "object", "required": ["path"]}}]
LEFT_OUT: Any = object()


def without(values: Json) -> Json:
    return {name: value for name, value in values.items() if value is not LEFT_OUT}


def start(model: object = "m", usage: object = LEFT_OUT) -> Json:
    usage = {"input_tokens": 7, "output_tokens": 1} if usage is LEFT_OUT else usage
    return {"type": "message_start", "message": without({"type": "message", "model": model, "usage": usage})}


def end(reason: object = "end_turn", usage: object = LEFT_OUT) -> Json:
    usage = {"output_tokens": 5} if usage is LEFT_OUT else usage
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


STOP = {"type": "message_stop"}


def begin(block: object, index: object = 0) -> Json:
    return without({"type": "content_block_start", "index": index, "content_block": block})


def piece(delta: object, index: object = 0) -> Json:
    return without({"type": "content_block_delta", "index": index, "delta": delta})


def text(said: object = "hi", index: object = 0) -> list[Json]:
    return [
        begin({"type": "text", "text": ""}, index),
        piece({"type": "text_delta", "text": said}, index),
    ]


def call(
    given: object = LEFT_OUT, whole: object = LEFT_OUT, ident: object = "c1", name: object = "look", index: object = 0
) -> list[Json]:
    """Return the events of a call whose input comes in one piece (`given`), at the start (`whole`), or not at all."""
    block = without({"type": "tool_use", "id": ident, "name": name, "input": whole})
    pieces = [] if given is LEFT_OUT else [piece({"type": "input_json_delta", "partial_json": given}, index)]
    return [begin(block, index), *pieces]


def given(part: str, index: object = 0) -> Json:
    return piece({"type": "input_json_delta", "partial_json": part}, index)


def close(block: object, index: object = 0) -> Json:
    return without({"type": "content_block_stop", "index": index, "content_block": block})


SAME = "failed 3 times in the same way: "
MALFORMED = SAME + "the reply was malformed"
NO_REPLY = MALFORMED + ": the server sent text/event-stream, and no reply"
NOT_JSON = "look {} not run: its input is no JSON"
HALF, WHOLE = '{"path": "a', '{"path": "a"}'
HI = sse(start(), *text(), end(), STOP)
SAID = "hi · end_turn · 7/5"
CALLED = "look {'path': 'a'} · tool_use · 7/5"
MESSAGE = {"type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}],
           "stop_reason": "end_turn", "usage": {"input_tokens": 7, "output_tokens": 5}}  # fmt: skip


ENDED: Json = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
NO_COUNT = "hi · end_turn · 40/4"
"""The tokens that are estimated from the texts of the request and the reply, where a server counts nothing."""
DEEP = "[" * 99 + "]" * 99
INFINITE = '{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": Infinity}}'


def counted(first: object, last: object = LEFT_OUT) -> list[Raw]:
    """Return an answer that counts its tokens like this at its start and at its end."""
    return [sse(start(usage=first), *text(), end(usage=last))]


def called(*events: Json, reason: object = "tool_use") -> Raw:
    return sse(start(), *events, end(reason), STOP)


def failed(body: object) -> Raw:
    """Return a stream that ends with an error event."""
    return Raw(
        b"event: error\ndata: " + (body.encode() if isinstance(body, str) else json.dumps(body).encode()) + b"\n\n"
    )


# Each differs from what the API sends in one way: the answers, and the reply that is kept or the error.
ODD: dict[str, tuple[list[Raw], str]] = {
    "usage absent": ([sse(start(), *text(), ENDED)], "hi · end_turn · 7/1"),
    "usage nowhere": ([sse(start(usage=None), *text(), ENDED)], NO_COUNT),
    "usage of nulls": (counted({"input_tokens": None}, {"output_tokens": None}), NO_COUNT),
    "usage empty": (counted({}, {}), NO_COUNT),
    "usage a list": (counted([1], [2]), NO_COUNT),
    "usage of fractions": (counted({"input_tokens": 20.5}), "hi · end_turn · 20/5"),
    "usage negative": (counted({"input_tokens": -3}), "hi · end_turn · 40/5"),
    "usage far too large": (counted({"input_tokens": 10**30}), "hi · end_turn · 40/5"),
    "usage infinite": ([sse(start(), *text(), INFINITE)], "hi · end_turn · 7/1"),
    "usage at the end": (counted(None, {"input_tokens": 9, "output_tokens": 5}), "hi · end_turn · 9/5"),
    "usage in the delta": (
        [sse(start(), *text(), {**ENDED, "delta": {**ENDED["delta"], "usage": {"output_tokens": 6}}})],
        "hi · end_turn · 7/6",
    ),
    "usage in OpenAI's names": (
        counted({"prompt_tokens": 9, "completion_tokens": 0}, {"prompt_tokens": 9, "completion_tokens": 5}),
        "hi · end_turn · 9/5",
    ),
    "usage in OpenAI's names, of a cache": (
        counted({}, {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 5}),
        "hi · end_turn · 5/5",
    ),
    "model null": ([sse(start(model=None), *text(), end())], SAID),
    "model a number": ([sse(start(model=3), *text(), end())], SAID),
    "no message_start": ([sse(*text(), end(), STOP)], "hi · end_turn · 40/5"),
    "no message_stop": ([sse(start(), *text(), end())], SAID),
    "counts after the end": ([sse(start(), *text(), STOP, end())], SAID),
    "another reply after the end": ([sse(start(), *text(), end(), STOP, start(), *text("more"), end())], SAID),
    "an error after the end": ([Raw(HI.body + failed("late").body)], SAID),
    "a connection that breaks after the end": ([Raw(HI.body, missing=9)], SAID),
    "a connection that breaks after the reason to stop": ([Raw(sse(start(), *text(), end()).body, missing=9)], SAID),
    "a connection that breaks before the end": ([Raw(sse(start(), *text()).body, missing=9), HI], SAID),
    "no stop reason": ([sse(start(), *text(), end(None), STOP)], SAID),
    "stop reason of another API": ([sse(start(), *text(), end("stop"), STOP)], SAID),
    "cut off as another API says": ([sse(start(), *text(), end("length"), STOP)], "hi · max_tokens · 7/5"),
    "stop reason in capitals": ([sse(start(), *text(), end("STOP"), STOP)], SAID),
    "cut off, in capitals": ([sse(start(), *text(), end("MAX_TOKENS"), STOP)], "hi · max_tokens · 7/5"),
    "call and capitals": ([called(*call(WHOLE), reason="TOOL_USE")], CALLED),
    "pieces of a text without a type": ([sse(start(), text()[0], piece({"text": "hi"}), end(), STOP)], SAID),
    "pieces of a text under another name": (
        [
            sse(
                start(), text()[0], piece({"type": "text_delta", "content": "h"}), piece({"content": "i"}), end(), STOP
            )
        ],
        SAID,
    ),
    "pieces of a text under both names": (
        [sse(start(), text()[0], piece({"type": "text_delta", "text": "hi", "content": "hi"}), end(), STOP)],
        SAID,
    ),
    "text under another name": ([sse(start(), begin({"type": "text", "content": "hi"}), end(), STOP)], SAID),
    "pieces of a call without a type": ([called(call()[0], piece({"partial_json": WHOLE}))], CALLED),
    "call without input": ([called(*call())], "look {} · tool_use · 7/5"),
    "call with input null": ([called(*call(whole=None))], "look {} · tool_use · 7/5"),
    "call with its input at the start": ([called(*call(whole={"path": "a"}))], CALLED),
    "call with its input as text": ([called(*call(whole=WHOLE))], CALLED),
    "call with an empty piece": ([called(*call("", whole={"path": "a"}))], CALLED),
    "call with a piece of null": ([called(*call(None, whole={"path": "a"}))], CALLED),
    "call with an object as piece": ([called(*call({"path": "a"}))], CALLED),
    "call with its input at the stop": ([called(*call(whole={}), close({"input": {"path": "a"}}))], CALLED),
    "call with its input at the stop, without an index": (
        [called(*call(), close({"input": {"path": "a"}}, LEFT_OUT))],
        CALLED,
    ),
    "call with another input at the stop": ([called(*call(WHOLE), close({"input": {"path": "b"}}))], CALLED),
    "two calls with their inputs at the stops": (
        [
            called(
                *call(), *call(ident="c2", index=1), close({"input": {"path": "b"}}, 1), close({"input": {"path": "a"}})
            )
        ],
        "look {'path': 'a'}, look {'path': 'b'} · tool_use · 7/5",
    ),
    "a stop before any block": ([sse(start(), close({"input": {}}), *text(), end(), STOP)], SAID),
    "call with pieces that repeat": ([called(*call("{"), given(HALF), given(WHOLE), given(WHOLE))], CALLED),
    "call with a piece that begins as the input does": (
        [called(*call('{"path":'), given('{"path":1}}'))],
        "look {'path': {'path': 1}} · tool_use · 7/5",
    ),
    "call with pieces that repeat and break off": (
        [called(*call("{"), given(HALF), reason="max_tokens")],
        NOT_JSON + " · max_tokens · 7/5",
    ),
    "call with its input encoded twice": ([called(*call(json.dumps(WHOLE)))], CALLED),
    "call with a text": ([called(*call('"a"'))], "look {} not run: its input is not an object · tool_use · 7/5"),
    "call with a list": ([called(*call("[1]"))], "look {} not run: its input is not an object · tool_use · 7/5"),
    "call nested too deeply": (
        [called(*call('{"path": ' + DEEP + "}"))],
        "look {} not run: its input cannot be stored: nested deeper than 32 · tool_use · 7/5",
    ),
    "call without a name": ([called(*call(WHOLE, name=None))], "unnamed {'path': 'a'} · tool_use · 7/5"),
    "call without an id": ([called(*call(WHOLE, ident=LEFT_OUT))], CALLED),
    "call with id null": ([called(*call(WHOLE, ident=None))], CALLED),
    "call with a number as id": ([called(*call(WHOLE, ident=4))], CALLED),
    "call with an empty id": ([called(*call(WHOLE, ident=""))], CALLED),
    "call with an old id": ([called(*call(WHOLE, ident="used"))], CALLED),
    "two calls with one id": ([called(*call(WHOLE), *call(WHOLE, index=1))], f"look {{'path': 'a'}}, {CALLED}"),
    "two calls with one index": ([called(*call(WHOLE), *call(WHOLE, ident="c2"))], f"look {{'path': 'a'}}, {CALLED}"),
    "call and end_turn": ([called(*call(WHOLE), reason="end_turn")], "look {'path': 'a'} · end_turn · 7/5"),
    "call and the words of another API": ([called(*call(WHOLE), reason="tool_calls")], CALLED),
    "call and an unknown reason": ([called(*call(WHOLE), reason="bored")], "look {'path': 'a'} · bored · 7/5"),
    "call broken off and end_turn": ([called(*call(HALF), reason="end_turn")], NOT_JSON + " · incomplete · 7/5"),
    "call lacking a field and end_turn": (
        [called(*call("{}"), reason="end_turn")],
        "look {} not run: its input lacks path · incomplete · 7/5",
    ),
    "call broken off at max_tokens": ([called(*call(HALF), reason="max_tokens")], NOT_JSON + " · max_tokens · 7/5"),
    "call that is no JSON once": ([called(*call("{'path': 'a'}")), called(*call(WHOLE))], CALLED),
    "call that is no JSON twice": ([called(*call("{'path': 'a'}"))], NOT_JSON + " · tool_use · 7/5"),
    "tool_use without a call": ([called()], " · tool_use · 7/5"),
    "call whose input has the index of a text": (
        [called(*text(), *call(index=1), *call(WHOLE)[1:])],
        "hi, look {'path': 'a'} · tool_use · 7/5",
    ),
    "call whose input has an unknown index": ([called(*call(), *call(WHOLE, index=9)[1:])], CALLED),
    "input before any call": ([called(*call(WHOLE)[1:])], MALFORMED + ": an input of a call that did not begin"),
    "text of null": ([sse(start(), begin({"type": "text", "text": None}), *text()[1:], end())], SAID),
    "piece of null": ([sse(start(), *text(), piece({"type": "text_delta", "text": None}), end())], SAID),
    "piece without a start": ([sse(start(), *text()[1:], end())], SAID),
    "piece without an index": (
        [sse(start(), text()[0], piece({"type": "text_delta", "text": "hi"}, LEFT_OUT), end())],
        SAID,
    ),
    "block of null": ([sse(start(), begin(None), *text()[1:], end())], SAID),
    "block without a type": ([sse(start(), begin({"a": 1}), *text(index=1), end())], SAID),
    "delta of null": ([sse(start(), *text(), piece(None), end())], SAID),
    "index a list": ([sse(start(), *text(index=[1]), end())], MALFORMED + ": TypeError"),
    "event that is a list": ([sse(start(), *text(), "[1, 2]", end())], SAID),
    "event that is no JSON": ([sse(start(), *text(), "{'a'", end())], MALFORMED),
    "event nested too deeply": ([sse(start(), "[" * 200_000)], MALFORMED),
    "no names of events": ([sse(start(), *text(), end(), "[DONE]", names=False)], SAID),
    "bytes that are no text": ([Raw(HI.body.replace(b"hi", b"\xff\xfe"))], MALFORMED),
    "one JSON text": ([as_json(MESSAGE)], SAID),
    "one JSON text called a stream": ([Raw(as_json(MESSAGE).body)], SAID),
    "one JSON text with a byte order mark": ([Raw(b"\xef\xbb\xbf" + as_json(MESSAGE).body)], SAID),
    "one JSON text without usage": ([as_json({**MESSAGE, "usage": None, "model": None})], NO_COUNT),
    "one JSON text with a plain text": ([as_json({**MESSAGE, "content": "hi"})], SAID),
    "one JSON text with plain texts": ([as_json({**MESSAGE, "content": ["hi"]})], SAID),
    "one JSON text with a single block": ([as_json({**MESSAGE, "content": {"type": "text", "text": "hi"}})], SAID),
    "one JSON text without content": ([as_json({**MESSAGE, "content": None})], " · end_turn · 7/5"),
    "one JSON text with usage in OpenAI's names": (
        [as_json({**MESSAGE, "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}})],
        SAID,
    ),
    "one JSON text a line": (
        [Raw(b'{"message": {"content": "h"}, "done": false}\n{"done": true}\n', kind="application/x-ndjson")],
        MALFORMED + ': the server sent JSON lines (ndjson), and not events: {"message"',
    ),
    "one JSON text that is an error": ([as_json({"error": {"message": "No luck 1"}}), HI], SAID),
    "a page": (
        [Raw(b"<html>Welcome</html>", kind="text/html")],
        SAME + "the address serves a web page, no API",
    ),
    "a page that says it is a stream": (
        [Raw(b"\n<!doctype html>Welcome")],
        SAME + "the address serves a web page, no API",
    ),
    "a stream that says it is a page": ([Raw(HI.body, kind="text/html; charset=utf-8")], SAID),
    "nothing": ([Raw(b"")], NO_REPLY),
    "another API's stream": ([sse({"object": "chunk", "choices": []})], NO_REPLY + ": data"),
    "error with its code beside": ([failed({"code": 500, "message": "peg-native", "type": "server_error"}), HI], SAID),
    "error of an unknown type": ([failed({"type": "odd", "message": "no idea"}), HI], SAID),
    "error that is a text": ([failed("boom"), HI], SAID),
    "error without a name": ([sse({"error": "boom"}), HI], SAID),
    "error that is the caller's": (
        [failed({"code": 400, "message": "no such field"})],
        "the API refused the request (error): no such field",
    ),
    "error of the key": (
        [failed({"error": {"code": 401, "message": "who?"}})],
        "the API refused the credentials (error): who?",
    ),
    "403 of a text that was flagged": (
        [as_json({"error": {"code": 403, "message": "Input was flagged", "type": "None"}}, 403)],
        "the API refused the request (403 error): Input was flagged",
    ),
    "error that repeats": (
        [failed({"code": 500, "message": "parse at pos 7"})],
        SAME + "during the reply, error: parse at pos 7",
    ),
    "500 that repeats": ([as_json({"error": {"message": "at pos 20"}}, 500)], SAME + "500 error: at pos 20"),
    "500 that names no cause": ([*[as_json({"error": {"message": "Internal server error"}}, 500)] * 4, HI], SAID),
    "500 with a text that repeats": (
        [Raw(f"no slot {n} {'x' * 200}{n}".encode(), 500, "text/plain") for n in (1, 23, 45)],
        SAME + "500 error: no slot 45",
    ),
    "500 with a text that names no cause": ([*[Raw(b"Internal Server Error\n", 500, "text/plain")] * 4, HI], SAID),
    "500 with a page": ([*[Raw(b"<html>no slot", 500, "text/html")] * 4, HI], SAID),
    "500 with a list": ([*[as_json([1], 500)] * 4, HI], SAID),
    "500 with null": ([as_json(None, 500), HI], SAID),
    "a proxy that cannot reach its server": ([Raw(b"error code: 522", 522, "text/plain"), HI], SAID),
    "a plain body that is said to be packed": ([HI._replace(encoding="gzip")], MALFORMED),
    "a redirect in a circle": (
        [Raw(b"", 307, location="/v1/messages")],
        "the server redirects the request in a circle",
    ),
    "a redirect that makes a GET of the request": (
        [Raw(b"", 301, location="/elsewhere?k=v")],
        "the API refused the request (404 error): no such page; redirected to http://127.0.0.1:",
    ),
    "a redirect to where the request is refused": (
        [Raw(b"", 307, location="/proxy/v1/messages"), as_json({"error": {"message": "no"}}, 400)],
        "the API refused the request (400 error): no; redirected to http://127.0.0.1:",
    ),
    "200 with the failure of another kind of API": (
        [as_json({"success": False, "code": 1001, "msg": "no balance"}), HI], SAID,
    ),
    "200 with a reply of another kind of API": (
        [as_json({"choices": [{"message": {"content": "hi"}}]})],
        MALFORMED + ": the server sent a reply of another API, such as OpenAI's: {",
    ),
    "400 with a msg": ([as_json({"msg": "no"}, 400)], "the API refused the request (400 error): no"),
    "400 with what the server behind said": (
        [as_json({"error": {"message": "All failed.", "tried": [{"message": "a", "why": {"message": "b"}}]}}, 400)],
        "the API refused the request (400 error): All failed: b",
    ),
    "400 that only says it within": (
        [as_json({"errors": [{"message": "b"}]}, 400)],
        "the API refused the request (400 error): b",
    ),
    "400 with a text": ([as_json("bad", 400)], "the API refused the request (400 error): bad"),
    "400 with a detail": (
        [as_json({"detail": [{"loc": "x"}]}, 400)],
        "the API refused the request (400 error): Error code: 400",
    ),
}  # fmt: skip


def shape(reply: Reply) -> str:
    """Return a reply in one line: texts and calls, why some are not run, the reason to stop, tokens."""
    said = []
    for block in reply.content:
        if block["type"] != "tool_use":
            assert block.keys() == {"type", "text"}
            said.append(block["text"])
            continue
        why = re.sub("(no JSON).*", r"\1", reply.refused.get(block["id"], ""))
        said.append(f"{block['name']} {block['input'] if not why else {}}" + (f" not run: {why}" if why else ""))
    return f"{', '.join(said)} · {reply.stop_reason} · {reply.usage.input}/{reply.usage.output}"


def ask(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, server: RawServer) -> Reply | Exception:
    """Return the reply to one request of a worker whose conversation has a call with the id `used`, or its error."""
    # Loading the SDK takes more than a second.
    from crewboard.worker.llm import model, refusals

    monkeypatch.setattr(model, "FIRST_DELAY", 0.001)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    hire(directory, "odd")
    run_state = worker(directory, "odd")
    run_state.conversation.call_ids.add("used")

    async def once() -> Reply:
        caller = model.Model(run_state, cast("Interrupts", Waits()))
        return await caller.reply("", TOOLS, [{"role": "user", "content": [{"type": "text", "text": "go"}]}], 1000)

    try:
        return asyncio.run(once())
    except refusals.ModelError as error:
        return error


@pytest.mark.parametrize("name", ODD)
@pytest.mark.files_only
def test_an_odd_reply_is_settled_or_refused(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    answers, expected = ODD[name]
    with RawServer(*answers) as server:
        got = ask(directory, monkeypatch, server)
    if isinstance(got, Reply):
        assert shape(got) == expected
        ids = [block["id"] for block in got.content if block["type"] == "tool_use"]
        assert len(set(ids) - {"used"}) == len(ids)
        assert all(isinstance(ident, str) and ident for ident in ids)
        assert got.model in ("m", "")
    else:
        assert str(got).startswith(expected)
        assert ("/proxy/v1" in str(got)) == str(got).endswith("/proxy")


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Raw(b'{"content": "' + b"la " * 9000), "reply of more than 1000 bytes"),
        (
            sse(start(), *text(), *[piece({"type": "text_delta", "text": "la " * 99})] * 9),
            "text of more than 1000 characters",
        ),
    ],
    ids=["one JSON text", "events"],
)
@pytest.mark.files_only
def test_a_reply_that_goes_on_for_ever_is_given_up(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, answer: Raw, what: str
) -> None:
    from crewboard.worker.llm import blocks

    monkeypatch.setattr(blocks, "MAX_LINE", 1000)
    with RawServer(answer._replace(missing=10**6, drips=True)) as server:
        got = ask(directory, monkeypatch, server)
    assert str(got).startswith(f"{MALFORMED}: a {what}")


BIG, SMALL = "x" * 60_000, "go"


@pytest.mark.parametrize(
    ("texts", "model_pages", "said"),
    [
        ([SMALL, BIG], {}, "closes the connection on a request of 60 kB, and answers smaller ones"),
        ([BIG + BIG], {}, "closes the connection on a request of 120 kB, and answers smaller ones"),
        ([SMALL, BIG], {"/v1/models": None}, "the API stayed unavailable: no answer from"),
        ([SMALL, BIG], {"/v1/models": as_json({}, 503)}, "the API stayed unavailable: no answer from"),
        ([SMALL], {}, "the API stayed unavailable: no answer from"),
        ([BIG, BIG], {}, "the API stayed unavailable: no answer from"),
        ([SMALL, BIG[:9_000]], {}, "the API stayed unavailable: no answer from"),
    ],
    ids=["larger", "large", "server is down", "server is away", "small", "as large as before", "small for any server"],
)  # fmt: skip
@pytest.mark.files_only
def test_a_connection_closed_on_large_requests_is_no_outage(
    directory: TeamDirectory,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    model_pages: dict[str, Raw | None],
    said: str,
) -> None:
    from crewboard.worker.llm import model, refusals

    monkeypatch.setattr(model, "FIRST_DELAY", 0.001)
    monkeypatch.setenv("CREWBOARD_RETRY_BUDGET", "0.1")
    answers = [*[HI] * (len(texts) - 1), None]
    with RawServer(*answers, pages=model_pages) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        hire(directory, "odd")
        roster.change(directory, lambda config: setattr(config, "on_outage", "fail"))
        caller = model.Model(worker(directory, "odd"), cast("Interrupts", Waits()))

        async def call() -> None:
            for sent in texts:
                await caller.reply("", [], [{"role": "user", "content": [{"type": "text", "text": sent}]}], 1000)

        with pytest.raises(refusals.ModelError, match=said) as raised:
            asyncio.run(call())
    assert isinstance(raised.value, refusals.TooLongError) == ("closes" in said)


def _send(directory: TeamDirectory, *texts: str) -> None:
    """Send texts from a new worker, one after the other."""
    from crewboard.worker.llm import model

    caller = model.Model(worker(directory, "odd"), cast("Interrupts", Waits()))

    async def call() -> None:
        for sent in texts:
            await caller.reply("", [], [{"role": "user", "content": [{"type": "text", "text": sent}]}], 1000)

    asyncio.run(call())


@pytest.mark.long
@pytest.mark.parametrize("too_large", [None, Raw(b"<html>413", 413, "text/html")], ids=["closed", "refused"])
@pytest.mark.files_only
def test_a_size_that_a_server_does_not_take_is_remembered(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, too_large: Raw | None
) -> None:
    from crewboard.worker.llm import model, refusals

    limit = 50_000
    monkeypatch.setattr(model, "FIRST_DELAY", 0.001)
    with RawServer(lambda body: too_large if len(json.dumps(body)) > limit else HI) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        hire(directory, "odd")

        def sent(*texts: str) -> int:
            """Send texts from a new worker; return how many requests came."""
            before = len(server.requests)
            with contextlib.suppress(refusals.TooLongError):
                _send(directory, *texts)
            return len(server.requests) - before

        tries = 1 if too_large else 3
        assert sent(SMALL, BIG) == 1 + tries
        assert sent(SMALL, BIG) == 1
        assert sent(SMALL, BIG[:45_000]) == 2, "it is smaller than what was refused by far"
        assert sent(BIG + BIG) == tries, "the first one shows whether the limit is still there"
        assert sent(SMALL, BIG) == 1
        limit = 500_000
        assert sent(BIG + BIG) == 1
        assert sent(SMALL, BIG) == 2, "it was taken"


@pytest.mark.files_only
def test_a_page_about_a_small_request_is_not_remembered(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crewboard.worker.llm import refusals

    with RawServer(HI, Raw(b"<html>413", 413, "text/html"), HI) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        hire(directory, "odd")
        with pytest.raises(refusals.TooLongError):
            _send(directory, SMALL, BIG[:9_000])
        _send(directory, SMALL, BIG[:10_000])
    assert len(server.requests) == 4


@pytest.mark.long
def test_an_agent_goes_on_where_large_requests_are_closed(shared_crew_on: Make) -> None:
    """Sends less where the server hangs up, as with a proxy before it that limits the size, and learns how much."""
    closed = []
    reads = iter([called(*call(json.dumps({"path": f"{n}.txt"}), name="read_file")) for n in range(24)])

    def answer(body: Json) -> Raw | None:
        if (size := len(json.dumps(body))) > 25_000:
            closed.append(size)
            return None
        return next(reads, DONE) if body.get("tools") else sse(start(), *text("so far"), end(), STOP)

    with RawServer(answer) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for n in range(24):
            (crew.root / f"{n}.txt").write_text("some words\n" * 150)
        assert crew.run("limited", "explore", "go").text == "the end"
    retries = [event.error for event in crew.events("limited") if isinstance(event, Retry)]
    assert any(each.endswith("tries with a shorter conversation") for each in retries), retries
    assert any("did not take a request of" in each for each in retries), retries
    assert len(closed) == 3, closed
    assert not any("unavailable" in need.summary for need in crew.view().needs)


def test_a_refusal_of_the_size_does_not_outlast_it(shared_crew_on: Make) -> None:
    with RawServer(Raw(b"<html>413", 413, "text/html"), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("heavy", "explore", "go").code == 1
        crew.wait_for("heavy", "idle")
        assert crew.run("heavy", "explore", "again").text == "the end"


def results(crew: Crew, name: str) -> list[tuple[bool, str]]:
    return [(event.is_error, event.content) for event in crew.events(name) if isinstance(event, ToolResult)]


def listing(given: object = "{}", reason: str = "tool_use", **more: object) -> Raw:
    return called(*call(given, name="list_dir", **more), reason=reason)


DONE = sse(start(), *text("the end"), end(), STOP)
EMPTY = sse(start(), end(), STOP)


@of_answers
def test_calls_run_whatever_reason_to_stop_stands_behind_them(shared_crew_on: Make) -> None:
    with RawServer(listing(reason="end_turn"), listing(reason="stop", ident=None), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("runner", "explore", "go").text == "the end"
    assert [is_error for is_error, _ in results(crew, "runner")] == [False, False]


@of_answers
def test_a_call_that_is_no_json_goes_back_to_the_model(shared_crew_on: Make) -> None:
    odd = listing("{'path': '.'}")
    with RawServer(odd, odd, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("python", "explore", "go").text == "the end"
    ((is_error, why),) = results(crew, "python")
    assert is_error
    assert "its input is no JSON" in why
    assert "{'path': '.'}" in why
    assert crew.wait_for("python", "idle").status.tokens.input == 3 * 7, "the repeated reply is counted"


@pytest.mark.long
@of_answers
def test_a_call_that_broke_off_is_asked_for_again(shared_crew_on: Make) -> None:
    with RawServer(listing('{"path"', reason="end_turn"), listing(), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("dropped", "explore", "go").text == "the end"
    assert [is_error for is_error, _ in results(crew, "dropped")] == [True, False]


@of_answers
def test_a_reply_without_text_or_call_is_asked_to_go_on_once(shared_crew_on: Make) -> None:
    with RawServer(EMPTY, listing(), called(), EMPTY) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("silent", "explore", "go")
    assert answer.text == "(the model ended its turn without text)"
    notices = [event.notices for event in crew.events("silent") if isinstance(event, Intake) and event.notices]
    assert len(notices) == 2
    assert len(server.requests) == 4
    assert "Please continue" in str(server.requests[1]["messages"][-1])
    journal = [line for event in crew.events("silent") for line in describe(event)]
    assert [line.text for line in journal if line.kind == "stop"] == ["ended its turn without text"] * 3


@pytest.mark.long
def test_a_call_without_input_and_id_outlives_a_resume(shared_crew_on: Make) -> None:
    with RawServer(listing(ident=None, given=LEFT_OUT), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("bare", "explore", "go").text == "the end"
        crew.kill("bare")
        crew.wait_for("bare", "crashed", "exited")
        hiring.resume(crew.team, "bare")
        sent = messages.send(crew.team, "bare", "again")
        assert crew.answer_to("bare", sent.id).text == "the end"
    assert len([event for event in crew.events("bare") if isinstance(event, RunStarted)]) == 2


@of_answers
def test_counts_that_are_wrong_are_no_window(shared_crew_on: Make) -> None:
    with RawServer(sse(start(), *text("the"), end("model_context_window_exceeded")), DONE, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("narrow", "explore", "go").text.endswith("the end")


@pytest.mark.parametrize("page", [Raw(b"<html>", kind="text/html"), as_json([1]), as_json({"max_tokens": "x"})])
@of_answers
def test_an_odd_answer_about_the_model_ends_no_worker(shared_crew_on: Make, page: Raw) -> None:
    paths = ["/v1/models/claude-haiku-5-5", "/v1/models", "/api/ps"]
    name = f"asker-{abs(hash(page.body)) % 10**6}"
    with RawServer(DONE, pages=dict.fromkeys(paths, page)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run(name, "explore", "go").text == "the end"


@pytest.mark.files_only
def test_a_reply_that_a_server_does_not_end_is_taken(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from crewboard.worker.llm import model

    monkeypatch.setattr(model, "END_TIMEOUT", 0.1)
    held, whole = Event(), sse(start(), *text(), end()).body
    with RawServer(Raw(whole, missing=9, held=held)) as server:
        got = ask(directory, monkeypatch, server)
        held.set()
    assert isinstance(got, Reply)
    assert (shape(got), len(server.requests)) == (SAID, 1)
    assert "the server did not end its reply" in capfd.readouterr().err


@pytest.mark.files_only
def test_what_a_broken_reply_used_is_counted(directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = sse(start(), *text("half"), end(None, {"output_tokens": 3}))
    refusal = sse(start(), end("refusal"), STOP)
    with RawServer(cut, refusal) as server:
        got = ask(directory, monkeypatch, server)
    assert isinstance(got, Reply)
    assert got.usage.total == 0, "a refusal before any output is not billed"
    broken = [event for event in _journal(directory) if isinstance(event, BrokenReply)]
    assert [(event.usage.input, event.usage.output) for event in broken] == [(7, 3)]
    assert worker(directory, "odd").conversation.tokens.total == 10


@pytest.mark.files_only
@pytest.mark.parametrize(("where", "dollars"), [("global", 2.0), ("us", 2.2)])
def test_a_reply_from_the_us_alone_costs_a_tenth_more(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, where: str, dollars: float
) -> None:
    used = {"input_tokens": 1_000_000, "output_tokens": 0, "inference_geo": where}
    with RawServer(sse(start("claude-sonnet-5-5", used), *text(), end(usage={"output_tokens": 0}), STOP)) as server:
        got = ask(directory, monkeypatch, server)
    assert isinstance(got, Reply)
    # Its words are estimated, because none are counted.
    assert got.cost_usd == pytest.approx(dollars, rel=1e-4)


def _journal(directory: TeamDirectory) -> list[Any]:
    from crewboard.store import journal

    return [event for event, _ in journal.read(directory.agent("odd").journal)]


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        "system.0.cache_control: Extra inputs are not permitted",
        "Failed to deserialize: unknown field `cache_control`, expected `type` or `text`",
        "cache_control is not supported by this model",
        "I do not know what `cache_control` is",
        "system must be a string",
        "Expected string, received array",
        "Failed to parse the request body as JSON: invalid type: sequence, expected a string at line 1 column 62",
    ],
)
@of_answers
def test_the_marks_of_the_prompt_cache_are_left_out_where_a_server_does_not_know_them(
    shared_crew_on: Make, words: str
) -> None:
    refused = as_json({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, 400)
    listed = called(*call(whole={}, name="list_dir"))
    with RawServer(refused, listed, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run(f"plain{len(words)}", "explore", "Look").text == "the end"
    assert ["cache_control" in json.dumps(body) for body in server.requests] == [True, False, False]
    first, second, _ = server.requests
    assert [tool["name"] for tool in first["tools"]] == [tool["name"] for tool in second["tools"]]


WANTS_TEXT = (
    "messages.0.content: Input should be a valid string",
    "content: Input should be a valid string",
    "messages[0].content must be a string",
    "messages.0.content: Expected string, received array",
)


@pytest.mark.long
@pytest.mark.parametrize("words", WANTS_TEXT)
@of_answers
def test_text_is_sent_as_a_string_where_a_server_takes_only_that(shared_crew_on: Make, words: str) -> None:
    """Refuses blocks where a string says the same, and takes those of calls and their results."""

    def strict(body: Json) -> Raw:
        texts = [each["content"] for each in body["messages"] if isinstance(each["content"], list)]
        if any(block["type"] == "text" for content in texts for block in content):
            return said_no(words)
        return DONE if len(body["messages"]) > 1 else called(*call(whole={}, name="list_dir"))

    name = f"strings{len(words)}"
    with RawServer(strict) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run(name, "explore", "Look for the needle").text == "the end"
        sent = messages.send(crew.team, name, "again")
        assert crew.answer_to(name, sent.id).text == "the end"
    assert [isinstance(body["messages"][0]["content"], str) for body in server.requests] == [False, True, True, True]
    assert "Look for the needle" in server.requests[-1]["messages"][0]["content"]
    assert "cache_control" not in json.dumps(server.requests[1:])


@of_answers
def test_a_refusal_of_one_kind_of_block_is_none_of_all(shared_crew_on: Make) -> None:
    words = "messages.0.content.str: Input should be a valid string; messages.0.content.list[TextBlock].0: no text"
    with RawServer(said_no(words)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("union", "explore", "Look")
    assert words in str(answer.error)
    assert "takes only text" not in str(answer.error)
    assert len(server.requests) == 1


@pytest.mark.long
@of_answers
def test_a_server_that_takes_no_calls_in_messages_is_told(shared_crew_on: Make) -> None:
    def strict(body: Json) -> Raw:
        if all(isinstance(each["content"], str) for each in body["messages"]):
            return listing()
        return said_no("content: Input should be a valid string")

    with RawServer(strict) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("texts", "explore", "Look")
    assert answer.code == 1
    assert "the server takes only text in messages, and agents need calls and their results" in str(answer.error)
    assert "content: Input should be a valid string" in str(answer.error)
    assert len(server.requests) == 3, "it is of no length, so nothing is tried again"


@pytest.mark.long
@of_answers
def test_the_mark_of_a_failed_call_is_left_out_where_a_server_does_not_know_it(shared_crew_on: Make) -> None:
    words = "messages.2.content.0.tool_result.is_error: Extra inputs are not permitted"
    refused = as_json({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, 400)
    failing = called(*call(whole={"path": "nowhere.txt"}, name="read_file"))
    with RawServer(failing, refused, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("unmarked", "explore", "Look").text == "the end"
    assert ["is_error" in json.dumps(body["messages"]) for body in server.requests] == [False, True, False]
    assert "cache_control" in json.dumps(server.requests[-1]), "it was not refused"


@pytest.mark.long
@of_answers
def test_an_id_that_a_server_refuses_is_replaced_where_it_stands(shared_crew_on: Make) -> None:
    """Sends a conversation of a model with such ids to one behind the same gateway that is strict."""
    words = "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    looks = listing(ident="functions.list_dir:0"), listing(ident="plain_id")
    with RawServer(*looks, as_json({"error": {"message": words}}, 400), DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("strict", "explore", "Look").text == "the end"
    blocks = [block for message in server.requests[-1]["messages"] for block in message["content"]]
    asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert asked == answered
    assert asked[1] == "plain_id"
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", asked[0])
    assert "functions.list_dir:0" in json.dumps(server.requests[-2])


@pytest.mark.files_only
def test_the_api_gets_no_id_of_another_server_that_it_refuses(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from crewboard import endpoint
    from crewboard.worker.llm import model

    with RawServer(HI) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        monkeypatch.setattr(endpoint, "API_HOST", "127.0.0.1")
        hire(directory, "odd")
        caller = model.Model(worker(directory, "odd"), cast("Interrupts", Waits()))
        call_ = {"type": "tool_use", "id": "functions.look:0", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "functions.look:0", "content": "seen"}
        turns = [{"role": "assistant", "content": [call_]}, {"role": "user", "content": [result]}]
        go = {"role": "user", "content": [{"type": "text", "text": "go"}]}
        asyncio.run(caller.reply("", [], [go, *turns], 1000))
    _, asked, answered = (message["content"] for message in server.requests[0]["messages"])
    assert asked[0]["id"] == answered[0]["tool_use_id"]
    assert re.fullmatch("[a-zA-Z0-9_-]+", asked[0]["id"])


@pytest.mark.long
@of_answers
def test_a_block_that_the_api_does_not_have_is_not_sent_back(shared_crew_on: Make) -> None:
    reasons = [begin({"type": "reasoning", "text": "Let me look.", "signature": "s"})]
    looks = called(*reasons, *text("I look.", 1), *call(whole={}, name="list_dir", index=2))

    def strict(body: Json) -> Raw:
        kinds = {block["type"] for message in body["messages"] for block in message["content"]}
        return said_no("messages.1.content.0: unknown variant `reasoning`") if "reasoning" in kinds else DONE

    with RawServer(looks, strict) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("reasons", "explore", "Look").text == "the end"
    asked = next(message for message in server.requests[-1]["messages"] if message["role"] == "assistant")
    assert [block["type"] for block in asked["content"]] == ["text", "tool_use"]
    replies = [event for event in crew.events("reasons") if isinstance(event, Reply)]
    assert replies[0].content[0]["type"] == "reasoning", "the journal has it as it came"


@pytest.mark.long
def test_a_field_that_a_server_refuses_is_left_out_by_the_whole_team(shared_crew_on: Make) -> None:
    no = as_json({"error": {"message": "cache_control: Extra inputs are not permitted"}}, 400)
    with RawServer(no, DONE) as server, RawServer(DONE) as other:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        crew.run("teller", "explore", "Look")
        elsewhere = shared_crew_on(ANTHROPIC_BASE_URL=other.url)
        elsewhere.run("elsewhere", "explore", "Look")
        cooldown.extend(elsewhere.agent("elsewhere"), endpoint.host_and_port(other.url), 0.001, "busy")
        crew.run("heard", "explore", "Look")
    assert ["cache_control" in json.dumps(body) for body in server.requests] == [True, False, False]
    assert ["cache_control" in json.dumps(body) for body in other.requests] == [True]


FORBIDDEN = as_json({"error": {"message": "no entry"}}, 403)


@pytest.mark.long
@pytest.mark.parametrize(
    ("answers", "code", "what"),
    [
        ([FORBIDDEN], 78, "credentials"),
        ([Raw(b"<html>Blocked", 403, "text/html")], 1, "request"),
        ([listing(), FORBIDDEN], 1, "request"),
    ],
)
@of_answers
def test_a_403_is_of_credentials_only_before_the_server_took_any(
    shared_crew_on: Make, answers: list[Raw], code: int, what: str
) -> None:
    with RawServer(*answers) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run(f"barred{code}{len(answers)}", "explore", "go")
    assert (answer.code, str(answer.error).startswith(f"the API refused the {what} (403)")) == (code, True)


PAGE = Raw(b"<html>Welcome</html>", kind="text/html")


@pytest.mark.long
@pytest.mark.parametrize(
    ("answers", "code"),
    [([PAGE], 78), ([PAGE._replace(status=404)], 78), ([HI, PAGE], 1)],
    ids=["200", "404", "after a reply"],
)
@of_answers
def test_an_address_that_serves_pages_cannot_be_used(shared_crew_on: Make, answers: list[Raw], code: int) -> None:
    name = f"paged{code}{len(answers)}{answers[-1].status}"
    with RawServer(*answers) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        for _ in answers[1:]:
            crew.run(name, "explore", "go")
            crew.wait_for(name, "idle")
        found = crew.run(name, "explore", "go")
    assert found.code == code
    assert "the address serves a web page, no API" in str(found.error)
    assert str(found.error).endswith(
        "; set ANTHROPIC_BASE_URL to the address of its API, and resume agents in that shell"
    )


@pytest.mark.long
@of_answers
def test_an_agent_of_a_wrong_address_goes_on_in_the_right_shell(shared_crew_on: Make) -> None:
    with RawServer(PAGE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        crew.run("lost", "explore", "go")
    crew.wait_for("lost", "crashed")
    need = next(need for need in crew.view().needs if need.agent == "lost" and need.kind == "death")
    assert "set ANTHROPIC_BASE_URL" in need.summary
    command = CommandLine.of(crew.team)("resume lost")
    assert ("resume it in a shell with the right address and key", command) in answers(need, CommandLine.of(crew.team))
    with RawServer(HI) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        hiring.resume(crew.team, "lost")
        crew.wait_for("lost", "idle")
        assert "go" in json.dumps(server.requests), "its assignment goes on"


def said_no(words: str, status: int = 400) -> Raw:
    return as_json({"type": "error", "error": {"type": "invalid_request_error", "message": words}}, status)


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "status", "helps", "other_model"),
    [
        ("registry.ollama.ai/library/gemma3 does not support tools", 400, "use a model that can", True),
        ("`tool calling` is not supported with this model", 400, "use a model that can", True),
        ("No endpoints found that support tool use.", 404, "use a model that can", True),
        ("Model unloaded.", 400, "load the model on its server", False),
        ("No models loaded. Please load one.", 404, "load the model on its server", False),
        (
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', 400,
            "start vLLM with `--enable-auto-tool-choice --tool-call-parser PARSER`", False,
        ),
        ("tools param requires --jinja flag", 500, "start llama-server with `--jinja`", False),
    ],
)  # fmt: skip
@of_answers
def test_a_refusal_that_lasts_says_what_helps(
    shared_crew_on: Make, words: str, status: int, helps: str, *, other_model: bool
) -> None:
    name = f"helpless{len(words)}"
    with RawServer(said_no(words, status)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run(name, "explore", "go")
        crew.wait_for(name, "idle")
        (need,) = [each for each in crew.view().needs if each.agent == name]
    for said in (str(answer.error), need.summary):
        assert words.rstrip(".") in said
        assert said.count(helps) == 1
    assert need.summary.index(helps) < need.summary.index(words.rstrip(".")), "the end of a long line may not be shown"
    assert len(server.requests) == (3 if status == 500 else 1)
    assert (need.refused_by is not None) == other_model
    assert any(f" resume {name} --model" in how for _, how in answers(need, CommandLine())) == other_model


LISTS = '{"name": "list_dir", "arguments": {"path": "."}}'
WRITTEN = {
    "Qwen": f"<tool_call>\n{LISTS}\n</tool_call>",
    "Qwen, behind a thought and a line": f"<think>Well.</think>\n\nI look first.\n<tool_call>\n{LISTS}\n</tool_call>",
    "Qwen, two calls": f"<tool_call>{LISTS}</tool_call>\n<tool_call>{LISTS}</tool_call>\n",
    "Qwen, without its end": f"<tool_call>\n{LISTS}",
    "Qwen Coder": "<tool_call>\n<function=list_dir>\n<parameter=path>\n.\n</parameter>\n</function>\n</tool_call>",
    "GLM": "<tool_call>list_dir\n<arg_key>path</arg_key>\n<arg_value>.</arg_value>\n</tool_call>",
    "Llama": '<function=list_dir>{"path": "."}</function>',
    "Mistral": f"[TOOL_CALLS] [{LISTS}]",
    "fenced JSON": f"```json\n{LISTS}\n```",
    "JSON": '{"name": "list_dir", "parameters": {}}',
    "JSON of OpenAI": json.dumps({"type": "function", "function": json.loads(LISTS)}),
}
QUOTED = {
    "another tool": LISTS.replace("list_dir", "launch"),
    "more text behind": f"```json\n{LISTS}\n```\nSo does a call look.",
    "much text before": f"{'la ' * 70}\n<tool_call>{LISTS}</tool_call>",
    "no call": '```json\n{"name": "list_dir"}\n```',
    "no input": '{"name": "list_dir", "type": "tool"}',
    "a definition": '[{"name": "list_dir", "description": "Lists.", "parameters": {}}]',
    "a call and other JSON": f'```json\n{LISTS}\n```\n```json\n{{"files": 3}}\n```',
    "no JSON": "{list_dir}",
    "the word alone": "It begins with <tool_call> and names list_dir.",
    "the word at the end": "A call begins with <tool_call>",
}


@pytest.mark.files_only
def test_only_a_text_that_is_a_call_is_taken_for_one() -> None:
    from crewboard.worker.llm.blocks import call_in_text

    tools = [{"name": "read_file"}, {"name": "list_dir"}]
    assert [name for name, said in WRITTEN.items() if call_in_text(said, tools) != "list_dir"] == []
    assert [name for name, said in QUOTED.items() if call_in_text(said, tools) is not None] == []


@pytest.mark.long
@of_answers
def test_a_call_that_comes_as_text_is_no_result(shared_crew_on: Make) -> None:
    with RawServer(sse(start(), *text(WRITTEN["Qwen"]), end(), STOP)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        answer = crew.run("scribe", "explore", "go")
        crew.wait_for("scribe", "idle")
        (need,) = [each for each in crew.view().needs if each.agent == "scribe"]
    assert (answer.code, answer.text, results(crew, "scribe")) == (1, "", [])
    for said in (str(answer.error), need.summary):
        assert "the model wrote a call of list_dir as text" in said
        assert said.count("vLLM with `--enable-auto-tool-choice --tool-call-parser PARSER`, llama-server ") == 1
    assert need.summary.index("--jinja") < need.summary.index("as text")
    assert len(server.requests) == 1


@of_answers
def test_an_answer_that_quotes_a_call_is_a_result(shared_crew_on: Make) -> None:
    with RawServer(sse(start(), *text(QUOTED["more text behind"]), end(), STOP)) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        assert crew.run("quoter", "explore", "go").text == QUOTED["more text behind"]


REFUSED = as_json({"error": {"type": "invalid_request_error", "message": "no such luck"}}, 400)
SAID_NO = "the API refused the request (400 invalid_request_error): no such luck"


@pytest.mark.long
def test_a_resume_tries_again_what_ended_the_run(shared_crew_on: Make) -> None:
    with RawServer(REFUSED, REFUSED, DONE) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        crew.hire("single", "explore", "go", once=True)
        for run in (1, 2):
            eventually(lambda: crew.see("single").run == run, "the run")  # noqa: B023  it is waited for here
            seen = crew.wait_for("single", "crashed")
            assert (seen.status.last_error, len(server.requests)) == (SAID_NO, run)
            hiring.resume(crew.team, "single")
        seen = crew.wait_for("single", "exited")
    assert RETRY in str(server.requests[-1]["messages"])
    assert seen.exit is not None
    assert (seen.exit.reason, seen.status.last_error) == ("finished", None)


@pytest.mark.long
def test_a_resumed_agent_says_why_it_failed_before(shared_crew_on: Make) -> None:
    with RawServer(REFUSED) as server:
        crew = shared_crew_on(ANTHROPIC_BASE_URL=server.url)
        crew.run("again", "explore", "go")
        crew.wait_for("again", "idle")
        stop.stop(crew.team, "again")
        crew.wait_for("again", "exited")
        hiring.resume(crew.team, "again")
        crew.wait_for("again", "idle")
        needs = [need.summary for need in crew.view().needs if need.agent == "again" and need.kind == "failed"]
        assert len(server.requests) == 1, "it was not at work when it was stopped"
    assert needs == [f"stopped: {SAID_NO}"]
