"""Edit a text in the user's own editor while the dashboard is suspended."""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from textual.app import App, SuspendNotSupported

from crewboard import redaction
from crewboard.errors import StorageError, UsageError
from crewboard.linux.programs import find_user_program, path_outside_workspaces


def command() -> list[str]:
    """Return `$VISUAL`, else `$EDITOR`, else vi.

    Raises:
        UsageError: The variable is not a valid command line.
    """
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        return shlex.split(given)
    except ValueError as error:
        raise UsageError(f"$VISUAL or $EDITOR is not a command: {error}") from error


def edit(app: App[Any], text: str) -> str:
    """Edit `text` and return the result. The temporary file is private and removed afterwards.

    Raises:
        UsageError: There is no such editor, or it failed; the text is unchanged.
        StorageError: The file could not be written or read.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="crewboard-", ignore_cleanup_errors=True) as folder:
            path = Path(folder, "message.md")
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
            _run(app, [*command(), str(path)])
            return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError as error:
        raise StorageError(f"the draft could not be edited: {error}") from error


def _run(app: App[Any], words: list[str]) -> None:
    program = find_user_program(words[0])
    if program is None:
        raise UsageError(_missing(words[0]))
    try:
        with app.suspend():
            code = subprocess.run([str(program), *words[1:]], env=_environment(), check=False).returncode
    except SuspendNotSupported as error:
        raise UsageError("an editor cannot run in this terminal") from error
    if code:
        raise UsageError(f"{words[0]} ended with {code}; the draft is unchanged")


def _missing(name: str) -> str:
    if shutil.which(name):
        return f"the editor {name!r} is in a workspace, where agents can change it: set $VISUAL or $EDITOR"
    return f"there is no editor {name!r}: set $VISUAL or $EDITOR"


def _environment() -> dict[str, str]:
    """Return the user's environment without credentials; programs of a workspace are not found by their name."""
    kept = {name: value for name, value in os.environ.items() if not redaction.is_secret(name)}
    return {**kept, "PATH": path_outside_workspaces()}
