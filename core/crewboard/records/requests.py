"""Requests: questions that wait for an answer."""

import re
from typing import Annotated, Literal

from msgspec import Meta, field

from crewboard.errors import BadDataError
from crewboard.records.agents import Terms
from crewboard.records.base import JsonValue, Name, Record, Time, check_depth

REQUEST_ID_RULE = r"^[a-z0-9][a-z0-9_-]{0,63}\Z"

SHA256_DIGITS = 16
"""First digits of a SHA-256 that an answer has to name at least. A text with the same ones takes centuries to find."""

RequestType = Literal["plan_approval", "shutdown", "permission", "question", "task_review"]
RequestStatus = Literal["pending", "approved", "rejected", "answered", "expired", "cancelled"]


class Request(Record, kw_only=True):
    """`requests/<id>.json`: a question that waits for an answer.

    `edited` is the plan as the approver changed it; it replaces the plan in the payload. `terms` are those of its
    approval; None if it has none.
    """

    id: Annotated[str, Meta(pattern=REQUEST_ID_RULE)]
    type: RequestType
    from_: Name = field(name="from")
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
    terms: Terms | None = None
    rev: int = 0

    @property
    def answered_in(self) -> str | None:
        """Return the other program in which alone it can be answered; None if it can be answered here."""
        found = self.payload.get("answered_in")
        return found if isinstance(found, str) else None

    def __post_init__(self) -> None:
        """Check the payload, and compute its hash: the stored one could belong to another payload."""
        check_depth(self.payload, "payload: ")
        self.sha256 = payload_sha256(self.payload)


_STEP = re.compile(r"(\d{1,4})[.)][ \t]+(\S.*)", re.ASCII)

_CODE = re.compile(r" {0,3}(`{3,}|~{3,})")


def steps_of(plan: str) -> dict[int, str]:
    """Return the steps of a plan by number: the items of its numbered list, with the first line of each.

    Empty if there is no such list at the left edge, or its numbers do not count up from 1: then no number means one
    step to everyone who reads the text.
    """
    steps: dict[int, str] = {}
    code = ""
    # As the screen and the model see lines: `splitlines` would also break at U+2028 and a form feed.
    for line in plan.split("\n"):
        if (mark := _CODE.match(line)) is not None and (not code or mark[1].startswith(code)):
            code = "" if code else mark[1]
        elif not code and (item := _STEP.match(line)) is not None:
            if int(item[1]) != len(steps) + 1:
                return {}
            steps[int(item[1])] = item[2].rstrip()
    return steps


def payload_sha256(payload: dict[str, JsonValue]) -> str:
    """Return the SHA-256 of the payload as canonical JSON. An answer that carries it is bound to that payload."""
    # Imported here: most processes read no request.
    import hashlib
    import json

    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def revealed_sha256(sha256: str) -> str:
    """Return the digest for a yes to a text with this SHA-256 of which something was hidden until it was revealed."""
    # Imported here: most processes read no request.
    import hashlib

    return hashlib.sha256(f"revealed {sha256}".encode()).hexdigest()


def is_revealed(given: str, sha256: str) -> bool:
    """Return True if `given` says that all of the text with this SHA-256 was revealed: `revealed_sha256` of it."""
    return len(given) >= SHA256_DIGITS and revealed_sha256(sha256).startswith(given)


def bound_to(sha256: str) -> str:
    """Return the option that binds a yes on the command line to what has this SHA-256."""
    return f"--sha256 {sha256[:SHA256_DIGITS]}"


def require_shown(given: str, sha256: str, what: str) -> None:
    """Refuse a yes to something else than what was shown: `given` is its SHA-256, or the first 16 digits of it.

    Raises:
        BadDataError: What there is now has another `sha256`.
    """
    if len(given) < SHA256_DIGITS or not sha256.startswith(given):
        raise BadDataError(f"{what} has another sha256 than the one that you gave; read it again, then answer")
