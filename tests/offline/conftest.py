"""A served model, the real SDK against it, and desks to work at."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from tests.model import ModelServer
from tests.offline.minimal_agent import MinimalAgent

if TYPE_CHECKING:
    from anthropic import Anthropic

NewAgent = Callable[..., MinimalAgent]


@pytest.fixture(scope="session")
def sdk() -> ModuleType:
    """Return the SDK. Loading it takes more than a second, so test runners that do not need it do without."""
    import anthropic

    return anthropic


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(thinks=False) as running:
        yield running


@pytest.fixture
def client(server: ModelServer) -> "Iterator[Anthropic]":
    from anthropic import Anthropic

    with Anthropic(base_url=server.url, api_key="offline", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def module_client() -> "Iterator[Anthropic]":
    """One for all tests of a module that share a server; it stands in for `client` there."""
    from anthropic import Anthropic

    with ModelServer(thinks=False) as server, Anthropic(base_url=server.url, api_key="offline", max_retries=0) as made:
        yield made


@pytest.fixture
def new_agent(client: "Anthropic", tmp_path: Path) -> NewAgent:
    def make(**given: Any) -> MinimalAgent:
        return MinimalAgent(client, **{"root": tmp_path, **given})

    return make
