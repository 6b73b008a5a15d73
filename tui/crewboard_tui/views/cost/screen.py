"""`7` Cost: what everybody has used, in tokens and in money."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard import pricing
from crewboard.errors import BadDataError
from crewboard_tui.actions.filters import FINDS_AGENTS
from crewboard_tui.context import AppContext
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render.money import spent
from crewboard_tui.views.cost.rows import CostRows
from crewboard_tui.views.numbered import Numbered
from crewboard_tui.widgets.line_list import LineList
from crewboard_tui.widgets.pane_title import title


class CostScreen(Numbered):
    """One row for each agent, the team below them; Enter opens an agent's Cost tab."""

    MODE = "cost"
    FINDS = FINDS_AGENTS
    AUTO_FOCUS = "#cost"

    def __init__(self, desk: AppContext) -> None:
        super().__init__(desk)
        self._priced = ""

    def body(self) -> Iterable[Widget]:
        yield CostRows(id="cost", classes="pane")

    def on_screen_resume(self) -> None:
        # A project's own table may have changed meanwhile; nothing else here depends on it.
        self._priced = _price_date(self.context)

    def interest(self) -> Interest:
        return Interest(rate=True)

    def selected_agent(self) -> str | None:
        return (self.query_one("#cost", LineList).selected or None) if self.is_mounted else None

    def paint(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#cost", CostRows)
        rows.read(snapshot.view, self.filter)
        title(rows, spent(snapshot.view, snapshot.rate) + self.narrowed_to, self._priced)

    @on(LineList.Moved, "#cost")
    def _other(self) -> None:
        self.paint_keys()

    @on(LineList.Opened, "#cost")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key, "Cost")


def _price_date(desk: AppContext) -> str:
    """Of which day the table of prices is that workers reckon with."""
    try:
        return f"price table of {pricing.load(desk.snapshot.view.root).as_of}"
    except BadDataError:
        return "this project's price table cannot be used"
