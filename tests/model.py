"""The offline model for tests: served in a thread, with literal replies where a test needs them."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from msgspec import to_builtins

from crewboard.offline import http
from crewboard.offline.reply import Reply
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.service import WINDOW, Fault, Faults, Service
from crewboard.offline.wire import MessagesRequest

ANY_AGENT = ""
"""The key of replies for the agent that asks next."""

START_TIMEOUT = 30.0
"""Seconds until a loopback port must be open."""


def says(text: str) -> Reply:
    """Return a reply without a tool call, which ends an assignment."""
    return Reply([{"type": "text", "text": text}])


def calls(tool: str, /, **input: Any) -> Reply:
    """Return a reply that calls one tool."""
    return Reply([{"type": "tool_use", "name": tool, "input": input}])


class Script:
    """Replies in order, for any agent or for each by name.

    A request that comes again, because its reply was cut or its worker died before it was kept, gets the same reply.
    """

    def __init__(self, replies: Iterable[Reply] | Mapping[str, Iterable[Reply]] = ()) -> None:
        by_name = replies if isinstance(replies, Mapping) else {ANY_AGENT: replies}
        self._left = {name: list(lines) for name, lines in by_name.items()}
        self._given: dict[str, Reply] = {}

    def give(self, agent: str, replies: Iterable[Reply]) -> None:
        """Add replies for `agent`, after those that are left."""
        self._left.setdefault(agent, []).extend(replies)

    def reply(self, agent: str, request: MessagesRequest) -> Reply | None:
        """Return the next reply for `agent`, or None if none is left."""
        if not self._given and not any(self._left.values()):
            # Without a script: comparing long conversations would take milliseconds.
            return None
        key = _key(agent, request)
        if key not in self._given:
            left = self._left.get(agent) or self._left.get(ANY_AGENT)
            if not left:
                return None
            self._given[key] = left.pop(0)
        return self._given[key]


def _key(agent: str, request: MessagesRequest) -> str:
    said = json.dumps([to_builtins(message) for message in request.messages])
    return hashlib.sha256(f"{agent}\0{request.system_text}\0{said}".encode()).hexdigest()


class ModelServer:
    """The offline model on a free loopback port, in a thread, for the length of a `with` block.

    `faults` misbehave, one for each request, None as usual; `script` replies literally, in order or by agent's name,
    and when it is through the phrasebook takes over. `pace` multiplies every delay; 0 answers at once. `window` is how
    many tokens the models take in.
    """

    def __init__(
        self,
        *,
        faults: Iterable[Fault | None] = (),
        script: Iterable[Reply] | Mapping[str, Iterable[Reply]] = (),
        scenarios: Sequence[Scenario] | None = None,
        pace: float = 0,
        window: int = WINDOW,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        """The bodies of all requests to `/v1/messages`, in the order in which they came."""
        self.url = ""
        """The base URL, for `ANTHROPIC_BASE_URL`."""
        self._script = Script(script)
        self._replies = threading.Event()
        self._replies.set()
        self._service = Service(
            pace=pace,
            faults=Faults(faults),
            script=self._reply,
            scenarios=load_all() if scenarios is None else scenarios,
            window=window,
            record=self.requests.append,
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="offline model", daemon=True)
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(START_TIMEOUT):
            raise TimeoutError("the offline model did not come up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._replies.set()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def give(self, agent: str, *replies: Reply) -> None:
        """Give an agent, by name, replies beyond the script; what it asks from now on takes them in order.

        Raises:
            RuntimeError: The server is not up.
        """
        if self._loop is None:
            raise RuntimeError("replies can be given while the offline model is up; enter its `with` block first")
        self._loop.call_soon_threadsafe(self._script.give, agent, replies)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let no reply begin until the end of the block. Requests are taken, and recorded."""
        self._replies.clear()
        try:
            yield
        finally:
            self._replies.set()

    def _reply(self, agent: str, request: MessagesRequest) -> Reply | None:
        # This holds up the whole server, which is what is wanted.
        self._replies.wait()
        return self._script.reply(agent, request)

    def asked_by(self, agent: str) -> list[dict[str, Any]]:
        """Return the requests of an agent, found by the name in the system prompt."""
        return [body for body in self.requests if f"You are {agent}, " in str(body.get("system"))]

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with http.listening(self._service.handle) as self.url:
            self._up.set()
            await self._stop.wait()
