"""The roster: the list of agents on the Board, with its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from textual import events

from crewboard import AgentView, Need, NeedKind, TeamView
from crewboard.readmodel.needs import summarise
from crewboard.records.base import counted
from crewboard_tui.actions.search import ALL, in_group, matches_agent
from crewboard_tui.keymap.bindings import Pressed
from crewboard_tui.queries import Lanes, Snapshot
from crewboard_tui.render import table
from crewboard_tui.render.formats import (
    BARS,
    bar,
    context_share,
    format_age,
    format_lines,
    format_money,
    format_size,
    format_span,
    share_span,
)
from crewboard_tui.render.lines import Line, Span, one_line
from crewboard_tui.render.looks import NEED_LOOKS, URGENT, look_of
from crewboard_tui.render.table import Column, mark_span
from crewboard_tui.views.base import HUGE, MEDIUM, NARROW, SHORT, TALL, WIDE
from crewboard_tui.widgets.line_list import LazyRows, LineList, Row

if TYPE_CHECKING:
    from crewboard.readmodel.activity import Cell, CellKind, Lane

_LONGEST_NAME = 14

_LONGEST_HOST = 12
_SHORT_HOST = 8
"""Cells for the name of a host: on a terminal from the class WIDE on, and below."""

LANE = "LANE"
"""The title of the column with the agents' last minutes, their lanes. The shown head is the number of minutes."""

BESIDE_WIDTH = 110
"""Terminal width from which on the selected agent is shown beside the roster."""

_LANE_CELLS = {NARROW: 8, BESIDE_WIDTH: 12, HUGE: 16}
"""The cells of a lane by the least width of the terminal; two cells are a minute."""

_LANE_LOOKS: dict[CellKind, tuple[str, str, str]] = {
    "works": ("▁", "_", "trace"),
    "stuck": ("◇", "!", "trace"),
    "asks": ("─", "?", "warning"),
    "waits": ("┄", "~", "info"),
    "rests": ("·", " ", "trace"),
    "died": ("✖", "X", "error"),
    "none": (" ", " ", ""),
}
"""The glyph, ASCII glyph and tone of each kind of cell of a lane that is no bar."""

_ASCII_BARS = "_.-:=+*#"

_SOME_ROOM = 16
_ROOM_OF_DOING = 26
"""Cells that are kept for what an agent does before longer names get any."""


class AgentRow(Struct, frozen=True):
    """An agent with the present time and its lane, as a row of the roster shows it."""

    agent: AgentView
    now: float = 0
    lane: Line = ()


def doing(agent: AgentView, now: float) -> str:
    """Return what an agent does, or why it does nothing, on one line. It begins with a pause that is due."""
    return agent.with_pause(_does(agent, now))


def _does(agent: AgentView, now: float) -> str:
    if agent.shown == "ask":
        return one_line(summarise(agent.asks[0]))
    if agent.state == "retrying" and agent.status.retry_at is not None:
        error = f": {agent.status.last_error}" if agent.status.last_error else ""
        return one_line(f"again in {format_span(agent.status.retry_at - now)}{error}")
    if agent.shown == "idle":
        # The STATE column already says that it is idle.
        count = agent.unread_results
        unread = [f"{agent.unread} unread"] if agent.unread else []
        unread += [f"{counted(count, 'result')} to read"] if count else []
        return one_line(agent.status.last_error or agent.left or agent.status.setup_error or " · ".join(unread))
    if agent.shown in ("stuck", "loop", "start", "unknown"):
        return one_line(agent.reason)
    if agent.state == "waiting" and agent.status.waiting_for:
        return one_line(f"waits for {agent.doing or agent.status.waiting_for}")
    not_set_up = "checkout not set up · " if agent.alive and agent.status.setup_error else ""
    return one_line(not_set_up + (agent.doing or agent.reason or agent.state))


_TOLD_BY_ROW: frozenset[NeedKind] = frozenset({"death", "stuck", "looping", "failed_start", "no_host", "failed"})


def is_told_by_row(need: Need, agent: AgentView | None) -> bool:
    """Return True if the row of an agent shows what a need is about."""
    if agent is None:
        return False
    if need.request_id is not None:
        return agent.shown == "ask" and agent.asks[0].id == need.request_id
    # The row of an agent that lost its host says what it does.
    return need.kind in _TOLD_BY_ROW and not (need.kind == "no_host" and need.host is not None)


def _doing(row: AgentRow) -> Span:
    calm = "dim" if row.agent.shown in ("idle", "done", "pause") else ""
    return Span(doing(row.agent, row.now), {"dead": "error", "unknown": "italic"}.get(row.agent.shown, calm))


def _doing_with_word(row: AgentRow) -> Span:
    does, word = _doing(row), look_of(row.agent).word
    text = does.text if does.text.startswith(word) else f"{word}: {does.text}" if does.text else word
    return Span(text, does.tone)


def _why(row: AgentRow) -> Span:
    """Return why an agent is in its state; empty if the row shows that already."""
    reason = one_line(row.agent.reason)
    is_told = row.agent.shown in ("idle", "ask") or reason == _does(row.agent, row.now)
    return Span("" if is_told else reason, "dim")


def _pid(row: AgentRow) -> Span:
    agent = row.agent
    if agent.alive and agent.pid:
        return Span(str(agent.pid))
    if agent.exit and agent.exit.signal and agent.pid:
        return Span(f"{agent.pid}†{agent.exit.signal}", "error")
    return Span("")


def _has_steps(row: AgentRow) -> bool:
    """Return True if an agent has listed steps, and its work is not over."""
    return row.agent.status.todo is not None and row.agent.shown not in ("idle", "done")


def _steps(row: AgentRow) -> Span:
    todo = row.agent.status.todo
    if todo is None or not _has_steps(row):
        return Span("")
    return Span(f"{todo.done}/{todo.total}", "dim" if todo.done == todo.total else "")


def _may_use_web(row: AgentRow) -> bool:
    return row.agent.spec is not None and row.agent.spec.flags.web


COLUMNS: tuple[Column[AgentRow], ...] = (
    Column(
        "AGENT", _LONGEST_NAME, is_name=True,
        label=lambda row: one_line(row.agent.title),
        cell=lambda row: Span(
            one_line(row.agent.name), "bold" if row.agent.unread_results or row.agent.shown in URGENT else ""
        ),
    ),
    Column(
        NEED_LOOKS["collision"].glyph, 1, has=lambda row: bool(row.agent.collides_with),
        cell=lambda row: Span(
            NEED_LOOKS["collision"].glyph if row.agent.collides_with else "", NEED_LOOKS["collision"].tone
        ),
    ),
    Column("STATE", 7, lambda row: Span(look_of(row.agent).word, look_of(row.agent).tone), since=MEDIUM, rank=7),
    Column("TYPE", 8, lambda row: Span(one_line(row.agent.type), "dim"), since=MEDIUM, rank=10),
    Column(
        "HOST", _LONGEST_HOST, since=MEDIUM, rank=1, is_name=True,
        cell=lambda row: Span(
            row.agent.status.host, "error" if row.agent.ended_with_host and not row.agent.acknowledged else "dim"
        ),
    ),
    Column("PID", 7, _pid, since=WIDE, has=lambda row: bool(_pid(row).text)),
    Column(
        "PLAN", 5, align="right", since=MEDIUM,
        has=lambda row: row.agent.status.deviations is not None or row.agent.status.terms is not None,
        # How many calls go beyond the plan, else that terms of its approval hold.
        cell=lambda row: Span(f"+{row.agent.status.deviations.count}", "warning bold")
        if row.agent.status.deviations
        else Span("terms" if row.agent.status.terms else ""),
    ),
    Column("TODO", 5, _steps, "right", since=MEDIUM, has=_has_steps),
    Column(
        "WEB", 3, align="right", since=MEDIUM, has=_may_use_web,
        # How often an agent that may use the web did.
        cell=lambda row: Span(str(row.agent.status.tokens.web_uses or "on") if _may_use_web(row) else ""),
    ),
    Column("DOING", 0, _doing, since=MEDIUM),
    Column(LANE, _LANE_CELLS[NARROW], lambda row: row.lane or Span(""), since=MEDIUM, rank=9),
    Column("WHY", 26, _why, since=HUGE, has=lambda row: bool(_why(row).text)),
    Column(
        "CHANGES", 11, align="right", rank=8, since=WIDE, has=lambda row: row.agent.unmerged is not None,
        cell=lambda row: Span(format_lines(row.agent.unmerged) if row.agent.unmerged is not None else "", "info"),
    ),
    Column(
        "MODEL", 11, since=HUGE, rank=3, has=lambda row: bool(row.agent.shown_model),
        cell=lambda row: Span(one_line(row.agent.shown_model).removeprefix("claude-"), "dim"),
    ),
    Column(
        "AGE", 4, align="right", since=MEDIUM, rank=4,
        cell=lambda row: Span(format_age(row.now - row.agent.since) if row.agent.since else "", "dim"),
    ),
    Column(
        "CPU", 4, align="right", since=WIDE, has=lambda row: row.agent.usage is not None,
        cell=lambda row: Span(f"{row.agent.usage.cpu_percent:.0f}%" if row.agent.usage else ""),
    ),
    Column(
        "MEM", 5, align="right", since=WIDE, rank=2, has=lambda row: row.agent.usage is not None,
        cell=lambda row: Span(format_size(row.agent.usage.memory) if row.agent.usage else ""),
    ),
    Column(
        "CTX", 4, align="right", since=MEDIUM, rank=5, has=lambda row: row.agent.status.context.limit > 0,
        cell=lambda row: share_span(context_share(row.agent.status.context)),
    ),
    Column(
        "COST", 6, align="right", since=MEDIUM, rank=6, has=lambda row: row.agent.status.cost_usd is not None,
        cell=lambda row: Span(format_money(row.agent.status.cost_usd) if row.agent.status.cost_usd is not None else ""),
    ),
    Column(
        "✉", 3, align="right", since=WIDE, has=lambda row: row.agent.unread > 0,
        cell=lambda row: Span(str(row.agent.unread or ""), "" if row.agent.alive else "warning"),
    ),
    Column(
        "TASK", 5, align="right", since=WIDE, has=lambda row: row.agent.task is not None,
        cell=lambda row: Span(f"#{row.agent.task}" if row.agent.task else ""),
    ),
)  # fmt: skip
"""The roster's columns from left to right. The preview and the page of an agent show those without room, too."""

_KEPT = {"STATE": 0, LANE: 3}
"""The ranks of columns that are kept longer, unless the user asked for more columns."""

_DOING_ALONE = Column("DOING", 0, _doing_with_word)
"""The column for what an agent does where the state has no column: it begins with the word of the state."""


def lay_out(
    agents: list[AgentView], across: int, width: int, *, lane: int = 0, wide: bool = False, hosts: Sequence[str] = ()
) -> list[Column[AgentRow]]:
    """Return the columns of a list that is `across` cells wide, and whose rows have `width` cells.

    Lanes are as long as on a terminal of `lane` columns, if it is wider than the list. `wide` adds the columns of the
    next size class and leaves others out for them. With `hosts`, the host of each agent is shown.
    """
    kind = max(start for start in (NARROW, MEDIUM, WIDE, HUGE) if across >= start)
    shown = min((start for start in (MEDIUM, WIDE, HUGE) if start > kind), default=HUGE) if wide else kind
    longest = max((len(agent.name) for agent in agents), default=0)
    labelled = max((cell_len(f"{agent.name} {one_line(agent.title)}") for agent in agents if agent.title), default=0)
    names = max(8, min(max(longest, labelled), _LONGEST_NAME if kind < HUGE else 2 * _LONGEST_NAME))
    widths = {
        "AGENT": names,
        "HOST": max(4, min(_SHORT_HOST if kind < WIDE else _LONGEST_HOST, max(map(len, hosts), default=0))),
        LANE: _LANE_CELLS[max(start for start in _LANE_CELLS if max(across, lane) >= start)],
    }
    wanted = [column for column in COLUMNS if column.since <= shown and (hosts or column.title != "HOST")]
    chosen = [
        # Only where the user asked for other columns, one may take the place of the state or of the lane.
        replace(
            column,
            width=widths.get(column.title, column.width),
            rank=column.rank if wide else _KEPT.get(column.title, column.rank),
        )
        for column in table.with_data(wanted, [AgentRow(agent) for agent in agents])
    ]
    if shown == NARROW:
        chosen.append(_DOING_ALONE)
    room = width - 2
    if table.fit(chosen, room - _ROOM_OF_DOING) != chosen:
        # What an agent does says more than its type.
        chosen = table.fit([column for column in chosen if column.title != "TYPE"], room - _SOME_ROOM)
    if all(column.title != "STATE" for column in chosen):
        chosen = [replace(each, cell=_doing_with_word) if each.title == "DOING" else each for each in chosen]
    widths = {column.title: column.width for column in chosen}
    left = max(0, room - sum(widths.values()) - len(chosen))
    spare = left - (_ROOM_OF_DOING if "DOING" in widths else 0)
    if 0 < longest - names > spare and LANE in widths:
        # A name tells agents apart, and comes before older minutes.
        narrower = widths[LANE] - _LANE_CELLS[NARROW]
        widths[LANE], left, spare = _LANE_CELLS[NARROW], left + narrower, spare + narrower
    more = max(0, min(max(longest, min(labelled, 2 * _LONGEST_NAME)) - names, spare))
    widths |= {"AGENT": names + more, "DOING": left - more}
    return [replace(column, width=widths[column.title]) for column in chosen]


def lane_line(cells: Sequence[Cell], tone: str, *, ascii_only: bool = False) -> Line:
    """Return the cells of a lane as a line, oldest first.

    If the newest shows that the agent is at work or stuck, it has `tone`, that of the agent's state.
    """
    spans: list[Span] = []
    for at, cell in enumerate(cells):
        if cell.kind == "work":
            glyph, look = bar(cell.level, _ASCII_BARS if ascii_only else BARS), "trace"
        else:
            shown, in_ascii, look = _LANE_LOOKS[cell.kind]
            glyph = in_ascii if ascii_only else shown
        if at == len(cells) - 1 and cell.kind in ("work", "works", "stuck"):
            look = tone
        if spans and spans[-1].tone == look:
            glyph = spans.pop().text + glyph
        spans.append(Span(glyph, look))
    return tuple(spans)


SORTS: dict[str, tuple[str, Callable[[AgentView], Any]]] = {
    "urgency": ("STATE", lambda _: 0),
    "name": ("AGENT", lambda agent: agent.name),
    "age": ("AGE", lambda agent: (agent.since, agent.name)),
    "cpu": ("CPU", lambda agent: (-agent.usage.cpu_percent if agent.usage else 0, agent.name)),
    "memory": ("MEM", lambda agent: (-agent.usage.memory if agent.usage else 0, agent.name)),
    "mail": ("✉", lambda agent: (-agent.unread, agent.name)),
}
"""The orders of agents by sort key: the title of the column, and the rank. Equal agents are ordered by urgency."""


class Roster(LineList):
    """The list of agents. It is reordered only while the user does not move in it."""

    def __init__(self, pressed: Pressed, *, ascii_only: bool = False, **kwargs: Any) -> None:
        super().__init__(marks=True, sorts=tuple(SORTS), **kwargs)
        self._ascii_only = ascii_only
        self._no_match = (Span(f" No matches · {pressed('view.back')} clears the filter", "dim"),)
        self._view: TeamView | None = None
        self._now = 0.0
        self._words, self._group = "", ALL
        self._agents: list[AgentView] = []
        """The agents that the list shows, in its order."""
        self._arranged_for: tuple[object, ...] = ()
        self._columns: list[Column[AgentRow]] = []
        self._laid_out_for: tuple[object, ...] = ()
        self._drawn: dict[str, tuple[tuple[object, ...], Line]] = {}
        self._lanes: dict[str, Lane] = {}
        """The lanes of the agents whose rows were seen, by name."""
        self._shown_cells: dict[str, tuple[tuple[object, ...], tuple[Cell, ...]]] = {}

    @property
    def has_lanes(self) -> bool:
        """Return True if the rows show lanes."""
        return self._lane_width > 0

    @property
    def _lane_width(self) -> int:
        return next((column.width for column in self._columns if column.title == LANE), 0)

    def note_lanes(self, snapshot: Snapshot) -> bool:
        """Take the lanes from a snapshot; return True if one of them is new."""
        answers = snapshot.answers.items()
        found: dict[str, Lane] = next((answer for query, answer in answers if isinstance(query, Lanes)), {})
        new = {name: lane for name, lane in found.items() if self._lanes.get(name) is not lane}
        if new:
            self._lanes = {name: lane for name, lane in (self._lanes | new).items() if snapshot.view.agent(name)}
        return bool(new)

    def read(self, view: TeamView, now: float) -> None:
        """Show the team as it was read now."""
        before, self._view = self._view, view
        self.tick(now)
        if before is None or view.agents != before.agents:
            self.note_glyphs({agent.name: look_of(agent).glyph for agent in view.agents})

    def tick(self, now: float) -> None:
        """Show the same team at a later time."""
        self._now, view = now, self._view
        if view is None:
            return
        # The work that grows with the team is only done when the team, the filter or the order changed.
        arranged_for = (view.agents, view.needs, self._words, self._group, self.order)
        if arranged_for != self._arranged_for or self._is_held:
            self._arranged_for = arranged_for
            self.marked &= {agent.name for agent in view.agents}
            shown = [
                agent
                for agent in view.urgent_first
                if matches_agent(agent, self._words) and in_group(agent, view, self._group)
            ]
            self._agents = self.in_order(shown, lambda agent: agent.name, SORTS[self.order.by][1])
        agents, terminal, hosts = self._agents, self.app.size, view.told_apart
        laid_out_for = (self._arranged_for, terminal.width, self.size.width, self.row_width, self.wide, hosts)
        if laid_out_for != self._laid_out_for:
            self._laid_out_for = laid_out_for
            columns = lay_out(agents, self.size.width, self.row_width, lane=terminal.width, wide=self.wide, hosts=hosts)
            # Rows that were drawn for equal columns are right for them.
            self._columns = self._columns if columns == self._columns else columns
        if agents or not view.agents:
            rows: Sequence[Row] = LazyRows([agent.name for agent in agents], lambda at: self._draw(agents[at]))
        else:
            rows = [Row("", self._no_match)]
        head = None
        if agents and self.size.width >= MEDIUM and terminal.height >= SHORT:
            minutes = f"{self._lane_width // 2} min"
            titled = [replace(each, title=minutes) if each.title == LANE else each for each in self._columns]
            head = table.head(titled, SORTS[self.order.by][0])
        self.show(rows, head)

    def _draw(self, agent: AgentView) -> Line:
        """Return the row of an agent; the same object while it looks the same."""
        now, marked, look = self._now, agent.name in self.marked, look_of(agent)
        minutes: tuple[Cell, ...] = ()
        lane, count = self._lanes.get(agent.name), self._lane_width
        if lane is not None and count:
            # Imported here because the first picture has no lanes yet.
            from crewboard.readmodel.activity import SLOT

            # Its last minutes are computed only if something happened or a slot has passed.
            slot = int(now // SLOT)
            made_of = (lane, count, slot, agent.state, agent.is_held, agent.since, agent.alive, agent.is_dead)
            cells = self._shown_cells.get(agent.name)
            if cells is None or cells[0] != made_of:
                cells = self._shown_cells[agent.name] = (made_of, lane.cells(agent, slot, count))
            minutes = cells[1]
        again = (
            format_span(agent.status.retry_at - now)
            if agent.state == "retrying" and agent.status.retry_at is not None
            else ""
        )
        decides = (agent, self._columns, marked, format_age(now - agent.since), again, minutes)
        known = self._drawn.get(agent.name)
        if known is None or known[0] != decides:
            row = AgentRow(agent, now, lane_line(minutes, look.tone, ascii_only=self._ascii_only))
            line = (Span(look.glyph, look.tone), mark_span(marked=marked), *table.cells(self._columns, row))
            known = self._drawn[agent.name] = (decides, line)
        return known[1]

    def narrow(self, words: str, group: str) -> None:
        """Show at once only the agents that pass the filter."""
        self._words, self._group = words, group
        self.reorder_now()
        self.tick(self._now)

    def marks_changed(self) -> None:
        self.tick(self._now)
        super().marks_changed()

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        self.tick(self._now)

    @property
    def has_more_columns(self) -> bool | None:
        width, height = self.app.size
        return width < HUGE or (width >= BESIDE_WIDTH and height >= TALL) or None
