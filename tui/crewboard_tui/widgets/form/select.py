"""A choice that shows only its value: `‹ code ›`, changed with left and right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import Span, say
from crewboard_tui.render.painter import Painter


class Select(Widget, can_focus=True):
    """A field with one of several values, each shown by its label."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("choice")]
    at: reactive[int] = reactive(0)

    @dataclass
    class Changed(Message):
        """The value changed."""

        choice: "Select"

        @property
        def control(self) -> "Select":
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = list(options)
        self._painter = Painter(self)

    @property
    def value(self) -> str:
        """Return the chosen value."""
        return self.options[self.at][0]

    def choose(self, value: str) -> None:
        """Choose a value, if it is an option."""
        self.at = next((at for at, (each, _) in enumerate(self.options) if each == value), self.at)

    def action_turn(self, by: int) -> None:
        self.at = (self.at + by) % len(self.options)

    def watch_at(self) -> None:
        self.post_message(self.Changed(self))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return 1

    def parts(self, width: int) -> list[tuple[Span, int]]:  # noqa: ARG002
        """Return what is shown in `width` cells: each piece with the index of the option that a click chooses."""
        before, after = ((self.at + by) % len(self.options) for by in (-1, 1))
        label = say(self.options[self.at][1], "bold" if self.has_focus else "")
        return [(Span("‹ ", "key"), before), (label, after), (Span(" ›", "key"), after)]

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        width = self.size.width
        return self._painter.strip(tuple(span for span, _ in self.parts(width)), width)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for span, at in self.parts(self.size.width):
            end += cell_len(span.text)
            if event.x < end:
                self.at = at
                return

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
