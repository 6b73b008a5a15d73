"""The paths of a team (docs/reference/files.md), the access rights of its folders, and finding it from a subfolder."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crewboard.commands.context import choose_team, create, name_team
from crewboard.errors import StorageError, UsageError
from crewboard.store import layout, roster
from crewboard.store.interface import Key
from crewboard.store.layout import TeamDirectory, find_root, team_directories
from crewboard.store.roster import find_team
from tests.docs.pages import REFERENCE


def made(root: Path, name: str) -> TeamDirectory:
    team = TeamDirectory(root / ".crewboard" / name)
    team.make()
    roster.create(team, "", 1.0)
    return team


def test_everything_is_private_to_the_owner(tmp_path: Path) -> None:
    made(tmp_path, "default")
    for path in [tmp_path / ".crewboard", *(tmp_path / ".crewboard").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_no_team_is_committed_to_git(tmp_path: Path) -> None:
    made(tmp_path, "default")
    made(tmp_path, "other")
    assert (tmp_path / ".crewboard" / ".gitignore").read_text() == "*\n"


def test_paths_are_those_of_the_reference(tmp_path: Path) -> None:
    team = TeamDirectory(tmp_path / ".crewboard" / "t")
    agent = team.agent("scout")
    assert team.root == tmp_path
    assert [path.name if isinstance(path, Key) else str(path.relative_to(team.path)) for path in (
        team.config, team.inbox("scout"), team.results, team.task(3), team.request("q1"), team.operator, agent.spec,
        agent.journal, agent.status, agent.cursor, agent.exit, agent.lease, agent.log, agent.live,
        team.supervisor_lock, team.supervisor_log, team.lock("x"),
    )] == [
        "config.json", "inbox/scout.jsonl", "results", "tasks/3.json", "requests/q1.json", "operator.json",
        "agents/scout/spec.json", "agents/scout/journal.jsonl", "agents/scout/status.json", "agents/scout/cursor.json",
        "agents/scout/exit.json", "agents/scout/lease", "agents/scout/worker.log", "agents/scout/live",
        "supervisor.lock", "supervisor.log", ".locks/x",
    ]  # fmt: skip
    assert agent.team == team
    assert agent.name == "scout"


def test_each_place_is_in_the_reference() -> None:
    tree_and_locks = (REFERENCE / "files.md").read_text().partition("## config.json")[0]
    words = set(re.findall(r"[\w.<>/*-]+", tree_and_locks))
    kinds = (
        layout.Place,
        layout.LocalPlace,
        layout.LocalLease,
        layout.RecordPlace,
        layout.RecordFolderPlace,
    )
    places = [
        folder + place.name
        for folder, kind in (("", TeamDirectory), ("agents/<name>/", layout.AgentDirectory), ("", layout.HostDirectory))
        for place in vars(kind).values()
        if isinstance(place, kinds)
    ]
    missing = [name for name in places if not any(word.startswith(name) for word in words)]
    assert len(places) > 40
    assert not missing


def test_the_nearest_ancestor_with_teams_is_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREWBOARD_ROOT", raising=False)
    made(tmp_path, "default")
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    assert find_root(cwd=below) == tmp_path
    monkeypatch.setenv("CREWBOARD_ROOT", str(below))
    assert find_root(cwd=tmp_path) == below
    assert find_root(str(tmp_path / "src"), cwd=below) == tmp_path / "src"
    with pytest.raises(UsageError, match="is not a directory"):
        find_root(str(tmp_path / "nowhere"))


def test_a_root_that_is_no_text_is_refused(tmp_path: Path) -> None:
    bad = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff"))
    try:
        bad.mkdir()
    except OSError:
        pytest.skip("the file system takes only UTF-8")
    for named, cwd in ((bad, None), (None, bad)):
        with pytest.raises(UsageError, match="is not UTF-8"):
            find_root(named, cwd)
    made(tmp_path, "default")
    assert find_root(cwd=bad) == tmp_path, "the team is above"


def test_the_whole_machine_is_a_root_only_if_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREWBOARD_ROOT", raising=False)
    monkeypatch.setattr(layout, "_has_own_teams", lambda folder: folder == Path("/"))
    assert find_root(cwd=tmp_path) == tmp_path
    with pytest.raises(UsageError, match="--root /"):
        find_root(cwd=Path("/"))
    assert find_root("/", cwd=tmp_path) == Path("/")


def test_a_team_is_found_by_its_name_else_by_its_directory(tmp_path: Path) -> None:
    first, second = made(tmp_path, "first"), made(tmp_path, "second")
    roster.change(second, lambda config: setattr(config, "name", "billing"))
    assert find_team(tmp_path, "billing") == second
    assert find_team(tmp_path, "second") == second
    assert find_team(tmp_path, "first") == first
    assert find_team(tmp_path, "third") is None


def test_a_copied_team_is_known_by_its_directory(tmp_path: Path) -> None:
    team = made(tmp_path, "default")
    assert team.known_as("shop") == "shop", "as its lead named it"
    copy = TeamDirectory(shutil.copytree(team.path, team.path.with_name("copied")))
    assert copy.known_as("default") == "copied"
    assert (find_team(tmp_path, "copied"), find_team(tmp_path, "default")) == (copy, team)
    copy.adopt()
    for each in (team, copy):
        roster.change(each, lambda config: setattr(config, "name", "shop"))
    assert (team.known_as("shop"), copy.known_as("shop")) == ("default", "copied")
    with pytest.raises(UsageError, match="2 teams are called shop; use copied or default"):
        find_team(tmp_path, "shop")


def test_no_other_database_is_asked_for_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that does not answer would hold up each team of the root, at each change of its roster."""

    def asked(url: str, team: str) -> None:
        raise AssertionError(f"{url} was asked for {team}")

    monkeypatch.setattr(layout, "remote_store", asked)
    team = made(tmp_path, "default")
    away = TeamDirectory(team.path.with_name("away"))
    away.path.mkdir(mode=0o700)
    (away.path / "store").write_text("postgresql://user@host/database\n")
    away.adopt()
    assert (team.known_as("shop"), team.known_as("away")) == ("shop", "default")


def test_one_of_several_teams_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command for a default team that does not exist would show an empty team, or make another one."""
    monkeypatch.delenv("CREWBOARD_TEAM", raising=False)
    assert choose_team(tmp_path, None).path.name == "default"
    api = made(tmp_path, "api")
    assert choose_team(tmp_path, None) == api
    copy = made(tmp_path, "copy")
    with pytest.raises(UsageError, match=r"there are 2 teams in .*: api, copy; name one with --team$"):
        choose_team(tmp_path, None)
    assert choose_team(tmp_path, "copy") == copy
    assert find_team(tmp_path, "default") is None
    default = made(tmp_path, "default")
    assert choose_team(tmp_path, None) == default


def test_a_damaged_team_is_found_by_directory_and_hides_no_other(tmp_path: Path) -> None:
    damaged, whole = made(tmp_path, "a"), made(tmp_path, "b")
    damaged.config.on_disk.write_bytes(b"{")
    assert find_team(tmp_path, "b") == whole
    assert find_team(tmp_path, "a") == damaged


@pytest.mark.parametrize("name", ["operator", "lead", "all", "system"])
def test_a_new_team_gets_no_reserved_name(tmp_path: Path, name: str) -> None:
    """Mail of such a team would look like mail of the operator."""
    with pytest.raises(UsageError, match="reserved"):
        create(tmp_path, name)
    team = create(tmp_path, "default")
    with pytest.raises(UsageError, match="reserved"):
        name_team(team, name, "")


def test_other_entries_next_to_teams_are_not_teams(tmp_path: Path) -> None:
    assert team_directories(tmp_path) == []
    team = made(tmp_path, "a")
    (tmp_path / ".crewboard" / "Not A Team").mkdir()
    (tmp_path / ".crewboard" / "empty").mkdir()
    (tmp_path / ".crewboard" / "notes").write_text("x")
    assert team_directories(tmp_path) == [team]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot read"):
        team_directories(tmp_path / "file")


def test_a_root_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / ".crewboard").write_text("in the way")
    with pytest.raises(StorageError, match="cannot create the team directory"):
        TeamDirectory(tmp_path / ".crewboard" / "default").make()


def test_a_store_without_its_packages_names_the_extra() -> None:
    program = """
import sys
sys.modules["psycopg"] = None
from crewboard.errors import StorageError
from crewboard.store.layout import remote_store
try:
    remote_store("postgresql://crew@db/crew", "api")
except StorageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "install crewboard with its extra `hosts` (in a clone: pip install '.[hosts]')" in done.stdout
