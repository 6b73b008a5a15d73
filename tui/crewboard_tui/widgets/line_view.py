"""A scrollable text. It can follow its end as it grows, until the user scrolls up."""

from typing import Any, ClassVar

from textual.binding import BindingType
from textual.geometry import Region
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from crewboard_tui.keymap.bindings import bindings_of
from crewboard_tui.render.lines import Line, plain
from crewboard_tui.widgets.painter import Painter, Rule, set_height


class LineView(ScrollView, can_focus=True):
    """Shows lines and scrolls.

    With `follows`, it can follow its end, and does so at first. While `follow` is True, the last line stays visible.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("log")]

    class Scrolled(Message):
        """Sent when the scroll position changed, or whether the view follows its end."""

    def __init__(self, *, follows: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lines: list[Line] = []
        """All lines, including those that are not visible."""
        self._painter = Painter(self)
        self.rule = Rule(self)
        self.follows = follows
        """True if the view can follow its end."""
        self.follow = follows

    @property
    def copied(self) -> str:
        """Return all text, for copying."""
        return "\n".join(plain(each).rstrip() for each in self.lines).strip("\n")

    @property
    def in_sight(self) -> range:
        """Return the numbers, from 0, of the lines that are on the screen."""
        if not self.is_on_screen:
            return range(0)
        content = self.content_region
        visible = self.screen.find_widget(self).visible_region.intersection(content)
        top = self.scroll_offset.y + visible.y - content.y
        return range(top, min(top + visible.height, len(self.lines)))

    def show(self, lines: list[Line]) -> None:
        """Show these lines."""
        before, self.lines = self.lines, lines
        top = self.scroll_offset.y
        set_height(self, len(lines))
        if self.follow:
            self._to_end()
        if self.scroll_offset.y != top:
            return
        for y in range(self.size.height):
            old = before[top + y] if top + y < len(before) else None
            new = self.lines[top + y] if top + y < len(self.lines) else None
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def restart(self) -> None:
        """Start with new content: at the top, or at the end if the view follows its end."""
        self.follow = self.follows
        self.scroll_to(y=0, animate=False, force=True)

    def _to_end(self) -> None:
        end = max(0, len(self.lines) - self.size.height)
        if end != self.scroll_offset.y:
            self.scroll_to(y=end, animate=False, force=True)

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.rule.above(super().render_lines(crop), crop)

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        content = self.lines[index] if index < len(self.lines) else ()
        return self._painter.strip(content, self.line_width)

    @property
    def line_width(self) -> int:
        """Return the cells for a line."""
        return max(1, self.scrollable_content_region.width)

    def watch_show_vertical_scrollbar(self) -> None:
        # A scrollbar that has just appeared does not know the scroll position yet.
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_y

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if round(old_value) != round(new_value):
            self.post_message(self.Scrolled())

    def on_resize(self) -> None:
        if self.follow:
            self._to_end()
        self.post_message(self.Scrolled())

    def _scroll(self, rows: int) -> None:
        end = max(0, len(self.lines) - self.size.height)
        followed, self.follow = self.follow, False
        self.scroll_to(y=max(0, min(self.scroll_offset.y + rows, end)), animate=False, force=True)
        if followed:
            self.post_message(self.Scrolled())

    def action_scroll_line(self, rows: int) -> None:
        self._scroll(rows)

    def action_scroll_page(self, pages: int) -> None:
        self._scroll(pages * max(1, self.size.height // 2))

    def action_scroll_top(self) -> None:
        self._scroll(-len(self.lines))

    def action_scroll_bottom(self) -> None:
        self._scroll(len(self.lines))
        self.follow = self.follows
        self.post_message(self.Scrolled())

    def action_follow(self) -> None:
        self.follow = not self.follow
        if self.follow:
            self._to_end()
        self.post_message(self.Scrolled())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        return self.follows if action == "follow" else True
