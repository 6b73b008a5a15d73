"""Operations on agents as commands: several names, `--all` and JSON are the same for each."""

import json

import pytest

from crewboard.commands.context import Team
from crewboard.operations import OPERATIONS
from tests.cli.files import alive, enlist, set_status
from tests.cli.shell import Cli


def test_several_agents_are_removed_at_once(cli: Cli, team: Team) -> None:
    for name in ("fixer", "scout", "tester"):
        enlist(team, name)
    cli("remove", "fixer", "missing").refused(2, "there is no agent 'missing'")
    assert team.config.names == ["fixer", "scout", "tester"], "an unknown name spares the others"
    with alive(team, "scout"):
        done = cli("remove", "fixer", "scout", "tester", "--json")
    assert (done.code, [each["name"] for each in json.loads(done.out)]) == (75, ["fixer", "tester"])
    assert "scout is alive; stop it first" in done.err
    assert team.config.names == ["scout"]


def test_pausing_all_leaves_out_what_does_not_run(cli: Cli, team: Team) -> None:
    for name in ("fixer", "scout"):
        enlist(team, name)
    assert cli("pause", "--all").out == "no agent is running\n"
    assert cli("pause", "--all", "--json").json == []
    with alive(team, "scout"):
        assert cli("pause", "--all", "--json").json == [{"name": "scout", "paused": True}]
        assert _wanted(team, "scout") == "paused"
        assert cli("unpause", "scout", "--json").json == {"name": "scout", "paused": False}
        assert _wanted(team, "scout") == "running"
        assert cli("unpause", "scout").out == "scout is not paused\n"
        some = cli("pause", "scout", "fixer")
        assert (some.code, some.out) == (75, "scout pauses at its next safe point\n")
        assert "fixer is not running; `crewboard resume fixer`" in some.err
    assert (_wanted(team, "scout"), _wanted(team, "fixer")) == ("paused", "running")
    acts = [(each["act"], each["target"]) for each in cli("audit", "--json").json]
    assert acts == [("pause", "scout"), ("unpause", "scout"), ("pause", "scout")]


def test_unpausing_all_names_only_what_was_paused(cli: Cli, team: Team) -> None:
    for name in ("fixer", "scout"):
        enlist(team, name)
    with alive(team, "fixer"), alive(team, "scout"):
        assert cli("unpause", "--all").out == "no agent is paused\n"
        cli("pause", "scout")
        assert cli("unpause", "--all", "--json").json == [{"name": "scout", "paused": False}]
        cli("pause", "scout")
        assert cli("unpause", "--all").out == "scout continues\n"


def test_a_pause_is_shown_until_it_begins(cli: Cli, team: Team) -> None:
    enlist(team, "scout", state="working", doing="bash: make")
    with alive(team, "scout"):
        cli("pause", "scout")
        assert cli("status").out.splitlines()[-1].endswith("pausing · bash: make")
        assert cli("status", "--json").json["agents"][0]["pausing"]
        set_status(team, "scout", state="paused", doing="paused by the operator")
        assert "pausing" not in cli("status").out
        assert not cli("status", "--json").json["agents"][0]["pausing"]


def _wanted(team: Team, name: str) -> str:
    spec = team.directory.agent(name).spec.load()
    assert spec is not None
    return spec.want


def test_a_renamed_agent_keeps_its_name(cli: Cli, team: Team) -> None:
    enlist(team, "fixer")
    renamed = cli("rename", "fixer", "Payments  API", "--json").json
    assert renamed == {"name": "fixer", "title": "Payments API"}
    assert "fixer Payments API" in cli("status").out
    assert [(each["name"], each["title"]) for each in cli("status", "--json").json["agents"]] == [
        ("fixer", "Payments API")
    ]
    cli("rename", "fixer", "a\u202eb").refused(2, "at most 40 characters that can be printed")
    cli("rename", "missing", "x").refused(2, "there is no agent 'missing'")
    assert cli("rename", "fixer").out == "fixer is shown as fixer\n"
    acts = [(each["act"], each["target"], each["detail"]) for each in cli("audit", "--json").json]
    assert acts == [("rename", "fixer", "Payments API"), ("rename", "fixer", "")]


@pytest.mark.parametrize("ident", OPERATIONS)
def test_an_operation_that_a_key_takes_back_is_known(ident: str) -> None:
    assert OPERATIONS[ident].back in ("", *OPERATIONS)
