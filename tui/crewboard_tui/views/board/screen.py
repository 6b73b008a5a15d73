"""`1` Board: who needs me, who does what, and what the selected agent says, was told and works on."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from crewboard.commands.cli_hint import command_for
from crewboard.readmodel.team import AgentView
from crewboard_tui.actions.filters import AGENT_GROUPS, ALL, FINDS_AGENTS
from crewboard_tui.compose.composer import Composer
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render import formats
from crewboard_tui.render.lines import Line, Span, hang, one_line, say, spread
from crewboard_tui.render.money import spent
from crewboard_tui.views.board.activity import activity_lines
from crewboard_tui.views.board.columns import HIGH, HUGE, WIDE
from crewboard_tui.views.board.roster import Roster
from crewboard_tui.views.cost.rows import CostRows
from crewboard_tui.views.inbox.message_list import MailboxInfo, MessageList
from crewboard_tui.views.needs.rows import find_need, need_rows
from crewboard_tui.views.numbered import Numbered
from crewboard_tui.views.tasks.rows import tally, task_rows
from crewboard_tui.widgets.line_list import LineList, Row, keep_order
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.pane_title import follow_words, title
from crewboard_tui.widgets.view_tabs import tabs_line

_WELCOME = (
    "Nobody is hired yet.",
    "",
    "{hire}  hires an agent: a name, a type, a prompt. It becomes a process of its own and goes to work in {root}",
    "{help}  says what every key does · {palette} finds commands by name · {leave} leaves",
    "",
    "From a shell the same is",
)

_SPAWN = "spawn scout --type explore --prompt 'Look round'"
_INDENT = 3
_MOST_OF_ONE = 4
"""Lines that one thing may take which a newcomer reads."""

_LISTS_BESIDE = frozenset({"board-needs", "board-cost"})

_NAMED = (("agent", "hire"), ("app", "help"), ("app", "palette"), ("app", "leave"))


class BoardScreen(Numbered):
    """The view that one keeps open."""

    MODE = "board"
    STATES = AGENT_GROUPS
    FINDS = FINDS_AGENTS
    BINDINGS: ClassVar[list[BindingType]] = []
    AUTO_FOCUS = "#roster"

    def body(self) -> Iterable[Widget]:
        yield Roster(self.context.key, id="roster", classes="pane")
        with Horizontal(id="below"):
            yield LineView(id="peek", classes="pane")
            with Vertical(id="beside"):
                yield LineList(id="board-tasks", classes="pane")
                yield MessageList(id="board-inbox", classes="pane")
            with Vertical(id="side"):
                yield LineList(id="board-needs", classes="pane")
                yield CostRows(id="board-cost", classes="pane")
        yield Composer(self.context)

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        tabs = tabs_line(snapshot.view, self.MODE, width, self.context.key)
        return spread(tabs, (Span(f"{self._sorted()} ", "dim"),), width) if self.size.width >= WIDE else tabs

    def _sorted(self) -> str:
        """How the roster is sorted: beside the views where there is room, else in the roster's title."""
        order = self.query_one(Roster).order
        return f"sort:{order.by}{' reversed' if order.reverse else ''}"

    def interest(self) -> Interest:
        name = self.selected_agent()
        return Interest(agent=name, mailbox=name, rate=self._tells_cost)

    @property
    def _tells_cost(self) -> bool:
        return self.size.width >= HUGE and self.size.height >= HIGH

    def _welcome(self, snapshot: Snapshot, width: int) -> list[Line]:
        root = one_line(formats.homely(snapshot.view.root))
        named = {name: self.context.key(f"{scope}.{name}") for scope, name in _NAMED}
        lines: list[Line] = [(Span(text.format(root=root, **named)),) for text in _WELCOME]
        lines.append((Span(" " * _INDENT), say(command_for(self.context.team, _SPAWN))))
        return [piece for each in lines for piece in hang(each, width, _INDENT, _MOST_OF_ONE)]

    def selected_agent(self) -> str | None:
        return self.query_one(Roster).selected if self.is_mounted else None

    def select_agent(self, name: str) -> None:
        self.query_one(Roster).want(name)

    def go_to(self, key: str) -> None:
        # A new agent is shown whatever the list was narrowed to.
        if self.is_narrowed:
            self.group = ALL
            self.narrow("")
        self.select_agent(key)
        self.begin()

    def targets(self) -> list[str]:
        beside = self._beside()
        if beside is not None:
            return [beside] if beside else []
        return self.query_one(Roster).targets if self.is_mounted else []

    def _beside(self) -> str | None:
        """Whom the row under the cursor is about, in a list beside the roster; empty if it is about no agent."""
        rows = self.focused if isinstance(self.focused, LineList) else None
        if rows is None or rows.id not in _LISTS_BESIDE:
            return None
        if rows.id == "board-needs":
            need = find_need(self.context.snapshot.view, rows.selected)
            return need.agent if need else ""
        return rows.selected or ""

    def _selected(self) -> AgentView | None:
        beside = self._beside()
        return super()._selected() if beside is None else self.context.snapshot.view.agent(beside)

    def _views(self) -> list[AgentView]:
        # Where the cursor stands on a task, no key may end an agent that stands elsewhere.
        on_task = self.focused is not None and self.focused.id == "board-tasks"
        return [] if on_task else super()._views()

    def marked(self) -> list[str]:
        return self.query_one(Roster).shown_marks if self.is_mounted and self._beside() is None else []

    def unmark(self, names: Iterable[str]) -> None:
        roster = self.query_one(Roster)
        if roster.unmark(names):
            self.paint_composer()
            self.refresh_bindings()

    @property
    def key_labels(self) -> Mapping[str, str]:
        labels = super().key_labels
        return {**labels, "view.back": "unmark"} if self.marked() else labels

    def offers(self, action: str) -> bool | None:
        return True if action == "back" and self.marked() else super().offers(action)

    def action_back(self) -> None:
        if self.marked():
            self.unmark(self.marked())
        else:
            super().action_back()

    # ----------------------------------------------------------------------------------------------- painting

    def paint(self, snapshot: Snapshot) -> None:
        self._paint_roster(snapshot)
        self._paint_peek(snapshot)
        self._paint_tasks(snapshot)
        self._paint_inbox(snapshot)
        self._paint_needs(snapshot)
        self._paint_cost(snapshot)
        self.paint_composer()

    def tick(self) -> None:
        self.query_one(Roster).tick(self.context.now)
        self._paint_tasks(self.context.snapshot)
        self._paint_needs(self.context.snapshot)

    def _paint_roster(self, snapshot: Snapshot) -> None:
        roster = self.query_one(Roster)
        roster.read(snapshot.view, self.context.now)
        count = len(snapshot.view.agents)
        shown = f"{sum(bool(row.key) for row in roster.rows)} of " if self.is_narrowed else ""
        parts = [f"{shown}{count} agent{'' if count == 1 else 's'}"]
        parts += [_marks(len(roster.marked), len(roster.shown_marks))] if roster.marked else []
        order = "" if self.size.width >= WIDE else f" · {self._sorted()}"
        title(roster, f"Team{order}{self.narrowed_to}", " · ".join(parts))

    def _paint_peek(self, snapshot: Snapshot) -> None:
        peek = self.query_one("#peek", LineView)
        name = self.selected_agent()
        agent = snapshot.view.agent(name) if name else None
        if agent is None:
            title(peek, "Welcome" if not snapshot.view.agents else "Peek", "")
            peek.show(self._welcome(snapshot, peek.line_width) if not snapshot.view.agents else [])
            return
        title(peek, f"Peek · {agent.name}", follow_words(peek, self.context.key("log.follow")))
        if snapshot.interest.agent == agent.name:
            live = snapshot.live if agent.alive else ""
            recent = snapshot.activity[-120:]
            lines = activity_lines(recent, live, peek.line_width, caret=not self.context.reduced_motion)
            peek.show(lines or [_nothing_yet(agent)])

    def _paint_tasks(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#board-tasks", LineList)
        if not rows.display or not rows.size.width:
            return
        tasks = tally(snapshot.view.tasks)
        opens = f"{self.context.key('list.open')} open" if rows.has_focus else ""
        title(rows, f"Tasks · {tasks}" if tasks else "Tasks", opens)
        rows.show(
            task_rows(snapshot.view, self.context.now, rows.row_width) or [Row("", (Span(self._no_tasks, "dim"),))]
        )

    @property
    def _no_tasks(self) -> str:
        keys = f"{self.context.key('app.tasks')} and then {self.context.key('task.new')}"
        return "no tasks yet" + ("" if self.context.read_only else f"; {keys} adds one")

    def _paint_inbox(self, snapshot: Snapshot) -> None:
        inbox = self.query_one("#board-inbox", MessageList)
        name = self.selected_agent()
        agent = snapshot.view.agent(name) if name else None
        if not inbox.size.width:
            return
        if agent is None:
            title(inbox, "Inbox", "")
            inbox.show([Row("", (Span("the selected agent's mail stands here", "dim"),))])
            return
        title(inbox, f"Inbox · {agent.name}")
        if snapshot.interest.mailbox == agent.name:
            nothing = "no mail" + (
                "" if self.context.read_only else f"; {self.context.key('agent.message')} writes some"
            )
            inbox.read(snapshot.letters, MailboxInfo(agent.name, unread=agent.unread), nothing, snapshot.view.asked)

    def _paint_needs(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#board-needs", LineList)
        if rows.size.width:
            count = len(snapshot.view.needs)
            title(rows, f"Needs you · {count}", f"{self.context.key('app.next')} next" if count else "")
            found = {row.key: row for row in need_rows(snapshot.view, self.context.now, rows.row_width)}
            shown = [row.key for row in rows.rows] if rows.has_focus else []
            rows.show([found[key] for key in keep_order(shown, list(found))])

    def _paint_cost(self, snapshot: Snapshot) -> None:
        rows = self.query_one("#board-cost", CostRows)
        if rows.has_class("-low") == self._tells_cost:
            rows.set_class(not self._tells_cost, "-low")
            self.refresh_soon()  # what stands in it depends on the room that it gets
        elif rows.size.width:
            title(rows, spent(snapshot.view, snapshot.rate))
            rows.read(snapshot.view, "")

    # ------------------------------------------------------------------------------------------------- events

    @on(LineList.Moved, "#roster")
    def _look_at_selected(self) -> None:
        self.context.look_at(self.interest())
        self.query_one("#peek", LineView).restart()
        self.query_one("#board-inbox", MessageList).restart()
        self._paint_peek(self.context.snapshot)
        self._paint_inbox(self.context.snapshot)
        self.paint_composer()
        self.paint_keys()

    @on(LineList.Moved, "#board-needs")
    @on(LineList.Moved, "#board-cost")
    def _aim_elsewhere(self) -> None:
        self.paint_composer()
        self.paint_keys()

    @on(LineList.Opened, "#roster")
    def _open_agent(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key)

    @on(LineList.Opened, "#board-tasks")
    async def _open_task(self, event: LineList.Opened) -> None:
        await self.context.navigator.open_view("tasks", event.key)

    @on(LineList.Opened, "#board-inbox")
    async def _open_inbox(self) -> None:
        await self.context.navigator.open_view("inbox", self.selected_agent() or "")

    @on(LineList.Opened, "#board-needs")
    async def _open_need(self, event: LineList.Opened) -> None:
        await self.context.navigator.open_need(event.key)

    @on(LineList.Opened, "#board-cost")
    def _open_bill(self, event: LineList.Opened) -> None:
        if event.key:
            self.context.navigator.open_agent(event.key, "Cost")

    @on(LineView.Scrolled)
    def _followed(self) -> None:
        self._paint_peek(self.context.snapshot)

    def apply_filter(self) -> None:
        roster = self.query_one(Roster)
        roster.reorder(replace(roster.order, filter=self.filter, group=self.group))
        self._paint_roster(self.context.snapshot)

    def refresh_bindings(self) -> None:
        super().refresh_bindings()
        if self.is_ready:
            self._paint_roster(self.context.snapshot)
            self._still("heading").show([self.heading(self.context.snapshot, self.size.width)])


def _marks(all_: int, shown: int) -> str:
    """How many are marked, and how many of them count for nothing while they are left out of the list."""
    return f"{all_} marked" + (f" ({all_ - shown} not shown)" if shown < all_ else "")


def _nothing_yet(agent: AgentView) -> Line:
    when = f" since {formats.clock(agent.since)}" if agent.since else ""
    return (Span(f"nothing in its journal yet; {one_line(agent.reason or agent.state)}{when}", "dim"),)
