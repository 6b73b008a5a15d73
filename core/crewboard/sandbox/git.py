"""Git settings for commands. The user's own file is hidden, because it may hold passwords."""

import os
import subprocess
from pathlib import Path

from crewboard.linux.programs import clean_environment, find_program
from crewboard.store.layout import HOME as TEAMS

_HARMLESS = ("user.name", "user.email", "init.defaultbranch", "core.autocrlf", "core.eol")
"""Settings of the user that commands see."""


def write_git_settings(path: Path, agent: str, workspace: Path) -> None:
    """Write the settings that git uses in commands: harmless ones of the user, and a name for commits."""
    every = _git_settings(workspace)
    own = {name: value for name, value in every.items() if name in _HARMLESS}
    own.setdefault("user.name", agent)
    own.setdefault("user.email", f"{agent}@crewboard.invalid")
    # Programs that a repository makes git run stay in the sandbox.
    own["safe.directory"] = "*"
    ignored = path.with_name(".gitignored")
    ignored.write_text(f"{_ignored(every)}\n{TEAMS}/\n", encoding="utf-8")
    own["core.excludesfile"] = str(ignored)
    lines = []
    for name, value in own.items():
        section, _, key = name.rpartition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        lines.append(f'[{section}]\n\t{key} = "{escaped}"\n')
    path.write_text("".join(lines), encoding="utf-8")


def _git_settings(workspace: Path) -> dict[str, str]:
    git = find_program("git", workspace)
    if git is None:
        return {}
    try:
        done = subprocess.run(
            [git, "config", "--global", "--no-includes", "--list", "-z"],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=5,
            check=False,
            # Outside the workspace, whose own settings could name programs to run.
            cwd="/",
            env=clean_environment("XDG_CONFIG_HOME"),
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (entry.partition("\n") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs}


def _ignored(settings: dict[str, str]) -> str:
    """Return the patterns that the user lets git ignore everywhere."""
    default = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "git/ignore"
    try:
        return Path(settings.get("core.excludesfile") or default).expanduser().read_text(errors="replace")
    except (OSError, RuntimeError):
        return ""
