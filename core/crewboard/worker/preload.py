"""Loads all code that a worker needs for its first request, by making one to a socket of this process.

Imports are four fifths of a cold start. The rest is what the SDK builds on first use: models, the transport, a TLS
context.
"""

import asyncio
import contextlib

import anthropic

# Imported for their cost, as a worker's main does.
from crewboard.sandbox import sandbox  # noqa: F401
from crewboard.worker import interrupts, loop  # noqa: F401
from crewboard.worker.llm.model import make_client
from crewboard.worker.tools import file_client, registry  # noqa: F401

_EVENTS = """\
event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"model":"m",\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":1}}

event: message_stop
data: {"type":"message_stop"}

"""

_ANSWER = (
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    f"content-length: {len(_EVENTS)}\r\n\r\n{_EVENTS}"
).encode()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(_ANSWER)
    await writer.drain()
    writer.close()


async def _request() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = make_client(api_key="none", base_url=f"http://127.0.0.1:{port}")
    async with (
        server,
        client,
        client.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "."}]) as stream,
    ):
        async for _ in stream:
            pass
        await stream.get_final_message()


def preload() -> None:
    """Load all code. Leave no thread and no open descriptor."""
    for tool in registry.TOOLS.values():
        tool.definition()
    # Without a loopback interface, each worker loads the rest by itself.
    with contextlib.suppress(OSError, anthropic.AnthropicError):
        asyncio.run(_request())
