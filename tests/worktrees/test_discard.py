"""Unmerged work of an agent is lost only if the user says so."""

import pytest

from crewboard.commands import changes, stop
from crewboard.errors import TryLaterError, UsageError
from crewboard.store import leases, operators
from crewboard.worktrees.repository import NoRepositoryError
from tests.cli.shell import Inside
from tests.worktrees.home import Home
from tests.worktrees.test_acceptance import HOWS, work


def refs(home: Home) -> list[str]:
    return home.git("for-each-ref", "--format=%(refname)", "refs/crew").splitlines()


def checkout(home: Home, name: str = "bob") -> None:
    """Make a folder in place of a checkout, which no command looks into."""
    (home.directory.worktree(name) / "src").mkdir(parents=True)


def test_an_agent_with_unmerged_work_is_not_removed(home: Home) -> None:
    work(home)
    with pytest.raises(UsageError, match=r"unmerged work in 3 files.*merge bob.*discard bob"):
        stop.remove(home.team, "bob")
    with pytest.raises(UsageError, match="unmerged work"):
        stop.delete(home.team, purge=True)
    assert home.team.config.names == ["bob"]
    stop.delete(home.team)


@pytest.mark.parametrize("how", HOWS)
def test_a_merged_agent_is_removed_with_its_refs(home: Home, how: str) -> None:
    work(home)
    Inside(home.root)("merge", "bob", f"--{how}")
    stop.remove(home.team, "bob")
    assert refs(home) == []


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


def test_a_running_agent_is_not_discarded(home: Home) -> None:
    work(home)
    assert leases.take(home.directory.agent("bob").lease) is not None
    with pytest.raises(TryLaterError, match="stop it first"):
        changes.discard(home.team, "bob")


def test_discard_asks_unless_all_is_merged(home: Home) -> None:
    work(home)
    run = Inside(home.root)
    run("discard", "bob").refused(2, "unmerged", "--yes")
    assert run("merge", "bob").code == 0
    assert run("discard", "bob").code == 0
    run("discard", "ann", "--yes").refused(2, "ann")


def test_discard_works_without_a_repository(home: Home) -> None:
    work(home)
    (home.root / ".git").rename(home.root.parent / "gone")
    with pytest.raises(NoRepositoryError, match="not in a git repository"):
        changes.list_changes(home.team)
    changes.discard(home.team, "bob")
    stop.remove(home.team, "bob")


def test_what_is_left_of_removed_agents_is_pruned(home: Home) -> None:
    for name in ("ann", "bob"):
        work(home, name)
    run = Inside(home.root)
    run("merge", "bob")
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
    assert run("discard", "ann", "--yes").code == 0
    assert refs(home) == []


def test_worktrees_in_words(home: Home) -> None:
    run = Inside(home.root)
    assert run("worktree", "list").err.startswith("no agent has a worktree")
    work(home)
    assert run("worktree", "list").out.splitlines()[1].split() == ["bob", "+2", "-2", "no", "checkout"]


def test_merge_undo_and_discard_are_recorded(home: Home) -> None:
    bob = work(home)
    run = Inside(home.root).with_environment(CREWBOARD_OPERATOR="kim")
    said = run("merge", "bob", "--json").json
    assert (said["agent"], said["how"], said["branch"], said["before"]) == ("bob", "squash", "main", bob.base)
    assert run("merge", "bob", "--json").json is None
    assert run("merge", "bob").out.startswith("nothing to merge")
    assert run("undo").out.startswith("took back the merge of bob: main reset to")
    assert run("discard", "bob", "--yes").code == 0
    found, _ = operators.acts(home.directory)
    assert [(act.who, act.act, act.target, act.detail) for act in found] == [
        ("kim", "merge", "bob", f"squash into main, {said['commit'][:12]}"),
        ("kim", "undo", "bob", f"reset main, {bob.base[:12]}"),
        ("kim", "discard", "bob", bob.snapshot[:12]),
    ]


def test_refusals_have_their_exit_codes(home: Home) -> None:
    work(home)
    run = Inside(home.root)
    run("undo").refused(2, "no merge to undo")
    run("merge", "ann").refused(2, "no agent")
    home.write("api.py", "mine\n")
    run("merge", "bob").refused(65, "api.py")
    home.commit("mine")
    run("merge", "bob").refused(65, "conflicts", "api.py")


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
    (found,) = changes.list_changes(home.team)
    assert found.files == ()
    assert changes.merge(home.team, "bob") is None
    assert home.git("ls-files", "one.txt") == "one.txt"
