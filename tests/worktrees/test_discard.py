"""Unmerged work of an agent is lost only if the user says so."""

import os
import shutil
from unittest.mock import Mock

import pytest

from crewboard.commands import changes, hire, stop
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records.agents import Worktree
from crewboard.records.team import Checked
from crewboard.store import agents, leases, operators, tasks
from crewboard.worktrees.repository import NoRepositoryError
from crewboard_tui.cli import program
from tests.cli.files import enlist
from tests.cli.shell import Inside
from tests.worktrees.home import Home
from tests.worktrees.test_merging import SOME, work


def refs(home: Home) -> list[str]:
    return home.git("for-each-ref", "--format=%(refname)", "refs/crew").splitlines()


def checkout(home: Home, name: str = "bob") -> None:
    """Make a folder in place of a checkout, which no command looks into."""
    (home.directory.worktree(name) / "src").mkdir(parents=True)


def test_an_agent_with_unmerged_work_is_not_removed(home: Home) -> None:
    work(home)
    with pytest.raises(UsageError, match=r"unmerged work in 3 files.*merge bob.*discard bob --yes`"):
        stop.remove(home.team, "bob")
    with pytest.raises(UsageError, match="unmerged work"):
        stop.delete(home.team, purge=True)
    assert home.team.config.names == ["bob"]
    stop.delete(home.team)


def test_work_of_an_agent_whose_spec_is_lost_is_kept(home: Home) -> None:
    work(home)
    home.directory.agent("bob").spec.put(b'{"sch')
    for end in (lambda: stop.remove(home.team, "bob"), lambda: stop.delete(home.team, purge=True)):
        with pytest.raises(UsageError, match=r"bob has unmerged work in 3 files"):
            end()
    # What it was hired with is not known, so it may not go on, in which tree ever.
    stop.want_killed(home.team, "bob")
    with pytest.raises(BadDataError, match=r"does not say what bob was hired with.* remove bob`"):
        hire.resume(home.team, "bob")
    assert [each.agent for each in changes.list_changes(home.team)] == ["bob"]
    changes.merge(home.team, "bob")
    stop.remove(home.team, "bob")
    assert refs(home) == []


@pytest.mark.long
@pytest.mark.parametrize("how", SOME)
def test_a_merged_agent_is_removed_with_its_refs(home: Home, how: str) -> None:
    work(home)
    Inside(home.root).agree("merge", "bob", f"--{how}")
    stop.remove(home.team, "bob")
    assert refs(home) == []


@pytest.mark.long
def test_work_in_another_branch_is_merged(home: Home) -> None:
    work(home)
    home.git("branch", "release")
    changes.merge(home.team, "bob", into="release")
    assert changes.unmerged(home.team, "bob") is None
    changes.undo(home.team)
    assert changes.unmerged(home.team, "bob") is not None


def test_work_whose_merge_the_user_threw_away_is_unmerged(home: Home) -> None:
    work(home)
    changes.merge(home.team, "bob")
    home.git("reset", "-q", "--hard", "HEAD^")
    assert changes.unmerged(home.team, "bob") is not None


def test_work_that_the_user_merged_by_hand_is_merged(home: Home) -> None:
    bob = work(home)
    home.git("merge", "-q", "--squash", bob.snapshot)
    assert home.commit("by hand")
    assert changes.unmerged(home.team, "bob") is None


def test_work_after_the_merge_is_unmerged(home: Home) -> None:
    bob = work(home)
    changes.merge(home.team, "bob")
    bob.write("more", "x\n")
    bob.snap()
    left = changes.unmerged(home.team, "bob")
    assert left is not None
    assert [each.path for each in left.files] == ["more"]


def test_a_purge_that_is_refused_does_not_say_that_it_ends_workers(home: Home) -> None:
    work(home)
    assert leases.take(home.directory.agent("bob").lease) is not None
    Inside(home.root)("team", "delete", "default", "--purge").refused(2, "unmerged work")


def test_a_purge_removes_the_refs(home: Home) -> None:
    work(home)
    changes.merge(home.team, "bob")
    stop.delete(home.team, purge=True)
    assert refs(home) == []
    assert not home.directory.path.exists()


def test_discard_throws_the_work_away_and_names_its_commit(home: Home) -> None:
    bob = work(home)
    head = home.git("rev-parse", "HEAD")
    assert changes.discard(home.team, "bob") == bob.snapshot
    assert refs(home) == []
    assert home.git("rev-parse", "HEAD") == head
    assert changes.unmerged(home.team, "bob") is None
    stop.remove(home.team, "bob")


def test_another_word_than_the_name_throws_nothing_away(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bob = work(home)
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    monkeypatch.setattr("click.prompt", lambda *_, **__: "wrong")
    assert program.run(["--root", str(home.root), "discard", "bob"]) == 130
    assert capsys.readouterr().err.endswith("that is not its name: nothing was thrown away\n")
    assert bob.snapshot in home.git("for-each-ref", "--format=%(objectname)", "refs/crew")


def test_discarded_work_is_not_listed_any_more(home: Home) -> None:
    work(home)
    changes.discard(home.team, "bob")
    assert changes.list_changes(home.team) == []
    run = Inside(home.root)
    assert run("changes", "--json").json == []
    assert "bob has no checkout: it was discarded" in run("changes", "bob").err
    assert run("changes", "bob", "--json").json == []


@pytest.mark.long
def test_what_was_discarded_after_an_undo_blocks_no_removal(home: Home) -> None:
    work(home, "ann")
    changes.merge(home.team, "ann")
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    changes.undo(home.team)
    run = Inside(home.root)
    run("remove", "bob").refused(2, "bob has unmerged work in 1 file (+1 -0)")
    assert run("discard", "bob", "--yes").code == 0
    run("merge", "bob").refused(65, bob.snapshot[:12])
    assert run("discard", "bob").out == "bob has no work to throw away: it has no checkout\n"
    # The second one does not hide the commit.
    run("merge", "bob").refused(65, bob.snapshot[:12])
    assert changes.discard(home.team, "ann")
    stop.remove(home.team, "bob")
    stop.delete(home.team, purge=True)


def test_discarded_work_blocks_no_removal_without_its_base(home: Home) -> None:
    bob = work(home)
    changes.discard(home.team, "bob")
    spec = home.directory.agent("bob").spec.load()
    assert spec is not None
    gone = Worktree(branch="crew/bob", base=bob.base.translate(str.maketrans("0123456789", "1234567890")))
    home.directory.agent("bob").spec.save(spec.replace(worktree=gone))
    stop.remove(home.team, "bob")


def test_a_running_agent_is_not_discarded(home: Home) -> None:
    work(home)
    assert leases.take(home.directory.agent("bob").lease) is not None
    with pytest.raises(TryLaterError, match="stop it first"):
        changes.discard(home.team, "bob")


def test_discard_asks_unless_all_is_merged(home: Home) -> None:
    work(home)
    run = Inside(home.root)
    run("discard", "bob").refused(2, "unmerged", "--yes")
    assert run.agree("merge", "bob").code == 0
    assert run("discard", "bob").code == 0
    run("discard", "ann", "--yes").refused(2, "ann")


def test_discard_works_without_a_repository(home: Home) -> None:
    work(home)
    (home.root / ".git").rename(home.root.parent / "gone")
    with pytest.raises(NoRepositoryError, match="not in a git repository"):
        changes.list_changes(home.team)
    changes.discard(home.team, "bob")
    stop.remove(home.team, "bob")


@pytest.mark.long
def test_what_is_left_of_removed_agents_is_pruned(home: Home) -> None:
    for name in ("ann", "bob"):
        work(home, name)
    run = Inside(home.root)
    run.agree("merge", "bob")
    for name in ("ann", "bob"):
        # As if they had been removed by another version.
        home.forget(name)
    listed = run("worktree", "list", "--json").json
    assert [(each["name"], each["removed"], each["merged"]) for each in listed] == [
        ("ann", True, False),
        ("bob", True, True),
    ]
    assert run("worktree", "prune", "--json").json == {"pruned": ["bob"], "kept": ["ann"]}
    assert "refs/crew/ann" in refs(home)
    assert "`crewboard discard ann --yes`" in run("worktree", "prune").err
    assert run("discard", "ann", "--yes").code == 0
    assert refs(home) == []


def test_worktrees_in_words(home: Home) -> None:
    run = Inside(home.root)
    assert run("worktree", "list").err.startswith("no agent has a worktree")
    work(home)
    assert run("worktree", "list").out.splitlines()[1].split() == ["bob", "+2", "-2", "no", "checkout"]


@pytest.mark.long
def test_merge_undo_and_discard_are_recorded(home: Home) -> None:
    bob = work(home)
    run = Inside(home.root).with_environment(CREWBOARD_OPERATOR="kim")
    said = run.agree("merge", "bob", "--json").json
    assert (said["agent"], said["how"], said["branch"], said["before"]) == ("bob", "squash", "main", bob.base)
    assert run("merge", "bob", "--json").json is None
    assert run("merge", "bob").out == "nothing to merge: all of the work of bob is there already\n"
    assert run("undo").out.startswith("took back the merge of bob: main reset to")
    assert run("discard", "bob", "--yes").code == 0
    found, _ = operators.acts(home.directory)
    assert [(act.who, act.act, act.target, act.detail) for act in found] == [
        ("kim", "merge", "bob", f"squash into main, {said['commit'][:12]}"),
        ("kim", "undo", "bob", f"reset main, {bob.base[:12]}"),
        ("kim", "discard", "bob", bob.snapshot[:12]),
    ]


@pytest.mark.long
def test_refusals_have_their_exit_codes(home: Home) -> None:
    work(home)
    run = Inside(home.root)
    run("undo").refused(2, "no merge to undo")
    run("merge", "ann").refused(2, "no agent")
    home.write("api.py", "mine\n")
    run("merge", "bob").refused(65, "api.py")
    home.commit("mine")
    run("merge", "bob").refused(65, "conflicts", "api.py")


@pytest.mark.long
def test_an_undo_after_a_discard_makes_no_deletion_of_the_work_that_was_merged(home: Home) -> None:
    bob = home.hire("bob")
    for name in ("one", "two"):
        bob.write(f"{name}.txt", f"{name}\n")
        bob.snap()
        changes.merge(home.team, "bob")
    checkout(home)
    changes.discard(home.team, "bob")
    changes.undo(home.team, "bob")
    assert "refs/crew/+merged/bob" not in refs(home)
    checkout(home)
    (found,) = changes.list_changes(home.team)
    assert found.files == ()
    assert changes.merge(home.team, "bob", now=True) is None
    assert home.git("ls-files", "one.txt") == "one.txt"


def test_a_merge_after_a_discard_says_that_the_work_was_discarded(home: Home) -> None:
    bob = work(home)
    run = Inside(home.root)
    assert run("discard", "bob", "--yes").code == 0
    for options in ((), ("--dry-run",)):
        run("merge", "bob", *options).refused(
            65, "the work of bob was discarded", bob.snapshot[:12], "nothing to merge"
        )


@pytest.mark.long
def test_a_failed_check_that_is_not_set_any_more_blocks_no_merge(home: Home) -> None:
    work(home)
    red = Checked(at=5.0, command="make test", exit_code=2)
    agents.save_checked(home.directory.agent("bob"), red, "make test")
    run = Inside(home.root)
    assert run("settings", "check", "make test").code == 0
    run("merge", "bob").refused(65, "crewboard check bob", "merge bob --unchecked")
    assert run("settings", "check", "none").code == 0
    assert run("changes", "bob", "--json").json[0]["check"] is None
    assert run.agree("merge", "bob").code == 0


def test_a_failed_check_of_a_task_that_ended_is_not_said_to_run_again(home: Home) -> None:
    work(home)
    task = tasks.add(home.directory, "work", 1.0, owner="bob", check="make test")
    agents.save_checked(home.directory.agent("bob"), Checked(at=5.0, command="make test", exit_code=2), None)
    tasks.update(home.directory, task.id, "operator", 2.0, status="completed")
    ran = Inside(home.root).agree("merge", "bob")
    ran.refused(65, "failed last", "merge bob --unchecked")
    assert "crewboard check bob" not in ran.err


def test_there_is_no_merge_to_undo_before_there_is_a_team(home: Home) -> None:
    shutil.rmtree(home.directory.path)
    Inside(home.root)("undo").refused(2, "no merge to undo")


def test_undo_of_an_unknown_agent_lists_the_agents(home: Home) -> None:
    work(home)
    Inside(home.root)("undo", "nemo").refused(2, "there is no agent 'nemo' on this team; its agents are bob")


def test_a_merge_with_conflicts_says_how_the_agent_resolves_them(home: Home) -> None:
    work(home)
    home.write("api.py", "mine\n")
    home.commit("mine")
    Inside(home.root)("merge", "bob").refused(65, "api.py", "`crewboard merge bob --resolve` asks bob to resolve")


def test_discard_says_first_what_must_be_done_first(home: Home) -> None:
    work(home)
    lease = leases.take(home.directory.agent("bob").lease)
    assert lease is not None
    run = Inside(home.root)
    run("discard", "bob").refused(75, "bob is alive; stop it first")
    os.close(lease.descriptor)
    enlist(home.team, "fay")
    run("discard", "fay").refused(2, "fay has no worktree")


def test_a_purge_names_all_agents_with_unmerged_work(home: Home) -> None:
    for name in ("ann", "bob"):
        work(home, name)
    Inside(home.root)("team", "delete", "default", "--purge").refused(
        2, "ann has unmerged work", "bob has unmerged work", "crewboard team delete default --purge --discard"
    )


def test_a_purge_that_discards_names_what_it_throws_away(home: Home) -> None:
    work(home)
    cli = Inside(home.root)
    cli("team", "delete", "default", "--discard").refused(2, "--discard goes with --purge")
    ran = cli("team", "delete", "default", "--now", "--purge", "--discard")
    assert ran.code == 0
    assert "bob has unmerged work in 3 files (+2 -2), which is thrown away" in ran.err
    assert refs(home) == []
    assert not home.directory.path.exists()


@pytest.mark.long
def test_undo_of_several_commits_names_them_all(home: Home) -> None:
    bob = work(home)
    bob.commit("Drop README")
    bob.snap()
    changes.merge(home.team, "bob", how="rebase")
    home.write("user.txt", "mine\n")
    home.commit("mine")
    changes.undo(home.team)
    said = home.git("log", "-1", "--format=%B")
    assert said.startswith("Revert the work of bob\n")
    assert [line.split(" ", 2)[2] for line in said.splitlines() if line.startswith("* ")] == [
        "Say three",
        "Drop README",
    ]


@pytest.mark.long
def test_a_merge_of_work_that_waits_for_a_review_says_so(home: Home) -> None:
    work(home)
    task = tasks.add(home.directory, "pages", 1.0, owner="bob", review="operator")
    tasks.claim(home.directory, task.id, "bob", "code", 2.0)
    record = home.directory.task(task.id)
    record.save(tasks.load(home.directory, task.id).replace(in_review="review-1"))
    run = Inside(home.root)
    for options in (("--dry-run",), ()):
        assert "task 1 waits for the review of operator: pages" in run.agree("merge", "bob", *options).err
