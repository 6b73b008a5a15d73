"""One line at the bottom to type into: a filter, a name, a message."""

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from crewboard_tui import keys
from crewboard_tui.lines import one_line


class AskLine(ModalScreen[str | None]):
    """Asks for one line; None when it is left with Esc. `changed` is called as one types."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("line")]

    def __init__(
        self,
        label: str,
        text: str = "",
        *,
        hint: str = "",
        changed: Callable[[str], None] | None = None,
        left: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._label = label
        self._text = text
        self._hint = hint
        self._changed = changed
        self._left = left

    def compose(self) -> ComposeResult:
        with Container(id="ask"):
            yield Label(Content(f"{one_line(self._label)} ›"), id="ask-label")
            field = Input(self._text, compact=True, id="ask-input", select_on_focus=False)
            field.cursor_blink = False
            yield field
            yield Label(Content(self._hint), id="ask-hint")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _tell(self, event: Input.Changed) -> None:
        if self._changed is not None:
            self._changed(event.value)

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        if self._left is not None:
            self._left(self.query_one(Input).value)
        self.dismiss(None)
