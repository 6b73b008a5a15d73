"""Lines without a cursor: status bar, alert bar, footer, and pane titles. Only changes are repainted."""

from typing import Any

from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import Line, one_line
from crewboard_tui.render.painter import Painter
from crewboard_tui.widgets.collapsible_list import CollapsibleList
from crewboard_tui.widgets.footer import press
from crewboard_tui.widgets.line_view import LineView


class StaticLines(Widget):
    """Shows the given lines and is as high as their number."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lines: list[Line] = []
        self._painter = Painter(self)

    @property
    def lines(self) -> list[Line]:
        """Return the lines."""
        return self._lines

    def show(self, lines: list[Line]) -> None:
        """Show these lines."""
        before, self._lines = self._lines, lines
        if len(before) != len(lines):
            self.refresh(layout=True)
            return
        changed = [y for y, (old, new) in enumerate(zip(before, lines, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        content = self._lines[y] if y < len(self._lines) else ()
        return self._painter.strip(content, width)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show as tooltip what the key under the pointer does."""
        key = bindings.BY_ID.get(str(event.style.meta.get("key")))
        self.tooltip = key.says if key else None

    async def on_click(self, event: events.Click) -> None:
        ident = event.style.meta.get("key")
        if ident:
            await press(self.app, self.screen, str(ident))


def title(pane: Widget, above: str, below: str = "") -> None:
    """Set a pane's titles if they changed: each assignment repaints the frame."""
    wanted = Content(one_line(above)), Content(one_line(below))
    if pane.border_title != wanted[0]:
        pane.border_title = wanted[0]
    if pane.border_subtitle != wanted[1]:
        pane.border_subtitle = wanted[1]


def follow_words(pane: LineView | CollapsibleList, key: str) -> str:
    """Describe whether a pane follows its end, with the `key` that switches it."""
    words = f"follow:{'on' if pane.follow else 'off'}"
    return f"{key} {words}" if pane.has_focus else words
