"""The offline model for tests: served in a thread, with literal replies where a test needs them."""

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from msgspec import to_builtins

from crewboard.offline import http
from crewboard.offline.conversation import Conversation
from crewboard.offline.reply import Reply
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.service import WINDOW, Fault, Faults
from tests import openapi
from tests.api.service import StrictService
from tests.api.wire import MessagesRequest

ANY_AGENT = ""
"""The key of replies for the agent that asks next."""

SUMMARY_OF = "a summary of "
"""The beginning of the key of replies to an agent's requests for a summary. Without any, the offline model replies."""

START_TIMEOUT = 30.0
"""Seconds until a loopback port must be open."""


def says(text: str) -> Reply:
    """Return a reply without a tool call, which ends an assignment."""
    return Reply([{"type": "text", "text": text}])


def calls(tool: str, /, **input: Any) -> Reply:
    """Return a reply that calls one tool."""
    return Reply([{"type": "tool_use", "name": tool, "input": input}])


def looks(count: int) -> list[Reply]:
    """Return replies that each look around with one call, no two like the other, so that they are no loop."""
    return [calls("list_dir", path=(".", "./")[number % 2]) for number in range(count)]


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
            left = self._left.get(agent) or self._left.get(agent if agent.startswith(SUMMARY_OF) else ANY_AGENT)
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
    many tokens the models take in. With `thinks`, models think before each reply, and refuse thinking behind what has
    changed: a test whose requests were refused for that fails at its end, unless it `allows_stale_thinking`.
    """

    def __init__(
        self,
        *,
        faults: Iterable[Fault | None] = (),
        script: Iterable[Reply] | Mapping[str, Iterable[Reply]] = (),
        scenarios: Sequence[Scenario] | None = None,
        pace: float = 0,
        window: int = WINDOW,
        thinks: bool = True,
        allows_stale_thinking: bool = False,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        """The bodies of all requests to `/v1/messages`, in the order in which they came."""
        self.url = ""
        """The base URL, for `ANTHROPIC_BASE_URL`."""
        self._script = Script(script)
        self._replies = threading.Event()
        self._replies.set()
        self._service = StrictService(
            pace=pace,
            faults=Faults(faults),
            script=self._reply,
            scenarios=load_all() if scenarios is None else scenarios,
            window=window,
            record=self.requests.append,
            thinks=thinks,
        )
        self._allows_stale_thinking = allows_stale_thinking
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="offline model", daemon=True)
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        # Before it is up: on a busy machine, a client would give up while the first request waits for this.
        openapi.load()
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
        # A worker repairs such a conversation, so a test would not notice.
        assert self._allows_stale_thinking or not self._service.stale, f"stale thinking was sent: {self._service.stale}"

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

    def _reply(self, talk: Conversation, request: MessagesRequest) -> Reply | None:
        # This holds up the whole server, which is what is wanted.
        self._replies.wait()
        return self._script.reply(f"{SUMMARY_OF}{talk.name}" if talk.wants_summary else talk.name, request)

    def asked_by(self, agent: str) -> list[dict[str, Any]]:
        """Return the requests of an agent, found by the name in the system prompt."""
        return [body for body in self.requests if f"You are {agent}, " in str(body.get("system"))]

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        handle = self._service.handle

        async def judged(incoming: http.Incoming, client: http.Client) -> None:
            if openapi.judges:
                openapi.judge_request(incoming)
                client = openapi.JudgedClient(client, incoming)
            await handle(incoming, client)

        async with http.listening(judged) as self.url:
            self._up.set()
            await self._stop.wait()


@contextmanager
def listing(*names: str) -> Iterator[str]:
    """Serve a list of models, and no more, as a local server does; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            known = path == "/v1/models" or path.rpartition("/")[2] in names
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": name} for name in names]}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
