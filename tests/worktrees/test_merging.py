"""The work of an agent comes into the user's branch as git itself would merge it, and goes back."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pexpect
import pytest
from msgspec.structs import replace

from crewboard.commands import changes
from crewboard.commands.context import command_for
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.readmodel.needs import format_minute
from crewboard.records.agents import Status
from crewboard.records.messages import Message
from crewboard.records.team import Acceptances, Checked, How
from crewboard.store import agents, codec, leases, roster, tasks
from crewboard.worker.tools import team as team_tools
from crewboard.worktrees import collisions, merging
from tests.bench.terminal import terminal
from tests.cli.shell import COMMAND, Inside, clean_environment
from tests.matrix import default
from tests.worktrees.home import AgentWork, Home

HOWS: list[How] = ["squash", "merge", "rebase"]

# A merge is made of the same calls of git as a squash, with one parent more.
SOME = default(HOWS, "squash", "rebase")
REBASE = default(HOWS, "rebase")


def tree(home: Home, name: str = "HEAD") -> str:
    return home.git("rev-parse", f"{name}^{{tree}}")


def work(home: Home, name: str = "bob") -> AgentWork:
    """Return an agent with a commit, and with more work that it did not commit."""
    bob = home.hire(name)
    bob.write("api.py", home.read("api.py").replace("line 3\n", f"three by {name}\n"))
    bob.write(f"{name}/new.txt", "new\n")
    bob.commit("Say three\n\nBecause it is three.")
    bob.delete("README")
    bob.snap()
    return bob


def assert_clean(home: Home) -> None:
    """Check that the index and the working tree are those of HEAD, and that nothing is left behind."""
    assert home.git("status", "--porcelain", "--untracked-files=no") == ""
    home.git("fsck", "--strict")
    assert not [path.name for path in (home.root / ".git").glob("*") if "crewboard" in path.name or "lock" in path.name]


@pytest.mark.parametrize("how", SOME)
def test_a_merge_brings_the_whole_work(home: Home, how: How) -> None:
    bob = work(home)
    done = changes.merge(home.team, "bob", how=how)
    assert done is not None
    assert tree(home) == tree(home, bob.snapshot)
    assert home.git("rev-parse", "main") == done.acceptance.result
    assert home.git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert home.read("bob/new.txt") == "new\n"
    assert not (home.root / "README").exists()
    assert_clean(home)


@pytest.mark.parametrize("how", SOME)
def test_undo_gives_the_same_tree(home: Home, how: How) -> None:
    work(home)
    before, files = home.git("rev-parse", "HEAD"), home.git("ls-files", "-s")
    changes.merge(home.team, "bob", how=how)
    undone = changes.undo(home.team)
    assert (home.git("rev-parse", "HEAD"), home.git("ls-files", "-s")) == (before, files)
    assert undone.undone == before
    assert home.read("README") == "hello\n"
    assert not (home.root / "bob").exists()
    assert_clean(home)


@pytest.mark.parametrize("how", REBASE)
def test_the_user_is_the_author_and_the_agent_the_co_author(home: Home, how: How) -> None:
    work(home)
    changes.merge(home.team, "bob", how=how)
    said = home.git("log", "--first-parent", "--format=%an <%ae>%n%(trailers)", "-1")
    assert said.split("\n")[:2] == [
        "User <user@example.invalid>",
        "Co-authored-by: bob (crewboard) <bob@crewboard.invalid>",
    ]


def test_a_squash_is_one_commit_with_the_agents_message(home: Home) -> None:
    bob = work(home)
    changes.merge(home.team, "bob")
    assert home.git("rev-parse", "HEAD^") == bob.base
    assert home.git("log", "-1", "--format=%B").startswith("Say three\n\nBecause it is three.\n\nCo-authored-by:")


@pytest.mark.long
def test_several_commits_are_listed_in_the_message_of_a_squash(home: Home) -> None:
    bob = work(home)
    bob.commit("Remove \x1b[31mREADME")
    bob.snap()
    changes.merge(home.team, "bob")
    assert home.git("log", "-1", "--format=%B").startswith("Add the work of bob\n\n* Say three\n* Remove ?[31mREADME\n")


def test_a_message_can_be_given(home: Home) -> None:
    work(home)
    changes.merge(home.team, "bob", message="Three it is\n\nMore.\n")
    assert home.git("log", "-1", "--format=%s%n%b").startswith("Three it is\nMore.\n\nCo-authored-by: bob")
    with pytest.raises(UsageError):
        changes.merge(home.team, "bob", message=" ")


@pytest.mark.long
def test_a_merge_commit_has_the_agents_commits_and_no_snapshot(home: Home) -> None:
    bob = work(home)
    changes.merge(home.team, "bob", how="merge")
    subjects = home.git("log", "--format=%s").splitlines()
    assert sorted(subjects) == ["Say three", "Say three", "Uncommitted work of bob", "first"]
    assert home.git("rev-parse", "HEAD^1", "HEAD^2^").splitlines() == [bob.base, bob.head]


def test_a_rebase_has_the_agents_commits_in_their_order(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("a", "1\n")
    bob.commit("One")
    home.write("user", "mine\n")
    tip = home.commit("mine")
    bob.write("a", "2\n")
    bob.commit("Two")
    bob.write("b", "3\n")
    bob.snap()
    changes.merge(home.team, "bob", how="rebase")
    assert home.git("log", "--format=%s").splitlines() == ["Uncommitted work of bob", "Two", "One", "mine", "first"]
    assert home.git("rev-parse", "HEAD~3") == tip
    assert home.git("show", "HEAD~2:a") == "1"
    assert_clean(home)


@pytest.mark.parametrize("how", REBASE)
def test_the_result_is_what_git_merges(home: Home, how: How) -> None:
    bob = work(home)
    home.write("api.py", home.read("api.py").replace("line 17\n", "seventeen\n"))
    home.write("user.txt", "mine\n")
    tip = home.commit("mine")
    expected = home.git("merge-tree", "--write-tree", tip, bob.snapshot)
    changes.merge(home.team, "bob", how=how)
    assert tree(home) == expected
    assert_clean(home)


@pytest.mark.parametrize("how", SOME)
def test_conflicts_are_named_before_anything_is_touched(home: Home, how: How) -> None:
    work(home)
    home.write("api.py", home.read("api.py").replace("line 3\n", "three by the user\n"))
    home.commit("mine")
    before = home.git("for-each-ref"), home.git("ls-files", "-s", "--debug")
    with pytest.raises(BadDataError, match=r"conflicts with main in api\.py"):
        changes.merge(home.team, "bob", how=how)
    assert (home.git("for-each-ref"), home.git("ls-files", "-s", "--debug")) == before
    assert_clean(home)


def test_other_uncommitted_work_of_the_user_stays(home: Home) -> None:
    home.write("mine.txt", "one\n")
    home.write("staged.txt", "one\n")
    home.commit("mine")
    work(home)
    home.write("mine.txt", "two\n")
    home.write("staged.txt", "two\n")
    home.git("add", "staged.txt")
    home.write("untracked", "x\n")
    before = home.git("status", "--porcelain")
    changes.merge(home.team, "bob")
    assert home.git("status", "--porcelain") == before
    changes.undo(home.team)
    assert home.git("status", "--porcelain") == before
    assert (home.read("mine.txt"), home.read("untracked")) == ("two\n", "x\n")


def _edited(home: Home) -> None:
    home.write("api.py", "mine\n")


def _staged(home: Home) -> None:
    text = home.read("api.py")
    home.write("api.py", "mine\n")
    home.git("add", "api.py")
    home.write("api.py", text)


def _removed(home: Home) -> None:
    (home.root / "api.py").unlink()


def _untracked(home: Home) -> None:
    home.write("bob/new.txt", "mine\n")


def _ignored(home: Home) -> None:
    home.write(".git/info/exclude", "*.txt\n")
    home.write("bob/new.txt", "mine\n")


def _file_for_folder(home: Home) -> None:
    home.write("bob", "mine\n")


def _link_for_folder(home: Home) -> None:
    (home.root / "bob").symlink_to(home.root)


def _folder_for_file(home: Home) -> None:
    home.write("bob/new.txt/mine", "mine\n")


def _staged_new(home: Home) -> None:
    home.write("bob/new.txt", "mine\n")
    home.git("add", "bob/new.txt")
    (home.root / "bob/new.txt").unlink()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_edited, "api.py"), (_staged, "api.py"), (_removed, "api.py"), (_untracked, "bob/new.txt"),
        (_ignored, "bob/new.txt"), (_file_for_folder, "bob"), (_link_for_folder, "bob"),
        (_folder_for_file, "bob/new.txt/mine"), (_staged_new, "bob/new.txt"),
    ],
)  # fmt: skip
def test_files_that_would_be_overwritten_are_named(home: Home, spoil: Callable[[Home], None], named: str) -> None:
    work(home)
    spoil(home)
    before = home.git("status", "--porcelain", "-uall"), home.git("for-each-ref")
    with pytest.raises(BadDataError, match=f"would be overwritten: {named};"):
        changes.merge(home.team, "bob")
    assert (home.git("status", "--porcelain", "-uall"), home.git("for-each-ref")) == before


def test_a_merge_while_git_is_at_work_is_put_off(home: Home) -> None:
    work(home)
    for name in ("index.lock", "MERGE_HEAD"):
        home.write(f".git/{name}", "")
        with pytest.raises(TryLaterError):
            changes.merge(home.team, "bob")
        (home.root / ".git" / name).unlink()
    assert changes.merge(home.team, "bob") is not None


def test_one_merge_at_a_time(home: Home) -> None:
    work(home)
    lease = leases.take(home.directory.lease("acceptance"))
    assert lease is not None
    with pytest.raises(TryLaterError, match="another merge"):
        changes.merge(home.team, "bob")


@pytest.mark.long
@pytest.mark.parametrize("how", REBASE)
def test_work_that_is_there_already_is_not_merged_again(home: Home, how: How) -> None:
    work(home)
    assert changes.merge(home.team, "bob", how=how) is not None
    tip = home.git("rev-parse", "HEAD")
    assert changes.merge(home.team, "bob", how=how) is None
    assert home.git("rev-parse", "HEAD") == tip
    (found,) = changes.list_changes(home.team)
    assert (found.files, found.applies) == ((), True)


@pytest.mark.parametrize("how", REBASE)
def test_later_work_on_the_same_lines_merges_after_a_merge(home: Home, how: How) -> None:
    bob = work(home)
    changes.merge(home.team, "bob", how=how)
    bob.write("api.py", home.read("api.py").replace("three by bob\n", "three again\n"))
    bob.commit("Say three again")
    bob.write("bob/new.txt", "newer\n")
    bob.snap()
    (found,) = changes.list_changes(home.team)
    assert [each.path for each in found.files] == ["api.py", "bob/new.txt"]
    done = changes.merge(home.team, "bob", how=how)
    assert done is not None
    assert tree(home) == tree(home, bob.snapshot)
    assert "three again\n" in home.read("api.py")
    assert_clean(home)


@pytest.mark.long
@pytest.mark.parametrize(
    ("later", "how"),
    [
        (False, "squash"), (True, "rebase"), pytest.param(True, "merge", marks=pytest.mark.long),
        *(pytest.param(False, how, marks=pytest.mark.long) for how in HOWS[1:]),
        pytest.param(True, "squash", marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_undone_work_can_be_merged_again(home: Home, how: How, later: bool) -> None:
    work(home)
    changes.merge(home.team, "bob", how=how)
    merged = tree(home)
    if later:
        home.write("user.txt", "mine\n")
        home.commit("mine")
    changes.undo(home.team, "bob")
    assert "line 3\n" in home.read("api.py")
    (found,) = changes.list_changes(home.team)
    assert len(found.files) == 3
    assert changes.merge(home.team, "bob", how=how) is not None
    assert "three by bob\n" in home.read("api.py")
    assert later or tree(home) == merged
    assert_clean(home)


def hire_before_undo(home: Home) -> AgentWork:
    """Return an agent that began at the merge of another's work, which was taken back then."""
    work(home, "ann")
    changes.merge(home.team, "ann")
    bob = home.hire("bob")
    bob.snap()
    changes.undo(home.team)
    return bob


@pytest.mark.long
def test_what_an_undo_took_back_is_no_work_of_another_agent(home: Home) -> None:
    bob = hire_before_undo(home)
    ann, found = changes.list_changes(home.team)
    assert (len(ann.files), found.files, found.applies) == (3, (), True)
    assert found.base == bob.base
    assert changes.merge(home.team, "bob") is None
    known = collisions.update(home.directory, 1.0).unmerged
    assert (len(known["ann"].files), known["bob"].files) == (3, [])
    home.write("user.txt", "mine\n")
    tip = home.commit("mine")
    bob.merge(tip, home.git("merge-tree", "--write-tree", bob.head, tip))
    bob.write("notes.txt", "x\n")
    bob.snap()
    assert [each.path for each in changes.list_changes(home.team)[1].files] == ["notes.txt"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["squash", pytest.param("rebase", marks=pytest.mark.long)])
def test_a_merge_after_an_undo_brings_only_the_agents_work(home: Home, how: How) -> None:
    bob = hire_before_undo(home)
    bob.write("notes.txt", "one\n")
    bob.commit("Take notes")
    bob.write("api.py", home.git("show", f"{bob.base}:api.py").replace("line 19", "the end") + "\n")
    bob.snap()
    before = home.git("rev-parse", "HEAD")
    Inside(home.root)("merge", "bob", "--merge").refused(65, f"main lacks the commit {bob.base[:12]}", "use --squash")
    assert home.git("rev-parse", "HEAD") == before
    changes.merge(home.team, "bob", how=how)
    assert home.git("diff", "--name-only", before, "HEAD").splitlines() == ["api.py", "notes.txt"]
    assert "line 3\n" in home.read("api.py")
    assert changes.unmerged(home.team, "bob") is None
    assert changes.merge(home.team, "ann") is not None
    assert tree(home) == tree(home, bob.snapshot)
    assert_clean(home)


@pytest.mark.parametrize("how", REBASE)
def test_undo_after_later_commits_reverts(home: Home, how: How) -> None:
    work(home)
    before = tree(home)
    changes.merge(home.team, "bob", how=how)
    home.write("user.txt", "mine\n")
    tip = home.commit("mine")
    changes.undo(home.team)
    assert home.git("rev-parse", "HEAD^") == tip
    assert home.git("log", "-1", "--format=%s").startswith("Revert ")
    (home.root / "user.txt").unlink()
    home.commit("mine no more")
    assert tree(home) == before


def test_undo_names_later_commits_that_changed_the_same_lines(home: Home) -> None:
    work(home)
    changes.merge(home.team, "bob")
    home.write("api.py", home.read("api.py").replace("three by bob\n", "mine\n"))
    tip = home.commit("mine")
    with pytest.raises(BadDataError, match=r"api\.py"):
        changes.undo(home.team)
    assert home.git("rev-parse", "HEAD") == tip


def test_undo_never_overwrites_an_edit(home: Home) -> None:
    work(home)
    changes.merge(home.team, "bob")
    home.write("bob/new.txt", "edited\n")
    with pytest.raises(BadDataError, match=r"bob/new\.txt"):
        changes.undo(home.team)
    assert home.read("bob/new.txt") == "edited\n"


@pytest.mark.long
def test_undo_of_one_agent_and_of_several_merges(home: Home) -> None:
    work(home, "ann")
    bob = home.hire("bob")
    bob.write("other", "x\n")
    bob.snap()
    start = home.git("rev-parse", "HEAD")
    changes.merge(home.team, "ann")
    changes.merge(home.team, "bob")
    assert changes.undo(home.team, "ann").agent == "ann"
    assert changes.undo(home.team).agent == "bob"
    assert tree(home) == tree(home, start)
    with pytest.raises(UsageError, match="no merge"):
        changes.undo(home.team)


def test_undo_passes_over_a_merge_in_another_clone(home: Home) -> None:
    work(home, "ann")
    changes.merge(home.team, "ann")
    directory = home.team.directory
    record = merging.load(directory)
    elsewhere = replace(record.acceptances[0], id="2", agent="bob", result="1" * 40, before="2" * 40)
    directory.acceptances.save(replace(record, acceptances=[*record.acceptances, elsewhere]))
    with pytest.raises(UsageError, match=r"the merge of bob into main .* is not in this repository: undo it in the"):
        changes.undo(home.team, "bob")
    assert changes.undo(home.team).agent == "ann"


def test_undo_of_a_merge_that_the_user_took_back(home: Home) -> None:
    work(home)
    changes.merge(home.team, "bob")
    home.git("reset", "-q", "--hard", "HEAD^")
    with pytest.raises(UsageError, match="does not contain"):
        changes.undo(home.team)


def test_into_another_branch_only_its_ref_moves(home: Home) -> None:
    bob = work(home)
    home.git("branch", "release")
    before = home.git("rev-parse", "HEAD"), home.git("ls-files", "-s", "--debug")
    changes.merge(home.team, "bob", into="release")
    assert (home.git("rev-parse", "HEAD"), home.git("ls-files", "-s", "--debug")) == before
    assert tree(home, "release") == tree(home, bob.snapshot)
    changes.undo(home.team)
    assert home.git("rev-parse", "release") == before[0]


@pytest.mark.parametrize("name", ["none", "--upload-pack", "main~0", "HEAD", "../tags/x"])
def test_into_something_that_is_no_branch_is_refused(home: Home, name: str) -> None:
    work(home)
    with pytest.raises(UsageError, match=r"no branch|name another branch"):
        changes.merge(home.team, "bob", into=name)


def test_into_a_branch_that_is_checked_out_elsewhere_is_refused(home: Home) -> None:
    work(home)
    home.git("worktree", "add", "-q", "-b", "side", str(home.root.parent / "side"))
    with pytest.raises(UsageError, match="checked out in"):
        changes.merge(home.team, "bob", into="side")


def test_a_detached_head_moves(home: Home) -> None:
    bob = work(home)
    home.git("checkout", "-q", "--detach")
    main = home.git("rev-parse", "main")
    changes.merge(home.team, "bob")
    assert tree(home) == tree(home, bob.snapshot)
    assert home.git("rev-parse", "main") == main
    assert_clean(home)
    changes.undo(home.team)
    assert home.git("rev-parse", "HEAD") == main


def test_an_agent_at_work_is_not_merged(home: Home) -> None:
    work(home)
    agent = home.directory.agent("bob")
    lease = leases.take(agent.lease)
    assert lease is not None
    agent.status.save(Status(run=1, pid=1, state="working", since=1))
    with pytest.raises(TryLaterError, match="--now"):
        changes.merge(home.team, "bob")
    assert changes.merge(home.team, "bob", now=True) is not None
    assert agent.status.load() is not None


def test_a_preview_changes_nothing(home: Home) -> None:
    work(home)
    before = home.git("for-each-ref"), home.git("status", "--porcelain")
    done = changes.merge(home.team, "bob", dry_run=True)
    assert done is not None
    assert len(done.changes.files) == 3
    assert (home.git("for-each-ref"), home.git("status", "--porcelain")) == before
    assert merging.load(home.directory) == Acceptances()


def test_an_agent_cannot_change_the_folder_of_teams(home: Home) -> None:
    bob = home.hire("bob")
    bob.write(".Crewboard/agents/evil.md", "x\n")
    bob.snap()
    with pytest.raises(BadDataError, match="agents may not change"):
        changes.merge(home.team, "bob")


def test_hooks_and_signing_do_not_run(home: Home) -> None:
    work(home)
    hook = home.root / ".git/hooks/post-checkout"
    hook.parent.mkdir()
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "post-commit"):
        hook.with_name(name).write_text("#!/bin/sh\ntouch ran\n")
        hook.with_name(name).chmod(0o755)
    home.git("config", "commit.gpgSign", "true")
    home.git("config", "gpg.program", "false")
    changes.merge(home.team, "bob")
    assert not list(home.root.rglob("ran"))


def test_a_work_with_links_modes_and_odd_names(home: Home) -> None:
    bob = home.hire("bob")
    bob.write(b"caf\xe9\n\t", "x\n")
    bob.write("run", "#!/bin/sh\n", mode="100755")
    bob.write("link", "api.py", mode="120000")
    bob.delete("README")
    bob.write("README/inside", "a folder for a file\n")
    bob.snap()
    before = tree(home)
    changes.merge(home.team, "bob")
    assert tree(home) == tree(home, bob.snapshot)
    assert_clean(home)
    changes.undo(home.team)
    assert tree(home) == before
    assert_clean(home)


def test_an_identity_is_needed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    work(home)
    home.git("config", "--unset", "user.name")
    home.git("config", "--unset", "user.email")
    home.git("config", "user.useConfigOnly", "true")
    with pytest.raises(BadDataError, match=r"user\.email"):
        changes.merge(home.team, "bob")
    assert_clean(home)


def test_variables_of_git_that_do_not_count_are_named(home: Home) -> None:
    work(home)
    run = Inside(home.root)
    assert "GIT_CONFIG" not in run("merge", "bob", "--dry-run").err
    told = run.with_environment(GIT_CONFIG_GLOBAL="/dev/null")("merge", "bob", "--dry-run").err
    assert "merges without GIT_CONFIG_GLOBAL: the author is that of ~/.gitconfig" in told


def test_work_whose_check_failed_is_merged_only_on_purpose(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    task = tasks.add(home.team.directory, "work", 1.0, owner="bob", check="make test")
    failed = Checked(at=5.0, command="make test", exit_code=1, result="results/x.txt")
    tasks.note_check(home.team.directory, task.id, "bob", failed)
    with pytest.raises(BadDataError, match="the check `make test` of bob failed last"):
        changes.merge(home.team, "bob")
    assert changes.merge(home.team, "bob", unchecked=True) is not None
    assert home.git("show", "HEAD:notes.txt") == "x"


def checked(home: Home, code: int, *, at: float = 5.0, tree: str = "") -> None:
    """Record a run of the team's check for bob."""
    roster.change(home.directory, lambda config: setattr(config, "check", "make test"))
    (home.directory.results / "out.txt").write_text("$ make test\nE   assert 1 == 2\n[exit code 2]\n")
    run = Checked(at=at, command="make test", exit_code=code, result="results/out.txt", tree=tree)
    agents.save_checked(home.directory.agent("bob"), run, None)


def test_a_failed_check_without_a_task_blocks_a_merge_until_it_passes(home: Home) -> None:
    work(home)
    checked(home, 2)
    with pytest.raises(BadDataError) as refused:
        changes.merge(home.team, "bob")
    said = str(refused.value)
    assert "the check `make test` of bob failed last, at 1970-01-01" in said
    assert "\n  E   assert 1 == 2\n" in said
    assert f"`{command_for(home.team, 'merge bob --unchecked')}` merges it anyway" in said
    assert said.endswith("\n  [exit code 2]")
    checked(home, 0, at=6.0)
    assert changes.merge(home.team, "bob") is not None


def test_no_other_check_repairs_the_check_of_the_team(home: Home) -> None:
    work(home)
    checked(home, 2)
    other = Checked(at=6.0, command="true", exit_code=0)
    agents.save_checked(home.directory.agent("bob"), other, "make test")
    with pytest.raises(BadDataError, match="the check `make test` of bob failed last"):
        changes.merge(home.team, "bob")
    # The team has another check now.
    agents.save_checked(home.directory.agent("bob"), other, "make all")
    assert changes.merge(home.team, "bob") is not None


def test_a_check_that_passed_is_old_when_the_files_changed_since(home: Home) -> None:
    def state() -> str | None:
        (bob,) = changes.list_changes(home.team)
        return bob.check.state if bob.check is not None else None

    bob = work(home)
    assert state() is None
    checked(home, 0, tree=tree(home, bob.snapshot))
    assert state() == "passed"
    bob.write("later.txt", "x\n")
    bob.snap()
    assert state() == "old"
    checked(home, 2, at=6.0, tree=tree(home, bob.base))
    assert state() == "failed", "only a check that passes takes it back"
    with agents.checking(home.directory.agent("bob")):
        assert state() == "running"
    assert state() == "failed"


# ------------------------------------------------------------------------------------------------ a yes of the user


def printed(text: str) -> list[str]:
    """Return the arguments of the command that was printed to merge what was shown."""
    (line,) = re.findall(r"`crewboard (merge [^`]*--sha256 [0-9a-f]{16})`", text)
    return shlex.split(line)


@pytest.mark.long
@pytest.mark.parametrize("look", [("changes", "bob", "--diff"), ("merge", "bob", "--dry-run")])
def test_work_that_changed_since_it_was_shown_is_refused(home: Home, look: tuple[str, ...]) -> None:
    bob, before = work(home), home.git("rev-parse", "main")
    run = Inside(home.root)
    shown = printed(run(*look).err)
    bob.write("api.py", "evil\n")
    bob.snap()
    run(*shown).refused(65, "the work of bob has another sha256", "read it again")
    run(*shown, "--now").refused(65, "another sha256")
    assert home.git("rev-parse", "main") == before
    assert run(*printed(run(*look).err)).code == 0
    assert home.read("api.py") == "evil\n"


def test_a_yes_is_also_for_the_commits_of_the_agent(home: Home) -> None:
    bob = work(home)
    run = Inside(home.root)
    shown = printed(run("merge", "bob", "--merge", "--dry-run").err)
    bob.commit("The same files in another commit")
    bob.snap()
    run(*shown).refused(65, "another sha256")


@pytest.mark.long
def test_a_merge_in_a_script_needs_the_work_that_it_takes(home: Home) -> None:
    work(home)
    before = home.git("rev-parse", "main")
    run = Inside(home.root)
    asked = run("merge", "bob", "--rebase", "--message", "say three", "--json")
    asked.refused(2, "crewboard changes bob --diff", "accepts exactly that")
    assert home.git("rev-parse", "main") == before
    named = printed(asked.err)
    assert named[:5] == ["merge", "bob", "--rebase", "--message", "say three"]
    assert run(*named).code == 0
    assert home.read("bob/new.txt") == "new\n"


@pytest.mark.long
@pytest.mark.parametrize("exchanged", [False, True])
def test_a_terminal_shows_the_work_and_asks(home: Home, *, exchanged: bool) -> None:
    bob, before = work(home), home.git("rev-parse", "main")
    with terminal([*COMMAND, "merge", "bob"], home.root, clean_environment()) as child:
        child.expect_exact("Merge the work of bob as shown into main? [y/N]")
        assert b"+three by bob" in child.before
        if exchanged:
            bob.write("api.py", "evil\n")
            bob.snap()
        child.sendline("y")
        child.expect_exact("another sha256" if exchanged else "merged bob into main")
        child.expect(pexpect.EOF)
    assert (home.git("rev-parse", "main") == before) == exchanged


@pytest.mark.long
def test_what_is_checked_out_during_the_question_gets_no_merge(home: Home) -> None:
    work(home)
    home.git("branch", "other")
    before = home.git("for-each-ref", "refs/heads")
    with terminal([*COMMAND, "merge", "bob"], home.root, clean_environment()) as child:
        child.expect_exact("Merge the work of bob as shown into main? [y/N]")
        home.git("symbolic-ref", "HEAD", "refs/heads/other")
        child.sendline("y")
        child.expect_exact("go into other at")
        child.expect(pexpect.EOF)
    assert home.git("for-each-ref", "refs/heads") == before


@pytest.mark.long
@pytest.mark.parametrize("look", [("merge", "bob", "--dry-run"), ("merge", "bob")])
def test_a_printed_merge_goes_where_it_was_shown_to_go(home: Home, look: tuple[str, ...]) -> None:
    bob, run = work(home), Inside(home.root)
    home.git("branch", "other")
    shown = printed(run(*look).err)
    home.git("symbolic-ref", "HEAD", "refs/heads/other")
    assert run(*shown).code == 0
    assert tree(home, "main") == tree(home, bob.snapshot) != tree(home, "other")


def test_a_branch_with_an_odd_blank_is_not_shown_as_another(home: Home) -> None:
    work(home)
    home.git("branch", "dev\N{NO-BREAK SPACE}2")
    done = Inside(home.root)("merge", "bob", "--into", "dev\N{NO-BREAK SPACE}2", "--dry-run")
    assert "into dev<U+00A0>2:" in done.out
    assert "--into 'dev<U+00A0>2'" in done.err


def test_a_merge_is_for_the_branch_of_its_preview(home: Home) -> None:
    work(home)
    seen = changes.merge(home.team, "bob", dry_run=True)
    assert seen is not None
    home.commit("of the user")
    with pytest.raises(BadDataError, match="was shown goes into main at"):
        changes.merge(home.team, "bob", onto=seen.acceptance)
    home.git("checkout", "-q", "-b", "other", seen.acceptance.before)
    with pytest.raises(BadDataError, match="would go into other at"):
        changes.merge(home.team, "bob", onto=seen.acceptance)


@pytest.mark.parametrize(
    "name", ["HEAD", "FETCH_HEAD", "stash", "heads/main", "refs/heads/main", "tags/v1", "v1", "@", "upstream/main"]
)
def test_no_merge_into_a_name_that_git_takes_for_another(home: Home, name: str, forge: Path) -> None:
    work(home)
    home.git("tag", "v1")
    home.git("update-ref", f"refs/heads/{name}", "main")
    before = home.git("for-each-ref")
    for options in ((), ("--pr",)):
        Inside(home.root).agree("merge", "bob", "--into", name, *options).refused(2, "something else to git", name)
    assert home.git("for-each-ref") == before
    assert not (forge / "gh.log").exists()


@pytest.mark.long
def test_a_merge_says_whether_the_work_is_the_reviewed_one(home: Home) -> None:
    bob, run = work(home), Inside(home.root)
    bob.approved(since=bob.base, at=9.0)
    said = f"bob: reviewed by qa {format_minute(9.0)}"
    assert said in run("merge", "bob", "--dry-run").err.splitlines()
    bob.write("api.py", "evil\n")
    bob.snap()
    asked = run("merge", "bob", "--dry-run")
    assert f"{said}, changed since" in asked.err.splitlines()
    review = run("merge", "bob", "--dry-run", "--json").json["review"]
    assert (review["state"], review["by"]) == ("old", "qa")
    with terminal([*COMMAND, "merge", "bob"], home.root, clean_environment()) as child:
        child.expect_exact("Merge the work of bob as shown into main? [y/N]")
        assert child.before.decode().splitlines()[-1].strip() == f"{said}, changed since"
        child.sendline("n")
        child.expect(pexpect.EOF)
    merged = run(*printed(asked.err))
    assert f"{said}, changed since" in merged.err.splitlines()


def test_work_that_came_when_nothing_was_shown_is_not_merged(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    bob, before = home.hire("bob"), home.git("rev-parse", "main")
    merge = changes.merge

    def work_behind(*given: Any, **more: Any) -> changes.Merge | None:
        found = merge(*given, **more)
        bob.write("api.py", "evil\n")
        bob.snap()
        return found

    monkeypatch.setattr(changes, "merge", work_behind)
    assert Inside(home.root)("merge", "bob").out.startswith("nothing to merge")
    assert home.git("rev-parse", "main") == before


def test_a_merge_of_nothing_says_that_the_agent_has_no_changes(home: Home) -> None:
    bob = home.hire("bob")
    run = Inside(home.root)
    # As after the import of a team, whose checkouts stay where they are.
    assert run("merge", "bob").out == "nothing to merge: no checkout of bob is here, and no snapshot of one\n"
    bob.snap()
    assert run("merge", "bob").out == "nothing to merge: bob has no changes\n"
    bob.write("notes.txt", "x\n")
    bob.commit("note")
    home.git("merge", "-q", "--ff-only", bob.head)
    bob.snap()
    assert run("merge", "bob").out == "nothing to merge: all of the work of bob is there already\n"


@pytest.mark.long
def test_a_pull_request_is_of_the_work_that_was_shown(home: Home, forge: Path) -> None:
    bob = work(home)
    run = Inside(home.root)
    asked = run("merge", "bob", "--pr")
    asked.refused(2, "accepts exactly that")
    bob.write("api.py", "evil\n")
    bob.snap()
    run(*printed(asked.err)).refused(65, "another sha256")
    assert remote(forge, "for-each-ref", "refs/heads/crew") == ""
    assert run(*printed(run("changes", "bob", "--diff").err), "--pr").code == 0
    assert remote(forge, "for-each-ref", "refs/heads/crew") != ""


@pytest.mark.long
def test_a_merge_into_a_detached_head_warns(home: Home) -> None:
    work(home)
    home.git("checkout", "-q", "--detach")
    run = Inside(home.root)
    for options in (("--dry-run",), ()):
        assert "no branch is checked out" in run.agree("merge", "bob", *options).err
    assert home.git("log", "-1", "--format=%s") != "first"


def test_a_command_asks_the_agent_to_resolve_its_conflicts(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("README", "bob\n")
    bob.snap()
    run = Inside(home.root)
    run("merge", "bob", "--resolve").refused(2, "no conflicts", "merge bob")
    home.write("README", "user\n")
    head = home.commit("user")
    assert run("merge", "bob", "--resolve").out == "asked bob to resolve its conflicts\n"
    (line,) = home.directory.inbox("bob").on_disk.read_text().splitlines()
    sent = codec.decode(line.encode(), Message)
    assert "in: README." in sent.content
    assert f"git merge {head}" in sent.content


def test_refusals_name_to_a_lead_no_options_that_it_lacks(home: Home) -> None:
    work(home)
    lead = replace(home.team, by="lead")
    agent = home.directory.agent("bob")
    agent.status.save(Status(run=1, pid=1, state="working", since=0))
    lease = leases.take(agent.lease)
    assert lease is not None
    with pytest.raises(TryLaterError) as busy:
        changes.merge_into_branch(lead, "bob", "integration")
    os.close(lease.descriptor)
    task = tasks.add(home.directory, "work", 1.0, owner="bob", check="make")
    tasks.note_check(home.directory, task.id, "bob", Checked(at=5.0, command="make", exit_code=1, result="results/x"))
    with pytest.raises(BadDataError) as failed:
        changes.merge_into_branch(lead, "bob", "integration")
    assert home.git("branch", "--list", "integration") == "", "a refused merge makes no branch"
    assert "wait until it idles" in str(busy.value)
    assert "only the operator" in str(failed.value)
    assert "--" not in f"{busy.value}{failed.value}"


@pytest.mark.long
@pytest.mark.parametrize("how", REBASE)
def test_a_checkout_is_not_behind_by_the_merge_of_its_own_work(home: Home, how: How) -> None:
    bob = work(home)
    changes.merge(home.team, "bob", how=how)
    home.write("README", "user\n")
    home.commit("user")
    (found,) = changes.list_changes(home.team)
    assert (found.files, found.behind) == ((), 1)
    bob.write("more", "x\n")
    bob.snap()
    changes.merge(home.team, "bob", how=how)
    (found,) = changes.list_changes(home.team)
    assert (found.files, found.behind) == ((), 1)


# ------------------------------------------------------------------------------------------------ pull requests

GH = """#!/bin/sh
printf '%s\\n' "$@" --end-- >> "{log}"
case "$2" in
  create) echo "Creating pull request"; echo https://forge.invalid/pull/1 ; touch "{log}.open" ;;
  list) [ ! -e "{log}.open" ] || echo https://forge.invalid/pull/1 ;;
esac
"""


@pytest.fixture
def forge(home: Home, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the repository a bare one as its remote, and a program `gh` that records its arguments."""
    folder = tmp_path_factory.mktemp("forge")
    subprocess.run(["git", "init", "-q", "--bare", str(folder / "remote.git")], check=True)
    home.git("remote", "add", "upstream", str(folder / "remote.git"))
    home.git("push", "-q", "-u", "upstream", "main")
    (folder / "bin").mkdir()
    gh = folder / "bin/gh"
    gh.write_text(GH.format(log=folder / "gh.log"))
    gh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return folder


def remote(forge: Path, *arguments: str) -> str:
    command = ["git", f"--git-dir={forge / 'remote.git'}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_pull_request_gets_what_a_squash_would_commit(home: Home, forge: Path) -> None:
    bob = work(home)
    before = home.git("rev-parse", "main")
    # The hooks of the user run, as in a push by hand.
    hook = home.root / ".git/hooks/pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho pushed > '{forge}/hook'\n")
    hook.chmod(0o700)
    made = changes.open_pull_request(home.team, "bob")
    assert made is not None
    assert (made.branch, made.base, made.remote) == ("crew/bob", "main", "upstream")
    assert made.url == "https://forge.invalid/pull/1"
    assert remote(forge, "rev-parse", "crew/bob") == made.commit
    assert remote(forge, "rev-parse", "crew/bob^{tree}") == tree(home, bob.snapshot)
    assert remote(forge, "rev-parse", "crew/bob^") == before
    assert (forge / "hook").read_text() == "pushed\n"
    assert home.git("rev-parse", "main") == before, "nothing is merged here"
    assert_clean(home)
    _, created = (call.split("\n") for call in (forge / "gh.log").read_text().split("\n--end--\n")[:2])
    assert created[:5] == ["pr", "create", "--head=crew/bob", "--base=main", "--title=Say three"]
    assert "--body=Because it is three." in created
    assert "Co-authored-by: bob (crewboard) <bob@crewboard.invalid>" in created


@pytest.mark.long
def test_a_pull_request_that_is_open_gets_the_new_commit(home: Home, forge: Path) -> None:
    bob = work(home)
    first = changes.open_pull_request(home.team, "bob")
    bob.write("later.txt", "x\n")
    bob.snap()
    second = changes.open_pull_request(home.team, "bob", message="Say it all")
    assert first is not None
    assert second is not None
    assert second.url == first.url
    assert remote(forge, "log", "-1", "--format=%s", "crew/bob") == "Say it all"
    assert (forge / "gh.log").read_text().count("\ncreate\n") == 1
    # A commit of another user on that branch is not overwritten.
    other = home.git("commit-tree", f"{second.commit}^{{tree}}", "-p", second.commit, "-m", "by hand")
    home.git("push", "-q", str(forge / "remote.git"), f"{other}:refs/heads/crew/bob")
    bob.write("last.txt", "x\n")
    bob.snap()
    with pytest.raises(BadDataError, match="git push failed"):
        changes.open_pull_request(home.team, "bob")
    assert remote(forge, "rev-parse", "crew/bob") == other


def test_no_pull_request_without_gh_a_remote_or_a_passed_check(
    home: Home, forge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(home)
    checked(home, 2)
    with pytest.raises(BadDataError, match="failed last"):
        changes.open_pull_request(home.team, "bob")
    checked(home, 0, at=6.0)
    home.git("branch", "apart")
    home.git("remote", "add", "second", "/nowhere")
    with pytest.raises(UsageError, match="several remotes, and apart is pushed to none of them; `git push -u REMOTE"):
        changes.open_pull_request(home.team, "bob", into="apart")
    home.git("remote", "remove", "second")
    home.git("remote", "remove", "upstream")
    with pytest.raises(UsageError, match="has no remote; `git push -u REMOTE main` sets one"):
        changes.open_pull_request(home.team, "bob")
    monkeypatch.setenv("PATH", os.defpath)
    if shutil.which("gh") is None:
        with pytest.raises(UsageError, match="gh is not installed"):
            changes.open_pull_request(home.team, "bob")
    assert not (forge / "gh.log").exists()


@pytest.mark.long
def test_a_pull_request_from_the_command_line_does_what_it_asked(home: Home, forge: Path) -> None:
    bob = home.hire("bob")
    bob.write(".github/workflows/ci.yml", "on: push\n")
    bob.write(".husky/pre-push", "touch evil\n", mode="100755")
    bob.commit(f"Say $(touch evil) for @all\n\n--base=evil\n\nFixes #7\n{FORGED}")
    bob.snap()
    shown = tree(home, bob.snapshot)
    home.git("tag", "-a", "-m", "not for the remote", "v9")
    home.git("config", "push.followTags", "true")
    refs = remote(forge, "for-each-ref")
    asked = Inside(home.root)("merge", "bob", "--pr")
    assert asked.code == 2
    named, refused = asked.err.splitlines()
    assert named.endswith("in your CI: .github/workflows/ci.yml, .husky/pre-push")
    assert "it is pushed to crew/bob of upstream, for a pull request into main" in refused
    assert (remote(forge, "for-each-ref"), (forge / "gh.log").exists()) == (refs, False)
    environment = {**clean_environment(), "PATH": os.environ["PATH"]}
    with terminal([*COMMAND, "merge", "bob", "--pr"], home.root, environment) as child:
        child.expect_exact("as shown to crew/bob of upstream, for a pull request into main? [y/N]")
        said = child.before.decode()
        assert said.index(".github/workflows/ci.yml, .husky/pre-push") < said.index("+on: push")
        bob.write("evil", "")
        bob.snap()
        child.sendline("y")
        child.expect_exact("https://forge.invalid/pull/1")
        child.expect(pexpect.EOF)
    pushed = remote(forge, "rev-parse", "refs/heads/crew/bob")
    assert remote(forge, "for-each-ref").splitlines() == [f"{pushed} commit\trefs/heads/crew/bob", *refs.splitlines()]
    assert remote(forge, "rev-parse", f"{pushed}^{{tree}}") == shown
    _, created = (call.split("\n") for call in (forge / "gh.log").read_text().split("\n--end--\n")[:2])
    assert created[:5] == [
        "pr", "create", "--head=crew/bob", "--base=main", "--title=Say $(touch evil) for `@all`",
    ]  # fmt: skip
    assert {"--body=--base=evil", "Fixes `#7`", "> Signed-off-by: user"} <= {*created}
    assert not (home.root / "evil").exists()
    assert_clean(home)


# ------------------------------------------------------------------------------------------------------------ keys

_KEY = f"sk-ant-api03-{'x' * 71}"
_PEM = f"-----BEGIN PRIVATE KEY-----\nMIIE{'a' * 60}\n{'b' * 20}\n-----END PRIVATE KEY-----\n"


def test_a_merge_names_the_lines_with_keys_before_it_moves_the_branch(home: Home) -> None:
    home.write("old.md", f"{_KEY}\nstays: {_KEY}\n")
    home.commit("keys that are there")
    bob = home.hire("bob")
    bob.write("old.md", f"{_KEY.replace('sk-ant', 'none')}\nstays: {_KEY}\nmore\n")
    bob.write('a "b".md', f"one\n++ two\napi_key = {_KEY}\n")
    bob.write("server.pem", _PEM)
    bob.snap()
    before = home.git("rev-parse", "main")
    warned: list[tuple[str, str]] = []
    done = changes.merge(home.team, "bob", warn=lambda words: warned.append((words, home.git("rev-parse", "main"))))
    assert warned == [
        ('3 lines hold what looks like a key: a "b".md:3, server.pem:2, server.pem:3', before),
    ]
    assert done is not None
    assert [(each.path, each.line) for each in done.keys] == [('a "b".md', 3), ("server.pem", 2), ("server.pem", 3)]
    assert done.keys[0].text == f"api_key = {_KEY}"


@pytest.mark.long
def test_the_command_names_the_lines_with_keys_and_merges(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("secret.md", f"api_key = {_KEY}\n")
    bob.snap()
    run = Inside(home.root)
    words = "1 line holds what looks like a key: secret.md:1; `crewboard changes bob --diff --reveal` shows it\n"
    dry = run("merge", "bob", "--dry-run")
    assert (dry.code, dry.err.startswith(words)) == (0, True)
    done = run("merge", "bob", "--json", "--sha256", _revealed(run("merge", "bob", "--reveal").err))
    assert done.json["keys"] == [{"path": "secret.md", "line": 1}]
    assert done.err == words
    assert _KEY not in done.out
    assert home.read("secret.md") == f"api_key = {_KEY}\n", "it is only a warning"


def _revealed(text: str) -> str:
    """Return the SHA-256 that a text names."""
    named = re.search(r"--sha256 ([0-9a-f]{16})", text)
    assert named is not None, text
    return named[1]


@pytest.mark.long
def test_a_hidden_key_is_revealed_before_a_merge(home: Home) -> None:
    home.write("old.md", f"{_KEY}\n")
    home.commit("a key")
    bob = home.hire("bob")
    # No line with a key is added, but what the diff shows hides one.
    bob.write("old.md", f"{_KEY}\nmore\n")
    bob.snap()
    before, run = home.git("rev-parse", "main"), Inside(home.root)
    hidden = run("changes", "bob", "--json").json[0]["sha256"]
    for said in (run("changes", "bob", "--diff").err, run("merge", "bob", "--dry-run").err):
        assert re.search("`crewboard merge bob[^`]* --reveal` shows it first, then merges it", said)
        assert "--sha256" not in said
    for given in (("--dry-run",), (), ("--json",), ("--reveal",)):
        run("merge", "bob", "--sha256", hidden[:16], *given).refused(65, "a key is hidden in the work of bob")
    for more in ((), ("--json", "--reveal")):
        run("merge", "bob", *more).refused(2, "`crewboard merge bob --into main --reveal` shows it first")
    asked, listed = run("merge", "bob", "--reveal"), run("changes", "bob", "--diff", "--reveal")
    assert (asked.code, "accepts exactly what is shown" in asked.err) == (2, True)
    assert f"│  {_KEY[:40]}" in asked.out
    assert _revealed(asked.err) == _revealed(listed.err) != hidden[:16]
    assert home.git("rev-parse", "main") == before
    assert run("merge", "bob", "--sha256", _revealed(asked.err)).code == 0
    assert home.read("old.md") == f"{_KEY}\nmore\n"


@pytest.mark.long
def test_a_merge_without_a_key_warns_of_nothing(home: Home) -> None:
    work(home)
    done = Inside(home.root).agree("merge", "bob", "--json")
    assert done.json["keys"] == []
    assert done.err == ""


@pytest.mark.long
def test_keys_are_named_before_a_pull_request_is_pushed(home: Home, forge: Path) -> None:
    bob = home.hire("bob")
    bob.write("secret.md", f"api_key = {_KEY}\n")
    bob.snap()
    warned: list[tuple[str, str]] = []
    made = changes.open_pull_request(
        home.team, "bob", warn=lambda words: warned.append((words, remote(forge, "for-each-ref", "refs/heads/crew")))
    )
    assert warned == [("1 line holds what looks like a key: secret.md:1", "")]
    assert made is not None
    assert [each.line for each in made.keys] == [1]
    asked = Inside(home.root)("merge", "bob", "--pr", "--reveal")
    assert re.search("merge bob --pr --into main --sha256", asked.err)
    run = Inside(home.root)("merge", "bob", "--pr", "--json", "--sha256", _revealed(asked.err))
    assert (run.json["keys"], _KEY in run.out) == ([{"path": "secret.md", "line": 1}], False)


@pytest.mark.long
def test_a_lead_makes_no_branch_that_git_takes_for_another(home: Home) -> None:
    work(home)
    home.git("remote", "add", "up/stream", "elsewhere")
    home.git("tag", "v1")
    home.git("symbolic-ref", "refs/heads/unborn", "refs/heads/none")
    commit = home.git("rev-parse", "--short", "HEAD")
    before = home.git("for-each-ref")
    names = ["up/stream/main", "up/stream", "v1", "@", "stash", "FETCH_HEAD", "heads/main", "tags/v2", commit, "unborn"]
    for name in names:
        with pytest.raises(UsageError, match=r"choose another name|cannot name a branch"):
            changes.merge_into_branch(home.team, "bob", name)
    assert home.git("for-each-ref") == before
    assert changes.merge_into_branch(home.team, "bob", "upstream") is not None


def test_a_symbolic_ref_moves_no_branch_that_is_checked_out(home: Home) -> None:
    work(home)
    home.git("symbolic-ref", "refs/heads/master", "refs/heads/main")
    home.git("update-ref", "refs/remotes/up/main", "main")
    home.git("symbolic-ref", "refs/heads/theirs", "refs/remotes/up/main")
    with pytest.raises(UsageError, match="master is checked out"):
        changes.merge_into_branch(home.team, "bob", "master")
    with pytest.raises(UsageError, match="stands for refs/remotes/up/main, which is no branch"):
        changes.merge(home.team, "bob", into="theirs")
    done = changes.merge(home.team, "bob", into="master")
    assert done is not None
    assert done.acceptance.ref == "refs/heads/main"
    assert home.read("bob/new.txt") == "new\n", "the working tree goes with it"
    assert_clean(home)


FORGED = "Say three\n\nFor @all: closes #1 <!-- x -->\n\nSigned-off-by: user\nCo-authored-by: boss <boss@x>"


@pytest.mark.parametrize("how", REBASE)
def test_what_acts_in_an_agents_message_is_quoted(home: Home, how: How) -> None:
    bob = home.hire("bob")
    bob.write("new.txt", "new\n")
    bob.commit(f"{FORGED}\N{RIGHT-TO-LEFT OVERRIDE}")
    bob.snap()
    done = changes.merge(home.team, "bob", how=how)
    assert done is not None
    assert done.message.splitlines() == [
        "Say three", "", "For `@all`: closes `#1` `<!--` x `-->`", "",
        "> Signed-off-by: user", "> Co-authored-by: boss <boss@x>?", "",
        "Co-authored-by: bob (crewboard) <bob@crewboard.invalid>",
    ]  # fmt: skip


def test_a_message_of_the_user_is_not_quoted(home: Home) -> None:
    work(home)
    done = changes.merge(home.team, "bob", message=FORGED)
    assert done is not None
    assert done.message.startswith(FORGED)


@pytest.mark.long
def test_what_ci_and_hooks_run_is_named_before_a_push(home: Home, forge: Path) -> None:
    bob = home.hire("bob")
    bob.write(".github/workflows/ci.yml", "on: push\n")
    bob.write("new.txt", "new\n")
    bob.snap()
    said = "bob changed what runs on your machine or in your CI: .github/workflows/ci.yml"
    run = Inside(home.root)
    assert run("changes", "bob").err.splitlines() == [said]
    # The push fails.
    home.git("remote", "set-url", "upstream", str(forge / "gone.git"))
    assert run("merge", "bob", "--pr").err.splitlines()[0] == said
    assert said in run("merge", "bob").err.splitlines()


async def test_a_lead_is_told_of_keys_and_of_the_review(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    bob = home.hire("bob")
    bob.write("secret.md", f"api_key = {_KEY}\n")
    bob.snap()
    bob.approved(since=bob.base, at=9.0)
    merge = changes.merge_into_branch(home.team, "bob", "integration")
    monkeypatch.setattr(changes, "merge_into_branch", lambda *_, **__: merge)
    monkeypatch.setattr(team_tools, "_team", lambda _: home.team)
    given: Any = SimpleNamespace(teammate="bob", into="integration", message=None, sha256="")
    said = await team_tools.accept_changes.run(cast("Any", None), given)
    assert f"; reviewed by qa {format_minute(9.0)}; 1 line holds what looks like a key: secret.md:1" in said.content


@pytest.mark.long
def test_a_sparse_working_tree_stays_sparse(home: Home) -> None:
    home.write("far/a.txt", "one\n")
    home.write("near/b.txt", "b\n")
    home.commit("more")
    home.git("sparse-checkout", "set", "near")
    bob = work(home)
    bob.write("near/b.txt", "b by bob\n")
    bob.write("far/a.txt", "two\n")
    bob.snap()
    assert changes.merge(home.team, "bob") is not None
    assert (home.read("near/b.txt"), (home.root / "far").exists()) == ("b by bob\n", False)
    assert_clean(home)
    assert home.git("show", "HEAD:far/a.txt") == "two"
    changes.undo(home.team)
    assert (home.read("near/b.txt"), (home.root / "far").exists()) == ("b\n", False)
    assert_clean(home)
