"""`5` Processes: the workers as the operating system knows them."""

from collections.abc import Callable, Iterable
from typing import Any

from textual import on
from textual.widget import Widget

from crewboard import AgentView
from crewboard.readmodel.team import describe_runner
from crewboard.records.base import counted
from crewboard.records.processes import describe_exit
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Selection, marks_layer, select_in
from crewboard_tui.actions.search import AGENT_GROUPS, FINDS_AGENTS, Search, in_group, matches_agent
from crewboard_tui.queries import CrashOf, ProcessOf, Query, Snapshot
from crewboard_tui.render.formats import format_size
from crewboard_tui.render.lines import Line, Span, clip_middle, pad, say
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.agent_tabs import process_lines
from crewboard_tui.views.base import AppContext, BaseScreen, first_hire, nothing_row
from crewboard_tui.widgets.bars import away_for, title
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.line_view import LineView

_HEAD = (("", 2), ("AGENT", 15), ("PID", 8), ("RUN", 4), ("CPU", 5), ("MEM", 6), ("CHILDREN", 9), ("SANDBOX", 11))
"""The columns with their widths."""

_NUMBERS = frozenset({"PID", "RUN", "CPU", "MEM", "CHILDREN"})
"""The columns that stand at the right of their cells."""


_HOST = 10
_WITH_ALL = 100
"""Terminal width from which the host does not take the place of another column."""

SORTS: dict[str, Callable[[AgentView], Any]] = {
    "team": lambda _: 0,
    "name": lambda agent: agent.name,
    "pid": lambda agent: agent.pid or 0,
    "cpu": lambda agent: -agent.usage.cpu_percent if agent.usage else 0,
    "memory": lambda agent: -agent.usage.memory if agent.usage else 0,
    "children": lambda agent: -agent.usage.children if agent.usage else 0,
}
"""The sort keys; the first is the order in which the agents were hired."""


class ProcessesScreen(BaseScreen):
    """The Processes view: each worker's process with its children."""

    MODE = "processes"
    AUTO_FOCUS = "#processes"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.search = Search(context, self.narrow, FINDS_AGENTS, AGENT_GROUPS)
        self.back_layers = (marks_layer(lambda: self._rows), self.panes.layer, self.search.layer)
        self.offer(AgentActions(context).actions, Messaging(context).actions, self.search.actions, self.panes.actions)

    def begin(self) -> None:
        self.panes.begin()

    def body(self) -> Iterable[Widget]:
        yield LineList(marks=True, sorts=tuple(SORTS), id="processes", classes="pane")
        yield LineView(id="process", classes="pane", follow=False, follows=False)

    def queries(self) -> Iterable[Query[object]]:
        name = self._selected
        return (CrashOf(name), ProcessOf(name)) if name else ()

    def selection(self) -> Selection:
        return select_in(self.context.snapshot.view, self._rows) if self.is_mounted else Selection()

    @property
    def _rows(self) -> LineList:
        return self.query_one("#processes", LineList)

    @property
    def _selected(self) -> str | None:
        return self._rows.selected if self.is_mounted else None

    def paint(self, snapshot: Snapshot) -> None:
        rows = self._rows
        rows.marked &= set(snapshot.view.names)
        shown = [
            agent
            for agent in snapshot.view.agents
            if matches_agent(agent, self.search.words) and in_group(agent, snapshot.view, self.search.group)
        ]
        columns = _columns(self.size.width, with_host=bool(snapshot.view.told_apart))
        head = "".join(_cell(name, name, width) for name, width in columns) + "HOW"
        shown = rows.in_order(shown, lambda agent: agent.name, SORTS[rows.order.by])
        found = [Row(agent.name, process_line(agent, columns, marked=agent.name in rows.marked)) for agent in shown]
        rows.show(
            found or [nothing_row(self.search.nothing(first_hire(self.context)))],
            (Span(head, "dim"),) if shown else None,
        )
        living = sum(agent.alive for agent in snapshot.view.agents)
        shared = snapshot.view.supervisor.shared_bytes
        title(
            rows,
            f"Processes · {counted(living, 'worker')}{rows.state}{self.search.narrowed_to}",
            describe_runner(snapshot.view, away_for(snapshot)) + (f" · {format_size(shared)} shared" if shared else ""),
        )
        self._paint_process(snapshot)

    def _paint_process(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#process", LineView)
        name = self._selected
        agent = snapshot.view.agent(name) if name else None
        title(pane, agent.name if agent else "Process")
        pane.show(process_lines(agent, snapshot, self.context.now, pane.line_width) if agent else [])

    @on(LineList.Moved, "#processes")
    def _explain(self) -> None:
        self.context.look_at(self.queries())
        self._paint_process(self.context.snapshot)
        self.paint_keys()

    @on(LineList.Opened, "#processes")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key)


def _columns(width: int, *, with_host: bool) -> tuple[tuple[str, int], ...]:
    """Return the columns with their widths, if wanted with the host of each worker.

    On a narrow terminal it takes the place of the last column, which the page of the worker shows too.
    """
    if not with_host:
        return _HEAD
    return (*_HEAD[:2], ("HOST", _HOST), *_HEAD[2 : len(_HEAD) - (width < _WITH_ALL)])


def _cell(name: str, text: str, width: int) -> str:
    """Return the cell of a column, with a blank behind it."""
    return pad(text, width - 1, "right" if name in _NUMBERS else "left") + " "


def process_line(agent: AgentView, columns: tuple[tuple[str, int], ...] = _HEAD, *, marked: bool = False) -> Line:
    """Return the row of one worker: its host, pid, run, CPU, memory, children, sandbox, state."""
    look = look_of(agent)
    usage = agent.usage
    cells = {
        "AGENT": clip_middle(agent.name, 14),
        "HOST": clip_middle(agent.host, _HOST - 1),
        "PID": str(agent.pid) if agent.alive and agent.pid else "",
        "RUN": str(agent.run or ""),
        "CPU": f"{usage.cpu_percent:.0f}%" if usage else "",
        "MEM": format_size(usage.memory) if usage else "",
        "CHILDREN": str(usage.children or "") if usage else "",
        "SANDBOX": agent.sandbox if agent.alive and agent.sandbox else "",
    }
    text = "".join(_cell(name, cells[name], width) for name, width in columns if name)
    how = describe_exit(agent.exit) if agent.exit and not agent.alive else agent.state
    shape = (Span(look.glyph, look.tone), Span("✓" if marked else " ", "marked"))
    return (*shape, Span(text, "warning" if agent.unsafe else ""), say(how, look.tone))
