"""The real Claude Code and Codex on PATH, each with a scripted API: what tests of a team with both begin with."""

import contextlib
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crewboard.offline import service
from crewboard.sandbox import bubblewrap
from crewboard.sandbox.policy import Policy
from tests import system
from tests.crew import Crew, eventually
from tests.model import Script
from tests.worker import test_real_codex, test_real_engine
from tests.worker.test_engine import processes


class Server(http.server.ThreadingHTTPServer):
    """A server whose clients may be killed at any moment."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def crew_with_both(
    crew_on: Callable[..., Crew], folder: Path, patch: pytest.MonkeyPatch,
    script: Script, responses: type[test_real_codex.Responses], names: list[str],
) -> Iterator[Crew]:  # fmt: skip
    """Make a team that finds both engines on PATH, with these models; no process of the agents `names` is left."""
    system.need("bubblewrap", bubblewrap.unavailable_reason(Policy(folder, writes=False)))
    places = [test_real_engine.INSTALLED, test_real_codex.INSTALLED]
    for place in places:
        system.need(place.parent.name, None if place.exists() else f"{place} is not there")
    crew = crew_on(allows_stale_thinking=True)
    patch.setenv("PATH", ":".join([*map(str, places), os.environ["PATH"]]))
    patch.setattr(crew.model, "_script", script)
    patch.setattr(service, "MOST_OUTPUT", 128_000)
    with Server(("127.0.0.1", 0), responses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/v1"
        crew.environment.update(PATH=os.environ["PATH"], OPENAI_API_KEY=test_real_codex.KEY, OPENAI_BASE_URL=address)
        yield crew
        crew.end()
        server.shutdown()
        thread.join()
    for name in names:
        eventually(lambda: processes(crew, name) == [], f"no process of {name}")  # noqa: B023
