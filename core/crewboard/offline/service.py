"""The Messages API of the offline model: the answer to each path, and faults on demand, for tests.

Faults come from the file that `CREWBOARD_OFFLINE_FAULTS` names: a JSON list of faults and nulls, which is read again
whenever it changes. Each request takes the first entry that is for its agent or for any agent; null is for any agent,
and means no fault.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, ValidationError, convert

from crewboard import models
from crewboard.offline import conversation
from crewboard.offline.conversation import Block, Conversation, Request, blocks_of
from crewboard.offline.http import Client, Incoming, error_body
from crewboard.offline.reply import Event, Reply, Speed, events, message, tokens
from crewboard.offline.respond import respond
from crewboard.offline.scenario import Scenario, load_all

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
"""The API's error type for each HTTP status."""

WINDOW = 200_000
MOST_OUTPUT = 64_000
_MEDIA_TOKENS = 1500
_MOST_STORED = 20_000


class ApiError(Exception):
    """An error to answer a request with: its HTTP status and its text."""


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """A way in which the server answers a request wrongly, for tests. `agent` is the agent it is for; None for any.

    `status` answers with that status, `slow` as usual after `seconds`. `cut` closes the connection after `after` pieces
    of the reply, `clean_cut` ends the stream there as if it were whole, `error_event` with an error. `hang` never
    answers. `ping` begins the stream and sends a ping every `seconds`, but nothing of the reply; `drip` waits
    `seconds` before each event.
    """

    kind: Literal["status", "slow", "cut", "clean_cut", "error_event", "hang", "ping", "drip"]
    agent: str | None = None
    status: Annotated[int, Meta(ge=400, le=599)] = 529
    retry_after: float | None = None
    seconds: Annotated[float, Meta(ge=0)] = 0
    after: Annotated[int, Meta(ge=0)] = 2
    message: str = ""

    @property
    def ends_early(self) -> bool:
        """Return True if this fault breaks a reply off in the middle."""
        return self.kind in {"cut", "clean_cut", "error_event"}

    @property
    def error(self) -> dict[str, Any]:
        """Return the body of the error answer, in the API's form."""
        kind = ERROR_TYPES.get(self.status, "api_error")
        return error_body(kind, self.message or kind.replace("_", " ").capitalize())


class Faults:
    """The list of faults that are left, given or read from `file`."""

    def __init__(self, faults: Iterable[Fault | None] = (), file: Path | None = None) -> None:
        self._left = list(faults)
        self._file = file
        self._seen: tuple[int, int] | None = None

    def next_for(self, agent: str) -> Fault | None:
        """Remove and return the first entry for `agent` or for any agent; None if that is null, or there is none."""
        if self._file is not None and self._file.exists():
            stat = self._file.stat()
            if (mark := (stat.st_mtime_ns, stat.st_ino)) != self._seen:
                self._seen = mark
                self._left = msgspec.json.decode(self._file.read_bytes(), type=list[Fault | None])
        for place, fault in enumerate(self._left):
            if fault is None or fault.agent in {None, agent}:
                return self._left.pop(place)
        return None


async def hang() -> None:
    """Wait for ever: until the task is cancelled at the end of the server."""
    await asyncio.Event().wait()


def misbehave(fault: Fault, events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events of a stream as a fault changes them.

    One that ends early breaks it off, at the latest before `message_delta`. Others change at most the pauses.
    """
    pieces = 0
    for event in events:
        is_last = event.data["type"] == "message_delta"
        is_piece = event.data["type"] == "content_block_delta"
        if fault.ends_early and (is_last or (is_piece and pieces >= fault.after)):
            if fault.kind == "error_event":
                yield Event(fault.error)
            return
        yield Event(event.data, fault.seconds) if fault.kind == "drip" else event
        pieces += is_piece


@dataclass
class Service:
    """The answers of the server to requests.

    `pace` multiplies every delay, and `window` is the most input tokens of a request.
    """

    pace: float = 0
    faults: Faults = field(default_factory=Faults)
    scenarios: Sequence[Scenario] = field(default_factory=load_all)
    window: int = WINDOW
    _stored: dict[bytes, None] = field(default_factory=dict)
    """The digests of beginnings of requests that are in the prompt cache, the oldest first."""

    async def handle(self, incoming: Incoming, client: Client) -> None:
        """Answer one request."""
        headers = {"request-id": f"req_{hashlib.sha256(incoming.body).hexdigest()[:24]}"}
        try:
            _check_headers(incoming)
            match incoming.method, incoming.path.rstrip("/"):
                case "POST", "/v1/messages":
                    await self._messages(incoming, client, headers)
                case "GET", path if path.startswith("/v1/models/"):
                    name = path.removeprefix("/v1/models/")
                    if not name.startswith("claude-"):
                        raise ApiError(404, f"model: {name}")
                    described = {
                        "type": "model", "id": name, "display_name": f"{name} (offline model)", "lifecycle": "active",
                        "created_at": "1970-01-01T00:00:00Z", "max_input_tokens": self.window,
                        "max_tokens": MOST_OUTPUT, **models.offline(name),
                    }  # fmt: skip
                    await client.answer(200, described, headers)
                case ("HEAD" as method, _) | (method, "/v1/messages"):
                    raise ApiError(405, f"Method {method} is not allowed here")
                case _, path:
                    raise ApiError(404, f"Not found: {path}")
        except ApiError as error:
            await self.refuse(error, client, headers)

    async def refuse(self, error: ApiError, client: Client, headers: dict[str, str]) -> None:
        """Answer with an error that was raised."""
        status, text = error.args
        body = error_body(ERROR_TYPES.get(status, "invalid_request_error"), text)
        await client.answer(status, {**body, "request_id": headers["request-id"]}, headers)

    def read(self, incoming: Incoming) -> Request:
        """Return the parsed body of a request.

        Raises:
            ApiError: The body is no valid request; status 400.
        """
        try:
            return convert(json.loads(incoming.body), Request)
        except (ValidationError, ValueError, RecursionError) as error:
            raise ApiError(400, str(error)) from error

    def count(self, asked: Request) -> dict[str, int]:
        """Return the input tokens of a request by the API's kinds, and store what it marks for the prompt cache.

        The longest marked beginning that an earlier request stored counts as read from the cache, and the rest up to
        the last mark as written to it. Unlike the API's, this cache looks at marks alone, and nothing in it expires;
        only the oldest of too many entries are dropped.
        """
        total = read = 0
        written = {"5m": 0, "1h": 0}
        digest = hashlib.sha256(asked.model.encode())
        # What the prompt cache compares, in this order.
        tools = [tool for tool in asked.tools if not tool.get("defer_loading")]
        said = [{"role": each.role, **block} for each in asked.messages for block in blocks_of(each.content)]
        for piece in [*tools, *blocks_of(asked.system), *said]:
            mark, plain = piece.get("cache_control"), {**piece, "cache_control": None}
            digest.update(json.dumps(plain, sort_keys=True).encode())
            total += _size(plain)
            if mark and digest.digest() in self._stored:
                read, written = total, {"5m": 0, "1h": 0}
            elif mark:
                written[mark.get("ttl", "5m")] += total - read - sum(written.values())
                self._stored[digest.digest()] = None
        while len(self._stored) > _MOST_STORED:
            del self._stored[next(iter(self._stored))]
        return {
            "input_tokens": max(1, total) - read - sum(written.values()), "cache_read_input_tokens": read,
            "ephemeral_5m_input_tokens": written["5m"], "ephemeral_1h_input_tokens": written["1h"],
        }  # fmt: skip

    def reply(self, talk: Conversation, _asked: Request) -> Reply:
        """Return the reply to a request; subclasses in tests may use the whole request."""
        return respond(talk, self.scenarios)

    def whole(self, reply: Reply, asked: Request, seed: str, usage: dict[str, int]) -> dict[str, Any]:
        """Return a reply as a message of the API. `usage` are the input tokens from `count`."""
        return message(reply, asked.model, seed, usage, asked.max_tokens)

    async def _messages(self, incoming: Incoming, client: Client, headers: dict[str, str]) -> None:
        asked = self.read(incoming)
        talk = conversation.read(asked)
        usage = self.count(asked)
        if (total := sum(usage.values())) > self.window:
            raise ApiError(400, f"prompt is too long: {total} tokens > {self.window} maximum")
        # Slow by no seconds is as usual.
        fault = self.faults.next_for(talk.name) or Fault("slow")
        match fault.kind:
            case "hang":
                await hang()
            case "ping":
                await client.begin_stream(headers)
                while True:
                    client.write(Event({"type": "ping"}).encode())
                    await asyncio.sleep(fault.seconds)
            case "slow":
                await asyncio.sleep(fault.seconds)
            case "status":
                wait = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
                body = {**fault.error, "request_id": headers["request-id"]}
                await client.answer(fault.status, body, {**headers, **wait})
                return
        reply = self.reply(talk, asked)
        whole = self.whole(reply, asked, headers["request-id"], usage)
        stream = misbehave(fault, self.stream(whole, asked, reply.speed.at(self.pace)))
        if asked.stream:
            await client.begin_stream(headers)
            for event in stream:
                if event.pause:
                    await client.flush()
                    await asyncio.sleep(event.pause)
                client.write(event.encode())
        if fault.kind == "cut" or (fault.ends_early and not asked.stream):
            await client.flush()
            # By this, the server closes the connection.
            raise ConnectionResetError
        if asked.stream:
            await client.end_stream()
        else:
            await asyncio.sleep(sum(event.pause for event in stream))
            await client.answer(200, whole, headers)

    def stream(self, whole: dict[str, Any], _asked: Request, speed: Speed) -> Iterator[Event]:
        """Yield the events of a stream for the message `whole`, with the pauses of `speed`."""
        return events(whole, speed)


def _check_headers(incoming: Incoming) -> None:
    headers = incoming.headers
    if not (headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer").strip()):
        raise ApiError(401, "x-api-key header is required")
    if "anthropic-version" not in headers:
        raise ApiError(400, "anthropic-version: header is required")


def _size(piece: Block) -> int:
    if piece.get("type") in ("image", "document"):
        return _MEDIA_TOKENS
    content = piece.get("content")
    return sum(map(_size, content)) if isinstance(content, list) else tokens(json.dumps(piece))
