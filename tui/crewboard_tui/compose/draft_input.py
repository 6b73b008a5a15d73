"""A one-line input for drafts: Tab completes, `^e` opens an editor, pasted lines are kept."""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.keys import REPLACED_KEYS
from textual.widgets import Input

from crewboard.errors import CrewboardError
from crewboard_tui.compose import editor
from crewboard_tui.keymap import bindings

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

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("draft")]

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
            self.value = escape_newlines(editor.edit(self.app, self.text))
        except CrewboardError as error:
            if self.refuse is not None:
                self.refuse(str(error))
        self.cursor_position = len(self.value)
