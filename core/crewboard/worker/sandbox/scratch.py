"""A private folder for one run: temporary files and caches of its commands, gone with the run."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from crewboard import process

_NAME = "crew-{pid}-{ticks}-"
_PATTERN = re.compile(r"crew-(\d+)-(\d+)-")

_GIT_SETTINGS = ("user.name", "user.email", "init.defaultbranch", "core.autocrlf", "core.eol")
"""What of the user's own settings a command sees; the file itself may hold passwords, and is hidden."""


def make() -> Path:
    """Make the folder of this process, after removing those of processes that are gone."""
    folder = Path(os.path.realpath(tempfile.gettempdir()))
    for old in folder.glob("crew-*"):
        if _is_left_behind(old):
            remove(old)
    me = os.getpid()
    made = tempfile.mkdtemp(prefix=_NAME.format(pid=me, ticks=process.start_ticks(me)), dir=folder)
    return Path(made)


def _is_left_behind(path: Path) -> bool:
    named = _PATTERN.match(path.name)
    if named is None:
        return False
    found = path.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and process.start_ticks(int(named[1])) != int(named[2])


def remove(path: Path) -> None:
    """Remove the folder, whatever its user left in it."""

    def force(_function: Callable[..., object], name: str, _error: object) -> None:
        folder = Path(name).parent
        try:
            folder.chmod(0o700)
            Path(name).chmod(0o700)
            shutil.rmtree(name, ignore_errors=True) if Path(name).is_dir() else Path(name).unlink()
        except OSError:
            return

    shutil.rmtree(path, onerror=force)


def write_git_settings(path: Path, agent: str) -> None:
    """Write the settings that git uses in commands: the user's, where they are harmless; a name to commit under."""
    own = _git_settings()
    own.setdefault("user.name", agent)
    own.setdefault("user.email", f"{agent}@crewboard.invalid")
    own["safe.directory"] = "*"  # nothing that a repository could start gets out of the sandbox
    lines = []
    for name, value in own.items():
        section, _, key = name.rpartition(".")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        lines.append(f'[{section}]\n\t{key} = "{escaped}"\n')
    path.write_text("".join(lines), encoding="utf-8")


def _git_settings() -> dict[str, str]:
    try:
        done = subprocess.run(
            ["git", "config", "--global", "--list", "-z"],
            capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=5, check=False, cwd="/",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (entry.partition("\n") for entry in done.stdout.split("\0") if entry)
    return {name: value for name, _, value in pairs if name in _GIT_SETTINGS}
