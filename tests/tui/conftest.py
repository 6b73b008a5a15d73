"""Fixtures of the dashboard tests: a frozen team, and a fixed time zone."""

import copy
import shutil
import time
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from crewboard.store.layout import TeamDirectory
from tests.frozen import Frozen, make_empty, make_team


@pytest.fixture(scope="session", autouse=True)
def _sheets_are_parsed_once() -> Iterator[None]:
    """Cache parsed style sheets: each dashboard parses the same ones five times before its first screen."""
    parse = Stylesheet._parse_rules
    parsed: dict[Hashable, list[RuleSet]] = {}

    def parse_once(sheet: Stylesheet, *text: Any, **origin: Any) -> list[RuleSet]:
        key = (text, *origin.items(), *sheet._variables.items())
        if key not in parsed:
            parsed[key] = parse(sheet, *text, **origin)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Set the time zone and the home directory, which are shown on the screen."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("crewboard.linux.process.runs_as_root", lambda: False)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CREWBOARD_MODEL", "ANTHROPIC_MODEL", "CREWBOARD_TEAM", "CREWBOARD_ROOT", "CREWBOARD_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _what_is_said_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep status messages until they are replaced: a busy machine may be slower than their display time."""
    monkeypatch.setattr("crewboard_tui.context.SAID_FOR", 120.0)


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of confirmations, so that a second press is in time however busy the machine is."""
    for clock in ("crewboard_tui.actions.agents.monotonic", "crewboard_tui.context.monotonic"):
        monkeypatch.setattr(clock, lambda: 1000.0)


@pytest.fixture(scope="session")
def _mould(tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    """Make the team of which every test gets a copy, which is faster than a new one."""
    return make_team(tmp_path_factory.mktemp("mould") / "inkpot")


@pytest.fixture
def frozen(tmp_path: Path, _mould: Frozen, monkeypatch: pytest.MonkeyPatch) -> Frozen:
    """Return a team with eleven agents in every state."""
    root = shutil.copytree(_mould.directory.root, tmp_path / "inkpot")
    monkeypatch.chdir(root)
    team = TeamDirectory(root / ".crewboard" / _mould.directory.path.name)
    # A copy is foreign, and so is a team that was made in another home.
    team.adopt()
    return Frozen(team, copy.deepcopy(_mould.probe))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Frozen:
    """Return a team without agents."""
    made = make_empty(tmp_path / "inkpot")
    monkeypatch.chdir(made.directory.root)
    return made
