"""The embedded model as a server: in a thread for tests, in a process of its own for a team."""

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from crewboard.offline import http
from crewboard.offline.faults import Fault, Faults
from crewboard.offline.reply import Reply
from crewboard.offline.scenario import Scenario, load_all
from crewboard.offline.script import Script
from crewboard.offline.service import WINDOW, Service

_PATIENCE = 10.0
"""Seconds that a loopback port may take to open."""


class ModelServer:
    """The embedded model on a free loopback port, in a thread, for the length of a `with` block.

    `faults` misbehave, one for each request, None as usual; `script` replies literally, in order or by agent's name,
    and when it is through the rules take over. `pace` multiplies every delay of scenarios and rules; 0 answers at
    once. `window` is how many tokens the models take in.
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
        self._service = Service(
            pace=pace,
            faults=Faults(faults),
            script=self._script,
            scenarios=load_all() if scenarios is None else scenarios,
            window=window,
            record=self.requests.append,
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="embedded model", daemon=True)
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._up.wait(_PATIENCE):
            raise TimeoutError("the embedded model did not come up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def give(self, agent: str, *replies: Reply) -> None:
        """Give an agent, by name, replies beyond the script; what it asks from now on takes them in order.

        Raises:
            RuntimeError: The server is not up.
        """
        if self._loop is None:
            raise RuntimeError("replies can be given while the embedded model is up; enter its `with` block first")
        self._loop.call_soon_threadsafe(self._script.give, agent, replies)

    def asked_by(self, agent: str) -> list[dict[str, Any]]:
        """Those of `requests` whose system prompt says that they are an agent's, by its name."""
        return [body for body in self.requests if f"You are {agent}, " in str(body.get("system"))]

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with http.listening(self._service.handle) as self.url:
            self._up.set()
            await self._stop.wait()
