"""Paint lines into Textual strips in the theme's colours, and screens once per key, only where they changed.

All that paints otherwise than Textual does is here and in `BaseScreen`. Once Textual has what
`docs/decisions/textual.patch` proposes, `TouchedCompositor` and `hold_paint` can go.

Tones are not component classes: for these, a stylesheet computes styles for each widget at every change of focus or
size, which took half of the time to the first picture.
"""

# ruff: noqa: SLF001  it reaches into Textual

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from msgspec import Struct
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor
from textual.app import App
from textual.binding import ActiveBinding
from textual.containers import Vertical
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.render.lines import Line, Span, crop, one_line, rule_line
from crewboard_tui.render.sanitize import safe_text
from crewboard_tui.render.themes import code_colour


class Tone(Struct, frozen=True):
    """The theme colours and text attributes that a tone adds to a text."""

    color: str = ""
    background: str = ""
    bold: bool | None = None
    italic: bool | None = None
    underline: bool | None = None
    reverse: bool | None = None


TONES = {
    "error": Tone("error"),
    "warning": Tone("warning"),
    "success": Tone("success"),
    "info": Tone("info"),
    "primary": Tone("primary"),
    "dim": Tone("muted"),
    "bold": Tone(bold=True),
    "italic": Tone(italic=True),
    "underline": Tone(underline=True),
    "cursor": Tone(background="cursor-row"),
    "pointed": Tone(background="panel"),
    "rule": Tone("frame"),
    "trace": Tone("trace"),
    "add": Tone(background="add"),
    "del": Tone(background="del"),
    "error-pill": Tone("on-bad", "bad", bold=True),
    "warning-pill": Tone("on-need", "need", bold=True),
    "success-pill": Tone("on-good", "good", bold=True),
    "key": Tone("primary", bold=True),
    "tab": Tone("primary", bold=True, underline=True),
    "marked": Tone("warning", bold=True),
    "reverse": Tone(reverse=True),
}

CODE = {"keyword": "accent", "string": "success", "comment": "muted", "number": "warning", "definition": "info"}
"""The theme colours of highlighted code, by tone."""

QUIET_ROUNDS = 4
"""Rounds of the event loop without a message, from the focused widget up to the app, before a screen is painted."""

SWITCHED = 0.05
"""Seconds after which a newly shown view is painted even if it is not complete: as long as Textual always waits."""

MOST_ROUNDS = 64
"""Rounds after which the screen is painted in any case."""

_KEPT_SCREENS = 3
"""The most painted lines that a widget keeps, in screens of its own height. A line takes up to 10 kB with its crops."""

_GROUNDS = frozenset({"add", "del"})

_FLAT = {ord("\n"): " ", ord("\t"): " "}


class TouchedCompositor(Compositor):
    """Renders only what is visible, and in a partial update only the lines that changed.

    Textual's own compositor renders all widgets in the box around the changes, also containers that others cover.
    """

    def __init__(self) -> None:
        super().__init__()
        self._touched: set[Region] = set()

    def render_partial_update(self) -> ChopsUpdate | None:
        self._touched = self._dirty_regions.copy()
        try:
            update = super().render_partial_update()
        finally:
            self._touched = set()
        return update and _without_cells_before(update)

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        shown, whole = self.visible_widgets, self.size.region
        self._visible_widgets = _parts_seen((each.intersection(whole) for each in self._touched or {whole}), shown)
        try:
            yield from super()._get_renders(crop)
        finally:
            self._visible_widgets = shown


def _without_cells_before(update: ChopsUpdate) -> ChopsUpdate:
    """Return the update without the cells before the touched ones: Textual paints from the left edge of a widget."""
    lines, starts = list(update.chops), dict[int, int]()
    for y, start, _ in update.spans:
        starts[y] = min(start, starts.get(y, start))
    for y, start in starts.items():
        parts = zip(lines[y].items(), update.chop_ends[y], strict=True)
        lines[y] = {
            (start if x < start < end else x): strip.crop(start - x) if strip is not None and x < start < end else strip
            for (x, strip), end in parts
        }
    return ChopsUpdate(lines, update.spans, update.chop_ends)


def _parts_seen(
    touched: Iterable[Region], shown: Mapping[Widget, tuple[Region, Region]]
) -> dict[Widget, tuple[Region, Region]]:
    """Return the widgets that are visible in the touched regions, each with its region and the clip of its lines there.

    `shown` begins with the widgets in front. What is behind a widget is not visible.
    """
    parts, left = {}, dict[int, int]()
    # The cells of each line, as bits.
    for region in touched:
        for y in region.line_range:
            left[y] = left.get(y, 0) | _cells(region)
    for widget, (region, clip) in shown.items():
        visible = region.intersection(clip)
        cells = _cells(visible)
        lines = [y for y, free in left.items() if visible.y <= y < visible.bottom and free & cells]
        if lines:
            top, bottom = min(lines), max(lines) + 1
            parts[widget] = region, clip.intersection(Region(clip.x, top, clip.width, bottom - top))
            for y in lines:
                left[y] &= ~cells
            left = {y: free for y, free in left.items() if free}
            if not left:
                break
    return parts


def _cells(region: Region) -> int:
    return ((1 << region.width) - 1) << region.x


def hold_paint(app: App[Any]) -> Callable[[], None]:
    """Let an app paint nothing until the returned function is called, or `SWITCHED` seconds have passed."""
    app._begin_batch()
    ends = iter([app._end_batch])

    def end() -> None:
        for end_batch in ends:
            end_batch()
            for screen in [] if app._batch_count else app.screen_stack[-1:]:
                screen.refresh()
                # A layout that comes before that paint would paint what it moved alone, over the screen before.
                screen._compositor._dirty_regions.add(screen._compositor.size.region)

    app.set_timer(SWITCHED, end, name="switched")
    return end


def call_in_screen(app: App[Any], callback: Callable[[], None]) -> None:
    """Call `callback` once the current screen has handled its messages; at once if no screen handles any."""
    if not any(screen.call_later(callback) for screen in app.screen_stack[-1:]):
        callback()


async def paint_settled(screen: Screen[Any]) -> None:
    """Paint a screen once the messages on their way from the focused widget up to the app are handled."""
    pumps, quiet = list((screen.focused or screen).ancestors_with_self), 0
    for _ in range(MOST_ROUNDS):
        await asyncio.sleep(0)
        quiet = quiet + 1 if all(each._message_queue.empty() for each in pumps) else 0
        if quiet == QUIET_ROUNDS:
            break
    screen._on_timer_update()


def forget_painted(screen: Screen[Any]) -> None:
    """Drop the painted lines of a screen that is no longer shown, also those that Textual keeps for each widget."""
    for part in screen.walk_children(Widget):
        part._styles_cache.clear()
        painter = getattr(part, "_painter", None)
        if isinstance(painter, Painter):
            painter.forget()


def binding_of(screen: Screen[Any], key: str) -> ActiveBinding | None:
    """Return the active binding of one key on a screen, as in `active_bindings`, without checking all other keys.

    None if no binding of the key is offered there.
    """
    found = [
        ActiveBinding(node, binding, bool(state), binding.tooltip)
        for node, bindings in screen._modal_binding_chain
        for binding in bindings.key_to_bindings.get(key, ())
        if (state := screen.app._check_action_state(binding.action, node)) is not False
    ]
    return next((each for each in found if each.binding.priority), next(iter(found), None))


def set_height(view: ScrollView, lines: int) -> None:
    """Set the number of lines that a view scrolls.

    The screen is laid out again only if the view's own height depends on that number.
    """
    size = Size(0, lines)
    if view.virtual_size == size:
        return
    if view.styles.auto_dimensions:
        view.virtual_size = size
    else:
        # Setting it in the ordinary way lays out the whole screen.
        view.set_reactive(Widget.virtual_size, size)
        view._scroll_update(size)


class Painter:
    """Paints lines for one widget. Styles are computed once per theme."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._theme = ""
        self._styles: dict[str, Style] = {}
        self._base_style: Style | None = None
        self._base_key: tuple[int, ...] = ()
        self._known: dict[int, tuple[Line, Line, object, Strip]] = {}
        """The strips by the identity of their line, with all that they were painted from, in order of use."""

    def strip(self, content: Line, width: int, *, under: str = "", before: Line = ()) -> Strip:
        """Paint one line in exactly `width` cells, with an ellipsis if it is longer, after the spans `before`.

        `under` is the tone of the background, such as the cursor's. The same line object is not painted again.
        """
        base = self._base()
        follows_from = (base, width, under, self._widget.app.theme)
        line, first, known, strip = self._known.pop(id(content), ((), (), None, None))
        if strip is None or line is not content or first != before or known != follows_from:
            strip = self._paint((*before, *content), width, base + self._style(under))
            # The height is only asked for where there may be one more: Textual derives it from all widgets above.
            on_screen = max(1, min(self._widget.size.height, self._widget.app.size.height))
            most = _KEPT_SCREENS * on_screen
            while len(self._known) >= most:
                del self._known[next(iter(self._known))]
        self._known[id(content)] = content, before, follows_from, strip
        return strip

    @property
    def look(self) -> object:
        """Return a value that changes when the colours of the widget may have changed."""
        return self._base(), self._widget.app.theme

    def paint(self, content: Line, width: int) -> Strip:
        """Paint one line without keeping it."""
        return self._paint(content, width, self._base())

    def forget(self) -> None:
        """Drop all painted lines."""
        self._known.clear()

    def _paint(self, content: Line, width: int, base: Style) -> Strip:
        segments = [
            Segment(
                # Last line of defence: only printable text reaches a terminal, whatever built the line.
                span.text if span.text.isprintable() else safe_text(span.text).translate(_FLAT),
                base + self._style(span.tone) + (Style(meta={"key": span.key}) if span.key else None),
            )
            for span in crop(content, width)
        ]
        # The background of a line of a diff goes to the end of the row.
        ground = next((tone for span in content[-1:] for tone in span.tone.split() if tone in _GROUNDS), "")
        return Strip(segments).adjust_cell_length(width, base + self._style(ground))

    def _base(self) -> Style:
        """Return the style of the widget, which Textual would compute from those of all its ancestors for each line."""
        key = tuple(node.styles._cache_key for node in self._widget.ancestors_with_self)
        if self._base_style is None or key != self._base_key:
            self._base_key, self._base_style = key, self._widget.rich_style
        return self._base_style

    def _style(self, tone: str) -> Style:
        app = self._widget.app
        if self._theme != app.theme:
            self._theme = app.theme
            self._styles.clear()
        style = self._styles.get(tone)
        if style is None:
            colours = app.theme_variables
            style = Style.null()
            for word in tone.split():
                if word not in CODE:
                    added = TONES[word]
                elif getattr(app, "ascii_only", False):
                    added = Tone()
                else:
                    added = Tone(code_colour(CODE[word], colours, app.console.color_system))
                style += _style(
                    colours.get(added.color, added.color) or None,
                    colours[added.background] if added.background else None,
                    added,
                )
            self._styles[tone] = style
        return style


@cache
def _style(color: str | None, background: str | None, tone: Tone) -> Style:
    return Style(
        color=color, bgcolor=background, bold=tone.bold, italic=tone.italic, underline=tone.underline,
        reverse=tone.reverse,
    )  # fmt: skip


class Rule:
    """The rule above a pane, in the line that its style keeps free at the top: title, column heads, a text.

    The rule is heavy while the pane, or a part of it, has the focus. The pane puts it above its lines (`above`).
    Textual paints a pane again when the focus comes or goes; a pane of several parts must call `paint` then.
    """

    def __init__(self, pane: Widget) -> None:
        self._pane = pane
        self._painter = Painter(pane)
        self._entitled = self._titles = "", ""
        self._kept: tuple[object, Strip] = None, Strip([])
        """What the last strip was painted from, and the strip."""
        self.head: Line | None = None
        """The heads of the columns of the pane's rows, placed as the rows are."""

    def entitle(self, title: str, right: str = "") -> None:
        """Set the title at the left of the rule, and the text at its right: untrusted texts."""
        if self._entitled != (title, right):
            # What is the same as before is not made safe again.
            self._entitled = title, right
            self._titles = one_line(title), one_line(right)
            self.paint()

    def paint(self) -> None:
        """Paint the rule, and no more of the pane."""
        left, top = self._pane.content_offset
        self._pane.refresh(Region(-left, -top, self._pane.outer_size.width, 1))

    def above(self, strips: list[Strip], crop: Region) -> list[Strip]:
        """Return the lines of the pane with the rule in the first one, if the style keeps that line free."""
        if crop.y == 0 and strips and self._pane.styles.padding.top:
            strips[0] = self._strip().crop(crop.x, crop.right)
        return strips

    def word_at(self, x: int) -> str:
        """Return the word of the rule that stands `x` cells from the left edge of the pane; empty if none does."""
        words = re.finditer(r"\S+", self._strip().text)
        return next((each.group() for each in words if each.start() <= x < each.end()), "")

    def _strip(self) -> Strip:
        pane = self._pane
        focused, width = pane.screen.focused, pane.outer_size.width
        is_focused = focused is not None and pane in focused.ancestors_with_self
        # A line parts it from the pane at its left; an input is framed by another kind of border.
        edge: Line = (Span("│", "rule"),) if pane.styles.border_left[0] == "solid" else ()
        indent = pane.styles.padding.left + 1
        follows_from = (*self._titles, self.head, is_focused, edge, indent, width, self._painter.look)
        if self._kept[0] != follows_from:
            line = rule_line(*self._titles, self.head or (), indent, width - len(edge), is_focused=is_focused)
            strip = self._painter.paint((*edge, *line), width)
            for each in pane.get_line_filters():
                strip = strip.apply_filter(each, pane.background_colors[1])
            self._kept = follows_from, strip
        return self._kept[1]


class Frame(Vertical):
    """A pane of several parts below each other, with a rule above them."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rule = Rule(self)

    def on_descendant_focus(self) -> None:
        self.rule.paint()

    def on_descendant_blur(self) -> None:
        self.rule.paint()

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.rule.above(super().render_lines(crop), crop)
