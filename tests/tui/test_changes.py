"""Changes: what agents with a worktree changed, file by file, read from real snapshots in a real repository."""

import asyncio
import atexit
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from crewboard.commands import changes
from crewboard.commands.context import Team
from crewboard.records.agents import Spec, Worktree
from crewboard.records.base import convert
from crewboard.records.events import FileKept, Intake, SnapshotTaken
from crewboard.records.messages import Message
from crewboard.records.processes import Exit
from crewboard.records.team import Checked, Reviewed
from crewboard.store import agents, codec, journal, leases, roster, tasks
from crewboard.store.interface import Key
from crewboard.worktrees import checkout, merging, snapshot
from crewboard.worktrees.changes import Changes, FileChange, LastCheck
from crewboard_tui import app
from crewboard_tui.render.diff import MOST_OF_FILE, changed, changed_words, hunk_lines, parse_diff
from crewboard_tui.render.lines import plain
from crewboard_tui.settings import Settings
from crewboard_tui.views import base
from crewboard_tui.views.changes.merge_page import MergePage
from crewboard_tui.views.changes.work import change_rows, detail_lines, file_line, fit_words
from crewboard_tui.widgets.collapsible_list import CollapsibleList
from tests.frozen import NOW, Frozen
from tests.system import need_program
from tests.tui.stage import WAIT_TIMEOUT, Stage, opened
from tests.worktrees.home import Home, make_repository
from tests.worktrees.test_interrupted import interrupt
from tests.worktrees.test_merging import work

BEFORE = "def pages(rows, size):\n    return rows[:size]\n\n\n" + "".join(f"LIMIT_{at} = {at}\n" for at in range(40))
AFTER = BEFORE.replace("rows[:size]", "rows[: size + 1]").replace("LIMIT_30 = 30", "LIMIT_30 = 300")


@pytest.fixture(autouse=True)
def _needed() -> None:
    need_program("git")


def _git(root: Path, *arguments: str) -> str:
    made = {"NAME": "kim", "EMAIL": "kim@example.org", "DATE": "2026-11-20T12:00:00Z"}
    names = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in made.items()}
    return subprocess.run(
        ["git", *arguments], cwd=root, env={**os.environ, **names}, check=True, capture_output=True, text=True
    ).stdout.strip()


@cache
def _begun() -> Path:
    """Return a repository with one commit. Git takes longer to make one than to copy it."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    root = Path(folder.name)
    _git(root, "init", "-q", "-b", "main", "--template=")
    _git(root, "config", "user.name", "Kim")
    _git(root, "config", "user.email", "kim@example.org")
    (root / ".git/info").mkdir()
    (root / ".git/info/exclude").write_text(".crewboard\n")
    (root / "src").mkdir()
    (root / "src/pages.py").write_text(BEFORE)
    (root / "README.md").write_text("# Inkpot\n")
    _git(root, "add", "--all")
    _git(root, "commit", "-q", "-m", "begin")
    return root


class Repository:
    """The user's repository around a frozen team, and the snapshots of agents in it."""

    def __init__(self, frozen: Frozen) -> None:
        self.team = frozen.directory
        self.root = shutil.copytree(_begun(), frozen.directory.root, dirs_exist_ok=True)
        self.base = (self.root / ".git/refs/heads/main").read_text().strip()

    def git(self, *arguments: str) -> str:
        return _git(self.root, *arguments)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def snapshot(self, name: str, files: dict[str, str]) -> str:
        """Have an agent change files of the base in a worktree of its own; the user's files stay as they are."""
        head = self.git("rev-parse", "HEAD")
        self.write(files)
        self.git("add", "--all")
        tree = self.git("write-tree")
        self.git("reset", "-q", "--hard", head)
        commit = self.git("commit-tree", tree, "-p", self.base, "-m", "snapshot")
        self.git("update-ref", f"refs/{self._branch(name)}", commit)
        self.give_worktree(name)
        return commit

    def _branch(self, name: str) -> str:
        return f"crew/@{self.team.path.name}/{name}"

    def give_worktree(self, name: str) -> None:
        """Give an agent a worktree that begins at the base, without a snapshot."""

        def with_worktree(spec: Spec | None) -> Spec:
            assert spec is not None
            return spec.replace(worktree=Worktree(branch=self._branch(name), base=self.base))

        agents.change_spec(self.team.agent(name), with_worktree)


@pytest.fixture
def repository(frozen: Frozen) -> Repository:
    return Repository(frozen)


@pytest.mark.long
async def test_eight_shows_what_each_agent_changed(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n"})
    repository.snapshot("ui", {"README.md": "# Ink\n"})
    repository.write({"README.md": "# Inkpot 2\n"})
    repository.commit("meanwhile")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("api  +3 −2 · 2 files · base 1 behind · ✓ merges cleanly")
        await stage.sees("ui   +1 −1 · 1 file  · base 1 behind · ⚠ conflicts: README.md")
        assert "migrate" not in "\n".join(stage.text[3:-4]), "it works in the shared tree"
        await stage.sees("+    return rows[: size + 1]")
        await stage.press("j")
        await stage.sees("+# Ink")
        assert "return rows" not in stage.all


@pytest.mark.long
async def test_a_row_shows_the_last_check_and_what_blocks_a_merge(frozen: Frozen, repository: Repository) -> None:
    commit = repository.snapshot("api", {"src/pages.py": AFTER})
    repository.snapshot("ui", {"docs.md": "# Ink\n"})
    api, tree = frozen.directory.agent("api"), repository.git("rev-parse", f"{commit}^{{tree}}")
    roster.change(frozen.directory, lambda config: setattr(config, "check", "make test-of-all-of-it"))

    def check(code: int, tree: str) -> None:
        agents.save_checked(api, Checked(at=NOW, command="make test-of-all-of-it", exit_code=code, tree=tree), None)

    check(1, tree)
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("api  +2 −2 · 1 file · ✗ 15:04 make test-of-al…", "blocks a merge until it passes")
        check(0, tree)
        await stage.sees("api  +2 −2 · 1 file · ✓ merges cleanly · ✓ 15:04 make test-of-al…")
        check(0, repository.base)
        await stage.sees("· ✓ merges cleanly · ✓ old, ", "the files changed since")
        with agents.checking(api):
            await stage.sees("✓ merges cleanly · ◔ check runs")


@pytest.mark.long
async def test_changes_say_whether_the_work_is_the_reviewed_one(frozen: Frozen, repository: Repository) -> None:
    since, tree = (repository.git("rev-parse", f"{each}^{{tree}}") for each in (
        repository.base, repository.snapshot("api", {"src/pages.py": AFTER})
    ))  # fmt: skip
    _idle(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("api  +2 −2 · 1 file · ✓ merges cleanly")
        # Nothing else is read later: what follows is read because the work was approved.
        with agents.checking(frozen.directory.agent("api")):
            await stage.sees("check runs")
        await stage.sees_not("check runs")
        assert "review" not in "\n".join(stage.text[2:-3])
        task = tasks.add(frozen.directory, "pages", NOW, owner="api", review="qa")
        reviewed = Reviewed(of="api", by="qa", at=NOW, since=since, tree=tree)
        frozen.directory.task(task.id).save(task.replace(status="completed", reviewed=reviewed))
        await stage.sees("✓ merges cleanly · reviewed", "review  by qa 15:04")
        repository.snapshot("api", {"src/pages.py": AFTER, "evil.py": "A = 1\n"})
        await stage.press("ctrl+r")
        await stage.sees("✓ merges cleanly · changed since review", "review  by qa 15:04, changed since")
        await stage.press("a")
        await stage.sees("✓ would commit", "⚠ reviewed by qa 15:04, changed since")


def test_a_row_says_that_your_branch_has_the_work_already() -> None:
    file = FileChange("a.py", "modified", 1, 0)
    assert fit_words(Changes("ann", "crew/ann", "b", "c", "h", (file,), 0, applies=True, is_merged=True)).text == (
        "merged here"
    )


def test_a_row_shows_a_red_check_beside_a_collision() -> None:
    red = LastCheck("failed", Checked(at=NOW, command="make", exit_code=1, tree="t"))
    file = FileChange("api.py", "modified", 1, 1)
    work = Changes("ann", "crew/ann", "b", "c", "h", (file,), 0, applies=True, collides_with=("ben",), check=red)
    (row,) = change_rows([(None, work)], 56)
    assert "✗ ⚠ collides with ben" in plain(row.line)
    (row,) = change_rows([(None, replace(work, conflicts=("api.py",)))], 56)
    assert "✗ ⚠ conflicts: api.py" in plain(row.line)


@pytest.mark.long
def test_merged_work_is_behind_alike_in_its_row_and_below(tmp_path: Path) -> None:
    """One commit of the user came before the merge, and three after it."""
    make_repository(tmp_path)
    home = Home(tmp_path)
    work(home)
    for number in range(4):
        home.write("user.txt", f"{number}\n")
        home.commit("user")
        if number == 0:
            changes.merge(home.team, "bob")
    (made,) = merging.load(home.directory).acceptances
    (found,) = changes.list_changes(home.team)
    (row,) = change_rows([(None, found)], 80)
    assert "base 4 behind" in plain(row.line)
    told = f"branch  crew/bob, last merged as {made.result[:8]}, 4 commits behind"
    assert plain(detail_lines(found, 80, made)[0]) == told


def test_a_change_of_the_mode_is_shown() -> None:
    made = FileChange("run.sh", "modified", 0, 0, mode="100755")
    assert plain(file_line(made, 40)).split() == ["M", "run.sh", "+x"]
    taken = FileChange("run.sh", "modified", 1, 0, mode="100644", old_mode="100755")
    assert plain(file_line(taken, 40)).split() == ["M", "run.sh", "−x", "+1"]
    assert "x" not in plain(file_line(FileChange("new", "added", 1, 0, mode="100755", old_mode="000000"), 40))


@pytest.mark.long
async def test_without_a_worktree_changes_says_how_to_get_one(frozen: Frozen) -> None:
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("no agent has a worktree", "crewboard spawn NAME --worktree", "n with 'own checkout'")


@pytest.mark.long
async def test_discarded_work_is_no_row_and_what_a_snapshot_lacks_is_shown(
    frozen: Frozen, repository: Repository
) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    frozen.directory.worktrees.mkdir(exist_ok=True)
    snapshot.missing_of(frozen.directory, "api").write_text("secret: Permission denied")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("⚠ 1 path not taken in", "missing secret: Permission denied")
        repository.git("update-ref", "-d", "refs/crew/@demo/api")
        await stage.press("ctrl+r")
        await stage.sees("the work of all agents with a worktree was discarded")


@pytest.mark.long
async def test_a_typed_yes_throws_away_the_work_of_an_ended_agent(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    kept = repository.snapshot("parser", {"src/cursor.py": "A = 1\n"})
    async with opened(frozen, 120, 30) as stage:
        await stage.press("8")
        await stage.sees("api     +2 −2", "parser  +1 −0")
        await stage.press("C")
        await stage.sees("discard: api is alive; x asks it to shut down first")
        await stage.press("j")
        await stage.sees("Work of parser")
        await stage.press("C")
        await stage.sees("throw away the work of parser?", "Type yes · 1 file (+1 −0), not merged")
        await stage.press("enter")
        await stage.sees("type yes, or leave")
        assert repository.git("for-each-ref", "refs/crew/@demo/parser"), "nothing is lost without a yes"
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees(
            f"the work of parser is thrown away; `git branch NEW {kept[:12]}` brings it back", "1 worktree"
        )
        assert not repository.git("for-each-ref", "refs/crew/@demo/parser")


@pytest.mark.long
async def test_enter_shows_the_files_and_their_diff(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n"})
    async with opened(frozen, 120, 30) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("enter")
        await stage.sees("Changes › api", "A src/cursor.py", "1 +A = 1", "file 1 of 2")
        await stage.sees(" ⏎ diff · c notes a line ━")
        await stage.press("]")
        await stage.sees("2 -    return rows[:size]", "2 +    return rows[: size + 1]", "file 2 of 2")
        await stage.press("[")
        await stage.sees("1 +A = 1")
        await stage.press("escape")
        await stage.sees("Work of api")


@pytest.mark.long
async def test_a_file_is_listed_with_its_old_name_and_the_target_of_a_link(
    frozen: Frozen, repository: Repository
) -> None:
    (repository.root / "link").symlink_to("README.md")
    repository.git("mv", "src/pages.py", "src/rows.py")
    repository.snapshot("api", {})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("A link → README.md", "R src/pages.py → src/rows.py")


@pytest.mark.long
async def test_the_page_of_an_agent_that_changed_nothing_says_so(frozen: Frozen, repository: Repository) -> None:
    repository.give_worktree("api")
    frozen.directory.worktree("api").mkdir(parents=True)
    _idle(frozen, "api")
    async with opened(frozen, 120, 40) as stage:
        await stage.press("8")
        await stage.sees("nothing changed")
        assert "U put back" not in stage.offered
        await stage.press("U")
        await stage.sees("put back: api changed nothing")
        await stage.press("enter")
        await stage.until(
            lambda: stage.all.count("nothing changed") > 1 and "reading" not in stage.all, "both panes say so"
        )
        assert "next file" not in stage.offered
        assert "file 1 of" not in stage.all


@pytest.mark.long
async def test_a_key_that_works_on_another_page_of_changes_says_where(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("reads again")
        await stage.press("c")
        await stage.sees("note: only on the page of a diff")
        await stage.press("h")
        await stage.sees("how: only where work is merged")
        await stage.press("enter")
        await stage.sees("c notes a line")


@pytest.mark.long
async def test_a_hunk_folds_to_one_line(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("enter")
        await stage.sees("src/pages.py", "rows[: size + 1]")
        await stage.press("enter", "j", "enter")
        await stage.sees_not("rows[: size + 1]")
        await stage.sees("LIMIT_30 = 300", "▹ @@ -1,5 +1,5 @@")


@pytest.mark.long
async def test_changes_are_read_again_when_the_agent_changes_its_state(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# One\n"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("+1 −1")
        repository.snapshot("api", {"README.md": "# One\n\nmore\n"})
        _idle(frozen, "api")
        await stage.sees("+3 −1")


@pytest.mark.long
async def test_a_key_reads_the_changes_again(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# One\n"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("+1 −1")
        repository.snapshot("api", {"README.md": "# One\n\nmore\n"})
        await stage.press("ctrl+r")
        await stage.sees("+3 −1")


@pytest.mark.long
async def test_a_hostile_file_name_and_text_are_only_shown(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot(
        "api",
        {
            "a\nb\x1b[2J \udcff".encode(errors="surrogateescape").decode(
                errors="surrogateescape"
            ): "\x1b[31mred [bold]x[/]\n"
        },
    )
    async with opened(frozen, 120, 30) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("enter")
        await stage.sees("1 +␛[31mred [bold]x[/]", "a b␛[2J <U+DCFF>")


# ------------------------------------------------------------------------------------------------------ merges


def _idle(frozen: Frozen, name: str) -> None:
    path = frozen.directory.agent(name).status
    status = path.load()
    assert status is not None
    path.save(status.replace(state="idle"))


def _held_reading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event without which nothing is read."""
    list_changes, may_read = changes.list_changes, threading.Event()

    def hold(team: Team) -> list[Changes]:
        assert may_read.wait(WAIT_TIMEOUT)
        return list_changes(team)

    monkeypatch.setattr(changes, "list_changes", hold)
    return may_read


@pytest.mark.long
async def test_what_another_process_merges_and_takes_back_is_shown(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/cursor.py": "A = 1\n"})
    _idle(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await asyncio.to_thread(changes.merge, frozen.team, "api")
        await stage.sees("all merged")
        await asyncio.to_thread(changes.undo, frozen.team, "api")
        await stage.sees("✓ merges cleanly")


async def test_merged_work_is_committed_as_shown_and_taken_back(
    frozen: Frozen, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n"})
    may_read = _held_reading(monkeypatch)
    _idle(frozen, "api")
    before = repository.git("rev-parse", "HEAD^{tree}")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("reading …")
        await stage.press("a")
        await stage.sees("merge: what changed is being read still")
        may_read.set()
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("squash: one commit", "✓ would commit +3 −2 in 2 files", "Add the work of api")
        await stage.press("e", "ctrl+a", "ctrl+k")
        await stage.write("pages: one more row")
        await stage.press("enter")
        await stage.sees("message  pages: one more row", "✓ would commit")
        assert repository.git("rev-parse", "HEAD^{tree}") == before, "a preview changes nothing"
        may_read.clear()
        await stage.press("a")
        await stage.sees("merged the work of api into main", "reading …")
        await stage.press("u")
        await stage.sees("take back the work of api?")
        await stage.press("escape")
        may_read.set()
        await stage.sees("all merged", "files   all merged, as")
        await stage.sees(f"branch  crew/@demo/api, last merged as {repository.git('rev-parse', 'HEAD')[:8]}")
        assert (repository.root / "src/cursor.py").read_text() == "A = 1\n"
        said = repository.git("log", "-1", "--format=%an%n%B")
        assert said.startswith("Kim\npages: one more row\n\nCo-authored-by: api")
        await stage.press("u")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("the work of api is taken back: main reset to", "✓ merges cleanly")
        assert repository.git("rev-parse", "HEAD^{tree}") == before
        assert repository.git("status", "--porcelain") == ""


@pytest.mark.long
async def test_what_cannot_be_merged_says_why(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n"})
    _idle(frozen, "api")
    repository.write({"README.md": "# Inkpot 2\n"})
    repository.commit("meanwhile")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("⚠ conflicts: README.md")
        await stage.press("a")
        await stage.sees("✖ the work of api conflicts with main in README.md", "into     main")
        await stage.sees("v asks api to resolve the conflicts")
        await stage.press("a")
        await stage.sees("merge: the work of api conflicts")
        await stage.press("i")
        await stage.write("nowhere")
        await stage.press("enter")
        await stage.sees("there is no branch 'nowhere'")
        await stage.press("v")
        await stage.sees("asked api to resolve the conflicts")


@pytest.mark.long
async def test_a_merge_of_an_agent_at_work_names_the_key(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n"})
    held = leases.take(frozen.directory.agent("api").lease)
    assert held is not None
    async with opened(frozen, 120, 30) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("so its work may be half done; wait for it, or take the last snapshot with n")
        assert "--now" not in stage.all
        await stage.press("n")
        await stage.sees("✓ would commit")
    leases.release(held)


@pytest.mark.long
async def test_a_key_asks_the_agent_to_resolve_its_conflicts(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n"})
    repository.write({"README.md": "# Inkpot 2\n"})
    head = repository.commit("meanwhile")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("⚠ conflicts: README.md")
        await stage.press("v")
        await stage.sees("asked api to resolve the conflicts")
        (sent,) = _mail(frozen, "api", "Your work conflicts")
        assert "in: README.md." in sent.content
        assert f"git merge {head}" in sent.content
        assert "when resumed" not in stage.all
        del frozen.probe.held["api"]
        agents.write_exit(frozen.directory.agent("api"), Exit(run=1, code=0, at=NOW, reason="stopped"))
        stage.app.context.announce()
        await stage.until(lambda: not any(each.alive for each in stage.app.context.view.agents if each.name == "api"))
        await stage.press("v")
        await stage.sees("asked api to resolve the conflicts; api reads it when resumed")


@pytest.mark.long
async def test_a_conflict_is_resolved_also_before_another_merge(frozen: Frozen, repository: Repository) -> None:
    """The work merges cleanly into another branch than the one that is checked out."""
    repository.snapshot("api", {"README.md": "# Ink\n"})
    _idle(frozen, "api")
    repository.git("branch", "old")
    repository.write({"README.md": "# Inkpot 2\n"})
    repository.commit("meanwhile")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("⚠ conflicts: README.md")
        await stage.press("a")
        await stage.sees("✖ the work of api conflicts with main in README.md")
        await stage.press("i")
        await stage.write("old")
        await stage.press("enter")
        await stage.sees("✓ would commit")
        await stage.press("v")
        await stage.sees("asked api to resolve the conflicts")


@pytest.mark.long
async def test_a_conflict_of_just_now_can_be_resolved_from_the_page(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n"})
    _idle(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit")
        await stage.press("v")
        await stage.sees(": its work has no conflicts")
        repository.write({"README.md": "# Inkpot 2\n"})
        repository.commit("meanwhile")
        await stage.press("a")
        await stage.sees("✖ the work of api conflicts with main in README.md", "v asks api to resolve the conflicts")
        await stage.press("v")
        await stage.sees("asked api to resolve the conflicts")


@pytest.mark.long
async def test_work_that_changed_since_the_preview_is_not_merged(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n"})
    _idle(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit +1 −1")
        repository.snapshot("api", {"README.md": "# Ink\n\nmore\n"})
        await stage.press("a")
        await stage.sees("not merged", "✓ would commit +3 −1")
        assert repository.git("rev-parse", "HEAD") == repository.base


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
async def test_what_changed_since_a_merge_page_was_opened_is_marked(
    frozen: Frozen, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"src/file_{at:02}.py": "A = 1\n" for at in range(20)}
    repository.snapshot("api", files)
    _idle(frozen, "api")
    async with opened(frozen, 80, 40) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit +20", "100% read")
        await stage.sees_not("since you opened this")
        # The same number of files and lines: without the marks, the page would look the same.
        commit = repository.snapshot("api", {**files, "src/file_19.py": "evil()\n"})
        # A press by habit.
        monkeypatch.setattr("crewboard_tui.widgets.reading.TO_LOOK", 60.0)
        await stage.press("a")
        await stage.sees("not merged", f"changed since you opened this: src/file_19.py (now {commit[:8]}; look at the")
        await stage.sees("A ⚠ src/file_19.py", "A src/file_18.py")
        await stage.press("a")
        await stage.sees("not taken: these lines had only just appeared")
        assert repository.git("rev-parse", "HEAD") == repository.base
        monkeypatch.setattr("crewboard_tui.widgets.reading.TO_LOOK", 0.0)
        await stage.press("a")
        await stage.sees("merged the work of api into main")


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
async def test_a_changed_file_is_on_the_screen_before_a_merge(frozen: Frozen, repository: Repository) -> None:
    files = {f"src/file_{at:02}.py": "A = 1\n" for at in range(26)}
    repository.snapshot("api", files)
    _idle(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit +26")
        await stage.press("G")
        await stage.sees("src/file_25.py", "100% read")
        repository.snapshot("api", {**files, "src/file_00.py": "evil()\n"})
        await stage.press("a")
        await stage.sees("not merged")
        await stage.sees_not("100% read")
        await stage.can("a", "merge")
        await stage.press("a")
        await stage.sees(
            "not shown before: lines", "changed since you opened this: src/file_00.py", "A ⚠ src/file_00.py"
        )
        assert repository.git("rev-parse", "HEAD") == repository.base


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
async def test_a_yes_to_a_merge_is_for_the_branch_on_the_page(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n\n"})
    _idle(frozen, "api")
    repository.git("branch", "other")
    before = repository.git("for-each-ref", "refs/heads")
    async with opened(frozen) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit", "of main")
        repository.git("symbolic-ref", "HEAD", "refs/heads/other")
        await stage.press("a")
        await stage.sees("not merged", "of other")
        assert repository.git("for-each-ref", "refs/heads") == before
        repository.git("symbolic-ref", "HEAD", "refs/heads/main")
        moved = repository.commit("more of mine")
        await stage.press("a")
        await stage.sees(f"changed since you opened this: main is at {moved[:8]}")
        assert repository.git("rev-parse", "main") == moved


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
async def test_each_file_that_runs_on_your_machine_is_on_the_page(frozen: Frozen, repository: Repository) -> None:
    files = {f".github/{at}-{'x' * 150}": "on: push\n" for at in range(20)}
    repository.snapshot("api", {**files, "sub/Makefile": "all:\n"})
    _idle(frozen, "api")
    async with opened(frozen, 120, 60) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit +21")
        asked, _, listed = stage.all.partition("in your CI:")
        assert asked
        assert "sub/Makefile" in listed.partition("A .github")[0]


@pytest.mark.usefixtures("in_time")
async def test_files_that_were_not_on_the_screen_are_shown_before_a_merge(
    frozen: Frozen, repository: Repository
) -> None:
    files = {f"src/file_{at:02}.py": "A = 1\n" for at in range(29)}
    repository.snapshot("api", {**files, "Makefile": "all:\n"})
    _idle(frozen, "api")
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("runs on your machine or in your CI: Makefile")
        await stage.sees("✓ would commit +30 −0 in 30 files", "file_00.py")
        await stage.press("a")
        await stage.sees("not shown before: lines", "a merges once all was shown", "file_20.py")
        assert repository.git("rev-parse", "HEAD") == repository.base
        # A press after the merge has begun would be answered in the place of its outcome.
        while not re.search("(merging|merged) the work of api", stage.all):
            await stage.until(lambda: not stage.app.screen._dirty_widgets, "a paint")
            await stage.press("a")
            await stage.settles()
        await stage.sees("merged the work of api into main")
        assert repository.git("rev-parse", "HEAD") != repository.base


_KEY = f"sk-ant-api03-{'x' * 27}"


@pytest.mark.long
@pytest.mark.usefixtures("in_time")
async def test_a_merge_names_the_keys_in_it_and_asks_until_they_are_shown(
    frozen: Frozen, repository: Repository
) -> None:
    repository.snapshot("api", {"secret.md": f"one\napi_key = {_KEY}\n"})
    _idle(frozen, "api")
    async with opened(frozen, 100, 30) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("1 line holds what looks like a key: secret.md:2", "api_key = [key hidden: 40 characters]")
        await stage.sees("99% read")
        for _ in range(2):
            await stage.press("a")
            await stage.sees("a key is hidden: K shows it; a merges after that")
        await stage.settles()
        assert repository.git("rev-parse", "HEAD") == repository.base
        await stage.press("K")
        await stage.sees(f"secret.md:2  api_key = {_KEY}", "100% read")
        await stage.can("K", "hide keys")
        page = stage.app.screen
        assert isinstance(page, MergePage)
        assert "api_key = [key hidden: 40 characters]" in page.copied
        assert _KEY not in page.copied
        await stage.press("a")
        await stage.sees("merged the work of api into main")


@pytest.mark.long
async def test_a_line_of_a_private_key_is_hidden_before_a_merge(frozen: Frozen, repository: Repository) -> None:
    line = "MIIE" + 60 * "a"
    pem = f"-----BEGIN PRIVATE KEY-----\n{line}\n-----END PRIVATE KEY-----\n"
    repository.snapshot("api", {"server.pem": pem})
    _idle(frozen, "api")
    async with opened(frozen, 100, 30) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("a key: server.pem:2", "server.pem:2  [key hidden: 64 characters]")
        await stage.press("K")
        await stage.sees(f"server.pem:2  {line}")


@pytest.mark.long
async def test_the_keys_in_a_diff_are_shown_but_never_kept(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"secret.md": f"api_key = {_KEY}\n"})
    async with opened(frozen, 120, 30) as stage:
        await stage.press("8")
        await stage.sees("reads again")
        await stage.press("K")
        await stage.sees("show keys: only on the page of a request, a diff or a merge")
        await stage.press("enter")
        await stage.sees("+api_key = [key hidden: 40 characters]")
        await stage.press("enter")
        await stage.can("K", "show keys")
        await stage.press("K")
        await stage.sees(f"+api_key = {_KEY}")
        await stage.can("K", "hide keys")
        await stage.press("G", "c")
        await stage.write("no key here")
        await stage.press("enter")
        await stage.sees("✎ no key here", f"+api_key = {_KEY}")
        assert _KEY not in stage.app.screen.query_one("#diff", CollapsibleList).copied
        assert _KEY not in "".join(f"{note}{text}" for note, text in stage.app.context.drafts.items())
        await stage.press("K")
        await stage.sees("+api_key = [key hidden: 40 characters]", "✎ no key here")
        await stage.press("ctrl+s")
        await stage.sees("sent 1 note to api; api reads it when resumed")
        (sent,) = _mail(frozen, "api", "Notes on your changes")
        assert "> +api_key = [key hidden: 40 characters]" in sent.content


# ----------------------------------------------------------------------------------------------------------- notes


async def _open_diff(stage: Stage) -> None:
    await stage.press("8")
    await stage.sees("reads again")
    await stage.press("enter")
    await stage.sees("rows[: size + 1]")
    await stage.press("enter")


@pytest.mark.long
async def test_notes_are_sent_as_one_message_with_path_line_and_hunk(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 120, 36) as stage:
        await _open_diff(stage)
        await stage.press("j", "j", "j", "c")
        await stage.write("why one more")
        await stage.press("enter")
        await stage.sees("✎ why one more", "✎1 +2 −2")
        await stage.press("k", "c")
        await stage.write("keep this")
        await stage.press("enter")
        await stage.can("^s", "send 2 notes")
        await stage.press("ctrl+s")
        await stage.sees("sent 2 notes to api")
        await stage.sees_not("✎")
        (sent,) = _mail(frozen, "api", "Notes on")
        assert sent.from_ == "operator"
        assert sent.content == (
            "Notes on your changes:\n\n"
            "src/pages.py:2\n"
            "> @@ -1,5 +1,5 @@\n>  def pages(rows, size):\n> -    return rows[:size]\n"
            "> +    return rows[: size + 1]\n\n"
            "why one more\n\n"
            "src/pages.py:2 (removed)\n"
            "> @@ -1,5 +1,5 @@\n>  def pages(rows, size):\n> -    return rows[:size]\n\n"
            "keep this"
        )


@pytest.mark.long
async def test_what_is_typed_after_a_refused_note_presses_no_keys(
    frozen: Frozen, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(base, "monotonic", lambda: clock[0])
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 120, 36) as stage:
        await _open_diff(stage)
        await stage.press("shift+tab", "c")
        await stage.sees("note: go to a line of the diff first")
        await stage.press("p")
        clock[0] += 0.6
        await stage.press("x", "q")
        clock[0] += 0.6
        await stage.press("w", "tab")
        await stage.settles()
        assert stage.app.is_running
        assert "api is not running" not in stage.all, "neither to pause nor to stop"
        clock[0] += 0.8
        await stage.press("p")
        await stage.sees("api is not running")


def _mail(frozen: Frozen, name: str, begin: str) -> list[Message]:
    lines = frozen.directory.inbox(name).on_disk.read_text().splitlines()
    found = [codec.decode(line.encode(), Message) for line in lines]
    return [message for message in found if message.content.startswith(begin)]


@pytest.mark.long
async def test_a_note_is_kept_like_any_draft_and_marked_when_its_line_changed(
    frozen: Frozen, repository: Repository, tmp_path: Path
) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 120, 36, settings=settings) as stage:
        await _open_diff(stage)
        await stage.press("j", "j", "j", "c")
        await stage.write("too many")
        await stage.until(lambda: any("too many" in each.read_text() for each in tmp_path.glob("drafts/*.json")))
    repository.snapshot("api", {"src/pages.py": AFTER.replace("size + 1", "size + 2"), "src/cursor.py": "A = 1\n"})
    async with opened(frozen, 120, 36, settings=settings) as stage:
        await stage.sees("not sent yet, from the last time: your notes on api's changes")
        await stage.press("8")
        await stage.sees("reads again")
        await stage.press("enter", "]")
        await stage.sees("✎ line 2 has changed since: return rows[: size + 1]", "✎ too many")
        await stage.press("tab", "c")
        await stage.sees("note on line 2")
        await stage.press("ctrl+a", "ctrl+k", "enter")
        await stage.sees_not("✎")


@pytest.mark.long
async def test_the_message_of_a_merge_is_kept_while_it_is_written(
    frozen: Frozen, repository: Repository, tmp_path: Path
) -> None:
    settings = Settings(drafts=tmp_path / "drafts")
    repository.snapshot("api", {"README.md": "# Ink\n"})
    _idle(frozen, "api")
    async with opened(frozen, 120, 36, settings=settings) as stage:
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("✓ would commit")
        await stage.press("e", "ctrl+a", "ctrl+k")
        await stage.write("pages: half a sentence")
        await stage.until(lambda: any("half a" in each.read_text() for each in tmp_path.glob("drafts/*.json")))
    async with opened(frozen, 120, 36, settings=settings) as stage:
        await stage.sees("not sent yet, from the last time: your message for the merge of api")
        await stage.press("8")
        await stage.sees("✓ merges cleanly")
        await stage.press("a")
        await stage.sees("message  pages: half a sentence", "✓ would commit")
        await stage.press("a")
        await stage.sees("merged the work of api into main")
        assert repository.git("log", "-1", "--format=%s") == "pages: half a sentence"
        assert not stage.app.context.drafts


@pytest.mark.long
async def test_a_note_moves_with_its_line(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 120, 36) as stage:
        await _open_diff(stage)
        await stage.press("j", "j", "j", "c")
        await stage.write("here")
        await stage.press("enter")
        repository.snapshot("api", {"src/pages.py": f"import os\n\n{AFTER}"})
        await stage.press("ctrl+r")
        await stage.sees("4 +    return rows[: size + 1]", "✎ here")
        assert "has changed since" not in stage.all


@pytest.mark.long
async def test_only_looking_writes_no_notes(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"src/pages.py": AFTER})
    async with opened(frozen, 120, 36, read_only=True) as stage:
        await _open_diff(stage)
        await stage.press("G", "c")
        await stage.sees("not while you only look")


# ------------------------------------------------------------------------------------------------------- the diff


def _unified(before: str, after: str, tmp_path: Path) -> str:
    for name, text in (("a", before), ("b", after)):
        (tmp_path / name).write_text(text)
    command = ["git", "diff", "--no-index", "--no-color", "a", "b"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout


def test_lines_have_their_numbers_and_changed_words_are_marked(tmp_path: Path) -> None:
    (found,) = parse_diff(_unified(BEFORE, AFTER, tmp_path))
    removed, added = (line for line in found.hunks[0].lines if line.kind != " ")
    assert (removed.old, removed.new, added.old, added.new) == (2, None, None, 2)
    assert [added.text[begin:end] for begin, end in added.marks] == [" ", " + 1"]


def test_lines_with_little_in_common_have_no_marks() -> None:
    assert changed_words("import os", "class Painter(Widget):") == ((), ())
    assert changed_words("x" * 500, "x" * 499 + "y") == ((), ())


def test_lines_that_look_like_a_head_are_content(tmp_path: Path) -> None:
    (found,) = parse_diff(_unified("-- drop\n-- a/b\nkeep\n", "++ add\n@@ -1 +1 @@\nkeep\n", tmp_path))
    assert [line.kind + line.text for line in found.hunks[0].lines] == [
        "--- drop", "--- a/b", "+++ add", "+@@ -1 +1 @@", " keep",
    ]  # fmt: skip


def test_of_a_huge_diff_the_first_part_is_kept(tmp_path: Path) -> None:
    (found,) = parse_diff(_unified("", "line\n" * 100_000, tmp_path))
    assert sum(len(hunk.lines) for hunk in found.hunks) == MOST_OF_FILE
    assert found.left_out == 100_000 - MOST_OF_FILE


def test_a_secret_of_several_lines_is_hidden(tmp_path: Path) -> None:
    begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    before = "\n".join(["one", begin, "MIIE" + 60 * "a", "b" * 64, "c" * 20, end, "two", ""])
    after = "\n".join(["one", begin, "MIIE" + 60 * "d", "b" * 64, "e" * 28, end, "touch hidden", "two", ""])
    (found,) = parse_diff(_unified(before, after, tmp_path))
    long = "[key hidden: 64 characters]"
    assert [line.kind + line.text for line in found.hunks[0].lines] == [
        " one", f" {begin}", f"-{long}", f"+{long}", f" {long}", "-[key hidden: 20 characters]",
        "+[key hidden: 28 characters]", f" {end}", "+touch hidden", " two",
    ]  # fmt: skip


def test_revisions_of_a_plan_differ_by_line_feeds_alone() -> None:
    assert changed("1. back up\n2. delete", "1. back up\f2. delete", ("a", "b")).split("\n")[3:] == [
        "-1. back up", "-2. delete", "+1. back up\f2. delete",
    ]  # fmt: skip


def test_a_line_is_hidden_that_a_diff_makes_part_of_a_key(tmp_path: Path) -> None:
    line = "MIIE" + 60 * "a"
    (found,) = parse_diff(_unified(f"{line}\n", f"-----BEGIN PRIVATE KEY-----\n{line}\n", tmp_path))
    assert [line.text for line in found.hunks[0].lines][1:] == ["[key hidden: 64 characters]"]


@pytest.mark.parametrize("width", [1, 5, 12, 40])
def test_long_lines_are_broken_and_nothing_is_lost(width: int, tmp_path: Path) -> None:
    text = "日本語 and some words that are long"
    (found,) = parse_diff(_unified("", f"{text}\n", tmp_path))
    lines = [plain(line)[2:] for _, line in hunk_lines(found.hunks[0], width, 1)]
    assert "".join(line[1:] for line in lines) == text


def test_an_accent_that_was_added_to_a_word_is_shown(tmp_path: Path) -> None:
    (found,) = parse_diff(_unified("cafe in town\n", "cafe\u0301 in town\n", tmp_path))
    removed, added = (plain(line) for _, line in hunk_lines(found.hunks[0], 40, 1))
    assert (removed[2:], added[2:]) == ("-cafe in town", "+cafe\u0301 in town")


# --------------------------------------------------------------------------------------------------- putting back


def _checkout(frozen: Frozen, name: str, *work: dict[str, str]) -> Path:
    """Give an agent a real checkout, in which it changed files in each of its assignments, and let it rest."""
    made = checkout.make(frozen.directory, name)
    agent = frozen.directory.agent(name)

    def with_worktree(spec: Spec | None) -> Spec:
        assert spec is not None
        return spec.replace(worktree=made)

    spec = agents.change_spec(agent, with_worktree)
    tree = frozen.directory.worktree(name)
    for (ident, files), at in itertools.product(enumerate(work), ("begin", "end")):
        commit = snapshot.take(frozen.directory, name, spec).commit
        event = convert({"ts": NOW, "assignment": str(ident), "commit": commit, "at": at}, SnapshotTaken)
        journal.append(agent.journal, event)
        for path, text in files.items():
            (tree / path).parent.mkdir(exist_ok=True)
            (tree / path).write_text(text)
    _idle(frozen, name)
    return tree


@pytest.mark.long
async def test_a_hunk_is_put_back(frozen: Frozen, repository: Repository) -> None:
    tree = await asyncio.to_thread(
        _checkout, frozen, "api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n", "README.md": "# Ink\n"}
    )
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("api  +4 −3 · 3 files")
        await stage.press("enter")
        await stage.sees("file 1 of 3")
        await stage.press("]", "]")
        await stage.sees("file 3 of 3", "rows[: size + 1]")
        await stage.press("enter", "G")
        await stage.press("U")
        await stage.sees("api: put hunk 2 of src/pages.py back?", "Type yes · src/pages.py · Esc leaves it as it is")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("put back src/pages.py; `crewboard undo api --snapshot ")
        assert (tree / "src/pages.py").read_text() == BEFORE.replace("rows[:size]", "rows[: size + 1]")


@pytest.mark.long
async def test_a_file_and_an_assignment_are_put_back(frozen: Frozen, repository: Repository) -> None:
    tree = await asyncio.to_thread(
        _checkout, frozen, "api", {"src/pages.py": AFTER, "src/cursor.py": "A = 1\n", "README.md": "# Ink\n"}
    )
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("api  +4 −3 · 3 files")
        await stage.press("enter")
        await stage.sees("file 1 of 3")
        await stage.press("]")
        await stage.sees("file 2 of 3", "+A = 1")
        await stage.until(lambda: not stage.app.context.jobs.running(), "the end of the last reading")
        await stage.press("U")
        await stage.sees("api: put src/cursor.py back?", "src/cursor.py (removed)")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("put back src/cursor.py (removed)")
        assert not (tree / "src/cursor.py").exists()
        await stage.press("escape")
        await stage.sees("Work of api")
        await stage.until(lambda: not stage.app.context.jobs.running(), "the end of the last reading")
        await stage.press("U")
        await stage.sees("api: put its last assignment back?", "README.md, src/pages.py")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("nothing changed")
        assert (tree / "src/pages.py").read_text() == BEFORE


@pytest.mark.long
async def test_an_assignment_that_took_all_changes_back_is_put_back(frozen: Frozen, repository: Repository) -> None:
    tree = await asyncio.to_thread(_checkout, frozen, "api", {"src/pages.py": AFTER}, {"src/pages.py": BEFORE})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("nothing changed")
        await stage.press("U")
        await stage.sees("api: put its last assignment back?", "src/pages.py")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("put back src/pages.py")
        assert (tree / "src/pages.py").read_text() == AFTER


@pytest.mark.long
async def test_what_changed_since_it_was_read_is_not_put_back(frozen: Frozen, repository: Repository) -> None:
    tree = await asyncio.to_thread(_checkout, frozen, "api", {"README.md": "# Ink\n"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("1 file")
        await stage.press("enter")
        await stage.sees("+# Ink")
        (tree / "README.md").write_text("# Later\n")
        await stage.press("U")
        await stage.sees("api has changed files since this was read")
        assert (tree / "README.md").read_text() == "# Later\n"


@pytest.mark.long
async def test_the_files_of_an_agent_at_work_are_not_put_back(frozen: Frozen, repository: Repository) -> None:
    repository.snapshot("api", {"README.md": "# Ink\n"})
    async with opened(frozen, 80, 24) as stage:
        await stage.press("8")
        await stage.sees("1 file")
        await stage.press("U")
        await stage.sees("put back: api is working: wait for it, or stop it")


@pytest.mark.long
async def test_file_tools_are_reversed_in_the_shared_tree_from_the_board(frozen: Frozen) -> None:
    agent, file = frozen.directory.agent("parser"), frozen.directory.root / "note.txt"
    file.write_text("new\n")
    before, after = agents.keep_content(agent, b"old\n"), hashlib.sha256(b"new\n").hexdigest()
    journal.append(agent.journal, Intake(ts=NOW, assignment="first"))
    journal.append(
        agent.journal, FileKept(ts=NOW, id="1", tool_use_id="1", path="note.txt", before=before, after=after)
    )
    async with opened(frozen, 80, 24) as stage:
        await stage.press("U")
        await stage.sees("parser: put its last assignment back?", "note.txt · what its commands changed stays")
        await stage.write("yes")
        await stage.press("enter")
        await stage.sees("put back note.txt")
        assert file.read_text() == "old\n"


@pytest.mark.long
async def test_the_dashboard_ends_a_killed_merge_and_frees_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    make_repository(root)
    home = Home(root)
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    assert (root / ".git/index.lock").exists()
    async with opened(Frozen(home.directory), 100, 24) as stage:
        await stage.sees("a merge or undo was interrupted; it is finished or taken back now")
    assert not (root / ".git/index.lock").exists()
    home.git("commit", "-q", "--allow-empty", "-m", "mine")


@pytest.mark.long
async def test_a_merge_that_is_under_way_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "project"
    root.mkdir()
    make_repository(root)
    home = Home(root)
    work(home)
    interrupt(home, monkeypatch, "update-ref")
    held = leases.take(home.directory.lease("acceptance"))
    assert held is not None
    looked, asks = threading.Event(), leases.is_held

    def look(lease: Key) -> bool:
        is_held = asks(lease)
        if lease == home.directory.lease("acceptance"):
            looked.set()
        return is_held

    monkeypatch.setattr(leases, "is_held", look)
    monkeypatch.setattr(app, "LOOK_AT_MERGE", 0.1)
    async with opened(Frozen(home.directory), 100, 24) as stage:
        await stage.until(looked.is_set, "a look at the merge")
        assert (root / ".git/index.lock").exists()
        leases.release(held)
        await stage.sees("a merge or undo was interrupted; it is finished or taken back now")
