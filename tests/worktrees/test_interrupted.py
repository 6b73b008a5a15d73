"""A merge or an undo that is killed at any step leaves a valid repository and can be repeated."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crewboard.commands import changes
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records.team import Acceptances, How, Move
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import merging
from crewboard.worktrees.put_back import Tree
from crewboard.worktrees.repository import Repository
from tests.cli.shell import Inside
from tests.docs.pages import ROOT
from tests.matrix import default
from tests.worktrees.home import Home
from tests.worktrees.test_merging import assert_clean, tree, work


class Killed(BaseException):
    """Stands for SIGKILL: nothing after it is done."""


def interrupt(home: Home, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Merge bob, and die just before git runs `command`; nothing is cleaned up."""
    ordinary = Repository.in_working_tree

    def run(self: Repository, *arguments: str, **options: Any) -> str:
        if arguments[0] == command:
            raise Killed
        return ordinary(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "in_working_tree", run)
        patch.setattr(merging.Mover, "recover", lambda *_, **__: None)
        with pytest.raises(Killed):
            changes.merge(home.team, "bob")
    assert merging.load(home.directory).move is not None


@pytest.mark.long
@pytest.mark.parametrize("command", ["read-tree", "update-ref"])
def test_a_merge_that_was_cut_short_can_be_repeated(home: Home, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    bob = work(home)
    interrupt(home, monkeypatch, command)
    assert (home.root / ".git/index.lock").exists()
    assert changes.merge(home.team, "bob") is not None
    assert tree(home) == tree(home, bob.snapshot)
    assert len(merging.load(home.directory).acceptances) == 1
    assert_clean(home)


@pytest.mark.parametrize("command", default(["read-tree", "update-ref"], "update-ref"))
def test_an_undo_takes_back_a_merge_that_was_cut_short(
    home: Home, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    work(home)
    before = home.git("ls-files", "-s")
    interrupt(home, monkeypatch, command)
    with pytest.raises(UsageError, match="no merge to undo"):
        changes.undo(home.team)
    assert home.git("ls-files", "-s") == before
    assert home.read("README") == "hello\n"
    assert_clean(home)


def test_a_merge_whose_branch_has_moved_is_finished(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = work(home)
    with monkeypatch.context() as patch:
        patch.setattr(merging.Mover, "_finish", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            changes.merge(home.team, "bob")
    assert changes.merge(home.team, "bob") is None
    assert tree(home) == tree(home, bob.snapshot)
    assert [each.agent for each in merging.load(home.directory).acceptances] == ["bob"]
    assert_clean(home)


def _missing(home: Home, new: str) -> None:
    (home.root / "api.py").unlink()
    (home.root / "README").unlink()


def _new_files(home: Home, new: str) -> None:
    home.write("bob/new.txt", "new\n")
    home.write("api.py", home.git("show", f"{new}:api.py") + "\n")


@pytest.mark.parametrize("damage", [_missing, _new_files])
def test_files_that_a_killed_merge_left_are_restored(
    home: Home, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Home, str], None]
) -> None:
    bob = work(home)
    interrupt(home, monkeypatch, "read-tree")
    move = merging.load(home.directory).move
    assert move is not None
    damage(home, move.new)
    assert changes.merge(home.team, "bob") is not None
    assert tree(home) == tree(home, bob.snapshot)
    assert_clean(home)


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_file_cut_after_the_kill_is_the_users(home: Home, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    move = merging.load(home.directory).move
    assert move is not None
    cut = home.git("show", f"{move.old if side == 'old' else move.new}:api.py")[:50]
    home.write("api.py", cut)
    assert "interrupted" in Inside(home.root)("changes").err
    assert home.read("api.py") == cut
    assert home.read("README") == "hello\n"
    assert home.git("status", "--porcelain", "-uall") == " M api.py"


def test_no_file_is_half_written_at_any_moment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        home.write(f"src/{number}.txt", "old\n")
    home.commit("more")
    bob = work(home)
    for number in range(5):
        bob.write(f"src/{number}.txt", "new\n" * 9)
    bob.snap()
    ordinary, moved = Tree.put, [0]

    def put(self: Tree, path: str, source: Path) -> None:
        moved[0] += 1
        if moved[0] == 4:
            raise Killed
        ordinary(self, path, source)

    with monkeypatch.context() as patch:
        patch.setattr(Tree, "put", put)
        patch.setattr(merging.Mover, "recover", lambda *_, **__: None)
        with pytest.raises(Killed):
            changes.merge(home.team, "bob")
    found = [home.read(f"src/{number}.txt") for number in range(5)]
    assert {*found} == {"old\n", "new\n" * 9}
    changes.merge(home.team, "bob")
    assert tree(home) == tree(home, bob.snapshot)
    assert_clean(home)


@pytest.mark.long
def test_files_with_other_line_ends_are_restored(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.git("config", "core.autocrlf", "true")
    home.write(".gitattributes", "*.sh text eol=lf\n")
    home.write("run.sh", "one\ntwo\n")
    home.commit("line ends")
    home.git("rm", "-q", "--cached", "-r", ".")
    home.git("reset", "-q", "--hard")
    bob = work(home)
    bob.write("run.sh", "one\ntwo by bob\n")
    bob.snap()
    before = {path: (home.root / path).read_bytes() for path in ("api.py", "run.sh")}
    assert (b"\r\n" in before["api.py"], b"\r" in before["run.sh"]) == (True, False)
    interrupt(home, monkeypatch, "update-ref")
    assert "interrupted" in Inside(home.root)("changes").err
    assert {path: (home.root / path).read_bytes() for path in before} == before
    assert changes.merge(home.team, "bob") is not None
    assert tree(home) == tree(home, bob.snapshot)
    assert b"three by bob\r\n" in (home.root / "api.py").read_bytes()
    assert (home.root / "run.sh").read_bytes() == b"one\ntwo by bob\n"
    assert_clean(home)


def test_changes_end_what_was_cut_short(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    assert "interrupted" in Inside(home.root)("changes").err
    assert merging.load(home.directory) == Acceptances()
    assert_clean(home)
    assert Inside(home.root)("changes").err == ""


def test_the_status_ends_a_killed_merge_and_frees_the_index(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    assert (home.root / ".git/index.lock").exists()
    assert "a merge or undo was interrupted" in Inside(home.root)("status").err
    home.git("commit", "-q", "--allow-empty", "-m", "mine")
    assert merging.load(home.directory) == Acceptances()
    assert "interrupted" not in Inside(home.root)("status").err


@pytest.mark.long
def test_the_status_ends_a_killed_merge_of_a_team_in_a_database(
    home: Home, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.directory = TeamDirectory(home.root / ".crewboard" / "kept")
    home.directory.make(database)
    roster.create(home.directory, "", 1.0)
    home.team = Team(home.directory, environment={"USER": "user"})
    folder = home.directory.agent("bob").folder
    folder.store.make_folder(folder.name)
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    assert "a merge or undo was interrupted" in Inside(home.root)("--team", "kept", "status").err
    assert not (home.root / ".git/index.lock").exists()
    assert merging.load(home.directory).move is None


def test_an_edit_after_the_kill_is_never_overwritten(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    home.write("api.py", "edited after the kill\n")
    home.write("bob/new.txt", "edited, too\n")
    with pytest.raises(BadDataError, match=r"api\.py, bob/new\.txt"):
        changes.merge(home.team, "bob")
    assert home.read("api.py") == "edited after the kill\n"
    assert home.read("bob/new.txt") == "edited, too\n"
    assert home.read("README") == "hello\n"
    assert home.git("status", "--porcelain", "-uall") == " M api.py\n?? bob/new.txt"
    home.git("fsck", "--strict")


def test_the_index_lock_of_another_git_is_left(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    lock = home.root / ".git/index.lock"
    lock.unlink()
    lock.touch()
    with pytest.raises(TryLaterError, match="git is at work"):
        changes.merge(home.team, "bob")
    assert lock.exists()
    lock.unlink()
    assert changes.merge(home.team, "bob") is not None
    assert_clean(home)


@pytest.mark.parametrize("has_moved", [False, True])
def test_the_locks_of_a_git_that_was_killed_are_removed(
    home: Home, monkeypatch: pytest.MonkeyPatch, has_moved: bool
) -> None:
    bob = work(home)
    interrupt(home, monkeypatch, "update-ref")
    move = merging.load(home.directory).move
    assert move is not None
    if has_moved:
        home.git("update-ref", move.ref, move.new)
    else:
        (home.root / ".git/refs/heads/main.lock").write_text(move.new + "\n")
    (home.root / ".git/HEAD.lock").touch()
    changes.merge(home.team, "bob")
    assert tree(home) == tree(home, bob.snapshot)
    assert not list(home.root.joinpath(".git").rglob("*.lock"))
    assert_clean(home)


@pytest.mark.long
def test_the_branch_lock_of_another_git_is_left_and_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    locks = [home.root / ".git" / name for name in ("refs/heads/main.lock", "HEAD.lock")]
    for lock in locks:
        lock.touch()
    with pytest.raises(TryLaterError, match=r"remove .*/refs/heads/main\.lock if no git runs there"):
        changes.merge(home.team, "bob")
    assert all(lock.exists() for lock in locks)
    for lock in locks:
        lock.unlink()
    assert changes.merge(home.team, "bob") is not None
    assert_clean(home)


def test_a_branch_that_the_user_moved_since_is_left(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    interrupt(home, monkeypatch, "read-tree")
    (home.root / ".git/index.lock").unlink()
    home.write("user.txt", "mine\n")
    tip = home.commit("mine")
    with pytest.raises(UsageError, match="no merge"):
        changes.undo(home.team)
    assert home.git("rev-parse", "HEAD") == tip
    assert_clean(home)


def test_files_are_restored_if_the_branch_moves_meanwhile(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    before = home.git("ls-files", "-s")
    ordinary = Repository.in_working_tree

    def run(self: Repository, *arguments: str, **options: Any) -> str:
        if arguments[0] == "update-ref":
            home.git("update-ref", "HEAD", home.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "meanwhile"))
        return ordinary(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "in_working_tree", run)
        with pytest.raises(TryLaterError, match="changed by another program"):
            changes.merge(home.team, "bob")
    assert merging.load(home.directory) == Acceptances()
    assert home.git("ls-files", "-s") == before
    assert_clean(home)


def test_a_record_of_a_move_is_read_again(home: Home) -> None:
    work(home)
    done = changes.merge(home.team, "bob", dry_run=True)
    assert done is not None
    move = Move(id="x", ref="refs/heads/main", old="a", new="b", files=True, acceptance=done.acceptance)
    home.directory.acceptances.save(Acceptances(move=move))
    assert merging.load(home.directory).move == move


def _run_and_kill(home: Home, act: str, how: str, seconds: float) -> None:
    """Start a merge or an undo, and kill it and its git after a time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.worktrees.interrupted", str(home.root), act, how]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _again(home: Home, act: Callable[[], object]) -> None:
    """Repeat a step after a kill.

    A git that was killed before it wrote anything into the lock of the branch leaves an empty one, or that of HEAD.
    Nothing shows whose it is, so it is left, and the user is told to remove it.
    """
    locks = [home.root / ".git" / name for name in ("refs/heads/main.lock", "HEAD.lock")]
    refused = ""
    try:
        act()
    except TryLaterError as error:
        refused = str(error)
    if refused:
        assert any(f"remove {lock} if no git runs there" in refused for lock in locks)
        for lock in locks:
            if lock.exists():
                assert not lock.read_bytes()
                lock.unlink()
        act()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("how", "rounds"), [("squash", 6), ("rebase", 40)])
def test_kills_at_any_moment(home: Home, how: How, rounds: int) -> None:
    for number in range(12):
        home.write(f"src/{number}.txt", f"{number}\n" * 50_000)
    home.commit("more")
    bob = work(home)
    for number in range(12):
        bob.write(f"src/{number}.txt", f"{number} changed\n" * 50_000)
        bob.write(f"new/{number % 3}/{number}.txt", "new\n" * 50_000)
    bob.snap()
    before = tree(home)
    home.write("mine", "dirty\n")
    chance = random.Random(18)
    for _ in range(rounds):
        _run_and_kill(home, "merge", how, chance.uniform(0.02, 0.2))
        home.git("fsck", "--strict")
        _again(home, lambda: changes.merge(home.team, "bob", how=how))
        assert tree(home) == tree(home, bob.snapshot)
        assert_clean(home)
        _run_and_kill(home, "undo", how, chance.uniform(0.0, 0.1))
        home.git("fsck", "--strict")
        with contextlib.suppress(UsageError):
            _again(home, lambda: changes.undo(home.team))
        assert tree(home) == before
        assert_clean(home)
        assert home.read("mine") == "dirty\n"


@pytest.mark.long
def test_git_that_outlives_its_parent_holds_the_lease(home: Home, tmp_path: Path) -> None:
    work(home)
    home.git("config", "filter.slow.smudge", f"touch {tmp_path}/began; cat; sleep 1000")
    bob = home.hire("slow")
    bob.write(".gitattributes", "*.slow filter=slow\n")
    bob.write("a.slow", "x\n")
    bob.snap()
    code = (
        "from crewboard.commands import changes; from crewboard.commands.context import Team\n"
        "from crewboard.store.layout import TeamDirectory; from pathlib import Path\n"
        f"changes.merge(Team(TeamDirectory(Path({str(home.directory.path)!r}))), 'slow')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        try:
            deadline = time.monotonic() + 30
            while not (tmp_path / "began").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.kill()
            process.wait()
            with pytest.raises(TryLaterError, match="another merge"):
                changes.undo(home.team)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    home.git("config", "filter.slow.smudge", "cat")
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(TryLaterError):
            assert changes.merge(home.team, "slow") is not None
            break
        assert time.monotonic() < deadline
    assert home.read("a.slow") == "x\n"
    assert_clean(home)
