"""`5` Processes: the workers as the operating system knows them."""

from collections.abc import Iterable

from textual import on
from textual.widget import Widget

from crewboard.readmodel.team import AgentView
from crewboard.records import describe_exit
from crewboard_tui.actions.filters import AGENT_GROUPS, FINDS_AGENTS, in_group, matches_agent
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, pad, say
from crewboard_tui.render.looks import look_of
from crewboard_tui.views.agent.process import process_lines
from crewboard_tui.views.numbered import Numbered
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.pane_title import title

_HEAD = (("", 2), ("AGENT", 15), ("PID", 8), ("RUN", 4), ("CPU", 6), ("RSS", 6), ("CHILDREN", 9), ("SANDBOX", 11))


class ProcessesScreen(Numbered):
    """One process per worker, with what it started."""

    MODE = "processes"
    STATES = AGENT_GROUPS
    FINDS = FINDS_AGENTS
    AUTO_FOCUS = "#processes"

    def body(self) -> Iterable[Widget]:
        yield LineList(id="processes", classes="pane")
        yield LineView(id="process", classes="pane", follow=False, follows=False)

    def interest(self) -> Interest:
        name = self.selected_agent()
        return Interest(crash_report=name, process=name)

    def selected_agent(self) -> str | None:
        return self.query_one("#processes", LineList).selected if self.is_mounted else None

    def paint(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#processes", LineList)
        everybody = snapshot.view.agents
        shown = [agent for agent in everybody if matches_agent(agent, self.filter) and in_group(agent, self.group)]
        head = "".join(pad(name, width) for name, width in _HEAD) + "HOW"
        found = [Row(agent.name, process_line(agent)) for agent in shown]
        rows.show(found or [self.nothing(self.hires)], (Span(head, "dim"),) if shown else None)
        living = sum(agent.alive for agent in snapshot.view.agents)
        supervisor = snapshot.view.supervisor
        title(
            rows,
            f"Processes · {living} worker{'' if living == 1 else 's'}{self.narrowed_to}",
            f"supervisor {supervisor.pid if supervisor.alive else 'none'}",
        )
        self._paint_process(snapshot)

    def _paint_process(self, snapshot: Snapshot) -> None:
        pane = self.query_one("#process", LineView)
        name = self.selected_agent()
        agent = snapshot.view.agent(name) if name else None
        title(pane, agent.name if agent else "Process")
        pane.show(process_lines(agent, snapshot, self.context.now, pane.line_width) if agent else [])

    @on(LineList.Moved, "#processes")
    def _explain(self) -> None:
        self.context.look_at(self.interest())
        self._paint_process(self.context.snapshot)
        self.paint_keys()

    @on(LineList.Opened, "#processes")
    def _open(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key)


def process_line(agent: AgentView) -> Line:
    """One worker."""
    look = look_of(agent)
    usage = agent.usage
    cells = [
        agent.name,
        str(agent.pid) if agent.alive and agent.pid else "—",
        str(agent.run or "—"),
        f"{usage.cpu_percent:.0f}%" if usage else "—",
        formats.size(usage.rss_bytes) if usage else "—",
        str(usage.children) if usage else "—",
        agent.sandbox if agent.alive and agent.sandbox else "—",
    ]
    widths = [width for _, width in _HEAD[1:]]
    text = "".join(pad(cell, width - 1) + " " for cell, width in zip(cells, widths, strict=True))
    how = describe_exit(agent.exit) if agent.exit and not agent.alive else agent.state
    return (Span(f"{look.glyph} ", look.tone), Span(text, "warning" if agent.unsafe else ""), say(how, look.tone))
