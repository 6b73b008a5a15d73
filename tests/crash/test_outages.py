"""Random outages of a team on hosts: each message is shown to its agent exactly once, and no other worker ends."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import postgres
from tests.crew import Crew
from tests.model import ModelServer
from tests.real_hosts import Hosts

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("outages")]


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    """Start a server that the test may kill."""
    postgres.require(own=True)
    started = postgres.Server()
    started.start()
    yield started
    started.end()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
def test_fifty_faults_lose_and_repeat_no_message(server: postgres.Server, tmp_path: Path, seed: int) -> None:
    # psycopg is imported only where it is installed.
    from tests.crash.outages import Fault, OutageRun

    faults: list[Fault] = [*["connections"] * 20, *["worker"] * 15, *["database"] * 10, *["frozen host"] * 5]  # type: ignore[list-item]
    random.Random(seed).shuffle(faults)
    url = postgres.SharedServer.database_on(server.url)
    (tmp_path / "operator").mkdir()
    with ModelServer(window=50_000_000) as model, ExitStack() as stack:
        stack.callback(postgres.close_connections)
        there = Hosts(Crew(tmp_path / "operator", model, store=url), tmp_path, url)
        stack.callback(there.end)
        outages = OutageRun(there, server, ("a", "b", "c"), seed)
        outages.begin()
        for fault in faults:
            outages.cause(fault)
        outages.settle()
        print(outages.summary())
        outages.check()
