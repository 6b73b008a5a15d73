"""`doctor` says what is wrong with the disk, the database and the hosts of a team."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.linux import mounts
from crewboard.readmodel import TeamReader
from crewboard.records import Host
from crewboard.store import SCHEMA_VERSION, hosts, leases
from crewboard.store.layout import TeamDirectory
from crewboard_tui.cli import common, doctor
from crewboard_tui.cli.common import Session
from tests.cli.shell import Cli
from tests.frozen import NOW, make_empty
from tests.placed import add_host
from tests.postgres import close_connections, end_leases


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let every folder be on a file system of this type."""
    return lambda kind: monkeypatch.setattr(mounts, "file_system", lambda _: kind)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "lustre"])
def test_doctor_refuses_a_team_in_files_on_a_network(on: Callable[[str], None], tmp_path: Path, kind: str) -> None:
    on(kind)
    found = doctor.files(TeamDirectory(tmp_path / ".crewboard" / "default"))
    assert (found.mark, kind in found.detail) == ("bad", True)
    assert "lost or doubled" in found.detail
    assert "--store postgresql://" in (found.remedy or "")


def test_a_network_disk_is_only_noted_if_the_records_are_in_a_database(
    on: Callable[[str], None], tmp_path: Path
) -> None:
    on("nfs4")
    team = TeamDirectory(tmp_path / ".crewboard" / "api")
    team.path.mkdir(parents=True)
    (team.path / "store").write_text("postgresql://crew@db/crew\n")
    assert doctor.files(team).mark == "note"


@pytest.mark.parametrize(
    ("kind", "mark"), [("9p", "note"), ("virtiofs", "note"), ("ext4", "ok"), ("fuse.bindfs", "ok")]
)
def test_doctor_accepts_disks_of_this_machine(on: Callable[[str], None], tmp_path: Path, kind: str, mark: str) -> None:
    on(kind)
    assert doctor.files(TeamDirectory(tmp_path / ".crewboard" / "default")).mark == mark


def test_the_maker_of_a_team_on_a_network_is_warned(
    on: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    on("ext4")
    common.warn_of_network(team)
    assert capsys.readouterr().err == ""
    on("nfs4")
    common.warn_of_network(team)
    assert "is on nfs4" in capsys.readouterr().err


def checks(team: TeamDirectory) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.database(team)}


@pytest.fixture
def hosted(cli: Cli, database: str, tmp_path: Path) -> TeamDirectory:
    assert cli("team", "create", "api", "--store", database).code == 0
    return TeamDirectory(tmp_path / ".crewboard" / "api")


def test_doctor_says_how_the_database_answers(hosted: TeamDirectory) -> None:
    found = checks(hosted)
    assert {name: check.mark for name, check in found.items()} == {"store": "ok", "clock": "ok"}
    assert f"tables of version {SCHEMA_VERSION}" in found["store"].detail
    close_connections()


@pytest.mark.parametrize(("seconds", "says"), [(-600.0, "600.0 s ahead of"), (600.0, "600.0 s behind")])
def test_doctor_notes_a_wrong_clock(
    directory: TeamDirectory, monkeypatch: pytest.MonkeyPatch, seconds: float, says: str
) -> None:
    monkeypatch.setattr(type(directory.store), "now", lambda _: time.time() + seconds)
    found = doctor.time_of(hosts.compare_clocks(directory))
    assert found.mark == "note"
    assert says in found.detail


def test_a_slow_answer_is_not_a_wrong_clock() -> None:
    assert doctor.time_of(hosts.Clock(ahead=3.0, round_trip=6.0)).mark == "ok"
    assert doctor.time_of(hosts.Clock(ahead=-3.0, round_trip=0.1)).mark == "note"


def test_doctor_says_which_hosts_are_up_and_which_are_lost(
    hosted: TeamDirectory, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    hosts.make(hosted, "east")
    hosts.save(hosted, Host(name="east", slots=4, at=time.time()))
    assert (checks(hosted)["hosts"].mark, checks(hosted)["hosts"].detail) == ("bad", "up: none; lost: east")
    model = next(check for check in doctor.all_checks(Session(str(hosted.root), "api")) if check.name == "model")
    assert (model.mark, "of their hosts" in model.detail) == ("ok", True)
    held = leases.take(hosts.lease(hosted, "east"))
    assert held is not None
    assert (checks(hosted)["hosts"].mark, checks(hosted)["hosts"].detail) == ("ok", "up: east")
    hosts.make(hosted, "west")
    hosts.save(hosted, Host(name="west", slots=4, at=time.time()))
    assert (checks(hosted)["hosts"].mark, checks(hosted)["hosts"].detail) == ("note", "up: east; lost: west")
    hosts.save(hosted, Host(name="west", slots=4, at=time.time(), draining=True))
    assert checks(hosted)["hosts"].mark == "ok", "it was drained"
    end_leases(database)
    assert checks(hosted)["hosts"].mark == "bad"
    close_connections()


def test_doctor_says_to_start_a_host_whose_agents_run_on(tmp_path: Path) -> None:
    empty = make_empty(tmp_path / "inkpot")
    add_host(empty.directory, "build1", labels=["gpu"], at=NOW - 40)
    empty.hire("api", "code", "idle", "", ago=9, pid=77, host="build1", boot_id="elsewhere")
    view = TeamReader(empty.directory, clock=empty.team.now, probe=empty.probe).read()
    check = doctor.hosts_of(view)
    assert check.mark == "bad"
    assert check.detail.startswith("up: none; host build1 is not up; its agent runs on without it")
    assert check.remedy is not None
    assert check.remedy.startswith("`crewboard host --name build1 --label gpu` there; no agent starts")


def test_a_database_without_tables_is_said_in_words(hosted: TeamDirectory, database: str) -> None:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA crewboard CASCADE")
    (check,) = doctor.database(hosted)
    assert check.mark == "bad"
    assert "has no tables of crewboard" in check.detail
    close_connections()
