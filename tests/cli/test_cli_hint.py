"""Commands that the product prints: complete, and correct in the shell of the user."""

import shlex
from pathlib import Path

import pytest

from crewboard.commands.context import CommandLine, Team
from crewboard.records.processes import Exit
from crewboard.store import agents
from tests.cli.files import ask, enlist
from tests.cli.shell import Cli
from tests.crew import eventually
from tests.frozen import make_empty


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CREWBOARD_ROOT", "CREWBOARD_TEAM", "CREWBOARD_OFFLINE", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_root_and_team_are_named_where_they_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(make_empty(tmp_path, "demo").directory)
    monkeypatch.chdir(tmp_path)
    assert CommandLine.of(team)("ack w2") == "crewboard ack w2"
    make_empty(tmp_path, "other")
    assert CommandLine.of(team)("ack w2") == "crewboard --team demo ack w2"
    monkeypatch.setenv("CREWBOARD_TEAM", "demo")
    assert CommandLine.of(team)() == "crewboard"
    monkeypatch.setenv("CREWBOARD_TEAM", "nowhere")
    assert CommandLine.of(team)() == "crewboard --team demo"
    monkeypatch.chdir("/")
    assert CommandLine.of(team)() == f"crewboard --root {tmp_path} --team demo"


def test_a_command_names_offline_only_where_it_starts_workers(
    team: Team, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cli.root)
    keyless, keyed = (Team(team.directory, environment=each) for each in ({}, {"ANTHROPIC_API_KEY": "k"}))
    assert CommandLine.of(keyless)("resume w2") == "crewboard resume w2"
    team.directory.model_lock.on_disk.touch()
    assert CommandLine.of(keyless)("resume w2") == "crewboard --offline resume w2"
    assert CommandLine.of(keyless)("ack w2") == "crewboard ack w2"
    assert CommandLine.of(keyed)("resume w2") == "crewboard --offline resume w2"
    monkeypatch.setenv("CREWBOARD_OFFLINE", "1")
    assert CommandLine.of(Team(team.directory))("resume w2") == "crewboard resume w2"


def test_a_resume_without_a_key_names_the_offline_model(team: Team, cli: Cli) -> None:
    enlist(team, "dee")
    cli("resume", "dee").refused(78, "no API key", "try the offline model with --offline")


@pytest.mark.long
def test_an_offline_team_stays_offline_in_a_shell_with_a_key_or_without(offline: Cli) -> None:
    keyless = offline.with_environment(CREWBOARD_OFFLINE="")
    # An address that answers nothing: an agent that used the key would fail.
    keyed = keyless.with_environment(
        ANTHROPIC_API_KEY="key", ANTHROPIC_BASE_URL="http://127.0.0.1:9", CREWBOARD_RETRY_BUDGET="1"
    )
    assert keyed("--offline", "spawn", "first", "--type", "explore", "--prompt", "list the files").code == 0
    for number, shell in enumerate((keyed, keyless)):
        assert shell("stop", "first", "--now").code == 0
        assert shell("resume", "first").code == 0
        hired = shell("spawn", f"more{number}", "--type", "explore", "--prompt", "list the files", "--once")
        assert hired.code == 0, hired.err
        assert ("does not use your API key" in hired.err) == (shell is keyed)
    status = keyed("status", "--json").json
    assert status["model_backend"] == "offline"
    assert [each["cost_usd"] for each in status["agents"]] == [None] * 3


@pytest.mark.usefixtures("team")
def test_every_step_names_a_team_that_is_not_the_default(cli: Cli) -> None:
    team = Team(make_empty(cli.root, "crew").directory)
    enlist(team, "fixer")
    agents.write_exit(team.directory.agent("fixer"), Exit(run=1, signal=9, reason="died", at=5))
    ask(team, "ask-1", "question", {"question": "tabs?"})
    named = "crewboard --team crew"
    text = cli("--team", "crew", "status").out
    for words in (f"→ {named} resume fixer   or   {named} ack fixer", f"→ {named} answer ask-1 TEXT"):
        assert words in text
    assert f"\n{named} answer ask-1 TEXT\n" in cli("--team", "crew", "requests").out
    cli("--team", "crew", "interrupt", "fixer").refused(75, f"`{named} resume fixer` starts it again")


@pytest.mark.long
def test_a_step_of_an_offline_team_works_where_it_is_pasted(offline: Cli) -> None:
    """Run in a shell that does not select the offline model and has no key."""
    shell = offline.with_environment(CREWBOARD_OFFLINE="")
    assert shell("team", "create", "other").code == 0
    assert shell("team", "create", "crew").code == 0
    of_crew = ("--team", "crew")
    hired = shell(*of_crew, "--offline", "spawn", "w2", "--type", "explore", "--prompt", "list the files")
    assert hired.code == 0, hired.err
    shell(*of_crew, "stop", "w2", "--now")
    told = shell(*of_crew, "send", "w2", "go on").err
    command = shlex.split(told.partition("`")[2].partition("`")[0])
    assert command == ["crewboard", *of_crew, "--offline", "resume", "w2"]
    resumed = shell(*command[1:])
    assert resumed.code == 0, resumed.err
    eventually(lambda: shell(*of_crew, "status", "--json").json["agents"][0]["alive"], "w2 being up")
