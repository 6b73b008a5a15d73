"""`7` Cost: what each agent has used, in tokens and in money."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from textual import on
from textual.widget import Widget

from crewboard import AgentView, BadDataError, TeamView, pricing
from crewboard.readmodel.usage import Bill, Spending, bill_agent, bill_team, hit_rate
from crewboard.records.agents import Context
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, marks_layer, select_in
from crewboard_tui.actions.search import AGENT_GROUPS, ALL, FINDS_AGENTS, Search, in_group, matches_agent
from crewboard_tui.queries import PULSE, Query, Snapshot, SpendingByMinute, SpendingRate
from crewboard_tui.render import table
from crewboard_tui.render.formats import (
    bar_rows,
    context_share,
    filled_cells,
    format_bill,
    format_count,
    format_minute,
    format_percent,
    format_spending,
    format_tokens,
    is_same_day,
    share_span,
    why_no_money,
)
from crewboard_tui.render.lines import Line, Span, one_line, rule_line, wrap
from crewboard_tui.render.looks import look_of
from crewboard_tui.render.table import Column, mark_span
from crewboard_tui.views.base import AppContext, BaseScreen
from crewboard_tui.widgets.bars import StaticLines
from crewboard_tui.widgets.line_list import LineList, Row

_BAR = 8
"""Cells of a bar in a row."""


class Account(Struct, frozen=True):
    """One row of the table: the cost of an agent or of the team. `shape` is the glyph of its state."""

    name: str
    model: str
    bill: Bill
    context: Context
    shape: Span
    part: float = 0
    """The agent's cost as a share of the highest cost of an agent; of tokens, if none has a price."""


def _count(tokens: int) -> Span:
    return Span(format_count(tokens) if tokens else "")


def _hits(account: Account) -> Span:
    hits = hit_rate(account.bill.tokens)
    if hits is None:
        return Span("")
    full = filled_cells(hits, _BAR)
    return Span(f"{'▮' * full}{'▯' * (_BAR - full)} {format_percent(hits):>4}")


COLUMNS: tuple[Column[Account], ...] = (
    Column("AGENT", 14, lambda a: Span(a.name), is_name=True),
    Column("COST", 7, lambda a: Span("" if a.bill.usd is None else format_bill(a.bill)), "right"),
    Column("TOKENS", 7, lambda a: Span(format_tokens(a.bill.tokens)), "right", 1,
           has=lambda a: a.bill.tokens.total > 0 or a.bill.partial),
    Column("", _BAR, lambda a: Span("▮" * max(a.part > 0, filled_cells(a.part, _BAR)), "info"), rank=6,
           has=lambda a: a.part > 0),
    Column("MODEL", 11, lambda a: Span(one_line(a.model).removeprefix("claude-"), "dim"), rank=7),
    Column("IN", 6, lambda a: _count(a.bill.tokens.input), "right", 2),
    Column("OUT", 6, lambda a: _count(a.bill.tokens.output), "right", 3),
    Column("CACHED", 6, lambda a: _count(a.bill.tokens.cache_read), "right", 6),
    Column("WRITTEN", 7, lambda a: _count(a.bill.tokens.cache_write), "right", 8),
    Column("WEB", 4, lambda a: _count(a.bill.tokens.web_uses), "right", 4,
           has=lambda a: a.bill.tokens.web_uses > 0),
    Column("HIT", _BAR + 5, _hits, "right", 5),
    Column("BUDGET", 7, lambda a: Span(str(a.bill.budget or "").removesuffix(" tokens")), "right", 1,
           has=lambda a: a.bill.budget is not None),
    Column("USED", 5, lambda a: share_span(a.bill.share), "right", has=lambda a: a.bill.budget is not None),
    Column("CTX", 4, lambda a: share_span(context_share(a.context)), "right", 4),
)  # fmt: skip
"""The columns from left to right.

TOKENS is the total of IN, OUT, CACHED and WRITTEN (`TOKEN_KINDS`), WEB counts uses.
"""

SORTS: dict[str, Callable[[Account], Any]] = {
    "COST": lambda a: (-(a.bill.usd or 0), -a.bill.tokens.total),
    "IN": lambda a: -a.bill.tokens.input,
    "OUT": lambda a: -a.bill.tokens.output,
    "CACHED": lambda a: -a.bill.tokens.cache_read,
    "WRITTEN": lambda a: -a.bill.tokens.cache_write,
    "HIT": lambda a: -(hit_rate(a.bill.tokens) or 0),
    "USED": lambda a: -(a.bill.share or 0),
    "CTX": lambda a: -(context_share(a.context) or 0),
    "AGENT": lambda _: 0,
}
"""The order by each sort key, in the order in which the key cycles through them. Equal rows are ordered by name."""

_TEAM = "TEAM"


def accounts(agents: Sequence[AgentView]) -> list[Account]:
    """Return a row for each agent."""
    bills = [bill_agent(agent) for agent in agents]
    spent = [bill.usd or 0 for bill in bills]
    spent = spent if any(spent) else [bill.tokens.total for bill in bills]
    most = max(spent, default=0) or 1
    return [
        Account(a.name, a.shown_model, bill, a.status.context, Span(look_of(a).glyph, look_of(a).tone), part / most)
        for a, bill, part in zip(agents, bills, spent, strict=True)
    ]


_WIDEST = 4
"""The most cells of a bar."""

_LEAST_PULSE = 5
"""The least minutes that the chart of a team's tokens shows."""

_NARROWEST = 36
"""The least cells for a chart, with two times below it."""

_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440)
"""The numbers of minutes that a bar of the chart may stand for."""

_ROWS = ((34, 8), (24, 4))
"""Pairs of lines of the screen and lines of the chart from there on. A lower screen has no chart."""


def chart(spending: Spending, known: str, width: int, rows: int) -> list[Line]:
    """Return a chart of the spending over time, with `rows` lines of bars, under a rule with the text `known`.

    It is empty if nothing was spent or there is no room. A bar stands for as many minutes as are needed for all to fit.
    The last bar is that of the last call, so nothing moves while no agent works. The unit is dollars, or tokens if
    nothing has a price.
    """
    dollars = {minute: spent.usd for minute, spent in spending.minutes.items() if spent.usd}
    values = dollars or {minute: float(spent.tokens) for minute, spent in spending.minutes.items() if spent.tokens}
    if not values or not rows or width < _NARROWEST:
        return []
    room = width - _AXIS
    first, last = min(values), max(values)
    step = next((each for each in _STEPS if last // each - first // each < room), _STEPS[-1])
    wide = max(1, min(_WIDEST, room // (last // step - first // step + 1)))
    begin = last // step - room // wide + 1
    bars = [0.0] * (room // wide)
    for minute, value in values.items():
        if minute // step >= begin:
            bars[minute // step - begin] += value
    top = max(bars)
    # With so many digits that half of the top is another number.
    digits = 4 if top < 0.1 else 2  # noqa: PLR2004
    counted = not dollars or top >= 1000  # noqa: PLR2004
    sign = "$" if dollars else ""
    unit = f"{'Dollars' if dollars else 'Tokens'} per {'minute' if step == 1 else f'{step} min'}"
    return [
        rule_line(f"{unit}{_since(spending)}", known, (), 1, width, is_focused=False),
        *_plot(
            [bar for bar in bars for _ in range(wide)],
            rows,
            [60 * step * (begin + at) for at in (0, len(bars) // 2, len(bars) - 1)],
            lambda value: sign + (format_count(round(value)) if counted else f"{value:.{digits}f}"),
        ),
    ]


def pulse(spending: Spending, now: float, width: int, rows: int) -> list[Line]:
    """Return a chart of the tokens in each of the last minutes, with `rows` lines of bars, under a rule.

    The bar at the right is the present minute, so that the bars of a team at rest move to the left. A young team has
    wide bars, because the minutes before its first call say nothing: while they have two cells or more, the chart
    begins about with that call. It is empty if there is no room, or if nothing is known of these minutes.
    """
    last, room = int(now // 60), width - _AXIS
    begun = 0 if spending.since else min(spending.minutes, default=0)
    wide = max(1, room // max(_LEAST_PULSE, last - begun + 1))
    count = min(PULSE, room // wide)
    if rows < 1 or width < _NARROWEST:
        return []
    minutes = range(last - count + 1, last + 1)
    bars = [float(spent.tokens) if (spent := spending.minutes.get(at)) is not None else 0 for at in minutes]
    if not any(bars):
        return []
    times = [60 * minutes[at] for at in (0, count // 2, -1)]
    title = f"Pulse · tokens a minute, {count} min{_since(spending) if spending.since > minutes[0] else ''}"
    return [
        rule_line(title, f"peak {format_count(int(max(bars)))}", (), 1, width, is_focused=False),
        *_plot([bar for bar in bars for _ in range(wide)], rows, times, lambda value: format_count(round(value))),
    ]


def _since(spending: Spending) -> str:
    return f" since {format_minute(60 * spending.since, with_day=True)}" if spending.since else ""


def _plot(bars: Sequence[float], rows: int, times: Sequence[float], label: Callable[[float], str]) -> list[Line]:
    """Return a chart of `bars` with `rows` lines above an axis, which shows the first, middle and last of `times`.

    `label` formats the number at the top and half of it.
    """
    top = max(bars)
    beside = {at: label(value) for at, value in ((0, top), (rows // 2, top / 2))}
    moments = [format_minute(ts, with_day=not is_same_day(times[0], times[2])) for ts in times]
    middle = moments[1] if 4 * len(moments[1]) <= len(bars) else ""
    axis = f"{moments[0]}{middle:^{len(bars) - 2 * len(moments[0])}}{moments[2]}"
    return [
        *(
            (Span(f" {beside.get(at, ''):>{_LABEL}} {'┤' if at in beside else '│'}", "dim"), Span(row, "info"))
            for at, row in enumerate(bar_rows(bars, rows, top))
        ),
        (Span(f" {'0':>{_LABEL}} ┼{axis}", "dim"),),
    ]


_LABEL = 7
"""Cells for a number beside the chart."""

_AXIS = _LABEL + 4
"""Cells beside the bars: the number, the line, and a blank at each end."""


class CostRows(LineList):
    """The table of costs."""

    def read(self, view: TeamView, words: str = "", group: str = ALL, *, with_total: bool = False) -> Line:
        """Show the costs of all agents that pass the filter; return the line with the team's costs.

        With `with_total`, that line is also the last row, and no row shows the state of its agent.
        """
        by = self.order.by or "COST"
        self.marked &= set(view.names)
        shown = [agent for agent in view.agents if matches_agent(agent, words) and in_group(agent, view, group)]
        rows = self.in_order(accounts(shown), lambda row: row.name, lambda row: (SORTS[by](row), row.name))
        team = Account(_TEAM, "", bill_team(view), Context(), Span(" "))
        longest = max(len(row.name) for row in [*rows, team])
        columns = [
            replace(column, width=min(max(5, longest), column.width)) if column.is_name else column
            for column in table.with_data(COLUMNS, [*rows, team])
        ]
        columns = table.fit(columns, self.row_width - 2)
        lines = [
            Row(
                row.name,
                (
                    team.shape if with_total else row.shape,
                    mark_span(marked=row.name in self.marked),
                    *table.cells(columns, row),
                ),
            )
            for row in rows
        ]
        total = (team.shape, mark_span(marked=False), *table.cells(columns, team, "bold"))
        lines += [Row("", total)] if with_total else []
        self.show(lines if view.agents else self.empty_rows("no agents yet; what each one costs appears here"),
                  table.head(columns, by) if view.agents else None)  # fmt: skip
        return total


class CostScreen(BaseScreen):
    """The cost over time, and below it a row for each agent and one for the team.

    Enter opens the Vitals of an agent.
    """

    CSS_PATH = "cost.tcss"
    MODE = "cost"
    AUTO_FOCUS = "#cost"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._priced = ""
        self.rows: CostRows = CostRows(marks=True, sorts=tuple(SORTS), id="cost", classes="pane")
        self._spent, self._team_cost = StaticLines(id="spent"), StaticLines(id="team-cost")
        self.search = Search(context, self.narrow, FINDS_AGENTS, AGENT_GROUPS)
        self.back_layers = (marks_layer(self.rows), self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def body(self) -> Iterable[Widget]:
        yield self._spent
        yield self.rows
        yield self._team_cost

    def on_screen_resume(self) -> None:
        # A project's own table may have changed meanwhile; nothing else here depends on it.
        try:
            self._priced = f"price table of {pricing.load(self.context.view.root).as_of}"
        except BadDataError:
            self._priced = "this project's price table cannot be used"

    def queries(self) -> Iterable[Query[object]]:
        return (SpendingRate(), SpendingByMinute())

    def selection(self) -> Selection:
        return select_in(self.context.view, self.rows)

    def paint(self, snapshot: Snapshot) -> None:
        rows, view, width = self.rows, snapshot.view, self.size.width
        spent = format_spending(view, snapshot.get(SpendingRate()))
        high = next((lines for least, lines in _ROWS if self.size.height >= least), 0)
        above = chart(snapshot.get(SpendingByMinute()) or Spending({}), spent, width, high)
        self._spent.show(above)
        total = rows.read(view, self.search.words, self.search.group)
        # So that the total stands below the last row, also where there is room for more.
        rows.styles.max_height = len(rows.rows) + 1
        bill = bill_team(view)
        missing = "+ no price for some of the tokens" if bill.usd is not None else why_no_money(view)
        known = " · ".join(filter(None, ("" if above else spent, missing if bill.partial else "", self._priced)))
        told: list[Line] = [(Span("    "), Span(each, "dim")) for each in wrap(known, max(10, width - 5))]
        self._team_cost.show([(Span(" "), *total), *told] if view.agents else told)
        rows.rule.entitle(f"Cost{rows.state}{self.search.narrowed_to}")

    @on(LineList.Moved, "#cost")
    def _other(self) -> None:
        self.paint_keys()

    @on(LineList.Opened, "#cost")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key, "Vitals")
