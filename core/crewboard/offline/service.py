"""The Messages API: what each path answers."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from crewboard.offline import conversation, faults, mind
from crewboard.offline.faults import Fault, Faults
from crewboard.offline.http import Client, Incoming, error_body
from crewboard.offline.reply import Event, Reply, count, events, message
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.script import Script
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
    """What stands behind the port. `pace` multiplies every delay; 0 answers at once."""

    pace: float = 0
    faults: Faults = field(default_factory=Faults)
    script: Script = field(default_factory=Script)
    scenarios: Sequence[Scenario] = field(default_factory=load_all)
    window: int = WINDOW
    record: Callable[[dict[str, Any]], None] | None = None
    """Called with the body of every request for a message."""

    async def handle(self, incoming: Incoming, client: Client) -> None:
        """Answer one request."""
        request_id = f"req_{hashlib.sha256(incoming.body).hexdigest()[:24]}"
        try:
            _check_headers(incoming)
            await self._route(incoming, client, request_id)
        except _ApiError as error:
            kind = faults.ERROR_TYPES[error.status]
            body = {**error_body(kind, str(error)), "request_id": request_id}
            await client.answer(error.status, body, {"request-id": request_id})

    async def _route(self, incoming: Incoming, client: Client, request_id: str) -> None:
        match incoming.method, incoming.path.rstrip("/"):
            case "POST", "/v1/messages":
                await self._messages(incoming, client, request_id)
            case "POST", "/v1/messages/count_tokens":
                asked = _parsed(incoming, CountRequest)
                usage = count(asked, cached=False)
                await client.answer(200, {"input_tokens": usage.total}, {"request-id": request_id})
            case "GET", "/v1/models":
                await client.answer(200, self._models(), {"request-id": request_id})
            case "GET", path if path.startswith("/v1/models/"):
                await client.answer(200, self._model(path.removeprefix("/v1/models/")), {"request-id": request_id})
            case method, path if path in {"/v1/messages", "/v1/messages/count_tokens", "/v1/models"}:
                raise _ApiError(405, f"Method {method} is not allowed here")
            case _:
                raise _ApiError(404, f"Not found: {incoming.path}")

    async def _messages(self, incoming: Incoming, client: Client, request_id: str) -> None:
        if self.record:
            self.record(_json(incoming))
        asked = _parsed(incoming, MessagesRequest)
        talk = conversation.read(asked)
        usage = count(asked, cached=_caches(asked))
        if usage.total > self.window:
            raise _ApiError(400, f"prompt is too long: {usage.total} tokens > {self.window} maximum")
        fault = self.faults.next_for(talk.name)
        if fault and await faults.before(fault, client, request_id):
            return
        reply = self.script.reply(talk.name, asked) or mind.think(asked, talk, self.scenarios)
        whole = message(reply, asked.model, incoming.body, usage, asked.max_tokens)
        if asked.stream:
            await self._stream(whole, reply, client, request_id, fault)
        else:
            await self._whole(whole, reply, client, request_id, fault)

    async def _whole(
        self, whole: dict[str, Any], reply: Reply, client: Client, request_id: str, fault: Fault | None
    ) -> None:
        await asyncio.sleep(sum(event.pause for event in events(whole, reply.speed.at(self.pace))))
        if fault and fault.kind in {"cut", "clean_cut", "error_event"}:
            await client.cut()
            return
        await client.answer(200, whole, {"request-id": request_id})

    async def _stream(
        self, whole: dict[str, Any], reply: Reply, client: Client, request_id: str, fault: Fault | None
    ) -> None:
        await client.begin_stream({"request-id": request_id})
        pieces = 0
        for event in events(whole, reply.speed.at(self.pace)):
            if fault and _breaks_here(fault, event, pieces):
                await faults.during(fault, client)
                return
            if event.pause:
                await client.flush()
                await asyncio.sleep(event.pause)
            client.write(event.encode())
            pieces += event.counts
        await client.end_stream()

    def _models(self) -> dict[str, Any]:
        listed = [self._model(name) for name in MODELS]
        return {"data": listed, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}

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


def _breaks_here(fault: Fault, event: Event, pieces: int) -> bool:
    """A stream breaks after so many pieces, and in any case before it says that it is whole."""
    breaking = fault.kind in {"cut", "clean_cut", "error_event"}
    ends = event.data["type"] == "message_delta"
    return breaking and (ends or (event.counts and pieces >= fault.after))


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
    body = _json(incoming)
    if "beta=true" in incoming.query:
        # Beta fields are many and change; what they ask for is not done here.
        body = {key: value for key, value in body.items() if key in model.model_fields}
    try:
        return parse(body, model)
    except InvalidRequestError as error:
        raise _ApiError(400, str(error)) from error


def _caches(asked: MessagesRequest) -> bool:
    marked = (block.cache_control for block in asked.system)
    return asked.cache_control is not None or any(marked)
