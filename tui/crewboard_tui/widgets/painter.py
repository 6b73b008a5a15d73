"""Paint lines into Textual strips: tones are mapped to the theme's colours here.

Tones are not component classes: a stylesheet computes those for each widget at every change of focus or size, which
took half of the time to the first picture.
"""

from dataclasses import dataclass
from functools import cache

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.render import Line, crop, safe_text


@dataclass(frozen=True)
class Tone:
    """The theme colours and text attributes that a tone adds to a text."""

    color: str = ""
    background: str = ""
    bold: bool | None = None
    italic: bool | None = None
    underline: bool | None = None


TONES = {
    "error": Tone("error"),
    "warning": Tone("warning"),
    "success": Tone("success"),
    "info": Tone("info"),
    "accent": Tone("accent"),
    "primary": Tone("primary"),
    "dim": Tone("muted"),
    "bold": Tone(bold=True),
    "italic": Tone(italic=True),
    "underline": Tone(underline=True),
    "cursor": Tone(background="cursor-row"),
    "blurred": Tone(background="cursor-row-blurred"),
    "badge": Tone("badge", "warning", bold=True),
    "alarm": Tone("badge", "error", bold=True),
    "key": Tone("primary", bold=True),
    "tab": Tone("primary", bold=True, underline=True),
    "marked": Tone("warning", bold=True),
}

_FLAT = {ord("\n"): " ", ord("\t"): " "}


class Painter:
    """Paints lines for one widget. Styles are computed once per theme."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._theme = ""
        self._styles: dict[str, Style] = {}

    def strip(self, content: Line, width: int, *, under: str = "") -> Strip:
        """Paint one line in exactly `width` cells, with an ellipsis if it is longer.

        `under` is the tone of the background, such as the cursor's.
        """
        base = self._widget.rich_style + self._style(under)
        segments = [
            Segment(
                # Last line of defence: only printable text reaches a terminal, whatever built the line.
                span.text if span.text.isprintable() else safe_text(span.text).translate(_FLAT),
                _clickable(base + self._style(span.tone), span.key),
            )
            for span in crop(content, width)
        ]
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, tone: str) -> Style:
        if self._theme != self._widget.app.theme:
            self._theme = self._widget.app.theme
            self._styles.clear()
        style = self._styles.get(tone)
        if style is None:
            style = self._styles[tone] = self._mix(tone)
        return style

    def _mix(self, tone: str) -> Style:
        colours = self._widget.app.theme_variables
        style = Style.null()
        for word in tone.split():
            added = TONES[word]
            style += _style(
                colours[added.color] if added.color else None,
                colours[added.background] if added.background else None,
                added,
            )
        return style


@cache
def _style(color: str | None, background: str | None, tone: Tone) -> Style:
    return Style(color=color, bgcolor=background, bold=tone.bold, italic=tone.italic, underline=tone.underline)


def _clickable(style: Style, key: str) -> Style:
    return style + Style(meta={"key": key}) if key else style
