"""Workspaces of a team with hosts: pushed by the user, checked out on hosts, carried back. No process is started."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard.commands import changes, transfer, workspace
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, LostLeaseError, UsageError
from crewboard.records.agents import HireOptions, Spec, Status, Worktree
from crewboard.records.team import Bundle, Carried, Member
from crewboard.sandbox import bubblewrap, landlock
from crewboard.sandbox.level import Level
from crewboard.sandbox.sandbox import open_sandbox
from crewboard.store import agents, layout, leases, roster
from crewboard.store.file_store import FileStore
from crewboard.store.json_records import RecordKey
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import bundles, merging, snapshot, workspaces
from crewboard.worktrees.repository import open_repository, open_workspace
from tests import system
from tests.cli.shell import Inside
from tests.postgres import close_connections, end_leases
from tests.sandbox.targets import run as in_sandbox
from tests.worktrees.conftest import git, make_root, write

Machine = Callable[[str], TeamDirectory]

of_git = pytest.mark.files_only("what git and a sandbox do with what arrived, no store knows")


@pytest.fixture(params=["files", pytest.param("postgresql", marks=pytest.mark.long)])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """Return a function that gives a machine with an empty root; all have the same team in the same store."""
    url = request.getfixturevalue("database") if request.param == "postgresql" else None
    known: dict[str, TeamDirectory] = {}

    def make(name: str) -> TeamDirectory:
        if name in known:
            return known[name]
        team = TeamDirectory(tmp_path / name / ".crewboard" / "crew")
        team.root.mkdir()
        if url is None:
            team.make()
            # On files, a team has one machine alone: the others share its folder here.
            first = next(iter(known.values()), team)
            layout._opened[team.path] = FileStore(str(first.path))
        elif not known:
            team.make(url)
        else:
            team.join(url)
        if not known:
            roster.create(team, "", 1.0)
        known[name] = team
        return team

    yield make
    # The next test may have the same folder.
    for team in known.values():
        layout._opened.pop(team.path, None)
    if url is not None:
        close_connections()


@pytest.fixture
def home(machine: Machine) -> TeamDirectory:
    """Return the user's machine: its root is a repository, with one file changed and one that is new."""
    team = machine("home")
    make_root(team.root)
    git(team.root, "config", "user.name", "Kim")
    git(team.root, "config", "user.email", "kim@example.invalid")
    write(team.root, {"api.py": "one\ntwo\nthree\nfour\n", "new.py": "n = 1\n", "ignored.pyc": "x"})
    return team


def hire(team: TeamDirectory, name: str, **flags: object) -> Spec:
    pushed = team.workspace.load()
    assert pushed is not None
    spec = Spec(
        prompt="work", prompt_id=name, type="code", flags=HireOptions(worktree=True, **flags),  # type: ignore[arg-type]
        worktree=workspaces.worktree_on_hosts(team, name, pushed),
    )  # fmt: skip
    roster.put(team, Member(name=name, type="code"))
    team.make_folder(f"agents/{name}")
    team.agent(name).spec.save(spec)
    return spec


def worktree(spec: Spec) -> Worktree:
    assert spec.worktree is not None
    return spec.worktree


def run(team: TeamDirectory, name: str, spec: Spec, number: int = 1) -> Spec:
    """Begin a run on a host, as its supervisor and its worker do."""
    spec = spec.replace(run=number)
    workspaces.prepare(team, name, spec, agents.last_run(team.agent(name)))
    team.agent(name).status.save(Status(run=number, pid=1, state="idle", since=1.0))
    assert agents.last_run(team.agent(name)) == number
    return spec


def begun(machine: Machine, home: TeamDirectory) -> tuple[TeamDirectory, Spec]:
    """Push the workspace, and begin the run of an agent bob. Return its host, and what the run was given."""
    workspaces.push(home, "kim", 1.0)
    host = machine("host")
    return host, run(host, "bob", hire(home, "bob"))


def carry(team: TeamDirectory, name: str, spec: Spec, **files: str) -> str:
    """Write files in a checkout, and carry a snapshot of it."""
    write(team.worktree(name), {path.replace("_", "."): text for path, text in files.items()})
    taken = snapshot.take(team, name, spec)
    workspaces.Carrier(team, name, worktree(spec)).carry(taken, spec.run, 2.0)
    return taken.commit


def files_of_user(team: TeamDirectory) -> dict[Path, bytes]:
    """Return the contents of all files of a root, with its repository, but without the teams."""
    found = (path for path in team.root.rglob("*") if path.is_file() and team.path.parent not in path.parents)
    return {path: path.read_bytes() for path in found}


def test_uncommitted_files_get_to_a_host_and_work_comes_back(machine: Machine, home: TeamDirectory) -> None:
    before = {path: path.read_bytes() for path in (home.root / ".git").rglob("*") if path.is_file()}
    status = git(home.root, "status", "--porcelain")
    pushed = workspaces.push(home, "kim", 1.0)
    assert git(home.root, "status", "--porcelain") == status
    assert {path: path.read_bytes() for path in before} == before, "nothing of the user's repository changed"
    assert (pushed.head, pushed.branch, pushed.by) == (git(home.root, "rev-parse", "HEAD"), "main", "kim")
    host = machine("host")
    spec = run(host, "bob", hire(home, "bob"))
    tree = host.worktree("bob")
    assert (tree / "api.py").read_text() == "one\ntwo\nthree\nfour\n"
    assert (tree / "new.py").read_text() == "n = 1\n"
    assert not (tree / "ignored.pyc").exists()
    assert not (tree / ".crewboard").exists()
    assert git(tree, "status", "--porcelain") == ""
    carry(host, "bob", spec, done_py="d = 0\n")
    commit = carry(host, "bob", spec, done_py="d = 1\n")
    found = workspaces.fetch(home, open_repository(home.root), "bob", worktree(spec))
    assert found is not None
    assert (found.commit, found.changed) == (commit, True)
    (listed,) = changes.list_changes(Team(home, environment={"USER": "kim"}))
    assert [(each.path, each.status) for each in listed.files] == [("done.py", "added")]
    assert listed.applies
    carry(host, "bob", spec, done_py="d = 2\n")
    merged = changes.merge(Team(home, environment={"USER": "kim"}), "bob", now=True)
    assert merged is not None
    assert (home.root / "done.py").read_text() == "d = 2\n", "a merge fetches by itself"
    assert (home.root / "new.py").read_text() == "n = 1\n", "what is not committed stays"
    assert git(home.root, "show", "--stat", "--format=%an", "HEAD").split() == [
        "Kim", "done.py", "|", "1", "+", "1", "file", "changed,", "1", "insertion(+)"
    ]  # fmt: skip


@pytest.mark.long
def test_a_run_on_another_host_begins_with_the_newest_snapshot(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    one, other = machine("one"), machine("other")
    spec = run(one, "bob", hire(home, "bob"))
    git(one.worktree("bob"), "-c", "user.name=b", "-c", "user.email=b@x", "commit", "-q", "--allow-empty", "-m", "mine")
    carry(one, "bob", spec, a_py="a = 1\n")
    carry(one, "bob", spec, b_py="b = 1\n")
    write(one.worktree("bob"), {"lost.py": "after the last snapshot\n"})
    spec = run(other, "bob", spec, 2)
    tree = other.worktree("bob")
    assert (tree / "a.py").read_text() + (tree / "b.py").read_text() == "a = 1\nb = 1\n"
    assert not (tree / "lost.py").exists()
    assert git(tree, "log", "-1", "--format=%s") == "mine"
    carry(other, "bob", spec, a_py="a = 2\n")
    # The first host has an older state, with files that the agent knows nothing of.
    run(one, "bob", spec, 3)
    assert (one.worktree("bob") / "a.py").read_text() == "a = 2\n"
    assert not (one.worktree("bob") / "lost.py").exists()


@pytest.mark.long
@of_git
def test_a_run_on_the_same_host_keeps_what_is_ignored(machine: Machine, home: TeamDirectory) -> None:
    host, spec = begun(machine, home)
    carry(host, "bob", spec, a_py="a = 1\n")
    write(host.worktree("bob"), {"cache.pyc": "x", "half.py": "of a call whose outcome is unknown\n"})
    run(host, "bob", spec, 2)
    assert (host.worktree("bob") / "cache.pyc").exists()
    assert (host.worktree("bob") / "half.py").exists()


@pytest.mark.long
def test_an_agent_starts_from_the_work_of_another(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    one, other = machine("one"), machine("other")
    fixer = run(one, "fixer", hire(home, "fixer"))
    from_fixer = HireOptions(start_from="fixer")
    _, note = workspace.worktree_on_hosts(Team(home), "tester", from_fixer)
    assert note == "fixer has changed nothing yet: tester begins with the pushed workspace"
    carry(one, "fixer", fixer, a_py="a = 1\n")
    assert workspace.worktree_on_hosts(Team(home), "tester", from_fixer)[1] == ""
    spec = run(other, "tester", hire(home, "tester", start_from="fixer"))
    tree = other.worktree("tester")
    assert (tree / "a.py").read_text() == "a = 1\n"
    assert git(tree, "status", "--porcelain") == ""
    carry(other, "tester", spec)
    carry(one, "fixer", fixer, a_py="a = 2\n")
    assert "was replaced by the newest state of fixer" in workspaces.start_again(other, "tester", spec)
    assert (tree / "a.py").read_text() == "a = 2\n"
    assert workspaces.start_again(other, "tester", spec) == ""
    carry(other, "tester", spec, test_py="t = 1\n")
    found = workspaces.fetch(home, open_repository(home.root), "tester", worktree(spec))
    assert found is not None
    listed = {each.agent: each for each in changes.list_changes(Team(home))}
    assert [each.path for each in listed["tester"].files] == ["test.py"], "its own work alone"
    carry(one, "fixer", fixer, a_py="a = 3\n")
    assert "has work of your own" in workspaces.start_again(other, "tester", spec)
    assert (tree / "a.py").read_text() == "a = 2\n"
    assert (tree / "test.py").exists()


@pytest.mark.long
def test_a_new_push_is_what_new_agents_begin_with(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    old = hire(home, "old")
    size = sum(each.size for each in workspaces.push(home, "kim", 1.0).bundles)
    write(home.root, {"more.py": "m = 1\n"})
    pushed = workspaces.push(home, "kim", 2.0)
    assert len(pushed.bundles) == 2
    assert sum(each.size for each in pushed.bundles) - size < 1000, "what is there is not sent again"
    host = machine("host")
    run(host, "new", hire(home, "new"))
    run(host, "old", old)
    assert (host.worktree("new") / "more.py").exists()
    assert not (host.worktree("old") / "more.py").exists()


def test_commits_that_were_not_pushed_are_noted(machine: Machine, home: TeamDirectory) -> None:
    pushed = workspaces.push(home, "kim", 1.0)
    team, stale = Team(home), "this repository has 2 commits that agents on hosts do"
    flags = HireOptions()
    assert (workspaces.unpushed(home, pushed), workspace.worktree_on_hosts(team, "bob", flags)[1]) == (0, "")
    for number in range(2):
        git(home.root, "commit", "-q", "--allow-empty", "-m", str(number))
    assert stale in Inside(home.root)("--team", "crew", "workspace").err
    assert workspace.worktree_on_hosts(team, "bob", flags)[1].startswith(stale)
    # A repository that does not know what was pushed may be another project's; a host's root is in none.
    other = machine("other")
    assert workspaces.unpushed(other, pushed) == 0
    make_root(other.root)
    git(other.root, "commit", "-q", "--allow-empty", "-m", "unrelated")
    assert workspaces.unpushed(other, pushed.replace(head="1" * 40)) == 0
    assert workspaces.unpushed(home, workspaces.push(home, "kim", 2.0)) == 0


@pytest.mark.long
@of_git
def test_a_push_from_an_unrelated_repository_is_refused(machine: Machine, home: TeamDirectory) -> None:
    pushed = workspaces.push(home, "kim", 1.0)
    other = machine("other")
    make_root(other.root)
    write(other.root, {"unrelated.txt": "another project\n"})
    git(other.root, "checkout", "-q", "--orphan", "unrelated")
    git(other.root, "add", "unrelated.txt")
    git(other.root, "commit", "-q", "-m", "unrelated")
    with pytest.raises(UsageError, match=f"no history in common with {pushed.head[:12]}.*--force"):
        workspaces.push(other, "pat", 2.0)
    assert home.workspace.load() == pushed
    git(home.root, "commit", "-q", "--allow-empty", "-m", "next")
    again = workspaces.push(home, "kim", 3.0)
    assert again.head == git(home.root, "rev-parse", "HEAD")
    assert workspaces.push(other, "pat", 4.0, force=True).head == git(other.root, "rev-parse", "HEAD")


@pytest.mark.long
@of_git
def test_work_does_not_come_into_another_project(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    host, other = machine("host"), machine("other")
    for name in ("ann", "bob"):
        carry(host, name, run(host, name, hire(home, name)), a_py="a = 1\n")
    other.root.joinpath("unrelated.txt").write_text("another project\n")
    git(other.root, "init", "-q", "-b", "main", "--template=")
    git(other.root, "add", "unrelated.txt")
    git(other.root, "commit", "-q", "-m", "unrelated")
    cli, said = Inside(other.root), f"{other.root} is not the project's repository: it has no history in common with"
    for command in (("merge", "bob"), ("merge", "bob", "--resolve"), ("changes", "bob"), ("changes",)):
        cli("--team", "crew", *command).refused(2, said, "go to the clone from which the workspace was pushed")
    assert git(other.root, "log", "--format=%s") == "unrelated"
    fetched = cli("--team", "crew", "fetch", "bob")
    assert fetched.code == 0
    assert said in fetched.err
    clone = machine("clone").root
    git(clone, "init", "-q", "-b", "main", "--template=")
    git(clone, "pull", "-q", str(home.root), "main")
    git(clone, "config", "user.name", "Pat")
    git(clone, "config", "user.email", "pat@example.invalid")
    assert Inside(clone).agree("--team", "crew", "merge", "bob").code == 0
    assert (clone / "a.py").exists()


@pytest.mark.long
@of_git
def test_a_folder_without_a_repository_says_once_where_to_go(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    host, folder = machine("host"), machine("folder").root
    for name in ("ann", "bob"):
        carry(host, name, run(host, name, hire(home, name)), a_py="a = 1\n")
    for command in (("changes",), ("changes", "bob", "--diff"), ("merge", "bob"), ("fetch", "bob"), ("undo",)):
        ran = Inside(folder)("--team", "crew", *command)
        ran.refused(2, f"{folder} is not in a git repository of the project: go to the clone from which the")
        assert "git init" not in ran.err


@pytest.mark.long
def test_many_snapshots_and_pushes_do_not_grow_without_bound(
    machine: Machine, home: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 3)
    host, spec = begun(machine, home)
    for number in range(5):
        carry(host, "bob", spec, a_py=f"a = {number}\n")
        write(home.root, {"more.py": f"m = {number}\n"})
        pushed = workspaces.push(home, "kim", 1.0)
        found = home.carried("bob").load()
        assert found is not None
        assert len(found.bundles) <= 3
        assert len(pushed.bundles) <= 3
        named = {each.id for each in (*pushed.bundles, *found.bundles)}
        assert {name.rsplit(".", 2)[0] for name in home.bundles.names()} == named, "no part is left over"
    run(machine("other"), "bob", spec, 2)
    assert (machine("other").worktree("bob") / "a.py").read_text() == "a = 4\n"


@pytest.mark.long
def test_a_writer_that_is_killed_leaves_nothing_half(
    machine: Machine, home: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, spec = begun(machine, home)
    first = carry(host, "bob", spec, a_py="a = 1\n")

    def killed(*_: object, **__: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(RecordKey, "save", killed)
        with pytest.raises(SystemExit):
            carry(host, "bob", spec, a_py="a = 2\n")
    found = home.carried("bob").load()
    assert found is not None
    assert found.commit == first
    run(machine("other"), "bob", spec, 2)
    assert (machine("other").worktree("bob") / "a.py").read_text() == "a = 1\n"


@pytest.mark.long
def test_a_damaged_bundle_is_refused(machine: Machine, home: TeamDirectory) -> None:
    host, spec = begun(machine, home)
    carry(host, "bob", spec, a_py="a = 1\n")
    found = home.carried("bob").load()
    assert found is not None
    part = home.bundles.below(f"{found.bundles[0].id}.0.part")
    whole = part.get() or b""
    for damaged in (b"", b"# v2 git bundle\n", whole[:-30], whole.replace(b"PACK", b"KCAP")):
        part.put(damaged)
        with pytest.raises(BadDataError, match="the bundle"):
            run(machine("other"), "bob", spec, 2)
    assert not machine("other").worktree("bob").exists()


@of_git
def test_objects_that_git_would_not_make_are_refused(machine: Machine, home: TeamDirectory) -> None:
    """A bundle has a tree with an entry `.git`, as a host that was taken over could write one."""
    workspaces.push(home, "kim", 1.0)
    spec = hire(home, "bob")
    blob = git(home.root, "hash-object", "-w", "api.py")
    entry = f"100644 .git\0{''.join(chr(each) for each in bytes.fromhex(blob))}".encode("latin-1")
    (home.root / "tree").write_bytes(entry)
    tree = git(home.root, "hash-object", "-w", "-t", "tree", "--literally", "tree")
    commit = git(home.root, "commit-tree", tree, "-p", worktree(spec).base, "-m", "bad")
    git(home.root, "update-ref", "refs/crew/@crew/bob", commit)
    bundle = bundles.write(home, "bob", open_repository(home.root), ["refs/crew/@crew/bob"], [worktree(spec).base])
    assert isinstance(bundle, Bundle)
    record = Carried(commit=commit, base=worktree(spec).base, bundles=[bundle])
    home.carried("bob").save(record)
    with pytest.raises(BadDataError, match="hasDotgit"):
        run(machine("host"), "bob", spec)


@pytest.mark.long
def test_work_that_is_discarded_is_gone_everywhere(machine: Machine, home: TeamDirectory) -> None:
    host, spec = begun(machine, home)
    carry(host, "bob", spec, a_py="a = 1\n")
    team = Team(home, environment={"USER": "kim"})
    with pytest.raises(UsageError, match="bob has unmerged work in 1 file"):
        changes.require_merged(team, ["bob"])
    assert changes.discard(team, "bob") is not None
    assert not [name for name in home.bundles.names() if name.startswith("bob.")]
    assert not changes.has_work(team, "bob")
    run(host, "bob", spec, 2)
    assert not (host.worktree("bob") / "a.py").exists()


@pytest.mark.long
@of_git
def test_fetch_makes_a_branch_and_never_loses_what_the_user_did_there(machine: Machine, home: TeamDirectory) -> None:
    team = Team(home, environment={"USER": "kim"})
    host, spec = begun(machine, home)
    assert workspace.fetch(team, "bob") is None
    carry(host, "bob", spec, a_py="a = 1\n")
    (first,) = workspace.fetch_all(team)
    branch = first.branch
    assert (branch, first.note) == ("crewboard/@crew/bob", "")
    assert git(home.root, "show", f"{branch}:a.py") == "a = 1"
    carry(host, "bob", spec, a_py="a = 2\n")
    again = workspace.fetch(team, "bob")
    assert again is not None
    assert (again.new, again.note) == (True, "")
    own = mine(home.root, branch)
    git(home.root, "branch", "-f", branch, own)
    carry(host, "bob", spec, a_py="a = 3\n")
    kept = workspace.fetch(team, "bob")
    assert kept is not None
    assert "has commits of yours" in kept.note
    assert git(home.root, "rev-parse", branch) == own


@pytest.mark.long
@of_git
def test_a_branch_that_was_fetched_goes_with_the_work(machine: Machine, home: TeamDirectory) -> None:
    git(home.root, "add", "-A")
    git(home.root, "commit", "-q", "-m", "Mine")
    workspaces.push(home, "kim", 1.0)
    host, cli = machine("host"), Inside(home.root)
    specs = {name: run(host, name, hire(home, name)) for name in ("ann", "bob", "cem", "dan")}
    for name, spec in specs.items():
        carry(host, name, spec, a_py="a = 1\n")
    branches = {name: f"crewboard/@crew/{name}" for name in specs}
    assert cli("fetch", "--all").code == 0
    for name in ("bob", "cem"):
        git(home.root, "branch", "-f", branches[name], mine(home.root, branches[name]))
    git(home.root, "merge", "-q", branches["bob"], "-m", "Work of bob, as the user has it")
    git(home.root, "switch", "-q", branches["dan"])
    carry(host, "dan", specs["dan"], a_py="a = 2\n")
    assert "was not moved" in cli("fetch", "dan").err, "the checked out files would differ from it"
    for name in ("ann", "bob"):
        assert branches[name] not in cli("discard", name, "--yes").err
        assert git(home.root, "branch", "--list", branches[name]) == ""
    for name in ("cem", "dan"):
        assert f"`git branch -D {branches[name]}` removes it" in cli("discard", name, "--yes").err
        assert git(home.root, "branch", "--list", branches[name]) != ""
    git(home.root, "switch", "-q", "main")
    purged = cli("team", "delete", "crew", "--purge")
    assert purged.code == 0
    assert f"`git branch -D {branches['cem']}` removes it" in purged.err
    assert git(home.root, "for-each-ref", "--format=%(refname:short)", "refs/heads") == f"{branches['cem']}\nmain"
    assert "dan" not in git(home.root, "for-each-ref")


def mine(root: Path, branch: str) -> str:
    """Return a commit of the user on a branch."""
    return git(root, "commit-tree", f"{branch}^{{tree}}", "-p", branch, "-m", "mine")


@pytest.fixture
def clone(machine: Machine, home: TeamDirectory) -> TeamDirectory:
    """Return the machine of another user of the team, with a clone of what is committed at the first one."""
    git(home.root, "add", "-A")
    git(home.root, "commit", "-q", "-m", "All")
    workspaces.push(home, "kim", 1.0)
    made = machine("clone")
    git(made.root, "init", "-q", "-b", "main", "--template=")
    git(made.root, "config", "user.name", "Pat")
    git(made.root, "config", "user.email", "pat@example.invalid")
    git(made.root, "pull", "-q", str(home.root), "main")
    return made


@pytest.mark.long
@of_git
def test_merges_of_two_clones_are_undone_where_they_are(
    machine: Machine, home: TeamDirectory, clone: TeamDirectory
) -> None:
    host, here, there = machine("host"), Inside(home.root), Inside(clone.root)
    ann, bob = (run(host, name, hire(home, name)) for name in ("ann", "bob"))
    carry(host, "ann", ann, ann_py="a = 1\n")
    for text in ("b = 1\n", "b = 2\n"):
        carry(host, "bob", bob, bob_py=text)
        assert there.agree("merge", "bob").code == 0
    assert here.agree("merge", "ann").code == 0
    here("undo", "bob").refused(2, "is not in this repository", "undo it in the clone where it was made")
    assert "took back the merge of ann: main reset to" in here("undo").out
    assert not (home.root / "ann.py").exists()
    git(home.root, "pull", "-q", str(clone.root), "main")
    assert [here("undo", "bob").code for _ in range(2)] == [0, 0], "what was pulled is undone like a merge from here"
    assert not (home.root / "bob.py").exists()
    there("undo").refused(2, "no merge to undo")
    assert here.agree("merge", "bob").code == 0
    assert (home.root / "bob.py").read_text() == "b = 2\n"


@pytest.mark.long
@of_git
def test_work_that_another_clone_merged_is_compared_without_its_snapshot(
    machine: Machine, home: TeamDirectory, clone: TeamDirectory
) -> None:
    host, here, there = machine("host"), Inside(home.root), Inside(clone.root)
    spec = run(host, "bob", hire(home, "bob"))
    carry(host, "bob", spec, bob_py="b = 1\n")
    assert here.agree("merge", "bob").code == 0
    git(clone.root, "pull", "-q", str(home.root), "main")
    carry(host, "bob", spec, bob_py="b = 2\n")
    assert there.agree("merge", "bob").code == 0
    git(home.root, "pull", "-q", str(clone.root), "main")
    carry(host, "bob", spec, more_py="m = 1\n")
    (found,) = here("changes", "--json").json
    assert (found["applies"], "more.py" in [each["path"] for each in found["files"]]) == (True, True)
    assert here.agree("merge", "bob").code == 0
    assert git(home.root, "show", "--format=", "--name-only", "HEAD") == "more.py"


@pytest.mark.long
def test_a_merge_that_was_killed_is_recovered_in_its_own_clone(
    machine: Machine, home: TeamDirectory, clone: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, here, there = machine("host"), Inside(home.root), Inside(clone.root)
    for name in ("ann", "bob"):
        carry(host, name, run(host, name, hire(home, name)), **{f"{name}_py": "x = 1\n"})
    with monkeypatch.context() as patched:
        patched.setattr(merging.Mover, "_change_ref", killed)
        patched.setattr(merging.Mover, "recover", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            changes.merge(Team(clone, environment={"USER": "pat"}), "bob")
    index = clone.root / ".git" / "index.lock"
    assert index.exists()
    assert here.agree("merge", "ann").code == 0
    assert index.exists(), "only its own clone can finish it"
    assert not (home.root / ".git" / "index.lock").exists()
    assert "is finished or taken back now" in there("changes").err
    assert not index.exists()
    assert there.agree("merge", "bob").code == 0
    with merging.open_mover(home, open_repository(home.root)) as mover:
        assert there("undo", "bob").code == 0
        mover.discard("ann")
    known = {each.agent: each for each in merging.load(home).acceptances}
    assert known["ann"].discarded
    assert known["bob"].undone, "what another clone recorded meanwhile stays"


def killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
@of_git
def test_a_root_with_a_repository_of_its_own_is_not_touched(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    host = machine("host")
    make_root(host.root)
    write(host.root, {"api.py": "of another user\n"})
    before = files_of_user(host)
    spec = run(host, "bob", hire(home, "bob"))
    carry(host, "bob", spec, a_py="a = 1\n")
    assert files_of_user(host) == before
    assert open_workspace(host).ref(snapshot.ref_of(host, "bob")) is not None


@pytest.mark.long
@of_git
def test_hosts_fetch_the_history_from_a_remote(machine: Machine, home: TeamDirectory, tmp_path: Path) -> None:
    remote = tmp_path / "remote.git"
    git(tmp_path, "init", "-q", "--bare", str(remote))
    with pytest.raises(UsageError, match="does not have the commit"):
        workspaces.push(home, "kim", 1.0, str(remote))
    git(home.root, "push", "-q", str(remote), "main")
    pushed = workspaces.push(home, "kim", 1.0, str(remote))
    assert pushed.url == str(remote)
    home.workspace.save(pushed.replace(url="ext::touch /tmp/started"))
    with pytest.raises(BadDataError, match="transport 'ext' not allowed"):
        run(machine("third"), "eve", hire(home, "eve"))
    home.workspace.save(pushed)
    assert sum(each.size for each in pushed.bundles) < 1000
    host = machine("host")
    spec = run(host, "bob", hire(home, "bob"))
    assert (host.worktree("bob") / "new.py").exists()
    carry(host, "bob", spec, a_py="a = 1\n")
    found = workspaces.fetch(home, open_repository(home.root), "bob", worktree(spec))
    assert found is not None


@pytest.mark.long
def test_a_workspace_that_is_too_large_is_refused(
    machine: Machine, home: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "LIMIT", 100)
    with pytest.raises(UsageError, match="--git URL"):
        workspaces.push(home, "kim", 1.0)
    assert home.workspace.load() is None
    assert home.bundles.names() == []


@pytest.mark.long
def test_without_a_push_the_text_says_what_to_do(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    spec = hire(home, "bob")
    home.workspace.remove()
    with pytest.raises(UsageError, match="crewboard workspace push"):
        run(machine("host"), "bob", spec)
    shutil.rmtree(home.root / ".git")
    with pytest.raises(UsageError, match="no workspace to push"):
        workspaces.push(home, "kim", 1.0)


@pytest.mark.long
def test_bundles_that_are_replaced_while_they_are_read(
    machine: Machine, home: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "MOST_BUNDLES", 2)
    host, spec = begun(machine, home)
    carry(host, "bob", spec, a_py="a = 1\n")
    carry(host, "bob", spec, a_py="a = 2\n")
    read = bundles._read
    replaced: list[str] = []

    def replacing(team: TeamDirectory, bundle: Bundle) -> object:
        if bundle.id.startswith("bob.") and not replaced:
            replaced.append(carry(host, "bob", spec, a_py="a = 3\n"))
        return read(team, bundle)

    monkeypatch.setattr(bundles, "_read", replacing)
    run(machine("other"), "bob", spec, 2)
    assert replaced
    assert (machine("other").worktree("bob") / "a.py").read_text() == "a = 3\n"


@pytest.mark.long
def test_objects_that_arrived_half_are_brought_again(machine: Machine, home: TeamDirectory) -> None:
    """A host was killed after the commit, before the files."""
    workspaces.push(home, "kim", 1.0)
    host, other = machine("host"), machine("other")
    spec = run(host, "bob", hire(home, "bob"))
    commit = carry(host, "bob", spec, a_py="a = 1\n")
    run(other, "eve", hire(home, "eve"))
    half = git(host.workspace_repository, "cat-file", "commit", commit)
    (other.root / "half").write_text(half + "\n")
    there = git(
        other.workspace_repository, "hash-object", "-w", "-t", "commit", "--literally", str(other.root / "half")
    )
    assert there == commit
    run(other, "bob", spec, 2)
    assert (other.worktree("bob") / "a.py").read_text() == "a = 1\n"


@pytest.mark.long
def test_the_checkout_of_a_removed_agent_goes_from_its_host(
    machine: Machine, home: TeamDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspaces.push(home, "kim", 1.0)
    host = machine("host")
    run(host, "bob", hire(home, "bob"))
    roster.drop(home, "bob")
    monkeypatch.setattr(workspaces, "_MOST_LOOSE", 0)
    spec = run(host, "eve", hire(home, "eve"))
    assert not host.worktree("bob").exists()
    assert not host.worktree_run("bob").exists()
    for number in range(40):
        write(host.worktree("eve"), {f"{number}.py": f"{number}\n"})
    carry(host, "eve", spec)
    run(host, "eve", spec, 2)
    assert (host.worktree("eve") / "39.py").exists()
    assert git(host.worktree("eve"), "status", "--porcelain", "--untracked-files=no") == ""


@pytest.mark.long
@of_git
def test_an_agent_on_a_host_can_resolve_conflicts_after_a_push(machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    host, team = machine("host"), Team(home, environment={"USER": "kim"})
    spec = run(host, "bob", hire(home, "bob"))
    tree = host.worktree("bob")
    carry(host, "bob", spec, api_py="one\ntwo\nbob\nfour\n")
    write(home.root, {"api.py": "one\ntwo\nkim\nfour\n"})
    git(home.root, "commit", "-qam", "Mine")
    head = git(home.root, "rev-parse", "HEAD")
    changes.take_snapshot(team, "bob")
    with pytest.raises(UsageError, match="workspace push` gives it to hosts"):
        changes.ask_to_resolve(team, "bob")
    workspaces.push(home, "kim", 2.0)
    assert head in changes.ask_to_resolve(team, "bob").content
    workspaces.bring_newest_base(host)
    git(tree, "config", "user.name", "bob")
    git(tree, "config", "user.email", "bob@example.invalid")
    git(tree, "commit", "-qam", "Work")
    git(tree, "merge", "-q", "-X", "theirs", head)
    carry(host, "bob", spec)
    changes.take_snapshot(team, "bob")
    (bob,) = changes.list_changes(team)
    assert bob.applies
    run(machine("other"), "bob", spec, 2)
    assert git(machine("other").worktree("bob"), "log", "-1", "--format=%s").startswith("Merge commit")


@pytest.mark.long
@of_git
def test_a_lead_on_the_same_host_disturbs_no_snapshot(machine: Machine, home: TeamDirectory) -> None:
    """Between a snapshot and its way into the store, a lead looks at the work of its teammate."""
    host, spec = begun(machine, home)
    first = carry(host, "bob", spec, a_py="a = 1\n")
    write(host.worktree("bob"), {"a.py": "a = 2\n"})
    taken = snapshot.take(host, "bob", spec)
    lead = Team(host, by="lead")
    listed = changes.list_changes(lead) if changes.take_snapshot(lead, "bob") == () else []
    assert [each.commit for each in listed] == [taken.commit]
    assert "+a = 2" in changes.read_diff(lead, "bob")
    # As if it had been moved back.
    open_workspace(host).keep(snapshot.ref_of(host, "bob"), first)
    workspaces.Carrier(host, "bob", worktree(spec)).carry(taken, spec.run, 2.0)
    run(machine("other"), "bob", spec, 2)
    assert (machine("other").worktree("bob") / "a.py").read_text() == "a = 2\n"
    with pytest.raises(UsageError, match="only the operator merges"):
        changes.merge_into_branch(lead, "bob", "together")
    # On a host without the agent, it sees what is in the store.
    elsewhere = machine("elsewhere")
    run(elsewhere, "lead", hire(home, "lead"))
    away = Team(elsewhere, by="lead")
    assert changes.take_snapshot(away, "bob") == ()
    (bob, _) = sorted(changes.list_changes(away), key=lambda each: each.agent)
    assert [each.path for each in bob.files] == ["a.py"]


@pytest.mark.long
def test_an_exported_team_has_the_files_of_its_agents(home: TeamDirectory, machine: Machine, tmp_path: Path) -> None:
    workspaces.push(home, "kim", 1.0)
    spec = run(machine("host"), "bob", hire(home, "bob"))
    carry(machine("host"), "bob", spec, a_py="a = 1\n")
    transfer.export(Team(home), tmp_path / "kept")
    again = TeamDirectory(_folder(tmp_path / "again") / ".crewboard/crew")
    again.make()
    roster.create(again, "", 1.0)
    with transfer.taken_in(Team(again), tmp_path / "kept") as exported:
        transfer.import_(Team(again), exported)
    run(again, "bob", spec, 2)
    assert (again.worktree("bob") / "a.py").read_text() == "a = 1\n"


@pytest.mark.long
@pytest.mark.parametrize("level", ["bubblewrap", pytest.param("landlock", marks=pytest.mark.long)])
@of_git
def test_an_agent_on_a_host_reaches_its_checkout_alone(level: Level, machine: Machine, home: TeamDirectory) -> None:
    workspaces.push(home, "kim", 1.0)
    host = machine("host")
    write(host.root, {"private.txt": "of the host\n"})
    spec = run(host, "bob", hire(home, "bob"))
    run(host, "eve", hire(home, "eve"))
    objects, eve = host.workspace_repository / "objects", host.worktree("eve")
    tried = f"""
        cat {host.root}/private.txt {eve}/api.py {host.workspace_repository}/config; ls -A {host.root} {host.path}
        echo x > {host.root}/new; echo x > {eve}/new; echo x > {objects}/new; echo x >> api.py
        git log --format='%s' && cat api.py
    """
    with open_sandbox(host, "bob", spec.replace(flags=HireOptions(unsafe_no_sandbox=True))) as opened:
        # As for a project that is not below a home or a folder of temporary files, which are hidden anyway.
        policy = replace(opened.policy, host=replace(opened.policy.host, hidden=()))
        system.need(level, {"bubblewrap": bubblewrap, "landlock": landlock}[level].unavailable_reason(policy))
        printed = in_sandbox(replace(opened, level=level, policy=policy), tried).content
    assert printed.splitlines()[-8:-1] == ["Uncommitted files", "Begin", "one", "two", "three", "four", "x"]
    assert "[core]" not in printed
    assert "of the host" not in printed
    assert printed.count("three") == 1
    assert not [path for path in (host.root / "new", eve / "new", objects / "new") if path.exists()]


@pytest.mark.long
def test_a_replaced_worker_puts_nothing_into_the_store(database: str, tmp_path: Path) -> None:
    """Its lease ended, and another one may have its run: what it wrote since is no part of the agent's work."""
    home = TeamDirectory(_folder(tmp_path / "home") / ".crewboard/crew")
    home.make(database)
    roster.create(home, "", 1.0)
    make_root(home.root)
    workspaces.push(home, "kim", 1.0)
    host = TeamDirectory(_folder(tmp_path / "host") / ".crewboard/crew")
    host.join(database)
    spec = run(host, "bob", hire(home, "bob"))
    held = leases.take(host.agent("bob").lease)
    assert held is not None
    leases.fence(held, None, b"", lambda: None)
    first = carry(host, "bob", spec, a_py="a = 1\n")
    before = home.bundles.names()
    end_leases(database)
    with pytest.raises(LostLeaseError):
        carry(host, "bob", spec, a_py="a = 2\n")
    close_connections()
    found = home.carried("bob").load()
    assert found is not None
    assert found.commit == first
    assert sorted(home.bundles.names()) == sorted(before)
    close_connections()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
