"""Settings of the whole screen: colour themes, the stylesheet that uses them, the ASCII filter.

Text has a contrast of at least 4.5 : 1 (WCAG 2.2, 1.4.3), in the high-contrast theme 7 : 1 (1.4.6).
"""

from typing import Literal

from rich.segment import Segment
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from crewboard_tui.render.looks import to_ascii

DARK = Theme(
    name="crewboard-dark",
    primary="#7aa2f7",
    secondary="#7dcfff",
    accent="#7aa2f7",
    warning="#e8b35c",
    error="#f2777a",
    success="#8cc98f",
    foreground="#d3d7de",
    background="#16181d",
    surface="#1c1f26",
    panel="#262a33",
    dark=True,
    variables={
        "info": "#7cc4d8",
        "muted": "#959ca8",
        "frame": "#414752",
        "frame-focus": "#7aa2f7",
        "cursor-row": "#2b3346",
        "bad": "#f2777a",
        "on-bad": "#16181d",
        "trace": "#5d6675",
        "add": "#1d3324",
        "del": "#3b2227",
        "need": "#e8b35c",
        "on-need": "#16181d",
        "good": "#8cc98f",
        "on-good": "#16181d",
        "border": "#7aa2f7",
        "border-blurred": "#414752",
    },
)

LIGHT = Theme(
    name="crewboard-light",
    primary="#2455b3",
    secondary="#0f6d8c",
    accent="#2455b3",
    warning="#8a5a00",
    error="#b3261e",
    success="#1f6f33",
    foreground="#1f2430",
    background="#fbfbf8",
    surface="#f3f3ee",
    panel="#e6e6df",
    dark=False,
    variables={
        "info": "#0b6a86",
        "muted": "#5e6470",
        "frame": "#b5bac0",
        "frame-focus": "#2455b3",
        "cursor-row": "#dbe4f7",
        "bad": "#b3261e",
        "on-bad": "#fbfbf8",
        "trace": "#868e9b",
        "add": "#dff3e3",
        "del": "#fbe1e0",
        "need": "#f5c451",
        "on-need": "#1f2430",
        "good": "#1f6f33",
        "on-good": "#fbfbf8",
        "border": "#2455b3",
        "border-blurred": "#b5bac0",
    },
)

CONTRAST = Theme(
    name="crewboard-contrast",
    primary="#8fd0ff",
    secondary="#7fe9ff",
    accent="#8fd0ff",
    warning="#ffd75f",
    error="#ffabab",
    success="#86f58e",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#161616",
    dark=True,
    variables={
        "info": "#7fe9ff",
        "muted": "#d4d4d4",
        "frame": "#b8b8b8",
        "frame-focus": "#8fd0ff",
        "cursor-row": "#00306a",
        "bad": "#ffabab",
        "on-bad": "#000000",
        "trace": "#9a9a9a",
        "add": "#0d2b14",
        "del": "#3a0f14",
        "need": "#ffd75f",
        "on-need": "#000000",
        "good": "#86f58e",
        "on-good": "#000000",
        "border": "#8fd0ff",
        "border-blurred": "#b8b8b8",
    },
)


def _adopted(name: str, info: str, *, key: str = "", bad: str = "") -> Theme:
    """Return a theme in the colours of one of Textual's, with what it lacks: `info`, and grounds that are less bright.

    `key` and `bad` take the place of colours that cannot be read on each of these grounds.
    """
    of = BUILTIN_THEMES[name]
    ground = Color.parse(of.background or "")

    def blend(colour: str | None, share: float) -> str:
        return ground.blend(Color.parse(colour or ""), share).hex

    primary, error, frame = key or of.primary, bad or of.error or "", blend(of.foreground, 0.25)
    return Theme(
        name=f"crewboard-{name}",
        primary=primary,
        secondary=of.secondary,
        accent=of.accent,
        warning=of.warning,
        error=error,
        success=of.success,
        foreground=of.foreground,
        background=of.background,
        surface=blend(of.foreground, 0.03),
        panel=blend(of.foreground, 0.06),
        dark=True,
        variables={
            "info": info,
            "muted": blend(of.foreground, 0.82),
            "frame": frame,
            "frame-focus": primary,
            "cursor-row": blend(of.primary, 0.12),
            "bad": error,
            "on-bad": ground.hex,
            "trace": blend(of.foreground, 0.52),
            "add": blend(of.success, 0.15),
            "del": blend(error, 0.15),
            "need": of.warning or "",
            "on-need": ground.hex,
            "good": of.success or "",
            "on-good": ground.hex,
            "border": primary,
            "border-blurred": frame,
        },
    )


ThemeName = Literal[
    "dark", "light", "contrast", "catppuccin-mocha", "catppuccin-macchiato", "catppuccin-frappe", "tokyo-night"
]

THEMES: dict[ThemeName, Theme] = {
    "dark": DARK,
    "light": LIGHT,
    "contrast": CONTRAST,
    "catppuccin-mocha": _adopted("catppuccin-mocha", "#89dceb"),
    "catppuccin-macchiato": _adopted("catppuccin-macchiato", "#91d7e3", bad="#f3a0ac"),
    "catppuccin-frappe": _adopted("catppuccin-frappe", "#99d1db", key="#cfa7e8", bad="#efaead"),
    "tokyo-night": _adopted("tokyo-night", "#7dcfff"),
}
"""The themes by their user-facing names, in the order in which the theme key cycles through them."""


def after(theme: str) -> ThemeName:
    """Return the name of the theme after the one that Textual calls `theme`."""
    names = list(THEMES)
    at = next((place for place, name in enumerate(names) if THEMES[name].name == theme), -1)
    return names[(at + 1) % len(names)]


class SteadyStylesheet(Stylesheet):
    """A stylesheet that keeps its parsed rules.

    Textual parses all rules again for every screen that it shows for the first time: 6 ms each, three times before the
    first picture.
    """

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            super().set_variables(variables)

    def reparse(self) -> None:
        self.parse()


class AsciiFilter(LineFilter):
    """Paints every line in ASCII."""

    # Colours stay as they are.
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        """Return the same segments with their text in ASCII."""
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
