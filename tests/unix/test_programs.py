"""The programs that crewboard starts by itself, where it takes them from, and what environment they get."""

import ast
import os
from pathlib import Path

import pytest

import crewboard
import crewboard_tui
from crewboard.unix import programs
from crewboard.unix.programs import clean_environment, find_program, find_user_program, passed_over, system_program

SOURCES = [Path(package.__file__ or "").parent for package in (crewboard, crewboard_tui)]


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.parent.chmod(0o755)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with a program in an environment of its own, as an agent could write it."""
    program(tmp_path / "root/.venv/bin/tool")
    return tmp_path / "root"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """The same program outside."""
    return program(tmp_path / "bin/tool")


def search(monkeypatch: pytest.MonkeyPatch, *folders: Path | str) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


def test_a_program_outside_is_found(root: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(monkeypatch, good.parent)
    assert find_program("tool", root) == good


def test_an_environment_in_the_workspace_is_passed_over(
    root: Path, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(monkeypatch, root / ".venv/bin", good.parent)
    assert find_program("tool", root) == good
    search(monkeypatch, root / ".venv/bin")
    assert find_program("tool", root) is None


def test_a_workspace_given_by_a_link_is_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    search(monkeypatch, root / ".venv/bin")
    assert find_program("tool", link) is None
    search(monkeypatch, link / ".venv/bin")
    assert find_program("tool", root) is None


def test_the_workspace_of_another_team_is_passed_over(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = program(tmp_path / "other/.venv/bin/tool")
    search(monkeypatch, other.parent, good.parent)
    assert find_program("tool", root) == other
    find_cache_clear()
    (tmp_path / "other/.crewboard").mkdir()
    assert find_program("tool", root) == good
    assert str(tmp_path / "other/.crewboard") in (passed_over("tool") or "")


def test_a_link_into_the_workspace_is_passed_over(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links/tool").symlink_to(root / ".venv/bin/tool")
    (tmp_path / "folder").symlink_to(root / ".venv/bin")
    search(monkeypatch, tmp_path / "links", tmp_path / "folder", good.parent)
    assert find_program("tool", root) == good


def test_a_link_out_of_the_workspace_is_passed_over(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "bin").symlink_to(good.parent)
    search(monkeypatch, root / "bin")
    assert find_program("tool", root) is None, "the agent can point it elsewhere"
    (tmp_path / "links").mkdir()
    (tmp_path / "links/tool").symlink_to("../root/bin/tool")
    search(monkeypatch, tmp_path / "links")
    assert find_program("tool", root) is None, "so it can where the link is only on the way"


def test_links_among_trusted_folders_are_followed(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links/tool").symlink_to("../bin/tool")
    search(monkeypatch, tmp_path / "links")
    assert find_program("tool", root) == tmp_path / "links/tool", "by its own name, which some programs go by"
    (tmp_path / "links/round").symlink_to("round")
    assert find_program("round", root) is None


@pytest.mark.parametrize("mode", [0o775, 0o757])
@pytest.mark.parametrize("what", ["bin/tool", "bin", "."])
def test_what_other_users_can_write_is_passed_over(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, mode: int
) -> None:
    search(monkeypatch, good.parent)
    (tmp_path / what).chmod(mode)
    assert find_program("tool", root) is None
    assert (passed_over("tool") or "").endswith(f"other users can change {tmp_path / what}")


def test_a_sticky_folder_above_is_no_obstacle(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(monkeypatch, good.parent)
    tmp_path.chmod(0o1777)
    assert find_program("tool", root) == good


def test_the_program_of_another_user_is_passed_over(root: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(monkeypatch, good.parent)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    if os.getuid() == 0:
        os.chown(good, 4243, -1)
    assert find_program("tool", root) is None


def test_relative_folders_and_files_not_executable_are_skipped(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / f"x/{good}")
    monkeypatch.chdir(tmp_path)
    search(monkeypatch, "bin", "", "./bin", f"x{good.parent}")
    assert find_program("tool", root) is None
    good.chmod(0o644)
    search(monkeypatch, good.parent)
    assert find_program("tool", root) is None


def test_a_program_for_a_sandbox_is_of_the_system(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(monkeypatch, program(root / "bin/sh").parent, program(tmp_path / "home/bin/sh").parent)
    assert system_program("sh", root) == str(find_program("sh", root, os.defpath))
    with pytest.raises(FileNotFoundError, match="no-such-program is not installed"):
        system_program("no-such-program", root)


def test_the_clean_environment_has_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "DATABASE_URL", "GIT_DIR", "LD_PRELOAD", "PYTHONPATH", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "/x")
    monkeypatch.setenv("PATH", "/x")
    monkeypatch.setenv("HOME", "/h")
    found = clean_environment()
    assert found["HOME"] == "/h"
    assert "/x" not in found.values()
    assert clean_environment("XDG_CONFIG_HOME")["XDG_CONFIG_HOME"] == "/x"


def test_an_editor_is_any_program_outside_workspaces(
    root: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".crewboard").mkdir()
    good.chmod(0o777)
    search(monkeypatch, root / ".venv/bin", good.parent)
    assert find_user_program("tool") == good, "who may write there is the choice of the user"
    assert find_user_program(str(good)) == good
    monkeypatch.chdir(tmp_path)
    assert find_user_program("bin/tool") == good
    assert find_user_program("root/.venv/bin/tool") is None
    assert find_user_program(str(root / ".venv/bin/tool")) is None
    assert programs.path_outside_workspaces() == str(good.parent)


def find_cache_clear() -> None:
    programs._find.cache_clear()


def starts() -> list[tuple[str, ast.Call]]:
    """Every call in the sources that starts a program, with its place."""
    found = []
    names = ("subprocess.", "os.exec", "os.spawn", "os.posix_spawn", "os.system", "os.popen")
    texts = {path: path.read_text() for folder in SOURCES for path in folder.rglob("*.py")}
    # Parsing takes long, so parse only those that may have one.
    for path, text in ((path, text) for path, text in texts.items() if any(name in text for name in names)):
        for node in ast.walk(ast.parse(text)):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name.startswith(names):
                assert isinstance(node, ast.Call)
                found.append((f"{path}:{node.lineno}", node))
    return found


def test_every_process_start_names_its_program_and_environment() -> None:
    calls = starts()
    assert len(calls) > 5
    for place, call in calls:
        name = ast.unparse(call.func)
        assert name in ("subprocess.run", "subprocess.Popen", "os.execve"), place
        # The environment is the third argument of `execve`.
        names_environment = name == "os.execve" or any(keyword.arg == "env" for keyword in call.keywords)
        assert names_environment, f"{place}: the whole environment is handed down"
        first = call.args[0]
        words = first.elts if isinstance(first, ast.List) else []
        program = words[0] if words else first
        assert not isinstance(program, ast.Constant), f"{place}: looked up on PATH"
