"""Agents that work in checkouts of their own: hired, at work, resumed."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard.commands import answers, changes, messages, stop, tasks
from crewboard.commands import hire as hiring
from crewboard.records import HireOptions, SnapshotTaken, ToolResult, UsageError
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.level import Level
from crewboard.sandbox.sandbox import open_sandbox
from crewboard.store import TeamDirectory, agents, roster
from crewboard.store import tasks as store_tasks
from crewboard.worktrees import acceptance, snapshot
from tests import system
from tests.crew import Crew, eventually
from tests.model import calls, says
from tests.sandbox.targets import run
from tests.worktrees.conftest import Hired, git, write

Made = Callable[..., Crew]


@pytest.fixture
def made(crew_on: Made, tmp_path: Path) -> Made:
    """Return a function that makes a team in a repository with one commit."""
    system.need_program("git")

    def make(*script: object, **environment: str) -> Crew:
        crew = crew_on(script, **environment)
        git(tmp_path, "init", "-q", "-b", "main")
        write(tmp_path, {"api.py": "one\ntwo\nthree\n", "pkg/core.py": "x = 1\n", ".gitignore": ".crewboard/\n"})
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "Begin")
        return crew

    return make


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def snapshots_of(crew: Crew, name: str) -> list[SnapshotTaken]:
    return [event for event in crew.events(name) if isinstance(event, SnapshotTaken)]


def test_a_check_runs_in_the_checkout(made: Made) -> None:
    check = "pwd; cat done.txt"
    crew = made(
        calls("write_file", path="done.txt", content="done\n"),
        calls("task_update", task_id=1, status="completed"),
        says("done"),
    )
    task = tasks.add_task(crew.team, "work", check=check)
    crew.run("bob", "code", "work", worktree=True, task=task.id)
    assert results_of(crew, "bob")[-1].content == f"task 1 is completed: its check `{check}` passed"
    done = store_tasks.load(crew.directory, task.id)
    assert done.checked is not None
    tree = crew.directory.worktree("bob")
    assert (crew.directory.path / done.checked.result).read_text() == f"$ {check}\n{tree}\ndone\n[exit code 0]\n"
    assert not (crew.root / "done.txt").exists()


def test_files_and_commands_see_the_checkout_alone(made: Made) -> None:
    crew = made(
        calls("write_file", path="new.py", content="y = 1\n"),
        calls("bash", command=f"pwd; ls {Path.cwd().anchor}; echo 3 >> api.py; cat new.py"),
        says("done"),
    )
    write(crew.root, {"private.txt": "not committed\n"})
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    tree = crew.directory.worktree("bob")
    written, ran = results_of(crew, "bob")
    assert not written.is_error, written.content
    assert ran.content.splitlines()[0] == str(tree.resolve())
    assert "y = 1" in ran.content
    assert (tree / "api.py").read_text().endswith("three\n3\n")
    assert not (crew.root / "new.py").exists()
    assert (crew.root / "api.py").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("level", ["bubblewrap", "landlock"])
def test_the_root_and_other_checkouts_are_out_of_reach(level: Level, directory: TeamDirectory, hired: Hired) -> None:
    spec = hired("bob")
    hired("eve")
    root, eve = directory.root, directory.worktree("eve")
    tried = f"""
        cat {root}/api.py {root}/.git/config {eve}/api.py {directory.config}; ls -A {root} {directory.path}
        echo x > {root}/new; echo x > {eve}/new; echo x > {root}/.git/objects/new; echo x >> api.py
        git log --format='%s' && cat api.py
    """
    with open_sandbox(
        directory, "bob", spec.model_copy(update={"flags": HireOptions(unsafe_no_sandbox=True)})
    ) as opened:
        # As for a project that is not below a home or a folder of temporary files, which are hidden anyway.
        policy = replace(opened.policy, host=replace(opened.policy.host, hidden=()))
        system.need(level, {"bubblewrap": bubblewrap, "landlock": landlock}[level].unavailable_reason(policy))
        printed = run(replace(opened, level=level, policy=policy), tried).content
    assert printed.splitlines()[-6:-1] == ["Begin", "one", "two", "three", "x"]
    assert "[core]" not in printed
    assert printed.count("three") == 1
    assert not [path for path in (root / "new", eve / "new", root / ".git/objects/new") if path.exists()]


def test_each_assignment_begins_and_ends_with_a_snapshot(made: Made) -> None:
    crew = made(calls("write_file", path="new.py", content="y = 1\n"), says("done"))
    assignment = crew.hire("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.answer(assignment)
    eventually(lambda: len(snapshots_of(crew, "bob")) == 2 or None, "the two snapshots")
    begin, end = snapshots_of(crew, "bob")
    assert (begin.at, end.at) == ("begin", "end")
    assert begin.assignment == end.assignment == assignment.id
    assert git(crew.root, "diff", "--name-status", begin.commit, end.commit) == "A\tnew.py"
    assert git(crew.root, "rev-parse", "refs/crew/bob") == end.commit


def test_an_agent_can_commit_on_its_branch(made: Made) -> None:
    system.need_program("bwrap")
    crew = made(calls("bash", command="echo 4 >> api.py && git commit -qam 'Add four' && git status"), says("done"))
    crew.run("bob", "code", "work", worktree=True)
    (ran,) = results_of(crew, "bob")
    assert not ran.is_error, ran.content
    spec = agents.spec(crew.agent("bob"))
    assert spec is not None
    taken = snapshot.take(crew.directory, "bob", spec)
    assert git(crew.root, "log", "-1", "--format=%s", taken.head) == "Add four"


def test_a_new_checkout_is_set_up_once(made: Made) -> None:
    crew = made(says("done"), says("done"))
    roster.change(
        crew.directory, lambda config: setattr(config, "worktree_setup", "echo made >> pkg/setup.txt; exit 3")
    )
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    (asked,) = crew.model.asked_by("bob")
    assert "which sets up your checkout, failed" in str(asked["messages"])
    hiring.resume(crew.team, "bob")
    crew.wait_for("bob", "idle", "exited")
    assert (crew.directory.worktree("bob") / "pkg/setup.txt").read_text() == "made\n"


def test_a_long_message_can_be_read_in_a_checkout(made: Made) -> None:
    crew = made(calls("read_file", path=".crewboard/default/results/long.md"), says("done"))
    crew.directory.results.mkdir(parents=True, exist_ok=True)
    (crew.directory.results / "long.md").write_text("a long message\n")
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    (read,) = results_of(crew, "bob")
    assert "a long message" in read.content


def test_a_checkout_is_named_by_its_absolute_path_too(made: Made, tmp_path: Path) -> None:
    path = tmp_path / ".crewboard/default/worktrees/bob/api.py"
    crew = made(calls("read_file", path=str(path)), calls("read_file", path=str(tmp_path / "api.py")), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    own, roots = results_of(crew, "bob")
    assert "two" in own.content
    assert "outside the workspace" in roots.content


def test_without_a_repository_the_agent_works_in_the_shared_tree_and_that_is_said(crew_on: Made) -> None:
    crew = crew_on([says("done")])
    assignment = crew.hire("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    assert "bob works in the shared tree" in assignment.note
    spec = agents.spec(crew.agent("bob"))
    assert spec is not None
    assert (spec.worktree, spec.flags.worktree) == (None, False)
    crew.answer(assignment)


def test_the_team_and_the_type_decide_unless_the_hire_says_otherwise(made: Made) -> None:
    crew = made(says("done"))
    roster.change(crew.directory, lambda config: setattr(config, "worktree", "always"))

    def worktree_of(name: str, kind: str, given: frozenset[str]) -> str | None:
        options = HireOptions(unsafe_no_sandbox=True, once=True)
        crew.answer(hiring.spawn(crew.team, hiring.Hire(name, kind, "work", flags=options, given=given)))
        spec = agents.spec(crew.agent(name))
        return spec.worktree.branch if spec and spec.worktree else None

    assert worktree_of("amy", "code", frozenset()) == "crew/amy"
    assert worktree_of("ben", "explore", frozenset()) is None
    assert worktree_of("cid", "code", frozenset({"worktree"})) is None


def test_a_resume_makes_a_lost_checkout_again_from_its_last_snapshot(made: Made) -> None:
    crew = made(calls("write_file", path="new.py", content="y = 1\n"), says("done"), says("again"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    shutil.rmtree(crew.directory.worktree("bob"))
    hiring.resume(crew.team, "bob")
    tree = crew.directory.worktree("bob")
    assert (tree / "new.py").read_text() == "y = 1\n"
    assert git(tree, "status", "--porcelain") == "A  new.py"
    assert git(tree, "branch", "--show-current") == "crew/bob"


def test_work_in_a_checkout_is_not_lost_to_a_hire_without_one(made: Made) -> None:
    crew = made(says("done"), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    with pytest.raises(UsageError, match="bob has a worktree"):
        crew.hire("bob", "code", "more", unsafe_no_sandbox=True)


def test_after_a_discard_an_agent_is_hired_with_or_without_a_checkout(made: Made) -> None:
    crew = made(calls("write_file", path="new.py", content="y = 1\n"), says("done"), says("done"), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    git(crew.root, "commit", "-q", "--allow-empty", "-m", "Go on")
    changes.discard(crew.team, "bob")
    crew.run("bob", "code", "more", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    (found,) = changes.list_changes(crew.team)
    assert (found.base, found.files) == (git(crew.root, "rev-parse", "HEAD"), ())
    changes.discard(crew.team, "bob")
    crew.run("bob", "code", "more", unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    assert changes.list_changes(crew.team) == []
    assert not crew.directory.worktree("bob").exists()


def test_the_work_of_a_real_checkout_is_merged_and_taken_back(made: Made) -> None:
    crew = made(calls("write_file", path="new.py", content="y = 1\n"), says("done"))
    git(crew.root, "config", "user.name", "Kim")
    git(crew.root, "config", "user.email", "kim@example.invalid")
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    before = git(crew.root, "rev-parse", "HEAD^{tree}")
    # As a command does that may commit. No assignment's snapshot has it.
    tree = crew.directory.worktree("bob")
    write(tree, {"late.py": "z = 1\n", "api.py": "one\ntwo\nthree\nfour\n"})
    git(tree, "rm", "-q", "pkg/core.py")
    git(tree, "commit", "-qm", "Say four", "api.py")
    done = changes.merge(crew.team, "bob", how="rebase")
    assert done is not None
    assert [each.path for each in done.changes.files] == ["api.py", "late.py", "new.py", "pkg/core.py"]
    assert (crew.root / "late.py").exists()
    assert not (crew.root / "pkg").exists()
    assert git(crew.root, "log", "--format=%an %s") == "Kim Uncommitted work of bob\nKim Say four\nKim Begin"
    assert git(crew.root, "status", "--porcelain") == ""
    changes.undo(crew.team)
    assert git(crew.root, "rev-parse", "HEAD^{tree}") == before
    assert git(crew.root, "status", "--porcelain") == ""
    crew.end()
    with pytest.raises(UsageError, match="unmerged work in 4 files"):
        stop.remove(crew.team, "bob")


def test_a_lead_brings_work_together_on_a_branch_that_is_not_checked_out(made: Made) -> None:
    crew = made()
    crew.model.give("bob", calls("write_file", path="new.py", content="y = 1\n"), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    accept = calls("accept_changes", teammate="bob")
    crew.model.give("lead", calls("list_changes"), calls("read_diff", teammate="bob"), accept, says("refused"))
    crew.run("lead", "lead", "bring it together", unsafe_no_sandbox=True)
    listed, diff, refused = results_of(crew, "lead")
    assert listed.content == "bob: +1 -0 in 1 file, 0 behind, merges cleanly\n  added new.py"
    assert "+y = 1" in diff.content
    assert "no tool 'accept_changes'" in refused.content
    answers.change_setting(crew.team, "lead_merges", "on")
    onto_main = calls("accept_changes", teammate="bob", into="main")
    crew.model.give("lead", onto_main, accept, calls("accept_changes", teammate="bob"), says("done"))
    crew.answer_to("lead", messages.send(crew.team, "lead", "now you may").id)
    checked_out, merged, again = results_of(crew, "lead")[3:]
    assert "main is checked out" in checked_out.content
    assert "bob is merged into integration" in merged.content
    assert again.content == "integration has all that bob changed"
    assert git(crew.root, "show", "integration:new.py") == "y = 1"
    assert git(crew.root, "status", "--porcelain") == ""
    assert [each.by for each in acceptance.load(crew.directory).acceptances] == ["lead"]
