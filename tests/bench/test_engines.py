"""Start of an agent that has an engine, next to the engine alone: `make engines` installs these."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from crewboard import engines
from crewboard.commands import hire as hiring
from crewboard.commands import stop
from crewboard.offline import service
from crewboard.worker.acp import LONGEST_LINE, Engine
from tests.bench.figures import Figures, median
from tests.bench.timed import TimedServer
from tests.crew import Crew
from tests.worker import real_engines, test_real_codex, test_real_engine

pytestmark = [
    pytest.mark.bench,
    pytest.mark.long,
    pytest.mark.xdist_group("bench"),
    pytest.mark.timeout(900),
]

ROUNDS = 5
PROMPT = "Say that you are there."


class Responses(test_real_codex.Responses):
    """The API of Codex, recording when each request arrived."""

    arrivals: list[float]

    def next_item(self, _body: dict[str, Any]) -> test_real_codex.Item:
        self.arrivals.append(time.time())
        return test_real_codex.says("I am there.")


@contextlib.contextmanager
def served(name: str, model: TimedServer) -> Iterator[tuple[dict[str, str], list[float]]]:
    """Serve the API of an engine; yield the variables with which it finds that, and the times of its requests."""
    if name == "claude":
        yield {"ANTHROPIC_BASE_URL": model.url}, model.arrivals.messages
        return
    arrivals = Responses.arrivals = list[float]()
    with real_engines.Server(("127.0.0.1", 0), Responses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        yield {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": test_real_codex.KEY}, arrivals
        server.shutdown()
        thread.join()


async def begin_alone(known: engines.KnownEngine, variables: Mapping[str, str], folder: Path) -> float:
    """Start an engine as an editor does, and prompt it; return when, in epoch seconds."""
    began = time.time()
    process = await asyncio.create_subprocess_exec(
        known.program, cwd=folder, env=variables, limit=LONGEST_LINE, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    engine = Engine(process.stdout, process.stdin)
    await engine.initialize()
    await engine.new(folder, [])
    for method, parameters in known.work:
        await engine.set(method, dict(parameters))
    await engine.prompt(PROMPT)
    await engine.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), 5)
    if process.returncode is None:
        process.kill()
        await process.wait()
    return began


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_a_start_of_an_engine(figures: Figures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    known = engines.KNOWN[name]
    installed = {"claude": test_real_engine.INSTALLED, "codex": test_real_codex.INSTALLED}[name]
    if not (installed / known.program).exists():
        pytest.skip(f"{known.title} is not installed: make engines")
    monkeypatch.setenv("PATH", f"{installed}:{os.environ['PATH']}")
    monkeypatch.setattr(service, "MOST_OUTPUT", 128_000)
    root = tmp_path / "project"
    root.mkdir()
    ours, alone = list[float](), list[float]()
    with TimedServer() as model, served(name, model) as (variables, arrivals):
        monkeypatch.setattr(model, "_script", test_real_engine.Turns())
        crew = Crew(root, model, PATH=os.environ["PATH"], **variables)
        url = variables[known.address]
        bare = {
            # As root, Claude Code wants to be told that it is in one.
            **crew.environment, **known.set_variables, "IS_SANDBOX": "1",
            **{each: text.replace("{url}", url) for each, text in known.redirected.items()},
        }  # fmt: skip
        try:
            # The first start reads the engine's files from the disk.
            for number in range(ROUNDS + 1):
                arrivals.clear()
                home = tmp_path / f"home{number}"
                home.mkdir()
                began = asyncio.run(begin_alone(known, {**bare, "HOME": str(home)}, root))
                alone.append(arrivals[0] - began)
                arrivals.clear()
                began = time.time()
                agent = f"agent{number}"
                assignment = hiring.spawn(crew.team, hiring.Hire(agent, "explore", PROMPT, engine=name))
                crew.answer(assignment, 90)
                ours.append(arrivals[0] - began)
                crew.wait_for(agent, "idle")
                stop.stop(crew.team, agent)
        finally:
            crew.end()
    with_us, without = median(ours[1:]), median(alone[1:])
    figures.add(f"{known.title}, hire to its first request", with_us, "s", ("it alone", without))
    more = figures.add(f"{known.title}, more than it alone", with_us - without, "s", target=1)
    assert more.within()
