"""A checkbox: `[x] a plan first`. Its state is visible without colours."""

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import Span
from crewboard_tui.render.painter import Painter

_BOX = len("[x] ")


class Checkbox(Widget, can_focus=True):
    """A boolean field."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("tick")]
    value: reactive[bool] = reactive(default=False)

    @dataclass
    class Changed(Message):
        """The value changed."""

        tick: "Checkbox"

        @property
        def control(self) -> "Checkbox":
            return self.tick

    def __init__(self, label: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._label = label
        self._painter = Painter(self)

    def action_turn(self) -> None:
        self.value = not self.value

    def watch_value(self) -> None:
        self.post_message(self.Changed(self))

    def on_click(self) -> None:
        self.action_turn()

    def get_content_width(self, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return cell_len(self._label) + _BOX

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return 1

    def render_line(self, y: int) -> Strip:  # noqa: ARG002
        box = Span("[x] " if self.value else "[ ] ", "key")
        content = (box, Span(self._label, "bold" if self.has_focus else ""))
        return self._painter.strip(content, self.size.width)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
