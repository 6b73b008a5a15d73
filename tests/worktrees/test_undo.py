"""Undo of what agents changed: in the shared tree what their file tools wrote, in a checkout anything."""

import contextlib
import os
import shutil
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from msgspec.structs import replace

from crewboard.commands import changes, context, messages, put_back
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, TryLaterError, UsageError
from crewboard.records.agents import Spec
from crewboard.records.base import convert
from crewboard.records.events import FileKept, Intake, SnapshotTaken, ToolResult
from crewboard.records.team import Member
from crewboard.store import agents, journal, mailbox, roster
from crewboard.store.layout import TeamDirectory
from crewboard.worker.tools import file_server
from crewboard.worker.tools.workspace import Workspace
from crewboard.worktrees import snapshot
from crewboard.worktrees.put_back import Tree
from tests.cli.files import alive, enlist, set_status
from tests.cli.shell import Inside
from tests.crew import Crew, eventually
from tests.matrix import default
from tests.model import calls, says
from tests.worktrees.conftest import Hired, git, hire_with_checkout, make_root, write
from tests.worktrees.home import Home


class Hand:
    """The file tools of an agent of the shared tree, and the journal that its worker would write."""

    def __init__(self, team: Team, name: str) -> None:
        enlist(team, name)
        self.team, self.agent = team, team.directory.agent(name)
        self.workspace = Workspace(team.directory.root, team.directory.results)
        self._calls = 0

    def begin(self, ident: str) -> None:
        """Begin an assignment."""
        journal.append(self.agent.journal, Intake(ts=1, run=1, assignment=ident))

    def __call__(self, tool: str, *, made: bool = True, result: bool = True, **given: str) -> None:
        """Call a tool. Without `made` the worker is killed before the change, without `result` after it."""
        self._calls += 1
        call = str(self._calls)
        reply = file_server.answer(self.workspace, {"name": tool, "input": given, "plan": True})
        assert not reply["is_error"], reply
        planned = reply["planned"]
        before = planned.pop("before")
        before = None if before is None else agents.keep_content(self.agent, b64decode(before))
        event = FileKept(ts=1, run=1, id=mailbox.new_id(), tool_use_id=call, before=before, **planned)
        journal.append(self.agent.journal, event)
        if made:
            reply = file_server.answer(self.workspace, {"name": "make", "input": {}})
            assert not reply["is_error"], reply
            if result:
                journal.append(self.agent.journal, ToolResult(ts=1, run=1, tool_use_id=call, name=tool, content=""))


@pytest.fixture
def team(directory: TeamDirectory) -> Team:
    return Team(directory, environment={"USER": "user"})


@pytest.fixture
def bob(team: Team) -> Hand:
    """Return an agent that changed a file, and created another in a new folder."""
    write(team.directory.root, {"a.py": "one\ntwo\n", "run.sh": "echo\n", "raw.bin": "\0old"})
    (team.directory.root / "run.sh").chmod(0o750)
    hand = Hand(team, "bob")
    hand.begin("first")
    hand("edit_file", path="a.py", old_text="two", new_text="2")
    hand("write_file", path="new/deep/b.py", content="b\n")
    return hand


def contents(root: Path) -> dict[str, bytes]:
    """Return all files of the workspace."""
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if ".crewboard" not in path.parts}
    return {name: path.read_bytes() if path.is_file() else b"" for name, path in found.items()}


def test_the_last_assignment_is_reversed_and_then_the_one_before(crew_on: Callable[..., Crew]) -> None:
    crew = crew_on([
        calls("write_file", path="lib/new.py", content="x = 1\n"), calls("write_file", path="a.py", content="1\n"),
        says("one"),
        calls("edit_file", path="a.py", old_text="1", new_text="3"), calls("bash", command="echo x > lib/made"),
        # Fails once its folder is made.
        calls("write_file", path=f"new/{'x' * 300}", content="1\n"),
        says("two"),
    ])  # fmt: skip
    write(crew.root, {"a.py": "one\n"})
    before = contents(crew.root)
    crew.run("bob", "code", "work", unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    between = contents(crew.root)
    crew.answer_to("bob", messages.send(crew.team, "bob", "go on").id)
    crew.wait_for("bob", "idle")
    assert [each.path for each in put_back.undo_file_tools(crew.team, "bob").files] == ["a.py"]
    assert contents(crew.root) == {**between, "lib/made": b"x\n"}
    (crew.root / "lib/made").unlink()
    assert [each.removed for each in put_back.undo_file_tools(crew.team, "bob").files] == [True, False]
    assert contents(crew.root) == before
    with pytest.raises(UsageError, match="no more changes"):
        put_back.undo_file_tools(crew.team, "bob")
    # Told, and yet at rest: such mail waits for the next turn.
    told = [each for each in mailbox.read(crew.directory, "bob").messages if each.type == "files_put_back"]
    assert ["lib/new.py (removed)" in each.content for each in told] == [False, True]
    eventually(lambda: crew.see("bob").state == "idle", "an agent at rest")


def test_what_was_in_a_file_is_kept_where_no_agent_reads_it(bob: Hand) -> None:
    (kept,) = bob.agent.kept.iterdir()
    assert kept.read_text() == "one\ntwo\n"
    assert (kept.stat().st_mode & 0o777, bob.agent.kept.stat().st_mode & 0o777) == (0o600, 0o700)


def test_modes_line_ends_and_bytes_come_back(team: Team, bob: Hand) -> None:
    root = team.directory.root
    write(root, {"dos.txt": ""})
    (root / "dos.txt").write_bytes(b"a\r\nb\r\n")
    before = contents(root)
    bob.begin("second")
    bob("write_file", path="run.sh", content="rm\n")
    bob("write_file", path="raw.bin", content="new")
    bob("edit_file", path="dos.txt", old_text="b", new_text="c\nd")
    put_back.undo_file_tools(team, "bob")
    assert contents(root) == before
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750


def test_a_file_that_was_changed_since_is_named_and_nothing_is_touched(team: Team, bob: Hand) -> None:
    write(team.directory.root, {"new/deep/b.py": "mine\n"})
    before = contents(team.directory.root)
    with pytest.raises(BadDataError, match=r"new/deep/b.py \(it was changed since\)"):
        put_back.undo_file_tools(team, "bob")
    assert contents(team.directory.root) == before
    put_back.undo_file_tools(team, "bob", path="a.py")
    assert (team.directory.root / "a.py").read_text() == "one\ntwo\n"
    assert (team.directory.root / "new/deep/b.py").read_text() == "mine\n"


def test_a_file_that_another_agent_changed_since_names_that_agent(team: Team, bob: Hand) -> None:
    gil = Hand(team, "gil")
    gil.begin("later")
    gil("write_file", path="new/deep/b.py", content="gil\n")
    with pytest.raises(BadDataError, match=r"b.py \(gil changed it since; `.* undo gil` first\)"):
        put_back.undo_file_tools(team, "bob")
    put_back.undo_file_tools(team, "gil")
    assert put_back.undo_file_tools(team, "bob").assignment == "first"


def test_what_another_program_did_in_between_is_not_reversed(team: Team, bob: Hand) -> None:
    write(team.directory.root, {"a.py": "formatted\n"})
    file_server.answer(bob.workspace, {"name": "read_file", "input": {"path": "a.py"}})
    bob("write_file", path="a.py", content="last\n")
    with pytest.raises(BadDataError, match="something else than the agent's file tools"):
        put_back.undo_file_tools(team, "bob")
    assert (team.directory.root / "a.py").read_text() == "last\n"


@pytest.mark.parametrize("made", [True, False])
def test_a_kill_between_keeping_and_writing_loses_nothing(team: Team, bob: Hand, made: bool) -> None:
    bob.begin("second")
    bob("write_file", path="a.py", content="half\n", made=made, result=False)
    bob.begin("third")
    found = put_back.undo_file_tools(team, "bob")
    assert (team.directory.root / "a.py").read_text() == "one\n2\n"
    assert found.assignment == "second"


def test_an_undo_that_was_killed_is_finished(team: Team, bob: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Tree, "remove", None)
        with pytest.raises(TypeError):
            put_back.undo_file_tools(team, "bob")
    assert (team.directory.root / "a.py").read_text() == "one\ntwo\n"
    assert bob.agent.undone.load() is None
    put_back.undo_file_tools(team, "bob")
    assert not (team.directory.root / "new").exists()


@pytest.mark.parametrize("where", ["new", "new/deep"])
def test_a_folder_that_became_a_link_leads_nowhere(team: Team, bob: Hand, where: str, tmp_path: Path) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    write(outside, {"deep/b.py": "b\n", "b.py": "b\n"})
    there = team.directory.root / where
    there.rename(team.directory.root / "moved")
    there.symlink_to(outside)
    with pytest.raises(BadDataError, match="no folder any more"):
        put_back.undo_file_tools(team, "bob")
    assert (outside / "deep/b.py").exists()
    assert (outside / "b.py").exists()
    assert (team.directory.root / "a.py").read_text() == "one\n2\n"


def test_a_link_in_place_of_a_file_is_not_followed(team: Team, bob: Hand, tmp_path: Path) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.write_text("one\n2\n")
    (team.directory.root / "a.py").unlink()
    (team.directory.root / "a.py").symlink_to(outside)
    with pytest.raises(BadDataError, match="no regular file"):
        put_back.undo_file_tools(team, "bob")
    assert outside.read_text() == "one\n2\n"


def test_what_has_a_name_outside_is_not_kept(team: Team, bob: Hand, tmp_path: Path) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.write_text("secret\n")
    os.link(outside, team.directory.root / "linked")
    bob("write_file", path="linked", content="x\n")
    assert not [path for path in bob.agent.kept.iterdir() if path.read_text() == "secret\n"]
    with pytest.raises(BadDataError, match="hard link"):
        put_back.undo_file_tools(team, "bob", path="linked")


def test_the_oldest_content_goes_when_too_much_is_kept(team: Team, bob: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MAX_KEPT", 5)
    bob.begin("second")
    bob("write_file", path="raw.bin", content="new")
    assert len(list(bob.agent.kept.iterdir())) == 1
    put_back.undo_file_tools(team, "bob")
    with pytest.raises(BadDataError, match=r"a.py \(its old content is not kept any more\)"):
        put_back.undo_file_tools(team, "bob")


def test_a_change_that_came_between_check_and_write_is_not_overwritten(team: Team, bob: Hand) -> None:
    request = {"name": "write_file", "input": {"path": "a.py", "content": "x"}, "plan": True}
    assert not file_server.answer(bob.workspace, request)["is_error"]
    write(team.directory.root, {"a.py": "mine, and longer\n"})
    refused = file_server.answer(bob.workspace, {"name": "make", "input": {}})
    assert refused["content"] == "a.py was changed by another program just now; read it again"
    assert file_server.answer(bob.workspace, {"name": "make", "input": {}})["is_error"]


def test_an_agent_at_work_is_not_undone(team: Team, bob: Hand) -> None:
    set_status(team, "bob", state="working")
    with alive(team, "bob"), pytest.raises(TryLaterError, match=r"bob is working.*; wait for it, or stop it"):
        put_back.undo_file_tools(team, "bob")
    set_status(team, "bob", state="waiting", doing="plan waits for approval")
    with alive(team, "bob"), pytest.raises(TryLaterError, match=r"bob is waiting \(plan waits for approval\), so"):
        put_back.undo_file_tools(team, "bob")


def test_undo_in_the_shared_tree_in_words_and_as_json(team: Team, bob: Hand) -> None:
    root = team.directory.root
    run = Inside(root)
    dry = run("undo", "bob", "--dry-run")
    assert dry.out.splitlines() == ["would put back a.py", "would remove new/deep/b.py"]
    assert "commands" in dry.err
    write(root, {"a.py": "mine\n"})
    run("undo", "bob").refused(65, "a.py (it was changed since)")
    write(root, {"a.py": "one\n2\n"})
    assert run("undo", "bob", "--assignment", "other").code == 2
    assert run("undo", "bob", "--file", "new/deep/b.py").out == "removed new/deep/b.py\n"
    assert run("undo", "bob", "--json").json == {
        "agent": "bob", "assignment": "first", "dry_run": False,
        "files": [{"path": "a.py", "removed": False}],
        "snapshot": None,
    }  # fmt: skip
    run("undo", "bob").refused(2, "no more changes of the file tools of bob")


class Desk:
    """An agent with a real checkout, and the journal that its worker would write."""

    def __init__(self, team: Team, name: str, spec: Spec) -> None:
        self.team, self.name, self.spec = team, name, spec
        self.agent, self.tree = team.directory.agent(name), team.directory.worktree(name)

    def enlist(self) -> Self:
        """Put the agent on the roster."""
        roster.put(self.team.directory, Member(name=self.name, type="code"))
        agents.change_spec(self.agent, lambda _: self.spec)
        set_status(self.team, self.name)
        return self

    def snap(self, ident: str, at: str) -> str:
        """Take a snapshot as the worker does at begin and end of an assignment."""
        commit = snapshot.take(self.team.directory, self.name, self.spec).commit
        journal.append(
            self.agent.journal, convert({"ts": 1, "assignment": ident, "commit": commit, "at": at}, SnapshotTaken)
        )
        return commit

    def work(self, ident: str, files: dict[str, str]) -> None:
        """Write files in an assignment."""
        self.snap(ident, "begin")
        write(self.tree, files)
        self.snap(ident, "end")

    def tree_hash(self) -> str:
        """Return the hash of the whole checkout."""
        return snapshot.take(self.team.directory, self.name, self.spec).tree

    def undo(self, **chosen: object) -> put_back.PutBack:
        return put_back.undo_in_checkout(self.team, self.name, **chosen)  # type: ignore[arg-type]


LINES = "".join(f"line {number}\n" for number in range(40))


@pytest.fixture(scope="module")
def _worked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Desk, Path]:
    """Return an agent that worked on two assignments, and a copy of all its files.

    Four snapshots take longer than most tests, so each test begins with the copy instead.
    """
    folder = tmp_path_factory.mktemp("ann")
    (folder / "project").mkdir()
    team = context.create(folder / "project", "default")
    make_root(team.directory.root)
    write(team.directory.root, {"long.txt": LINES})
    git(team.directory.root, "add", "-A")
    git(team.directory.root, "commit", "-qm", "Long")
    ann = Desk(replace(team, environment={"USER": "user"}), "ann", hire_with_checkout(team.directory, "ann")).enlist()
    ann.work("first", {"api.py": "1\ntwo\nthree\n", "pkg/new.py": "n = 1\n"})
    ann.work(
        "second", {"pkg/core.py": "x = 2\n", "long.txt": LINES.replace("line 3\n", "3\n").replace("line 30\n", "")}
    )
    return ann, shutil.copytree(team.directory.root, folder / "copy", symlinks=True)


@pytest.fixture
def ann(_worked: tuple[Desk, Path]) -> Desk:
    """Return an agent that worked on two assignments. Its files are where they were made: they name their places."""
    ann, copy = _worked
    shutil.rmtree(ann.team.directory.root)
    shutil.copytree(copy, ann.team.directory.root, symlinks=True)
    return Desk(ann.team, ann.name, ann.spec)


@pytest.mark.long
def test_assignments_are_put_back_the_last_one_first(ann: Desk) -> None:
    first, second = (ann.snap("look", "end") for _ in range(2))
    assert first == second
    base = git(ann.team.directory.root, "rev-parse", "HEAD^{tree}")
    last = ann.tree_hash()
    done = ann.undo()
    assert done.assignment == "second"
    assert [each.path for each in done.files] == ["long.txt", "pkg/core.py"]
    assert (ann.tree / "pkg/core.py").read_text() == "x = 1\n"
    assert (ann.tree / "pkg/new.py").exists()
    assert [(each.path, each.removed) for each in ann.undo().files] == [("api.py", False), ("pkg/new.py", True)]
    assert ann.tree_hash() == base
    with pytest.raises(UsageError, match="no assignment of ann changed anything that is still there"):
        ann.undo()
    # The first undo can be undone: the snapshot before it is kept.
    assert done.snapshot is not None
    ann.undo(commit=done.snapshot)
    assert ann.tree_hash() == last
    assert git(ann.team.directory.root, "fsck", "--strict", "--no-dangling") == ""


@pytest.mark.long
def test_an_older_assignment_is_put_back_under_later_work(ann: Desk) -> None:
    ann.work("third", {"api.py": "1\ntwo\nthree\nfour\n"})
    ann.undo(assignment="first")
    assert (ann.tree / "api.py").read_text() == "one\ntwo\nthree\nfour\n"
    assert not (ann.tree / "pkg/new.py").exists()
    assert (ann.tree / "pkg/core.py").read_text() == "x = 2\n"


@pytest.mark.long
def test_conflicts_are_named_before_a_file_is_put_back(ann: Desk) -> None:
    ann.work("third", {"api.py": "later\n"})
    before = ann.tree_hash()
    with pytest.raises(BadDataError, match=r"changed later in the same places: api.py; nothing was put back"):
        ann.undo(assignment="first")
    assert ann.tree_hash() == before


@pytest.mark.long
def test_a_file_is_put_back_as_it_was_at_the_begin(ann: Desk) -> None:
    ann.work("third", {"pkg/new.py": "n = 2\n"})
    assert [each.removed for each in ann.undo(path="pkg/new.py").files] == [True]
    assert not (ann.tree / "pkg/new.py").exists()
    ann.undo(path="long.txt", assignment="second")
    assert (ann.tree / "long.txt").read_text() == LINES
    with pytest.raises(UsageError, match="README is not among the changed files"):
        ann.undo(path="README")


@pytest.mark.long
@pytest.mark.parametrize(
    ("hunk", "expected"), [(1, LINES.replace("line 30\n", "")), (2, LINES.replace("line 3\n", "3\n"))]
)
def test_a_hunk_is_put_back_alone(ann: Desk, hunk: int, expected: str) -> None:
    ann.undo(path="long.txt", hunk=hunk)
    assert (ann.tree / "long.txt").read_text() == expected
    assert (ann.tree / "pkg/core.py").read_text() == "x = 2\n"


EDGES = [("a\nb\n", "b\n"), ("a", "a\nb"), ("a\r\nb\x0cc\n", "a\r\nb\x0cd\n"), ("", "x\n\n\n"), ("x\n\n", "")]


@pytest.mark.long
def test_a_hunk_at_the_edge_of_a_file_is_put_back_byte_by_byte(team: Team, root: Path, hired: Hired) -> None:
    for number, (old, _) in enumerate(EDGES):
        (root / f"edge{number}").write_bytes(old.encode())
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Edges")
    ann = Desk(team, "ann", hired("ann")).enlist()
    for number, (old, new) in enumerate(EDGES):
        (ann.tree / f"edge{number}").write_bytes(new.encode())
        ann.undo(path=f"edge{number}", hunk=1)
        assert (ann.tree / f"edge{number}").read_bytes() == old.encode()
    with pytest.raises(UsageError, match="edge0 is not among the changed files"):
        ann.undo(path="edge0", hunk=1)


@pytest.mark.long
def test_links_modes_and_deleted_files_come_back(ann: Desk) -> None:
    (ann.tree / "run.sh").write_text("echo\n")
    (ann.tree / "run.sh").chmod(0o755)
    (ann.tree / "link").symlink_to("run.sh")
    before = ann.tree_hash()
    ann.snap("third", "begin")
    (ann.tree / "run.sh").unlink()
    (ann.tree / "link").unlink()
    (ann.tree / "link").write_text("no link\n")
    (ann.tree / "pkg/core.py").unlink()
    (ann.tree / "pkg/new.py").unlink()
    (ann.tree / "pkg").rmdir()
    (ann.tree / "pkg").write_text("no folder\n")
    ann.undo(assignment="third")
    assert ann.tree_hash() == before
    assert (ann.tree / "link").readlink() == Path("run.sh")
    assert os.access(ann.tree / "run.sh", os.X_OK)


@pytest.mark.long
def test_the_folder_that_an_agent_works_in_stays(ann: Desk) -> None:
    spec = ann.spec.replace(worktree=ann.spec.worktree.replace(folder="sub/root"))  # type: ignore[union-attr]
    agents.change_spec(ann.agent, lambda _: spec)
    ann.work("third", {"sub/root/only.py": "x\n", "sub/other/deep.py": "x\n"})
    ann.undo()
    assert sorted(path.name for path in (ann.tree / "sub").rglob("*")) == ["root"]


@pytest.mark.long
def test_line_ends_are_those_of_a_new_checkout(ann: Desk) -> None:
    write(ann.tree, {".gitattributes": "*.txt text eol=crlf\n"})
    ann.snap("third", "begin")
    write(ann.tree, {"long.txt": "gone\n"})
    ann.undo(assignment="third")
    assert (ann.tree / "long.txt").read_bytes().startswith(b"line 0\r\n")


@pytest.mark.long
def test_ignored_files_are_not_overwritten(ann: Desk) -> None:
    ann.snap("third", "begin")
    (ann.tree / "api.py").unlink()
    write(ann.tree, {".gitignore": "api.py\n", "api.py/cache": "mine\n"})
    with pytest.raises(BadDataError, match="git ignores is in the way of"):
        ann.undo(assignment="third")
    assert (ann.tree / "api.py/cache").read_text() == "mine\n"


@pytest.mark.long
def test_a_folder_of_a_checkout_that_became_a_link_leads_nowhere(ann: Desk, tmp_path: Path) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    write(outside, {"core.py": "outside\n", "new.py": "outside\n"})
    before = contents(outside)
    ann.snap("third", "begin")
    (ann.tree / "pkg").rename(ann.tree / "moved")
    (ann.tree / "pkg").symlink_to(outside)
    # Nothing of git knows the link: it is not in the snapshot.
    write(ann.tree, {".gitignore": "pkg\nmoved\n"})
    with pytest.raises(BadDataError, match=r"git ignores is in the way of pkg/core.py, pkg/new.py"):
        ann.undo(assignment="third")
    # Now the snapshot has it, and the folder takes its place.
    write(ann.tree, {".gitignore": "moved\n"})
    ann.undo(assignment="third")
    assert contents(outside) == before
    assert (ann.tree / "pkg/core.py").read_text() == "x = 2\n"
    assert not (ann.tree / "pkg").is_symlink()


@pytest.mark.long
@pytest.mark.parametrize("when", default(["is_folder_with", "put", "remove"], "put"))
def test_a_link_that_comes_at_the_last_moment_leads_nowhere(
    ann: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    write(outside, {"core.py": "outside\n", "new.py": "outside\n"})
    before = contents(outside)
    real = getattr(Tree, when)

    def replaced(self: Tree, *given: object, **named: object) -> object:
        if not (ann.tree / "moved").exists():
            (ann.tree / "pkg").rename(ann.tree / "moved")
            (ann.tree / "pkg").symlink_to(outside)
        return real(self, *given, **named)

    monkeypatch.setattr(Tree, when, replaced)
    for ident in ("second", "first"):
        with contextlib.suppress(BadDataError):
            ann.undo(assignment=ident)
    assert contents(outside) == before


@pytest.mark.long
def test_hooks_settings_and_filters_of_the_checkout_run_nothing(ann: Desk, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = ann.tree / "evil.sh"
    write(ann.tree, {"evil.sh": f"#!/bin/sh\ntouch {ran}\ncat\n", ".gitattributes": "* filter=evil diff=evil\n"})
    program.chmod(0o755)
    for name in ("filter.evil.smudge", "filter.evil.clean", "core.fsmonitor", "diff.evil.textconv", "core.hooksPath"):
        git(ann.tree, "config", name, str(program))
    ran.unlink(missing_ok=True)
    ann.undo(assignment="second")
    assert (ann.tree / "pkg/core.py").read_text() == "x = 1\n"
    assert not ran.exists()


@pytest.mark.long
def test_a_put_back_that_was_killed_is_repeated(ann: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Tree, "remove", None)
        with pytest.raises(TypeError):
            ann.undo(assignment="first")
    ann.undo(assignment="first")
    assert not (ann.tree / "pkg/new.py").exists()
    assert [path.name for path in ann.tree.parent.iterdir() if path.name.startswith(".ann.")] == []


def test_an_empty_folder_above_a_missing_one_goes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with Tree(tmp_path) as files:
        files.remove("a/b/c.txt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", ".git/hooks/x", "pkg/.GIT/config", "a//x", ".", "a\0b"])
def test_a_path_that_leads_elsewhere_is_refused(ann: Desk, tmp_path: Path, path: str) -> None:
    (tmp_path / "source").write_text("x\n")
    before = contents(ann.tree)
    with Tree(ann.tree) as files:
        with pytest.raises(BadDataError, match="is no name of a file to put back"):
            files.put(path, tmp_path / "source")
        with pytest.raises(BadDataError, match="is no name of a file to put back"):
            files.remove(path, 9)
    assert contents(ann.tree) == before


def test_an_agent_at_work_keeps_its_files_until_it_rests(ann: Desk) -> None:
    set_status(ann.team, "ann", state="working")
    with alive(ann.team, "ann"), pytest.raises(TryLaterError, match=r"ann is working.*; wait for it, or stop it"):
        ann.undo()
    assert (ann.tree / "pkg/core.py").read_text() == "x = 2\n"


@pytest.mark.long
def test_an_agent_is_told_which_files_were_put_back(crew_on: Callable[..., Crew], tmp_path: Path) -> None:
    crew = crew_on([calls("write_file", path="pkg/new.py", content="n\n"), says("one"), says("two")])
    git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, {"pkg/core.py": "x = 1\n", ".gitignore": ".crewboard/\n"})
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Begin")
    crew.run("bob", "code", "work", worktree=True, unsafe_no_sandbox=True)
    crew.wait_for("bob", "idle")
    run = Inside(crew.root)
    assert run("undo", "bob", "--assignment").out == "removed pkg/new.py\n"
    assert not (crew.directory.worktree("bob") / "pkg/new.py").exists()
    crew.answer_to("bob", messages.send(crew.team, "bob", "go on").id)
    last = crew.model.asked_by("bob")[-1]["messages"][-1]
    assert "pkg/new.py (removed)" in str(last)


@pytest.mark.long
def test_undo_in_a_checkout_in_words_and_as_json(ann: Desk) -> None:
    run = Inside(ann.team.directory.root)
    assert run("undo", "ann", "--file", "api.py", "--dry-run").out == "would put back api.py\n"
    run("undo", "ann").refused(2, "no merge of ann to undo", "undo ann --assignment` puts back what it changed")
    done = run("undo", "ann", "--assignment", "--json").json
    assert (done["agent"], done["assignment"], done["dry_run"]) == ("ann", "second", False)
    assert done["files"] == [{"path": "long.txt", "removed": False}, {"path": "pkg/core.py", "removed": False}]
    again = run("undo", "ann", "--snapshot", done["snapshot"])
    assert again.out == "put back long.txt\nput back pkg/core.py\n"
    assert "--snapshot" in again.err
    head = git(ann.team.directory.root, "rev-parse", "HEAD")
    run("undo", "ann", "--snapshot", head).refused(2, "is no snapshot of ann")
    run("undo", "ann", "--hunk", "1").refused(2, "--hunk needs --file")
    run("undo", "ann", "--file", "long.txt", "--hunk", "3").refused(2, "there is no hunk 3 of long.txt")
    run("undo", "--assignment").refused(2, "whose files")
    write(ann.tree, {"pkg/core.py": "later\n"})
    run("undo", "ann", "--assignment", "second").refused(65, "pkg/core.py")


def test_a_preview_takes_no_merge_back(home: Home) -> None:
    bob = home.hire("bob")
    bob.write("api.py", "bob\n")
    bob.snap()
    changes.merge(home.team, "bob")
    head = home.git("rev-parse", "HEAD")
    assert changes.undo(home.team, dry_run=True).undone == bob.base
    said = Inside(home.root)("undo", "bob", "--dry-run").out
    assert said.startswith("would take back the merge of bob: main reset to")
    assert home.git("rev-parse", "HEAD") == head
    assert home.read("api.py") == "bob\n"
