"""Why the prompt cache did not fit, as the API says: a request is compared with the one that a reply answered.

Only requests with `diagnostics` are kept, by the id of their reply, and compared in this order: model, system, tools,
messages, the rest. Marks of the cache do not count. Source: page `cache-diagnostics` of the API's documents and
anthropic 2.11.0, types/cache_miss_*.py, November 2026. There it is not said how long a request is kept; here the newest
thousand are. The API may answer before its comparison ends; here it never does.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from crewboard.offline.wire import MessagesRequest, unmarked

_MOST_KEPT = 1000


@dataclass(frozen=True)
class _Fingerprint:
    model: str
    system: bytes
    tools: bytes
    messages: tuple[bytes, ...]
    rest: bytes
    tokens: int


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()


def _fingerprint(asked: MessagesRequest, tokens: int) -> _Fingerprint:
    return _Fingerprint(
        asked.model,
        _digest(*map(unmarked, asked.system)),
        _digest(*map(unmarked, asked.tools)),
        tuple(_digest(each.role.encode(), *map(unmarked, each.content)) for each in asked.messages),
        msgspec.json.encode((asked.thinking, asked.output_config)),
        tokens,
    )


class Diagnoses:
    """The requests that one server compares with."""

    def __init__(self) -> None:
        self._of_replies: dict[str, _Fingerprint] = {}

    def diagnose(self, asked: MessagesRequest, ident: str, tokens: int) -> dict[str, Any]:
        """Return what the reply `ident` to a request of so many tokens says of it, if it asks, and keep the request."""
        if asked.diagnostics is None:
            return {}
        previous, now, reason = asked.diagnostics.previous_message_id, _fingerprint(asked, tokens), None
        if previous is not None:
            before = self._of_replies.get(previous)
            reason = _first_difference(before, now) if before else {"type": "previous_message_not_found"}
        self._of_replies[ident] = now
        while len(self._of_replies) > _MOST_KEPT:
            del self._of_replies[next(iter(self._of_replies))]
        return {"diagnostics": {"cache_miss_reason": reason} if reason else None}


def _first_difference(before: _Fingerprint, now: _Fingerprint) -> dict[str, Any] | None:
    changed = {
        "model": before.model != now.model,
        "system": before.system != now.system,
        "tools": before.tools != now.tools,
        "messages": before.messages != now.messages[: len(before.messages)],
    }
    for part, differs in changed.items():
        if differs:
            return {"type": f"{part}_changed", "cache_missed_input_tokens": before.tokens}
    return {"type": "unavailable"} if before.rest != now.rest else None
