"""The work of an agent comes into the user's branch as git itself would merge it, and goes back."""

from collections.abc import Callable

import pytest

from crewboard.commands import changes
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records import Acceptances, Checked, How, Status
from crewboard.store import agents, json_files, leases, tasks
from crewboard.worktrees import acceptance
from tests.worktrees.home import AgentWork, Home

HOWS: list[How] = ["squash", "merge", "rebase"]


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


@pytest.mark.parametrize("how", HOWS)
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


@pytest.mark.parametrize("how", HOWS)
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


@pytest.mark.parametrize("how", HOWS)
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


@pytest.mark.parametrize("how", HOWS)
def test_the_result_is_what_git_merges(home: Home, how: How) -> None:
    bob = work(home)
    home.write("api.py", home.read("api.py").replace("line 17\n", "seventeen\n"))
    home.write("user.txt", "mine\n")
    tip = home.commit("mine")
    expected = home.git("merge-tree", "--write-tree", tip, bob.snapshot)
    changes.merge(home.team, "bob", how=how)
    assert tree(home) == expected
    assert_clean(home)


@pytest.mark.parametrize("how", HOWS)
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
    lease = leases.take(home.directory.lock("acceptance"))
    assert lease is not None
    with pytest.raises(TryLaterError, match="another merge"):
        changes.merge(home.team, "bob")


@pytest.mark.parametrize("how", HOWS)
def test_work_that_is_there_already_is_not_merged_again(home: Home, how: How) -> None:
    work(home)
    assert changes.merge(home.team, "bob", how=how) is not None
    tip = home.git("rev-parse", "HEAD")
    assert changes.merge(home.team, "bob", how=how) is None
    assert home.git("rev-parse", "HEAD") == tip
    (found,) = changes.list_changes(home.team)
    assert (found.files, found.applies) == ((), True)


@pytest.mark.parametrize("how", HOWS)
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


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("later", [False, True])
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


@pytest.mark.parametrize("how", HOWS)
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
    with pytest.raises(UsageError, match="no branch"):
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
    json_files.save(agent.status, Status(run=1, pid=1, state="working", since=1))
    with pytest.raises(TryLaterError, match="--now"):
        changes.merge(home.team, "bob")
    assert changes.merge(home.team, "bob", now=True) is not None
    assert agents.status(agent) is not None


def test_a_preview_changes_nothing(home: Home) -> None:
    work(home)
    before = home.git("for-each-ref"), home.git("status", "--porcelain")
    done = changes.merge(home.team, "bob", dry_run=True)
    assert done is not None
    assert len(done.changes.files) == 3
    assert (home.git("for-each-ref"), home.git("status", "--porcelain")) == before
    assert acceptance.load(home.directory) == Acceptances()


def test_an_agent_cannot_change_the_folder_of_teams(home: Home) -> None:
    bob = home.hire("bob")
    bob.write(".Crewboard/agents/evil.md", "x\n")
    bob.snap()
    with pytest.raises(BadDataError, match="agents may not change"):
        changes.merge(home.team, "bob")


def test_hooks_and_signing_do_not_run(home: Home) -> None:
    work(home)
    hook = home.root / ".git/hooks/post-checkout"
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
