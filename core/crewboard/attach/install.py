"""Add, remove and find the hooks of crewboard in a project's `.claude/settings.local.json`; change nothing else there.

The user's own settings, in their home directory, are never touched.
"""

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from crewboard.errors import BadDataError, StorageError, UsageError
from crewboard.store import files

SETTINGS = Path(".claude", "settings.local.json")
"""The file in a project, which Claude Code reads when a session starts. It is not shared with others."""

BACKUP_SUFFIX = ".before-crewboard"

PLAN_EVENT, PERMISSION_EVENT = "PreToolUse", "PermissionRequest"

PLAN_TIMEOUT = 86_400
"""Seconds after which Claude Code ends the hook of a plan. The hook gives up a little earlier, and denies."""

PERMISSION_TIMEOUT = 600
"""Seconds after which Claude Code ends the hook of a permission; only then it asks in its own dialog."""

_MODULE = "crewboard_tui.cli"


def command() -> str:
    """Return the shell command of the hooks, with an absolute path, because a session may have another PATH."""
    script = Path(sys.executable).with_name("crewboard")
    words = [str(script)] if script.exists() else [sys.executable, "-m", _MODULE]
    return shlex.join([*words, "hook"])


def snippet() -> dict[str, Any]:
    """Return the part of Claude Code's settings that has the hooks of crewboard, for plans and for permissions."""
    hooked = {PLAN_EVENT: ("ExitPlanMode", PLAN_TIMEOUT), PERMISSION_EVENT: ("*", PERMISSION_TIMEOUT)}
    return {
        "hooks": {
            event: [
                {"matcher": matcher, "hooks": [{"type": "command", "command": command(), "timeout": timeout}]},
            ]
            for event, (matcher, timeout) in hooked.items()
        }
    }  # fmt: skip


def as_text(settings: dict[str, Any]) -> str:
    """Return settings as the JSON text that is written to a file."""
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def install(project: Path) -> bool:
    """Add the hooks to the settings of a project; return False if they are there already.

    The file as it was before is kept beside it (`BACKUP_SUFFIX`). Hooks of crewboard with another command, such as that
    of an installation that was moved, are replaced.

    Raises:
        BadDataError: The file cannot be read as settings; it was not changed.
        StorageError: The file cannot be read or written.
        UsageError: The file is among the user's own settings, or behind a symbolic link.
    """
    path = _settings_file(project)
    before, settings = _read(path)
    without_ours = _without_hooks(settings)
    hooks = dict(without_ours.get("hooks", {}))
    for event, groups in snippet()["hooks"].items():
        hooks[event] = [*hooks.get(event, []), *groups]
    wanted = {**without_ours, "hooks": hooks}
    if wanted == settings:
        return False
    if before is not None and not _has_hooks(settings):
        _write(_backup(path), before)
    _write(path, as_text(wanted).encode())
    return True


def uninstall(project: Path) -> bool:
    """Remove exactly the hooks of crewboard from the settings of a project; return False if there are none.

    If nothing else was changed since they were added, the file is as it was before, or removed if it was missing then.

    Raises:
        BadDataError: The file cannot be read as settings; it was not changed.
        StorageError: The file cannot be read or written.
        UsageError: The file is among the user's own settings, or behind a symbolic link.
    """
    path = _settings_file(project)
    before, settings = _read(path)
    if before is None or not _has_hooks(settings):
        return False
    left = _without_hooks(settings)
    with files.storage_errors(f"cannot change {path}"):
        kept = files.read_file(_backup(path))
        if kept is not None and _parse(path, kept) == left:
            # As the user wrote it, with its own order and spaces.
            _write(path, kept)
        elif kept is None and not left:
            path.unlink()
        else:
            _write(path, as_text(left).encode())
        _backup(path).unlink(missing_ok=True)
        if not path.exists():
            # It stays if anything else is in it.
            with contextlib.suppress(OSError):
                path.parent.rmdir()
    return True


def missing_reason(project: Path) -> str | None:
    """Return why sessions in a project run no hook of crewboard for plans, so that Claude Code decides on them alone.

    Return None if they run one.
    """
    path = project / SETTINGS
    try:
        _, settings = _read(path)
    except (BadDataError, StorageError) as error:
        return str(error)
    groups = [group for group in settings.get("hooks", {}).get(PLAN_EVENT, []) if isinstance(group, dict)]
    for_plans = [group.get("hooks") for group in groups if group.get("matcher") == "ExitPlanMode"]
    commands = [
        str(hook["command"]) for hooks in for_plans if isinstance(hooks, list) for hook in hooks if _is_ours(hook)
    ]
    if not commands:
        return f"no hooks in {path}"
    if settings.get("disableAllHooks"):
        return f"{path} disables all hooks"
    program = shlex.split(commands[0])[0]
    return None if os.access(program, os.X_OK) else f"the hook in {path} runs {program}, which is missing"


def _settings_file(project: Path) -> Path:
    path = project / SETTINGS
    own = {Path.home() / ".claude", Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")}
    if path.parent.resolve() in {folder.resolve() for folder in own}:
        raise UsageError(f"{path} is among your own settings; attach in the folder of a project")
    if path.parent.is_symlink() or path.is_symlink():
        raise UsageError(f"{path} is behind a symbolic link; put the hooks there yourself: `crewboard attach --print`")
    return path


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _read(path: Path) -> tuple[bytes | None, dict[str, Any]]:
    """Return the contents of a file, None if there is none, and the settings in it.

    Raises:
        BadDataError: The file contains something else than settings.
        StorageError: The file cannot be read.
    """
    with files.storage_errors(f"cannot read {path}"):
        content = files.read_file(path)
    return content, _parse(path, content or b"")


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        settings = json.loads(content.decode("utf-8-sig")) if content.strip() else {}
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"{path} is not valid JSON, so it was not changed: {error}") from error
    hooks = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(hooks, dict) or not all(isinstance(groups, list) for groups in hooks.values()):
        raise BadDataError(f"{path} has another form than settings of Claude Code, so it was not changed")
    return settings


def _write(path: Path, content: bytes) -> None:
    with files.storage_errors(f"cannot write {path}"):
        path.parent.mkdir(exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        files.replace_file(path, content, durable=True)
        if mode is not None:
            path.chmod(mode)


def _is_ours(hook: object) -> bool:
    """Return True if a hook runs `crewboard hook`, of this or another installation."""
    if not isinstance(hook, dict):
        return False
    try:
        words = shlex.split(str(hook.get("command", "")))
    except ValueError:
        return False
    is_script = len(words) == 2 and Path(words[0]).name == "crewboard"  # noqa: PLR2004  program and command
    return words[-1:] == ["hook"] and (is_script or words[1:-1] == ["-m", _MODULE])


def _has_hooks(settings: dict[str, Any]) -> bool:
    return _without_hooks(settings) != settings


def _without_hooks(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without the hooks of crewboard, and without groups and events that had no other hooks."""
    left = {}
    for event, groups in settings.get("hooks", {}).items():
        kept = []
        for group in groups:
            hooks = group.get("hooks") if isinstance(group, dict) else None
            if not isinstance(hooks, list) or not any(map(_is_ours, hooks)):
                kept.append(group)
            elif others := [hook for hook in hooks if not _is_ours(hook)]:
                kept.append({**group, "hooks": others})
        if kept or not groups:
            left[event] = kept
    rest = {key: value for key, value in settings.items() if key != "hooks"}
    return {**settings, "hooks": left} if left or settings.get("hooks") == {} else rest
