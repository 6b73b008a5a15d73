"""The cost of the sandbox: commands next to plain bash, the file-tool server next to a bare interpreter."""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from crewboard.sandbox import bubblewrap, landlock, shell
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from crewboard.sandbox.scratch import Scratch
from crewboard.unix import process
from crewboard.worker.tools.base import FileToolClient
from tests.bench.baselines import python_ms
from tests.bench.figures import Figures, median

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

TIMES = 100
COST_MS = 8.0
TOLERANCE = 1.5
"""Factor by which a figure may miss its target before the test fails: other tests may run at the same time."""


@pytest.fixture
def scratch() -> Iterator[Path]:
    made = Scratch.make()
    yield made.path
    made.remove()


@pytest.fixture
def policy(tmp_path: Path, scratch: Path) -> Policy:
    root = Path(os.path.realpath(tmp_path)) / "root"
    (root / ".crewboard/default/results").mkdir(parents=True)
    for number in range(40):
        (root / f"file{number}").write_text("x\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return Policy(root, writes=True, scratch=scratch)


def box(level: Level, policy: Policy) -> Sandbox:
    return Sandbox(level, policy, policy.root / ".crewboard/default/results")


def in_turns(acts: dict[str, Callable[[], Awaitable[object]]], times: int) -> dict[str, float]:
    """Return the median milliseconds of each function. Rounds alternate, so that all meet the same load."""
    took: dict[str, list[float]] = {name: [] for name in acts}

    async def story() -> None:
        for _ in range(times):
            for name, act in acts.items():
                began = time.perf_counter()
                await act()
                took[name].append((time.perf_counter() - began) * 1e3)

    asyncio.run(story())
    return {name: median(values) for name, values in took.items()}


async def plain() -> None:
    """Run a command as simply as asyncio can."""
    child = await asyncio.create_subprocess_exec(
        "bash", "-c", "true", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    await child.communicate()


def test_commands(figures: Figures, policy: Policy) -> None:
    works: dict[Level, str | None] = {
        "bubblewrap": bubblewrap.unavailable_reason(policy),
        "landlock": landlock.unavailable_reason(policy),
    }
    keep = set(process.descendants(os.getpid()))
    levels = [level for level, complaint in works.items() if complaint is None]

    def behind(level: Level) -> Callable[[], Awaitable[object]]:
        wall = box(level, policy)
        return lambda: shell.run("true", wall, 20, keep)

    took = in_turns({"plain": plain, **{level: behind(level) for level in levels}}, TIMES)
    for level in levels:
        figures.add(f"a command in {level}", took[level], "ms", ("plain bash", took["plain"]))
        figure = figures.add(f"what {level} adds to a command", took[level] - took["plain"], "ms", target=COST_MS)
        assert figure.within(TOLERANCE)


def test_file_server(figures: Figures, policy: Policy) -> None:
    helper = FileToolClient(box("bubblewrap" if bubblewrap.unavailable_reason(policy) is None else "none", policy))

    async def start() -> None:
        await helper.end()
        await helper.ask("read_file", {"path": "file1"})

    async def call() -> None:
        await helper.ask("read_file", {"path": "file1"})

    async def story() -> tuple[list[float], list[float]]:
        starts: list[float] = []
        calls: list[float] = []
        for act, took, times in ((start, starts, 10), (call, calls, 500)):
            for _ in range(times):
                began = time.perf_counter()
                await act()
                took.append((time.perf_counter() - began) * 1e3)
        await helper.end()
        return starts, calls

    starts, calls = asyncio.run(story())
    bare = python_ms("import json, re, fnmatch, pathlib, contextlib, dataclasses")
    figures.add(
        "file-tool server, from nothing to its first answer",
        median(starts),
        "ms",
        ("python -c, same libraries", bare),
        target=3,
    )
    figures.add("a call of the file-tool server", median(calls) * 1e3, "µs")
