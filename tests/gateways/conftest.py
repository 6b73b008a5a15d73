"""Real gateways in front of a scripted backend, and the command line of a team that talks to one of them."""

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from tests.cli.conftest import processes_of
from tests.cli.shell import Cli, Inside, clean_environment
from tests.crew import eventually
from tests.gateways.backend import MODELS, Backend
from tests.system import need

CACHE = Path(__file__).parents[2] / ".cache"

LITELLM = "litellm-1.108.7"
ROUTER = "claude-code-router-2.0.0"
"""As the Makefile names them. Of the router's 3.1.1 a dependency is missing in the registry."""

KEY = "a-key-of-the-gateway"

START_TIMEOUT = 240.0
"""Seconds until a gateway must answer, on a busy machine: LiteLLM imports for ten, and for longer the first time."""


@dataclass
class Gateway:
    """A running gateway, and the backend behind it."""

    url: str
    backend: Backend
    prefix: str = ""
    """The words before the backend's names of models."""
    unsaid: frozenset[str] = frozenset()
    """The facts that it does not tell, as `doctor` names it."""

    @property
    def environment(self) -> dict[str, str]:
        return clean_environment(
            ANTHROPIC_BASE_URL=self.url, ANTHROPIC_AUTH_TOKEN=KEY, CREWBOARD_MODEL=f"{self.prefix}local"
        )


@pytest.fixture(params=["litellm", "router"])
def gateway(request: pytest.FixtureRequest) -> Gateway:
    """Return each gateway, or the one that the test names."""
    found: Gateway = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def cli(gateway: Gateway, tmp_path: Path) -> Iterator[Cli]:
    """Return the command line of a team behind a gateway; end all that it starts, and check that nothing is left."""
    run = Inside(tmp_path, gateway.environment)
    yield run
    run.end()
    for found in run("team", "list", "--json").json:
        assert run("team", "delete", found["name"], "--now").code == 0
    eventually(lambda: not processes_of(tmp_path), "the end of every process of the team")


@pytest.fixture(scope="session")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Start LiteLLM's proxy. It repeats nothing by itself, and is told the window of one model."""
    program = CACHE / LITELLM / "bin/litellm"
    need_installed(CACHE / LITELLM / "installed", LITELLM)
    folder = tmp_path_factory.mktemp("litellm")
    with Backend() as backend:
        config = {
            "model_list": [
                {
                    "model_name": name,
                    "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": backend.url, "api_key": "none"},
                    "model_info": {"max_input_tokens": MODELS[name].window} if name == "local" else {},
                }
                for name in MODELS
            ],
            "litellm_settings": {"telemetry": False},
            "router_settings": {"num_retries": 0, "disable_cooldowns": True},
            "general_settings": {"master_key": KEY},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        port = free_port()
        # It would ask the network for prices.
        environment = clean_environment(LITELLM_LOCAL_MODEL_COST_MAP="True", HOME=str(folder))
        command = [program, "--config", "config.yaml", "--host", "127.0.0.1", "--port", port]
        url = f"http://127.0.0.1:{port}"
        with running(command, folder, environment, f"{url}/health/liveliness"):
            yield Gateway(url, backend)


@pytest.fixture(scope="session")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Start claude-code-router, which reports no tokens, because it does not ask its backend for them."""
    program = CACHE / ROUTER / "node_modules/.bin/ccr"
    need_installed(program, ROUTER)
    folder = tmp_path_factory.mktemp("router")
    with Backend() as backend:
        port = free_port()
        config = {
            "HOST": "127.0.0.1",
            "PORT": port,
            "APIKEY": KEY,
            "LOG": False,
            "NON_INTERACTIVE_MODE": True,
            "Providers": [
                {
                    "name": "backend",
                    "api_base_url": f"{backend.url}/chat/completions",
                    "api_key": "none",
                    "models": [*MODELS],
                }
            ],
            "Router": {"default": "backend,local"},
        }
        settings = folder / ".claude-code-router/config.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps(config))
        url = f"http://127.0.0.1:{port}"
        with running([program, "start"], folder, clean_environment(HOME=str(folder)), url):
            yield Gateway(url, backend, prefix="backend,", unsaid=frozenset({"models", "window", "usage"}))


def need_installed(path: Path, name: str) -> None:
    need(name, None if path.exists() else "`make gateways` installs it")


@contextmanager
def running(command: Sequence[object], folder: Path, environment: Mapping[str, str], page: str) -> Iterator[None]:
    """Run a server until the end of the block; it is up once `page` answers."""
    with (folder / "log").open("wb") as log:
        process = psutil.Popen(
            [*map(str, command)], cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(page, timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    try:
        eventually(answers, f"the start of {command[0]}", START_TIMEOUT)
        yield
    finally:
        own = [*process.children(recursive=True), process]
        for each in own:
            each.terminate()
        _, alive = psutil.wait_procs(own, 10)
        for each in alive:
            each.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
