"""Fixtures of the dashboard's tests: a frozen team, and a clock that stands in the same zone everywhere."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frozen import Frozen, make_empty, make_team


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Times of day and the home directory are on the screen."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name in ("CREWBOARD_MODEL", "ANTHROPIC_MODEL", "CREWBOARD_TEAM", "CREWBOARD_ROOT"):
        monkeypatch.delenv(name, raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    """Eleven agents in every state."""
    return make_team(tmp_path / "inkpot")


@pytest.fixture
def empty(tmp_path: Path) -> Frozen:
    """A team with nobody on it."""
    return make_empty(tmp_path / "inkpot")
