"""The cost of large teams: opening a gigabyte, resuming a long conversation, two hundred workers at once."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crewboard.commands import messages
from crewboard.commands.context import Team
from crewboard.protocol import supervisor_client
from crewboard.readmodel.activity import ActivityReader
from crewboard.readmodel.reader import read_team
from crewboard.store.layout import TeamDirectory
from tests.bench import large
from tests.bench.baselines import cpu_seconds, family, private_mib, python_ms
from tests.bench.figures import Figures, cpu_ms, median_ms, python
from tests.crew import Crew, eventually
from tests.model import ModelServer

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

MEGABYTE = 2**20
TOLERANCE = 1.5
WORKERS = 200

_RESUME = """
import sys, time
from pathlib import Path
from crewboard.store.layout import AgentDirectory
from crewboard.worker.run_state import RunState
agent = AgentDirectory.at(Path(sys.argv[1]))
spec = agent.spec.load()
began = time.process_time()
run_state = RunState(agent, spec)
assert not run_state.fresh
print(time.process_time() - began)
"""

_PARSE = """
import json, sys, time
began = time.process_time()
for line in open(sys.argv[1], "rb"):
    json.loads(line)
print(time.process_time() - began)
"""


def seconds(code: str, path: Path) -> float:
    """Run code in a new interpreter and return the seconds of processor time that it prints."""
    done = subprocess.run([sys.executable, "-I", "-c", code, str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs", [1, 10])
def test_resuming_a_long_conversation(figures: Figures, directory: TeamDirectory, runs: int) -> None:
    agent = directory.agent("scout")
    large.write_journal(agent, 100 * MEGABYTE, runs)
    large.enlist(directory, "scout", runs)
    bare = min(seconds(_PARSE, agent.journal.on_disk) for _ in range(3))
    ours = min(seconds(_RESUME, agent.path) for _ in range(3))
    name = f"going on after a journal of 100 MB, {runs} conversation{'s' if runs > 1 else ''}"
    figures.add(name, ours, "s", target=0.5)
    figure = figures.add(name, ours, "s", ("json.loads of each line", bare), target=1.2)
    assert figure.within(TOLERANCE)


@pytest.fixture
def gigabyte(directory: TeamDirectory) -> TeamDirectory:
    """Make ten agents with a journal of 100 MB each, and 20 MB of unread mail."""
    large.write_journal(directory.agent("agent0"), 100 * MEGABYTE)
    large.enlist(directory, "agent0")
    for number in range(1, 10):
        name = f"agent{number}"
        large.copy_journal(directory.agent("agent0").journal.on_disk, directory.agent(name))
        large.enlist(directory, name)
    team = Team(directory)
    for number in range(200):
        messages.send(team, "operator", "x" * 100_000 + str(number))
    return directory


@pytest.mark.timeout(600)
def test_opening_a_gigabyte(figures: Figures, gigabyte: TeamDirectory) -> None:
    def look() -> None:
        read_team(gigabyte)
        ActivityReader(gigabyte.agent("agent3")).read()

    size = sum(path.stat().st_size for path in gigabyte.path.rglob("*") if path.is_file())
    assert size > 1000 * MEGABYTE
    bare = python_ms("import crewboard.readmodel.reader")
    figure = figures.add("opening a team of 1 GB", median_ms(look, 5), "ms", target=1000)
    figures.add("opening a team of 1 GB", figure.value, "ms", ("python -c import of the view", bare))
    assert figure.within(TOLERANCE)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with ModelServer() as model:
        crew = Crew(tmp_path, model)
        try:
            yield crew
        finally:
            crew.end()


@pytest.mark.timeout(900)
def all_idle(crew: Crew) -> None:
    eventually(lambda: all(agent.state == "idle" for agent in crew.view().agents), "all idle", 60)


def test_two_hundred_workers(figures: Figures, crew: Crew) -> None:
    supervisor_client.wake_supervisor(crew.directory)
    eventually(lambda: "prefork server ready" in crew.directory.supervisor_log.read_text(), "the prefork server")
    names = [f"agent{number}" for number in range(WORKERS)]
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        hired = list(pool.map(lambda name: crew.hire(name, "explore", "say hello"), names))
    for assignment in hired:
        assert crew.answer(assignment).error is None
    all_idle(crew)
    figures.add(f"{WORKERS} workers hired, answered and idle", time.monotonic() - began, "s", target=12)
    figures.add(
        "processor time of each, with the supervisor and the prefork server",
        cpu_seconds(family(crew.supervisor_pid())) / WORKERS * 1e3,
        "ms",
        ("import anthropic", cpu_ms([python("import anthropic")], 5)[0]),
    )
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(lambda name: messages.send(crew.team, name, "List all Python files").id, names))
    for name, message in zip(names, sent, strict=True):
        assert crew.answer_to(name, message).error is None
    all_idle(crew)
    figures.add(f"{WORKERS} workers start a file-tool server and list files", time.monotonic() - began, "s")
    if os.geteuid() == 0:
        workers = [pid for name in names for pid in family(crew.pid(name))]
        each = sum(map(private_mib, workers)) / WORKERS
        figure = figures.add(f"{WORKERS} workers, private each, file-tool servers included", each, "MiB", target=20)
        assert figure.within(1.1)
    figures.add(f"one look at {WORKERS} agents", median_ms(lambda: read_team(crew.directory), 5), "ms")
