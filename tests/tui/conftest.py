"""Fixtures of the dashboard tests: a frozen team, and a fixed time zone."""

import copy
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from crewboard.store.layout import TeamDirectory
from tests.frozen import Frozen, make_empty, make_team
from tests.tui.lighter import lighten


@pytest.fixture(scope="session", autouse=True)
def _textual_works_less() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        lighten(patch)
        yield


@pytest.fixture(autouse=True)
def _same_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Set the time zone and the home directory, which are shown on the screen."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("crewboard.unix.process.runs_as_root", lambda: False)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
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
    for module in ("actions.registry", "context", "widgets.reading"):
        monkeypatch.setattr(f"crewboard_tui.{module}.monotonic", lambda: 1000.0)


@pytest.fixture(autouse=True)
def _no_local_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find no server of models that happens to run on this machine."""
    monkeypatch.setattr("crewboard.local_servers.PORTS", {})


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a key act as soon as lines were painted that it has shown; a person is given a moment to look at them."""
    monkeypatch.setattr("crewboard_tui.widgets.reading.TO_LOOK", 0.0)


@dataclass
class _Mould:
    """A team of which every test gets a copy, which is faster than a new one: its folders and files."""

    made: Frozen
    paths: list[tuple[Path, int, bytes | None]]

    def copy_to(self, root: Path) -> TeamDirectory:
        for path, mode, content in self.paths:
            if content is None:
                (root / path).mkdir(mode)
                continue
            descriptor = os.open(root / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            os.write(descriptor, content)
            os.close(descriptor)
        return TeamDirectory(root / ".crewboard" / self.made.directory.path.name)


@pytest.fixture(scope="session")
def _mould(tmp_path_factory: pytest.TempPathFactory) -> _Mould:
    made = make_team(tmp_path_factory.mktemp("mould") / "inkpot")
    root = made.directory.root
    paths = [root, *sorted(root.rglob("*"))]
    return _Mould(
        made,
        [
            (path.relative_to(root), stat.S_IMODE(path.stat().st_mode), path.read_bytes() if path.is_file() else None)
            for path in paths
        ],
    )


@pytest.fixture
def frozen(tmp_path: Path, _mould: _Mould, monkeypatch: pytest.MonkeyPatch) -> Frozen:
    """Return a team with eleven agents in every state."""
    root = tmp_path / "inkpot"
    team = _mould.copy_to(root)
    monkeypatch.chdir(root)
    # A copy is foreign, and so is a team that was made in another home.
    team.adopt()
    return Frozen(team, copy.deepcopy(_mould.made.probe))


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Frozen:
    """Return a team without agents."""
    made = make_empty(tmp_path / "inkpot")
    monkeypatch.chdir(made.directory.root)
    return made
