"""Hosts on PostgreSQL, with fsync on: claims, a look at a large team, mail to another host, a thousand workers."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from crewboard.commands import messages
from crewboard.commands.context import Team
from crewboard.readmodel.reader import TeamReader
from crewboard.records.events import Intake
from crewboard.records.processes import WantedRun
from crewboard.store import hosts, journal, roster
from crewboard.store.layout import TeamDirectory
from tests import postgres
from tests.bench import simulated
from tests.bench.figures import ROOT, Figures, median_ms
from tests.bench.parallel import rate
from tests.cli.files import alive, enlist_all, set_status
from tests.crew import Crew
from tests.model import ModelServer
from tests.real_hosts import Hosts

pytestmark = [pytest.mark.bench, pytest.mark.long, pytest.mark.xdist_group("bench")]

TOLERANCE = 2.0
AGENTS = 1000
CLAIMERS = 10
MESSAGES = 100
WORKERS, PROCESSES = 1000, 10
SECONDS = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """Start a server that keeps its data on the disk, and waits for it."""
    postgres.require(own=True)
    with ExitStack() as stack:
        started = postgres.Server(durable=True, connections=WORKERS + 200)
        stack.callback(started.end)
        started.start()
        yield started


@pytest.fixture
def database(server: postgres.Server) -> Iterator[str]:
    yield postgres.SharedServer.database_on(server.url)
    postgres.close_connections()


@pytest.fixture
def team(database: str, tmp_path: Path) -> TeamDirectory:
    """Make a team without agents."""
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    team.make(database)
    roster.create(team, "", 1.0)
    return team


def test_starts_are_claimed_once(figures: Figures, team: TeamDirectory) -> None:
    for number in range(CLAIMERS):
        hosts.make(team, f"host{number}")
    for number in range(AGENTS):
        hosts.want(team, WantedRun(agent=f"agent{number}", run=1, at=1.0))
    per_second, _ = rate("claim_runs", CLAIMERS, 1, team.path)
    claimed = [[run.agent for run in hosts.claimed(team, f"host{number}")] for number in range(CLAIMERS)]
    assert sorted(name for names in claimed for name in names) == sorted(f"agent{number}" for number in range(AGENTS))
    figures.add("the most that one host claimed of it", max(map(len, claimed)), "")
    name = f"{AGENTS:,} starts claimed by {CLAIMERS} hosts, each once"
    assert figures.add(name, CLAIMERS / per_second, "s", target=1).within(TOLERANCE)


def test_a_look_at_a_large_team(figures: Figures, team: TeamDirectory, tmp_path: Path) -> None:
    """The pass of a dashboard over all agents, of which ten have changed."""
    in_files = TeamDirectory(tmp_path / "files" / ".crewboard" / "default")
    (tmp_path / "files").mkdir()
    in_files.make()
    roster.create(in_files, "", 1.0)
    took = {}
    for where, directory in (("files", in_files), ("PostgreSQL", team)):
        made = Team(directory)
        names = [f"agent{number}" for number in range(AGENTS)]
        enlist_all(made, names, "explore", pid=os.getpid(), since=1.0)
        with ExitStack() as stack:
            for name in names[:100]:
                stack.enter_context(alive(made, name))
            # What a process uses is asked of its own machine.
            reader = TeamReader(directory)
            began = time.perf_counter()
            assert len(reader.read(measured=0).agents) == AGENTS
            figures.add(f"the first look at {AGENTS:,} agents in {where}", (time.perf_counter() - began) * 1e3, "ms")
            looks = []
            for turn in range(20):
                for name in names[10 * turn : 10 * turn + 10]:
                    set_status(made, name, pid=os.getpid(), since=2.0 + turn)
                looks.append(median_ms(partial(reader.read, measured=0), 1))
            took[where] = statistics.median(looks)
    name = f"a look at {AGENTS:,} agents in PostgreSQL, of which 10 changed"
    figures.add(name, took["PostgreSQL"], "ms", ("the same in files", took["files"]))
    assert figures.add(name, took["PostgreSQL"], "ms", target=20).within(TOLERANCE)


def test_mail_to_an_agent_of_another_host(figures: Figures, database: str, tmp_path: Path) -> None:
    (tmp_path / "operator").mkdir()
    with ModelServer() as model, ExitStack() as stack:
        crew = Crew(tmp_path / "operator", model, store=database)
        there = Hosts(crew, tmp_path, database)
        stack.callback(there.end)
        there.start("build1")
        assert crew.run("scout", "explore", "say hello").error is None
        took = sorted(_intake_ms(crew, "scout") for _ in range(MESSAGES))
    p50, p99 = statistics.median(took), took[int(0.99 * len(took))]
    figure = figures.add("from a message to its intake by an idle agent of another host, p50", p50, "ms", target=10)
    figures.add("the same, p99", p99, "ms", target=50)
    assert figure.within(TOLERANCE)


def _intake_ms(crew: Crew, name: str) -> float:
    """Send a message to an agent at rest, and return the milliseconds until its journal shows that it was taken in."""
    crew.wait_for(name, "idle")
    log = crew.agent(name).journal
    end = log.size()
    began = time.perf_counter()
    ident = messages.send(crew.team, name, "say hello").id
    while True:
        for event, behind in journal.read(log, end):
            end = behind
            if isinstance(event, Intake) and ident in {message.id for message in event.messages}:
                took = (time.perf_counter() - began) * 1e3
                assert crew.answer_to(name, ident).error is None
                return took
        assert time.perf_counter() - began < 60
        time.sleep(0.0005)


@pytest.mark.timeout(600)
def test_a_thousand_workers(figures: Figures, server: postgres.Server, team: TeamDirectory) -> None:
    """The load that the store takes of each call if each worker calls the model every ten seconds."""
    assert team.address is not None
    each = WORKERS // PROCESSES
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.simulated", team.address, team.path.name, str(number * each), str(each),
             str(SECONDS)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        before, began = server.cpu_seconds(), time.monotonic()
        for process in started:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        told = [process.communicate()[0] for process in started]
        cores = (server.cpu_seconds() - before) / (time.monotonic() - began)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    assert {process.returncode for process in started} == {0}, "no lease was lost"
    took = sorted(ms for each in told for ms in json.loads(each))
    assert len(took) >= 0.9 * WORKERS * SECONDS / simulated.INTERVAL
    name = f"{WORKERS:,} workers, a call of each every {simulated.INTERVAL:g} s: the store's share of a call"
    figure = figures.add(f"{name}, p50", statistics.median(took), "ms", target=35)
    figures.add(f"{name}, p99", took[int(0.99 * len(took))], "ms", target=250)
    figures.add(f"{WORKERS:,} workers: processor of PostgreSQL", cores, "cores", target=0.5)
    assert figure.within(TOLERANCE)
