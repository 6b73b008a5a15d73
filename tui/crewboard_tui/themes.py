"""The colours: two calm palettes of our own, one for dark and one for light terminals."""

from textual.theme import Theme

DARK = Theme(
    name="crewboard-dark",
    primary="#7aa2f7",
    secondary="#7dcfff",
    accent="#c39ac9",
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
        "muted": "#868d99",
        "frame": "#3a404c",
        "frame-focus": "#7aa2f7",
        "cursor-row": "#2b3346",
        "cursor-row-blurred": "#232733",
        "badge": "#16181d",
        "border": "#7aa2f7",
        "border-blurred": "#3a404c",
    },
)

LIGHT = Theme(
    name="crewboard-light",
    primary="#2455b3",
    secondary="#0f6d8c",
    accent="#7a3e9d",
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
        "muted": "#666c78",
        "frame": "#c3c6cc",
        "frame-focus": "#2455b3",
        "cursor-row": "#dbe4f7",
        "cursor-row-blurred": "#e9ebee",
        "badge": "#fbfbf8",
        "border": "#2455b3",
        "border-blurred": "#c3c6cc",
    },
)

THEMES = (DARK, LIGHT)
