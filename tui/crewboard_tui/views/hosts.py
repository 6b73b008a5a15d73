"""`H` Hosts: the machines that run the agents of a team in PostgreSQL."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from textual import on

from crewboard import StorageError, TeamView
from crewboard.readmodel.hosts import no_hosts
from crewboard.readmodel.team import HostView, describe_hosts
from crewboard.records.base import counted
from crewboard_tui.actions.agents import AgentActions
from crewboard_tui.actions.registry import Action, Selection
from crewboard_tui.actions.search import Search
from crewboard_tui.render import table
from crewboard_tui.render.formats import format_age, format_clock, format_load, format_size
from crewboard_tui.render.lines import Line, Span, crop, matches, pad_name, say
from crewboard_tui.render.looks import LOOKS, Look, look_of
from crewboard_tui.render.table import Column
from crewboard_tui.views.base import AppContext, BaseScreen, Snapshot
from crewboard_tui.views.roster import doing
from crewboard_tui.views.rows import fact_lines, would_wait
from crewboard_tui.widgets.bars import away_for
from crewboard_tui.widgets.line_list import LineList, Row

_LOOKS: dict[str, Look] = {"up": LOOKS["run"], "draining": LOOKS["wait"], "lost": LOOKS["dead"], "ended": LOOKS["done"]}
"""The glyph and the tone of each state of a host."""

_LOST_KEYS = ("agent.resume", "agent.acknowledge")

_NAME = 14

_SILENT = 7.0
"""Seconds after which the silence of a host that is up is shown: it writes every other second."""


class HostRow(Struct, frozen=True):
    """A host, with the team that knows what the host's agents use."""

    host: HostView
    view: TeamView


def _load(row: HostRow) -> Span:
    load, cores = row.host.record.load, row.host.record.cores
    if not row.host.is_up or not cores:
        return Span("")
    return Span(format_load(load, cores), "warning" if load > cores else "")


def _memory(row: HostRow) -> Span:
    """Return the memory that the agents of a host use, and that of the machine: `1.2G/16G`; empty if unknown."""
    host = row.host
    if not host.is_up or not host.record.memory:
        return Span("")
    agents = (row.view.agent(name) for name in host.agents)
    used = sum(agent.usage.memory for agent in agents if agent is not None and agent.usage is not None)
    return Span(f"{format_size(used)}/{format_size(host.record.memory)}")


def _seen(row: HostRow) -> Span:
    ago = max(0, row.view.now - row.host.seen)
    calm = "warning" if ago > _SILENT else "dim"
    return Span(format_age(ago), calm if row.host.is_up else _LOOKS[row.host.state].tone)


COLUMNS: tuple[Column[HostRow], ...] = (
    Column("HOST", _NAME, lambda row: Span(row.host.name, "bold" if row.host.lost else ""), is_name=True),
    Column("STATE", 8, lambda row: Span(row.host.state, _LOOKS[row.host.state].tone)),
    Column(
        "SLOTS", 7, align="right",
        cell=lambda row: Span(
            f"{row.host.used}/{row.host.record.slots}",
            "warning" if row.host.is_up and row.host.used >= row.host.record.slots else "",
        ),
    ),
    Column("LOAD", 4, _load, "right", rank=2),
    Column("MEMORY", 9, _memory, "right", rank=3),
    Column("SEEN", 4, _seen, "right", rank=1),
    Column("LABELS", 12, lambda row: Span(" ".join(row.host.record.offers)), rank=4),
)  # fmt: skip
"""The columns from left to right; LOAD is per core. The agents of the host take the rest of the line."""

_ROOM_OF_AGENTS = 16


def host_line(host: HostView, view: TeamView, columns: Sequence[Column[HostRow]]) -> Line:
    """Return the row of one host."""
    look = _LOOKS[host.state]
    return (
        Span(f"{look.glyph} ", look.tone),
        *table.cells(columns, HostRow(host, view)),
        *([Span(f"clock {host.clock} · ", "warning")] if host.clock else []),
        *([Span(f"{len(host.lost)} lost · ", "error")] if host.lost else []),
        say(", ".join(host.agents or host.lost), "" if host.agents else "dim"),
    )


class HostsPage(BaseScreen):
    """The hosts of the team, and facts about the selected one and its agents. Enter shows its agents on the Board."""

    CSS_PATH = "hosts.tcss"
    TAB = "hosts"
    AUTO_FOCUS = "#hosts"
    DETAIL = "host"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.rows = LineList(id="hosts", classes="pane")
        self.search = Search(context, self.narrow, "words of a host: its name, state, label, machine or agents")
        self.back_layers = (self.search.layer,)
        lost = [action for action in AgentActions(context).actions if action.id in _LOST_KEYS]
        self.offer((Action("agent.hire", self._hire),), lost, self.search.actions)

    @property
    def _selected(self) -> HostView | None:
        """Return the host under the cursor; None if there is none."""
        return self.context.view.host(self.selected)

    def selection(self) -> Selection:
        """Return the agents that were lost with the selected host."""
        host, view = self._selected, self.context.view
        names = host.lost if host is not None else ()
        agents = tuple(agent for name in names if (agent := view.agent(name)) is not None)
        return Selection(targets=names, agents=agents)

    def paint(self, snapshot: Snapshot) -> None:
        # Also while the database is away, when a host wrote last is longer and longer ago.
        rows, view = self.rows, replace(snapshot.view, now=self.context.now)
        if not rows.row_width:
            # Before the first layout there is no width; the page is shown again after it.
            return
        columns = table.fit(COLUMNS, rows.row_width - _ROOM_OF_AGENTS)
        found = []
        for host in view.hosts:
            parts = (host.name, host.state, host.record.machine, *host.record.offers, *host.agents, *host.lost)
            if matches(" ".join(parts), self.search.words):
                found.append(Row(host.name, host_line(host, view, columns)))
        try:
            nothing = no_hosts(self.context.team.directory)
        except StorageError as error:
            nothing = str(error)
        rows.show(
            found or rows.empty_rows(self.search.nothing(nothing)),
            table.head(columns, rest="AGENTS") if found else None,
        )
        rows.rule.entitle(
            f"Hosts{f' · {len(found)}' if found else ''}{self.search.narrowed_to}",
            describe_hosts(view.hosts, away_for(snapshot)) if view.hosts else "",
        )
        self.paint_detail(snapshot)

    def paint_detail(self, snapshot: Snapshot) -> None:
        pane, host = self.detail, self._selected
        shows = f"{self.context.key('list.open')} its agents on the Board" if host is not None and host.agents else ""
        pane.rule.entitle(host.name if host is not None else "Host", shows)
        self.panes.show_below(pane, shown=host is not None)
        if host is None:
            pane.show([])
            return
        now, record, view, width = self.context.now, host.record, snapshot.view, pane.line_width
        if not host.is_up:
            ago = format_age(max(0, now - host.seen))
            state = f"{host.state}, last seen at {format_clock(host.seen)}, {ago} ago"
        else:
            # While the database is away, only how it was is known.
            away = away_for(snapshot)
            is_so = f"was {host.state} {away} ago" if away else f"{host.state} since {format_clock(host.since)}"
            state = f"{is_so}, {host.used} of {host.record.slots} slots in use"
        resume = self.context.key("agent.resume")
        machine = (
            record.machine,
            counted(record.cores, "core") if record.cores else "",
            format_size(record.memory) if record.memory else "",
            f"crewboard {record.version}" if record.version else "",
            f"pid {record.pid}" if record.pid else "",
        )
        facts = [
            ("state", state),
            ("what helps", f"{resume} resumes {', '.join(host.lost)} where a host has room" if host.lost else ""),
            ("would wait", would_wait(host.lost, view)),
            ("machine", ", ".join(filter(None, machine))),
            ("labels", " ".join(record.offers)),
            ("clock", f"{host.clock}; its agents take the time of the database" if host.clock else ""),
        ]
        agents = [agent for name in (*host.agents, *host.lost) if (agent := view.agent(name)) is not None]
        lines = [*fact_lines(facts, width), *([()] if agents else [])]
        for agent in agents:
            look, usage = look_of(agent), agent.usage
            used = f"{usage.cpu_percent:>4.0f}% {format_size(usage.memory):>5}" if usage is not None else " " * 11
            about: Line = (
                Span(f"{look.glyph} ", look.tone),
                Span(pad_name(agent.name, _NAME) + " ", "bold" if agent.ended_with_host else ""),
                Span(f"{look.word:<8}", look.tone),
                Span(f"{used}  ", "" if usage is not None else "dim"),
                say(doing(agent, now)),
            )
            lines.append(crop(about, width))
        pane.show(lines)

    async def _hire(self, _: Selection) -> None:
        """Open the hire form, with the selected host if it takes agents."""
        host = self._selected
        name = host.name if host is not None and host.state == "up" else ""
        await self.context.navigator.open_hire_form(lambda _: None, host=name)

    @on(LineList.Opened, "#hosts")
    def _open(self, event: LineList.Opened) -> None:
        # Later, because the Board may be below this page, which ends only after this message.
        navigator = self.context.navigator
        navigator.call_later(navigator.open_view, "board", find=f"h:{event.key}")
