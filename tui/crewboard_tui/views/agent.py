"""The page of one agent: everything about it, on tabs."""

from collections.abc import Iterable, Sequence
from functools import partial

from textual import events, on
from textual.widget import Widget

from crewboard import LEAD, AgentView
from crewboard.commands.context import CommandLine
from crewboard.records.processes import describe_exit
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Selection, select
from crewboard_tui.actions.search import Search
from crewboard_tui.compose.composer import Composer, shown_composer
from crewboard_tui.queries import Query, Snapshot, WorkOf
from crewboard_tui.render.formats import format_age
from crewboard_tui.render.lines import Line, Span, line, matches, plain, say, width_of
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.agent_tabs import NAMES, TABS, MailRows, Page, Tab, lead_mail
from crewboard_tui.views.base import AppContext, BaseScreen
from crewboard_tui.widgets.bars import StaticLines, crumbs_line, follow_words, title
from crewboard_tui.widgets.collapsible_list import CollapsibleList, CollapsibleRow
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView

_TAB = "tab:"
"""The prefix of the value of a click on a tab; the name of the tab follows."""

_RESULTS = {
    "answer": (" it sent its result", "success bold"),
    "error": (" it failed; the reason is above", "error bold"),
}
"""Kinds of activity that end an assignment, with their text."""


class Foreground:
    """The wait for what an agent does since `since` (epoch seconds). `outcome` is None until it is over."""

    def __init__(self, context: AppContext, name: str, since: float) -> None:
        self._context = context
        self._name = name
        self._since = since
        self.outcome: Line | None = None

    @property
    def line(self) -> Line:
        """Return the result so far, or the key that puts the agent into the background."""
        back, leave = self._context.key("view.back"), self._context.key("foreground.leave")
        waits = line(
            Span(" foreground: waiting for the result; ", "info"), Span(back, "key"), Span("/", "info"),
            Span(leave, "key"), Span(" moves it to the background", "info"),
        )  # fmt: skip
        return self.outcome or waits

    def read(self, snapshot: Snapshot) -> None:
        """Look for the outcome."""
        work = snapshot.get(WorkOf(self._name))
        if work is None:
            return
        for each in work.activity:
            if each.kind in _RESULTS and each.ts >= self._since:
                back = self._context.key("view.back")
                self.outcome = line(Span(*_RESULTS[each.kind]), Span("  "), Span(back, "key"), " goes back")
                return
        agent = snapshot.view.agent(self._name)
        if agent is not None and agent.exit is not None and not agent.alive and agent.exit.at >= self._since:
            self.outcome = line(say(f" it ended without a result: {describe_exit(agent.exit)}", "error bold"))


class AgentPage(BaseScreen):
    """Everything about one agent, on tabs that `[` and `]` turn.

    With `since` (epoch seconds), the result of what it does since then is awaited here.
    """

    CSS_PATH = "agent.tcss"

    def __init__(self, context: AppContext, name: str, tab: str = "Now", since: float | None = None) -> None:
        super().__init__(context)
        self.agent_name = name
        self._at = NAMES.index(tab)
        self._mail = MailRows()
        self._foreground = Foreground(context, name, since) if since is not None else None
        self.search = Search(context, self.narrow, "words on this tab, also of what is folded")
        self._messaging = Messaging(context, partial(shown_composer, self))
        self.back_layers = (self.search.layer, self.panes.layer)
        own = [
            Action("view.tab", lambda _: self._turn(1)),
            Action("view.tab_back", lambda _: self._turn(-1)),
            Action("agent.talk", self._talk),
        ]
        if self._foreground is not None:
            own.append(
                Action(
                    "foreground.leave",
                    lambda _: self.leave(),
                    lambda _: None if self._waits_here else "no hire waits here",
                )
            )
        self.offer(own, AgentActions(context).actions, self._messaging.actions, self.search.actions, self.panes.actions)

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
        if self._foreground is not None:
            yield StaticLines(id="foreground")

    def on_mount(self) -> None:
        self._open_pane()

    def queries(self) -> Iterable[Query[object]]:
        return self.tab.queries(self.agent_name)

    def selection(self) -> Selection:
        return select(self.context.snapshot.view, self.agent_name)

    # ------------------------------------------------------------------------------------------------ painting

    def paint(self, snapshot: Snapshot) -> None:
        agent = snapshot.view.agent(self.agent_name)
        tabs = self._tab_line(range(len(TABS)), agent)
        if width_of(tabs) > self.size.width:
            # Without room for all, the open one between its neighbours.
            near = [(self._at + step) % len(TABS) for step in (-1, 0, 1)]
            back, on = Span(" ‹", "dim", "view.tab_back"), Span("›", "dim", "view.tab")
            tabs = (back, *self._tab_line(near, agent), on)
        self.query_one("#tabs", StaticLines).show([tabs])
        self._messaging.follow(self.selection())
        if agent is None:
            self._paint_absent(snapshot)
        else:
            self._paint_tab(agent, snapshot)
        if self._foreground is not None:
            if self._foreground.outcome is None:
                self._foreground.read(snapshot)
                self.refresh_bindings()
            self.query_one("#foreground", StaticLines).show([self._foreground.line])

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
        words = f"there is no lead: {self.context.key('agent.talk')} writes to the lead, and hires one"
        folds: Sequence[CollapsibleRow] = ()
        if self.tab.name == "Mail" and isinstance(pane, CollapsibleList):
            folds = lead_mail(snapshot, pane.row_width, self._mail)
        if folds:
            title(
                pane,
                f"{LEAD} · {words}",
                self.search.narrowed_to.removeprefix(" · ") or "mail to the lead; you read it while there is none",
            )
        self._fill(pane, [], folds, words)

    def _paint_tab(self, agent: AgentView, snapshot: Snapshot) -> None:
        tab, pane = self.tab, self._pane()
        # The heads of columns need the room.
        head = agent.name if tab.head else _head(agent, self.context.now)
        # At the end its filter, and whether it follows its end.
        follow = self.context.key("fold.follow" if isinstance(pane, CollapsibleList) else "log.follow")
        rest = follow_words(pane, follow) if pane.follows else tab.below
        title(pane, head, f"{self.search.narrowed_to} · {rest}".strip(" ·"))
        if not all(query in snapshot.answers for query in self.queries()):
            self._fill(pane, [], [], "")
            return
        width = pane.row_width if isinstance(pane, CollapsibleList) else pane.line_width
        typed = CommandLine.of(self.context.team)
        page = Page(agent, snapshot, self.context.now, width, typed, self._mail, caret=not self.context.reduced_motion)
        nothing = tab.nothing
        if tab.name == "Tasks" and not self.context.read_only:
            board, assign = self.context.key("app.tasks"), self.context.key("task.assign")
            nothing = f"{nothing}; {board} is the board, where {assign} assigns one"
        self._fill(pane, tab.lines(page) if tab.lines else [], tab.folds(page) if tab.folds else [], nothing)

    def _fill(
        self, pane: LineView | CollapsibleList, lines: list[Line], folds: Sequence[CollapsibleRow], nothing: str
    ) -> None:
        nothing = self.search.nothing(nothing) if folds or lines else nothing
        if isinstance(pane, CollapsibleList):
            found = [fold for fold in folds if fold.has(self.search.words)] if self.search.words else folds
            pane.read(found, nothing, self.tab.head(pane.row_width) if self.tab.head else None)
        else:
            shown = [line for line in lines if matches(plain(line), self.search.words)]
            pane.show(shown or [(Span(nothing, "dim"),)])

    def _tab_line(self, places: Iterable[int], agent: AgentView | None) -> Line:
        counts = {"Mail": agent.unread if agent else 0}
        spans = [Span(" ")]
        for at in places:
            name, here = NAMES[at], at == self._at
            count = f"·{counts[name]}" if counts.get(name) else ""
            label = (f"[{name}]" if here else f" {name} ") + count
            spans += [Span(label, "tab" if here else "", f"{_TAB}{name}"), Span(" ")]
        return tuple(spans)

    # ------------------------------------------------------------------------------------------------- turning

    def _talk(self, selection: Selection) -> None:
        if self.agent_name != self.context.snapshot.view.lead:
            self._messaging.talk(selection)
            return
        self._turn(NAMES.index("Mail") - self._at)
        self._messaging.write(self._messaging.lead_target())

    def _turn(self, by: int) -> None:
        self._at = (self._at + by) % len(TABS)
        self.search.words = ""
        self._open_pane()
        self.context.look_at(self.queries())
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

    # ---------------------------------------------------------------------------------------------- foreground

    @property
    def _waits_here(self) -> bool:
        return self._foreground is not None and self._foreground.outcome is None

    def leave(self) -> None:
        if self._waits_here:
            self.context.say(f"{self.agent_name} works in the background; its result comes by mail")
        super().leave()

    # --------------------------------------------------------------------------------------------------- events

    def on_click(self, event: events.Click) -> None:
        clicked = str(event.style.meta.get("key", ""))
        if clicked.startswith(_TAB):
            self._turn(NAMES.index(clicked.removeprefix(_TAB)) - self._at)

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
    place = f" on {agent.status.host}" if agent.status.host else ""
    process = f"pid {agent.pid}{place}" if agent.alive else f"no process{place and f', was{place}'}"
    parts = [agent.name, agent.type, f"run {agent.run}", process]
    parts += [f"{look.glyph} {look.word} {format_age(now - agent.since) if agent.since else ''}"]
    parts += ["web"] if agent.spec is not None and agent.spec.flags.web else []
    parts += [f"sandbox {agent.status.sandbox}"] if agent.status.sandbox else []
    return " · ".join(parts)
