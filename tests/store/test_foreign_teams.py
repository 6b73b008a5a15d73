"""A team that this user neither made nor adopted can be read, but nothing is started, resumed or sent."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard.commands.context import create
from crewboard.errors import UntrustedError
from crewboard.protocol import supervisor_client
from crewboard.records import Spec, Supervisor
from crewboard.sandbox.sandbox import open_sandbox
from crewboard.store import layout as layout_module
from crewboard.store import ownership
from crewboard.store.layout import TeamDirectory, find_root
from tests.cli.shell import Cli


@pytest.fixture(autouse=True)
def _in_no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CREWBOARD_ROOT", raising=False)
    monkeypatch.delenv("CREWBOARD_TEAM", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    layout_module._warn_once.cache_clear()


@pytest.fixture
def own(tmp_path: Path) -> TeamDirectory:
    (tmp_path / "project").mkdir()
    return create(tmp_path / "project", "default").directory


@pytest.fixture
def foreign(own: TeamDirectory, tmp_path: Path) -> TeamDirectory:
    """Return a copy of a team, with its mark, as a repository could contain it."""
    shutil.copytree(own.root, tmp_path / "clone")
    return TeamDirectory(tmp_path / "clone/.crewboard/default")


def cli_in(folder: Path, tmp_path: Path) -> Cli:
    return Cli(folder, {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "CREWBOARD_OFFLINE": "1"})


def test_a_team_is_its_makers_own(own: TeamDirectory) -> None:
    assert not own.is_foreign()
    own.require_adopted()
    assert ownership.secret_file().stat().st_mode & 0o777 == 0o600


def test_a_copy_is_foreign_until_it_is_adopted(own: TeamDirectory, foreign: TeamDirectory) -> None:
    assert foreign.is_foreign()
    with pytest.raises(UntrustedError, match="team adopt"):
        foreign.require_adopted()
    foreign.adopt()
    foreign.require_adopted()
    assert not own.is_foreign()


def test_a_moved_team_stays_its_makers_own(own: TeamDirectory, tmp_path: Path) -> None:
    own.root.rename(tmp_path / "moved")
    assert not TeamDirectory(tmp_path / "moved/.crewboard/default").is_foreign()


def test_a_team_with_a_mark_of_another_user_is_foreign(own: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(own.root / "other"))
    assert own.is_foreign()


@pytest.mark.parametrize("text", ["", "0" * 64, "inode"])
def test_a_made_up_mark_is_worth_nothing(foreign: TeamDirectory, text: str) -> None:
    foreign.owners.write_text(f"{text}\n")
    assert foreign.is_foreign()


def test_no_process_works_for_a_foreign_team(foreign: TeamDirectory) -> None:
    with (
        pytest.raises(UntrustedError, match="foreign"),
        open_sandbox(foreign, "x", Spec(prompt="", prompt_id="p", type="explore")),
    ):
        pass
    with pytest.raises(UntrustedError, match="foreign"):
        supervisor_client._start(foreign)
    for module, path in (
        ("crewboard.supervisor", foreign.path),
        ("crewboard.offline", foreign.path),
        ("crewboard.worker", foreign.agent("scout").path),
    ):
        before = sorted(foreign.path.rglob("*"))
        done = subprocess.run(
            [sys.executable, "-m", module, str(path)], capture_output=True, text=True, timeout=30, check=False
        )
        assert "foreign" in done.stderr or module == "crewboard.supervisor"
        assert sorted(foreign.path.rglob("*")) == before


def test_the_environment_is_not_sent_to_a_foreign_team(foreign: TeamDirectory) -> None:
    holder = Supervisor(pid=1, boot_id="x", start_ticks=1, socket="/nowhere")
    with pytest.raises(UntrustedError, match="foreign"):
        supervisor_client._deliver(foreign, holder, b"x")


ACTING = [
    ["spawn", "x", "--type", "explore", "--prompt", "x"], ["resume", "x"], ["send", "x", "hello"], ["broadcast", "x"],
    ["task", "add", "x"], ["interrupt", "x"], ["budget", "1k"], ["approve", "x"], ["answer", "x", "y"], ["stop", "x"],
    ["remove", "x"], ["lead", "x"], ["rules"], ["team", "delete", "default"],
]  # fmt: skip


@pytest.mark.parametrize("words", ACTING, ids=lambda words: words[0])
def test_no_command_acts_on_a_foreign_team(foreign: TeamDirectory, tmp_path: Path, words: list[str]) -> None:
    done = cli_in(foreign.root, tmp_path)(*words)
    assert done.code == 77, done
    assert "foreign" in done.err


@pytest.mark.parametrize("words", [["status"], ["inbox", "operator"], ["tasks"], ["requests"], ["team", "list"]])
def test_a_foreign_team_can_be_read(foreign: TeamDirectory, tmp_path: Path, words: list[str]) -> None:
    assert cli_in(foreign.root, tmp_path)(*words).code == 0


def test_adopting_shows_what_the_team_contains(foreign: TeamDirectory, tmp_path: Path) -> None:
    cli = cli_in(foreign.root, tmp_path)
    asked = cli("team", "adopt")
    assert asked.code == 2
    assert "plans approved by operator" in asked.out
    assert foreign.is_foreign()
    assert cli("team", "adopt", "--yes").code == 0
    assert not foreign.is_foreign()
    assert cli("task", "add", "x").code == 0


def test_a_nested_team_is_chosen_only_if_adopted(own: TeamDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent can make a team in a folder of its workspace."""
    nested = TeamDirectory(own.root / "pkg/.crewboard/default")
    shutil.copytree(own.path, nested.path)
    assert find_root(cwd=own.root / "pkg") == own.root
    assert "its teams are foreign" in capsys.readouterr().err
    nested.adopt()
    assert find_root(cwd=own.root / "pkg") == own.root / "pkg"


def test_a_foreign_team_is_shown_where_there_is_no_other(foreign: TeamDirectory) -> None:
    (foreign.root / "src").mkdir()
    assert find_root(cwd=foreign.root / "src") == foreign.root


RULES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the mark": lambda patch: patch.setattr(TeamDirectory, "is_foreign", lambda self: False),
    "the check": lambda patch: patch.setattr(TeamDirectory, "require_adopted", lambda self: None),
}


@pytest.mark.parametrize("mutate", RULES.values(), ids=RULES.keys())
def test_without_a_rule_a_foreign_team_is_used(
    foreign: TeamDirectory, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    with open_sandbox(foreign, "x", Spec(prompt="", prompt_id="p", type="explore")) as sandbox:
        assert sandbox.results.is_relative_to(foreign.path)
