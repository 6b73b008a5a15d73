"""Fixtures of machines on a network, and of a team whose hosts run on them."""

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


@pytest.fixture
def cluster_of(network: Network, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a function that makes a team with a host on each of several machines, given their names and patches."""
    with ExitStack() as stack:

        def make(*names: str, ttl: float = 4.0, **patches: str) -> Cluster:
            model = stack.enter_context(ModelServer())
            made = Cluster(network, tmp_path, model, ttl)
            stack.callback(made.end)
            made.add(*names, **patches)
            return made

        yield make
