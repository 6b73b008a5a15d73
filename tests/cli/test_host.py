"""The commands `host` and `team join`: what they check and make before a host begins."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from crewboard.commands import hosts, stop
from crewboard.commands.context import Team, create
from crewboard.errors import ExitCode
from crewboard.protocol import supervisor_client
from crewboard.records.processes import Lease, Supervisor
from crewboard.store import hosts as store_hosts
from crewboard.store import leases
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor.host import describe
from tests.cli.shell import Cli, Inside, clean_environment
from tests.crew import Crew
from tests.model import ModelServer
from tests.placed import add_host
from tests.postgres import close_connections

KEY = "a-key-of-a-host"


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory, database: str) -> TeamDirectory:
    """Make the team `api` in PostgreSQL on another machine."""
    made = create(tmp_path_factory.mktemp("home"), "api", "", database)
    return made.directory


@contextmanager
def host_in(root: Path, database: str, name: str) -> Iterator[TeamDirectory]:
    """Let this process be a host of the team `api` in a folder, as far as its leases and its record say."""
    root.mkdir()
    joined = hosts.join(root, "api", database)
    me = describe(name, 2, [])
    add_host(joined, name, pid=me.pid, boot_id=me.boot_id, start_ticks=me.start_ticks, machine=me.machine)
    folder, lease = leases.take(joined.supervisor_lock), leases.take(store_hosts.lease(joined, name))
    assert folder is not None
    assert lease is not None
    leases.sign(folder, Supervisor(pid=me.pid, boot_id=me.boot_id, start_ticks=me.start_ticks))
    leases.sign(lease, Lease(pid=me.pid, boot_id=me.boot_id, start_ticks=me.start_ticks, host=name))
    try:
        yield joined
    finally:
        leases.release(folder)
        leases.release(lease)


def begin(cli: Cli, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Run `host`, and return the command and environment of the process that it becomes."""
    with mock.patch.object(os, "execve") as become:
        ran = cli("--team", "api", "host", *arguments)
    assert (ran.code, ran.err) == (0, "")
    [call] = become.call_args_list
    return call.args[1], call.args[2]


def test_a_host_joins_the_team_and_takes_the_key_along(tmp_path: Path, api: TeamDirectory, database: str) -> None:
    cli = Inside(tmp_path).with_environment(ANTHROPIC_API_KEY=KEY)
    command, environment = begin(cli, "--store", database, "--name", "build1", "--slots", "3", "--label", "gpu")
    joined = TeamDirectory(tmp_path / ".crewboard" / "api")
    assert command[1:] == ["-I", "-m", "crewboard.supervisor", str(joined.path), "--host", "build1", "3", "gpu"]
    assert environment["ANTHROPIC_API_KEY"] == KEY
    assert (joined.address, joined.is_foreign()) == (database, False)
    assert joined.config.get() == api.config.get()
    # The next time, the folder knows the store.
    command, _ = begin(cli)
    assert command[6:] == [hosts.default_name(), str(4 * len(os.sched_getaffinity(0)))]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_host_needs_a_key(tmp_path: Path, api: TeamDirectory, database: str) -> None:
    cli = Inside(tmp_path)
    cli("--team", "api", "host", "--store", database).refused(ExitCode.CREDENTIALS, "no API key", "--offline")
    assert not (tmp_path / ".crewboard").exists(), "a host that is refused joins nothing"
    _, environment = begin(cli.with_environment(CREWBOARD_OFFLINE="1"), "--store", database)
    assert environment["CREWBOARD_OFFLINE"] == "1"


def test_a_host_with_a_key_takes_no_agents_of_the_offline_model(
    tmp_path: Path, api: TeamDirectory, database: str
) -> None:
    add_host(api, "build1", offline=True)
    cli = Inside(tmp_path).with_environment(ANTHROPIC_API_KEY=KEY)
    ran = cli("--team", "api", "host", "--store", database, "--name", "build2")
    ran.refused(ExitCode.USAGE, "uses the offline model (host build1)", "--offline too")
    assert not (tmp_path / ".crewboard").exists()
    begin(cli.with_environment(CREWBOARD_OFFLINE="1"), "--store", database, "--name", "build2")


@pytest.mark.files_only("a team in PostgreSQL has hosts")
def test_a_team_in_files_has_no_hosts(cli: Cli, team: Team) -> None:
    cli("host").refused(ExitCode.USAGE, "kept in files", "team create NAME --store postgresql://USER@HOST/DATABASE")


@pytest.mark.parametrize("named", [("--team", "api"), ()])
def test_a_host_in_an_empty_folder_needs_the_address_of_a_database(tmp_path: Path, named: tuple[str, ...]) -> None:
    ran = Inside(tmp_path)(*named, "host")
    name = named[-1] if named else "NAME"
    ran.refused(ExitCode.USAGE, f"`crewboard --team {name} host --store postgresql://USER@HOST/DATABASE` joins")
    assert "default" not in ran.err


@pytest.mark.parametrize("given", [("--name", "Build 1"), ("--label", "GPU"), ("--slots", "0")])
def test_a_wrong_option_is_refused(tmp_path: Path, api: TeamDirectory, database: str, given: tuple[str, str]) -> None:
    cli = Inside(tmp_path).with_environment(ANTHROPIC_API_KEY=KEY)
    assert cli("--team", "api", "host", "--store", database, *given).code == ExitCode.USAGE
    assert not (tmp_path / ".crewboard").exists()


def test_a_second_host_of_one_name_or_one_folder_is_refused_at_once(
    tmp_path: Path, api: TeamDirectory, database: str
) -> None:
    cli = Inside(tmp_path).with_environment(ANTHROPIC_API_KEY=KEY)
    here, other = tmp_path / "here", tmp_path / "other"
    with host_in(here, database, "build1") as joined:
        ran = cli("--root", str(here), "--team", "api", "host", "--name", "build2")
        ran.refused(
            ExitCode.TRY_LATER, f"the host build1 (process {os.getpid()}) runs in {joined.path} already", "--root"
        )
        other.mkdir()
        ran = cli("--root", str(other), "--team", "api", "host", "--store", database, "--name", "build1")
        ran.refused(ExitCode.USAGE, f"a host build1 is up on this machine, process {os.getpid()}", "--name")
        assert not (other / ".crewboard").exists()
    with mock.patch.object(os, "execve"):
        # One that was killed, also a moment ago, is no hindrance.
        assert cli("--root", str(other), "--team", "api", "host", "--store", database, "--name", "build1").code == 0


def test_one_of_several_teams_of_a_database_must_be_named(tmp_path: Path, database: str) -> None:
    """The default team is not there, and the command that makes it would make a team too many."""
    for name in ("api", "copy"):
        create(tmp_path, name, "", database)
    Inside(tmp_path)("--store", database, "status").refused(2, "api, copy; name one with --team")
    Inside(tmp_path)("host", "--store", database).refused(2, "api, copy; name one with --team")
    assert Inside(tmp_path)("--team", "copy", "--store", database, "status").code == 0
    close_connections()


def test_a_machine_joins_a_team_that_is_there(tmp_path: Path, api: TeamDirectory, database: str) -> None:
    cli = Inside(tmp_path)
    cli("team", "join", "web", "--store", database).refused(
        ExitCode.USAGE, f"there is no team web in {database.partition('?')[0]}: ", "team create"
    )
    cli("team", "join", "web", "--store", "mysql://db/x").refused(ExitCode.USAGE, "must begin with postgresql://")
    assert not (tmp_path / ".crewboard").exists()
    for _ in range(2):
        joined = json.loads(cli("team", "join", "api", "--store", database, "--json").out)
        assert (joined["name"], joined["problem"]) == ("api", None)
    other = database.replace("crewboard_", "crewboard_x")
    cli("team", "join", "api", "--store", other).refused(ExitCode.USAGE, "is another team", "use another --root")
    assert "api" in cli("team", "list").out


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("Build1.example.org", "build1"), ("9lives", "host-9lives"), ("a_b", "a-b"), ("-", "host"),
        ("x" * 50, "x" * 32),
        ("crewboard-host-of-the-team-5f7d8c9b4-x2x9z", "host-of-the-team-5f7d8c9b4-x2x9z"),
        ("9" * 40 + "-pod-x2x9z", "host-" + "9" * 17 + "-pod-x2x9z"),
    ],
)  # fmt: skip
def test_the_name_of_a_machine_becomes_that_of_a_host(machine: str, name: str) -> None:
    with mock.patch("socket.gethostname", return_value=machine):
        assert hosts.default_name() == name


@pytest.mark.long
def test_a_supervisor_without_workers_makes_room_for_a_host(tmp_path: Path, database: str) -> None:
    with ModelServer() as model:
        crew = Crew(tmp_path, model, store=database)
        try:
            crew.run("scout", "explore", "say hello")
            cli = Inside(tmp_path, clean_environment()).with_environment(ANTHROPIC_API_KEY=KEY)
            cli("host").refused(ExitCode.TRY_LATER, "agents run here already, without a host: scout")
            stop.stop_now(crew.team, "scout")
            with mock.patch.object(os, "execve"):
                assert cli("host").code == 0
            assert not supervisor_client.is_alive(crew.directory)
        finally:
            crew.end()
            close_connections()
