"""A team directory is trusted only if this user made it: attacks by a cloned repository and by another user."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from crewboard import pricing
from crewboard.commands.context import choose_team, create
from crewboard.errors import BadDataError, StorageError, UntrustedError
from crewboard.readmodel.crash_report import log_end
from crewboard.records.agents import Spec
from crewboard.records.team import OperatorState
from crewboard.sandbox.sandbox import open_sandbox
from crewboard.store import files, leases, mailbox, roster
from crewboard.store import layout as layout_module
from crewboard.store.layout import TeamDirectory, find_root, key_of, record_of, team_directories
from crewboard.store.roster import find_team
from crewboard.supervisor.launcher import Launcher
from crewboard.worker.tools.file_server import plan_edit, read_file
from crewboard.worker.tools.workspace import RefusedError, Workspace
from crewboard_tui.queries import read_live

ANOTHER = 65534
"""A user id that files can be given to if the tests run as root."""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")

FOLDERS = [".", "inbox", "results", "tasks", "requests", "agents", "agents/scout", ".locks"]


@pytest.fixture(autouse=True)
def _in_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREWBOARD_ROOT", raising=False)
    monkeypatch.delenv("CREWBOARD_TEAM", raising=False)
    layout_module._warn_once.cache_clear()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """Make a folder outside the project, with a file in it."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "secret").write_text("secret\n")
    return folder


@pytest.fixture
def team(tmp_path: Path) -> TeamDirectory:
    """Make a team in a project of its own, with the folder of one agent."""
    made = TeamDirectory(tmp_path / "project" / ".crewboard" / "default")
    made.root.mkdir()
    made.make()
    roster.create(made, "", 1.0)
    files.make_folder(made.agent("scout").path)
    return made


def divert(path: Path, target: Path) -> None:
    """Move `path` away and put a symbolic link to `target` in its place."""
    if path.exists():
        path.rename(path.with_name(f"{path.name}.away"))
    path.symlink_to(target)


# ---------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("folder", [*FOLDERS, ".."])
def test_a_link_in_the_place_of_a_folder_is_refused(team: TeamDirectory, folder: str, private: Path) -> None:
    root = team.root
    divert(Path(os.path.normpath(team.path / folder)), private)
    with pytest.raises(UntrustedError, match="is a symbolic link"):
        choose_team(root, None)
    with pytest.raises(UntrustedError, match="is a symbolic link"):
        choose_team(root, "default")
    with pytest.raises(UntrustedError, match="is a symbolic link"):
        team.make()
    assert not team.is_own()
    assert [path.name for path in private.iterdir()] == ["secret"]


def test_a_team_that_is_a_link_is_not_listed(team: TeamDirectory, tmp_path: Path) -> None:
    other = create(tmp_path, "other").directory
    (team.path.parent / "other").symlink_to(other.path)
    assert team_directories(team.root) == [team]
    assert find_team(team.root, "other") is None
    with pytest.raises(UntrustedError, match="is a symbolic link"):
        create(team.root, "other")


def test_a_link_in_another_folder_hides_no_team(team: TeamDirectory, private: Path) -> None:
    """It leads nowhere, so that asking it for its version fails."""
    other = team.path.parent / "other"
    other.mkdir()
    (other / "config.json").symlink_to(private / "nothing")
    assert team in team_directories(team.root)


USES: dict[str, Callable[[Path], object]] = {
    "read": files.read_file,
    "read lines": lambda path: list(files.read_lines(path)),
    "find the tail": lambda path: files.tail_offset(path, 100),
    "append": lambda path: files.append_line(path, None, b"{}\n"),
    "seal": files.seal,
    "lock": lambda path: files.locked(path).__enter__(),
    "take a lease": lambda path: leases.take(key_of(path)),
    "look at a lease": lambda path: leases.is_held(key_of(path)),
    "load": lambda path: record_of(path, OperatorState).load(),
}


@pytest.mark.parametrize("use", USES)
def test_a_link_in_the_place_of_a_file_is_not_followed(team: TeamDirectory, private: Path, use: str) -> None:
    path = team.inbox("operator")
    path.on_disk.symlink_to(private / "secret")
    with pytest.raises(StorageError, match="it is a symbolic link"):
        USES[use](path.on_disk)
    assert (private / "secret").read_text() == "secret\n"


@pytest.mark.parametrize("use", [name for name in USES if name not in {"read", "read lines", "find the tail", "seal"}])
def test_a_dangling_link_makes_no_file_outside(team: TeamDirectory, private: Path, use: str) -> None:
    path = team.inbox("operator")
    path.on_disk.symlink_to(private / "made")
    with pytest.raises(StorageError, match="it is a symbolic link"):
        USES[use](path.on_disk)
    assert not (private / "made").exists()


def test_mail_does_not_reach_the_file_behind_a_linked_mailbox(team: TeamDirectory, private: Path) -> None:
    team.inbox("operator").on_disk.symlink_to(private / "secret")
    with pytest.raises(StorageError, match="it is a symbolic link"):
        mailbox.send(team, mailbox.compose("scout", "operator", "message", "$(touch owned)"))
    assert (private / "secret").read_text() == "secret\n"


def test_a_linked_temporary_file_is_not_written_through(team: TeamDirectory, private: Path) -> None:
    path = team.operator
    path.on_disk.with_name(f".{path.name}.{threading.get_native_id()}.tmp").symlink_to(private / "secret")
    with pytest.raises(StorageError, match="it is a symbolic link"):
        files.replace_file(path.on_disk, b"{}")
    assert (private / "secret").read_text() == "secret\n"


def test_a_link_in_the_place_of_a_cached_record_is_damage(team: TeamDirectory, private: Path) -> None:
    (private / "spec.json").write_text('{"operator": 1}')
    team.operator.on_disk.symlink_to(private / "spec.json")
    cached = team.operator.watch()
    assert cached.get() is None
    assert cached.damaged


def test_logs_and_live_text_never_go_through_a_link(team: TeamDirectory, private: Path) -> None:
    agent = team.agent("scout")
    for path in (agent.log, agent.live):
        path.symlink_to(private / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        Launcher(team).start_worker(agent, {})
    assert log_end(agent) == ()
    assert read_live(agent) == ""
    assert (private / "secret").read_text() == "secret\n"


def test_a_named_pipe_in_the_place_of_a_file_does_not_hang(team: TeamDirectory) -> None:
    os.mkfifo(team.inbox("operator").on_disk)
    with pytest.raises(StorageError, match="not seekable"):
        list(files.read_lines(team.inbox("operator").on_disk))
    assert files.read_file(team.inbox("operator").on_disk) == b""


@pytest.mark.parametrize("name", ["prices.toml", "models.toml"])
def test_a_linked_price_table_is_refused(team: TeamDirectory, private: Path, name: str) -> None:
    (team.path.parent / name).symlink_to(private / "secret")
    with pytest.raises(BadDataError, match="is a symbolic link"):
        pricing.load(team.root)


def test_file_tools_do_not_enter_linked_results(team: TeamDirectory, private: Path) -> None:
    divert(team.results, private)
    workspace = Workspace(team.root, team.results)
    for path in (".crewboard/default/results/secret", str(private / "secret")):
        with pytest.raises(RefusedError):
            read_file(workspace, path)


def test_no_sandbox_is_opened_with_linked_results(team: TeamDirectory, private: Path) -> None:
    divert(team.results, private)
    spec = Spec(type="explore", model="m", run=1, prompt="look", prompt_id="p1")
    with pytest.raises(UntrustedError, match="is a symbolic link"), open_sandbox(team, "scout", spec):
        pass


def test_file_tools_do_not_enter_a_linked_crewboard(tmp_path: Path) -> None:
    (tmp_path / "data" / "default").mkdir(parents=True)
    (tmp_path / "data" / "default" / "request.json").write_text("pending\n")
    (tmp_path / ".crewboard").symlink_to("data")
    workspace = Workspace(tmp_path, tmp_path / ".crewboard/default/results")
    with pytest.raises(RefusedError, match="belongs to the team's own files"):
        plan_edit(workspace, ".crewboard/default/request.json", old_text="pending", new_text="approved")


@pytest.mark.long
@pytest.mark.parametrize("program", ["crewboard.supervisor", "crewboard.worker", "crewboard.offline"])
def test_each_process_refuses_a_diverted_team(team: TeamDirectory, private: Path, program: str) -> None:
    divert(team.agents, private)
    (private / "scout").mkdir()
    path = team.agent("scout").path if program == "crewboard.worker" else team.path
    done = subprocess.run([sys.executable, "-I", "-m", program, str(path)], capture_output=True, text=True, check=False)
    # The supervisor answers from its child.
    if program != "crewboard.supervisor":
        assert done.returncode == UntrustedError.exit_code
    assert "is a symbolic link" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in private.rglob("*")) == ["scout", "secret"]


# --------------------------------------------------------------------------------------------------------- owners


@pytest.mark.parametrize("mode", [0o720, 0o702])
@pytest.mark.parametrize("folder", [*FOLDERS, ".."])
def test_a_folder_that_others_can_write_to_is_refused(team: TeamDirectory, folder: str, mode: int) -> None:
    (team.path / folder).chmod(mode)
    with pytest.raises(UntrustedError, match=f"can be written to by other users .mode {mode:o}"):
        choose_team(team.root, None)


def test_a_team_of_another_user_is_refused(team: TeamDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UntrustedError, match="belongs to another user"):
        choose_team(team.root, None)


@only_root
@pytest.mark.parametrize("folder", [*FOLDERS, ".."])
def test_root_opens_no_folder_of_another_user(team: TeamDirectory, folder: str) -> None:
    os.chown(team.path / folder, ANOTHER, ANOTHER)
    with pytest.raises(UntrustedError, match="belongs to another user"):
        choose_team(team.root, None)


def foreign(team: TeamDirectory, way: str, private: Path) -> None:
    """Give `.crewboard` to another user."""
    if way == "a link":
        divert(team.path.parent, private)
    elif way == "open to others":
        team.path.parent.chmod(0o777)
    else:
        os.chown(team.path.parent, ANOTHER, ANOTHER)


WAYS = ["a link", "open to others", pytest.param("of another user", marks=only_root)]


@pytest.mark.parametrize("way", WAYS)
def test_a_foreign_team_above_never_becomes_the_root(
    team: TeamDirectory, private: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign(team, way, private)
    below = team.root / "src"
    below.mkdir()
    assert find_root(cwd=below) == below
    assert find_root(cwd=below) == below
    said = capsys.readouterr().err
    assert said.count("\n") == 1, "said once"
    assert f"skipped '{team.path.parent}'" in said


@pytest.mark.parametrize("way", WAYS)
def test_an_explicit_root_with_a_foreign_team_is_refused(
    team: TeamDirectory, private: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(team, way, private)
    with pytest.raises(UntrustedError, match=r"crewboard' (is a|can be|belongs)"):
        find_root(team.root)
    monkeypatch.setenv("CREWBOARD_ROOT", str(team.root))
    with pytest.raises(UntrustedError):
        find_root()


def test_an_own_team_above_a_foreign_one_is_still_found(team: TeamDirectory, private: Path) -> None:
    nested = team.root / "pkg"
    nested.mkdir()
    (nested / ".crewboard").symlink_to(private)
    assert find_root(cwd=nested) == team.root


def test_a_root_that_is_reached_through_a_link_is_fine(team: TeamDirectory, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(team.root)
    assert find_root(tmp_path / "alias") == team.root
    assert find_root(cwd=tmp_path / "alias") == team.root
    TeamDirectory(tmp_path / "alias" / ".crewboard" / "default").require_own()
