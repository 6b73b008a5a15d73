"""One of several: `‹ code ›`, turned with left and right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui import keys
from crewboard_tui.lines import Span, say
from crewboard_tui.widgets.painter import Painter


class Choice(Widget, can_focus=True):
    """A field that holds one of some values; each is shown by its label."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("choice")]
    at: reactive[int] = reactive(0)

    @dataclass
    class Changed(Message):
        """Another value was chosen."""

        choice: "Choice"

        @property
        def control(self) -> "Choice":
            return self.choice

    def __init__(self, options: Sequence[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.options = list(options)
        self._painter = Painter(self)

    @property
    def value(self) -> str:
        """What is chosen."""
        return self.options[self.at][0]

    def choose(self, value: str) -> None:
        """Choose a value, if it is one of them."""
        self.at = next((at for at, (each, _) in enumerate(self.options) if each == value), self.at)

    def action_turn(self, by: int) -> None:
        self.at = (self.at + by) % len(self.options)

    def watch_at(self) -> None:
        self.post_message(self.Changed(self))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return 1

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        label = self.options[self.at][1]
        content = (Span("‹ ", "key"), say(label, "bold" if self.has_focus else ""), Span(" ›", "key"))
        return self._painter.strip(content, self.size.width)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
