"""Checkouts of agents, and the snapshots that bring them into the user's repository."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crewboard import env
from crewboard.errors import BadDataError, UsageError
from crewboard.records.agents import Spec
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process
from crewboard.worktrees import checkout, repository, snapshot
from crewboard.worktrees.repository import GitFailedError, NoRepositoryError, make_borrower, open_repository
from crewboard_tui.cli import doctor
from tests.crew import eventually
from tests.matrix import default
from tests.system import need_program
from tests.worktrees.conftest import Hired, git, write


def shown(root: Path, commit: str) -> dict[str, str]:
    """Return the files of a commit."""
    names = git(root, "ls-tree", "-r", "--name-only", commit).splitlines()
    return {name: git(root, "show", f"{commit}:{name}") for name in names}


def test_a_checkout_has_the_files_of_the_commit_on_a_branch_of_its_own(
    directory: TeamDirectory, root: Path, hired: Hired
) -> None:
    write(root, {"api.py": "not committed\n"})
    spec = hired("bob")
    tree = directory.worktree("bob")
    assert spec.worktree is not None
    assert (tree / "api.py").read_text() == "one\ntwo\nthree\n"
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "branch", "--show-current") == "crew/bob" == spec.worktree.branch
    assert git(tree, "rev-parse", "HEAD") == git(root, "rev-parse", "HEAD") == spec.worktree.base
    assert git(root, "branch", "--list") == "* main", "the user's repository gets no branch"


def test_a_checkout_borrows_objects_and_its_base_survives_garbage_collection(
    directory: TeamDirectory, root: Path, hired: Hired
) -> None:
    write(root, {"api.py": "gone soon\n"})
    git(root, "commit", "-qam", "Soon gone")
    hired("bob")
    git(root, "reset", "-q", "--hard", "HEAD^")
    git(root, "reflog", "expire", "--expire=now", "--all")
    git(root, "gc", "-q", "--prune=now")
    tree = directory.worktree("bob")
    assert git(tree, "show", "HEAD:api.py") == "gone soon"
    assert not list((tree / ".git/objects").glob("??"))


def test_a_checkout_begins_at_the_base_that_was_asked_for(directory: TeamDirectory, root: Path, hired: Hired) -> None:
    git(root, "tag", "v1")
    write(root, {"api.py": "newer\n"})
    git(root, "commit", "-qam", "Newer")
    hired("bob", "v1")
    assert (directory.worktree("bob") / "api.py").read_text() == "one\ntwo\nthree\n"
    with pytest.raises(UsageError, match="'--upload-pack' is no commit"):
        hired("eve", "--upload-pack")


def test_a_snapshot_has_what_was_committed_changed_added_and_removed(
    directory: TeamDirectory, root: Path, hired: Hired
) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    write(tree, {"pkg/core.py": "x = 2\n"})
    git(tree, "commit", "-qam", "Raise x")
    write(tree, {"new/file.txt": "fresh\n", "api.py": "one\n2\nthree\n", "left.pyc": "ignored"})
    (tree / ".gitignore").unlink()
    (tree / "left.pyc").unlink()
    taken = snapshot.take(directory, "bob", spec)
    assert shown(root, taken.commit) == {"api.py": "one\n2\nthree", "pkg/core.py": "x = 2", "new/file.txt": "fresh"}
    assert git(root, "rev-parse", "refs/crew/bob") == taken.commit
    assert taken.head == git(tree, "rev-parse", "HEAD")
    assert git(root, "log", "-1", "--format=%s", taken.head) == "Raise x"
    assert git(tree, "status", "--porcelain"), "the agent's own index is as it was"
    assert git(root, "status", "--porcelain") == ""
    git(root, "fsck", "--strict")


def test_a_snapshot_of_an_unchanged_checkout_is_the_one_before(directory: TeamDirectory, hired: Hired) -> None:
    spec = hired("bob")
    write(directory.worktree("bob"), {"a.txt": "a\n"})
    first = snapshot.take(directory, "bob", spec)
    assert snapshot.take(directory, "bob", spec) == first
    write(directory.worktree("bob"), {"a.txt": "b\n"})
    assert snapshot.take(directory, "bob", spec) != first


def test_a_copied_index_keeps_its_time(tmp_path: Path) -> None:
    """git trusts an index that is newer than a file: a change of the same size in the same second would be missed."""
    index = tmp_path / "index"
    index.write_bytes(b"DIRC")
    os.utime(index, (1, 1))
    snapshot._copy_index(index, tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_mtime == 1


@pytest.mark.long
def test_many_new_files_come_as_one_pack(directory: TeamDirectory, root: Path, hired: Hired) -> None:
    spec = hired("bob")
    write(directory.worktree("bob"), {f"f/{number}": str(number) for number in range(300)})
    taken = snapshot.take(directory, "bob", spec)
    assert len(shown_names(root, taken.commit)) == 303
    assert len(list((root / ".git/objects/pack").glob("*.pack"))) == 1


def shown_names(root: Path, commit: str) -> list[str]:
    return git(root, "ls-tree", "-r", "--name-only", commit).splitlines()


def test_odd_file_names_links_and_modes_are_taken_as_they_are(
    directory: TeamDirectory, root: Path, hired: Hired
) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    (Path(os.fsdecode(os.fsencode(tree) + b"/\xff\nname"))).write_text("odd\n")
    (tree / "link").symlink_to("/etc/shadow")
    write(tree, {"run.sh": "#!/bin/sh\n"})
    (tree / "run.sh").chmod(0o755)
    taken = snapshot.take(directory, "bob", spec)
    listed = git(root, "ls-tree", "-r", taken.commit)
    assert "120000 blob" in listed
    assert git(root, "show", f"{taken.commit}:link") == "/etc/shadow"
    assert "100755 blob" in listed
    assert '"\\377\\nname"' in listed


@pytest.mark.long
def test_files_that_cannot_be_taken_are_named(directory: TeamDirectory, hired: Hired) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    (tree / "inner").mkdir()
    git(tree / "inner", "init", "-q")
    write(tree, {"inner/file": "inside\n", "other": "kept\n"})
    empty = snapshot.take(directory, "bob", spec)
    assert any("inner" in line for line in empty.missing), empty.missing
    git(tree / "inner", "add", "-A")
    git(tree / "inner", "commit", "-qm", "Inner")
    taken = snapshot.take(directory, "bob", spec)
    assert "inner is a repository of its own: its files are not in the snapshot" in taken.missing
    found = snapshot.kept(directory, open_repository(directory.root), "bob", taken.base)
    assert found is not None
    assert found.missing == taken.missing


@pytest.mark.parametrize(
    "damage",
    default(["no .git", "config", "alternates", "index", "HEAD", "git file"], "no .git", "config", "alternates"),
)
def test_a_damaged_repository_of_the_agent_loses_no_file(
    damage: str, directory: TeamDirectory, root: Path, hired: Hired
) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    write(tree, {"api.py": "changed\n"})
    if damage in ("no .git", "git file"):
        shutil.rmtree(tree / ".git")
        if damage == "git file":
            (tree / ".git").write_text(f"gitdir: {root}/.git\n")
    else:
        path = tree / ".git" / {"alternates": "objects/info/alternates"}.get(damage, damage)
        path.write_text("/nowhere\n\0nonsense [")
    taken = snapshot.take(directory, "bob", spec)
    assert git(root, "show", f"{taken.commit}:api.py") == "changed"


PROGRAMS = """
[core]
    fsmonitor = "touch {mark}; false"
    hooksPath = "{tree}/hooks"
    sshCommand = "touch {mark}"
[filter "evil"]
    clean = "touch {mark}; cat"
    smudge = "touch {mark}; cat"
[diff "evil"]
    textconv = "touch {mark}; cat"
[alias]
    rev-parse = "!touch {mark}"
[include]
    path = "{tree}/more"
"""


def test_settings_of_the_agent_run_nothing(directory: TeamDirectory, root: Path, hired: Hired, tmp_path: Path) -> None:
    spec = hired("bob")
    tree, mark = directory.worktree("bob"), tmp_path / "mark"
    settings = PROGRAMS.format(mark=mark, tree=tree)
    (tree / ".git/config").write_text((tree / ".git/config").read_text() + settings)
    write(tree, {"more": settings, ".gitattributes": "* filter=evil diff=evil\n", "api.py": "changed\n"})
    for hook in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change", "fsmonitor-watchman"):
        write(tree, {f"hooks/{hook}": f"#!/bin/sh\ntouch {mark}\n", f".git/hooks/{hook}": f"#!/bin/sh\ntouch {mark}\n"})
        (tree / "hooks" / hook).chmod(0o755)
        (tree / ".git/hooks" / hook).chmod(0o755)
    before = git(root, "for-each-ref", "--format=%(refname)")
    taken = snapshot.take(directory, "bob", spec)
    assert git(root, "show", f"{taken.commit}:api.py") == "changed"
    assert not mark.exists()
    assert set(git(root, "for-each-ref", "--format=%(refname)").splitlines()) == {*before.splitlines(), "refs/crew/bob"}


def test_objects_that_git_warns_of_are_refused(directory: TeamDirectory, root: Path, hired: Hired) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    write(tree, {".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = --upload-pack=touch\n'})
    with pytest.raises(BadDataError, match=r"refused.*gitmodules"):
        snapshot.take(directory, "bob", spec)
    assert git(root, "for-each-ref", "refs/crew/bob") == ""
    git(root, "fsck")


@pytest.mark.linux("sandbox")
def test_a_snapshot_reads_no_objects_from_elsewhere(
    directory: TeamDirectory, root: Path, hired: Hired, tmp_path_factory: pytest.TempPathFactory
) -> None:
    private = tmp_path_factory.mktemp("private")
    git(private, "init", "-q")
    write(private, {"secret": "a secret\n"})
    git(private, "add", "-A")
    git(private, "commit", "-qm", "Secret")
    secret = git(private, "rev-parse", "HEAD")
    spec = hired("bob")
    tree = directory.worktree("bob")
    (tree / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n{root}/.git/objects\n")
    (tree / ".git/refs/heads/crew/bob").write_text(secret + "\n")
    taken = snapshot.take(directory, "bob", spec)
    assert taken.head == git(root, "rev-parse", "HEAD")


@pytest.mark.long
def test_a_sparse_checkout_stays_sparse(directory: TeamDirectory, root: Path, hired: Hired) -> None:
    git(root, "sparse-checkout", "set", "other")
    spec = hired("bob")
    tree = directory.worktree("bob")
    assert not (tree / "pkg").exists()
    write(tree, {"api.py": "changed\n", "outside/new": "new\n"})
    taken = snapshot.take(directory, "bob", spec)
    assert set(shown(root, taken.commit)) == {".gitignore", "api.py", "pkg/core.py", "outside/new"}


def test_a_repository_that_borrows_objects_gives_copies(
    directory: TeamDirectory, root: Path, hired: Hired, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = tmp_path_factory.mktemp("store")
    (root / ".git/objects").rename(store / "objects")
    (root / ".git/objects/info").mkdir(parents=True)
    (root / ".git/objects/info/alternates").write_text(f"{store}/objects\n")
    spec = hired("bob")
    tree = directory.worktree("bob")
    assert spec.worktree is not None
    assert spec.worktree.objects == ""
    assert not (tree / ".git/objects/info/alternates").exists()
    write(tree, {"api.py": "changed\n"})
    taken = snapshot.take(directory, "bob", spec)
    assert git(root, "show", f"{taken.commit}:api.py") == "changed"


@pytest.mark.long
def test_a_submodule_is_absent_and_stays_in_the_commit(
    directory: TeamDirectory, root: Path, hired: Hired, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    git(other, "init", "-q")
    write(other, {"file": "x\n"})
    git(other, "add", "-A")
    git(other, "commit", "-qm", "Other")
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-qm", "Add a submodule")
    spec = hired("bob")
    write(directory.worktree("bob"), {"api.py": "changed\n"})
    taken = snapshot.take(directory, "bob", spec)
    assert git(root, "diff", "--name-only", "HEAD", taken.commit) == "api.py"
    assert taken.missing == ()


@pytest.mark.long
def test_a_linked_worktree_and_a_detached_head_can_be_the_root(
    directory: TeamDirectory, root: Path, tmp_path: Path
) -> None:
    linked = tmp_path / "linked"
    git(root, "worktree", "add", "-q", "--detach", str(linked))
    team = TeamDirectory(linked / ".crewboard/default")
    team.make()
    worktree = checkout.make(team, "bob")
    spec = Spec(prompt="work", prompt_id="bob", type="code", worktree=worktree)
    write(team.worktree("bob"), {"api.py": "changed\n"})
    taken = snapshot.take(team, "bob", spec)
    assert git(root, "show", f"{taken.commit}:api.py") == "changed"


def test_without_a_repository_the_reason_is_said(directory: TeamDirectory) -> None:
    need_program("git")
    with pytest.raises(NoRepositoryError, match="not in a git repository"):
        checkout.make(directory, "bob")


def test_a_checkout_is_removed_whatever_is_in_it_and_its_snapshot_stays(
    directory: TeamDirectory, root: Path, hired: Hired
) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    write(tree, {"closed/file": "x\n"})
    taken = snapshot.take(directory, "bob", spec)
    (tree / "closed").chmod(0)
    checkout.remove(directory, "bob")
    assert list(directory.worktrees.iterdir()) == []
    assert git(root, "show", f"{taken.commit}:closed/file") == "x"
    assert hired("bob").worktree == spec.worktree


@pytest.mark.long
def test_files_outside_the_repository_are_copied_and_stay_outside(directory: TeamDirectory, root: Path) -> None:
    write(root, {".env": "KEY=1\n", "venv/lib/a.py": "a\n", "secret/key": "a secret\n"})
    (root / "venv/bin").symlink_to("/usr/bin")
    (root / "shortcut").symlink_to("secret")
    worktree = checkout.make(directory, "bob", copy=[".env", "venv", "missing", "shortcut/key", "api.py"])
    tree = directory.worktree("bob")
    assert (tree / ".env").read_text() == "KEY=1\n"
    assert (tree / "venv/lib/a.py").read_text() == "a\n"
    assert (tree / "venv/bin").readlink() == Path("/usr/bin")
    assert not (tree / "shortcut").exists(), "a link on the way is not followed"
    assert (tree / "api.py").read_text() == "one\ntwo\nthree\n"
    assert git(tree, "status", "--porcelain") == ""
    spec = Spec(prompt="work", prompt_id="bob", type="code", worktree=worktree)
    taken = snapshot.take(directory, "bob", spec)
    assert git(root, "diff", "--name-only", "HEAD", taken.commit) == ""


MAKE = """
import sys
from pathlib import Path
from crewboard.store.layout import TeamDirectory
from crewboard.records.agents import Spec
from crewboard.worktrees import checkout, snapshot
team = TeamDirectory(Path(sys.argv[1]))
print("begins", flush=True)
worktree = checkout.make(team, "bob")
(team.worktree("bob") / "new").write_text("new")
snapshot.take(team, "bob", Spec(prompt="work", prompt_id="bob", type="code", worktree=worktree))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "moments", [(0.02, 0.1, 0.2), pytest.param(tuple(n * 0.02 for n in range(20)), marks=pytest.mark.long)], ids=len
)
def test_a_kill_leaves_the_repository_valid_and_the_checkout_whole_or_absent(
    directory: TeamDirectory, root: Path, hired: Hired, moments: tuple[float, ...]
) -> None:
    write(root, {f"many/{number}": f"{number}\n" for number in range(300)})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Many files")
    marks = []
    for moment in moments:
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKE, str(directory.path)], stdout=subprocess.PIPE, start_new_session=True
        )
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"begins\n"
        marks.append(f"{env.WORKER}={process.mark(maker.pid, process.start_ticks(maker.pid))}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            maker.wait(moment)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(maker.pid, signal.SIGKILL)
        maker.wait()
        maker.stdout.close()
        git(root, "fsck", "--strict")
        if directory.worktree("bob").exists():
            assert len(list((directory.worktree("bob") / "many").iterdir())) == 300
            checkout.remove(directory, "bob")
        assert git(root, "status", "--porcelain") == ""
    # What a git leaves that is killed at the worst moment.
    for ref in ("+base/bob", "bob"):
        write(root, {f".git/refs/crew/{ref}.lock": ""})
    spec = hired("bob")
    snapshot.take(directory, "bob", spec)
    assert sorted(path.name for path in directory.worktrees.iterdir()) == ["bob", "bob.exclude", "bob.index"]
    eventually(lambda: not any(map(_has_process, marks)), "the end of all that they started")


def _has_process(mark: str) -> bool:
    for pid in process.parents():
        with contextlib.suppress(OSError):
            if mark.encode() in process.environment(pid).split(b"\0"):
                return True
    return False


def test_a_team_in_a_folder_of_a_repository_gets_its_copies_there(root: Path) -> None:
    team = TeamDirectory(root / "pkg/.crewboard/default")
    team.make()
    write(root, {"pkg/.env": "KEY=1\n"})
    checkout.make(team, "bob", copy=[".env"])
    assert (team.worktree("bob") / "pkg/.env").read_text() == "KEY=1\n"
    assert git(team.worktree("bob"), "status", "--porcelain") == ""


def test_a_repository_without_a_commit_is_refused_and_named(tmp_path: Path) -> None:
    need_program("git")
    git(tmp_path, "init", "-q")
    with pytest.raises(NoRepositoryError, match=f"{tmp_path.resolve()} has no commit yet"):
        open_repository(tmp_path)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Begin")
    assert open_repository(tmp_path).top == tmp_path.resolve()


def test_a_repository_of_another_user_is_refused_with_gits_remedy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A variable for git's own tests.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr(repository, "_VARIABLES", ("GIT_TEST_ASSUME_DIFFERENT_OWNER",))
    remedy = f"`env -u GIT_CONFIG_GLOBAL git config --global --add safe.directory {root.resolve()}`"
    with pytest.raises(NoRepositoryError, match=f"another user owns it; {re.escape(remedy)}"):
        open_repository(root)
    found = doctor.git(root)
    assert found.mark == "note"
    assert remedy in found.detail


@pytest.mark.parametrize("has_commit", [True, False])
def test_a_repository_with_a_line_break_in_its_path_is_refused(tmp_path: Path, *, has_commit: bool) -> None:
    need_program("git")
    folder = tmp_path / "two\nlines"
    folder.mkdir()
    git(folder, "init", "-q")
    if has_commit:
        git(folder, "commit", "-q", "--allow-empty", "-m", "Begin")
    with pytest.raises(NoRepositoryError, match="has a line break"):
        open_repository(folder)


def test_settings_that_decide_about_files_are_copied(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for value in ("input", "true"):
        git(root, "config", "--add", "core.autocrlf", value)
    with (root / ".git/config").open("a") as settings:
        settings.write("[core]\n\tignoreCase\n")
    repository = open_repository(root)
    own = make_borrower(repository, tmp_path_factory.mktemp("own"), [], "--bare")
    assert [own.git("config", "--type=bool", name) for name in ("core.autocrlf", "core.ignorecase")] == ["true", "true"]
    with pytest.raises(GitFailedError):
        own.git("config", "core.eol")
