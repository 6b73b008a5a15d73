"""Hosts on a network that fails: nothing is lost, done twice, or written by what was replaced.

Leases are short here. What ends, and how soon another machine may go on, is measured in their time.
"""

import contextlib
import time
from collections.abc import Callable

import pytest

from crewboard.commands import hire as hiring
from crewboard.errors import CrewboardError
from crewboard.store import hosts, tasks
from tests.crew import eventually
from tests.network.cluster import Cluster, measured
from tests.network.machines import clock_ahead

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

ClusterMaker = Callable[..., Cluster]

TOOL = ("sleep", "1234")
"""A command that runs until its worker ends."""

SLACK = 2.0
"""Seconds by which a busy machine may be late."""


def busy(cluster: Cluster, host: str, other: str) -> None:
    """Let agents work on a host: one takes in mail, one runs a command. On both hosts one claims tasks."""
    for name in (host, other):
        cluster.start(f"claimer-{name}", name, autoclaim=True)
    cluster.start("reader", host)
    cluster.start("builder", host, "test", f"run: {' '.join(TOOL)}")
    eventually(lambda: cluster[host].has(*TOOL), "the command of builder")


def has_workers(cluster: Cluster, host: str) -> bool:
    return any("crewboard.worker" in words for words in cluster[host].processes().values())


def are_free(cluster: Cluster) -> bool:
    return not (cluster.is_held("reader") or cluster.is_held("builder"))


def see_the_end(cluster: Cluster, host: str, since: float) -> dict[str, float]:
    """Wait until all that ran on a host that is cut off has ended, and its leases are over."""
    took = {
        "tool": measured(lambda: not cluster[host].has(*TOOL), since, "the end of the command"),
        "workers": measured(lambda: not has_workers(cluster, host), since, "the end of the workers"),
        "free": measured(lambda: are_free(cluster), since, "free leases"),
    }
    assert took["workers"] < 0.75 * cluster.ttl + SLACK
    return took


def go_on(cluster: Cluster, host: str) -> dict[str, float]:
    """Resume the agents on another host."""
    up = {f"up {name}": cluster.resume(name, host) for name in ("reader", "builder")}
    assert (cluster.host_of("reader"), cluster.host_of("builder")) == (host, host)
    cluster.wait_for_mail("reader")
    return up


def finish(cluster: Cluster, took: dict[str, float]) -> None:
    """Check all that holds after a fault, and that nothing stays when the hosts end."""
    print(f"seconds, leases last {cluster.ttl:g}:", {name: round(each, 2) for name, each in took.items()})
    assert not any(machine.has(*TOOL) for machine in cluster.machines.values()), "it was run again"
    cluster.check()
    for name in cluster.machines:
        cluster.check_drained(name)


def test_a_machine_that_is_cut_off(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b")
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        cluster["a"].cut()
        since = time.monotonic()
        took = see_the_end(cluster, "a", since)
        assert took["free"] < cluster.ttl + SLACK
        took["lost"] = measured(lambda: cluster.reason("reader") == cluster.reason("builder") == "lost", since, "why")
        took |= go_on(cluster, "b")
        cluster["a"].heal()
        cluster.wait_for_host("a")
        cluster.wait_for_mail("reader")
    cluster.start("fresh", "a")
    finish(cluster, took)


@pytest.mark.parametrize("direction", ["to the store", "from the store"])
def test_packets_are_lost_in_one_direction(cluster_of: ClusterMaker, direction: str) -> None:
    cluster = cluster_of("a", "b")
    busy(cluster, "a", "b")
    way = (cluster["a"].address, cluster.network.database)
    way = way if direction == "to the store" else way[::-1]
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        cluster.network.lose(*way)
        try:
            lost_at = cluster.now()
            took = see_the_end(cluster, "a", time.monotonic())
            # No renewal arrives of which the answer is lost.
            assert cluster.end_of_leases("reader", "builder") < lost_at + cluster.ttl + 1
            took |= go_on(cluster, "b")
        finally:
            cluster.network.find(*way)
        cluster.wait_for_host("a")
        cluster.wait_for_mail("reader")
    finish(cluster, took)


def outlive(cluster: Cluster, fault: Callable[[], object]) -> dict[str, float]:
    """Let the machine "a" fail; return after how many seconds its leases were free, and its agents up elsewhere."""
    fault()
    took = {"free": measured(lambda: are_free(cluster), time.monotonic(), "free leases")}
    assert took["free"] < cluster.ttl + SLACK
    return took | go_on(cluster, "b")


def test_a_machine_that_loses_its_power(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b")
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        took = outlive(cluster, cluster["a"].kill)
        cluster.add("a")
        cluster.resume("claimer-a", "a")
    finish(cluster, took)


def test_a_machine_that_stands_still_and_goes_on(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b")
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        took = outlive(cluster, cluster["a"].freeze)
        assert cluster["a"].has(*TOOL)
        cluster["a"].thaw()
        since = time.monotonic()
        took["tool"] = measured(lambda: not cluster["a"].has(*TOOL), since, "the end of the command")
        took["workers"] = measured(lambda: not has_workers(cluster, "a"), since, "the end of the workers")
        cluster.wait_for_host("a")
        cluster.wait_for_mail("reader")
    finish(cluster, took)


def test_a_store_that_is_soon_back_ends_no_worker(cluster_of: ClusterMaker) -> None:
    # A busy machine may take seconds to start it again.
    cluster = cluster_of("a", "b", ttl=30.0)
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        cluster.network.server.kill()
        since = time.monotonic()
        # For longer than a call takes to fail, and shorter than it is repeated: 0.6 of the time of a lease.
        time.sleep(3)
        cluster.network.server.start()
        took = {"away": time.monotonic() - since}
        assert took["away"] < 0.6 * cluster.ttl
        cluster.wait_for_mail("reader", 20)
    assert cluster["a"].has(*TOOL)
    assert [cluster.last_run(name) for name in cluster.crew.team.config.names] == [1] * 4
    cluster["a"].end_process(*TOOL)
    finish(cluster, took)


def test_a_store_that_is_away_for_long_ends_the_workers(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b", ttl=3.0)
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        cluster.network.server.kill()
        since = time.monotonic()
        took = {"tool": measured(lambda: not cluster["a"].has(*TOOL), since, "the end of the command")}
        took["workers"] = measured(lambda: not any(has_workers(cluster, name) for name in "ab"), since, "their end")
        assert took["workers"] < 0.75 * cluster.ttl + SLACK
        cluster.network.server.start()
        for name in "ab":
            cluster.wait_for_host(name)
        eventually(lambda: all(cluster.reason(name) for name in cluster.crew.team.config.names), "why they ended")
        hiring.resume_all(cluster.crew.team)
        cluster.wait_for_mail("reader")
    assert [cluster.last_run(name) for name in cluster.crew.team.config.names] == [2] * 4
    finish(cluster, took)


def test_all_machines_are_cut_off_while_agents_are_resumed(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b")
    busy(cluster, "a", "b")
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        for name in "ab":
            cluster[name].cut()
        took = see_the_end(cluster, "a", time.monotonic())
        for name, host in (("reader", "b"), ("builder", "a")):
            # It waits for a host.
            hiring.resume(cluster.crew.team, name, host=host)
        for name in "ab":
            cluster[name].heal()
        since = time.monotonic()
        took["up"] = measured(lambda: cluster.last_run("reader") == cluster.last_run("builder") == 2, since, "new runs")
        cluster.wait_for_mail("reader")
        hiring.resume_all(cluster.crew.team)
    finish(cluster, took)


def test_a_clock_that_is_ten_minutes_ahead(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b", ttl=3.0, a=clock_ahead(600))
    busy(cluster, "a", "b")
    record = hosts.load(cluster.crew.directory, "a")
    assert record is not None
    assert 590 < record.clock_offset < 610
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        cluster["b"].cut()
        measured(lambda: not cluster.is_held("claimer-b"), time.monotonic(), "a free lease")
        took = {"up claimer-b": cluster.resume("claimer-b", "a")}
        cluster["b"].heal()
        cluster.wait_for_host("b")
        cluster["a"].cut()
        took |= see_the_end(cluster, "a", time.monotonic())
        assert took["free"] < cluster.ttl + SLACK
        took |= go_on(cluster, "b")
        took["up claimer-b again"] = cluster.resume("claimer-b", "b")
        cluster["a"].heal()
        cluster.wait_for_host("a")
    finish(cluster, took)


def test_a_host_that_drains(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", "b")
    busy(cluster, "a", "b")
    cluster["a"].end_process(*TOOL)
    with cluster.mail("reader"):
        cluster.wait_for_mail("reader")
        since = time.monotonic()
        cluster.check_drained("a")
        took = {"drained": time.monotonic() - since}
        for name in ("reader", "builder", "claimer-a"):
            assert cluster.reason(name) == "shutdown"
        took |= go_on(cluster, "b")
    del cluster.machines["a"]
    finish(cluster, took)


_IN_A_TRANSACTION = """
import sys, time
from crewboard.store import postgres_store
store = postgres_store.PostgresStore(sys.argv[1], "default")
def work():
    store.put("tasks/1.json", b"{}")
    print("inside", flush=True)
    time.sleep(1000)
store.locked("tasks", work)
"""


def test_a_machine_that_is_cut_off_in_a_transaction(cluster_of: ClusterMaker) -> None:
    cluster = cluster_of("a", ttl=10.0)
    program = cluster["a"].python(_IN_A_TRANSACTION, cluster.url_for_machines)
    assert program.stdout is not None
    assert program.stdout.readline() == b"inside\n"
    program.stdout.close()
    cluster["a"].cut()
    since = time.monotonic()
    with contextlib.suppress(CrewboardError):
        tasks.add(cluster.crew.directory, "say hello", time.time())
    assert time.monotonic() - since < cluster.ttl
    assert [task.subject for task in tasks.load_all(cluster.crew.directory)] == ["say hello"]
    cluster["a"].kill()
    program.wait()
