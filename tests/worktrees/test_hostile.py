"""The harm that hostile work of an agent could do to the user's files and repository, and does not."""

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from crewboard.commands import changes
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, UsageError
from crewboard.records.team import Member
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from crewboard.worktrees import checkout, merging, snapshot
from crewboard.worktrees.repository import PACK_HEADER, GitFailedError, open_repository
from tests.cli.shell import Inside
from tests.worktrees.conftest import Hired, git, write
from tests.worktrees.home import Home


def submodule(home: Home, other: Path) -> None:
    """Give the user's repository a submodule, with work in it that is not committed."""
    other.mkdir()
    git(other, "init", "-q")
    write(other, {"file": "x\n"})
    git(other, "add", "-A")
    git(other, "commit", "-qm", "Other")
    home.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    home.commit("sub")
    home.write("sub/mine", "mine\n")


@pytest.mark.parametrize("mode", ["100644", "120000"])
def test_a_submodule_with_files_is_not_replaced(home: Home, tmp_path: Path, mode: str) -> None:
    submodule(home, tmp_path / "other")
    bob = home.hire("bob")
    bob.delete("sub")
    bob.write("sub", "elsewhere", mode)
    bob.snap()
    with pytest.raises(BadDataError, match="would be overwritten: sub;"):
        changes.merge(home.team, "bob")
    assert home.read("sub/mine") == "mine\n"


def test_an_ignored_folder_of_links_is_not_replaced(home: Home, tmp_path: Path) -> None:
    home.write(".gitignore", "build\n")
    home.commit("ignore")
    (home.root / "build").mkdir()
    (home.root / "build/cache").symlink_to(tmp_path)
    bob = home.hire("bob")
    bob.write("build", "x\n")
    bob.snap()
    with pytest.raises(BadDataError, match="would be overwritten: build/cache;"):
        changes.merge(home.team, "bob")
    assert (home.root / "build/cache").is_symlink()


@pytest.mark.long
@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_an_edit_that_git_is_told_to_ignore_stays(home: Home, flag: str) -> None:
    home.git("update-index", flag, "api.py", "README")
    # The beginning of the old content, as a git leaves it that was killed while it wrote.
    home.write("api.py", "line 0\n")
    bob = home.hire("bob")
    bob.write("api.py", "bob\n")
    bob.snap()
    with pytest.raises(BadDataError, match=r"would be overwritten: api\.py;"):
        changes.merge(home.team, "bob")
    assert home.read("api.py") == "line 0\n"
    bob.delete("api.py")
    bob.write("api.py", home.git("show", "HEAD:api.py") + "\n")
    bob.write("README", "bob\n")
    bob.snap()
    changes.merge(home.team, "bob")
    assert (home.read("api.py"), home.read("README")) == ("line 0\n", "bob\n")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_link_in_a_snapshot_leads_no_copy_outside(
    kind: str, directory: TeamDirectory, root: Path, hired: Hired, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    write(root, {"conf/key": "KEY=1\n", ".git/info/exclude": "conf/\n"})
    spec = hired("bob")
    conf = directory.worktree("bob") / "conf"
    conf.symlink_to(outside) if kind == "link" else conf.touch()
    saved = snapshot.take(directory, "bob", spec)
    checkout.remove(directory, "bob")
    checkout.make(directory, "bob", None, saved, ["conf/key"])
    assert list(outside.iterdir()) == []
    assert os.path.lexists(conf)


def test_a_snapshot_runs_nothing_of_nested_repositories(
    directory: TeamDirectory,
    root: Path,
    hired: Hired,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also where no sandbox works, because its user allowed that."""
    monkeypatch.setenv("CREWBOARD_SANDBOX", "none")
    mark = tmp_path_factory.mktemp("marks") / "mark"
    spec = hired("bob")
    inner = directory.worktree("bob") / "inner"
    write(inner, {"file": "x\n"})
    git(inner, "init", "-q")
    write(inner, {".git/run": f"#!/bin/sh\ntouch {mark}\n"})
    (inner / ".git/run").chmod(0o755)
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "Inner")
    snapshot.take(directory, "bob", spec)
    git(inner, "config", "core.fsmonitor", str(inner / ".git/run"))
    for content in ("changed\n", "again\n"):
        write(inner, {"file": content})
        assert snapshot.take(directory, "bob", spec).missing
    assert not mark.exists()


def test_no_commit_of_an_agent_has_files_of_a_team(home: Home) -> None:
    bob = home.hire("bob")
    bob.write(".crewboard/default/config.json", "{}\n")
    bob.commit("Add")
    bob.delete(".crewboard/default/config.json")
    bob.write("a", "1\n")
    bob.commit("Remove")
    bob.snap()
    before = home.git("rev-parse", "HEAD")
    for how in ("merge", "rebase"):
        with pytest.raises(BadDataError, match=r"bob changed \.crewboard/default/config\.json;"):
            changes.merge(home.team, "bob", how=how)
    assert home.git("rev-parse", "HEAD") == before
    assert changes.merge(home.team, "bob")


def test_a_merge_removes_nothing_behind_a_new_link(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"outside/core.py": "mine\n"})
    home.write("pkg/core.py", "x\n")
    home.commit("pkg")
    bob = home.hire("bob")
    bob.delete("pkg/core.py")
    bob.snap()
    remove = merging.Mover._unlink

    def replaced(self: merging.Mover, paths: Iterable[str]) -> None:
        (home.root / "pkg").rename(home.root / "moved")
        (home.root / "pkg").symlink_to(tmp_path / "outside")
        remove(self, paths)

    monkeypatch.setattr(merging.Mover, "_unlink", replaced)
    changes.merge(home.team, "bob")
    assert (tmp_path / "outside/core.py").read_text() == "mine\n"


def test_a_link_that_becomes_a_folder_is_not_written_through(home: Home, tmp_path: Path) -> None:
    write(tmp_path, {"outside/core.py": "mine\n"})
    home.write("pkg/core.py", "x\n")
    home.commit("pkg")
    bob = home.hire("bob")
    bob.delete("pkg/core.py")
    bob.write("pkg", str(tmp_path / "outside"), "120000")
    bob.snap()
    changes.merge(home.team, "bob")
    eve = home.hire("eve")
    eve.delete("pkg")
    eve.write("pkg/core.py", "eve\n")
    eve.write("pkg/new", "eve\n")
    eve.snap()
    changes.merge(home.team, "eve")
    assert home.read("pkg/new") == "eve\n"
    changes.undo(home.team)
    assert (home.root / "pkg").is_symlink()
    changes.undo(home.team)
    assert home.read("pkg/core.py") == "x\n"
    assert [path.read_text() for path in (tmp_path / "outside").iterdir()] == ["mine\n"]


def test_no_signature_of_the_agent_is_checked(home: Home, tmp_path: Path) -> None:
    program, mark = tmp_path / "gpg", tmp_path / "mark"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    home.git("config", "gpg.program", str(program))
    home.git("config", "log.showSignature", "true")
    bob = home.hire("bob")
    bob.write("a", "1\n")
    plain = home.git("cat-file", "commit", bob.commit("One")).encode() + b"\n"
    header = b"\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n"
    signed = plain.replace(b"\n\n", header, 1)
    bob.head = home.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=signed)
    bob.snap()
    changes.merge(home.team, "bob")
    assert not mark.exists()


@pytest.mark.long
def test_trees_that_git_would_not_make_are_refused(directory: TeamDirectory, root: Path, hired: Hired) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    blob = bytes.fromhex(git(root, "rev-parse", "HEAD:api.py"))
    for names in ((b"..",), (b".GIT",), (b"git~1",), (b"pkg/../../x",), (b"twice", b"twice")):
        (tree / ".git/odd").write_bytes(b"".join(b"100644 " + name + b"\0" + blob for name in names))
        made = git(tree, "hash-object", "--literally", "-t", "tree", "-w", ".git/odd")
        commit = git(tree, "commit-tree", made, "-p", "HEAD", "-m", "Odd")
        git(tree, "update-ref", "--no-deref", "HEAD", commit)
        with pytest.raises(BadDataError, match="refused"):
            snapshot.take(directory, "bob", spec)
        git(tree, "symbolic-ref", "HEAD", "refs/heads/crew/bob")
    assert git(root, "for-each-ref", "refs/crew/bob") == ""
    git(root, "fsck", "--strict")


def test_a_link_in_place_of_a_checkout_is_removed_alone(
    directory: TeamDirectory, hired: Hired, tmp_path_factory: pytest.TempPathFactory
) -> None:
    moved = tmp_path_factory.mktemp("moved") / "bob"
    hired("bob")
    directory.worktree("bob").rename(moved)
    directory.worktree("bob").symlink_to(moved)
    checkout.remove(directory, "bob")
    assert list(directory.worktrees.iterdir()) == []
    assert (moved / "api.py").exists()


@pytest.mark.long
@pytest.mark.linux("sandbox")
def test_files_that_no_snapshot_has_are_not_lost_unsaid(directory: TeamDirectory, hired: Hired) -> None:
    team = Team(directory)
    spec = hired("bob")
    directory.agent("bob").path.mkdir(parents=True)
    directory.agent("bob").spec.save(spec)
    changes.require_merged(team, ["bob"])
    write(directory.worktree("bob"), {"closed": "work\n"})
    (directory.worktree("bob") / "closed").chmod(0)
    with pytest.raises(UsageError, match=r"unknown whether bob has unmerged work.*closed.*discard bob"):
        changes.require_merged(team, ["bob"])
    roster.put(directory, Member(name="bob", type="code"))
    inside = Inside(directory.root)
    assert "unknown whether bob has unmerged work" in inside("discard", "bob").err
    assert directory.worktree("bob").exists()
    assert inside("discard", "bob", "--yes").code == 0
    assert not directory.worktree("bob").exists()


def test_an_answer_that_is_no_snapshot_is_not_kept(
    directory: TeamDirectory, root: Path, hired: Hired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_SCRIPT", snapshot._SCRIPT.replace(' -p "$head"', ""))
    spec = hired("bob")
    write(directory.worktree("bob"), {"api.py": "changed\n"})
    with pytest.raises(BadDataError, match="refused"):
        snapshot.take(directory, "bob", spec)
    assert git(root, "for-each-ref", "refs/crew/bob") == ""


def test_an_index_behind_a_link_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"private/index": "names\n"})
    (tmp_path / "snapshot.git").symlink_to("private")
    snapshot._copy_index(tmp_path / "snapshot.git/index", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_history_index_that_lies_loses_no_file(directory: TeamDirectory, root: Path, hired: Hired) -> None:
    spec = hired("bob")
    tree = directory.worktree("bob")
    write(tree, {"api.py": "changed\n"})
    git(tree, "commit", "-qam", "Change")
    git(tree, "commit-graph", "write", "--reachable")
    git(tree, "repack", "-adlq")
    git(tree, "multi-pack-index", "write")
    for name in ("info/commit-graph", "pack/multi-pack-index"):
        path = tree / ".git/objects" / name
        data = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(data[: len(data) // 2] + bytes(0x55 ^ byte for byte in data[len(data) // 2 :]))
    taken = snapshot.take(directory, "bob", spec)
    assert git(root, "show", f"{taken.head}:api.py") == "changed"


def _pack_of_copies(size: int, copies: int) -> bytes:
    """Return a pack with a file of zeros and one that repeats it: some kilobytes (git's pack-format documentation)."""

    def entry(kind: int, length: int, content: bytes, base: bytes = b"") -> bytes:
        head, length = [kind << 4 | length & 15], length >> 4
        while length:
            head[-1] |= 0x80
            head.append(length & 0x7F)
            length >>= 7
        return bytes(head) + base + zlib.compress(content)

    def number(value: int) -> bytes:
        found = b""
        while value > 0x7F:
            found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
        return found + bytes([value])

    file = bytes(size)
    base = hashlib.sha1(f"blob {size}\0".encode() + file, usedforsecurity=False).digest()
    # Copy `size` bytes from the beginning of the base, again and again.
    copy = b"\xf0" + size.to_bytes(3, "little")
    delta = number(size) + number(size * copies) + copy * copies
    pack = b"PACK" + struct.pack(">II", 2, 2) + entry(3, size, file) + entry(7, len(delta), delta, base)
    return pack + hashlib.sha1(pack, usedforsecurity=False).digest()


@pytest.mark.parametrize("loose", [2, 1], ids=["unpacked", "kept as a pack"])
def test_a_pack_that_grows_in_memory_is_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loose: int
) -> None:
    repository = open_repository(home.root)
    (tmp_path / "pack").write_bytes(_pack_of_copies(8 << 20, 60))
    assert (tmp_path / "pack").stat().st_size < 1 << 20
    monkeypatch.setattr("crewboard.worktrees.repository.MAX_MEMORY", 200 << 20)
    monkeypatch.setattr("crewboard.worktrees.repository._LOOSE", loose)
    with (tmp_path / "pack").open("rb", buffering=0) as pack, pytest.raises(GitFailedError, match=r"(?i)memory"):
        repository.take_in(pack.fileno(), pack.read(PACK_HEADER), 1 << 20, seconds=60)
