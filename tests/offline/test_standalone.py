"""The offline model as a process of its own: it starts, is the only one, and ends when no worker needs it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crewboard.offline import __main__ as standalone
from crewboard.offline.__main__ import is_needed
from crewboard.records.processes import Lease, ModelServerInfo
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from tests.crew import eventually

if TYPE_CHECKING:
    from anthropic import Anthropic

pytestmark = pytest.mark.xdist_group("sdk")

SOON = ("--grace", "0.2", "--look", "0.02")
LATE = ("--grace", "600")
ASKED: dict[str, Any] = {
    "model": "claude-sonnet-5-5",
    "max_tokens": 1000,
    "messages": [{"role": "user", "content": "say hi"}],
}
Process = subprocess.Popen[str]


class Servers:
    """Starts servers for one team, and ends what is left of them."""

    def __init__(self, team: TeamDirectory) -> None:
        self.team = team
        self.started: list[Process] = []

    def start(self, *arguments: str, **environment: str) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-I", "-m", "crewboard.offline", str(self.team.path), *(arguments or LATE)],
            env={**os.environ, "CREWBOARD_OFFLINE_PACE": "0", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def info(self) -> ModelServerInfo:
        return eventually(lambda: leases.holder(self.team.model_lock, ModelServerInfo), "the server's signature")

    def client(self) -> "Anthropic":
        from anthropic import Anthropic

        return Anthropic(base_url=self.info().url, api_key="offline", max_retries=0)


@pytest.fixture
def servers(directory: TeamDirectory) -> Iterator[Servers]:
    made = Servers(directory)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def ended(process: Process) -> tuple[int, str]:
    output, _ = process.communicate(timeout=30)
    return process.returncode, output


def test_it_says_where_it_is_and_answers(servers: Servers) -> None:
    process = servers.start()
    assert servers.info().pid == process.pid
    assert servers.info().url.startswith("http://127.0.0.1:")
    with servers.client() as client:
        assert client.messages.create(**ASKED).content[0].text == "hi"
    assert Path(f"/proc/{process.pid}/cwd").readlink() == Path("/")


@pytest.mark.long
def test_a_second_one_leaves_the_first_alone(servers: Servers) -> None:
    first = servers.start()
    info = servers.info()
    assert ended(servers.start()) == (0, "")
    assert servers.info() == info
    assert first.poll() is None


@pytest.mark.long
def test_sigterm_ends_it_at_once_and_quietly(servers: Servers) -> None:
    process = servers.start()
    with servers.client() as client, client.messages.stream(**ASKED) as stream:
        stream.get_final_message()
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, "")
    assert not leases.is_held(servers.team.model_lock)


def test_it_ends_when_no_worker_needs_it(servers: Servers) -> None:
    assert ended(servers.start(*SOON)) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("who", ["supervisor", "worker"])
def test_it_stays_as_long_as_it_is_needed(servers: Servers, who: str) -> None:
    path = servers.team.supervisor_lock
    if who == "worker":
        servers.team.agent("ada").path.mkdir()
        path = servers.team.agent("ada").lease
    held = leases.take(path)
    assert held is not None
    leases.sign(held, Lease(pid=os.getpid()))
    assert is_needed(servers.team)
    process = servers.start(*SOON)
    servers.info()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.6)
    os.close(held.descriptor)
    assert not is_needed(servers.team)
    assert ended(process) == (0, "")


async def test_who_comes_at_the_last_moment_is_still_served(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove the address before the last look, so that no worker reads the address of a server that ends."""
    held = leases.take(directory.model_lock)
    assert held is not None
    info = ModelServerInfo(pid=os.getpid(), url="http://127.0.0.1:1")
    leases.sign(held, info)
    sizes: list[int] = []

    def needed_once(team: TeamDirectory) -> bool:
        sizes.append(team.model_lock.on_disk.stat().st_size)
        return len(sizes) == 2

    monkeypatch.setattr(standalone, "is_needed", needed_once)
    await standalone._until_unneeded(directory, held, info, grace=0.001, look=0.01)
    assert sizes[1] == sizes[-1] == 0
    assert sizes[0] == sizes[2] > 0
    os.close(held.descriptor)


@pytest.mark.long
def test_it_outlives_its_parent_process(servers: Servers) -> None:
    program = "import subprocess, sys; subprocess.Popen(sys.argv[1:])"
    command = [sys.executable, "-I", "-m", "crewboard.offline", str(servers.team.path), *SOON]
    held = leases.take(servers.team.supervisor_lock)
    assert held is not None
    subprocess.run([sys.executable, "-c", program, *command], check=True)
    with servers.client() as client:
        assert client.messages.create(**ASKED).stop_reason == "end_turn"
    os.close(held.descriptor)
    eventually(lambda: not leases.is_held(servers.team.model_lock), "its end")


@pytest.mark.long
def test_it_misbehaves_by_the_file_that_the_environment_names(servers: Servers, tmp_path: Path) -> None:
    from anthropic import APIStatusError

    file = tmp_path / "faults.json"
    file.write_text('[{"kind": "status", "status": 529}]')
    servers.start(CREWBOARD_OFFLINE_FAULTS=str(file))
    with servers.client() as client:
        with pytest.raises(APIStatusError, match="Overloaded"):
            client.messages.create(**ASKED)
        assert client.messages.create(**ASKED).stop_reason == "end_turn"


@pytest.mark.long
def test_a_pace_that_is_no_number_is_refused(servers: Servers) -> None:
    code, output = ended(servers.start(CREWBOARD_OFFLINE_PACE="fast"))
    assert code == 2
    assert output == "offline model: CREWBOARD_OFFLINE_PACE is a number, not 'fast'\n"


@pytest.mark.long
def test_it_loads_neither_the_sdk_nor_the_screens() -> None:
    program = (
        "import sys, crewboard.offline.service, crewboard.offline.__main__; "
        "print([name for name in ('anthropic', 'textual', 'click', 'rich', 'httpx2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


@pytest.mark.long
def test_it_takes_a_free_port_where_the_wanted_one_is_taken(servers: Servers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        servers.start(*LATE, "--port", str(port))
        assert servers.info().url.startswith("http://127.0.0.1:")
        assert not servers.info().url.endswith(f":{port}")
