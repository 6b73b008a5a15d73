"""The page of one agent: everything about it, on tabs."""

from collections.abc import Iterable
from typing import ClassVar

from textual import events, on
from textual.binding import BindingType
from textual.widget import Widget

from crewboard.names import LEAD
from crewboard.readmodel.team import AgentView
from crewboard_tui.actions.filters import matches
from crewboard_tui.actions.search import Findable
from crewboard_tui.compose.composer import Composer
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, plain, width_of
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.agent.tabs import NAMES, TABS, Page, Tab, seat_mail
from crewboard_tui.widgets.collapsible_list import CollapsibleList, CollapsibleRow
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.pane_title import follow_words, title
from crewboard_tui.widgets.static_lines import StaticLines
from crewboard_tui.widgets.view_tabs import crumbs_line


class AgentPage(Findable):
    """Everything about one agent, on tabs that `[` and `]` turn."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("tabs")]
    FINDS = "words on this tab, also of what is folded"

    def __init__(self, desk: AppContext, name: str, tab: str = "Now") -> None:
        super().__init__(desk)
        self.agent_name = name
        self._at = NAMES.index(tab)

    @property
    def tab(self) -> Tab:
        """The tab that is open."""
        return TABS[self._at]

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return crumbs_line(
            [snapshot.view.name, self.agent_name],
            f"{self.context.key('view.tab_back')} {self.context.key('view.tab')} tab",
            width,
        )

    def body(self) -> Iterable[Widget]:
        yield StaticLines(id="tabs")
        yield LineView(id="page", classes="pane")
        yield LineView(id="facts", classes="pane", follow=False, follows=False)
        yield CollapsibleList(id="folds", classes="pane")
        yield Composer(self.context)

    def on_mount(self) -> None:
        self._open_pane()

    def interest(self) -> Interest:
        return self.tab.interest(self.agent_name)

    def selected_agent(self) -> str | None:
        return self.agent_name

    def offers(self, action: str) -> bool | None:
        return True if action in ("next_tab", "previous_tab") else super().offers(action)

    # ------------------------------------------------------------------------------------------------ painting

    def paint(self, snapshot: Snapshot) -> None:
        agent = snapshot.view.agent(self.agent_name)
        self.query_one("#tabs", StaticLines).show([self._tabs(agent)])
        self.paint_composer()
        if agent is None:
            self._paint_absent(snapshot)
        else:
            self._paint_tab(agent, snapshot)

    def _pane(self) -> LineView | CollapsibleList:
        if self.tab.folds:
            return self.query_one("#folds", CollapsibleList)
        return self.query_one(f"#{self.tab.pane}", LineView)

    def _paint_absent(self, snapshot: Snapshot) -> None:
        pane = self._pane()
        title(pane, self.agent_name)
        if self.agent_name != LEAD:
            self._fill(pane, [], [], f"{self.agent_name} is no longer on the team")
            return
        words = f"nobody sits in the lead's seat: {self.context.key('agent.talk')} writes to the lead, and hires one"
        folds: list[CollapsibleRow] = []
        if self.tab.name == "Mail" and isinstance(pane, CollapsibleList) and snapshot.interest == self.interest():
            folds = seat_mail(snapshot, pane.row_width)
        if folds:
            title(
                pane,
                f"{LEAD} · {words}",
                self.narrowed_to.removeprefix(" · ") or "what came to the seat; you read it meanwhile",
            )
        self._fill(pane, [], folds, words)

    def _paint_tab(self, agent: AgentView, snapshot: Snapshot) -> None:
        tab, pane = self.tab, self._pane()
        title(pane, _head(agent, self.context.now), self._foot(pane))
        if snapshot.interest != self.interest():
            self._fill(pane, [], [], "")
            return
        width = pane.row_width if isinstance(pane, CollapsibleList) else pane.line_width
        page = Page(agent, snapshot, self.context.now, width, caret=not self.context.reduced_motion)
        self._fill(pane, tab.lines(page) if tab.lines else [], tab.folds(page) if tab.folds else [], self._nothing)

    def _fill(
        self, pane: LineView | CollapsibleList, lines: list[Line], folds: list[CollapsibleRow], nothing: str
    ) -> None:
        nothing = self.nothing_of(nothing) if folds or lines else nothing
        if isinstance(pane, CollapsibleList):
            found = [fold for fold in folds if fold.has(self.filter)]
            pane.read(found, nothing, self.tab.head(pane.row_width) if self.tab.head else None)
        else:
            shown = [line for line in lines if matches(plain(line), self.filter)]
            pane.show(shown or [(Span(nothing, "dim"),)])

    @property
    def _nothing(self) -> str:
        """What stands in a tab without content, and how to get some."""
        if self.tab.name != "Tasks" or self.context.read_only:
            return self.tab.nothing
        board, assign = self.context.key("app.tasks"), self.context.key("task.assign")
        return f"{self.tab.nothing}; {board} is the board, where {assign} assigns one"

    def _foot(self, pane: LineView | CollapsibleList) -> str:
        """What the pane is narrowed to, and whether it follows its end."""
        follow = self.context.key("fold.follow" if isinstance(pane, CollapsibleList) else "log.follow")
        rest = follow_words(pane, follow) if pane.follows else self.tab.below
        return f"{self.narrowed_to} · {rest}".strip(" ·")

    def _tabs(self, agent: AgentView | None) -> Line:
        """Every tab; short of room the open one between its neighbours."""
        full = self._tab_line(range(len(TABS)), agent)
        if width_of(full) <= self.size.width:
            return full
        near = [(self._at + step) % len(TABS) for step in (-1, 0, 1)]
        return (Span(" ‹", "dim"), *self._tab_line(near, agent), Span("›", "dim"))

    def _tab_line(self, places: Iterable[int], agent: AgentView | None) -> Line:
        counts = {"Mail": agent.unread if agent else 0}
        spans = [Span(" ")]
        for at in places:
            name, here = NAMES[at], at == self._at
            count = f"·{counts[name]}" if counts.get(name) else ""
            spans += [Span((f"[{name}]" if here else f" {name} ") + count, "tab" if here else ""), Span(" ")]
        return tuple(spans)

    # ------------------------------------------------------------------------------------------------- turning

    def action_talk(self) -> None:
        if self.agent_name != LEAD:
            super().action_talk()
            return
        self._turn(NAMES.index("Mail") - self._at)
        self.write(self._talk_to_lead())

    def action_next_tab(self) -> None:
        self._turn(1)

    def action_previous_tab(self) -> None:
        self._turn(-1)

    def _turn(self, by: int) -> None:
        self._at = (self._at + by) % len(TABS)
        self.filter = ""
        self._open_pane()
        self.context.look_at(self.interest())
        self.paint(self.context.snapshot)
        # A pane that was hidden knows its width once it is laid out.
        self.call_after_refresh(self.refresh_all)

    def _open_pane(self) -> None:
        """Show the pane of this tab, from its beginning, and no other."""
        for pane in self.query("#body .pane"):
            pane.display = pane.id == self.tab.pane
        pane = self._pane()
        if isinstance(pane, CollapsibleList):
            pane.begin(follows=self.tab.follows)
        else:
            pane.restart()
        pane.focus()

    @on(LineView.Scrolled)
    @on(LineList.Moved, "#folds")
    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    def _followed(self) -> None:
        if self.is_ready:
            self.paint(self.context.snapshot)
            self.paint_keys()


def _head(agent: AgentView, now: float) -> str:
    look = look_of(agent)
    parts = [agent.name, agent.type, f"run {agent.run}", f"pid {agent.pid}" if agent.alive else "no process"]
    parts += [f"{look.glyph} {look.word} {formats.age(now - agent.since) if agent.since else ''}"]
    parts += [f"sandbox {agent.sandbox}"] if agent.sandbox else []
    return " · ".join(parts)
