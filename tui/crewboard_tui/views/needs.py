"""`4` Needs-you: everything that waits for the operator, and why."""

from collections.abc import Callable, Iterable
from typing import Any

from textual import on
from textual.widget import Widget

from crewboard.readmodel import Need, TeamView, response_times_today
from crewboard_tui.actions import (
    NEED_GROUPS,
    AgentActions,
    Messaging,
    Search,
    Selection,
    marks_layer,
    need_in_group,
    select_in,
)
from crewboard_tui.context import AppContext
from crewboard_tui.queries import CrashOf, Query, Snapshot
from crewboard_tui.render import format_long_age
from crewboard_tui.views.base import BaseScreen, Panes, nothing_row
from crewboard_tui.views.rows import explanation_lines, find_need, need_key, need_rows
from crewboard_tui.widgets import LineList, LineView, keep_order, title

_NOTHING = "nothing needs you; plans to approve, questions and crashes appear here"


SORTS: dict[str, Callable[[Need], Any]] = {
    "urgency": lambda _: 0,
    "age": lambda need: need.since,
    "agent": lambda need: need.agent,
    "kind": lambda need: need.kind,
}
"""The sort keys; equal needs are ordered by urgency."""


class NeedsScreen(BaseScreen):
    """The list, and the evidence for what is selected. What comes while one looks is added at the end."""

    MODE = "needs"
    AUTO_FOCUS = "#needs"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._order: list[str] = []
        self.panes = Panes(self)
        self.search = Search(context, self.narrow, "words of a need, its agent or its kind", NEED_GROUPS)
        self.back_layers = (marks_layer(lambda: self._rows), self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def begin(self) -> None:
        self.panes.begin()

    def body(self) -> Iterable[Widget]:
        yield LineList(marks=True, sorts=tuple(SORTS), id="needs", classes="pane")
        yield LineView(id="why", classes="pane", follow=False, follows=False)

    def queries(self) -> Iterable[Query[object]]:
        need = self.selected_need()
        return (CrashOf(need.agent),) if need else ()

    def selected_need(self) -> Need | None:
        """The need under the cursor."""
        return (
            find_need(self.context.snapshot.view, self.query_one("#needs", LineList).selected)
            if self.is_mounted
            else None
        )

    @property
    def shown_need(self) -> str | None:
        return self.query_one("#needs", LineList).selected if self.is_mounted else None

    def selection(self) -> Selection:
        return select_in(self.context.snapshot.view, self._rows, self._agent_of) if self.is_mounted else Selection()

    @property
    def _rows(self) -> LineList:
        return self.query_one("#needs", LineList)

    def _agent_of(self, key: str) -> str | None:
        need = find_need(self.context.snapshot.view, key)
        return need.agent if need else None

    def go_to(self, key: str) -> None:
        self.query_one("#needs", LineList).want(key)
        self.refresh_all()

    def on_screen_resume(self) -> None:
        self._order = []

    @on(LineList.Reordered, "#needs")
    def _forget_order(self) -> None:
        self._order = []
        self.narrow()

    def paint(self, snapshot: Snapshot) -> None:
        rows, view = self._rows, snapshot.view
        rows.marked &= {need_key(need) for need in view.needs}
        found = {
            row.key: row
            for row in need_rows(view, self.context.now, rows.row_width, self.search.words, frozenset(rows.marked))
        }
        shown = [need for need in view.needs if need_key(need) in found and need_in_group(need, self.search.group)]
        wanted = [need_key(need) for need in rows.in_order(shown, need_key, SORTS[rows.order.by])]
        self._order = keep_order(self._order, wanted)
        rows.show([found[key] for key in self._order] or [nothing_row(self.search.nothing(_NOTHING))])
        count = f"{len(wanted)} of {len(view.needs)}" if self.search.is_narrowed else len(wanted)
        order = "" if rows.is_sorted else " · most urgent first"
        title(
            rows,
            f"Needs you · {count}{order}{rows.state}{self.search.narrowed_to}",
            _record(snapshot.view, self.context.now),
        )
        self._paint_why(snapshot)

    def _paint_why(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#why", LineView)
        need = self.selected_need()
        if need is None:
            title(pane, "Why")
            pane.show([])
            return
        opens = bool(need.request_id) and self.query_one("#needs").has_focus
        title(pane, f"{need.agent} · why", f"{self.context.key('list.open')} open" if opens else "")
        pane.show(
            explanation_lines(need, snapshot.view, snapshot.get(CrashOf(need.agent)), self.context.now, pane.line_width)
        )

    @on(LineList.Moved, "#needs")
    def _explain(self) -> None:
        self.context.look_at(self.queries())
        self.query_one("#why", LineView).restart()
        self._paint_why(self.context.snapshot)
        self.paint_keys()

    @on(LineList.Opened, "#needs")
    def _open(self) -> None:
        need = self.selected_need()
        request = self.context.snapshot.view.request(need.request_id) if need and need.request_id else None
        if request is not None:
            self.context.navigator.open_request(request)
        elif need is not None:
            self.context.navigator.open_agent(need.agent)


def _record(view: TeamView, now: float) -> str:
    """Return how quickly today's requests were answered."""
    found = response_times_today(view.asked, now)
    return f"answered today {found.count} · median {format_long_age(found.median)}" if found else ""
