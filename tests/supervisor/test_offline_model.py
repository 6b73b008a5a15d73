"""The offline model's server starts in the background: the supervisor never waits for it."""

import os
import signal

from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.launcher import Launcher, OfflineModel
from tests.crew import WAIT_TIMEOUT, eventually

OFFLINE = {"PATH": os.environ["PATH"], "CREWBOARD_OFFLINE": "1", "ANTHROPIC_API_KEY": "key"}


def test_a_worker_with_a_key_gets_its_own_environment(directory: TeamDirectory) -> None:
    environment = {"ANTHROPIC_API_KEY": "key"}
    assert OfflineModel(directory, Launcher(directory)).worker_environment(environment) == environment


def test_the_server_starts_without_blocking(directory: TeamDirectory) -> None:
    launcher = Launcher(directory)
    model = OfflineModel(directory, launcher)
    # Had it waited for the server, it would know its address.
    assert model.worker_environment(OFFLINE) is None
    environment = eventually(lambda: model.worker_environment(OFFLINE), "the server")
    assert environment["ANTHROPIC_BASE_URL"].startswith("http://127.0.0.1:")
    assert environment["ANTHROPIC_API_KEY"] == "offline"
    # Not with `reap`: it ends every child of this process that the launcher did not start, pytest's own among them.
    (server,) = launcher._children.values()
    assert server is not None
    model.end()
    assert server.wait(WAIT_TIMEOUT) in (0, -signal.SIGTERM)
