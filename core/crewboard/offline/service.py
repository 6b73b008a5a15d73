"""The Messages API: what each path answers."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crewboard.offline import conversation, faults
from crewboard.offline.faults import Fault, Faults
from crewboard.offline.http import Client, Incoming, error_body
from crewboard.offline.reply import Event, Reply, count, events, message
from crewboard.offline.respond import respond
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.wire import CountRequest, InvalidRequestError, MessagesRequest, parse

R = TypeVar("R", bound=CountRequest)

MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5")
WINDOW = 200_000
"""Tokens that a model takes in."""

_MOST_OUTPUT = 64_000


class _ApiError(Exception):
    """An answer that is an error in the API's form."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Service:
    """What stands behind the port. `pace` multiplies every delay; 0 answers at once.

    `script` may give the reply to a request of an agent, before scenarios and the phrasebook are asked; `record` is
    called with the body of every request for a message.
    """

    pace: float = 0
    faults: Faults = field(default_factory=Faults)
    script: Callable[[str, MessagesRequest], Reply | None] = lambda _agent, _request: None
    scenarios: Sequence[Scenario] = field(default_factory=load_all)
    window: int = WINDOW
    record: Callable[[dict[str, Any]], None] = lambda _body: None

    async def handle(self, incoming: Incoming, client: Client) -> None:
        """Answer one request."""
        request_id = f"req_{hashlib.sha256(incoming.body).hexdigest()[:24]}"
        try:
            _check_headers(incoming)
            if (answer := self._answer(incoming)) is None:
                await self._messages(incoming, client, request_id)
            else:
                await client.answer(200, answer, {"request-id": request_id})
        except _ApiError as error:
            body = {**error_body(faults.ERROR_TYPES[error.status], str(error)), "request_id": request_id}
            await client.answer(error.status, body, {"request-id": request_id})

    def _answer(self, incoming: Incoming) -> dict[str, Any] | None:
        """Return the answer to a request, None for a message."""
        match incoming.method, incoming.path.rstrip("/"):
            case "POST", "/v1/messages":
                return None
            case "POST", "/v1/messages/count_tokens":
                return {"input_tokens": count(_parsed(incoming, CountRequest), cached=False).total}
            case "GET", "/v1/models":
                listed = [self._model(name) for name in MODELS]
                return {"data": listed, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}
            case "GET", path if path.startswith("/v1/models/"):
                return self._model(path.removeprefix("/v1/models/"))
            case method, "/v1/messages" | "/v1/messages/count_tokens" | "/v1/models":
                raise _ApiError(405, f"Method {method} is not allowed here")
        raise _ApiError(404, f"Not found: {incoming.path}")

    def _model(self, name: str) -> dict[str, Any]:
        if not name.startswith("claude-"):
            raise _ApiError(404, f"model: {name}")
        return {
            "type": "model",
            "id": name,
            "display_name": f"{name} (embedded model)",
            "created_at": "1970-01-01T00:00:00Z",
            "lifecycle": "active",
            "max_input_tokens": self.window,
            "max_tokens": _MOST_OUTPUT,
        }

    async def _messages(self, incoming: Incoming, client: Client, request_id: str) -> None:
        self.record(_json(incoming))
        asked = _parsed(incoming, MessagesRequest)
        talk = conversation.read(asked)
        cached = asked.cache_control is not None or any(block.cache_control for block in asked.system)
        usage = count(asked, cached=cached)
        if usage.total > self.window:
            raise _ApiError(400, f"prompt is too long: {usage.total} tokens > {self.window} maximum")
        fault = self.faults.next_for(talk.name)
        if fault and await faults.before(fault, client, request_id):
            return None
        reply = self.script(talk.name, asked) or respond(asked, talk, self.scenarios)
        whole = message(reply, asked.model, incoming.body, usage, asked.max_tokens)
        stream = events(whole, reply.speed.at(self.pace))
        if asked.stream:
            await client.begin_stream({"request-id": request_id})
        pieces = 0
        for event in stream:
            if fault and _breaks_here(fault, event, pieces):
                return await (faults.during(fault, client) if asked.stream else client.cut())
            if event.pause:
                await client.flush()
                await asyncio.sleep(event.pause)
            if asked.stream:
                client.write(event.encode())
            pieces += event.counts
        return await (client.end_stream() if asked.stream else client.answer(200, whole, {"request-id": request_id}))


def _breaks_here(fault: Fault, event: Event, pieces: int) -> bool:
    """Return True if the stream breaks: after so many pieces, and in any case before it says that it is whole."""
    breaking = fault.kind in {"cut", "clean_cut", "error_event"}
    return breaking and (event.data["type"] == "message_delta" or (event.counts and pieces >= fault.after))


def _check_headers(incoming: Incoming) -> None:
    headers = incoming.headers
    if not (headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer").strip()):
        raise _ApiError(401, "x-api-key header is required")
    if "anthropic-version" not in headers:
        raise _ApiError(400, "anthropic-version: header is required")


def _json(incoming: Incoming) -> dict[str, Any]:
    try:
        body = json.loads(incoming.body)
    except (ValueError, RecursionError) as error:
        raise _ApiError(400, "The request body is not valid JSON") from error
    if not isinstance(body, dict):
        raise _ApiError(400, "The request body must be a JSON object")
    return body


def _parsed(incoming: Incoming, model: type[R]) -> R:
    try:
        return parse(_json(incoming), model)
    except InvalidRequestError as error:
        raise _ApiError(400, str(error)) from error
