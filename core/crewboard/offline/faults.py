"""Misbehaviour on demand, from the file that `CREWBOARD_OFFLINE_FAULTS` names: a JSON list of faults and nulls.

It is read again whenever it changes. Each request takes the first entry for its agent or for any; null is none.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter

from crewboard.offline.http import Client, error_body
from crewboard.offline.reply import Event

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    405: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error",
    504: "timeout_error", 529: "overloaded_error",
}  # fmt: skip
"""The API's name for each status."""


class Fault(BaseModel, extra="forbid", frozen=True):
    """One way to misbehave.

    `status` answers with that status, `slow` as usual after `seconds`. `cut` closes the connection after `after` pieces
    of the reply, `clean_cut` ends the stream there as if it were whole, `error_event` with an error. `hang` is silent.
    """

    kind: Literal["status", "slow", "cut", "clean_cut", "error_event", "hang"]
    agent: str | None = None
    status: Annotated[int, Field(ge=400, le=599)] = 529
    retry_after: float | None = None
    seconds: Annotated[float, Field(ge=0)] = 0
    after: Annotated[int, Field(ge=0)] = 2
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
                self._left = TypeAdapter(list[Fault | None]).validate_json(self._file.read_bytes())
        for place, fault in enumerate(self._left):
            if fault is None or fault.agent in {None, agent}:
                return self._left.pop(place)
        return None


async def before(fault: Fault, client: Client, request_id: str) -> bool:
    """Misbehave before anything of the reply is sent; return True if nothing more is to be sent."""
    if fault.kind == "hang":
        await client.gone()
    elif fault.kind == "slow":
        await asyncio.sleep(fault.seconds)
    elif fault.kind == "status":
        wait = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
        body = {**_error(fault), "request_id": request_id}
        await client.answer(fault.status, body, {"request-id": request_id, **wait})
    return fault.kind in {"hang", "status"}


async def during(fault: Fault, client: Client) -> None:
    """Misbehave where a stream is to end too early."""
    if fault.kind == "error_event":
        client.write(Event(_error(fault)).encode())
    await (client.cut() if fault.kind == "cut" else client.end_stream())


def _error(fault: Fault) -> dict[str, object]:
    kind = ERROR_TYPES.get(fault.status, "api_error")
    return error_body(kind, fault.message or kind.replace("_", " ").capitalize())
