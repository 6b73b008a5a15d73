"""The page of one agent: its state and its vitals, and everything about it on tabs."""

from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace
from textual import events, on
from textual.widget import Widget

from crewboard import LEAD, OPERATOR, AgentView, Need, TeamView
from crewboard.commands import messages
from crewboard.commands.context import CommandLine
from crewboard.records.processes import describe_exit
from crewboard_tui.actions.agents import NeedActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Selection, select
from crewboard_tui.actions.search import Search
from crewboard_tui.compose.composer import Composer, shown_composer
from crewboard_tui.queries import MailFrom, Query, Snapshot, WorkOf
from crewboard_tui.render.formats import format_age
from crewboard_tui.render.lines import (
    Line,
    Span,
    clip,
    line,
    matches,
    one_line,
    plain,
    rule_line,
    say,
    spread,
    width_of,
)
from crewboard_tui.render.looks import NEED_LOOKS, look_of
from crewboard_tui.views.agent_tabs import (
    NAMES,
    TABS,
    VITALS,
    MailRows,
    Page,
    Tab,
    lead_mail,
    mail_key,
    vital_lines,
    vitals_of,
)
from crewboard_tui.views.base import SHORT, TALL, AppContext, BaseScreen
from crewboard_tui.views.roster import doing
from crewboard_tui.views.rows import explanation_lines, held_by
from crewboard_tui.widgets.bars import StaticLines, crumbs_line, follow_words, keys_of_need
from crewboard_tui.widgets.collapsible_list import OLDER, CollapsibleList, CollapsibleRow
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.line_view import LineView

_BETWEEN = "   "
"""The blanks between two tabs."""

_TAB = "tab:"
"""The prefix of the value of a click on a tab; the name of the tab follows."""

_MOST_OF_NEED = 6
"""The most lines of the agent's need above its work."""

_RESULTS = {
    "answer": (" it sent its result", "success bold"),
    "error": (" it failed; the reason is above", "error bold"),
}
"""Kinds of activity that end an assignment, with their text."""


class AgentPage(BaseScreen):
    """Everything about one agent: its vitals, and tabs that `[` and `]` turn.

    With `since` (epoch seconds), the page waits for the result of the assignment that began then. With `result_in`, the
    Mail tab begins at the newest result in that mailbox, unfolded.
    """

    CSS_PATH = "agent.tcss"

    def __init__(
        self, context: AppContext, name: str, tab: str = "Now", since: float | None = None, result_in: str = ""
    ) -> None:
        super().__init__(context)
        self.agent_name = name
        self._at = NAMES.index(tab)
        self._mail = MailRows()
        self._tabs, self._vitals, self._need = (StaticLines(id=each) for each in ("tabs", "vitals", "need"))
        self._page = LineView(id="page", classes="pane")
        self._facts = LineView(id="facts", classes="pane", follows=False)
        self._folds = CollapsibleList(id="folds", classes="pane")
        self._waits = StaticLines(id="foreground")
        self._result_in = result_in
        """The mailbox whose newest result is still to be unfolded; empty if there is none."""
        self._awaited_since = since
        self._outcome: Line | None = None
        """The outcome of the assignment that is awaited; None until it is over."""
        self.search = Search(context, self.narrow, "words on this tab, also of what is folded")
        self._messaging = Messaging(context, partial(shown_composer, self))
        self.back_layers = (self.search.layer, self.panes.layer)
        own = [
            Action("view.tab", lambda _: self._turn(1)),
            Action("view.tab_back", lambda _: self._turn(-1)),
            Action("agent.talk", self._talk),
        ]
        if since is not None:
            own.append(
                Action(
                    "foreground.leave",
                    lambda _: self.leave(),
                    lambda _: None if self._waits_here else "no hire waits here",
                )
            )
        self.offer(own, NeedActions(context).actions, self._messaging.actions, self.search.actions, self.panes.actions)

    @property
    def tab(self) -> Tab:
        """Return the open tab."""
        return TABS[self._at]

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        agent = snapshot.view.agent(self.agent_name)
        if agent is None:
            return crumbs_line([snapshot.view.name, self.agent_name], "", width)
        look = look_of(agent)
        age = f" {format_age(self.context.now - agent.since)}" if agent.since else ""
        name = (Span(" "), say(snapshot.view.name, "dim"), Span(" › ", "dim"), say(agent.name, "bold"))
        state = (Span(f"  {look.glyph} {look.word}{age}  ", look.tone), say(doing(agent, self.context.now)))
        return spread((*name, *state), (), width)

    def body(self) -> Iterable[Widget]:
        yield from (self._tabs, self._vitals, self._need, self._page, self._facts, self._folds)
        yield Composer(self.context)
        if self._awaited_since is not None:
            yield self._waits

    def on_mount(self) -> None:
        self._open_pane()

    def queries(self) -> Iterable[Query[object]]:
        shown = vitals_of(self.agent_name) if self._vital_rows else ()
        return (*self.tab.queries(self.agent_name), *shown)

    def selection(self) -> Selection:
        view = self.context.view
        found, need = select(view, self.agent_name), self._need_of(view)
        task = view.task(need.task) if need is not None else None
        # The keys beside the need act on its task; all others still act on the agent.
        return found if task is None else replace(found, task=task, tasks=(task,))

    # ------------------------------------------------------------------------------------------------ painting

    def paint(self, snapshot: Snapshot) -> None:
        agent = snapshot.view.agent(self.agent_name)
        self._tabs.show(self._tab_lines(agent))
        if agent is None:
            vitals = []
        else:
            board, assign = self.context.key("app.tasks"), self.context.key("task.assign")
            no_task = "none" if self.context.read_only else f"none · {board} {assign} assigns one"
            vitals = vital_lines(self._page_of(agent, snapshot, self.size.width), self._vital_rows, no_task)
        self._vitals.show(vitals)
        self._need.show(self._need_lines(snapshot))
        self._messaging.follow(self.selection())
        if agent is None:
            self._paint_absent(snapshot)
        else:
            self._paint_tab(agent, snapshot)
        if self._waits_here:
            self._outcome = self._find_outcome(snapshot)
            self.refresh_bindings()
        if self._awaited_since is not None:
            back, leave = self.context.key("view.back"), self.context.key("foreground.leave")
            waits = line(
                Span(" foreground: waiting for the result; ", "info"), Span(back, "key"), Span("/", "info"),
                Span(leave, "key"), Span(" moves it to the background", "info"),
            )  # fmt: skip
            self._waits.show([self._outcome or waits])

    def after_paint(self) -> None:
        super().after_paint()
        self._open_result()
        pane, is_lead = self._pane(), self.agent_name == self.context.view.lead
        if is_lead and isinstance(pane, CollapsibleList) and self.is_current and not self.context.read_only:
            # The answers of the lead are read once all that are not stand on the screen in full.
            lead, sent = (
                self.context.view.agent(self.agent_name),
                self.context.snapshot.get(MailFrom(self.agent_name)),
            )
            if lead is None or not lead.unread_results:
                return
            answers = [each for each in sent or () if (each.message.to, each.message.type) == (OPERATOR, "result")]
            unread = answers[-lead.unread_results :]
            if unread and {mail_key(each) for each in unread} <= pane.whole_in_sight:
                end = unread[-1].end
                self.context.note_read(partial(messages.acknowledge_answers, self.context.team, self.agent_name, end))

    def _open_result(self) -> None:
        """Unfold the result for which the page was opened, once the tab shows it."""
        if not self._result_in or self.tab.name != "Mail":
            return
        sent, wanted = self.context.snapshot.get(MailFrom(self.agent_name)) or (), (self._result_in, "result")
        newest = next((each for each in reversed(sent) if (each.message.to, each.message.type) == wanted), None)
        if sent and newest is None:
            # A result that comes while the user reads must not move the cursor.
            self._result_in = ""
        elif newest is not None and (key := mail_key(newest)) in self._folds.keys:
            self._result_in = ""
            self._folds.select(key)
            self._folds.action_turn()

    def _pane(self) -> LineView | CollapsibleList:
        return self._folds if self.tab.folds else self._page if self.tab.follows else self._facts

    def _paint_absent(self, snapshot: Snapshot) -> None:
        pane = self._pane()
        pane.rule.entitle(self.agent_name)
        if self.agent_name != LEAD:
            self._fill(pane, [], [], f"{self.agent_name} is no longer on the team")
            return
        words = f"there is no lead: {self.context.key('agent.talk')} writes to the lead, and hires one"
        folds: Sequence[CollapsibleRow] = ()
        if self.tab.name == "Mail" and isinstance(pane, CollapsibleList):
            folds = lead_mail(snapshot, pane.row_width, self._mail)
        if folds:
            pane.rule.entitle(
                f"{LEAD} · {words}",
                self.search.narrowed_to.removeprefix(" · ") or "mail to the lead; you read it while there is none",
            )
        self._fill(pane, [], folds, words)

    def _paint_tab(self, agent: AgentView, snapshot: Snapshot) -> None:
        tab, pane = self.tab, self._pane()
        follow = self.context.key("fold.follow" if isinstance(pane, CollapsibleList) else "log.follow")
        # The heads of columns need the room, and so does what a filter shows.
        narrowed = self.search.narrowed_to
        place = f" on {agent.status.host}" if agent.status.host else ""
        process = f"pid {agent.pid}{place}" if agent.alive else f"no process{place and f', was{place}'}"
        parts = [agent.type, f"run {agent.run}", process]
        parts += ["web"] if agent.spec is not None and agent.spec.flags.web else []
        parts += [f"sandbox {agent.status.sandbox}"] if agent.status.sandbox else []
        rest = [] if tab.head or narrowed else parts
        rest += [follow_words(pane, follow) if pane.follows else "" if narrowed else tab.below]
        pane.rule.entitle(f"{tab.name}{narrowed}", " · ".join(filter(None, rest)))
        if not all(query in snapshot.answers for query in self.queries()):
            self._fill(pane, [], [], "")
            return
        width = pane.row_width if isinstance(pane, CollapsibleList) else pane.line_width
        page = self._page_of(agent, snapshot, width)
        self._fill(pane, tab.lines(page) if tab.lines else [], tab.folds(page) if tab.folds else [], tab.nothing)

    def _page_of(self, agent: AgentView, snapshot: Snapshot, width: int) -> Page:
        context = self.context
        return Page(
            agent, snapshot, context.now, width, CommandLine.of(context.team), self._mail,
            caret=not context.reduced_motion, ascii_only=context.ascii_only,
            height=self._pane().size.height, is_told=self._vital_rows == VITALS,
        )  # fmt: skip

    @property
    def _vital_rows(self) -> int:
        """Return the number of lines for vitals that there is room for."""
        return max(0, min(VITALS, (self.size.height - SHORT) // 2))

    def _need_of(self, view: TeamView) -> Need | None:
        """Return the need that is shown above the agent's work; None if there is none or no room.

        For a death, there is none, because the page tells the same.
        """
        agent = view.agent(self.agent_name)
        if agent is None or agent.shown == "dead" or self.tab.name != "Now" or self.size.height < TALL:
            return None
        return next((need for need in view.needs if need.agent == agent.name and need.kind != "result"), None)

    def _need_lines(self, snapshot: Snapshot) -> list[Line]:
        """Return the lines of the agent's need, for above its work."""
        view, width, now = snapshot.view, self.size.width, self.context.now
        need = self._need_of(view)
        if need is None:
            return []
        acts = () if self.context.read_only else keys_of_need(need, view, self.context.key, words=True, acts=True)
        age, holds = format_age(now - need.since), held_by(view, need)
        right = " · ".join(filter(None, (f"holds up {holds}" if holds else "", age, plain(acts).strip())))
        told = explanation_lines(need, snapshot, now, width - 2, CommandLine.of(self.context.team))
        more = len(told) - _MOST_OF_NEED
        shown = [(Span(" "), *each) for each in (told[: _MOST_OF_NEED - 1] if more > 0 else told)]
        if more > 0:
            shown.append((Span(f" … {more + 1} more lines", "dim"),))
        look = NEED_LOOKS[need.kind]
        summary = clip(one_line(need.summary), max(12, width - len(right) - 24))
        rule = rule_line(f"{look.glyph} {summary}", right, (), 1, width, is_focused=False)
        return [tuple(Span(each.text, look.tone if look.glyph in each.text else each.tone) for each in rule), *shown]

    def _fill(
        self, pane: LineView | CollapsibleList, lines: list[Line], folds: Sequence[CollapsibleRow], nothing: str
    ) -> None:
        nothing = self.search.nothing("") if folds or lines else nothing
        if isinstance(pane, CollapsibleList):
            words = self.search.words
            # A filter does not look into what is not loaded.
            found = [fold for fold in folds if fold.key == OLDER or fold.has(words)] if words else folds
            pane.read(found, nothing, self.tab.head(pane.row_width) if self.tab.head else None)
        else:
            shown = [line for line in lines if matches(plain(line), self.search.words)]
            pane.show(shown or [(Span(nothing, "dim"),)])

    def _tab_lines(self, agent: AgentView | None) -> list[Line]:
        """Return the tabs, and a rule that is heavy below the open one."""
        width = self.size.width
        labels = [f"{name} {agent.unread}" if agent and agent.unread and name == "Mail" else name for name in NAMES]
        # Without room for all, the open one between its neighbours.
        has_room = sum(map(len, labels)) + len(labels) * len(_BETWEEN) < width
        places = range(len(TABS)) if has_room else [(self._at + step) % len(TABS) for step in (-1, 0, 1)]
        spans = [Span(" " if has_room else "‹", "dim", "" if has_room else "view.tab_back"), Span(" ")]
        begin = 0
        for at in places:
            if at == self._at:
                begin = width_of(tuple(spans))
            spans += [Span(labels[at], "primary bold" if at == self._at else "", f"{_TAB}{NAMES[at]}"), Span(_BETWEEN)]
        turn = self.context.key("view.tab")
        right = (
            (Span(turn, "key", "view.tab"), Span(" next tab ", "", "view.tab"))
            if has_room
            else (Span("› ", "dim", "view.tab"),)
        )
        heavy = len(labels[self._at])
        below = (Span("─" * (begin), "rule"), Span("━" * heavy, "primary"), Span("─" * (width - begin - heavy), "rule"))
        return [spread(tuple(spans), right, width), below]

    # ------------------------------------------------------------------------------------------------- turning

    def _talk(self, selection: Selection) -> None:
        if self.agent_name != self.context.view.lead:
            self._messaging.talk(selection)
            return
        self._turn(NAMES.index("Mail") - self._at)
        self._messaging.write(self._messaging.lead_target())

    def _turn(self, by: int) -> None:
        self._at = (self._at + by) % len(TABS)
        self.search.words = ""
        self._open_pane()
        self.ask()
        self.paint(self.context.snapshot)
        # A pane that was hidden knows its width once it is laid out.
        self.call_after_refresh(self.refresh_all)

    def _open_pane(self) -> None:
        """Show the pane of this tab, from its beginning, and hide the others."""
        pane = self._pane()
        for each in (self._page, self._facts, self._folds):
            each.display = each is pane
        if isinstance(pane, CollapsibleList):
            pane.begin(follows=self.tab.follows)
        else:
            pane.restart()
        pane.focus()

    # ---------------------------------------------------------------------------------------------- foreground

    @property
    def _waits_here(self) -> bool:
        return self._awaited_since is not None and self._outcome is None

    def _find_outcome(self, snapshot: Snapshot) -> Line | None:
        """Return the outcome of the awaited assignment, with the key that leads back; None if it is not over."""
        since, work = self._awaited_since or 0, snapshot.get(WorkOf(self.agent_name))
        if work is None:
            return None
        for each in work.activity:
            if each.kind in _RESULTS and each.ts >= since:
                back = self.context.key("view.back")
                return line(Span(*_RESULTS[each.kind]), Span("  "), Span(back, "key"), " goes back")
        agent = snapshot.view.agent(self.agent_name)
        if agent is not None and agent.exit is not None and not agent.alive and agent.exit.at >= since:
            return line(say(f" it ended without a result: {describe_exit(agent.exit)}", "error bold"))
        return None

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
