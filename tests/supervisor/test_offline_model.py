"""The offline model's server: it starts in the background, and again while a worker that uses it lives."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from crewboard.records.processes import ModelServerInfo, Supervisor
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.launcher import Launcher, OfflineModel
from tests.cli.shell import Inside, clean_environment
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


@pytest.mark.long
def test_a_killed_server_comes_back_at_the_same_address(tmp_path: Path) -> None:
    run = Inside(tmp_path, clean_environment(CREWBOARD_OFFLINE="1", CREWBOARD_OFFLINE_PACE="0"))
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    try:
        assert run("spawn", "ann", "--type", "explore", "--prompt", "say hi").out == "hi\n"
        first = leases.holder(team.model_lock, ModelServerInfo)
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        assert run("spawn", "ann", "--type", "explore", "--prompt", "say ho").out == "ho\n"
        second = leases.holder(team.model_lock, ModelServerInfo)
        assert second is not None
        assert second.url == first.url

        # The next supervisor knows the address from the lock alone.
        supervisor = leases.holder(team.supervisor_lock, Supervisor)
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        os.kill(second.pid, signal.SIGKILL)
        eventually(lambda: not leases.is_held(team.supervisor_lock), "the end of the supervisor")
        assert run("supervisor", "--restart").code == 0
        assert run("spawn", "ann", "--type", "explore", "--prompt", "say he").out == "he\n"
        third = leases.holder(team.model_lock, ModelServerInfo)
        assert third is not None
        assert third.url == first.url
    finally:
        run("team", "delete", "default", "--now")


def test_a_server_that_ends_at_once_is_started_less_often(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, starts = 0.0, list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    launcher = SimpleNamespace(start=lambda *_: starts.append(now))
    model = OfflineModel(directory, cast("Launcher", launcher))
    for second in range(200):
        now = float(second)
        model.keep_running()
    assert starts == [0, 4, 12, 28, 60, 124, 188]
