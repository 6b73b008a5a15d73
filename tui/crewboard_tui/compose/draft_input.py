"""A one-line input for drafts: Tab completes, `^e` opens the user's editor, pasted lines are kept."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import BindingType
from textual.keys import REPLACED_KEYS
from textual.widgets import Input

from crewboard import redaction
from crewboard.errors import CrewboardError, StorageError, UsageError
from crewboard.linux.programs import find_user_program, path_outside_workspaces
from crewboard_tui.keymap import bindings_of

BREAK = "↵"
"""Stands for a line break in a one-line input."""

TAB = "⇥"
"""Stands for a tab."""

_LITERAL = "\N{VARIATION SELECTOR-15}"
"""An invisible character after one of these marks means that the mark itself was typed."""

_MEANT = {BREAK: "\n", TAB: "\t"}
_MARKED = re.compile(f"([{BREAK}{TAB}])({_LITERAL}*)")


def complete(text: str, names: Sequence[str]) -> str:
    """Extend `text` by the common prefix of all names that start with it."""
    found = fitting(text, names)
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*found, strict=False))
    return "".join(letters[0] for letters in shared) or text


def fitting(text: str, names: Sequence[str]) -> list[str]:
    """Return the names that start with `text`."""
    return [name for name in names if name.startswith(text)]


def escape_newlines(text: str) -> str:
    """Put a text on one line: breaks and tabs become visible marks, other controls spaces."""
    literal = _MARKED.sub(rf"\g<0>{_LITERAL}", text.replace("\r\n", "\n"))
    marked = literal.replace("\n", BREAK).replace("\t", TAB)
    return "".join(character if character.isprintable() else " " for character in marked)


def unescape_newlines(value: str) -> str:
    """Return the original text of `escape_newlines`."""
    return _MARKED.sub(lambda found: found[1] + found[2][1:] if found[2] else _MEANT[found[1]], value)


class DraftInput(Input):
    """An input whose text may start with one of `names`.

    `keep` is called on each change. With `prose`, `^e` opens the editor; `refuse` is told why that failed. Without
    `sends`, Enter is left to the parent.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("draft")]

    def __init__(self, text: str = "", names: Sequence[str] = (), *, prose: bool = False, **kwargs: Any) -> None:
        self.keep: Callable[[str], None] | None = None
        self.refuse: Callable[[str], None] | None = None
        self.sends = True
        super().__init__(escape_newlines(text), compact=True, select_on_focus=False, **kwargs)
        self.cursor_blink = False
        self.names = names
        self.prose = prose

    @property
    def text(self) -> str:
        """Return the text with its line breaks."""
        return unescape_newlines(self.value)

    def load(self, text: str) -> None:
        """Show a text that is already kept."""
        keep, self.keep = self.keep, None
        self.value = escape_newlines(text)
        self.cursor_position = len(self.value)
        self.keep = keep

    def watch_value(self) -> None:
        if self.keep is not None:
            self.keep(self.text)

    def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default()
        event.stop()
        self.replace(escape_newlines(event.text), *self.selection)

    def insert_text_at_cursor(self, text: str) -> None:
        super().insert_text_at_cursor(escape_newlines(text))

    def check_consume_key(self, key: str, character: str | None) -> bool:
        # Textual names `/`, `@` and `+` by short names without a character; accept them as text too.
        return super().check_consume_key(key, character) or key in REPLACED_KEYS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "complete":
            return complete(self.value, self.names) != self.value
        if action == "edit":
            return self.prose
        if action == "submit":
            return self.sends
        return super().check_action(action, parameters)

    def action_complete(self) -> None:
        self.value = complete(self.value, self.names)
        self.cursor_position = len(self.value)

    def action_edit(self) -> None:
        try:
            self.value = escape_newlines(edit_in_editor(self.app, self.text))
        except CrewboardError as error:
            if self.refuse is not None:
                self.refuse(str(error))
        self.cursor_position = len(self.value)


def editor_command() -> list[str]:
    """Return `$VISUAL`, else `$EDITOR`, else vi.

    Raises:
        UsageError: The variable is not a valid command line.
    """
    given = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        return shlex.split(given)
    except ValueError as error:
        raise UsageError(f"$VISUAL or $EDITOR is not a command: {error}") from error


def edit_in_editor(app: App[Any], text: str) -> str:
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
            _run_editor(app, [*editor_command(), str(path)])
            return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError as error:
        raise StorageError(f"the draft could not be edited: {error}") from error


def _run_editor(app: App[Any], words: list[str]) -> None:
    program = find_user_program(words[0])
    if program is None:
        raise UsageError(_no_editor(words[0]))
    try:
        with app.suspend():
            code = subprocess.run([str(program), *words[1:]], env=_editor_environment(), check=False).returncode
    except SuspendNotSupported as error:
        raise UsageError("an editor cannot run in this terminal") from error
    if code:
        raise UsageError(f"{words[0]} ended with {code}; the draft is unchanged")


def _no_editor(name: str) -> str:
    if shutil.which(name):
        return f"the editor {name!r} is in a workspace, where agents can change it: set $VISUAL or $EDITOR"
    return f"there is no editor {name!r}: set $VISUAL or $EDITOR"


def _editor_environment() -> dict[str, str]:
    """Return the user's environment without credentials; programs of a workspace are not found by their name."""
    kept = {name: value for name, value in os.environ.items() if not redaction.is_secret(name)}
    return {**kept, "PATH": path_outside_workspaces()}
