"""`4` Needs-you: everything that waits for the operator, and why."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard.readmodel.response_times import answered_today
from crewboard.readmodel.team import Need, TeamView
from crewboard_tui.context import Desk
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render import formats
from crewboard_tui.views.needs.explanation import why_lines
from crewboard_tui.views.needs.rows import find_need, need_rows
from crewboard_tui.views.numbered import Numbered
from crewboard_tui.views.requests.routing import open_request
from crewboard_tui.widgets.line_list import Rows, keep_order
from crewboard_tui.widgets.line_view import Log
from crewboard_tui.widgets.pane_title import title

_NOTHING = "nobody needs you; plans to approve, questions and deaths will stand here"


class NeedsScreen(Numbered):
    """The list, and the evidence for what is selected. What comes while one looks is added at the end."""

    MODE = "needs"
    AUTO_FOCUS = "#needs"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._order: list[str] = []

    def body(self) -> Iterable[Widget]:
        yield Rows(id="needs", classes="pane")
        yield Log(id="why", classes="pane", follow=False, follows=False)

    def interest(self) -> Interest:
        need = self.selected_need()
        return Interest(agent=need.agent, autopsy=need.agent) if need else Interest()

    def selected_need(self) -> Need | None:
        """The need under the cursor."""
        return find_need(self.desk.snapshot.view, self.query_one("#needs", Rows).selected) if self.is_mounted else None

    @property
    def shown_need(self) -> str | None:
        return self.query_one("#needs", Rows).selected if self.is_mounted else None

    def selected_agent(self) -> str | None:
        need = self.selected_need()
        return need.agent if need else None

    def show_need(self, key: str) -> None:
        """Put the cursor on a need."""
        self.query_one("#needs", Rows).want(key)
        self.refresh_all()

    def on_screen_resume(self) -> None:
        self._order = []

    def paint(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#needs", Rows)
        found = {row.key: row for row in need_rows(snapshot.view, self.desk.now, rows.row_width, self.filter)}
        self._order = keep_order(self._order, list(found))
        rows.show([found[key] for key in self._order] or [self.nothing(_NOTHING)])
        shown = f"{len(found)} of {len(snapshot.view.needs)}" if self.is_narrowed else len(found)
        title(rows, f"Needs you · {shown} · most urgent first{self.narrowed_to}", _record(snapshot.view, self.desk.now))
        self._paint_why(snapshot)

    def _paint_why(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#why", Log)
        need = self.selected_need()
        if need is None:
            title(pane, "Why")
            pane.show([])
            return
        opens = bool(need.request_id) and self.query_one("#needs").has_focus
        title(pane, f"{need.agent} · why", f"{self.desk.key('list.open')} open" if opens else "")
        pane.show(why_lines(need, snapshot.view, snapshot.autopsy, self.desk.now, pane.line_width))

    @on(Rows.Moved, "#needs")
    def _explain(self) -> None:
        self.desk.look_at(self.interest())
        self.query_one("#why", Log).restart()
        self._paint_why(self.desk.snapshot)
        self.paint_keys()

    @on(Rows.Opened, "#needs")
    def _open(self) -> None:
        need = self.selected_need()
        request = self.desk.snapshot.view.request(need.request_id) if need and need.request_id else None
        if request is not None:
            open_request(self.app, self.desk, request)
        elif need is not None:
            from crewboard_tui.views.agent.screen import AgentPage

            self.app.push_screen(AgentPage(self.desk, need.agent))


def _record(view: TeamView, now: float) -> str:
    """How quick the answers of today were."""
    found = answered_today(view.asked, now)
    return f"answered today {found.count} · median {formats.long_age(found.median)}" if found else ""
