"""From lines to strips: the tones of the style table meet the colours of the theme here."""

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from crewboard_tui.lines import Line
from crewboard_tui.text import safe_text

TONES = (
    "error", "warning", "success", "info", "accent", "primary", "dim", "bold", "italic", "cursor", "blurred",
    "badge", "alarm", "key", "tab", "underline", "marked",
)  # fmt: skip

_FLAT = {ord("\n"): " ", ord("\t"): " "}

COMPONENTS = {f"tone--{tone}" for tone in TONES}


class Painter:
    """Paints lines for one widget. Styles are looked up once for each theme."""

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._styles: dict[str, Style] = {}

    def forget(self) -> None:
        """The theme has changed."""
        self._styles.clear()

    def strip(self, content: Line, width: int, *, under: str = "") -> Strip:
        """One line in exactly `width` cells; `under` is the tone beneath all of it, such as the cursor's."""
        base = self._widget.rich_style + self._style(under)
        segments = [
            Segment(
                # The last guard: what reaches a terminal is printable, whoever built the line.
                span.text if span.text.isprintable() else safe_text(span.text).translate(_FLAT),
                _clickable(base + self._style(span.tone), span.key),
            )
            for span in content
        ]
        return Strip(segments).adjust_cell_length(width, base)

    def _style(self, tone: str) -> Style:
        style = self._styles.get(tone)
        if style is None:
            style = Style.null()
            for word in tone.split():
                style += self._widget.get_component_rich_style(f"tone--{word}", partial=True)
            self._styles[tone] = style
        return style


def _clickable(style: Style, key: str) -> Style:
    return style + Style(meta={"key": key}) if key else style
