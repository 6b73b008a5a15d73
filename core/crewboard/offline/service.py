"""The Messages API: what each path answers."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from crewboard.offline import conversation, faults
from crewboard.offline.faults import Fault, Faults
from crewboard.offline.http import Client, Incoming, error_body
from crewboard.offline.reply import Event, Reply, count, events, message
from crewboard.offline.respond import respond
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.wire import MessagesRequest, parse

WINDOW = 200_000
_MOST_OUTPUT = 64_000


class _ApiError(Exception):
    """An answer that is an error in the API's form: its status and text."""


@dataclass
class Service:
    """What stands behind the port. `pace` multiplies every delay; `script` may give the reply to an agent's request."""

    pace: float = 0
    faults: Faults = field(default_factory=Faults)
    script: Callable[[str, MessagesRequest], Reply | None] = lambda _agent, _request: None
    scenarios: Sequence[Scenario] = field(default_factory=load_all)
    window: int = WINDOW
    record: Callable[[Any], None] = lambda _body: None

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
            status, text = error.args
            body = {**error_body(faults.ERROR_TYPES[status], text), "request_id": request_id}
            await client.answer(status, body, {"request-id": request_id})

    def _answer(self, incoming: Incoming) -> dict[str, Any] | None:
        """Return the answer to a request, None for a message."""
        match incoming.method, incoming.path.rstrip("/"):
            case "POST", "/v1/messages":
                return None
            case "GET", path if path.startswith("/v1/models/"):
                return self._model(path.removeprefix("/v1/models/"))
            case method, "/v1/messages":
                raise _ApiError(405, f"Method {method} is not allowed here")
        raise _ApiError(404, f"Not found: {incoming.path}")

    def _model(self, name: str) -> dict[str, Any]:
        if not name.startswith("claude-"):
            raise _ApiError(404, f"model: {name}")
        return {
            "type": "model", "id": name, "display_name": f"{name} (offline model)", "lifecycle": "active",
            "created_at": "1970-01-01T00:00:00Z", "max_input_tokens": self.window, "max_tokens": _MOST_OUTPUT,
        }  # fmt: skip

    async def _messages(self, incoming: Incoming, client: Client, request_id: str) -> None:
        try:
            body = json.loads(incoming.body)
            self.record(body)
            asked = parse(body)
        except (ValueError, RecursionError) as error:
            raise _ApiError(400, str(error)) from error
        talk = conversation.read(asked)
        cached = asked.cache_control is not None or any(block.cache_control for block in asked.system)
        usage = count(asked, cached=cached)
        if (total := sum(usage.values())) > self.window:
            raise _ApiError(400, f"prompt is too long: {total} tokens > {self.window} maximum")
        fault = self.faults.next_for(talk.name)
        if fault and await faults.before(fault, client, request_id):
            return None
        reply = self.script(talk.name, asked) or respond(talk, self.scenarios)
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
