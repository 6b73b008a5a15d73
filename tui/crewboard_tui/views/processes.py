"""`5` Processes: the processes of the workers, as the operating system reports them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from textual import on

from crewboard.readmodel.processes import Usage
from crewboard.readmodel.team import AgentView, describe_runner
from crewboard.records.processes import describe_exit
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, marks_layer, select_in
from crewboard_tui.actions.search import AGENT_GROUPS, FINDS_AGENTS, Search, in_group, matches_agent
from crewboard_tui.queries import HISTORY_KEPT, CrashOf, ProcessOf, Query, Snapshot, Usages
from crewboard_tui.render import table
from crewboard_tui.render.formats import format_size, peaks, sparkline
from crewboard_tui.render.lines import Span, say
from crewboard_tui.render.looks import look_of
from crewboard_tui.render.table import Column, mark_span
from crewboard_tui.views.agent_tabs import A_CORE, process_lines
from crewboard_tui.views.base import HUGE, AppContext, BaseScreen, first_hire
from crewboard_tui.views.roster import doing
from crewboard_tui.widgets.bars import away_for
from crewboard_tui.widgets.line_list import LineList, Row

_GRAPH = 8
"""Cells in a row for the processor time of two minutes, and for the memory."""


class ProcessRow(Struct, frozen=True):
    """An agent with its measurements of two minutes. `most` is the memory of the team's largest worker."""

    agent: AgentView
    measured: tuple[Usage, ...] = ()
    most: float = 0


def _bars(row: ProcessRow, values: Iterable[float], top: float) -> Span:
    """Return the bars of two minutes of a living worker; `top` is a full bar, or their peak if that is higher."""
    shown = peaks([*values], _GRAPH, HISTORY_KEPT)
    return Span(sparkline(shown, _GRAPH, max(top, *shown)) if shown and row.agent.alive else "", "trace")


COLUMNS: tuple[Column[ProcessRow], ...] = (
    Column("AGENT", 14, lambda row: Span(row.agent.name), is_name=True),
    Column("HOST", 9, lambda row: Span(row.agent.status.host), is_name=True),
    Column("PID", 7, lambda row: Span(str(row.agent.pid) if row.agent.alive and row.agent.pid else ""), "right"),
    Column("RUN", 3, lambda row: Span(str(row.agent.run or "")), "right"),
    Column("CPU", 4, lambda row: Span(f"{row.agent.usage.cpu_percent:.0f}%" if row.agent.usage else ""), "right"),
    Column("CPU 2MIN", _GRAPH, lambda row: _bars(row, (use.cpu_percent for use in row.measured), A_CORE), "right", 1),
    Column("MEM", 5, lambda row: Span(format_size(row.agent.usage.memory) if row.agent.usage else ""), "right"),
    Column("MEM 2MIN", _GRAPH, lambda row: _bars(row, (use.memory for use in row.measured), row.most), "right", 2),
    Column("CHILD", 5, lambda row: Span(str(row.agent.usage.children or "") if row.agent.usage else ""), "right"),
    Column("SANDBOX", 10, lambda row: Span(row.agent.status.sandbox if row.agent.alive else "")),
)
"""The columns from left to right. The state of a worker, or how it ended, takes the rest of the line.

A full bar is one core, and the memory of the largest worker.
"""

_HOW = 12
"""The least cells for the state of a worker."""

_TOLD = frozenset({"ask", "run", "idle", "done", "pause"})
"""States for which the glyph of the row is enough."""

_WITH_ALL = 100
"""Terminal width from which on the host does not replace another column."""

SORTS: dict[str, Callable[[AgentView], Any]] = {
    "team": lambda _: 0,
    "name": lambda agent: agent.name,
    "pid": lambda agent: agent.pid or 0,
    "cpu": lambda agent: -agent.usage.cpu_percent if agent.usage else 0,
    "memory": lambda agent: -agent.usage.memory if agent.usage else 0,
    "children": lambda agent: -agent.usage.children if agent.usage else 0,
}
"""The orders of workers by sort key; the first is the order in which the agents were hired."""


class ProcessesScreen(BaseScreen):
    """The list of worker processes, and the details of the selected one."""

    CSS_PATH = "processes.tcss"
    MODE = "processes"
    AUTO_FOCUS = "#processes"
    DETAIL = "process"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.rows = LineList(marks=True, sorts=tuple(SORTS), id="processes", classes="pane")
        self.search = Search(context, self.narrow, FINDS_AGENTS, AGENT_GROUPS)
        self._measured: Mapping[str, tuple[Usage, ...]] = {}
        """Measurements of the agents whose rows were shown last."""
        self.back_layers = (marks_layer(self.rows), self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def queries(self) -> Iterable[Query[object]]:
        name = self.selected
        shown = tuple(sorted(filter(None, self.rows.seen_keys)))
        return (*((CrashOf(name), ProcessOf(name)) if name else ()), *((Usages(shown),) if shown else ()))

    def selection(self) -> Selection:
        return select_in(self.context.view, self.rows)

    def paint(self, snapshot: Snapshot) -> None:
        rows = self.rows
        rows.marked &= set(snapshot.view.names)
        shown = [
            agent
            for agent in snapshot.view.agents
            if matches_agent(agent, self.search.words) and in_group(agent, snapshot.view, self.search.group)
        ]
        # On a narrow terminal the host takes the place of the sandbox, which the page of the worker shows too.
        left_out = "HOST" if not snapshot.view.told_apart else "SANDBOX" if self.size.width < _WITH_ALL else ""
        columns = [column for column in COLUMNS if column.title != left_out]
        columns = table.fit(columns, rows.row_width - 2 - _HOW)
        measured = (answer for query, answer in snapshot.answers.items() if isinstance(query, Usages))
        self._measured = next(measured, self._measured)
        most = max((agent.usage.memory for agent in snapshot.view.agents if agent.usage), default=0)
        shown = rows.in_order(shown, lambda agent: agent.name, SORTS[rows.order.by])
        found, says = [], False
        for agent in shown:
            look = look_of(agent)
            how = describe_exit(agent.exit) if agent.exit and not agent.alive else ""
            if not how and agent.shown not in _TOLD:
                how = doing(agent, self.context.now)
            line = (
                Span(look.glyph, look.tone),
                mark_span(marked=agent.name in rows.marked),
                *table.cells(
                    columns,
                    ProcessRow(agent, self._measured.get(agent.name, ()), most),
                    "warning" if agent.unsafe else "",
                ),
                say(how, look.tone),
            )
            found.append(Row(agent.name, line))
            says = says or bool(how)
        rows.show(
            found or rows.empty_rows(self.search.nothing(first_hire(self.context))),
            table.head(columns, rest="HOW" if says else "") if shown else None,
        )
        shared = snapshot.view.supervisor.shared_bytes
        alive = sum(agent.alive for agent in snapshot.view.agents)
        state = f"{rows.state}{self.search.narrowed_to}"
        rows.rule.entitle(
            f"Processes{f' {alive}' if alive else ''}{state}",
            # Where there is little room it would take the place of column heads; the help tells it too.
            (
                describe_runner(snapshot.view, away_for(snapshot))
                + (f" · {format_size(shared)} shared" if shared else "")
            )
            if self.size.width >= (HUGE if state else _WITH_ALL)
            else "",
        )
        self.paint_detail(snapshot)

    def paint_detail(self, snapshot: Snapshot) -> None:
        pane, agent = self.detail, snapshot.view.agent(self.selected)
        pane.rule.entitle(agent.name if agent else "Process")
        self.panes.show_below(pane, shown=agent is not None)
        pane.show(process_lines(agent, snapshot, self.context.now, pane.line_width) if agent else [])

    @on(LineList.Opened, "#processes")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key)
