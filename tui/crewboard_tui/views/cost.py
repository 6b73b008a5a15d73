"""`7` Cost: what each agent has used, in tokens and in money."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from textual import on
from textual.widget import Widget

from crewboard import AgentView, BadDataError, TeamView, pricing
from crewboard.readmodel.usage import Bill, bill_agent, bill_team, hit_rate
from crewboard.records.agents import Context
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, marks_layer, select_in
from crewboard_tui.actions.search import AGENT_GROUPS, ALL, FINDS_AGENTS, Search, in_group, matches_agent
from crewboard_tui.queries import Query, Snapshot, SpendingRate
from crewboard_tui.render.formats import (
    context_share,
    format_bill,
    format_count,
    format_percent,
    format_spending,
    limit_tone,
)
from crewboard_tui.render.lines import Align, Line, Span, clip_middle, one_line, pad, wrap
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.base import AppContext, BaseScreen
from crewboard_tui.widgets.bars import title
from crewboard_tui.widgets.line_list import LineList, Row


class Account(Struct, frozen=True):
    """One row: the cost of an agent or of the team."""

    name: str
    model: str
    bill: Bill
    context: Context
    shape: Span


class Column(Struct, frozen=True):
    """One column. `order` sorts the largest first; when space is short, the highest `rank` is omitted first."""

    title: str
    width: int
    cell: Callable[[Account], Span]
    order: Callable[[Account], Any]
    align: Align = "right"
    rank: int = 0
    has: Callable[[Account], bool] = lambda _: True


def _tokens(kind: str) -> Callable[[Account], Span]:
    return lambda account: Span(format_count(count) if (count := getattr(account.bill.tokens, kind)) else "")


def _most_of(kind: str) -> Callable[[Account], int]:
    return lambda account: -getattr(account.bill.tokens, kind)


def _share_cell(share: float | None) -> Span:
    return Span("" if share is None else format_percent(share), limit_tone(share))


def _hits(account: Account) -> Span:
    hits = hit_rate(account.bill.tokens)
    return Span("" if hits is None else format_percent(hits))


def _money(account: Account) -> Span:
    return Span("" if account.bill.usd is None else format_bill(account.bill))


def _budget(account: Account) -> Span:
    return Span(str(account.bill.budget or "").removesuffix(" tokens"))


COLUMNS: tuple[Column, ...] = (
    Column("AGENT", 14, lambda a: Span(a.name), lambda _: 0, "left"),
    Column("MODEL", 11, lambda a: Span(one_line(a.model).removeprefix("claude-"), "dim"), lambda a: a.model, "left", 7),
    Column("IN", 6, _tokens("input"), _most_of("input"), rank=2),
    Column("OUT", 6, _tokens("output"), _most_of("output"), rank=3),
    Column("CACHED", 6, _tokens("cache_read"), _most_of("cache_read"), rank=6),
    Column("WRITTEN", 7, _tokens("cache_write"), _most_of("cache_write"), rank=8),
    Column("WEB", 4, _tokens("web_uses"), _most_of("web_uses"), rank=4, has=lambda a: a.bill.tokens.web_uses > 0),
    Column("HIT", 4, _hits, lambda a: -(hit_rate(a.bill.tokens) or 0), rank=5),
    Column("COST", 7, _money, lambda a: -(a.bill.usd or 0)),
    Column("BUDGET", 7, _budget, lambda a: a.bill.budget is None, rank=1, has=lambda a: a.bill.budget is not None),
    Column("USED", 5, lambda a: _share_cell(a.bill.share), lambda a: -(a.bill.share or 0),
           has=lambda a: a.bill.budget is not None),
    Column("CTX", 4, lambda a: _share_cell(context_share(a.context)), lambda a: -(context_share(a.context) or 0),
           rank=4),
)  # fmt: skip
"""The columns from left to right; CACHED are tokens read from the cache, WRITTEN those written to it, WEB are uses."""

SORTS = ("COST", "IN", "OUT", "CACHED", "WRITTEN", "HIT", "USED", "CTX", "AGENT")
"""The sort columns, in the order in which the key cycles through them."""

_TEAM = "TEAM"
_ORDER = {column.title: column.order for column in COLUMNS}


def accounts(agents: Sequence[AgentView]) -> list[Account]:
    """Return a row for each agent."""
    return [Account(a.name, a.model, bill_agent(a), a.context, Span(look_of(a).glyph, look_of(a).tone)) for a in agents]


def lay_out(rows: Sequence[Account], width: int) -> list[Column]:
    """Return the columns that have data and fit into `width` cells."""
    longest = max((len(row.name) for row in rows), default=0)
    names = replace(COLUMNS[0], width=min(max(5, longest), COLUMNS[0].width))
    chosen = [names, *(column for column in COLUMNS[1:] if any(map(column.has, rows)))]
    while sum(column.width + 1 for column in chosen) + 2 > width and any(column.rank for column in chosen):
        chosen.remove(max(chosen, key=lambda column: column.rank))
    return chosen


def head_line(columns: Sequence[Column], by: str) -> Line:
    """Return the titles, with a mark at the sort column."""
    cells = [pad(column.title + ("⌄" if column.title == by else ""), column.width, column.align) for column in columns]
    return (Span("  " + " ".join(cells), "dim"),)


def account_line(account: Account, columns: Sequence[Column], tone: str = "", *, marked: bool = False) -> Line:
    """Return one row."""
    spans = [account.shape, Span("✓" if marked else " ", "marked")]
    for column in columns:
        cell = column.cell(account)
        text = clip_middle(cell.text, column.width) if column.title == COLUMNS[0].title else cell.text
        spans.append(Span(pad(text, column.width, column.align) + " ", f"{cell.tone} {tone}".strip()))
    return tuple(spans)


class CostRows(LineList):
    """The table. Below it are the team's row, and what else is known of its costs."""

    def read(self, view: TeamView, known: str = "", words: str = "", group: str = ALL) -> None:
        """Show the costs of all agents that pass the filter, and what is `known` of the team's."""
        by = self.order.by or SORTS[0]
        self.marked &= set(view.names)
        shown = [agent for agent in view.agents if matches_agent(agent, words) and in_group(agent, view, group)]
        rows = self.in_order(accounts(shown), lambda row: row.name, lambda row: (_ORDER[by](row), row.name))
        team = Account(_TEAM, "", bill_team(view), Context(), Span(" "))
        columns = lay_out([*rows, team], self.row_width)
        lines = [Row(row.name, account_line(row, columns, marked=row.name in self.marked)) for row in rows]
        told = wrap(known, max(10, self.row_width - 4)) if known else []
        last = [
            Row("", account_line(team, columns, "bold")),
            *(Row("", (Span("   "), Span(one, "dim"))) for one in told),
        ]
        self.show([*lines, *last] if view.agents else [Row("", (Span("no agents yet", "dim"),))],
                  head_line(columns, by) if view.agents else None)  # fmt: skip


class CostScreen(BaseScreen):
    """One row for each agent, the team below them; Enter opens an agent's Cost tab."""

    MODE = "cost"
    AUTO_FOCUS = "#cost"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self._priced = ""
        self.search = Search(context, self.narrow, FINDS_AGENTS, AGENT_GROUPS)
        self.back_layers = (marks_layer(lambda: self._rows), self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def begin(self) -> None:
        self.panes.begin()

    def body(self) -> Iterable[Widget]:
        yield CostRows(marks=True, sorts=SORTS, id="cost", classes="pane")

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
        # Not in the title: there the heads of the columns begin.
        name, _, spent = format_spending(snapshot.view, snapshot.get(SpendingRate())).partition(" · ")
        known = " · ".join(filter(None, (spent, self._priced)))
        rows.read(snapshot.view, known, self.search.words, self.search.group)
        title(rows, f"{name}{rows.state}{self.search.narrowed_to}")

    @on(LineList.Moved, "#cost")
    def _other(self) -> None:
        self.paint_keys()

    @on(LineList.Opened, "#cost")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key, "Cost")


def _price_date(context: AppContext) -> str:
    """Return the date of the price table that workers use."""
    try:
        return f"price table of {pricing.load(context.snapshot.view.root).as_of}"
    except BadDataError:
        return "this project's price table cannot be used"
