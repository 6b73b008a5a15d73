"""Requests: questions that wait for an answer."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from crewboard.names import Name
from crewboard.records.base import Record, Time, check_depth

REQUEST_ID_RULE = r"^[a-z0-9][a-z0-9_-]{0,63}$"

RequestType = Literal["plan_approval", "shutdown", "permission", "question"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "cancelled"]


class Request(Record):
    """`requests/<id>.json`: a question that waits for an answer.

    `edited` is the plan as the approver changed it; it replaces the plan in the payload.
    """

    id: Annotated[str, Field(pattern=REQUEST_ID_RULE)]
    type: RequestType
    from_: Name = Field(alias="from")
    to: Name
    status: RequestStatus = "pending"
    payload: dict[str, JsonValue] = {}
    sha256: str = ""
    supersedes: str | None = None
    created_at: Time = 0
    decided_at: Time | None = None
    decided_by: Name | None = None
    feedback: str | None = None
    edited: str | None = None
    rev: int = 0

    def model_post_init(self, context: object) -> None:  # noqa: ARG002  pydantic hands it in
        """Compute the hash from the payload: the stored one could belong to another payload."""
        self.sha256 = payload_sha256(self.payload)

    @field_validator("payload")
    @classmethod
    def _not_too_deep(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_depth(value)
        return value


def payload_sha256(payload: dict[str, JsonValue]) -> str:
    """Return the SHA-256 of the payload as canonical JSON. An answer that carries it is bound to that payload."""
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
