"""A team is kept in a database if its maker says so, and moves between stores without the loss of a byte."""

import json
import os
from pathlib import Path

import pytest

from crewboard.commands import hire as hiring
from crewboard.commands import hosts
from crewboard.commands.context import Team, command_for
from crewboard.records.agents import Spec
from crewboard.records.events import Answer
from crewboard.records.processes import Exit
from crewboard.records.team import Member
from crewboard.store import agents, journal, mailbox, roster, tasks
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import TeamDirectory
from crewboard.store.roster import find_team
from tests.cli.files import alive, ask, enlist
from tests.cli.shell import Cli
from tests.crew import contents
from tests.hosts import up
from tests.placed import add_host
from tests.postgres import close_connections


@pytest.fixture
def filled(directory: TeamDirectory) -> TeamDirectory:
    """Make a team with something of each kind, whose bytes no encoder would write again."""
    roster.put(directory, Member(name="scout", type="explore"))
    agent = directory.agent("scout")
    agents.change_spec(agent, lambda _: Spec(type="explore", prompt="p", prompt_id="a", want="stopped"))
    journal.append(
        agent.journal, Answer(ts=1.0, assignment="a", answers=["a"], text="ü", result="results/scout-1-1.md")
    )
    agents.write_exit(agent, Exit(run=1, code=0, reason="finished", at=1.0))
    for number in range(3):
        mailbox.send(directory, mailbox.compose("operator", "scout", "message", f"letter {number}", ts=1.0))
    tasks.add(directory, "first", now=1.0)
    directory.keep_result("scout-1-1.md", b"no newline at the end")
    with directory.inbox("scout").on_disk.open("ab") as file:
        file.write(b'\n{"damaged\n{"unknown":   [1, 2]}\n')
    with directory.task(1).on_disk.open("ab") as file:
        file.write(b"  \n")
    agent.kept.mkdir()
    (agent.kept / ("0" * 64)).write_bytes(b"\x00old")
    return directory


@pytest.mark.files_only("moves a team out of files")
def test_export_and_import_keep_each_byte(cli: Cli, filled: TeamDirectory, database: str, tmp_path: Path) -> None:
    """Files to a database, and from there to files."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    assert cli("export", str(first)).code == 0
    assert cli("team", "create", "hosted", "--store", database).code == 0
    assert cli.agree("--team", "hosted", "import", str(first)).code == 0
    assert cli("--team", "hosted", "export", str(second)).code == 0
    assert cli("team", "create", "back").code == 0
    assert cli.agree("--team", "back", "import", str(second)).code == 0
    assert cli("--team", "back", "export", str(third)).code == 0
    found = [{path.relative_to(root): data for path, data in contents(root).items()} for root in (first, second, third)]
    settings = [json.loads(each.pop(Path("config.json"))) for each in found]
    assert [each.pop("name") for each in settings] == ["default", "hosted", "back"]
    assert settings[0] == settings[1] == settings[2]
    assert found[0] == found[1] == found[2]
    for name, data in found[0].items():
        assert data == (filled.path / name).read_bytes()
    assert {"inbox/scout.jsonl", "tasks/.last-id", "agents/scout/journal.jsonl", "results/scout-1-1.md",
            f"agents/scout/kept/{'0' * 64}"} <= set(map(str, found[0]))  # fmt: skip
    assert "owners" not in map(str, found[0])
    assert not list((cli.root / ".crewboard" / "hosted").rglob("*.json*")), "records are in the database alone"
    status = cli("--team", "hosted", "status", "--json").json
    assert status["team"] == "hosted"
    assert [agent["name"] for agent in status["agents"]] == ["scout"]
    close_connections()


def test_export_keeps_pictures_that_only_the_database_has(cli: Cli, database: str, tmp_path: Path) -> None:
    """An agent that ran on another machine got or read them there."""
    assert cli("team", "create", "hosted", "--store", database).code == 0
    hosted = TeamDirectory(cli.root / ".crewboard" / "hosted")
    kept = agents.keep_media(hosted.agent("scout"), "dot.png", "image/png", b"a picture")
    (hosted.agent("scout").kept / kept.sha256).unlink()
    assert cli("--team", "hosted", "export", str(tmp_path / "out")).code == 0
    assert cli("team", "create", "back").code == 0
    assert cli("--team", "back", "import", str(tmp_path / "out")).code == 0
    back = TeamDirectory(cli.root / ".crewboard" / "back")
    assert agents.kept_content(back.agent("scout"), kept.sha256) == b"a picture"


@pytest.mark.files_only("moves a team out of files")
def test_the_import_of_an_offline_team_is_no_paid_work(
    cli: Cli, directory: TeamDirectory, database: str, tmp_path: Path
) -> None:
    """The mark of a team in files is one of its machine; a database has it for all machines."""
    directory.model_lock.on_disk.touch()
    keyed = cli.with_environment(ANTHROPIC_API_KEY="sk-ant-none")
    assert cli("export", str(tmp_path / "out")).code == 0
    assert cli("team", "create", "hosted", "--store", database).code == 0
    assert " · Messages API" in keyed("--team", "hosted", "status").out
    assert cli("--team", "hosted", "import", str(tmp_path / "out")).code == 0
    assert " · offline model" in keyed("--team", "hosted", "status").out
    (tmp_path / "elsewhere").mkdir()
    team = Team(hosts.join(tmp_path / "elsewhere", "hosted", database), environment=keyed.environment)
    assert team.worker_environment["CREWBOARD_OFFLINE"] == "1"
    assert " --offline " in command_for(team, "resume scout")
    assert cli("--team", "hosted", "export", str(tmp_path / "again")).code == 0
    assert [path for path, _ in contained(tmp_path / "again") - contained(tmp_path / "out")] == ["config.json"]
    close_connections()


def test_no_agent_died_by_an_import(cli: Cli, team: Team, tmp_path: Path) -> None:
    """Agents that ran at the export are the exported team's own."""
    enlist(team, "scout", host="build1")
    enlist(team, "fixer")
    enlist(team, "tester")
    agents.write_exit(team.directory.agent("tester"), Exit(run=1, signal=9, reason="died", at=5.0, buried=True))
    ask(team, "q1", "question", {"question": "which?"})
    tasks.add(team.directory, "parse", now=1.0)
    tasks.claim(team.directory, 1, "scout", "code", 2.0)
    with alive(team, "scout"), alive(team, "fixer"):
        assert cli("export", str(tmp_path / "out")).code == 0
        assert cli("team", "create", "back").code == 0
        assert cli.agree("--team", "back", "import", str(tmp_path / "out")).code == 0
    whole = cli("--team", "back", "status", "--json").json
    shown = {agent["name"]: (agent["state"], agent["reason"]) for agent in whole["agents"]}
    left = ("exited", "still ran when its team was exported")
    assert shown == {"scout": left, "fixer": left, "tester": ("crashed", "killed by SIGKILL")}
    assert [(need["kind"], need["agent"]) for need in whole["needs_you"]] == [("death", "tester")]
    assert [task["status"] for task in whole["tasks"]] == ["pending"]
    assert cli("--team", "back", "export", str(tmp_path / "again")).code == 0
    assert {path for path, _ in contained(tmp_path / "out") ^ contained(tmp_path / "again")} == {
        "config.json", "agents/scout/exit.json", "agents/fixer/exit.json", "tasks/1.json", "requests/q1.json",
    }  # fmt: skip


def test_an_import_does_not_take_the_name_of_the_exported_team(cli: Cli, tmp_path: Path) -> None:
    """A command for the exported team would be for the first of both by the name of its folder."""
    assert cli("team", "create", "beta").code == 0
    assert cli("--team", "beta", "export", str(tmp_path / "out")).code == 0
    assert cli("team", "create", "alpha").code == 0
    assert cli("--team", "alpha", "import", str(tmp_path / "out")).code == 0
    assert [team["name"] for team in cli("team", "list", "--json").json] == ["alpha", "beta"]
    assert cli("--team", "beta", "status", "--json").json["team"] == "beta"
    assert find_team(cli.root, "beta") == TeamDirectory(cli.root / ".crewboard" / "beta")
    assert cli("--team", "beta", "export", str(tmp_path / "again")).code == 0
    assert contained(tmp_path / "again") == contained(tmp_path / "out")


def contained(folder: Path) -> set[tuple[str, bytes]]:
    return {(str(path.relative_to(folder)), data) for path, data in contents(folder).items()}


@pytest.mark.parametrize("offline", [True, False])
def test_an_export_says_that_hosts_used_the_offline_model(
    cli: Cli, directory: TeamDirectory, tmp_path: Path, offline: bool
) -> None:
    """Only they know: a machine that hires has no mark."""
    add_host(directory, "build1", offline=offline)
    assert cli("export", str(tmp_path / "out")).code == 0
    assert cli("team", "create", "back").code == 0
    assert cli("--team", "back", "import", str(tmp_path / "out")).code == 0
    back = TeamDirectory(directory.path.with_name("back"))
    assert Team(back, environment={}).offline is offline


def test_no_team_is_imported_below_a_host(cli: Cli, directory: TeamDirectory, tmp_path: Path) -> None:
    """A host with a key would go on with the agents of an offline team as paid work."""
    assert cli("export", str(tmp_path / "out")).code == 0
    with up(directory, "build1"):
        cli("import", str(tmp_path / "out")).refused(75, "the host build1 of default is up")
    assert cli("import", str(tmp_path / "out")).code == 0


@pytest.mark.files_only("moves a team out of files")
def test_import_replaces_no_agents(cli: Cli, filled: TeamDirectory, tmp_path: Path) -> None:
    before = contents(filled.path)
    assert cli("export", str(tmp_path / "out")).code == 0
    cli("import", str(tmp_path / "out")).refused(2, "has agents")
    cli("import", str(tmp_path)).refused(2, "there is no team in")
    cli("export", str(tmp_path / "out")).refused(2, "is not an empty folder")
    for command in ("export", "import"):
        cli(command, "").refused(2, "the name is empty")
    assert contents(filled.path) == before


@pytest.mark.files_only("moves a team out of files")
@pytest.mark.parametrize("place", ["results", "agents/eve", "agents/scout/kept", "agents/scout/kept/1.txt"])
def test_an_import_follows_no_link(cli: Cli, tmp_path: Path, place: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/1.txt").write_text("secret")
    assert cli("team", "create", "back").code == 0
    out = tmp_path / "out"
    (out / place).parent.mkdir(parents=True)
    (out / "config.json").write_text('{"schema_version": 1, "name": "old"}')
    (out / place).symlink_to(tmp_path / ("secret/1.txt" if place.endswith(".txt") else "secret"))
    before = contents(tmp_path / "back") if (tmp_path / "back").exists() else {}
    cli("--team", "back", "import", str(out)).refused(65, f"{place} is a link")
    assert (contents(tmp_path / "back") if (tmp_path / "back").exists() else {}) == before
    (out / place).unlink()
    os.mkfifo(out / place)
    cli("--team", "back", "import", str(out)).refused(65, f"{place} is a link, or no regular file")


def test_a_team_in_a_database(cli: Cli, database: str, tmp_path: Path) -> None:
    made = cli("team", "create", "api", "--store", database, "--json").json
    assert made["name"] == "api"
    directory = TeamDirectory(tmp_path / ".crewboard" / "api")
    assert (directory.path / "store").read_text() == f"{database}\n"
    assert (directory.path / "store").stat().st_mode & 0o777 == 0o600
    assert not (directory.path / "config.json").exists()
    assert cli("task", "add", "look at it").code == 0
    assert cli("status", "--json").json["tasks"][0]["subject"] == "look at it"
    (check,) = [each for each in json.loads(cli("doctor", "--json").out) if each["name"] == "store"]
    assert check["mark"] == "ok"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cli("--root", str(elsewhere), "team", "create", "api", "--store", database).refused(2, "there is a team api")
    assert cli("team", "delete", "api", "--purge").code == 0
    assert not directory.path.exists()
    assert cli("--root", str(elsewhere), "team", "create", "api", "--store", database).code == 0
    close_connections()


def test_an_address_with_a_password_is_refused_and_not_kept(cli: Cli) -> None:
    pytest.importorskip("psycopg")
    refused = cli("team", "create", "api", "--store", "postgresql://crew:hunter2@db/crew")
    refused.refused(2, "contains a password", "PGPASSFILE")
    assert "hunter2" not in refused.err
    assert not (cli.root / ".crewboard").exists()


@pytest.mark.long
def test_a_database_out_of_reach_is_said_in_words(cli: Cli, database: str, tmp_path: Path) -> None:
    gone = "postgresql://crew@/gone?host=/nonexistent"
    cli("team", "create", "api", "--store", gone).refused(
        74, "the store postgresql://crew@/gone failed", "role in the address", f"`psql '{gone}'`"
    )
    for words in (("team", "join", "api", "--store", gone), ("--team", "api", "host", "--store", gone)):
        ran = cli(*words)
        ran.refused(74, "password in ~/.pgpass")
        assert "doctor" not in ran.err, "there is no team here yet that it could look at"
    assert cli("team", "create", "api", "--store", database).code == 0
    (tmp_path / ".crewboard" / "api" / "store").write_text(gone)
    shell = Cli(cli.root, cli.environment)
    shell("status").refused(74, "postgresql://crew@/gone", "is the database up?")
    assert [team["name"] for team in shell("team", "list", "--json").json] == ["api"]
    (check,) = [each for each in json.loads(shell("doctor", "--json").out) if each["name"] == "store"]
    assert check["mark"] == "bad"
    close_connections()


def test_a_team_that_was_purged_elsewhere_was_deleted(cli: Cli, database: str, tmp_path: Path) -> None:
    assert cli("team", "create", "api", "--store", database).code == 0
    (tmp_path / "other").mkdir()
    there = ("--root", str(tmp_path / "other"))
    assert cli(*there, "team", "join", "api", "--store", database).code == 0
    assert cli("team", "delete", "api", "--purge").code == 0
    ran = cli(*there, "--team", "api", "status")
    ran.refused(2, "the team api was deleted from its database", "remove ")
    assert "team create" not in ran.err, "that would make one in files"
    close_connections()


def test_the_database_of_a_foreign_team_is_not_contacted(cli: Cli, database: str, tmp_path: Path) -> None:
    """A cloned repository could name any server."""
    folder = tmp_path / ".crewboard" / "api"
    (folder / "agents").mkdir(parents=True)
    (folder / "store").write_text("postgresql://crew@/gone?host=/nonexistent")
    directory = TeamDirectory(folder)
    assert directory.store == directory.local
    assert directory.exists()
    cli("status").refused(77, "is not asked")
    with pytest.raises(Exception, match="foreign"):
        hiring.spawn(Team(directory), hiring.Hire("scout", "explore", "hello"))
    assert RecordKey(directory.store, directory.config.name, Member).load_or_none() is None
