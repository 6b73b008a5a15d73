"""Fixtures of machines on a network, and of a team whose hosts run on them."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.model import ModelServer
from tests.network import machines
from tests.network.cluster import Cluster
from tests.network.machines import Network


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """Make a network with a PostgreSQL server on it."""
    machines.require()
    with Network() as made:
        made.server.start()
        yield made


_CALM = 4.0
"""Load of a core up to which processes get their turn in a small part of the time of a short lease."""


@pytest.fixture
def cluster_of(network: Network, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a function that makes a team with a host on each of several machines, given their names and patches.

    Leases last `ttl` seconds, and longer on a busy machine: there, hosts would lose those that they still need.
    """
    busyness = max(1.0, os.getloadavg()[0] / (_CALM * (os.cpu_count() or 1)))
    with ExitStack() as stack:

        def make(*names: str, ttl: float = 4.0, **patches: str) -> Cluster:
            model = stack.enter_context(ModelServer())
            made = Cluster(network, tmp_path, model, ttl * busyness)
            stack.callback(made.end)
            made.add(*names, **patches)
            return made

        yield make
