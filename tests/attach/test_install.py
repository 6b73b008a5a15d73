"""The hooks in a project's settings: added and removed, and nothing else changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from crewboard.attach import install
from crewboard.errors import BadDataError, UsageError

OWN = {
    "permissions": {"allow": ["Bash(ls:*)"]},
    "hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "./audit hook"}]}],
        "Stop": [{"hooks": [{"type": "command", "command": "notify-send done"}]}],
    },
}
"""Settings that a user has already."""


def settings_in(project: Path, content: str | None = None) -> Path:
    path = project / install.SETTINGS
    if content is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return path


def commands_of(settings: dict[str, Any], event: str) -> list[str]:
    return [hook["command"] for group in settings["hooks"][event] for hook in group["hooks"]]


def test_the_hooks_are_added_to_a_project_without_settings(tmp_path: Path) -> None:
    assert install.missing_reason(tmp_path) is not None
    assert install.install(tmp_path)
    path = settings_in(tmp_path)
    assert json.loads(path.read_text()) == install.snippet()
    assert install.missing_reason(tmp_path) is None
    assert not install.install(tmp_path)

    assert install.uninstall(tmp_path)
    assert not path.parent.exists()
    assert not install.uninstall(tmp_path)


def test_a_folder_with_other_files_stays(tmp_path: Path) -> None:
    install.install(tmp_path)
    other = settings_in(tmp_path).with_name("CLAUDE.md")
    other.write_text("x")
    install.uninstall(tmp_path)
    assert other.read_text() == "x"


def test_settings_and_hooks_of_the_user_are_kept(tmp_path: Path) -> None:
    text = json.dumps(OWN, separators=(",", ":"))
    path = settings_in(tmp_path, text)
    path.chmod(0o644)
    install.install(tmp_path)
    after = json.loads(path.read_text())
    assert after["permissions"] == OWN["permissions"]
    assert commands_of(after, "PreToolUse") == ["./audit hook", install.command()]
    assert commands_of(after, "Stop") == ["notify-send done"]
    assert path.stat().st_mode & 0o777 == 0o644

    install.uninstall(tmp_path)
    assert path.read_text() == text
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_the_user_changed_meanwhile_is_kept(tmp_path: Path) -> None:
    path = settings_in(tmp_path, json.dumps(OWN))
    install.install(tmp_path)
    changed = json.loads(path.read_text())
    changed["permissions"]["allow"].append("Read")
    changed["hooks"]["PreToolUse"][1]["hooks"].append({"type": "command", "command": "mine"})
    path.write_text(json.dumps(changed))
    install.uninstall(tmp_path)
    after = json.loads(path.read_text())
    assert after["permissions"]["allow"] == ["Bash(ls:*)", "Read"]
    assert commands_of(after, "PreToolUse") == ["./audit hook", "mine"]


def test_hooks_of_an_installation_that_was_moved_are_replaced(tmp_path: Path) -> None:
    old = json.dumps(install.snippet()).replace(install.command(), "/gone/bin/crewboard hook")
    path = settings_in(tmp_path, old)
    assert "/gone/bin/crewboard" in str(install.missing_reason(tmp_path))
    assert install.install(tmp_path)
    assert json.loads(path.read_text()) == install.snippet()


def test_disabled_hooks_are_reported(tmp_path: Path) -> None:
    install.install(tmp_path)
    path = settings_in(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "disableAllHooks": True}))
    assert "disables all hooks" in str(install.missing_reason(tmp_path))


@pytest.mark.parametrize("content", ["{", '{"hooks": []}', '{"hooks": {"Stop": {}}}', "[]", "7", "// mine\n{}"])
def test_settings_that_cannot_be_read_are_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = settings_in(tmp_path, content)
    with pytest.raises(BadDataError, match="not changed"):
        install.install(tmp_path)
    with pytest.raises(BadDataError, match="not changed"):
        install.uninstall(tmp_path)
    assert path.read_text() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_groups_of_another_form_are_kept(tmp_path: Path) -> None:
    odd = {"hooks": {"PreToolUse": [7, {"matcher": "x"}, {"hooks": "y"}, {"hooks": [3, {"command": "'"}]}], "Stop": []}}
    path = settings_in(tmp_path, json.dumps(odd))
    install.install(tmp_path)
    settings_in(tmp_path).write_text(json.dumps(json.loads(path.read_text()), indent=1))
    install.uninstall(tmp_path)
    assert json.loads(path.read_text()) == odd


def test_the_settings_of_the_user_are_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="your own settings"):
        install.install(tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (project / ".claude").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="symbolic link"):
        install.install(project)
    (project / ".claude").unlink()
    (project / ".claude").symlink_to(tmp_path / ".claude")
    with pytest.raises(UsageError, match="your own settings"):
        install.install(project)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_the_command_is_found_without_a_path(tmp_path: Path) -> None:
    program, *rest = install.command().split()
    assert Path(program).is_absolute()
    assert rest[-1] == "hook"
