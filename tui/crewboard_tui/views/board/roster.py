"""The roster: all agents of the team, the most urgent first."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, ClassVar

from textual import events
from textual.binding import BindingType

from crewboard.readmodel.team import AgentView, TeamView
from crewboard_tui.actions.filters import ALL, in_group, matches_agent
from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import Line, Span
from crewboard_tui.views.board.columns import HUGE, MEDIUM, SHORT, lay_out
from crewboard_tui.widgets.line_list import SETTLE, LineList, Row, keep_order

SORTS: dict[str, tuple[str, Callable[[AgentView], Any]]] = {
    "urgency": ("STATE", lambda _: 0),
    "name": ("AGENT", lambda agent: agent.name),
    "age": ("AGE", lambda agent: (agent.since, agent.name)),
    "cpu": ("CPU", lambda agent: (-agent.usage.cpu_percent if agent.usage else 0, agent.name)),
    "memory": ("RSS", lambda agent: (-agent.usage.rss_bytes if agent.usage else 0, agent.name)),
    "mail": ("✉", lambda agent: (-agent.unread, agent.name)),
}
"""Sort orders: the column that shows each, and its key; equal agents are ordered by urgency."""


@dataclass(frozen=True)
class Order:
    """The sort order and the filter."""

    by: str = "urgency"
    reverse: bool = False
    filter: str = ""
    group: str = ALL

    def next(self) -> "Order":
        """Return the order by the next column."""
        names = list(SORTS)
        return replace(self, by=names[(names.index(self.by) + 1) % len(names)], reverse=False)


def sort_agents(view: TeamView, order: Order) -> list[AgentView]:
    """Return the agents to show, in order."""
    shown = [each for each in view.urgent_first if matches_agent(each, order.filter) and in_group(each, order.group)]
    shown.sort(key=SORTS[order.by][1])
    return shown[::-1] if order.reverse else shown


@dataclass
class _Seen:
    view: TeamView | None = None
    now: float = 0
    names: list[str] = field(default_factory=list)


class Roster(LineList):
    """The list of agents. It is reordered only while no cursor key is pressed."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("sort")]

    def __init__(self, pressed: bindings.Pressed, **kwargs: Any) -> None:
        super().__init__(marks=True, **kwargs)
        self._no_match = (Span(f" No matches · {pressed('view.back')} clears the filter", "dim"),)
        self.order = Order()
        self.wide = False
        self._seen = _Seen()
        self._touched_at = float("-inf")

    def read(self, view: TeamView, now: float) -> None:
        """Show a new state of the team."""
        self._seen.view = view
        self.tick(now)

    def tick(self, now: float) -> None:
        """Update times without new data."""
        self._seen.now = now
        view = self._seen.view
        if view is None:
            return
        agents = sort_agents(view, self.order)
        wanted = [agent.name for agent in agents]
        settled = monotonic() - self._touched_at > SETTLE
        self._seen.names = wanted if settled else keep_order(self._seen.names, wanted)
        self.marked &= {agent.name for agent in view.agents}
        by_name = {agent.name: agent for agent in agents}
        self._paint([by_name[name] for name in self._seen.names])

    def _paint(self, agents: list[AgentView]) -> None:
        terminal = self.app.size.width
        layout = lay_out(agents, terminal, self.row_width, wide=self.wide)
        rows = [Row(a.name, layout.row(a, self._seen.now, marked=a.name in self.marked)) for a in agents]
        nothing = [Row("", self._no_match)] if not rows and self._seen.view and self._seen.view.agents else []
        self.show(rows or nothing, self._head(layout.head(SORTS[self.order.by][0]), rows))

    def _head(self, head: Line, rows: list[Row]) -> Line | None:
        return head if rows and self.app.size.width >= MEDIUM and self.app.size.height >= SHORT else None

    def reorder(self, order: Order) -> None:
        """Apply another order or filter at once."""
        self.order = order
        self._touched_at = float("-inf")
        self.tick(self._seen.now)

    def marks_changed(self) -> None:
        self.tick(self._seen.now)
        super().marks_changed()

    def on_key(self) -> None:
        self._touched_at = monotonic()

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002
        self.tick(self._seen.now)

    def action_sort(self) -> None:
        self.reorder(self.order.next())
        self.screen.refresh_bindings()

    def action_reverse(self) -> None:
        self.reorder(replace(self.order, reverse=not self.order.reverse))
        self.screen.refresh_bindings()

    def action_wide(self) -> None:
        self.wide = not self.wide
        self.tick(self._seen.now)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "wide":
            return self.app.size.width < HUGE or None
        return super().check_action(action, parameters)
