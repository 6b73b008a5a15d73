"""Agents that work in checkouts of their own: hired, at work, resumed."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard.commands import answers, changes, hosts, messages, put_back, settings, stop, tasks
from crewboard.commands import hire as hiring
from crewboard.commands.context import Team
from crewboard.errors import UsageError
from crewboard.protocol import reviews
from crewboard.readmodel import as_json
from crewboard.readmodel.needs import format_minute
from crewboard.readmodel.team import Need
from crewboard.records.agents import HireOptions
from crewboard.records.events import SnapshotTaken, ToolResult
from crewboard.records.team import Config
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.level import Level
from crewboard.sandbox.sandbox import open_sandbox
from crewboard.store import roster
from crewboard.store import tasks as store_tasks
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import merging, snapshot
from crewboard.worktrees.changes import LastCheck
from tests import system
from tests.cli.shell import Cli, Inside
from tests.crew import Crew, eventually
from tests.model import ModelServer, calls, says
from tests.sandbox.targets import run
from tests.worktrees.conftest import Hired, git, write
from tests.worktrees.home import Home, make_repository

Made = Callable[..., Crew]


@pytest.fixture
def made(crew_on: Made, tmp_path: Path) -> Made:
    """Return a function that makes a team in a repository with one commit."""
    system.need_program("git")

    def make(*script: object, **environment: str) -> Crew:
        crew = crew_on(script, **environment)
        begin(tmp_path)
        return crew

    return make


def begin(root: Path) -> None:
    """Make a folder a repository with one commit."""
    git(root, "init", "-q", "-b", "main", "--template=")
    write(root, {"api.py": "one\ntwo\nthree\n", "pkg/core.py": "x = 1\n", ".gitignore": ".crewboard/\n"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Begin")
    git(root, "config", "user.name", "Kim")
    git(root, "config", "user.email", "kim@example.invalid")


@pytest.fixture(scope="module")
def shared_crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Make one team in such a repository, for tests that hire under names of their own and leave the root alone."""
    system.need_program("git")
    root = tmp_path_factory.mktemp("shared")
    begin(root)
    with ModelServer() as model:
        crew = Crew(root, model)
        yield crew
        crew.end()


def results_of(crew: Crew, name: str) -> list[ToolResult]:
    return [event for event in crew.events(name) if isinstance(event, ToolResult)]


def snapshots_of(crew: Crew, name: str) -> list[SnapshotTaken]:
    return [event for event in crew.events(name) if isinstance(event, SnapshotTaken)]


@pytest.mark.long
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
    (bob,) = changes.list_changes(crew.team)
    assert bob.check == LastCheck("passed", done.checked)
    write(tree, {"done.txt": "not any more\n"})
    changes.take_snapshot(crew.team, "bob")
    (bob,) = changes.list_changes(crew.team)
    assert bob.check == LastCheck("old", done.checked)
    # The team's check runs for no task, on what is there now.
    settings.change_setting(crew.team, "check", "grep 'not any more' done.txt")
    ran = Cli(crew.root)("check", "bob")
    assert ran.code == 0, ran.err
    (bob,) = changes.list_changes(crew.team)
    assert bob.check is not None
    assert (bob.check.state, bob.check.checked) == ("passed", crew.directory.agent("bob").checked.load())


@pytest.mark.long
def test_a_reviewer_gets_the_diff_of_the_checkout(shared_crew: Crew) -> None:
    task = tasks.add_task(shared_crew.team, "work", review="operator")
    shared_crew.model.give(
        "reviewed",
        calls("bash", command="echo by-command > pkg/new.txt; echo four >> api.py"),
        calls("task_update", task_id=task.id, status="completed"),
        says("done"),
    )
    shared_crew.run("reviewed", "code", "work", worktree=True, task=task.id)
    request = shared_crew.pending("task_review", of="reviewed")
    diff = str(request.payload["diff"])
    assert "\n three\n+four\n" in diff
    assert "+++ b/pkg/new.txt\n@@ -0,0 +1 @@\n+by-command\n" in diff
    assert f"{(shared_crew.directory.path / str(request.payload['file'])).read_text()}" == diff
    shared_crew.wait_for("reviewed", "idle")
    assert reviews.what_changed(shared_crew.directory, request) == []
    write(shared_crew.directory.worktree("reviewed"), {"late.py": "x = 1\n"})
    approved = Cli(shared_crew.root)("approve", request.id)
    assert "reviewed changed files since this review was asked for: they are not reviewed" in approved.err
    assert ", changed since\n" in Cli(shared_crew.root)("changes", "reviewed").err
    assert store_tasks.load(shared_crew.directory, task.id).status == "completed"


@pytest.mark.long
def test_what_an_agent_writes_while_its_review_waits_is_not_reviewed(made: Made) -> None:
    crew = made()
    crew.model.give("lead", says("ready"))
    crew.run("lead", "lead", "wait", unsafe_no_sandbox=True)
    settings.change_setting(crew.team, "lead_merges", "on")
    task = tasks.add_task(crew.team, "work", review="lead")
    # The reviewer looks at what it was given until the owner has written more.
    waits = calls("bash", command="until test -e go; do sleep 0.05; done")
    crew.model.give("lead", waits, calls("review_task", task_id=task.id, approve=True), calls("list_changes"),
                    calls("read_diff", teammate="sly"), says("approved"))  # fmt: skip
    crew.model.give(
        "sly",
        calls("write_file", path="new.py", content="GOOD\n"),
        calls("task_update", task_id=task.id, status="completed"),
        calls("bash", command="echo EVIL > new.py"),
        says("done"),
    )
    crew.hire("sly", "code", "work", worktree=True, task=task.id, unsafe_no_sandbox=True)
    request = crew.pending("task_review", of="sly")
    eventually(lambda: (crew.directory.worktree("sly") / "new.py").read_text() == "EVIL\n", "more work")
    (crew.root / "go").touch()
    reviewed = eventually(lambda: store_tasks.load(crew.directory, task.id).reviewed, "the approval")
    assert "+GOOD" in str(request.payload["diff"])
    assert (reviewed.tree, reviewed.since) == (request.payload["tree"], request.payload["since"])
    crew.wait_for("lead", "idle")
    approved, listed, diff = results_of(crew, "lead")[-3:]
    late = "sly changed files since this review was asked for: they are not reviewed"
    assert approved.content == f"the work of sly on task {task.id} is approved; {late}"
    said = f"reviewed by lead {format_minute(reviewed.at)}, changed since"
    assert f"merges cleanly, {said}" in listed.content
    assert diff.content.splitlines()[1] == said
    crew.wait_for("sly", "idle")
    run = Cli(crew.root)
    assert f"sly: {said}" in run("changes", "sly", "--diff").err
    assert f"sly: {said}" in run("merge", "sly", "--dry-run").err
    merged = changes.merge_into_branch(crew.team, "sly", "integration")
    assert merged is not None
    assert merged.changes.review is not None
    assert merged.changes.review.state == "old"


@pytest.mark.long
def test_files_and_commands_see_the_checkout_alone(shared_crew: Crew) -> None:
    shared_crew.model.give(
        "seer",
        calls("write_file", path="new.py", content="y = 1\n"),
        calls("bash", command=f"pwd; ls {Path.cwd().anchor}; echo 3 >> api.py; cat new.py"),
        says("done"),
    )
    write(shared_crew.root, {"private.txt": "not committed\n"})
    shared_crew.run("seer", "code", "work", worktree=True, unsafe_no_sandbox=True)
    tree = shared_crew.directory.worktree("seer")
    written, ran = results_of(shared_crew, "seer")
    assert not written.is_error, written.content
    assert ran.content.splitlines()[0] == str(tree.resolve())
    assert "y = 1" in ran.content
    assert (tree / "api.py").read_text().endswith("three\n3\n")
    assert not (shared_crew.root / "new.py").exists()
    assert (shared_crew.root / "api.py").read_text() == "one\ntwo\nthree\n"


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
    with open_sandbox(directory, "bob", spec.replace(flags=HireOptions(unsafe_no_sandbox=True))) as opened:
        # As for a project that is not below a home or a folder of temporary files, which are hidden anyway.
        policy = replace(opened.policy, host=replace(opened.policy.host, hidden=()))
        system.need(level, {"bubblewrap": bubblewrap, "landlock": landlock}[level].unavailable_reason(policy))
        printed = run(replace(opened, level=level, policy=policy), tried).content
    assert printed.splitlines()[-6:-1] == ["Begin", "one", "two", "three", "x"]
    assert "[core]" not in printed
    assert printed.count("three") == 1
    assert not [path for path in (root / "new", eve / "new", root / ".git/objects/new") if path.exists()]


@pytest.mark.long
def test_each_assignment_begins_and_ends_with_a_snapshot(shared_crew: Crew) -> None:
    shared_crew.model.give("twice", calls("write_file", path="new.py", content="y = 1\n"), says("done"))
    assignment = shared_crew.hire("twice", "code", "work", worktree=True, unsafe_no_sandbox=True)
    shared_crew.answer(assignment)
    eventually(lambda: len(snapshots_of(shared_crew, "twice")) == 2 or None, "the two snapshots")
    begin, end = snapshots_of(shared_crew, "twice")
    assert (begin.at, end.at) == ("begin", "end")
    assert begin.assignment == end.assignment == assignment.id
    assert git(shared_crew.root, "diff", "--name-status", begin.commit, end.commit) == "A\tnew.py"
    assert git(shared_crew.root, "rev-parse", "refs/crew/twice") == end.commit


@pytest.mark.long
def test_an_agent_can_commit_on_its_branch(shared_crew: Crew) -> None:
    system.need_program("bwrap")
    shared_crew.model.give(
        "committer", calls("bash", command="echo 4 >> api.py && git commit -qam 'Add four' && git status"), says("done")
    )
    shared_crew.run("committer", "code", "work", worktree=True)
    (ran,) = results_of(shared_crew, "committer")
    assert not ran.is_error, ran.content
    spec = shared_crew.agent("committer").spec.load()
    assert spec is not None
    taken = snapshot.take(shared_crew.directory, "committer", spec)
    assert git(shared_crew.root, "log", "-1", "--format=%s", taken.head) == "Add four"


@pytest.mark.long
def test_a_new_checkout_is_set_up_once(made: Made) -> None:
    crew = made(says("done"), says("done"))
    roster.change(
        crew.directory, lambda config: setattr(config, "worktree_setup", "echo made >> pkg/setup.txt; exit 3")
    )
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    (asked,) = crew.model.asked_by("bob")
    assert "worktree_setup `echo made >> pkg/setup.txt; exit 3` failed" in str(asked["messages"])
    hiring.resume(crew.team, "bob")
    crew.wait_for("bob", "idle", "exited")
    assert (crew.directory.worktree("bob") / "pkg/setup.txt").read_text() == "made\n"


@pytest.mark.long
def test_the_user_sees_that_a_checkout_was_not_set_up(made: Made) -> None:
    crew = made(says("done"))

    def prepare(config: Config) -> None:
        config.worktree_setup, config.worktree_copy = "echo broken; exit 3", [".env"]

    roster.change(crew.directory, prepare)
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    bob = crew.view().agent("bob")
    assert bob is not None
    found = re.fullmatch(
        r"worktree_copy: the root has no \.env; worktree_setup `echo broken; exit 3` failed: (results/\S+)",
        bob.status.setup_error or "",
    )
    assert found
    assert "broken" in (crew.directory.path / found[1]).read_text()
    assert as_json.agent(bob, crew.directory)["setup_error"] == bob.status.setup_error


@pytest.mark.long
def test_a_merge_names_the_commands_that_run_on(made: Made) -> None:
    crew = made(calls("bash", command="until [ -e ../go ]; do sleep 0.05; done", background=True), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    (crew.directory.worktree("bob") / "new.py").write_text("y = 1\n")
    done = changes.merge(crew.team, "bob")
    assert done is not None
    (running,) = done.background
    assert "until [ -e ../go ]" in running


@pytest.mark.long
def test_what_the_setup_leaves_is_no_work_of_the_agent(made: Made) -> None:
    crew = made(calls("write_file", path="api.py", content="one\ntwo\n"), says("done"))
    command = "echo built > pkg/made.txt; echo 2 >> pkg/core.py"
    roster.change(crew.directory, lambda config: setattr(config, "worktree_setup", command))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    (found,) = changes.list_changes(crew.team)
    assert [each.path for each in found.files] == ["api.py"]
    write(crew.root, {"README": "later\n"})
    git(crew.root, "add", "README")
    git(crew.root, "commit", "-qm", "Go on")
    assert changes.merge(crew.team, "bob") is not None
    assert git(crew.root, "show", "--format=", "--name-only", "HEAD") == "api.py"
    assert changes.unmerged(crew.team, "bob") is None
    changes.undo(crew.team)
    assert [each.path for each in changes.list_changes(crew.team)[0].files] == ["api.py"]


def test_an_agent_that_merges_the_users_branch_keeps_the_setup_out_of_its_work(home: Home) -> None:
    work = home.hire("bob")
    work.write("made.txt", "built\n")
    home.git("update-ref", snapshot.ref_of(home.directory, "bob", "setup"), work.snap())
    home.write("README", "user\n")
    theirs = home.commit("user")
    work.write("README", "user\n")
    work.merge(theirs, work.tree())
    work.write("README", "user and bob\n")
    work.snap()
    (found,) = changes.list_changes(home.team)
    assert ([each.path for each in found.files], found.applies) == (["README"], True)


@pytest.mark.long
def test_a_team_below_the_top_of_a_repository_works_in_that_folder_of_its_checkouts(tmp_path: Path) -> None:
    system.need_program("git")
    git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, {"app/api.py": "one\n", ".gitignore": ".crewboard/\n", "app/AGENTS.md": "use tabs\n"})
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Begin")
    with ModelServer() as model:
        crew = Crew(tmp_path / "app", model)
        model.give(
            "bob", calls("write_file", path="new.py", content="y = 1\n"), calls("read_file", path="api.py"),
            calls("bash", command="pwd; git rev-parse --show-toplevel; echo 2 > more.py"), says("done"),
        )  # fmt: skip
        crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
        crew.wait_for("bob", "idle")
        written, read, ran = results_of(crew, "bob")
        top = crew.directory.worktree("bob")
        assert not written.is_error, written.content
        assert "one" in read.content
        assert ran.content.splitlines()[:2] == [str(top / "app"), str(top)]
        assert [each.path for each in changes.list_changes(crew.team)[0].files] == ["app/more.py", "app/new.py"]
        assert changes.read_diff(crew.team, "bob", "app/new.py").startswith("diff --git a/app/new.py b/app/new.py")
        prompts = str(model.asked_by("bob")[0])
        assert "use tabs" in prompts
        assert "You work in its folder app" in prompts
        crew.end()


@pytest.mark.long
def test_a_long_message_can_be_read_in_a_checkout(shared_crew: Crew) -> None:
    shared_crew.model.give("reader", calls("read_file", path=".crewboard/default/results/long.md"), says("done"))
    shared_crew.directory.results.mkdir(parents=True, exist_ok=True)
    (shared_crew.directory.results / "long.md").write_text("a long message\n")
    shared_crew.run("reader", "code", "work", worktree=True, unsafe_no_sandbox=True)
    (read,) = results_of(shared_crew, "reader")
    assert "a long message" in read.content


@pytest.mark.long
def test_a_checkout_is_named_by_its_absolute_path_too(shared_crew: Crew) -> None:
    path = shared_crew.root / ".crewboard/default/worktrees/namer/api.py"
    shared_crew.model.give(
        "namer",
        calls("read_file", path=str(path)),
        calls("read_file", path=str(shared_crew.root / "api.py")),
        says("done"),
    )
    shared_crew.run("namer", "code", "work", worktree=True, unsafe_no_sandbox=True)
    own, roots = results_of(shared_crew, "namer")
    assert "two" in own.content
    assert "outside the workspace" in roots.content


@pytest.mark.parametrize("initialized", [False, True])
@pytest.mark.parametrize("flags", [HireOptions(worktree=True), HireOptions(worktree=True, base="HEAD")])
def test_an_asked_worktree_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, flags: HireOptions, *, initialized: bool
) -> None:
    system.need_program("git")
    if initialized:
        git(tmp_path, "init", "-q", "--template=")
    team = Team(TeamDirectory(tmp_path / ".crewboard" / "default"), environment={"CREWBOARD_OFFLINE": "1"})
    given = frozenset({"worktree"} if flags.base is None else {"base"})
    hire = hiring.Hire("bob", "code", "work", flags=flags.replace(unsafe_no_sandbox=True), given=given)
    with pytest.raises(UsageError, match=r"bob was not hired.*commit something.*without --worktree"):
        hiring.spawn(team, hire)
    assert not (tmp_path / ".crewboard").exists()


@pytest.mark.long
def test_where_the_team_gives_worktrees_and_there_is_no_repository_the_shared_tree_is_used_and_that_is_said(
    crew_on: Made,
) -> None:
    crew = crew_on([says("done")])
    roster.change(crew.directory, lambda config: setattr(config, "worktree", "always"))
    options = HireOptions(unsafe_no_sandbox=True)
    assignment = hiring.spawn(crew.team, hiring.Hire("bob", "code", "work", flags=options, given=frozenset()))
    assert "bob works in the shared tree" in assignment.note
    spec = crew.agent("bob").spec.load()
    assert spec is not None
    assert (spec.worktree, spec.flags.worktree) == (None, False)
    crew.answer(assignment)


@pytest.mark.long
def test_the_team_and_the_type_decide_unless_the_hire_says_otherwise(made: Made) -> None:
    crew = made(says("done"))
    roster.change(crew.directory, lambda config: setattr(config, "worktree", "always"))

    def worktree_of(name: str, kind: str, given: frozenset[str]) -> str | None:
        options = HireOptions(unsafe_no_sandbox=True, once=True)
        crew.answer(hiring.spawn(crew.team, hiring.Hire(name, kind, "work", flags=options, given=given)))
        spec = crew.agent(name).spec.load()
        return spec.worktree.branch if spec and spec.worktree else None

    assert worktree_of("amy", "code", frozenset()) == "crew/amy"
    assert worktree_of("ben", "explore", frozenset()) is None
    assert worktree_of("cid", "code", frozenset({"worktree"})) is None


@pytest.mark.long
def test_a_resume_makes_a_lost_checkout_again_from_its_last_snapshot(shared_crew: Crew) -> None:
    shared_crew.model.give("loser", calls("write_file", path="new.py", content="y = 1\n"), says("done"), says("again"))
    shared_crew.run("loser", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    shared_crew.wait_for("loser", "exited")
    shutil.rmtree(shared_crew.directory.worktree("loser"))
    hiring.resume(shared_crew.team, "loser")
    tree = shared_crew.directory.worktree("loser")
    assert (tree / "new.py").read_text() == "y = 1\n"
    assert git(tree, "status", "--porcelain") == "A  new.py"
    assert git(tree, "branch", "--show-current") == "crew/loser"


@pytest.mark.long
def test_a_damaged_spec_takes_no_agent_out_of_its_checkout(shared_crew: Crew) -> None:
    write_one, write_two = (calls("bash", command=f"echo {word} >> pkg/core.py") for word in ("one", "two"))
    shared_crew.model.give("torn", write_one, says("done"), write_two, says("done"))
    shared_crew.run("torn", "code", "work", worktree=True)
    before = shared_crew.agent("torn").spec.load()
    assert before is not None
    shared_crew.agent("torn").spec.put(b'{"sch')
    stop.stop_now(shared_crew.team, "torn")
    hiring.resume(shared_crew.team, "torn")
    spec = shared_crew.agent("torn").spec.load()
    assert spec == before.replace(run=2, at=spec.at if spec else 0)
    shared_crew.answer_to("torn", messages.send(shared_crew.team, "torn", "go on").id)
    assert (shared_crew.directory.worktree("torn") / "pkg/core.py").read_text().endswith("one\ntwo\n")
    assert "one" not in (shared_crew.root / "pkg/core.py").read_text()


@pytest.mark.long
def test_a_damaged_spec_hides_no_work_in_a_checkout(made: Made) -> None:
    crew = made(says("done"))
    crew.run("bob", "code", "work", worktree=True, once=True)
    crew.wait_for("bob", "exited")
    # No snapshot has it yet.
    write(crew.directory.worktree("bob"), {"new.py": "y = 1\n"})
    agent = crew.agent("bob")
    agent.spec.put(b'{"sch')
    for has_journal in (True, False):
        if not has_journal:
            agent.journal.remove()
            git(crew.root, "update-ref", "-d", "refs/crew/bob")
        with pytest.raises(UsageError, match=r"bob has unmerged work in 1 file"):
            stop.delete(crew.team, purge=True)
        with pytest.raises(UsageError, match=r"bob has unmerged work in 1 file"):
            stop.remove(crew.team, "bob")
    assert changes.merge(crew.team, "bob") is not None
    assert (crew.root / "new.py").read_text() == "y = 1\n"


@pytest.mark.long
def test_a_resume_is_refused_where_its_commit_is_not(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(home.directory, environment={"USER": "user", "CREWBOARD_OFFLINE": "1"})
    monkeypatch.setattr(hiring, "_check_machine", lambda *_: None)
    monkeypatch.setattr(hosts, "start", lambda *_: None)
    agent, began = home.directory.agent("bob"), home.hire("bob").base
    home.commit("go on")
    spec = agent.spec.get()
    assert hiring.resume(team, "bob") == 2
    tree = home.directory.worktree("bob")
    assert spec is not None
    agent.spec.put(spec)
    shutil.rmtree(tree)
    for of_another, why in (
        (True, f"the repository {home.root} lacks commit {began[:10]}, at which bob began"),
        (False, "is not in a git repository"),
    ):
        shutil.rmtree(home.root / ".git")
        if of_another:
            # With a file more, its first commit has another id also where both are made in one second.
            home.write("other.py", "y = 2\n")
            make_repository(home.root)
        with pytest.raises(UsageError, match=f"bob was not resumed.*{re.escape(why)}"):
            hiring.resume(team, "bob")
        assert (tree.exists(), agent.spec.get()) == (False, spec), "no run is asked for"


@pytest.mark.long
def test_a_resume_after_a_discard_has_the_work_that_was_merged(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    team = Team(home.directory, environment={"USER": "user", "CREWBOARD_OFFLINE": "1"})
    monkeypatch.setattr(hiring, "_check_machine", lambda *_: None)
    monkeypatch.setattr(hosts, "start", lambda *_: None)
    run, bob = Inside(home.root), home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    assert run.agree("merge", "bob").code == 0
    assert run("discard", "bob", "--yes").code == 0
    assert hiring.resume(team, "bob") == 2
    assert (home.directory.worktree("bob") / "notes.txt").read_text() == "x\n"
    assert run("changes", "--json").json[0]["files"] == [], "what the user has is no work of the agent"


@pytest.mark.long
def test_work_in_a_checkout_is_not_lost_to_a_hire_without_one(made: Made) -> None:
    crew = made(says("done"), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True, once=True)
    crew.wait_for("bob", "exited")
    with pytest.raises(UsageError, match="bob has a worktree"):
        crew.hire("bob", "code", "more", unsafe_no_sandbox=True)


@pytest.mark.long
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


@pytest.mark.long
def test_a_lead_brings_work_together_on_a_branch_that_is_not_checked_out(made: Made) -> None:
    crew = made()
    crew.model.give("bob", calls("write_file", path="new.py", content="y = 1\n"), says("done"))
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    accept = calls("accept_changes", teammate="bob", sha256="0" * 64)
    crew.model.give("lead", calls("list_changes"), calls("read_diff", teammate="bob"), accept, says("refused"))
    crew.run("lead", "lead", "bring it together", unsafe_no_sandbox=True)
    listed, diff, refused = results_of(crew, "lead")
    assert listed.content == "bob: +1 -0 in 1 file, 0 behind, merges cleanly\n  added new.py"
    assert "+y = 1" in diff.content
    assert "no tool 'accept_changes'" in refused.content
    settings.change_setting(crew.team, "lead_merges", "on")
    shown = diff.content.partition("\n")[0].rpartition(" ")[2]
    onto_main = calls("accept_changes", teammate="bob", into="main", sha256=shown)
    as_shown = calls("accept_changes", teammate="bob", sha256=shown)
    crew.model.give("lead", onto_main, accept, as_shown, as_shown, says("done"))
    crew.answer_to("lead", messages.send(crew.team, "lead", "now you may").id)
    checked_out, other, merged, again = results_of(crew, "lead")[3:]
    assert "main is checked out" in checked_out.content
    assert "the work of bob has another sha256" in other.content
    assert "bob is merged into integration" in merged.content
    assert again.content == "integration has all that bob changed"
    assert git(crew.root, "show", "integration:new.py") == "y = 1"
    assert git(crew.root, "status", "--porcelain") == ""
    assert [each.by for each in merging.load(crew.directory).acceptances] == ["lead"]


def collisions_of(crew: Crew) -> list[Need]:
    return [need for need in crew.view().needs if need.kind == "collision"]


@pytest.mark.long
def test_two_checkouts_that_do_not_merge_are_a_need_by_themselves(made: Made) -> None:
    crew = made()
    for name in ("amy", "bob"):
        change = calls("write_file", path="api.py", content=f"{name}\n")
        crew.model.give(name, calls("read_file", path="api.py"), change, says("done"))
        crew.run(name, "code", "work", worktree=True, unsafe_no_sandbox=True)
        crew.wait_for(name, "idle")
    (need,) = eventually(lambda: collisions_of(crew), "the need")
    assert (need.agent, need.other, need.files, need.in_worktrees) == ("amy", "bob", ("api.py",), True)
    put_back.undo_in_checkout(crew.team, "bob")
    assert collisions_of(crew) == [], "what was put back collides no more"


@pytest.mark.long
def test_claims_and_hold_bind_agents_in_checkouts(made: Made) -> None:
    crew = made()
    crew.model.give("amy", calls("submit_plan", plan="# Do it", files=["api.py"]))
    for name in ("amy", "bob", "cid"):
        crew.model.give(name, calls("read_file", path="api.py"))
        crew.model.give(name, calls("write_file", path="api.py", content=f"{name}\n"))
    crew.model.give("amy", calls("ask_operator", question="?"))
    for name in ("amy", "bob", "cid"):
        crew.model.give(name, says("done"))
    settings.change_setting(crew.team, "collisions", "claims")
    crew.hire("amy", "code", "work", worktree=True, plan=True, unsafe_no_sandbox=True)
    answers.approve(crew.team, crew.pending("plan_approval", "amy").id)
    question = crew.pending("question", "amy")
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    assert "amy holds api.py" in results_of(crew, "bob")[-1].content
    answers.answer(crew.team, question.id, "yes")
    crew.wait_for("amy", "idle")
    settings.change_setting(crew.team, "collisions", "hold")
    crew.hire("cid", "code", "work", worktree=True, unsafe_no_sandbox=True)
    asked = crew.pending("permission", "cid")
    assert asked.payload["collision"] == "amy changed it in work that is not merged"
    answers.approve(crew.team, asked.id)
    crew.wait_for("cid", "idle")
    assert (crew.directory.worktree("cid") / "api.py").read_text() == "cid\n"
