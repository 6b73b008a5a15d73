"""`hosts up` and `hosts down` with a real Ray cluster: three nodes on this machine, one of which is removed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from crewboard.commands import hire as hiring
from crewboard.records.processes import Host
from crewboard.store import hosts
from crewboard.unix import process
from tests import postgres
from tests.crew import Crew, eventually
from tests.model import ModelServer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

LOOK = "List all Python files"
TTL = 3.0
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@dataclass
class Nodes:
    """A Ray cluster, and a team in PostgreSQL."""

    cluster: Any
    crew: Crew
    folder: Path

    def run(self, *arguments: str, address: str = "") -> subprocess.CompletedProcess[str]:
        where = address or self.cluster.address
        command = [sys.executable, "-m", "crewboard_tui.cli", "hosts", *arguments, "--ray", where]
        return subprocess.run(
            command, cwd=self.crew.root, env=self.crew.environment, capture_output=True, text=True, check=False
        )

    def up(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.run("up", "--folder", str(self.folder), "--slots", "4", "--json", *arguments)
        assert done.returncode == 0, (done.stdout, done.stderr)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def record(self, name: str) -> Host:
        found = hosts.load(self.crew.directory, name)
        assert found is not None
        return found

    def living(self) -> list[str]:
        return [host.name for host in hosts.load_all(self.crew.directory) if self.is_up(host.name)]

    def is_up(self, name: str) -> bool:
        return hosts.is_up(self.crew.directory, name)

    def host_of(self, agent: str) -> str:
        status = self.crew.agent(agent).status.load()
        return status.host if status is not None else ""

    def kill(self, name: str) -> None:
        """Kill every process of a host at once, as if its machine had lost power."""
        pid = self.record(name).pid
        os.kill(pid, signal.SIGSTOP)
        for each in [*process.descendants(pid), pid]:
            process.send_signal(each, signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Start a cluster of three nodes, with the key in their environment."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    folder = tmp_path_factory.mktemp("ray")
    root = folder / "operator"
    root.mkdir()
    with ModelServer() as model, pytest.MonkeyPatch.context() as patch:
        crew = Crew(root, model, store=postgres_url)
        postgres.set_lease_ttl(postgres_url, TTL)
        postgres.close_connections()
        programs = Path(__file__).parents[2] / ".venv/bin"
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("ANTHROPIC_BASE_URL", model.url)
        patch.setenv("ANTHROPIC_API_KEY", "a-key-of-the-nodes")
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
        try:
            for _ in range(2):
                cluster.add_node(**NODE)
            found = Nodes(cluster, crew, folder / "nodes")
            yield found
            found.run("down")
        finally:
            cluster.shutdown()
            postgres.close_connections()


@pytest.fixture(scope="module")
def postgres_url(postgres: postgres.SharedServer) -> str:
    return postgres.new_database()


def test_each_node_gets_a_host_once(nodes: Nodes) -> None:
    started = nodes.up("--label", "big")
    assert [(each["state"], each["was_there"]) for each in started] == [("up", False)] * 3
    names = [each["host"] for each in started]
    records = [nodes.record(name) for name in names]
    assert all((record.slots, record.labels) == (4, ["big"]) for record in records)
    for record in records:
        host = psutil.Process(record.pid)
        actor = host.parent()
        assert actor is not None
        sizes = {each.pid: each.memory_full_info().pss / 2**20 for each in (host, *host.children(), actor)}
        print(f"\n{record.name}: {sum(sizes.values()):.0f} MiB of actor, host and its prefork server {sizes}")
    print(f"up after {[each['seconds'] for each in started]} s")
    again = nodes.up()
    assert [(each["state"], each["was_there"], each["host"]) for each in again] == [
        ("up", True, name) for name in names
    ]
    assert [nodes.record(name).pid for name in names] == [record.pid for record in records]
    assert nodes.crew.run("scout", "explore", LOOK).code == 0
    assert nodes.host_of("scout") in names


def test_a_host_that_crashes_comes_back(nodes: Nodes) -> None:
    name = nodes.living()[0]
    before = nodes.record(name).pid
    nodes.kill(name)
    eventually(lambda: nodes.record(name).pid != before and nodes.is_up(name), "the next host", 60)


def test_a_host_without_its_actor_drains_and_comes_back(nodes: Nodes) -> None:
    name = nodes.living()[0]
    before = nodes.record(name).pid
    actor = psutil.Process(before).parent()
    assert actor is not None
    actor.kill()
    eventually(lambda: not psutil.pid_exists(before), "the end of the host", 60)
    eventually(lambda: nodes.record(name).pid != before and nodes.is_up(name), "the next host", 60)


def test_agents_of_a_removed_node_are_lost_and_resume_elsewhere(nodes: Nodes) -> None:
    crew = nodes.crew
    node = nodes.cluster.list_all_nodes()[-1]
    assert node is not nodes.cluster.head_node
    names = nodes.living()
    (name,) = (each for each in names if each.endswith(node.node_id[:6]))
    other = next(each for each in names if each != name)
    crew.run("fixer", "explore", LOOK, host=name)
    nodes.cluster.remove_node(node, allow_graceful=False)
    nodes.kill(name)
    ended = eventually(crew.agent("fixer").exit.load, "the end of the lost agent", 60)
    assert (ended.reason, name in ended.evidence) == ("lost", True)
    # Ray takes some seconds to notice.
    nodes.cluster.wait_for_nodes(90)
    again = nodes.up()
    assert name not in {each["host"] for each in again}
    assert all(each["was_there"] for each in again)
    hiring.resume(crew.team, "fixer", host=other)
    assert crew.run("fixer", "explore", LOOK, host=other).code == 0
    assert nodes.host_of("fixer") == other


def test_a_new_node_without_a_key_says_so(nodes: Nodes) -> None:
    node = nodes.cluster.add_node(**NODE, env_vars={"ANTHROPIC_API_KEY": ""})
    done = nodes.run("up", "--folder", str(nodes.folder))
    assert done.returncode == 75
    assert f"-{node.node_id[:6]} on {node.node_ip_address} failed: " in done.stdout
    assert "no API key" in done.stdout
    assert "ray start" in done.stderr


def test_down_drains_the_hosts(nodes: Nodes) -> None:
    names = nodes.living()
    pids = [nodes.record(name).pid for name in names]
    done = nodes.run("down")
    assert done.returncode == 0
    assert done.stdout.count(": drained\n") == len(names)
    assert not any(nodes.is_up(name) for name in names)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert all(nodes.record(name).draining for name in names)
    assert "no host of this team was started" in nodes.run("down").stderr


def test_a_wrong_address_is_said_in_words(nodes: Nodes) -> None:
    done = nodes.run("up", address="127.0.0.1:9")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "no Ray cluster can be reached" in done.stderr
