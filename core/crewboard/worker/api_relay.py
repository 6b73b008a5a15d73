"""A relay through which an engine reaches its API from a sandbox without a network.

Before the engine starts, a program in its sandbox opens a listening socket there and passes it to the worker, which
accepts the connections. The worker puts the user's key into requests for the API. An engine that has a login of its
own, and not a key, gets tunnels to the hosts of that login. So the engine needs neither a network nor the key.
"""

import asyncio
import base64
import contextlib
import json
import re
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any

import h11

from crewboard import endpoint
from crewboard.records.agents import Tokens

LISTEN = """\
import os, socket, sys
api = socket.create_server(("127.0.0.1", 0))
port = str(api.getsockname()[1])
told = socket.socket(fileno=0)
socket.send_fds(told, [b"."], [api.fileno()])
told.detach()
for name in sys.argv[1].split(","):
    os.environ[name] = os.environ[name].replace("{port}", port)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""The program that opens the socket and then becomes the engine.

It sends the socket to the worker over file descriptor 0. Its arguments are the environment variables, separated by
commas, in which `{port}` is replaced by the port, and the engine's command line.
"""

_HEAD_TIMEOUT = 30.0
"""Seconds in which the engine must send the head of a request, and a server must accept a connection."""

_PIECE = 1 << 16

_MOST_CONNECTIONS = 64
"""The most connections at once: an engine has one for each of its own agents, and a few more."""

_REQUEST = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE|HEAD|OPTIONS) (/[!-~]*) HTTP/1\.1")
"""The first line of a request that may be passed on. TRACE is not: its answer would contain the key."""

_FIELD = re.compile(r"[!#-'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*")
_UPWARD = re.compile(r"/\.\.(?:[/;]|$)")


_MOST_COUNTED = 8 << 20
"""The most bytes of a reply, or of one line of a stream, whose tokens are counted."""


_LAST_EVENTS = (b"message_stop", b"response.completed", b"response.incomplete", b"response.failed")
"""The types of the events that end a stream; the connection may stay open after them."""


class CountedReply:
    """The tokens of one reply that the relay passes on, read from a copy of its bytes.

    The reply is one of the Messages or the Responses API, streamed or not. `model` is empty if the reply names none.
    """

    def __init__(self) -> None:
        self.model = ""
        self.is_over = False
        """True once no further tokens can come: the reply has told all, or it cannot be read."""
        self._usage: dict[str, Any] = {}
        self._body = bytearray()
        self._is_stream = False
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_PIECE)
        # h11 takes a reply only after a request.
        self._http.send(h11.Request(method="POST", target="/", headers=[("host", "api")]))
        self._http.send(h11.EndOfMessage())

    @property
    def tokens(self) -> Tokens | None:
        """Return the tokens that the reply has told so far; None if it has told none."""
        if not self._usage:
            return None
        whole = _count(self._usage, "input_tokens")
        # In the Responses API these are a part of the input.
        cached = min(whole, _count(self._usage, "input_tokens_details", "cached_tokens"))
        return Tokens(
            input=whole - cached,
            output=_count(self._usage, "output_tokens"),
            cache_read=cached + _count(self._usage, "cache_read_input_tokens"),
            cache_write=_count(self._usage, "cache_creation_input_tokens"),
            cache_write_1h=_count(self._usage, "cache_creation", "ephemeral_1h_input_tokens"),
            web_searches=_count(self._usage, "server_tool_use", "web_search_requests"),
        )

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the reply, its head included.

        Bytes that cannot be read end the count without an error.
        """
        if self.is_over:
            return
        try:
            self._http.receive_data(data)
            while isinstance(event := self._http.next_event(), h11.Event):
                if isinstance(event, h11.Response):
                    named = dict(event.headers)
                    self._is_stream = b"text/event-stream" in named.get(b"content-type", b"").lower()
                    self.is_over = event.status_code != HTTPStatus.OK or b"content-encoding" in named
                elif isinstance(event, h11.Data) and not self.is_over:
                    self._body += event.data
                    *lines, self._body = self._body.split(b"\n") if self._is_stream else [self._body]
                    for line in lines:
                        if line.startswith(b"data:"):
                            self._look_into(line[5:])
                    if len(self._body) > _MOST_COUNTED:
                        self.is_over = True
                        self._body.clear()
                elif isinstance(event, h11.EndOfMessage):
                    # The connection may stay open for more.
                    self.end()
        except h11.RemoteProtocolError:
            self.is_over = True

    def end(self) -> None:
        """Note that the reply has ended; if it was not streamed, read its model and tokens now."""
        if not self._is_stream and not self.is_over:
            self._look_into(self._body)
        self.is_over = True
        self._body.clear()

    def _look_into(self, text: bytes | bytearray) -> None:
        """Read model and tokens from the JSON of a reply or an event. The last number of each kind replaces others."""
        if b'"usage"' not in text and not any(each in text for each in _LAST_EVENTS):
            return
        try:
            event = _object(json.loads(text))
        except (ValueError, RecursionError):
            return
        self.is_over = self.is_over or str(event.get("type")).encode() in _LAST_EVENTS
        told = _object(event.get("message")) or _object(event.get("response")) or event
        self.model = str(told.get("model") or self.model)
        self._usage |= {name: each for name, each in _object(told.get("usage")).items() if each is not None}


def _object(value: Any) -> dict[str, Any]:  # noqa: ANN401  any JSON value
    return value if isinstance(value, dict) else {}


def _count(usage: dict[str, Any], *path: str) -> int:
    found: Any = usage
    for name in path:
        found = _object(found).get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


class ApiRelay:
    """The server that an engine talks to in place of its API: passes requests on, or opens a tunnel.

    `url` is the address of the API. `keys` has each of the user's keys by the stand-in that the engine was given for
    it. The relay replaces stand-ins, and refuses requests without one; with None, it passes requests on as they are.
    `hosts` are those to which the engine may open a tunnel. `environment` is where the user's proxy is looked for.
    """

    def __init__(
        self, url: str, keys: Mapping[str, str] | None, hosts: Collection[str], environment: Mapping[str, str]
    ) -> None:
        self._url = urllib.parse.urlsplit(url)
        self._below = f"{self._url.path.rstrip('/')}/"
        self.needs_key = keys is not None
        self._keys = {stand_in.encode(): key.encode() for stand_in, key in (keys or {}).items()}
        self._hosts = frozenset(hosts)
        self._environment = environment
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._counted: list[CountedReply] = []

    def take_counted(self, *, unfinished: bool = False) -> list[CountedReply]:
        """Return the replies that have ended and told their tokens.

        Each is returned once. With `unfinished`, also return replies in progress, whose later tokens are then not
        counted.
        """
        taken = [each for each in self._counted if each.is_over or unfinished]
        self._counted = [each for each in self._counted if each not in taken]
        return [each for each in taken if each.tokens is not None]

    async def listen(self, listening: socket.socket) -> None:
        """Accept connections on a listening socket from now on."""
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=_PIECE)

    async def close(self) -> None:
        """Close the listening socket and all connections."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        for each in self._open:
            each.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or len(self._open) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        # Not a coroutine: Python 3.11 reports one that is cancelled as an error.
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            _refuse(writer, "502 Bad Gateway", f"crewboard could not pass it on: {str(error) or type(error).__name__}")
        except asyncio.CancelledError:
            # An engine that reads nothing would keep it open.
            writer.transport.abort()
            raise
        finally:
            # What was answered is sent before it is closed.
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_TIMEOUT):
            first, *fields = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        method, target = [*first.split(" "), ""][:2]
        counted = None
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            if host not in self._hosts or port != "443":
                _refuse(writer, "403 Forbidden", f"this engine reaches {', '.join(self._hosts) or 'its API'} alone")
                return
            ours, theirs = await self._connect(host, 443)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            if not self._is_plain(first, fields):
                _refuse(writer, "400 Bad Request", f"only plain requests below {self._below} are passed on")
                return
            head = self._head(first, fields)
            if head is None:
                _refuse(writer, "401 Unauthorized", "the request has no key of this engine")
                return
            is_tls, host = self._url.scheme == "https", self._url.hostname or ""
            ours, theirs = await self._connect(host, self._url.port or (443 if is_tls else 80))
            if is_tls:
                self._tls = self._tls or ssl.create_default_context()
                await theirs.start_tls(self._tls, server_hostname=host)
            theirs.write(head)
            counted = CountedReply()
            self._counted.append(counted)
        feed = counted.feed if counted is not None else None
        passing = [asyncio.ensure_future(each) for each in (_pass_on(reader, theirs), _pass_on(ours, writer, feed))]
        try:
            # A client that closes its end wants no answer.
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            theirs.transport.abort()
            raise
        finally:
            for each in passing:
                each.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            theirs.close()
            if counted is not None:
                counted.end()

    def _is_plain(self, first: str, fields: list[str]) -> bool:
        """Return True if a request is for a path below that of the API, and no server can read it in another way.

        A server at the address may be a proxy: a request for another server or path would take the key there.
        """
        request = _REQUEST.fullmatch(first)
        if request is None or not all(map(_FIELD.fullmatch, fields)):
            return False
        path = plain = request[1].partition("?")[0]
        while (decoded := urllib.parse.unquote(plain)) != plain:
            plain = decoded
        # Behind two slashes, a host may be read.
        is_below = path.startswith(self._below) and not (self._below == "/" and path.startswith("//"))
        return is_below and not _UPWARD.search(plain) and not {"\\", "#"}.intersection(request[1] + plain)

    def _head(self, first: str, fields: list[str]) -> bytes | None:
        """Return the head of a request as it is sent to the API; None if it needs a stand-in for a key, and has none.

        It asks the API to close the connection after the answer, because a second head would not be read here.
        """
        kept, is_authorized, is_upgrade = [first.encode("latin-1")], not self.needs_key, False
        for field in fields:
            name = field.partition(":")[0].strip().lower()
            line = field.encode("latin-1")
            # What is compressed could not be counted.
            if name in ("host", "connection", "keep-alive", "accept-encoding"):
                continue
            if name in ("authorization", "x-api-key"):
                for stand_in, key in self._keys.items():
                    is_authorized = is_authorized or stand_in in line
                    line = line.replace(stand_in, key)
            is_upgrade = is_upgrade or name == "upgrade"
            kept.append(line)
        if not is_authorized:
            return None
        kept.append(f"Host: {self._url.netloc.rpartition('@')[2]}".encode())
        kept.append(b"Connection: Upgrade" if is_upgrade else b"Connection: close")
        return b"\r\n".join(kept) + b"\r\n\r\n"

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a server, through the user's proxy if there is one for it.

        Raises:
            OSError: The server or the proxy cannot be reached, or the proxy refuses.
            TimeoutError: The connection took too long.
        """
        proxy = endpoint.proxy(self._environment, f"{self._url.scheme if port != 443 else 'https'}://{host}:{port}")  # noqa: PLR2004
        async with asyncio.timeout(_HEAD_TIMEOUT):
            if proxy is None:
                return await asyncio.open_connection(host, port)
            parts = urllib.parse.urlsplit(proxy)
            is_tls = parts.scheme == "https"
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if is_tls else 80), ssl=is_tls or None
            )
            login = ""
            if parts.username:
                both = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
                login = f"Proxy-Authorization: Basic {base64.b64encode(both.encode()).decode()}\r\n"
            try:
                writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{login}\r\n".encode())
                answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1")
                if answer.split(" ")[1:2] != ["200"]:
                    raise OSError(f"the proxy answers {answer}")
            except BaseException:
                writer.transport.abort()
                raise
        return reader, writer


def _refuse(writer: asyncio.StreamWriter, status: str, why: str) -> None:
    body = json.dumps({"error": {"type": "crewboard", "message": why}}).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    )
    with contextlib.suppress(OSError):
        writer.write(f"{head}\r\n".encode() + body)


async def _pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, feed: Callable[[bytes], None] | None = None
) -> None:
    """Write what `source` sends to `target` until one of them ends. `feed` is called with each piece once written."""
    with contextlib.suppress(OSError):
        while data := await source.read(_PIECE):
            target.write(data)
            if feed is not None:
                feed(data)
            await target.drain()
