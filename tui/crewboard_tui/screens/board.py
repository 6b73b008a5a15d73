"""`1` Board: who needs me, who does what, and what the selected agent says, was told and works on."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from crewboard.view.fold import AgentView
from crewboard_tui import fmt
from crewboard_tui.filters import AGENT_GROUPS
from crewboard_tui.keys import Pressed
from crewboard_tui.lines import Line, Span, clip, one_line, spread
from crewboard_tui.reading import Interest, Snapshot
from crewboard_tui.screens.agent_page import AgentPage
from crewboard_tui.screens.numbered import Numbered
from crewboard_tui.widgets.columns import WIDE
from crewboard_tui.widgets.composer import Composer
from crewboard_tui.widgets.heading import tabs_line
from crewboard_tui.widgets.letters import Box, Letters
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.need_rows import need_rows
from crewboard_tui.widgets.peek import activity_lines
from crewboard_tui.widgets.roster import Roster
from crewboard_tui.widgets.rows import Rows, keep_order
from crewboard_tui.widgets.task_rows import task_rows
from crewboard_tui.widgets.titles import title

_WELCOME = (
    "Nobody is hired yet.",
    "",
    "{hire}  hires an agent: a name, a type, a prompt. It becomes a process of",
    "   its own and goes to work in {root}",
    "{help}  says what every key does · {palette} finds commands by name · {leave} leaves",
    "",
    "From a shell the same is",
    "   crewboard spawn scout --type explore --prompt 'Look round' --background",
)

_NAMED = (("agent", "hire"), ("app", "help"), ("app", "palette"), ("app", "leave"))


class BoardScreen(Numbered):
    """The view that one keeps open."""

    MODE = "board"
    STATES = AGENT_GROUPS
    BINDINGS: ClassVar[list[BindingType]] = []
    AUTO_FOCUS = "#roster"

    def body(self) -> Iterable[Widget]:
        yield Roster(id="roster", classes="pane")
        with Horizontal(id="below"):
            yield Log(id="peek", classes="pane")
            with Vertical(id="beside"):
                yield Rows(id="board-tasks", classes="pane")
                yield Letters(id="board-inbox", classes="pane")
            yield Rows(id="board-needs", classes="pane")
        yield Composer(self.desk)

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        tabs = tabs_line(snapshot.view, self.MODE, width, self.desk.key)
        return spread(tabs, (Span(f"{self._sorted()} ", "dim"),), width) if self.size.width >= WIDE else tabs

    def _sorted(self) -> str:
        """How the roster is sorted: beside the views where there is room, else in the roster's title."""
        order = self.query_one(Roster).order
        return f"sort:{order.by}{' reversed' if order.reverse else ''}"

    def interest(self) -> Interest:
        name = self.selected_agent()
        return Interest(agent=name, mailbox=name)

    def selected_agent(self) -> str | None:
        return self.query_one(Roster).selected if self.is_mounted else None

    def select_agent(self, name: str) -> None:
        self.query_one(Roster).want(name)

    def targets(self) -> list[str]:
        return self.query_one(Roster).targets if self.is_mounted else []

    # ----------------------------------------------------------------------------------------------- painting

    def paint(self, snapshot: Snapshot) -> None:
        self._paint_roster(snapshot)
        self._paint_peek(snapshot)
        self._paint_tasks(snapshot)
        self._paint_inbox(snapshot)
        self._paint_needs(snapshot)
        self.paint_composer()

    def tick(self) -> None:
        self.query_one(Roster).tick(self.desk.now)
        self._paint_tasks(self.desk.snapshot)
        self._paint_needs(self.desk.snapshot)

    def _paint_roster(self, snapshot: Snapshot) -> None:
        roster = self.query_one(Roster)
        roster.read(snapshot.view, self.desk.now)
        count = len(snapshot.view.agents)
        shown = f"{sum(bool(row.key) for row in roster.rows)} of " if self.is_narrowed else ""
        parts = [f"{shown}{count} agent{'' if count == 1 else 's'}"]
        parts += [f"{len(roster.marked)} marked"] if roster.marked else []
        parts += [f"filter {one_line(roster.order.filter)}"] if roster.order.filter else []
        order = "" if self.size.width >= WIDE else f" · {self._sorted()}"
        title(roster, f"Team{order}{self.narrowed_to}", " · ".join(parts))

    def _paint_peek(self, snapshot: Snapshot) -> None:
        peek = self.query_one("#peek", Log)
        name = self.selected_agent()
        agent = snapshot.view.agent(name) if name else None
        if agent is None:
            title(peek, "Welcome" if not snapshot.view.agents else "Peek", "")
            peek.show(_welcome(snapshot, peek.line_width, self.desk.key) if not snapshot.view.agents else [])
            return
        title(peek, f"Peek · {agent.name}", f"f follow:{'on' if peek.follow else 'off'}")
        if snapshot.interest.agent == agent.name:
            live = snapshot.live if agent.alive else ""
            recent = snapshot.activity[-120:]
            lines = activity_lines(recent, live, peek.line_width, caret=not self.desk.reduced_motion)
            peek.show(lines or [_nothing_yet(agent)])

    def _paint_tasks(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#board-tasks", Rows)
        if not rows.display or not rows.size.width:
            return
        done = sum(task.status == "completed" for task in snapshot.view.tasks)
        title(rows, f"Tasks · {done}/{len(snapshot.view.tasks)}", "⏎ open")
        rows.show(task_rows(snapshot.view, self.desk.now, rows.row_width))

    def _paint_inbox(self, snapshot: Snapshot) -> None:
        inbox = self.query_one("#board-inbox", Letters)
        name = self.selected_agent()
        agent = snapshot.view.agent(name) if name else None
        if not inbox.size.width:
            return
        if agent is None:
            title(inbox, "Inbox", "")
            inbox.show([])
            return
        title(inbox, f"Inbox · {agent.name}", "never drained from here")
        if snapshot.interest.mailbox == agent.name:
            inbox.read(snapshot.letters, Box(agent.name, unread=agent.unread))

    def _paint_needs(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#board-needs", Rows)
        if rows.size.width:
            title(rows, f"Needs you · {len(snapshot.view.needs)}", "! next")
            found = {row.key: row for row in need_rows(snapshot.view, self.desk.now, rows.row_width)}
            shown = [row.key for row in rows.rows] if rows.has_focus else []
            rows.show([found[key] for key in keep_order(shown, list(found))])

    # ------------------------------------------------------------------------------------------------- events

    @on(Rows.Moved, "#roster")
    def _look_at_selected(self) -> None:
        self.desk.look_at(self.interest())
        self.query_one("#peek", Log).restart()
        self.query_one("#board-inbox", Letters).restart()
        self._paint_peek(self.desk.snapshot)
        self._paint_inbox(self.desk.snapshot)
        self.paint_composer()
        self.paint_keys()

    @on(Rows.Opened, "#roster")
    def _open_agent(self, event: Rows.Opened) -> None:
        self.app.push_screen(AgentPage(self.desk, event.key))

    @on(Rows.Opened, "#board-tasks")
    def _open_tasks(self) -> None:
        self.app.switch_mode("tasks")

    @on(Rows.Opened, "#board-inbox")
    def _open_inbox(self) -> None:
        self.app.switch_mode("inbox")

    @on(Rows.Opened, "#board-needs")
    async def _open_need(self, event: Rows.Opened) -> None:
        await self.run_action(f"app.open_need({event.key!r})")

    @on(Log.Scrolled)
    def _followed(self) -> None:
        self._paint_peek(self.desk.snapshot)

    def apply_filter(self) -> None:
        roster = self.query_one(Roster)
        roster.reorder(replace(roster.order, filter=self.filter, group=self.group))
        self._paint_roster(self.desk.snapshot)

    def refresh_bindings(self) -> None:
        super().refresh_bindings()
        if self.is_ready:
            self._paint_roster(self.desk.snapshot)
            self._still("heading").show([self.heading(self.desk.snapshot, self.size.width)])


def _nothing_yet(agent: AgentView) -> Line:
    when = f" since {fmt.clock(agent.since)}" if agent.since else ""
    return (Span(f"nothing in its journal yet; {one_line(agent.reason or agent.state)}{when}", "dim"),)


def _welcome(snapshot: Snapshot, width: int, pressed: Pressed) -> list[Line]:
    root = clip(one_line(fmt.homely(snapshot.view.root)), max(10, width - 29))
    named = {name: pressed(f"{scope}.{name}") for scope, name in _NAMED}
    return [(Span(clip(text.format(root=root, **named), width)),) for text in _WELCOME]
