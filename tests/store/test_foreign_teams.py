"""A team that this user neither made nor adopted can be read, but nothing is started, resumed or sent."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import crewboard
from crewboard import Hire, HireOptions, Team, operations
from crewboard.commands import messages, settings, transfer
from crewboard.commands.context import create
from crewboard.errors import StorageError, UntrustedError
from crewboard.protocol import requests, supervisor_client
from crewboard.records.agents import Spec, Worktree
from crewboard.records.processes import Supervisor
from crewboard.records.team import Member
from crewboard.sandbox.sandbox import open_sandbox
from crewboard.store import agents, leases, mailbox, roster, team_marks
from crewboard.store import layout as layout_module
from crewboard.store.layout import TeamDirectory, find_root
from tests.cli.shell import Cli, Inside
from tests.crew import eventually


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
    return Inside(folder, {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "CREWBOARD_OFFLINE": "1"})


def test_a_team_is_its_makers_own(own: TeamDirectory) -> None:
    assert not own.is_foreign()
    own.require_adopted()
    assert team_marks.secret_file().stat().st_mode & 0o777 == 0o600


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


@pytest.mark.parametrize("kind", ["a link to a mark", "a pipe", "a folder"])
def test_only_a_regular_file_is_a_mark(own: TeamDirectory, foreign: TeamDirectory, kind: str) -> None:
    mark = foreign.path / team_marks.MARKS
    mark.unlink()
    if kind == "a link to a mark":
        mark.symlink_to(own.path / team_marks.MARKS)
    elif kind == "a pipe":
        os.mkfifo(mark)
    else:
        mark.mkdir()
    with pytest.raises((StorageError, UntrustedError)):
        foreign.require_adopted()


@pytest.mark.parametrize("kind", ["a link to another secret", "a secret that others read", "a pipe"])
def test_no_secret_of_another_making_marks_a_team(own: TeamDirectory, kind: str, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_bytes(b"x" * 32)
    known.chmod(0o600)
    secret = team_marks.secret_file()
    secret.unlink()
    if kind == "a link to another secret":
        secret.symlink_to(known)
    elif kind == "a pipe":
        os.mkfifo(secret, 0o600)
    else:
        known.rename(secret)
        secret.chmod(0o644)
    for act in (own.require_adopted, own.adopt):
        with pytest.raises((StorageError, UntrustedError)):
            act()


@pytest.mark.parametrize("how", ["hard link", "copy"])
def test_a_mark_of_another_team_of_the_user_is_worth_nothing(
    own: TeamDirectory, foreign: TeamDirectory, how: str
) -> None:
    """The team below has a team of the user's own above, as a clone in its workspace would."""
    inner = own.root / "clone"
    shutil.copytree(foreign.root, inner)
    planted = TeamDirectory(inner / ".crewboard/default")
    planted.owners.unlink()
    if how == "hard link":
        planted.owners.hardlink_to(own.owners)
    else:
        shutil.copy2(own.owners, planted.owners)
    assert planted.is_foreign()
    assert find_root(cwd=inner) == own.root


@pytest.mark.parametrize("by", ["a copy", "a link", "a link to another team of the user"])
def test_a_team_exchanged_while_its_supervisor_starts_gets_none(
    own: TeamDirectory, foreign: TeamDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The starting process has found it to be the user's own; the supervisor looks again."""
    if by == "a link to another team of the user":
        create(tmp_path / "clone", "other").directory.path.rename(tmp_path / "other")
        foreign.path.rename(tmp_path / "unused")
        (tmp_path / "other").rename(foreign.path)

    inode_mark, _ = team_marks.marks(own.path)

    def exchange(*_: object) -> Path:
        (own.root / ".crewboard").rename(tmp_path / "aside")
        if by == "a copy":
            # Its other mark is for this very path.
            foreign.owners.write_bytes(inode_mark)
            (foreign.root / ".crewboard").rename(own.root / ".crewboard")
        else:
            (own.root / ".crewboard").symlink_to(foreign.root / ".crewboard")
        return tmp_path

    monkeypatch.setattr(supervisor_client, "make_socket_folder", exchange)
    supervisor_client._start(own)
    reason = "foreign" if by == "a copy" else "symbolic link"
    eventually(lambda: reason in own.supervisor_log.read_text(), "the refusal")
    assert leases.holder(own.supervisor_lock, Supervisor) is None


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


SCRIPTED: dict[str, Callable[[Team], object]] = {
    "send": lambda team: crewboard.send(team, "operator", "hello"),
    "send as another": lambda team: crewboard.send(replace(team, by="scout"), "operator", "hello"),
    "add_task": lambda team: crewboard.add_task(team, "x"),
    "broadcast": lambda team: crewboard.broadcast(team, "x", ["scout"]),
    "spawn": lambda team: crewboard.spawn(team, Hire("x", "explore", "look", flags=HireOptions())),
    "resume": lambda team: crewboard.resume(team, "scout"),
    "remove": lambda team: crewboard.remove(team, "scout"),
    "update_task": lambda team: crewboard.update_task(team, 1, status="completed"),
    "mark_read": lambda team: messages.mark_read(team, "operator", 1),
    "block_task": lambda team: operations.block(team, 1, "2"),
    "raise_task": lambda team: operations.raise_task(team, 1),
    "retry_task": lambda team: operations.retry_task(team, 1),
    "budget": lambda team: settings.set_budget(team, "$1"),
    "approve": lambda team: crewboard.approve(team, "plan-0123456789ab"),
    "delete": lambda team: crewboard.delete_team(team, purge=True),
    "the mailbox itself": lambda team: mailbox.send(
        team.directory, mailbox.compose("scout", "operator", "message", "hello")
    ),
}  # fmt: skip


@pytest.mark.parametrize("act", SCRIPTED.values(), ids=SCRIPTED.keys())
def test_no_script_changes_a_foreign_team(tmp_path: Path, act: Callable[[Team], object]) -> None:
    """The refusal is where every file is written, not in the command line alone."""
    (tmp_path / "mine").mkdir()
    mine = create(tmp_path / "mine", "default")
    roster.put(mine.directory, Member(name="scout", type="explore", model="m"))
    agents.change_spec(mine.directory.agent("scout"), lambda old: Spec(prompt="", prompt_id="p", type="explore"))
    for subject in ("one", "two"):
        crewboard.add_task(mine, subject)
    requests.ask(mine.directory, "plan-0123456789ab", "plan_approval", "scout", "operator", {"plan": "x"}, 1.0)
    shutil.copytree(tmp_path / "mine", tmp_path / "clone")
    directory = TeamDirectory(tmp_path / "clone/.crewboard/default")
    foreign = Team(directory, environment={"CREWBOARD_OFFLINE": "1"})

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in foreign.directory.path.rglob("*") if path.is_file()}

    before = files()
    with pytest.raises(UntrustedError, match="foreign"):
        act(foreign)
    assert files() == before


@pytest.mark.parametrize("words", [["status"], ["inbox", "operator"], ["tasks"], ["requests"], ["team", "list"]])
def test_a_foreign_team_can_be_read(foreign: TeamDirectory, tmp_path: Path, words: list[str]) -> None:
    assert cli_in(foreign.root, tmp_path)(*words).code == 0


def test_adopting_shows_what_the_team_contains(foreign: TeamDirectory, tmp_path: Path) -> None:
    cli = cli_in(foreign.root, tmp_path)
    asked = cli("team", "adopt")
    assert asked.code == 2
    assert "plans approved by operator" in asked.out
    assert foreign.is_foreign()
    config = json.loads(foreign.config.on_disk.read_text())
    rule = {"id": "rule-1", "effect": "allow", "tool": "bash", "pattern": "make *\nsafe", "at": 1, "by": "x"}
    foreign.config.on_disk.write_text(json.dumps({**config, "plan_approver": "lead", "rules": [rule]}))
    changed = cli("team", "adopt").out
    assert "plans approved by lead" in changed
    (told,) = [line for line in changed.splitlines() if "standing rule" in line]
    assert "all agents may use bash for make *" in told
    assert "safe" in told, "a rule is one line"
    shown = re.search(r"--sha256 ([0-9a-f]{16})", asked.err)
    assert shown is not None
    assert cli("team", "adopt", "--sha256", shown[1]).code == 65, "it is not as it was shown"
    assert foreign.is_foreign()
    assert cli.agree("team", "adopt", "--yes").code == 0
    assert not foreign.is_foreign()
    assert cli("task", "add", "x").code == 0


def test_adopting_says_in_words_where_an_agent_works(own: TeamDirectory, tmp_path: Path) -> None:
    checkout = Worktree(branch="crew/fixer\nsafe", base="4c63ff36", objects="../.git/objects", folder="lib")
    spec = Spec(prompt="work", prompt_id="p", type="code", model="m", flags=HireOptions(), at=1, worktree=checkout)
    (own.agents / "fixer").mkdir(parents=True)
    own.agent("fixer").spec.save(spec)
    copy = shutil.copytree(own.root, tmp_path / "clone")
    says = (
        'its checkout: branch "crew/fixer\\nsafe", begun at commit "4c63ff36", works in its folder "lib", '
        'borrows the objects in "../.git/objects"'
    )
    cli = cli_in(copy, tmp_path).with_environment(COLUMNS="500")
    assert says in " ".join(cli("team", "adopt").out.split())


def test_adopting_needs_a_reveal_of_a_hidden_key(foreign: TeamDirectory, tmp_path: Path) -> None:
    cli = cli_in(foreign.root, tmp_path)
    key = f"sk-ant-api03-{'x' * 40}"
    spec = Spec(prompt=f"login {key}", prompt_id="p", type="explore", model="m", run=1)
    foreign.make_folder("agents/sue")
    foreign.agent("sue").spec.on_disk.write_text(json.dumps(spec.as_dict()))
    for given, code in ((), 2), (("--sha256", transfer.sha256(foreign)), 65):
        asked = cli("team", "adopt", *given)
        assert asked.code == code
        assert re.search("what looks like a key is hidden in the team default, .* --reveal` shows it first", asked.err)
    asked = cli("team", "adopt", "--reveal")
    assert f"│ login {key}" in asked.out
    shown = re.search(r"--sha256 ([0-9a-f]{16})", asked.err)
    assert shown is not None
    assert foreign.is_foreign()
    assert cli("team", "adopt", "--sha256", shown[1]).code == 0
    assert not foreign.is_foreign()


def test_adopting_is_for_all_that_is_in_the_team(foreign: TeamDirectory, tmp_path: Path) -> None:
    cli = cli_in(foreign.root, tmp_path)
    spec = Spec(prompt="be kind", prompt_id="p", type="explore", model="m", run=1)
    foreign.make_folder("agents/sue")
    foreign.agent("sue").spec.on_disk.write_text(json.dumps(spec.as_dict()))
    letter = {"id": "m1", "from": "operator", "to": "sue", "type": "message", "content": "be evil", "ts": 1.0}
    for path, text in (
        (foreign.inbox("sue").on_disk, f"{json.dumps(letter)}\n"),
        (foreign.agent("sue").spec.on_disk, json.dumps(spec.replace(prompt="be more evil").as_dict())),
    ):
        asked = cli("team", "adopt")
        shown = re.search(r"--sha256 ([0-9a-f]{16})", asked.err)
        assert shown is not None
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert cli("team", "adopt", "--sha256", shown[1]).code == 65
    told = cli("team", "adopt").out
    assert "│ be more evil" in told
    assert "│ be evil" in told


def test_a_team_that_changes_during_the_question_is_not_adopted(
    foreign: TeamDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agree(*_: object, **__: object) -> None:
        config = json.loads(foreign.config.on_disk.read_text())
        foreign.config.on_disk.write_text(json.dumps({**config, "plan_approver": "lead"}))

    monkeypatch.setattr("crewboard_tui.cli.common.require_yes", agree)
    assert "changed while it was shown" in Inside(foreign.root)("team", "adopt").err
    assert foreign.is_foreign()


def test_a_nested_team_is_chosen_only_if_adopted(own: TeamDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent can make a team in a folder of its workspace."""
    nested = TeamDirectory(own.root / "pkg/.crewboard/default")
    shutil.copytree(own.path, nested.path)
    assert find_root(cwd=own.root / "pkg") == own.root
    assert "its teams are foreign" in capsys.readouterr().err
    nested.adopt()
    assert find_root(cwd=own.root / "pkg") == own.root / "pkg"


@pytest.mark.parametrize("kind", ["file", "pipe", "dangling link", "link to the team"])
def test_what_is_no_team_directory_does_not_hide_the_own_team(own: TeamDirectory, kind: str) -> None:
    (own.root / "pkg").mkdir()
    place = own.root / "pkg/.crewboard"
    if kind == "file":
        place.write_text("")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("nothing" if kind == "dangling link" else own.root / ".crewboard")
    assert find_root(cwd=own.root / "pkg") == own.root


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
