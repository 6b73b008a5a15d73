"""The offline model, recording when each request arrived."""

import threading
import time
from dataclasses import dataclass, field
from typing import Self

from crewboard.offline.http import Client, Incoming
from crewboard.store.layout import AgentDirectory
from tests.model import ModelServer


@dataclass
class Arrivals:
    """Arrival times of requests, in epoch seconds: of any request, and of those for a message."""

    any: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)


class TimedServer(ModelServer):
    """A model server that records `arrivals`."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = Arrivals()
        self._lock = threading.Lock()
        handle = self._service.handle

        async def timed(incoming: Incoming, client: Client) -> None:
            now = time.time()
            self.arrivals.any.append(now)
            if incoming.path.startswith("/v1/messages"):
                self.arrivals.messages.append(now)
            await handle(incoming, client)

        self._service.handle = timed  # type: ignore[method-assign]

    def __enter__(self) -> Self:
        super().__enter__()
        return self


def written_at(agent: AgentDirectory) -> float:
    """Return when an agent's spec was written."""
    return agent.spec.on_disk.stat().st_mtime
