"""`7` Cost: what each agent has used, in tokens and in money."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard import pricing
from crewboard.errors import BadDataError
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.filters import FINDS_AGENTS
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, marks_layer, select_in
from crewboard_tui.actions.search import Search
from crewboard_tui.context import AppContext
from crewboard_tui.queries import Query, Snapshot, SpendingRate
from crewboard_tui.render.money import spent
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.views.cost.rows import CostRows
from crewboard_tui.views.panes import Panes
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.pane_title import title


class CostScreen(BaseScreen):
    """One row for each agent, the team below them; Enter opens an agent's Cost tab."""

    MODE = "cost"
    AUTO_FOCUS = "#cost"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._priced = ""
        self.panes = Panes(self)
        self.search = Search(context, self.narrow, FINDS_AGENTS, groups=())
        self.back_layers = (marks_layer(lambda: self._rows), self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def begin(self) -> None:
        self.panes.begin()

    def body(self) -> Iterable[Widget]:
        yield CostRows(marks=True, id="cost", classes="pane")

    def on_screen_resume(self) -> None:
        # A project's own table may have changed meanwhile; nothing else here depends on it.
        self._priced = _price_date(self.context)

    def queries(self) -> Iterable[Query[object]]:
        return (SpendingRate(),)

    def selection(self) -> Selection:
        return select_in(self.context.snapshot.view, self._rows) if self.is_mounted else Selection()

    @property
    def _rows(self) -> CostRows:
        return self.query_one("#cost", CostRows)

    def paint(self, snapshot: Snapshot) -> None:
        rows = self._rows
        rows.read(snapshot.view, self.search.words)
        title(rows, spent(snapshot.view, snapshot.get(SpendingRate())) + self.search.narrowed_to, self._priced)

    @on(LineList.Moved, "#cost")
    def _other(self) -> None:
        self.paint_keys()

    @on(LineList.Opened, "#cost")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key, "Cost")


def _price_date(context: AppContext) -> str:
    """Of which day the table of prices is that workers reckon with."""
    try:
        return f"price table of {pricing.load(context.snapshot.view.root).as_of}"
    except BadDataError:
        return "this project's price table cannot be used"
