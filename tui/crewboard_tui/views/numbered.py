"""The numbered views, Board to Cost: same frame, same keys, one beside the other."""

from collections.abc import Iterable
from typing import ClassVar

from textual import events, on
from textual.widget import Widget

from crewboard_tui.actions.filters import ALL
from crewboard_tui.actions.search import Findable
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import Key
from crewboard_tui.poller import Snapshot
from crewboard_tui.render.lines import Line, Span
from crewboard_tui.views.unavailable_keys import NOT_NOW
from crewboard_tui.widgets.line_list import Row
from crewboard_tui.widgets.view_tabs import tabs_line


class Numbered(Findable):
    """One of the numbered views. `filter` and `group` are what its list is narrowed to; Esc takes them away again."""

    STATES: ClassVar[Iterable[str]] = ()
    """The groups of states that its list can be narrowed to."""

    def __init__(self, desk: AppContext) -> None:
        super().__init__(desk)
        self.group = ALL
        self.zoomed: Widget | None = None
        self._opened_from: Widget | None = None

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return tabs_line(snapshot.view, self.MODE, width, self.context.key)

    def offers(self, action: str) -> bool | None:
        if action == "back":
            return self.zoomed is not None or self.is_narrowed or self.MODE != "board"
        if action == "turn_group":
            return bool(self.STATES)
        if action == "zoom":
            return self.zoomed is not None or len(self.panes()) > 1
        return super().offers(action)

    def why_not(self, key: Key) -> str:
        return NOT_NOW if key.scope == "view" else super().why_not(key)

    @on(events.DescendantFocus)
    def _moved_to_pane(self) -> None:
        # What a pane's border offers depends on where the keys go.
        if self.is_ready:
            self.paint(self.context.snapshot)

    # ------------------------------------------------------------------------------------------- filter and zoom

    def panes(self) -> list[Widget]:
        """The panes that can have the screen to themselves."""
        return [pane for pane in self.query("#body .pane") if pane.size.width]

    def begin(self) -> None:
        """Put the focus on the list that the view is about, and show it beside its other panes."""
        if self.zoomed is not None:
            self._unzoom()
        if self.is_ready:
            self.call_after_refresh(self.query_one(str(self.AUTO_FOCUS)).focus)

    def action_zoom(self) -> None:
        if self.zoomed is not None:
            self._unzoom()
        elif self.focused is not None and self.focused.has_class("pane"):
            self._zoom(self.focused)

    def read_in(self, pane: Widget) -> None:
        """Give a text the screen, until Esc gives both screen and keys back to the list that it was opened from."""
        self._opened_from = self.focused
        self._zoom(pane)
        self.call_after_refresh(pane.focus)

    def _zoom(self, pane: Widget) -> None:
        self.zoomed = pane
        for widget in self.query("#body *"):
            widget.set_class(widget is pane, "-alone")
            widget.set_class(widget is not pane and widget not in pane.ancestors, "-away")
        self.call_after_refresh(self.refresh_all)

    def _unzoom(self) -> None:
        self.zoomed = None
        for widget in self.query("#body *"):
            widget.remove_class("-away", "-alone")
        if self._opened_from is not None:
            self.call_after_refresh(self._opened_from.focus)
            self._opened_from = None
        self.call_after_refresh(self.refresh_all)

    @property
    def narrowings(self) -> list[str]:
        return [*([self.group] if self.group != ALL else []), *super().narrowings]

    def nothing(self, else_: str) -> Row:
        """What stands in an empty list: how to see more of it, or `else_`, which says what to do first."""
        return Row("", (Span(self.nothing_of(else_), "dim"),))

    @property
    def hires(self) -> str:
        """What to do first on a team with nobody on it."""
        key = self.context.key("agent.hire")
        return "no agents yet" + ("" if self.context.read_only else f"; {key} hires an agent")

    def action_turn_group(self) -> None:
        groups = [ALL, *self.STATES]
        self.group = groups[(groups.index(self.group) + 1) % len(groups)]
        self.apply_filter()
        self.refresh_bindings()

    def action_back(self) -> None:
        if self.zoomed is not None:
            self._unzoom()
        elif self.is_narrowed:
            self.group = ALL
            self.narrow("")
        elif self.MODE != "board":
            self.app.switch_mode("board")
