"""Fixtures of the tests with teams of Claude Code."""

from pathlib import Path

import pytest

from crewboard.records.team import AttachedTeam, Config, Member
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from tests.attach.session import SESSION, TEAM


@pytest.fixture
def mirrored(tmp_path: Path) -> TeamDirectory:
    """Make the directory of an attached team, with the teammate `alpha`, in the project `tmp_path`."""
    team = TeamDirectory(tmp_path / ".crewboard" / "claude-0123abcd")
    team.make()
    roster.create(team, "", 1.0)

    def attach(config: Config) -> None:
        config.members = [Member(name="alpha", type="general-purpose")]
        config.attached = AttachedTeam(
            program="claude-code", team=TEAM, config_dir=str(tmp_path / "home"),
            cwd=str(tmp_path), session_ids=[SESSION],
        )  # fmt: skip

    roster.change(team, attach)
    return team
