"""A model that misbehaves on demand, for tests.

Faults come from the file that `CREWBOARD_OFFLINE_FAULTS` names: a JSON list of faults and nulls. It is read again
whenever it changes. Each request takes the first entry for its agent or for any; null is none.
"""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from crewboard.offline.http import Client, error_body
from crewboard.offline.reply import Event

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
"""The API's name for each status."""


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

    @property
    def ends_early(self) -> bool:
        """Return True if the reply begins and does not end."""
        return self.kind in {"cut", "clean_cut", "error_event"}

    @property
    def error(self) -> dict[str, Any]:
        """Return the error in the API's form."""
        kind = ERROR_TYPES.get(self.status, "api_error")
        return error_body(kind, self.message or kind.replace("_", " ").capitalize())


class Faults:
    """The faults that are still to come."""

    def __init__(self, faults: Iterable[Fault | None] = (), file: Path | None = None) -> None:
        self._left = list(faults)
        self._file = file
        self._seen: tuple[int, int] | None = None

    def next_for(self, agent: str) -> Fault | None:
        """Take the next entry that is for `agent` or for any. None is for any, and no fault."""
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
    """Wait until the server ends."""
    await asyncio.Event().wait()


async def cut(client: Client) -> None:
    """Close the connection in the middle of an answer."""
    await client.flush()
    raise ConnectionResetError


async def misbehave_before_reply(fault: Fault, client: Client, headers: dict[str, str]) -> bool:
    """Misbehave before anything of the reply is sent; return True if nothing more is to be sent."""
    if fault.kind == "hang":
        await hang()
    elif fault.kind == "ping":
        await client.begin_stream(headers)
        while True:
            client.write(Event({"type": "ping"}).encode())
            await asyncio.sleep(fault.seconds)
    elif fault.kind == "slow":
        await asyncio.sleep(fault.seconds)
    elif fault.kind == "status":
        wait = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
        body = {**fault.error, "request_id": headers["request-id"]}
        await client.answer(fault.status, body, {**headers, **wait})
    return fault.kind == "status"


def until_fault(fault: Fault, events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events that are sent before a fault ends a stream, in any case before it says that it is whole."""
    pieces = 0
    for event in events:
        is_last = event.data["type"] == "message_delta"
        is_piece = event.data["type"] == "content_block_delta"
        if fault.ends_early and (is_last or (is_piece and pieces >= fault.after)):
            return
        yield Event(event.data, fault.seconds) if fault.kind == "drip" else event
        pieces += is_piece


async def misbehave_in_stream(fault: Fault, client: Client) -> None:
    """End a stream too early."""
    if fault.kind == "error_event":
        client.write(Event(fault.error).encode())
    await (cut(client) if fault.kind == "cut" else client.end_stream())
