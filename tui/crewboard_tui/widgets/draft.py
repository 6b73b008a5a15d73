"""A line that is being written: Tab completes a name at its beginning."""

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.widgets import Input

from crewboard_tui import keys


def complete(text: str, names: Sequence[str]) -> str:
    """`text` grown by what all names have in common that begin with it; unchanged if none does."""
    found = fitting(text, names)
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*found, strict=False))
    return "".join(letters[0] for letters in shared) or text


def fitting(text: str, names: Sequence[str]) -> list[str]:
    """The names that begin with `text`."""
    return [name for name in names if name.startswith(text)]


class Draft(Input):
    """An input whose text may begin with one of `names`."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("draft")]

    def __init__(self, text: str = "", names: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(text, compact=True, select_on_focus=False, **kwargs)
        self.cursor_blink = False
        self.names = names

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "complete":
            return complete(self.value, self.names) != self.value
        return super().check_action(action, parameters)

    def action_complete(self) -> None:
        self.value = complete(self.value, self.names)
        self.cursor_position = len(self.value)
