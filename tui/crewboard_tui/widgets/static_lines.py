"""A few lines without a cursor: status bar, alert bar, footer. Only changed lines are repainted."""

from typing import Any

from textual import events
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import Line
from crewboard_tui.render.painter import Painter
from crewboard_tui.widgets.footer import press


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
