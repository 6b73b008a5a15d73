"""The changes of an agent with a worktree, compared with plain git's own answers."""

import os
import shutil
import subprocess
from functools import partial
from typing import Any

import pytest

from crewboard.commands import changes
from crewboard.errors import UsageError
from crewboard.readmodel.needs import format_minute
from crewboard.records.team import Checked, Member
from crewboard.store import agents, roster, tasks
from crewboard.worktrees import snapshot
from crewboard.worktrees.changes import (
    Changes,
    FileChange,
    files_between,
    is_ancestor,
    merge_base,
    merged,
    trees_of,
)
from crewboard.worktrees.repository import Repository
from tests.cli.shell import COMMAND, Inside, clean_environment
from tests.matrix import default
from tests.worktrees.home import Home


def only(home: Home, name: str = "bob") -> Changes:
    (found,) = changes.list_changes(home.team, [name])
    return found


def test_committed_and_uncommitted_work_is_listed(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", "line 0\nnew\n")
    bob.commit("rewrite")
    bob.write("notes.txt", "one\ntwo\n")
    bob.delete("README")
    bob.snap()
    found = only(home)
    assert found.files == (
        FileChange("README", "deleted", 0, 1, mode="000000"),
        FileChange("api.py", "modified", 1, 19),
        FileChange("notes.txt", "added", 2, 0, old_mode="000000"),
    )
    assert (found.added, found.removed, found.behind, found.applies) == (3, 20, 0, True)
    assert (found.branch, found.base, found.commit) == ("crew/bob", bob.base, bob.snapshot)


def test_the_counts_are_those_of_git(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", home.read("api.py").replace("line 7\n", "seven\n") + "more\n")
    bob.write("a/b.txt", "x\n")
    bob.snap()
    said = home.git("diff", "--numstat", bob.base, bob.snapshot)
    assert "\n".join(f"{f.added}\t{f.removed}\t{f.path}" for f in only(home).files) == said


def test_renamed_binary_and_type_changes_are_named(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("core.py", home.read("api.py"))
    bob.delete("api.py")
    bob.write("image", b"\0\1\2")
    bob.write("README", "/etc/passwd", mode="120000")
    bob.snap()
    assert only(home).files == (
        FileChange("README", "type", 1, 1, mode="120000", target="/etc/passwd"),
        FileChange("core.py", "renamed", 0, 0, "api.py"),
        FileChange("image", "added", None, None, old_mode="000000"),
    )
    said = changes.read_diff(home.team, "bob")
    assert "rename from api.py\nrename to core.py\n" in said
    assert "Binary files /dev/null and b/image differ" in said
    listed = Inside(home.root)("changes", "bob")
    assert "T        +1 -1  README → /etc/passwd" in listed.out


@pytest.mark.long
def test_a_change_of_the_mode_alone_is_listed(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", home.read("api.py"), mode="100755")
    bob.snap()
    assert Inside(home.root)("changes", "bob").out.splitlines()[1].endswith("+0 -0  api.py (mode 100755)")


def test_a_diff_of_nothing_says_so(home: Home) -> None:
    home.hire("bob")
    said = Inside(home.root)("changes", "bob", "--diff")
    assert (said.out, said.err) == ("", "no changes\n")


@pytest.mark.long
def test_the_printed_diff_is_a_patch_that_git_applies(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("image", b"\0\1\2" * 50)
    bob.write("run.sh", "exit\n", mode="100755")
    bob.snap()
    printed = Inside(home.root)("changes", "bob", "--diff").out
    home.git("apply", "--index", "-", stdin=printed.encode())
    assert home.git("write-tree") == home.git("rev-parse", f"{bob.snapshot}^{{tree}}")


ODD = "a\r\nb\x1b[31m\x0c\u202e\n".encode() + b"caf\xe9\n"


@pytest.mark.long
def test_a_patch_outside_a_terminal_has_its_own_bytes(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("odd.txt", ODD)
    bob.snap()
    command = [*COMMAND, "changes", "bob", "--diff"]
    patch = subprocess.run(command, cwd=home.root, env=clean_environment(), capture_output=True, check=True).stdout
    home.git("apply", "--index", "-", stdin=patch)
    assert home.git("write-tree") == home.git("rev-parse", f"{bob.snapshot}^{{tree}}")


@pytest.mark.long
def test_a_patch_on_a_terminal_shows_marks(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("odd.txt", ODD)
    bob.snap()
    ours, theirs = os.openpty()
    command = [*COMMAND, "changes", "bob", "--diff"]
    subprocess.run(command, cwd=home.root, env=clean_environment(), stdout=theirs, stderr=subprocess.PIPE, check=True)
    os.close(theirs)
    shown = os.read(ours, 4096)
    os.close(ours)
    assert "+b␛[31m␌<U+202E>".encode() in shown
    assert b"\x1b" not in shown


_KEY = f"sk-ant-api03-{'x' * 71}"


@pytest.mark.long
def test_a_patch_that_hides_a_key_cannot_be_applied(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("README", "hello\nyou\n")
    bob.write("secret.md", f"one\napi_key = {_KEY}\n")
    bob.snap()
    hides = Inside(home.root)("changes", "bob", "--diff")
    assert "+api_key = [key hidden: 84 characters]\n" in hides.out
    assert hides.code == 0
    assert hides.err.startswith(
        "1 line holds what looks like a key, which is hidden: `git apply` refuses this patch; "
        "`crewboard changes bob --diff --reveal` shows it\n"
    )
    for program in (["git", "apply"], ["git", "apply", "--recount"], ["patch", "-p1", "--batch"]):
        if shutil.which(program[0]) is not None:
            done = subprocess.run(program, cwd=home.root, input=hides.out.encode(), capture_output=True, check=False)
            assert done.returncode > 0
    assert home.git("status", "--porcelain") == "", "nothing of it is written"


@pytest.mark.long
def test_a_revealed_patch_is_one_that_git_applies(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("secret.md", f"api_key = {_KEY}\n")
    bob.snap()
    revealed = Inside(home.root)("changes", "bob", "--diff", "--reveal")
    assert revealed.err.endswith("merges exactly this\n")
    home.git("apply", "--index", "-", stdin=revealed.out.encode())
    assert home.read("secret.md") == f"api_key = {_KEY}\n"
    assert home.git("write-tree") == home.git("rev-parse", f"{bob.snapshot}^{{tree}}")
    Inside(home.root)("changes", "bob", "--reveal").refused(2, "--reveal is for --diff")
    Inside(home.root)("changes", "bob", "--reveal", "--json").refused(2, "--reveal is for --diff")


@pytest.mark.parametrize(
    "name", default([b"caf\xe9", b"a\tb", b"a\nb", b":top", b"*", b" x ", b'"q"'], b"caf\xe9", b"a\nb", b":top", b'"q"')
)
def test_any_file_name_works(home: Home, name: bytes) -> None:
    bob = home.hire("bob")
    bob.write(name, "x\n")
    bob.write("other", "other\n")
    bob.snap()
    assert FileChange(os.fsdecode(name), "added", 1, 0, old_mode="000000") in only(home).files
    said = changes.read_diff(home.team, "bob", os.fsdecode(name))
    assert said.count("diff --git") == 1
    assert "+x" in said
    shown = Inside(home.root)("changes", "bob")
    assert shown.code == 0
    assert len(shown.out.splitlines()) == 3


def test_the_diff_of_all_files_is_that_of_git(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", "changed\n")
    bob.write("b", "b\n")
    bob.snap()
    said = changes.read_diff(home.team, "bob")
    assert said == home.git("diff", "-M", bob.base, bob.snapshot)
    assert changes.read_diff(home.team, "bob", "b") == home.git("diff", bob.base, bob.snapshot, "--", "b")


def test_the_diff_of_a_renamed_file_shows_the_renaming(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("core.py", home.read("api.py"))
    bob.delete("api.py")
    bob.snap()
    assert "similarity index 100%" in changes.read_diff(home.team, "bob", "core.py")


def test_attributes_and_drivers_run_nothing(home: Home) -> None:
    home.git("config", "diff.evil.textconv", "touch ran; cat")
    home.git("config", "diff.evil.command", "touch ran")
    bob = home.hire("bob")
    bob.write(".gitattributes", "* diff=evil merge=evil\n")
    bob.write("api.py", "x\n")
    bob.snap()
    assert "-line 3" in changes.read_diff(home.team, "bob")
    assert not list(home.root.rglob("ran"))


@pytest.mark.parametrize("where", [".gitattributes", "lib/.gitattributes", "index"])
def test_no_attribute_hides_what_is_merged(home: Home, where: str) -> None:
    bob = home.hire("bob")
    bob.write("lib/fresh.js", "run()\n")
    bob.snap()
    # An agent of the shared tree can write it there, uncommitted.
    home.write(".gitattributes" if where == "index" else where, "*.js -diff\n")
    if where == "index":
        home.git("add", ".gitattributes")
    assert "+run()" in changes.read_diff(home.team, "bob")
    (file,) = only(home).files
    assert (file.path, file.added) == ("lib/fresh.js", 1)


def test_commits_of_the_user_are_behind_and_no_change_of_the_agent(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    home.write("user.txt", "mine\n")
    home.commit("mine")
    found = only(home)
    assert [each.path for each in found.files] == ["notes.txt"]
    assert (found.behind, found.applies) == (1, True)


def test_what_the_agent_merged_from_the_user_is_no_change(home: Home) -> None:
    bob = home.hire("bob")
    home.write("user.txt", "mine\n")
    tip = home.commit("mine")
    bob.merge(tip, f"{tip}^{{tree}}")
    bob.write("notes.txt", "x\n")
    bob.snap()
    found = only(home)
    assert [each.path for each in found.files] == ["notes.txt"]
    assert (found.base, found.behind) == (tip, 0)


def test_conflicts_are_named(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", "bob\n")
    bob.write("fine", "x\n")
    bob.snap()
    home.write("api.py", "user\n")
    home.commit("mine")
    found = only(home)
    assert (found.applies, found.conflicts) == (False, ("api.py",))


@pytest.mark.long
def test_agents_that_do_not_merge_with_each_other_collide(home: Home) -> None:
    amy, bob, cid = home.hire("amy"), home.hire("bob"), home.hire("cid")
    amy.write("api.py", home.read("api.py").replace("line 7\n", "amy\n"))
    bob.write("api.py", home.read("api.py").replace("line 7\n", "bob\n"))
    cid.write("api.py", home.read("api.py").replace("line 19\n", "cid\n"))
    for agent in (amy, bob, cid):
        agent.snap()
    found = {each.agent: each.collides_with for each in changes.list_changes(home.team)}
    assert found == {"amy": ("bob",), "bob": ("amy",), "cid": ()}
    assert only(home).collides_with == ("amy",)
    run = Inside(home.root)
    assert [each["collides_with"] for each in run("changes", "--json").json] == [["bob"], ["amy"], []]
    assert run("changes", "bob").out.splitlines()[0].endswith("merges: cleanly; collides with amy")
    tasks.add(home.directory, "work", 1.0, owner="bob", check="make")
    tree = home.git("rev-parse", f"{bob.snap()}^{{tree}}")
    agents.save_checked(home.directory.agent("bob"), Checked(at=1, command="make", exit_code=1, tree=tree), None)
    assert run("changes").out.splitlines()[2].endswith("refused; collides with amy")


def test_a_history_of_its_own_is_compared_with_the_base(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    tree = home.git("rev-parse", f"{bob.snap()}^{{tree}}")
    bob.head = home.git("commit-tree", tree, "-m", "orphan")
    bob.snap()
    found = only(home)
    assert (found.base, found.applies) == (bob.base, True)
    assert [each.path for each in found.files] == ["notes.txt"]


def test_nothing_is_changed_before_the_first_snapshot(home: Home) -> None:
    home.hire("bob")
    home.directory.worktree("bob").mkdir(parents=True)
    found = only(home)
    assert (found.files, found.behind, found.applies) == ((), 0, True)


def test_agents_of_the_shared_tree_are_left_out(home: Home) -> None:
    roster.put(home.directory, Member(name="ann", type="code"))
    home.hire("bob")
    home.directory.worktree("bob").mkdir(parents=True)
    assert [each.agent for each in changes.list_changes(home.team)] == ["bob"]
    with pytest.raises(UsageError, match="no worktree"):
        changes.read_diff(home.team, "ann")


def test_listing_changes_no_ref_and_no_file(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", "x\n")
    bob.snap()
    home.write("dirty", "x\n")
    before = home.git("for-each-ref"), home.git("status", "--porcelain")
    changes.list_changes(home.team)
    assert (home.git("for-each-ref"), home.git("status", "--porcelain")) == before


@pytest.mark.long
def test_what_a_snapshot_lacks_is_said_wherever_changes_are_shown(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    home.directory.worktrees.mkdir()
    snapshot.missing_of(home.directory, "bob").write_bytes(b"inner\xe9 is a repository of its own\0open secret: denied")
    run = Inside(home.root)
    assert only(home).missing == ("inner\udce9 is a repository of its own", "open secret: denied")
    assert run("changes", "--json").json[0]["missing"][1] == "open secret: denied"
    for shown in (run("changes"), run("changes", "bob")):
        assert "bob: not taken in: open secret: denied" in shown.err


def test_changes_as_json(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("core.py", home.read("api.py"), mode="100755")
    bob.delete("api.py")
    bob.write("README", "api.py", mode="120000")
    bob.snap()
    assert Inside(home.root)("changes", "--json").json == [
        {
            "agent": "bob", "branch": "crew/bob", "base": bob.base,
            "files": [
                {
                    "path": "README", "old_path": None, "status": "type", "added": 1, "removed": 1,
                    "mode": "120000", "old_mode": "100644", "target": "api.py",
                },
                {
                    "path": "core.py", "old_path": "api.py", "status": "renamed", "added": 0, "removed": 0,
                    "mode": "100755", "old_mode": "100644", "target": None,
                },
            ],
            "added": 1, "removed": 1, "behind": 0, "applies": True, "merged": False, "conflicts": [], "missing": [],
            "collides_with": [], "check": None, "review": None, "sha256": changes.newest(home.team, "bob").sha256,
        }
    ]  # fmt: skip


def test_changes_name_the_last_check_of_the_agent(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    for at in (5.0, 9.0, 7.0):
        task = tasks.add(home.team.directory, "work", 1.0, owner="bob", check="make test")
        checked = Checked(at=at, command="make test", exit_code=0, result=f"results/{at}.txt")
        tasks.note_check(home.team.directory, task.id, "bob", checked)
    run = Inside(home.root)
    (found,) = run("changes", "--json").json
    assert found["check"] == {
        "state": "passed", "at": 9.0, "command": "make test", "exit_code": 0, "result": "results/9.0.txt", "tree": "",
    }  # fmt: skip
    assert run("changes", "bob").out.splitlines()[0].endswith(f" · ✓ {format_minute(9.0)} make test")


@pytest.mark.long
def test_changes_name_the_last_review_and_what_came_since(home: Home) -> None:
    run, bob = Inside(home.root), home.hire("bob")
    bob.write("notes.txt", "good\n")
    bob.snap()
    task = bob.approved(since=bob.base, at=9.0)
    at = format_minute(9.0)
    said = run("changes", "--json").json[0]["review"]
    trees = {"since": home.git("rev-parse", f"{bob.base}^{{tree}}"), "tree": bob.tree()}
    assert said == {"state": "same", "task": task, "of": "bob", "by": "qa", "at": 9.0, **trees}
    for given in ((), ("bob",), ("bob", "--diff")):
        assert f"bob: reviewed by qa {at}" in run("changes", *given).err.splitlines()
    bob.write("notes.txt", "evil\n")
    bob.snap()
    assert run("changes", "--json").json[0]["review"] == {**said, "state": "old"}
    for given in ((), ("bob",), ("bob", "--diff")):
        assert f"bob: reviewed by qa {at}, changed since" in run("changes", *given).err.splitlines()
    # Back at what was reviewed.
    bob.write("notes.txt", "good\n")
    bob.commit("a commit changes no file")
    bob.snap()
    assert review_of(home) == f"reviewed by qa {at}"


def review_of(home: Home) -> str | None:
    review = only(home).review
    return changes.describe_review(review) if review is not None else None


@pytest.mark.long
def test_a_review_that_was_not_shown_earlier_changes_says_so(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("evil.txt", "before the task\n")
    before = bob.snap()
    bob.write("notes.txt", "good\n")
    bob.snap()
    bob.approved(since=before, at=9.0)
    assert review_of(home) == f"reviewed by qa {format_minute(9.0)}, without earlier changes"
    # What came before was reviewed too, for another task.
    bob.approved(since=bob.base, upto=before, at=8.0)
    assert review_of(home) == f"reviewed by qa {format_minute(9.0)}"


@pytest.mark.long
def test_a_review_that_was_not_shown_a_removal_says_so(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "one\n")
    bob.snap()
    assert Inside(home.root).agree("merge", "bob").code == 0
    # Before the task it takes away what was merged: it is where its checkout began.
    bob.delete("notes.txt")
    before = bob.snap()
    bob.write("other.txt", "two\n")
    bob.snap()
    at = home.team.now()
    bob.approved(since=before, at=at)
    assert review_of(home) == f"reviewed by qa {format_minute(at)}, without earlier changes"


@pytest.mark.long
def test_a_review_is_about_work_that_is_not_merged(home: Home) -> None:
    run, bob = Inside(home.root), home.hire("bob")
    bob.write("notes.txt", "one\n")
    first = bob.snap()
    bob.approved(since=bob.base, at=home.team.now())
    assert review_of(home) is not None
    assert run.agree("merge", "bob").code == 0
    assert review_of(home) is None, "nothing is left to merge"
    bob.write("notes.txt", "two\n")
    bob.snap()
    assert review_of(home) is None, "the new work has no review"
    bob.approved(since=first, at=9.0)
    assert review_of(home) is None, "that review was before the merge"
    at = home.team.now()
    bob.approved(since=first, at=at)
    assert review_of(home) == f"reviewed by qa {format_minute(at)}", "what came before is merged"
    run("undo")
    assert review_of(home) == f"reviewed by qa {format_minute(at)}", "what came before is reviewed too"


@pytest.mark.long
def test_the_review_of_work_that_was_thrown_away_is_about_nothing(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("notes.txt", "one\n")
    bob.snap()
    task = bob.approved(since=bob.base, at=9.0)
    assert Inside(home.root)("discard", "bob", "--yes").code == 0
    bob.write("notes.txt", "two\n")
    bob.snap()
    assert review_of(home) is None
    kept = tasks.load(home.directory, task).reviewed
    assert kept is not None
    assert (kept.by, kept.tree) == ("qa", "")


def test_a_review_starts_no_more_processes_of_git(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    bob, ran = home.hire("bob"), list[str]()
    bob.write("notes.txt", "one\n")
    bob.snap()
    program = Repository.git

    def counted(self: Repository, *arguments: str, **more: Any) -> str:
        ran.append(arguments[0])
        return program(self, *arguments, **more)

    monkeypatch.setattr(Repository, "git", counted)

    def processes() -> list[str]:
        for known in (merge_base, is_ancestor, merged, trees_of, files_between):
            known.cache_clear()
        ran.clear()
        only(home)
        return sorted(ran)

    # The first reading also records what is not merged.
    only(home)
    without = processes()
    bob.approved(since=bob.base, at=9.0)
    assert only(home).review is not None
    assert processes() == without


def test_work_that_was_merged_in_another_clone_is_merged_here(home: Home) -> None:
    run = Inside(home.root)
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    assert [each["merged"] for each in run("changes", "--json").json] == [False]
    # As after a pull of the merge commit that another clone made.
    home.write("notes.txt", "x\n")
    home.commit("merge the work of bob")
    (found,) = run("changes", "--json").json
    assert (found["merged"], found["added"], found["applies"]) == (True, 1, True)
    assert run("changes").out.splitlines()[1].endswith("merged here")
    assert run("merge", "bob").out.startswith("nothing to merge")
    home.write("notes.txt", "y\n")
    home.commit("go on")
    assert [each["merged"] for each in run("changes", "--json").json] == [False]


@pytest.mark.long
def test_an_export_and_an_import_say_which_work_is_not_in_it(home: Home) -> None:
    run, out = Inside(home.root), home.root.parent / "out"
    bob = home.hire("bob")
    bob.write("notes.txt", "x\n")
    bob.snap()
    home.hire("ann")
    exported = run("export", str(out))
    assert exported.err == f"bob has unmerged work in 1 file (+1 -0), which is not in {out}\n"
    assert run("team", "create", "back").code == 0
    back = partial(run, "--team", "back")
    assert run.agree("--team", "back", "import", str(out)).code == 0
    assert back("changes").err.startswith("no checkout is here of bob, ann: each was discarded, or not imported")
    assert "bob has no checkout: it was discarded, or not imported" in back("changes", "bob").err
    merged = back("merge", "bob")
    assert (merged.code, merged.out) == (0, "nothing to merge: no checkout of bob is here, and no snapshot of one\n")
    assert run.agree("merge", "bob").code == 0
    assert run("export", str(home.root.parent / "again")).err == ""


@pytest.mark.long
def test_changes_in_words(home: Home) -> None:
    run = Inside(home.root)
    assert run("changes").err.startswith("no agent has a worktree")
    bob = home.hire("bob")
    bob.write("notes.txt", "x\x1b[31m\n")
    bob.snap()
    assert run("changes").out.splitlines()[1].split() == ["bob", "+1", "-0", "1", "0", "–", "cleanly"]
    assert run("changes", "--stat").out == run("changes", "bob").out
    assert "A        +1 -0  notes.txt" in run("changes", "bob").out
    assert "+x\x1b[31m" in run("changes", "bob", "--diff").out
    run("changes", "--stat", "--diff").refused(2, "one of")


def test_status_names_the_worktree(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crewboard.protocol.supervisor_client.ensure_running", lambda _: None)
    bob = home.hire("bob")
    (agent,) = Inside(home.root)("status", "--json").json["agents"]
    path = str(home.directory.worktree("bob"))
    assert agent["worktree"] == {"path": path, "branch": "crew/bob", "base": bob.base}
