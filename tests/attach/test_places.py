"""The team directory that mirrors a team, and that no supervisor is started for one."""

from pathlib import Path

import pytest

from crewboard.attach import places
from crewboard.commands.context import create
from crewboard.errors import BadDataError
from crewboard.names import check_new_team
from crewboard.protocol import supervisor_client
from crewboard.records.team import AttachedTeam, Config
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory

SESSION = "6c39e8d1-5a8e-4f8f-a966-ea1bd454e96a"


@pytest.fixture
def attached(tmp_path: Path) -> TeamDirectory:
    config = tmp_path / "claude"
    team = create(tmp_path, places.directory_name(config, "session-6c39e8d1"))

    def mark(record: Config) -> None:
        record.attached = AttachedTeam(
            program="claude-code", team="session-6c39e8d1", config_dir=str(config), cwd=str(tmp_path),
            session_ids=[SESSION],
        )  # fmt: skip

    roster.change(team.directory, mark)
    return team.directory


def test_the_name_of_the_mirror_is_valid_and_stays() -> None:
    name = places.directory_name(Path("/home/u/.claude"), "Läuse & Flöhe / x")
    assert check_new_team(name) == name
    assert name == places.directory_name(Path("/home/u/.claude/"), "Läuse & Flöhe / x")
    assert name != places.directory_name(Path("/home/v/.claude"), "Läuse & Flöhe / x")


def test_a_session_finds_the_mirror_of_its_team(attached: TeamDirectory, tmp_path: Path) -> None:
    below = tmp_path / "src" / "app"
    below.mkdir(parents=True)
    assert places.find_attached(below, [SESSION]) == attached.path
    assert places.find_attached(below, ["another"]) is None


def test_a_damaged_roster_is_no_mirror(attached: TeamDirectory, tmp_path: Path) -> None:
    attached.config.on_disk.write_text('{"attached": ')
    assert places.find_attached(tmp_path, [SESSION]) is None


def test_no_supervisor_is_started_for_a_mirror(attached: TeamDirectory) -> None:
    supervisor_client.wake_supervisor(attached)
    supervisor_client.ensure_running(attached)
    with pytest.raises(BadDataError, match="Claude Code"):
        supervisor_client.request_start(attached, "alpha", 1, {})
    with pytest.raises(BadDataError, match="Claude Code"):
        supervisor_client.restart(attached)
    assert not supervisor_client.is_alive(attached)
    assert not attached.supervisor_log.exists()
