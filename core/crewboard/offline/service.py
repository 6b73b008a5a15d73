"""The Messages API: what each path answers, and misbehaviour on demand.

Faults come from the file that `CREWBOARD_OFFLINE_FAULTS` names: a JSON list of faults and nulls. It is read again
whenever it changes. Each request takes the first entry for its agent or for any; null is none.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from crewboard import models
from crewboard.offline import conversation
from crewboard.offline.conversation import Conversation
from crewboard.offline.http import Client, Incoming, error_body
from crewboard.offline.reply import Event, PromptCache, Reply, events, message
from crewboard.offline.respond import respond
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.wire import MessagesRequest, parse

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
"""The API's name for each status."""

WINDOW = 200_000
MOST_OUTPUT = 64_000


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """One way to misbehave.

    `status` answers with that status, `slow` as usual after `seconds`. `cut` closes the connection after `after` pieces
    of the reply, `clean_cut` ends the stream there as if it were whole, `error_event` with an error. `hang` is silent.
    `ping` begins the stream and sends a ping every `seconds`, but nothing of the reply; `drip` pauses `seconds` before
    each event.
    """

    kind: Literal["status", "slow", "cut", "clean_cut", "error_event", "hang", "ping", "drip"]
    agent: str | None = None
    status: Annotated[int, Meta(ge=400, le=599)] = 529
    retry_after: float | None = None
    seconds: Annotated[float, Meta(ge=0)] = 0
    after: Annotated[int, Meta(ge=0)] = 2
    message: str = ""


class Faults:
    """The faults that are still to come."""

    def __init__(self, faults: Iterable[Fault | None] = (), file: Path | None = None) -> None:
        self._left = list(faults)
        self._file = file
        self._seen: tuple[int, int] | None = None

    def next_for(self, agent: str) -> Fault | None:
        """Take the next entry that is meant for `agent`."""
        if self._file is not None and self._file.exists():
            stat = self._file.stat()
            if (mark := (stat.st_mtime_ns, stat.st_ino)) != self._seen:
                self._seen = mark
                self._left = msgspec.json.decode(self._file.read_bytes(), type=list[Fault | None])
        for place, fault in enumerate(self._left):
            if fault is None or fault.agent in {None, agent}:
                return self._left.pop(place)
        return None


async def misbehave_before_reply(fault: Fault, client: Client, request_id: str) -> bool:
    """Misbehave before anything of the reply is sent; return True if nothing more is to be sent."""
    if fault.kind == "hang":
        await client.gone()
    elif fault.kind == "ping":
        await client.begin_stream({"request-id": request_id})
        while True:
            client.write(Event({"type": "ping"}).encode())
            await asyncio.sleep(fault.seconds)
    elif fault.kind == "slow":
        await asyncio.sleep(fault.seconds)
    elif fault.kind == "status":
        wait = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
        body = {**_fault_error(fault), "request_id": request_id}
        await client.answer(fault.status, body, {"request-id": request_id, **wait})
    return fault.kind in {"hang", "status"}


async def misbehave_in_stream(fault: Fault, client: Client) -> None:
    """Misbehave where a stream is to end too early."""
    if fault.kind == "error_event":
        client.write(Event(_fault_error(fault)).encode())
    await (client.cut() if fault.kind == "cut" else client.end_stream())


def _fault_error(fault: Fault) -> dict[str, object]:
    kind = ERROR_TYPES.get(fault.status, "api_error")
    return error_body(kind, fault.message or kind.replace("_", " ").capitalize())


class ApiError(Exception):
    """An answer that is an error in the API's form: its status and text."""


@dataclass
class Service:
    """The server's answers. `pace` multiplies every delay."""

    pace: float = 0
    faults: Faults = field(default_factory=Faults)
    scenarios: Sequence[Scenario] = field(default_factory=load_all)
    window: int = WINDOW
    refused: list[str] = field(default_factory=list)
    """Status and text of each error that was no fault."""
    _cache: PromptCache = field(default_factory=PromptCache)

    async def handle(self, incoming: Incoming, client: Client) -> None:
        """Answer one request."""
        request_id = f"req_{hashlib.sha256(incoming.body).hexdigest()[:24]}"
        try:
            _check_headers(incoming)
            if (answer := self._answer(incoming)) is None:
                await self._messages(incoming, client, request_id)
            else:
                await client.answer(200, answer, {"request-id": request_id})
        except ApiError as error:
            status, text = error.args
            self.refused.append(f"{status} {text}")
            body = {**error_body(ERROR_TYPES[status], text), "request_id": request_id}
            await client.answer(status, body, {"request-id": request_id})

    def _answer(self, incoming: Incoming) -> dict[str, Any] | None:
        """Return the answer to a request, None for a message."""
        match incoming.method, incoming.path.rstrip("/"):
            case "POST", "/v1/messages":
                return None
            case "GET", path if path.startswith("/v1/models/"):
                return self._model(path.removeprefix("/v1/models/"))
            case ("HEAD" as method, _) | (method, "/v1/messages"):
                raise ApiError(405, f"Method {method} is not allowed here")
        raise ApiError(404, f"Not found: {incoming.path}")

    def _model(self, name: str) -> dict[str, Any]:
        if not name.startswith("claude-"):
            raise ApiError(404, f"model: {name}")
        return {
            "type": "model", "id": name, "display_name": f"{name} (offline model)", "lifecycle": "active",
            "created_at": "1970-01-01T00:00:00Z", "max_input_tokens": self.window, "max_tokens": MOST_OUTPUT,
            **models.offline(name),
        }  # fmt: skip

    def read(self, incoming: Incoming) -> MessagesRequest:
        """Return a request that is valid."""
        try:
            return parse(json.loads(incoming.body), MessagesRequest)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, str(error)) from error

    def reply(self, talk: Conversation, _asked: MessagesRequest) -> Reply:
        """Return the reply to a request."""
        return respond(talk, self.scenarios)

    def whole(self, reply: Reply, asked: MessagesRequest, incoming: Incoming, usage: dict[str, int]) -> dict[str, Any]:
        """Return a reply as a message."""
        return message(reply, asked.model, incoming.body, usage, asked.max_tokens)

    async def _messages(self, incoming: Incoming, client: Client, request_id: str) -> None:
        asked = self.read(incoming)
        talk = conversation.read(asked)
        usage = self._cache.count(asked)
        if (total := sum(usage.values())) > self.window:
            raise ApiError(400, f"prompt is too long: {total} tokens > {self.window} maximum")
        fault = self.faults.next_for(talk.name)
        if fault and await misbehave_before_reply(fault, client, request_id):
            return None
        reply = self.reply(talk, asked)
        whole = self.whole(reply, asked, incoming, usage)
        stream = events(whole, reply.speed.at(self.pace))
        if asked.stream:
            await client.begin_stream({"request-id": request_id})
        pieces = 0
        for event in stream:
            # After so many pieces, and in any case before it says that it is whole.
            is_last = event.data["type"] == "message_delta"
            breaks = fault is not None and (is_last or (event.counts and pieces >= fault.after))
            if fault and breaks and fault.kind in {"cut", "clean_cut", "error_event"}:
                return await (misbehave_in_stream(fault, client) if asked.stream else client.cut())
            if pause := fault.seconds if fault and fault.kind == "drip" else event.pause:
                await client.flush()
                await asyncio.sleep(pause)
            if asked.stream:
                client.write(event.encode())
            pieces += event.counts
        return await (client.end_stream() if asked.stream else client.answer(200, whole, {"request-id": request_id}))


def _check_headers(incoming: Incoming) -> None:
    headers = incoming.headers
    if not (headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer").strip()):
        raise ApiError(401, "x-api-key header is required")
    if "anthropic-version" not in headers:
        raise ApiError(400, "anthropic-version: header is required")
