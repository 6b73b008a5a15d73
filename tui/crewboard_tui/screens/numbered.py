"""The numbered views, Board to Cost: same frame, same keys, one beside the other."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from crewboard_tui.desk import Desk
from crewboard_tui.filters import ALL
from crewboard_tui.lines import Line, Span
from crewboard_tui.reading import Snapshot
from crewboard_tui.screens.agent_keys import AgentKeys
from crewboard_tui.screens.ask_line import AskLine
from crewboard_tui.widgets.heading import tabs_line
from crewboard_tui.widgets.rows import Row


class Numbered(AgentKeys):
    """One of the numbered views. `filter` and `group` are what its list is narrowed to; Esc takes them away again."""

    MODE: ClassVar[str] = ""
    STATES: ClassVar[Iterable[str]] = ()
    """The groups of states that its list can be narrowed to."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.filter = ""
        self.group = ALL
        self.zoomed: Widget | None = None

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return tabs_line(snapshot.view, self.MODE, width, self.desk.key)

    def offers(self, action: str) -> bool | None:
        if action == "back":
            return self.zoomed is not None or self.is_narrowed or self.MODE != "board"
        if action == "turn_group":
            return bool(self.STATES)
        if action == "zoom":
            return self.zoomed is not None or len(self.panes()) > 1
        if action in ("filter", "copy"):
            return True
        return super().offers(action)

    # ------------------------------------------------------------------------------------------- filter and zoom

    def panes(self) -> list[Widget]:
        """The panes that can have the screen to themselves."""
        return [pane for pane in self.query("#body .pane") if pane.size.width]

    def action_zoom(self) -> None:
        if self.zoomed is not None:
            self._unzoom()
        elif self.focused is not None and self.focused.has_class("pane"):
            self.zoomed = self.focused
            for widget in self.query("#body *"):
                if widget is not self.zoomed and widget not in self.zoomed.ancestors:
                    widget.add_class("-away")
            self.call_after_refresh(self.refresh_all)

    def _unzoom(self) -> None:
        self.zoomed = None
        for widget in self.query("#body *"):
            widget.remove_class("-away")
        self.call_after_refresh(self.refresh_all)

    def action_filter(self) -> None:
        def done(text: str | None) -> None:
            if text is not None:
                self.narrow(text)

        self.app.push_screen(AskLine("find", self.filter, changed=self.narrow), done)

    def narrow(self, text: str) -> None:
        """Show only what matches `text`."""
        self.filter = text.strip()
        self.apply_filter()
        self.refresh_bindings()

    @property
    def is_narrowed(self) -> bool:
        """Whether something may be missing in its list."""
        return bool(self.filter) or self.group != ALL

    @property
    def narrowed_to(self) -> str:
        """What its list is narrowed to, for the pane's title: ` · running`."""
        return f" · {self.group}" if self.group != ALL else ""

    def nothing(self, else_: str) -> Row:
        """What stands in an empty list: how to see more of it, or `else_`, which says what to do first."""
        narrowed = f"nothing here is like that; {self.desk.key('view.back')} shows all"
        return Row("", (Span(narrowed if self.is_narrowed else else_, "dim"),))

    @property
    def hires(self) -> str:
        """What to do first on a team with nobody on it."""
        key = self.desk.key("agent.hire")
        return "nobody is hired yet" + ("" if self.desk.read_only else f"; {key} hires an agent")

    def action_turn_group(self) -> None:
        groups = [ALL, *self.STATES]
        self.group = groups[(groups.index(self.group) + 1) % len(groups)]
        self.apply_filter()
        self.refresh_bindings()

    def apply_filter(self) -> None:
        """The filter has changed."""
        self.paint(self.desk.snapshot)

    def action_back(self) -> None:
        if self.zoomed is not None:
            self._unzoom()
        elif self.is_narrowed:
            self.group = ALL
            self.narrow("")
        elif self.MODE != "board":
            self.app.switch_mode("board")

    def action_copy(self) -> None:
        text = self.selected_text()
        if text:
            self.app.copy_to_clipboard(text)
            self.desk.say(f"copied: {text[:60]}")

    def selected_text(self) -> str:
        """What `y` copies."""
        return self.selected_agent() or ""
