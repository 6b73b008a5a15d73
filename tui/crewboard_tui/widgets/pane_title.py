"""The titles in the frame of a pane."""

from textual.content import Content
from textual.widget import Widget

from crewboard_tui.render.lines import one_line
from crewboard_tui.widgets.collapsible_list import CollapsibleList
from crewboard_tui.widgets.line_view import LineView


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
