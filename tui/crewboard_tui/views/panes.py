"""The panes of a numbered view: one of them alone on the screen (`z`), or given to read."""

from textual.widget import Widget

from crewboard_tui.actions.registry import NOT_NOW, Action, Layer, Selection
from crewboard_tui.context import AppContext
from crewboard_tui.render.lines import Span
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.widgets.line_list import Row


class Panes:
    """Which pane of a screen has it to itself. The screen's AUTO_FOCUS names its main list."""

    def __init__(self, screen: BaseScreen) -> None:
        self._screen = screen
        self._opened_from: Widget | None = None
        self.zoomed: Widget | None = None
        self.actions = (Action("view.zoom", self._turn, self._why_no_zoom),)
        self.layer = Layer(lambda: self.zoomed is not None, self.unzoom)
        """What Esc closes: the pane that is alone."""

    def _why_no_zoom(self, _: Selection) -> str | None:
        panes = [pane for pane in self._screen.query("#body .pane") if pane.size.width]
        return None if self.zoomed is not None or len(panes) > 1 else NOT_NOW

    def _turn(self, _: Selection) -> None:
        focused = self._screen.focused
        if self.zoomed is not None:
            self.unzoom()
        elif focused is not None and focused.has_class("pane"):
            self._zoom(focused)

    def begin(self) -> None:
        """Give the focus to the main list, and show it next to the other panes."""
        if self.zoomed is not None:
            self.unzoom()
        if self._screen.is_ready:
            self._screen.call_after_refresh(self._screen.query_one(str(self._screen.AUTO_FOCUS)).focus)

    def read_in(self, pane: Widget) -> None:
        """Give a text the screen, until Esc gives screen and focus back to the list that it was opened from."""
        self._opened_from = self._screen.focused
        self._zoom(pane)
        self._screen.call_after_refresh(pane.focus)

    def _zoom(self, pane: Widget) -> None:
        self.zoomed = pane
        for widget in self._screen.query("#body *"):
            widget.set_class(widget is pane, "-alone")
            widget.set_class(widget is not pane and widget not in pane.ancestors, "-away")
        self._screen.call_after_refresh(self._screen.refresh_all)

    def unzoom(self) -> None:
        """Show all panes again."""
        self.zoomed = None
        for widget in self._screen.query("#body *"):
            widget.remove_class("-away", "-alone")
        if self._opened_from is not None:
            self._screen.call_after_refresh(self._opened_from.focus)
            self._opened_from = None
        self._screen.call_after_refresh(self._screen.refresh_all)


def nothing_row(text: str) -> Row:
    """Return the only row of an empty list."""
    return Row("", (Span(text, "dim"),))


def first_hire(context: AppContext) -> str:
    """Return what to do first on a team without agents."""
    key = context.key("agent.hire")
    return "no agents yet" + ("" if context.read_only else f"; {key} hires an agent")
