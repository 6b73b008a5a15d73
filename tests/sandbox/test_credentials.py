"""Tests that agents see no credentials of the user: in a workspace that holds them, and through hard links."""

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from crewboard.agent_types import TYPES
from crewboard.sandbox import host_paths, landlock
from crewboard.sandbox.host_paths import HostPaths
from crewboard.sandbox.level import Level
from crewboard.sandbox.policy import Policy
from crewboard.sandbox.sandbox import Sandbox
from crewboard.store.team_marks import marks
from crewboard.unix import syscalls
from crewboard.worker.tools import workspace
from tests.crew import eventually
from tests.matrix import default
from tests.sandbox.conftest import need
from tests.sandbox.targets import SECRET, Targets, run, run_as_file_server
from tests.sandbox.test_file_server import ask_file_server

FILES = [
    ".git-credentials", ".config/gh/hosts.yml", ".config/glab-cli/config.yml", ".config/tea/config.yml",
    ".config/anthropic/credentials/default.json",
    ".config/pip/pip.conf", ".pypirc", ".config/uv/uv.toml", ".local/share/uv/credentials/credentials.toml", ".npmrc",
    ".cargo/credentials.toml", ".netrc", ".aws/credentials", ".config/gcloud/credentials.db", ".azure/token.json",
    ".docker/config.json", ".kube/config", ".ssh/id_rsa", ".gnupg/secring.gpg", ".bash_history", ".zsh_history",
    ".github_token", ".gitlab-token", ".pgpass", ".pg_service.conf", ".postgresql/postgresql.key",
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = Path(os.path.realpath(tmp_path)) / "place"
    for name in FILES:
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"//registry.npmjs.org/:_authToken={SECRET}\n")
    (made / "notes").write_text("notes\n")
    return made


@pytest.fixture(params=["the home", "a copy of a home", "the folder of all homes"])
def place(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """Return a workspace that holds credentials, and where in it."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if request.param == "the home":
        monkeypatch.setenv("HOME", str(root))
    elif request.param == "the folder of all homes":
        monkeypatch.setattr(host_paths, "_HOMES", (str(root.parent),))
        yield root.parent, "place/"
        return
    yield root, ""


def sandbox_for(targets: Targets, kind: str, level: Level, root: Path) -> Sandbox:
    sandbox = targets.sandbox(kind, level)
    return replace(sandbox, policy=replace(sandbox.policy, root=root, host=HostPaths.of_this_machine()))


@pytest.mark.parametrize("kind", default(["explore", "test", "code"], "explore", "test"))
def test_commands_see_no_credentials(targets: Targets, level: Level, kind: str, place: tuple[Path, str]) -> None:
    root, where = place
    sandbox = sandbox_for(targets, kind, level, root)
    text = f"cat {where}notes; cat {' '.join(where + name for name in FILES)}; grep -r sk-ant ."
    outcome = run(sandbox, text) if TYPES[kind].executes else run_as_file_server(sandbox, text)
    assert "notes" in outcome.content
    assert SECRET not in outcome.content


@pytest.mark.parametrize("level", ["bubblewrap", "landlock", "none"])
@pytest.mark.parametrize("kind", [pytest.param("explore", marks=pytest.mark.long), "code"])
def test_file_tools_see_no_credentials(
    targets: Targets, works: dict[Level, str | None], level: Level, kind: str, place: tuple[Path, str]
) -> None:
    need(level, works)
    root, where = place
    reads = [("read_file", {"path": where + name}) for name in FILES]
    searches = [("grep", {"pattern": "sk-ant"}), ("grep", {"pattern": "sk-ant", "path": f"{where}.ssh"})]
    writes = [("write_file", {"path": where + name, "content": "x"}) for name in FILES]
    tries = [*reads, *searches, *(writes if kind == "code" else []), ("read_file", {"path": f"{where}notes"})]
    *answers, notes = ask_file_server(sandbox_for(targets, kind, level, root), *tries)
    assert notes.content == "1\tnotes"
    assert not [answer for answer in answers if SECRET in answer.content]
    assert all(SECRET in (root / where / name).read_text() for name in FILES)


def test_beside_credentials_files_are_written_in_place(
    targets: Targets, works: dict[Level, str | None], root: Path
) -> None:
    """Landlock can only give rights to a folder with all in it, so beside credentials no file can be made."""
    need("landlock", works)
    (root / "src").mkdir()
    (root / "notes").chmod(0o600)
    (root / "two").write_text("notes\n")
    (root / "src/two").hardlink_to(root / "two")
    (root / "fixed").write_text("notes\n")
    (root / "fixed").chmod(0o444)
    tries = [
        ("edit_file", {"path": "notes", "old_text": "notes", "new_text": "new"}),
        ("write_file", {"path": "notes", "content": "n\n"}),
        ("read_file", {"path": "notes"}),
        ("write_file", {"path": "src/new", "content": "x\n"}),
        ("write_file", {"path": "two", "content": "x\n"}),
        ("write_file", {"path": "fixed", "content": "x\n"}),
        ("write_file", {"path": "new", "content": "x\n"}),
        ("write_file", {"path": "folder/new", "content": "x\n"}),
        ("write_file", {"path": ".config/new", "content": "x\n"}),
    ]
    *done, two, fixed, new, folder, config = ask_file_server(sandbox_for(targets, "code", "landlock", root), *tries)
    assert not [each for each in done if each.is_error], done
    assert (root / "notes").read_text() == "n\n"
    assert (root / "notes").stat().st_mode & 0o777 == 0o600
    assert "hard link" in two.content
    assert fixed.content == "fixed: Permission denied"
    assert (root / "two").read_text() == "notes\n"
    assert "new cannot be written" in new.content
    assert "in the workspace's root, because that holds credentials" in folder.content
    assert "in .config, because that holds credentials" in config.content
    assert not list(root.rglob("*crewboard-tmp"))


def test_settings_of_npm_without_a_password_are_seen(targets: Targets, root: Path) -> None:
    (root / ".npmrc").write_text("save-exact=true\n//registry.npmjs.org/:_authToken=${NPM_TOKEN}\n")
    (answer,) = ask_file_server(sandbox_for(targets, "explore", "none", root), ("read_file", {"path": ".npmrc"}))
    assert "save-exact" in answer.content


@pytest.mark.parametrize("name", ["pip.conf", ".venv/pip.conf", "venv/pip.conf", ".npmrc"])
def test_settings_with_a_password_in_an_address_are_hidden(targets: Targets, root: Path, name: str) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    told = {}
    for user in ("me:secret@", "me:${PASSWORD}@", ""):
        (root / name).write_text(f"[global]\nindex-url = https://{user}index/simple\n")
        (told[user],) = ask_file_server(sandbox_for(targets, "explore", "none", root), ("read_file", {"path": name}))
    assert [user for user, answer in told.items() if "index-url" in answer.content] == ["me:${PASSWORD}@", ""]


def test_credentials_behind_a_link_are_hidden_too(targets: Targets, level: Level, root: Path) -> None:
    (root / ".ssh").rename(root / "keys")
    (root / ".ssh").symlink_to("keys")
    outcome = run(sandbox_for(targets, "code", level, root), "cat keys/id_rsa .ssh/id_rsa")
    assert SECRET not in outcome.content


@pytest.mark.parametrize("move", ["mv .config c", "mv .docker docker", "mkdir -p notes.d/x; mv .docker notes.d/x/"])
def test_no_folder_above_credentials_is_moved_away(targets: Targets, level: Level, root: Path, move: str) -> None:
    """A later command would not know them by their new name."""
    run(sandbox_for(targets, "code", level, root), move)
    assert SECRET not in run(sandbox_for(targets, "code", level, root), "grep -r sk-ant .").content


@pytest.mark.parametrize("move", ["mv place p", "mkdir -p a/b; mv place a/b/", "mv place/.config place/c"])
def test_no_home_in_the_workspace_is_moved_away(
    targets: Targets, level: Level, root: Path, monkeypatch: pytest.MonkeyPatch, move: str
) -> None:
    monkeypatch.setattr(host_paths, "_HOMES", (str(root.parent),))
    run(sandbox_for(targets, "code", level, root.parent), move)
    assert SECRET not in run(sandbox_for(targets, "code", level, root.parent), "grep -r sk-ant .").content


COPIES = {
    "a hard link": "for f in {files}; do ln $f copy-$(echo $f | tr / _); ln $f src/$(echo $f | tr / _); done",
    "a copy through the parent": "cp -r ../place src/copy",
    "a copy through /proc": "cp -r /proc/self/root{root} src/copy; cp /proc/1/cwd/.netrc src/n",
    "an archive of the parent": "tar -cf src/copy.tar -C .. place",
    "an archive that follows links": "ln -s ../.netrc ../.ssh ../.config src; tar -chf src/copy.tar src",
    "objects of git": "git init -q src; for f in {files}; do git -C src hash-object -w --stdin < $f; done;"
    " git -C src cat-file --batch-all-objects --batch > src/copy",
    "a copy through a descriptor": "exec 3<.netrc; cat <&3 > src/copy; cp /proc/self/fd/3 src/copy2",
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES.keys())
def test_no_command_copies_credentials_for_a_later_one(targets: Targets, level: Level, root: Path, copy: str) -> None:
    (root / "src").mkdir()
    text = copy.format(root=root, files=" ".join(FILES))
    assert SECRET not in run(sandbox_for(targets, "code", level, root), text).content
    assert not [path for path in (root / "src").rglob("*") if _is_copy(path)]
    assert not list(root.glob("copy-*")) or SECRET not in "".join(map(Path.read_text, root.glob("copy-*")))


def _is_copy(path: Path) -> bool:
    return not path.is_symlink() and path.is_file() and SECRET in path.read_text("latin-1")


def test_a_password_is_hidden_behind_a_link_that_an_agent_made(targets: Targets, level: Level, root: Path) -> None:
    """Programs that write such a settings file follow the link."""
    (root / ".npmrc").rename(root / "settings")
    (root / ".npmrc").symlink_to("settings")
    assert SECRET not in run(sandbox_for(targets, "code", level, root), "cat settings .npmrc").content


@pytest.mark.parametrize("closed", [".config", ".npmrc"])
def test_credentials_that_an_agent_closed_stay_hidden(targets: Targets, level: Level, root: Path, closed: str) -> None:
    """A later command could open them again. Root needs no permission to look, so this looks without its powers."""
    policy = sandbox_for(targets, "code", level, root).policy
    run(sandbox_for(targets, "code", level, root), f"chmod 0 {closed}")

    def look() -> list[Path]:
        syscalls.drop_capabilities()
        return policy.host.private_entries(root)

    assert root / closed in landlock._in_thread(look)


def test_a_password_at_the_end_of_long_settings_is_hidden(targets: Targets, level: Level, root: Path) -> None:
    """An agent can write the comment before the user logs in."""
    (root / ".npmrc").write_text(f"# {'x' * 70_000}\n//registry.npmjs.org/:_authToken={SECRET}\n")
    assert SECRET not in run(sandbox_for(targets, "code", level, root), "tail -n 1 .npmrc").content


@pytest.mark.parametrize("kind", ["test", "code"])
@pytest.mark.parametrize("target", ["nothing/at/all", ".netrc"])
def test_a_link_to_nothing_in_place_of_credentials_stops_no_command(
    targets: Targets, level: Level, root: Path, kind: str, target: str
) -> None:
    (root / ".netrc").unlink()
    (root / ".netrc").symlink_to(target)
    assert run(sandbox_for(targets, kind, level, root), "cat notes").content == "notes\n[exit code 0]"


def test_a_command_ends_when_credentials_that_it_could_then_read_are_replaced(
    targets: Targets, level: Level, root: Path
) -> None:
    """The kernel removes a mount when a process outside replaces the file below it, as a log-in does."""
    (root / "src").mkdir()
    outcome: list[str] = []
    text = "touch src/ready; while [ ! -e src/seen ]; do sleep 0.02; done; cat .netrc"
    sandbox = sandbox_for(targets, "code", level, root)
    running = threading.Thread(target=lambda: outcome.append(run(sandbox, text).content))
    running.start()
    try:
        eventually(lambda: (root / "src/ready").exists() or bool(outcome), "the command")
        (root / "new").write_text(SECRET)
        (root / "new").rename(root / ".netrc")
        if level == "bubblewrap":
            eventually(lambda: bool(outcome), "the end of the command")
    finally:
        (root / "src/seen").touch()
        running.join()
    assert level == "landlock" or "the protected file .netrc was replaced outside the sandbox" in outcome[0]
    assert SECRET not in outcome[0]


def test_the_store_of_uv_is_hidden_in_every_workspace(
    targets: Targets, level: Level, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(root))
    (root / ".local/share/uv/python").mkdir()
    (root / ".local/share/uv/python/pip").write_text("a tool\n")
    sandbox = targets.sandbox("test", level)
    sandbox = replace(sandbox, policy=replace(sandbox.policy, host=HostPaths.of_this_machine(), root=targets.root))
    outcome = run(sandbox, f"cat {root}/.local/share/uv/python/pip {root}/.local/share/uv/credentials/*")
    assert "a tool" in outcome.content
    assert SECRET not in outcome.content


@pytest.mark.parametrize("where", ["outside", "root"])
def test_the_secret_that_marks_teams_is_hidden(
    targets: Targets, level: Level, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = targets.base / where / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    marks(targets.root)
    sandbox = targets.sandbox("code", level)
    sandbox = replace(sandbox, policy=replace(sandbox.policy, host=targets.places()))
    outcome = run(sandbox, f"cat {state}/crewboard/secret | wc -c")
    shutil.rmtree(state)
    assert "0\n[exit code" in outcome.content


@pytest.mark.parametrize("where", ["outside", "root"])
def test_credentials_of_the_sdk_are_hidden_wherever_they_are(
    targets: Targets, level: Level, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = targets.base / where / "sdk"
    (folder / "credentials").mkdir(parents=True)
    for path in (folder / "credentials" / "work.json", folder / "token"):
        path.write_text(SECRET)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(folder))
    monkeypatch.setenv("ANTHROPIC_IDENTITY_TOKEN_FILE", str(folder / "token"))
    sandbox = targets.sandbox("code", level)
    sandbox = replace(sandbox, policy=replace(sandbox.policy, host=targets.places()))
    outcome = run(sandbox, f"cat {folder}/credentials/work.json {folder}/token")
    shutil.rmtree(folder)
    assert SECRET not in outcome.content


def test_without_the_list_credentials_are_seen(targets: Targets, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostPaths, "private_entries", lambda self, root: [])
    (answer,) = ask_file_server(sandbox_for(targets, "explore", "none", root), ("read_file", {"path": ".netrc"}))
    assert SECRET in answer.content


READS = (
    ("read_file", {"path": "linked"}),
    ("grep", {"pattern": "sk-ant", "path": "linked"}),
    ("grep", {"pattern": "sk-ant"}),
    ("edit_file", {"path": "linked", "old_text": "s", "new_text": "x"}),
)


@pytest.mark.parametrize("level", ["bubblewrap", "landlock", "none"])
def test_file_tools_read_no_hard_link_to_an_outside_file(
    targets: Targets, works: dict[Level, str | None], level: Level, tmp_path: Path
) -> None:
    need(level, works)
    sandbox, _ = _linked(targets, level, tmp_path)
    for answer in ask_file_server(sandbox, *READS):
        assert SECRET not in answer.content
        assert answer.is_error or answer.content == "no line matches sk-ant"


def _linked(targets: Targets, level: Level, base: Path) -> tuple[Sandbox, Path]:
    root = Path(os.path.realpath(base)) / "root"
    (root / "src").mkdir(parents=True)
    (base / "outside").write_text(f"{SECRET}\n")
    (root / "linked").hardlink_to(base / "outside")
    (root / "src/one").write_text("inside\n")
    (root / "two").hardlink_to(root / "src/one")
    sandbox = targets.sandbox("code", level)
    policy = Policy(root, writes=True, host=HostPaths.of_this_machine())
    return replace(sandbox, policy=policy, results=root / "results"), root


def test_hard_links_within_the_workspace_are_read(targets: Targets, tmp_path: Path) -> None:
    sandbox, _ = _linked(targets, "none", tmp_path)
    one, found = ask_file_server(sandbox, ("read_file", {"path": "two"}), ("grep", {"pattern": "inside"}))
    assert one.content == "1\tinside"
    assert found.content == "two:1:inside\nsrc/one:1:inside"


def test_a_hard_link_is_read_by_an_agent_that_is_allowed_to(targets: Targets, tmp_path: Path) -> None:
    sandbox, _ = _linked(targets, "none", tmp_path)
    (answer,) = ask_file_server(replace(sandbox, allow_hardlinks=True), ("read_file", {"path": "linked"}))
    assert SECRET in answer.content


def test_what_is_not_searched_counts_as_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_SEARCHED", 1)
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "d").hardlink_to(tmp_path / "a")
    opened = workspace.Workspace(tmp_path, tmp_path / "results")
    with pytest.raises(workspace.RefusedError, match="--allow-hardlinks"):
        opened.read(opened.resolve("d"))


@contextmanager
def open_in(root: Path, name: str) -> Iterator[tuple[int, int]]:
    """Open a folder and a file in it."""
    folder = os.open(root, os.O_RDONLY)
    fd = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        yield folder, fd
    finally:
        os.close(fd)
        os.close(folder)


@pytest.mark.parametrize("field", ["st_dev", "st_uid"])
def test_a_file_of_another_device_or_owner_counts_as_linked_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Both names are below the root, but on such a file the count of names proves nothing."""
    (tmp_path / "a").write_text("x\n")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    opened = workspace.Workspace(tmp_path, tmp_path / "results")
    with open_in(tmp_path, "a") as (folder, fd):
        assert not opened._is_linked_outside(fd, folder, "a")
        at = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid").index(field)
        values = list(os.fstat(opened._base))
        values[at] += 1
        real, changed = os.fstat, os.stat_result(values)
        monkeypatch.setattr(os, "fstat", lambda of: changed if of == opened._base else real(of))
        assert opened._is_linked_outside(fd, folder, "a")


def test_a_hard_link_that_goes_after_it_was_opened_counts_as_outside(tmp_path: Path) -> None:
    """Without that name the file has a single one, which is outside."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text(SECRET)
    (root / "a").hardlink_to(tmp_path / "outside")
    opened = workspace.Workspace(root, root / "results")
    with open_in(root, "a") as (folder, fd):
        (root / "a").unlink()
        assert opened._is_linked_outside(fd, folder, "a")
        (root / "a").write_text("another file\n")
        assert opened._is_linked_outside(fd, folder, "a")


def test_a_hard_link_that_moves_while_names_are_counted_counts_as_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x\n")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    opened = workspace.Workspace(tmp_path, tmp_path / "results")

    def count(top: int, wanted: os.stat_result) -> int:
        (tmp_path / "b").rename(tmp_path / "c")
        return wanted.st_nlink

    monkeypatch.setattr(workspace, "_names_below", count)
    with open_in(tmp_path, "a") as (folder, fd):
        assert opened._is_linked_outside(fd, folder, "a")


SYSTEM_SECRETS = ("shadow", "shadow-", "gshadow", "gshadow-", "sudoers", "security/opasswd")


def test_secrets_of_the_system_cannot_be_read(targets: Targets, level: Level) -> None:
    """Only root could read them. Some are empty, so the attempt is to open them as the files that they are."""
    tries = (f"[ -f /etc/{name} ] && cat /etc/{name} >/dev/null && echo read {name}" for name in SYSTEM_SECRETS)
    outcome = run(targets.sandbox("test", level), "; ".join(tries))
    assert "read " not in outcome.content
