"""The relay between an engine and its API counts tokens, and changes nothing of what it passes on."""

import asyncio
import contextlib
import json
from typing import Any

import pytest

from crewboard.records.agents import Tokens
from crewboard.worker import api_relay
from crewboard.worker.api_relay import ApiRelay, CountedReply
from tests.worker.test_engine import listening


def events(*told: dict[str, Any]) -> list[bytes]:
    return [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in told]


OF_MESSAGES = events(
    {
        "type": "message_start",
        "message": {
            "type": "message", "model": "claude-haiku-5-5",
            "usage": {
                "input_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 30,
                "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
                "output_tokens": 1,
            },
        },
    },
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": 'its "usage": {"input_tokens": 9}'}},
    {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 40, "input_tokens": None}},
)  # fmt: skip

OF_RESPONSES = events(
    {"type": "response.created", "response": {"id": "r", "model": "gpt-6.1-sol", "usage": None}},
    {
        "type": "response.completed",
        "response": {
            "id": "r", "model": "gpt-6.1-sol",
            "usage": {"input_tokens": 107, "input_tokens_details": {"cached_tokens": 100}, "output_tokens": 40},
        },
    },
)  # fmt: skip

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
MESSAGE = b'{"type": "message", "model": "claude-haiku-5-5", "usage": {"input_tokens": 3, "output_tokens": 4}}'

IN_MESSAGES = Tokens(input=7, output=40, cache_read=100, cache_write=30, cache_write_1h=20)
IN_RESPONSES = Tokens(input=7, output=40, cache_read=100)


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x;of=x\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(
    ("reply", "model", "tokens"),
    [
        (STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*OF_MESSAGES), "claude-haiku-5-5", IN_MESSAGES),
        (STREAM + b"\r\n" + b"".join(OF_RESPONSES), "gpt-6.1-sol", IN_RESPONSES),
        (JSON + b"\r\n" + MESSAGE, "claude-haiku-5-5", Tokens(input=3, output=4)),
        # It broke off: what was told by then is counted.
        (STREAM + b"\r\n" + OF_MESSAGES[0], "claude-haiku-5-5", IN_MESSAGES.replace(output=1)),
        (JSON + b"\r\n" + MESSAGE[:-1], "", None),
        (JSON + b"\r\n" + b'{"input_tokens": 8}', "", None),
        (JSON.replace(b"200 OK", b"529 Overloaded") + b"\r\n" + MESSAGE, "", None),
        (JSON + b'\r\n["usage"]', "", None),
        (JSON + b"\r\n" + b'{"usage": {"input_tokens": -1, "output_tokens": "x"}}', "", Tokens()),
        (JSON + b"transfer-encoding: chunked\r\n\r\nno size\r\n", "", None),
        (b"no head", "", None),
    ],
    ids=(
        "messages", "responses", "JSON", "broken stream", "broken JSON", "no usage", "error", "list", "odd numbers",
        "odd chunks", "no head",
    ),
)  # fmt: skip
def test_tokens_are_counted_however_a_reply_comes(reply: bytes, model: str, tokens: Tokens | None, size: int) -> None:
    counted = CountedReply()
    for at in range(0, len(reply), size):
        counted.feed(reply[at : at + size])
    counted.end()
    assert (counted.model, counted.tokens) == (model, tokens)


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(
    ("reply", "tokens"),
    [
        (STREAM + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*OF_MESSAGES), IN_MESSAGES),
        (JSON + b"transfer-encoding: chunked\r\n\r\n" + chunked(MESSAGE), Tokens(input=3, output=4)),
        (JSON + b"Content-Length: %d\r\n\r\n" % len(MESSAGE) + MESSAGE, Tokens(input=3, output=4)),
        (STREAM + b"\r\n" + b"".join(OF_MESSAGES) + b'data: {"type": "message_stop"}\n\n', IN_MESSAGES),
        (STREAM + b"\r\n" + b"".join(OF_RESPONSES), IN_RESPONSES),
    ],
    ids=("chunked stream", "chunked JSON", "length", "messages", "responses"),
)
async def test_a_reply_is_over_although_its_connection_stays_open(reply: bytes, tokens: Tokens, size: int) -> None:
    counted = CountedReply()
    for at in range(0, len(reply), size):
        counted.feed(reply[at : at + size])
    assert (counted.is_over, counted.tokens) == (True, tokens)
    is_read = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await is_read.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = ApiRelay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {"stand-in": "the-key"}, (), {})
    async with asyncio.timeout(60), listening(relay) as where:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"GET / HTTP/1.1\r\nx-api-key: stand-in\r\n\r\n")
        assert await reader.readexactly(len(reply)) == reply
        assert [each.tokens for each in relay.take_counted()] == [tokens]
        is_read.set()
        await reader.read()
        writer.close()
        # Its end is not counted once more.
        assert relay.take_counted(unfinished=True) == []
    server.close()


async def test_a_stream_is_passed_on_as_it_comes_and_unchanged() -> None:
    heads: list[bytes] = []
    was_read = asyncio.Event()
    first, *rest = OF_MESSAGES

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(STREAM + b"\r\n" + first)
        await was_read.wait()
        writer.write(b"".join(rest))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = ApiRelay(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {"stand-in": "the-key"}, (), {})
    async with asyncio.timeout(60), listening(relay) as where:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"GET / HTTP/1.1\r\nx-api-key: stand-in\r\nAccept-Encoding: gzip, zstd\r\nx: y\r\n\r\n")
        got = await reader.readexactly(len(STREAM) + 2 + len(first))
        # It is counted while it goes on, for a turn that ends before it does.
        assert [each.tokens for each in relay.take_counted(unfinished=True)] == [IN_MESSAGES.replace(output=1)]
        was_read.set()
        assert got + await reader.read() == STREAM + b"\r\n" + b"".join(OF_MESSAGES)
        writer.close()
        # A reply that is compressed could not be counted, so none is asked for.
        assert b"encoding" not in heads[0].lower()
        assert b"\r\nx: y\r\n" in heads[0]
        assert relay.take_counted(unfinished=True) == []
    server.close()
    with contextlib.suppress(AttributeError):
        await server.wait_closed()


def test_a_reply_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_relay, "_MOST_COUNTED", 1000)
    for head, reply in ((JSON, MESSAGE), (STREAM, b"data: " + MESSAGE)):
        counted = CountedReply()
        counted.feed(head + b"\r\n" + reply[:-1])
        counted.feed(b" " * 1000)
        assert len(counted._body) == 0
        counted.feed(reply[-1:] + b"\n")
        counted.end()
        assert counted.tokens is None
