"""The hosts of a team: which are up, what they run, what was lost with one, and what waits for one."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from crewboard.commands import context
from crewboard.commands.context import CommandLine
from crewboard.readmodel import as_json
from crewboard.readmodel.needs import ways_to_begin
from crewboard.readmodel.processes import KernelProbe, Usage
from crewboard.readmodel.reader import TeamReader, read_team
from crewboard.readmodel.team import TeamView
from crewboard.records.processes import Exit, HeldStart, HeldStarts, Host
from crewboard.records.processes import Usage as UsageOnHost
from crewboard.records.team import OperatorState
from crewboard.store import agents, hosts, leases
from crewboard.store.file_store import FileStore
from crewboard.store.interface import Version
from crewboard.unix import process
from crewboard_tui.cli.answers import answers
from tests.frozen import NOW, Frozen, make_empty
from tests.placed import add_host, place, want
from tests.postgres import close_connections

NONE_UP = "none of this team is up; start one with `crewboard host`"


@pytest.fixture
def team(tmp_path: Path) -> Frozen:
    """Return a team with two hosts that are up."""
    frozen = make_empty(tmp_path / "inkpot")
    add_host(frozen.directory, "big", labels=["gpu"])
    add_host(frozen.directory, "small", slots=1)
    frozen.probe.hosts_up = frozenset({"big", "small"})
    return frozen


def read(frozen: Frozen) -> TeamView:
    return TeamReader(frozen.directory, clock=lambda: NOW, probe=frozen.probe).read()


def put(frozen: Frozen, name: str, host: str, **more: Any) -> None:
    """Hire an agent that runs on a host."""
    frozen.hire(name, "code", "working", "bash make", ago=9, pid=77, host=host, boot_id="elsewhere", **more)


def test_a_host_names_what_runs_on_it(team: Frozen) -> None:
    put(team, "api", "big")
    put(team, "ui", "big")
    found = read(team).hosts
    assert [(host.name, host.state, host.used, host.record.slots, host.agents) for host in found] == [
        ("big", "up", 2, 8, ("api", "ui")),
        ("small", "up", 0, 1, ()),
    ]


@pytest.mark.parametrize(
    ("is_up", "draining", "state"),
    [(True, False, "up"), (True, True, "draining"), (False, False, "lost"), (False, True, "ended")],
)
def test_the_lease_and_the_record_say_how_a_host_is(team: Frozen, is_up: bool, draining: bool, state: str) -> None:
    add_host(team.directory, "small", draining=draining)
    team.probe.hosts_up = frozenset({"big", "small"} if is_up else {"big"})
    found = read(team).host("small")
    assert found is not None
    assert found.state == state


def test_a_host_that_comes_back_is_up_again(team: Frozen) -> None:
    team.probe.hosts_up = frozenset({"big"})
    reader = TeamReader(team.directory, clock=lambda: NOW, probe=team.probe)
    assert [host.state for host in reader.read().hosts] == ["up", "lost"]
    team.probe.hosts_up = frozenset({"big", "small"})
    add_host(team.directory, "small", since=NOW, at=NOW)
    assert [host.state for host in reader.read().hosts] == ["up", "up"]


def test_a_host_is_forgotten_after_a_day_unless_agents_were_lost(team: Frozen) -> None:
    for name in ("old", "small"):
        add_host(team.directory, name, at=NOW - 90_000)
    put(team, "api", "small")
    del team.probe.held["api"]
    team.probe.hosts_up = frozenset({"big"})
    view = read(team)
    assert [host.name for host in view.hosts] == ["small", "big"]
    assert view.told_apart == ["big", "small"]


@pytest.mark.parametrize(("big", "small", "backend"), [(True, True, "offline"), (True, False, "api")])
def test_the_hosts_that_are_up_say_which_model_is_used(team: Frozen, big: bool, small: bool, backend: str) -> None:
    add_host(team.directory, "big", offline=big)
    add_host(team.directory, "small", offline=small)
    assert read(team).model_backend == backend
    team.probe.hosts_up = frozenset({"big"})
    assert read(team).model_backend == "offline"


def test_a_team_without_hosts_looks_at_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = make_empty(tmp_path / "inkpot")
    frozen.hire("api", "code", "working", "bash make", ago=9, pid=77)
    asked: list[str] = []
    store = type(frozen.directory.store)
    changed = store.changed

    def note(self: FileStore, name: str) -> Version | None:
        asked.append(name)
        return changed(self, name)

    monkeypatch.setattr(store, "changed", note)
    assert read(frozen).hosts == ()
    assert [name for name in asked if name.startswith(("hosts", "starts/"))] == ["hosts"]


def test_usage_of_another_machine_is_what_its_host_says(team: Frozen, monkeypatch: pytest.MonkeyPatch) -> None:
    put(team, "api", "big", cpu=50)
    add_host(team.directory, "big", usage={"api": UsageOnHost(cpu=140.0, memory=3 << 30, children=5)})
    monkeypatch.setattr(team.probe, "measure", lambda workers: dict.fromkeys(workers, Usage(0, 0)))
    view = read(team)
    assert view.agents[0].usage == Usage(140.0, 3 << 30, 5)
    assert (view.agents[0].status.host, view.agents[0].is_here) == ("big", False)


def test_a_pid_of_another_machine_is_not_looked_up(team: Frozen) -> None:
    put(team, "api", "big")
    team.probe.gone = frozenset({77})
    assert read(team).agents[0].state == "working"
    place(team, "api", "big", boot_id="boot")
    add_host(team.directory, "big", boot_id="boot")
    assert read(team).agents[0].state == "unknown", "the same on this machine is a conflict"


def test_a_host_in_another_container_of_this_machine_is_not_here() -> None:
    probe = KernelProbe()
    pid = os.getpid()
    ticks = process.start_ticks(pid)
    assert ticks is not None
    host = Host(name="here", slots=1, pid=pid, boot_id=process.boot_id(), start_ticks=ticks)
    assert probe.sees(host)
    assert not probe.sees(host.replace(start_ticks=ticks + 1))
    assert not probe.sees(host.replace(boot_id="elsewhere"))


def test_a_run_that_ended_on_another_machine_was_no_reboot(team: Frozen) -> None:
    put(team, "api", "big")
    del team.probe.held["api"]
    assert read(team).agents[0].state == "vanished"
    place(team, "api", "big", boot_id="before")
    agent = read(team).agents[0]
    assert (agent.state, agent.reason) == ("exited", "the machine went down")


def test_a_host_that_is_lost_is_one_need_for_all_its_agents(team: Frozen) -> None:
    for name in ("api", "ui", "docs"):
        put(team, name, "small")
        del team.probe.held[name]
    put(team, "other", "big")
    evidence = "no sign of life of small for 15 s"
    for name in ("api", "ui"):
        agents.write_exit(team.directory.agent(name), Exit(run=1, reason="lost", at=NOW - 5, evidence=evidence))
    team.probe.hosts_up = frozenset({"big"})
    view = read(team)
    (need,) = view.needs
    assert (need.kind, need.host, need.key) == ("death", "small", "death:host:small")
    assert need.agents == ("api", "ui", "docs")
    assert need.summary == f"lost on host small, with 2 others: {evidence}"
    assert [agent.shown for agent in view.agents] == ["dead", "dead", "dead", "run"]
    lost = view.host("small")
    assert lost is not None
    assert (lost.agents, lost.lost) == ((), ("api", "ui", "docs"))
    told = as_json.status(view)["needs_you"][0]
    assert (told["agents"], told["host"]) == (["api", "ui", "docs"], "small")


def test_a_host_that_ended_is_one_need_for_the_agents_that_it_cut_off(team: Frozen) -> None:
    for name in ("p1", "p2", "rested"):
        put(team, name, "small")
        del team.probe.held[name]
        record = Exit(run=1, reason="host_ended", at=NOW - 5, buried=True, unfinished=name != "rested")
        agents.write_exit(team.directory.agent(name), record)
    add_host(team.directory, "small", draining=True)
    team.probe.hosts_up = frozenset({"big"})
    view = read(team)
    (need,) = view.needs
    assert (need.kind, need.key, need.agents) == ("death", "death:host:small", ("p1", "p2"))
    assert need.summary == "host small ended while 2 agents were at work"
    assert list(answers(need, CommandLine())) == [
        ("resume them", "crewboard resume p1 p2"),
        ("see the hosts", "crewboard hosts"),
        ("acknowledge", "crewboard ack p1"),
    ]
    # For scripts it is an orderly end.
    assert [(each.state, each.shown) for each in view.agents] == [("exited", "dead")] * 2 + [("exited", "done")]
    assert [each.reason for each in view.agents][1:] == ["its host ended while it was at work", "its host ended"]
    host = view.host("small")
    assert host is not None
    assert (host.state, host.lost) == ("ended", ("p1", "p2"))
    # A host of this name that is up again has not finished their work.
    add_host(team.directory, "small")
    team.probe.hosts_up = frozenset({"big", "small"})
    assert [each.key for each in read(team).needs] == ["death:host:small"]
    state = OperatorState(acknowledged={"p1": 1, "p2": 1})
    team.directory.operator.save(state)
    assert (read(team).needs, [each.shown for each in read(team).agents]) == ((), ["done"] * 3)


def test_the_need_of_a_host_that_was_lost_and_then_ended_tells_both(team: Frozen) -> None:
    for name, record in (
        ("p1", Exit(run=1, reason="lost", at=NOW - 90, evidence="small was silent for 15 s")),
        ("p2", Exit(run=1, reason="host_ended", at=NOW - 5, unfinished=True)),
    ):
        put(team, name, "small")
        del team.probe.held[name]
        agents.write_exit(team.directory.agent(name), record)
    (need,) = read(team).needs
    assert need.summary == ("lost on host small: small was silent for 15 s; host small ended while 1 agent was at work")


def test_a_lost_host_explains_a_run_that_nobody_ended(team: Frozen) -> None:
    put(team, "api", "small", beat=NOW - 600)
    del team.probe.held["api"]
    team.probe.hosts_up = frozenset({"big"})
    agent = read(team).agents[0]
    assert agent.ended_with_host
    assert agent.reason.startswith("its host small is lost, last seen at ")
    assert agent.since == NOW - 1, "an agent at rest may have written long before its host was lost"


@pytest.mark.parametrize(
    ("flags", "up", "reason"),
    [
        ({}, ("big", "small"), "waiting for a host to start it"),
        ({}, (), f"waits for a host: {NONE_UP}"),
        ({"needs": ["gpu"]}, ("small",), "waits for a host with gpu"),
        ({"host": "small"}, ("big", "small"), "waits for the host small with a free slot"),
        ({"host": "small"}, ("big",), "waits for the host small, which is lost"),
        ({"host": "tiny"}, ("big",), "waits for the host tiny"),
        ({"host": "small", "needs": ["gpu"]}, ("big", "small"), "waits for the host small with gpu"),
    ],
)
def test_an_agent_says_why_it_waits_for_a_host(
    team: Frozen, flags: dict[str, Any], up: tuple[str, ...], reason: str
) -> None:
    put(team, "api", "small")
    want(team.directory, "new", 20, **flags)
    team.probe.hosts_up = frozenset(up)
    view = read(team)
    agent = view.agent("new")
    assert agent is not None
    assert (agent.state, agent.reason) == ("queued", reason)
    assert not [need for need in view.needs if need.kind == "no_host"], "20 s are no reason to worry"


def test_agents_that_wait_long_for_a_host_are_one_need(team: Frozen) -> None:
    team.probe.hosts_up = frozenset()
    for name in ("one", "two"):
        want(team.directory, name, 40)
    want(team.directory, "three", 10)
    (need,) = read(team).needs
    assert (need.kind, need.agents, need.since) == ("no_host", ("one", "two"), NOW - 40)
    assert need.summary == f"waits for a host: {NONE_UP} (and 1 other)"


def test_agents_that_outlive_their_host_are_one_need(team: Frozen) -> None:
    for name in ("api", "ui"):
        put(team, name, "big")
    put(team, "docs", "small")
    team.probe.hosts_up = frozenset({"small"})
    assert read(team).needs == (), "if the machine went down, their leases end in a moment"
    add_host(team.directory, "big", labels=["gpu"], at=NOW - 40)
    (need,) = read(team).needs
    assert (need.kind, need.key, need.agents) == ("no_host", "no_host:host:big", ("api", "ui"))
    told = "its 2 agents run on without it: nothing restarts them or counts their load"
    assert need.summary == f"host big is not up; {told}"
    assert ways_to_begin(need) == [("start that host", "host --name big --label gpu")]
    team.probe.hosts_up = frozenset({"big", "small"})
    assert read(team).needs == ()


@pytest.mark.parametrize("is_draining", [True, False])
def test_agents_without_host_need_nothing_once_they_end(team: Frozen, is_draining: bool) -> None:
    put(team, "api", "big")
    add_host(team.directory, "big", at=NOW - 40, draining=is_draining)
    team.probe.hosts_up = frozenset()
    ended = Exit(run=1, code=0, reason="finished", at=NOW - 5, buried=True)
    if not is_draining:
        agents.write_exit(team.directory.agent("api"), ended)
        del team.probe.held["api"]
    assert read(team).needs == ()


@pytest.mark.parametrize(("offset", "said"), [(0.4, ""), (-7.2, "7 s behind"), (600.0, "600 s ahead")])
def test_a_wrong_clock_of_a_host_is_said(team: Frozen, offset: float, said: str) -> None:
    add_host(team.directory, "big", clock_offset=offset, at=NOW + offset - 1)
    host = read(team).host("big")
    assert host is not None
    assert host.clock == said
    assert host.seen == pytest.approx(NOW - 1)


def test_a_run_that_its_host_holds_back_says_why(team: Frozen) -> None:
    want(team.directory, "new", 40)
    held = HeldStarts(
        held=[HeldStart(name="new", run=1, since=NOW - 40, reason="killed by SIGKILL", due=NOW + 4, attempt=2)]
    )
    team.directory.host("big").held.save(held)
    view = read(team)
    assert view.agents[0].reason == "restarts in 4 s (2 of 3): killed by SIGKILL"
    assert view.needs == ()


def test_hosts_in_postgresql_are_read_with_their_leases(tmp_path: Path, shared_database: str) -> None:
    team = context.create(tmp_path, f"t{time.monotonic_ns()}", "", shared_database).directory
    assert read_team(team).hosts == ()
    add_host(team, "big", at=time.time())
    add_host(team, "small", at=time.time())
    held = leases.take(hosts.lease(team, "big"))
    assert held is not None
    try:
        view = read_team(team)
        assert [(host.name, host.state) for host in view.hosts] == [("big", "up"), ("small", "lost")]
        reader = TeamReader(team)
        reader.read()
        add_host(team, "big", load=3.0)
        changed = reader.read().host("big")
        assert changed is not None
        assert changed.record.load == 3.0
        want(team, "new", 40, now=time.time(), host="small")
        assert [need.kind for need in reader.read().needs] == ["no_host"]
    finally:
        leases.release(held)
        close_connections()
