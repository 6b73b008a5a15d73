"""Fixtures that most tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from crewboard.offline.server import ModelServer
from crewboard.store import roster
from crewboard.store.directory import TeamDirectory

from tests.crew import Crew


@pytest.fixture
def directory(tmp_path: Path) -> TeamDirectory:
    """An empty team."""
    team = TeamDirectory(tmp_path / ".crewboard" / "default")
    team.make()
    roster.create(team, "", 1.0)
    return team


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """A team of real workers on the embedded model."""
    with ModelServer() as model:
        team = Crew(tmp_path, model)
        yield team
        team.end()
