"""The Messages API of the offline model: what each path answers, and the faults that meet a request."""

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import ValidationError, convert

from crewboard import models
from crewboard.offline import conversation
from crewboard.offline.conversation import Block, Conversation, Request, blocks_of
from crewboard.offline.faults import Faults, cut, misbehave_before_reply, misbehave_in_stream, until_fault
from crewboard.offline.http import Client, Incoming, error_body
from crewboard.offline.reply import Event, Reply, Speed, events, message, tokens
from crewboard.offline.respond import respond
from crewboard.offline.scenario import Scenario, load_all

WINDOW = 200_000
MOST_OUTPUT = 64_000
_MEDIA_TOKENS = 1500
_MOST_STORED = 20_000


class ApiError(Exception):
    """An answer that is an error in the API's form: its status and text."""


_ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


@dataclass
class Service:
    """The server's answers. `pace` multiplies every delay."""

    pace: float = 0
    faults: Faults = field(default_factory=Faults)
    scenarios: Sequence[Scenario] = field(default_factory=load_all)
    window: int = WINDOW
    _stored: dict[bytes, None] = field(default_factory=dict)
    """The beginnings of requests that are in the prompt cache, the oldest first."""

    async def handle(self, incoming: Incoming, client: Client) -> None:
        """Answer one request."""
        headers = {"request-id": f"req_{hashlib.sha256(incoming.body).hexdigest()[:24]}"}
        try:
            _check_headers(incoming)
            match incoming.method, incoming.path.rstrip("/"):
                case "POST", "/v1/messages":
                    await self._messages(incoming, client, headers)
                case "GET", path if path.startswith("/v1/models/"):
                    await client.answer(200, self._model(path.removeprefix("/v1/models/")), headers)
                case ("HEAD" as method, _) | (method, "/v1/messages"):
                    raise ApiError(405, f"Method {method} is not allowed here")
                case _, path:
                    raise ApiError(404, f"Not found: {path}")
        except ApiError as error:
            await self.refuse(error, client, headers)

    async def refuse(self, error: ApiError, client: Client, headers: dict[str, str]) -> None:
        """Answer with an error."""
        status, text = error.args
        body = error_body(_ERROR_TYPES.get(status, "invalid_request_error"), text)
        await client.answer(status, {**body, "request_id": headers["request-id"]}, headers)

    def _model(self, name: str) -> dict[str, Any]:
        if not name.startswith("claude-"):
            raise ApiError(404, f"model: {name}")
        return {
            "type": "model", "id": name, "display_name": f"{name} (offline model)", "lifecycle": "active",
            "created_at": "1970-01-01T00:00:00Z", "max_input_tokens": self.window, "max_tokens": MOST_OUTPUT,
            **models.offline(name),
        }  # fmt: skip

    def read(self, incoming: Incoming) -> Request:
        """Return a request that is valid."""
        try:
            return convert(json.loads(incoming.body), Request)
        except (ValidationError, ValueError, RecursionError) as error:
            raise ApiError(400, str(error)) from error

    def count(self, asked: Request) -> dict[str, int]:
        """Return the input tokens of a request by the API's kinds, and store what it marks for the prompt cache.

        The longest marked beginning that an earlier request stored is read, and all behind it up to the last mark is
        written. Unlike the API's, this cache looks at marks alone, and forgets nothing in time.
        """
        total = read = 0
        written = {"5m": 0, "1h": 0}
        digest = hashlib.sha256(asked.model.encode())
        for piece in _pieces(asked):
            mark, plain = piece.get("cache_control"), {**piece, "cache_control": None}
            digest.update(json.dumps(plain).encode())
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
        """Return the reply to a request."""
        return respond(talk, self.scenarios)

    def whole(self, reply: Reply, asked: Request, seed: str, usage: dict[str, int]) -> dict[str, Any]:
        """Return a reply as a message."""
        return message(reply, asked.model, seed, usage, asked.max_tokens)

    async def _messages(self, incoming: Incoming, client: Client, headers: dict[str, str]) -> None:
        asked = self.read(incoming)
        talk = conversation.read(asked)
        usage = self.count(asked)
        if (total := sum(usage.values())) > self.window:
            raise ApiError(400, f"prompt is too long: {total} tokens > {self.window} maximum")
        fault = self.faults.next_for(talk.name)
        if fault is not None and await misbehave_before_reply(fault, client, headers):
            return
        reply = self.reply(talk, asked)
        whole = self.whole(reply, asked, headers["request-id"], usage)
        stream = self.stream(whole, asked, reply.speed.at(self.pace))
        if fault is not None:
            stream = until_fault(fault, stream)
        breaks = fault is not None and fault.ends_early
        if breaks and not asked.stream:
            await cut(client)
        elif not asked.stream:
            await asyncio.sleep(sum(event.pause for event in stream))
            await client.answer(200, whole, headers)
        else:
            await client.begin_stream(headers)
            for event in stream:
                if event.pause:
                    await client.flush()
                    await asyncio.sleep(event.pause)
                client.write(event.encode())
            await (misbehave_in_stream(fault, client) if fault is not None and breaks else client.end_stream())

    def stream(self, whole: dict[str, Any], _asked: Request, speed: Speed) -> Iterator[Event]:
        """Yield a message as the events of a stream, at its speed."""
        return events(whole, speed)


def _check_headers(incoming: Incoming) -> None:
    headers = incoming.headers
    if not (headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer").strip()):
        raise ApiError(401, "x-api-key header is required")
    if "anthropic-version" not in headers:
        raise ApiError(400, "anthropic-version: header is required")


def _pieces(asked: Request) -> Iterator[Block]:
    """Yield what is compared in the prompt cache, in its order."""
    yield from (tool for tool in asked.tools if not tool.get("defer_loading"))
    yield from blocks_of(asked.system)
    for each in asked.messages:
        yield from ({"role": each.role, **block} for block in blocks_of(each.content))


def _size(piece: Block) -> int:
    if piece.get("type") in ("image", "document"):
        return _MEDIA_TOKENS
    content = piece.get("content")
    return sum(map(_size, content)) if isinstance(content, list) else tokens(json.dumps(piece))
