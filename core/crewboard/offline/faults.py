"""Misbehaving on demand: what a worker has to survive, in the order that a test asks for.

In-process faults are given to the server. The standalone server takes them from the file that
`CREWBOARD_OFFLINE_FAULTS` names: a JSON list of faults and nulls, read at the start and again whenever it changes.
Each request to `/v1/messages` takes the first entry that is meant for its agent, or for any; null means: as usual.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from crewboard.offline.http import Client, error_body
from crewboard.offline.reply import Event

Kind = Literal["status", "slow", "cut", "clean_cut", "error_event", "hang"]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The API's name for each status."""

_MESSAGES = {
    401: "invalid x-api-key",
    429: "This request would exceed your rate limit",
    500: "Internal server error",
    529: "Overloaded",
}


class Fault(BaseModel):
    """One way to misbehave.

    `status` answers with that status, with a `retry-after` if `retry_after` (seconds) is given. `slow` answers as
    usual, but not before `seconds`. `cut` closes the connection after `after` pieces of the reply, `clean_cut` ends
    the stream there as if it were whole, `error_event` ends it with an error. `hang` never answers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    agent: str | None = None
    status: Annotated[int, Field(ge=400, le=599)] = 529
    retry_after: float | None = None
    seconds: Annotated[float, Field(ge=0)] = 0
    after: Annotated[int, Field(ge=0)] = 2
    message: str = ""

    @property
    def error_type(self) -> str:
        """The API's name for `status`."""
        return ERROR_TYPES.get(self.status, "api_error")

    @property
    def text(self) -> str:
        """What the error says."""
        return self.message or _MESSAGES.get(self.status, self.error_type)


_FAULTS = TypeAdapter(list[Fault | None])


class Faults:
    """The faults that are still to come."""

    def __init__(self, faults: Iterable[Fault | None] = (), file: Path | None = None) -> None:
        self._left = list(faults)
        self._file = file
        self._seen: tuple[int, int] | None = None

    def next_for(self, agent: str) -> Fault | None:
        """Take the next entry that is meant for `agent`."""
        self._look_at_file()
        for place, fault in enumerate(self._left):
            if fault is None or fault.agent in {None, agent}:
                return self._left.pop(place)
        return None

    def _look_at_file(self) -> None:
        if self._file is None or not self._file.exists():
            return
        stat = self._file.stat()
        mark = (stat.st_mtime_ns, stat.st_ino)
        if mark != self._seen:
            self._seen = mark
            self._left = _FAULTS.validate_json(self._file.read_bytes())


async def before(fault: Fault, client: Client, request_id: str) -> bool:
    """Misbehave before anything of the reply is sent; returns whether the request is done with."""
    if fault.kind == "hang":
        await client.gone()
        return True
    if fault.kind == "slow":
        await asyncio.sleep(fault.seconds)
    if fault.kind == "status":
        wait = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
        body = {**error_body(fault.error_type, fault.text), "request_id": request_id}
        await client.answer(fault.status, body, {"request-id": request_id, **wait})
        return True
    return False


async def during(fault: Fault, client: Client) -> None:
    """Misbehave where a stream is to end too early."""
    if fault.kind == "cut":
        await client.cut()
        return
    if fault.kind == "error_event":
        client.write(Event(error_body(fault.error_type, fault.text)).encode())
    await client.end_stream()
