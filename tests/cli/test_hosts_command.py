"""The command `hosts`, and hosts in `status`."""

import json
import time
from dataclasses import replace

import pytest

from crewboard.commands.context import Team
from crewboard.records.processes import Exit
from crewboard.records.team import OperatorState
from crewboard.store import agents, hosts, leases
from tests.cli.files import alive, enlist
from tests.cli.shell import Cli
from tests.hosts import up
from tests.placed import add_host, want
from tests.raw import RawServer


@pytest.mark.files_only("a team in PostgreSQL has hosts")
def test_a_team_in_files_says_that_it_has_no_hosts(cli: Cli, team: Team) -> None:
    ran = cli("hosts")
    assert (ran.code, ran.out) == (0, "")
    assert "team create NAME --store URL" in ran.err
    assert json.loads(cli("hosts", "--json").out) == []
    assert "hosts" not in cli("status").out


def test_hosts_lists_what_is_up_and_what_it_runs(cli: Cli, team: Team) -> None:
    add_host(team.directory, "build1", slots=4, labels=["gpu"], clock_offset=7.0)
    add_host(team.directory, "build2", slots=2, at=time.time() - 40)
    enlist(team, "api", host="build1")
    enlist(team, "ui", host="build2")
    held = leases.take(hosts.lease(team.directory, "build1"))
    assert held is not None
    try:
        with alive(team, "api"):
            lines = cli("hosts").out.splitlines()
            assert lines[0].split() == ["HOST", "STATE", "SLOTS", "LOAD", "MEMORY", "SEEN", "LABELS", "AGENTS"]
            assert lines[1].split()[:4] == ["build2", "lost", "0/2", "–"]
            assert lines[2].split()[:5] == ["build1", "up", "1/4", "0.5", "8.0G"]
            assert lines[2].endswith("gpu     clock 7 s ahead · api")
            listed = json.loads(cli("hosts", "--json").out)
            assert [(host["name"], host["state"], host["agents"]) for host in listed] == [
                ("build2", "lost", []),
                ("build1", "up", ["api"]),
            ]
            assert listed[0]["lost"] == ["ui"]
            whole = json.loads(cli("status", "--json").out)
            assert whole["hosts"] == listed
            assert whole["agents"][0]["host"] == "build1"
            shown = cli("status").out
            assert "1 of 2 hosts up, 1/4 slots" in shown
            assert "HOST    PID" in shown
            # The death of `ui` is known to the user: where it ran is still told.
            state = OperatorState(acknowledged={"ui": 1})
            team.directory.operator.save(state)
            assert "HOST    PID" in cli("status").out
    finally:
        leases.release(held)


@pytest.mark.files_only("in a database, the command names its address")
def test_status_says_that_an_agent_waits_for_a_host(cli: Cli, team: Team) -> None:
    add_host(team.directory, "build1")
    want(team.directory, "api", 40)
    shown = cli("status").out
    assert "waits for a host: none of this team is up" in shown
    assert "→ crewboard host   or   crewboard hosts   or   crewboard stop api" in shown


def test_status_says_which_host_uses_the_offline_model(cli: Cli, team: Team) -> None:
    with up(team.directory, "build1") as host, up(team.directory, "build2"):
        assert " · Messages API" in cli("status").out
        hosts.save(team.directory, host.replace(offline=True))
        assert "\noffline model only on build1\n" in cli("status").out


def test_a_hire_for_offline_hosts_asks_no_server(cli: Cli, team: Team) -> None:
    with RawServer() as server:
        given = cli.with_environment(ANTHROPIC_API_KEY="key", ANTHROPIC_BASE_URL=server.url)
        with up(team.directory, "build1") as host:
            hosts.save(team.directory, host.replace(offline=True))
            hire = ("--type", "explore", "--prompt", "look", "--background", "--effort", "high")
            assert given("spawn", "scout", *hire).code == 0
            assert server.asked == []
            hosts.save(team.directory, host)
            given("spawn", "other", *hire)
            # One of them has a key.
            assert server.asked != []


def test_status_says_what_a_resumed_agent_waits_for(cli: Cli, team: Team) -> None:
    add_host(team.directory, "build1")
    enlist(team, "api", host="build1")
    directory = team.directory.agent("api")
    agents.write_exit(directory, Exit(run=1, reason="killed", at=5, buried=True))
    spec = directory.spec.load()
    assert spec is not None
    agents.change_spec(directory, lambda _: spec.replace(run=2, at=time.time()))
    row = next(line for line in cli("status").out.splitlines() if line.startswith("  api "))
    assert "queued" in row
    assert "waits for a host: none" in row


def test_a_named_database_is_joined_by_any_command(
    cli: Cli, database: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = replace(cli, root=tmp_path_factory.mktemp("elsewhere"))
    assert cli("--store", database, "team", "create", "api").code == 0
    elsewhere("--store", database, "status").refused(2, "no team default", "team create default --store")
    assert json.loads(elsewhere("--store", database, "--team", "api", "status", "--json").out)["team"] == "api"
    assert elsewhere("--store", database, "send", "operator", "from elsewhere").code == 0
    assert "from elsewhere" in cli("inbox", "operator").out
    assert cli("--store", f"{database}?connect_timeout=9", "--team", "api", "status").code == 2


def test_work_that_an_ending_host_cut_off_needs_you_and_is_an_orderly_end(cli: Cli, team: Team) -> None:
    add_host(team.directory, "build1", draining=True)
    for name in ("api", "ui"):
        enlist(team, name, state="working", host="build1")
        agents.write_exit(
            team.directory.agent(name), Exit(run=1, reason="host_ended", at=5, buried=True, unfinished=True)
        )
    shown = cli("status").out
    assert "host build1 ended while 2 agents were at work" in shown
    assert "crewboard resume api ui" in shown
    for word in ("exited", "done", "dead"):
        assert cli("wait", "api", "--until", word, "--timeout", "0").code == 0
    assert cli("ack", "ui").out == "acknowledged how api, ui ended\n"
    assert "(acknowledged)" in cli.with_environment(COLUMNS="120")("status").out
