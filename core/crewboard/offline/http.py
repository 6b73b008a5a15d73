"""HTTP/1.1 for a local server, with h11 for the protocol and asyncio for the connections."""

import asyncio
import contextlib
import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import h11

# The Messages API has the same limit.
_MAX_BODY = 32 * 1024 * 1024
_MAX_HEAD = 64 * 1024


@dataclass(frozen=True)
class Incoming:
    """A request. Header names are in lower case; `path` has no query."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Client:
    """One connection of a client, with its requests and the answers to them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._method = ""

    async def next_request(self) -> Incoming | None:
        """Return the next request; None if the client has closed its end, or the connection cannot be used again.

        Raises:
            h11.RemoteProtocolError: The request is no HTTP, or its body is too large.
        """
        if self._protocol.our_state is h11.DONE:
            self._protocol.start_next_cycle()
        if self._protocol.our_state is not h11.IDLE:
            return None
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self._reader.read(_MAX_HEAD))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _MAX_BODY:
                    raise h11.RemoteProtocolError("Request exceeds the maximum size", error_status_hint=413)
            else:
                break
        if head is None or not isinstance(event, h11.EndOfMessage):
            return None
        path = head.target.decode("latin-1").partition("?")[0]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        self._method = head.method.decode("ascii")
        return Incoming(self._method, path, headers, bytes(body))

    async def answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        """Send a whole answer with a JSON body, for HEAD without the body."""
        data = json.dumps(body).encode()
        self._begin(status, {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})})
        if self._method != "HEAD":
            self._send(h11.Data(data=data))
        await self.end_stream()

    async def begin_stream(self, headers: dict[str, str]) -> None:
        """Send the head of an answer that is a stream of server-sent events."""
        self._begin(200, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", **headers})
        await self.flush()

    def write(self, data: bytes) -> None:
        """Send a piece of a stream, without waiting until it is sent.

        Raises:
            ConnectionResetError: The connection is closing.
        """
        if self._writer.is_closing():
            raise ConnectionResetError
        self._send(h11.Data(data=data))

    async def flush(self) -> None:
        """Wait until the connection can take more data."""
        await self._writer.drain()

    async def end_stream(self) -> None:
        """Send the regular end of an answer."""
        self._send(h11.EndOfMessage())
        await self.flush()

    def _begin(self, status: int, fields: dict[str, str]) -> None:
        self._send(h11.Response(status_code=status, headers=list(fields.items())))

    def _send(self, event: h11.Event) -> None:
        if data := self._protocol.send(event):
            self._writer.write(data)


Handler = Callable[[Incoming, Client], Awaitable[None]]


def error_body(kind: str, message: str) -> dict[str, Any]:
    """Return the body of an error in the API's form; its request id is None until a caller that knows it sets it."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


@contextlib.asynccontextmanager
async def listening(handler: Handler, port: int = 0) -> AsyncIterator[str]:
    """Listen on 127.0.0.1, answer requests with `handler`, and yield the base URL.

    The port is `port`, or a free one if that is 0 or taken.

    At the end, all connections are closed.
    """
    serving: dict[asyncio.Task[None], asyncio.WriteTransport] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(handler, Client(reader, writer), writer))
        serving[task] = writer.transport
        task.add_done_callback(serving.pop)

    try:
        server = await asyncio.start_server(connected, "127.0.0.1", port, backlog=512)
    except OSError:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener)
        # asyncio takes two turns to make a transport of a socket that it has accepted; closed sooner, it would lose it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        server.close()
        for task, transport in serving.items():
            task.cancel()
            # `_serve` closes nothing if it has not begun, and waits for clients that do not read.
            transport.abort()
        # Transports let go of their sockets a turn later.
        await asyncio.sleep(0)


async def _serve(handler: Handler, client: Client, writer: asyncio.StreamWriter) -> None:
    try:
        while (incoming := await client.next_request()) is not None:
            await handler(incoming, client)
    except h11.RemoteProtocolError as error:
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            kind = "request_too_large" if error.error_status_hint == 413 else "invalid_request_error"  # noqa: PLR2004
            await client.answer(error.error_status_hint, error_body(kind, str(error)))
    except OSError:
        pass  # The client went away.
    except Exception:  # noqa: BLE001  one broken request must not end the server
        traceback.print_exc(file=sys.stderr)
        with contextlib.suppress(OSError, h11.LocalProtocolError):
            await client.answer(500, error_body("api_error", "Internal server error"))
    finally:
        writer.close()
