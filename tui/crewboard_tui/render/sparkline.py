"""Small bar charts of one line."""

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], width: int, top: float) -> str:
    """Return a bar chart of the newest values that fit into `width` cells; `top` is a full bar."""
    shown = values[-max(0, width) :] if width > 0 else []
    return "".join(_BARS[_level(value, top)] for value in shown)


def _level(value: float, top: float) -> int:
    share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
    return round(share * (len(_BARS) - 1))
