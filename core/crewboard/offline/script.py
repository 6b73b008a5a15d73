"""Literal replies for tests that need a model to do exactly this."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from crewboard.offline.reply import Reply
from crewboard.offline.wire import MessagesRequest

ANYBODY = ""
"""The key of replies that are for whoever asks next."""


def says(text: str) -> Reply:
    """An answer that calls nothing, which ends an assignment."""
    return Reply([{"type": "text", "text": text}])


def calls(tool: str, /, **input: Any) -> Reply:
    """A reply that calls one tool."""
    return Reply([{"type": "tool_use", "name": tool, "input": input}])


class Script:
    """Replies in order, for whoever asks or for each agent by name.

    A request that comes again, because its reply was cut or its worker died before it was kept, gets the same reply.
    """

    def __init__(self, replies: Iterable[Reply] | Mapping[str, Iterable[Reply]] = ()) -> None:
        by_name = replies if isinstance(replies, Mapping) else {ANYBODY: replies}
        self._left = {name: list(lines) for name, lines in by_name.items()}
        self._given: dict[str, Reply] = {}

    def give(self, agent: str, replies: Iterable[Reply]) -> None:
        """Let `agent`, by name, have these replies too, behind those that it still has."""
        self._left.setdefault(agent, []).extend(replies)

    def reply(self, agent: str, request: MessagesRequest) -> Reply | None:
        """The reply that is next for `agent`; None after the end."""
        if not self._given and not any(self._left.values()):
            return None  # there is no script, and a long conversation takes milliseconds to tell from another
        key = _key(agent, request)
        if key not in self._given:
            left = self._left.get(agent) or self._left.get(ANYBODY)
            if not left:
                return None
            self._given[key] = left.pop(0)
        return self._given[key]


def _key(agent: str, request: MessagesRequest) -> str:
    said = json.dumps([message.model_dump(exclude={"cache_control"}) for message in request.messages])
    return hashlib.sha256(f"{agent}\0{request.system_text}\0{said}".encode()).hexdigest()
