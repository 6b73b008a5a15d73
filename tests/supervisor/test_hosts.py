"""Hosts: several machines that run the agents of one team, each the supervisor of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from crewboard.records import Host, Status, WantedRun
from crewboard.store import agents, hosts, json_records
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.host import LocalHost, describe
from tests import postgres
from tests.crew import Crew, eventually
from tests.model import ModelServer
from tests.real_hosts import Hosts

LOOK = "List all Python files"
TTL = 3.0


@pytest.fixture
def team(database: str, tmp_path: Path) -> Iterator[Hosts]:
    """Make a team in PostgreSQL whose leases are short, without a host."""
    root = tmp_path / "operator"
    root.mkdir()
    with ModelServer() as model:
        crew = Crew(root, model, store=database)
        postgres.set_lease_ttl(database, TTL)
        postgres.close_connections()
        found = Hosts(crew, tmp_path, database)
        yield found
        found.end()
        postgres.close_connections()


def host_of(team: Hosts, name: str) -> str | None:
    status = agents.status(team.crew.agent(name))
    return status.host if status is not None else None


def using(team: Hosts, host: str, agent: str) -> Host | None:
    """Return the record of a host if it says what an agent uses."""
    record = hosts.load(team.crew.directory, host)
    return record if record is not None and agent in record.usage else None


def test_a_host_runs_agents_and_says_so(team: Hosts) -> None:
    team.start("build1", "--label", "gpu")
    assert team.crew.run("scout", "explore", LOOK).code == 0
    assert host_of(team, "scout") == "build1"
    record = eventually(lambda: using(team, "build1", "scout"), "the record of the host")
    assert (record.slots, record.labels, record.draining) == (8, ["gpu"], False)
    assert record.usage["scout"].memory > 0
    assert team.drain("build1") == 0
    assert not hosts.is_up(team.crew.directory, "build1")
    ended = agents.exit_record(team.crew.agent("scout"))
    assert ended is not None
    assert (ended.reason, ended.buried) == ("shutdown", True)
    assert "host build1 of team default is up: 8 slots, labels: gpu" in team.log("build1")


def test_what_a_lost_host_had_begun_is_not_begun_again(directory: TeamDirectory) -> None:
    """A claim that it had begun is removed, one that it had not goes back into the queue."""
    hosts.make(directory, "gone")
    for name in ("begun", "waits"):
        directory.store.make_folder(f"agents/{name}")
        hosts.keep(directory, "gone", WantedRun(agent=name, run=1))
    json_records.save(directory.agent("begun").status, Status(run=1, pid=1, state="working", since=0, host="gone"))
    hosts.make(directory, "here")
    LocalHost(directory, describe("here", 8, []), None, {}).find_lost()
    assert [run.agent for run in hosts.wanted(directory)] == ["waits"]
    assert hosts.claimed(directory, "gone") == []
