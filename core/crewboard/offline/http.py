"""Just enough HTTP/1.1 for a loopback server with many patient clients: keep-alive, bodies, chunked streams."""

import asyncio
import contextlib
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

MAX_BODY = 32 * 1024 * 1024
"""Largest request body in bytes; the Messages API has the same limit."""

_MAX_HEAD = 64 * 1024
_BACKLOG = 512

_TURNS_TO_CONNECT = 2
"""Turns of the loop in which asyncio makes a transport of a socket that it has accepted, and tells of it."""


class BodyTooLargeError(Exception):
    """The body is beyond `MAX_BODY`."""


class BadRequestError(Exception):
    """That is no HTTP that we speak; the connection is of no more use."""


@dataclass(frozen=True)
class Incoming:
    """A request. Header names are in lower case; `path` has no query."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class Client:
    """The other end of a connection, to answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.usable = True
        """Whether the connection can carry another request."""

    async def answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send a whole JSON answer."""
        data = json.dumps(body).encode()
        fields = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        self._writer.write(_head(status, fields) + data)
        await self._writer.drain()

    async def begin_stream(self, headers: dict[str, str]) -> None:
        """Begin an answer of events."""
        fields = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        self._writer.write(_head(200, {**fields, "transfer-encoding": "chunked", **headers}))
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Put a piece of a stream on its way.

        Raises:
            ConnectionResetError: Nobody reads it any more.
        """
        if self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def flush(self) -> None:
        """Wait until what was written is on its way."""
        await self._writer.drain()

    async def end_stream(self) -> None:
        """End a stream as it should."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def cut(self) -> None:
        """Close the connection in the middle of whatever is being said."""
        self.usable = False
        await self._writer.drain()
        self._writer.close()

    async def gone(self) -> None:
        """Wait until the client gives up."""
        self.usable = False
        while await self._reader.read(4096):
            pass


Handler = Callable[[Incoming, Client], Awaitable[None]]


def _head(status: int, fields: dict[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Overloaded"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    """Answer requests on a free loopback port with `handler`, at the base URL that it gives.

    On leaving, connections are dropped, in the middle of whatever is being said.
    """
    serving: dict[asyncio.Task[None], asyncio.WriteTransport] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(handler, reader, writer))
        serving[task] = writer.transport
        task.add_done_callback(serving.pop)

    server = await asyncio.start_server(connected, "127.0.0.1", backlog=_BACKLOG, limit=_MAX_HEAD)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener)
        for _ in range(_TURNS_TO_CONNECT):  # a server that is closed meanwhile would lose hold of the socket
            await asyncio.sleep(0)
        server.close()
        for task, transport in serving.items():
            task.cancel()
            transport.abort()  # `_serve` closes nothing if it has not begun, and waits for those who do not read
        await asyncio.sleep(0)  # transports let go of their sockets a turn later


async def _serve(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    client = Client(reader, writer)
    try:
        while client.usable and (incoming := await _read(reader)) is not None:
            await handler(incoming, client)
    except BodyTooLargeError:
        with contextlib.suppress(OSError):
            await client.answer(413, error_body("request_too_large", "Request exceeds the maximum size"))
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, BadRequestError):
        pass  # The client went away or speaks something else: nothing to tell anybody.
    except Exception:  # noqa: BLE001  one broken request must not end the server
        traceback.print_exc(file=sys.stderr)
        with contextlib.suppress(OSError):
            await client.answer(500, error_body("api_error", "Internal server error"))
    finally:
        writer.close()


def error_body(kind: str, message: str) -> dict[str, Any]:
    """An error in the API's form."""
    return {"type": "error", "error": {"type": kind, "message": message}}


async def _read(reader: asyncio.StreamReader) -> Incoming | None:
    """The next request, None when the client has closed its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *rest = head.decode("latin-1").split("\r\n")[:-2]
    try:
        method, target, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        body = await _read_body(reader, headers)
    except ValueError as error:
        raise BadRequestError(first) from error
    path, _, query = target.partition("?")
    return Incoming(method, path, query, headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    length = int(headers.get("content-length", "0"))
    if length > MAX_BODY:
        raise BodyTooLargeError
    return await reader.readexactly(length)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while length := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        size += length
        if size > MAX_BODY:
            raise BodyTooLargeError
        pieces.append((await reader.readexactly(length + 2))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return b"".join(pieces)
