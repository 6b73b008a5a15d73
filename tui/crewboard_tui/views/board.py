"""`1` Board: what needs the user, what each agent does, and the output, mail and work of the selected agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from textual import on, work
from textual.containers import Container, Vertical
from textual.widget import Widget

from crewboard import AgentView, CredentialsError, Need, TeamView, endpoint
from crewboard.commands.context import check_credentials, command_for
from crewboard.readmodel.mail import as_approved
from crewboard.store.layout import team_directories
from crewboard_tui.actions.agents import FirstSteps, NeedActions
from crewboard_tui.actions.messaging import Messaging
from crewboard_tui.actions.registry import Action, Layer, Selection, select, select_in, select_needs
from crewboard_tui.actions.search import AGENT_GROUPS, FINDS_AGENTS, Search
from crewboard_tui.compose.composer import Composer, shown_composer
from crewboard_tui.queries import PULSE, Lanes, MailTo, Query, Snapshot, SpendingByMinute, SpendingRate, Work, WorkOf
from crewboard_tui.render.formats import (
    context_share,
    format_age,
    format_clock,
    format_limit,
    format_lines,
    format_money,
    format_path,
    format_percent,
    format_size,
    format_spending,
    limit_tone,
    share_bar,
)
from crewboard_tui.render.lines import Line, Span, crop, hang, one_line, rule_line, say, side_by_side, width_of
from crewboard_tui.render.looks import look_of, tally
from crewboard_tui.views.base import HIGH, HUGE, TALL, AppContext, BaseScreen, why_gone
from crewboard_tui.views.message_list import MailboxInfo, MessageList
from crewboard_tui.views.roster import BESIDE_WIDTH, Roster, doing, is_told_by_row
from crewboard_tui.views.rows import DONE, DoneTasks, TaskTree, need_rows, task_rows
from crewboard_tui.widgets.bars import StaticLines, follow_words
from crewboard_tui.widgets.line_list import LineList, keep_order
from crewboard_tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from crewboard.local_servers import LocalServer
    from crewboard_tui.views.cost import CostRows

_WELCOME = (
    "No agents hired yet.",
    "",
    "{hire}  hires an agent: a name, a type, a prompt. It becomes a process of its own and goes to work {place}",
    "{help}  says what every key does · {palette} finds commands by name · {leave} leaves",
    "",
    "From a shell the same is",
)

_SPAWN = "spawn scout --type explore --prompt 'Survey this project.'"
_INDENT = 3
_MOST_OF_ONE = 4
"""The most lines of one of the first steps for a newcomer."""

_NAMED = (("agent", "hire"), ("app", "help"), ("app", "palette"), ("app", "leave"))


_LEAST_ROSTER, _LEAST_DETAIL = 64, 60
"""The least cells of the roster beside the selected agent, and of the agent, which gets fewer on a narrow terminal."""

_FACT, _BAR = 8, 5
"""Cells for the name of a fact about the selected agent, and for the bar of its context."""

_PULSE = SpendingByMinute(PULSE)

_LEAST_PULSE, _MOST_PULSE = 3, 8
"""The least and the most lines of the bars in the chart of the team's spending."""

_LEAST_FREE = 4
"""The number of free lines below the roster from which on the lists have room there."""

LOOK_AGAIN = 5.0
"""Seconds between two looks for a server of models on this machine, while there is no key and no agent."""


class ResizingColumn(Vertical):
    """Panes below each other. `resized` is called when their size has changed, as their lines depend on it."""

    def __init__(self, resized: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._resized = resized

    def on_resize(self) -> None:
        self._resized()


class BoardScreen(BaseScreen):
    """The Board view, which most users keep open."""

    CSS_PATH = "board.tcss"
    MODE = "board"
    AUTO_FOCUS = "#roster"

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        self.rows: Roster = Roster(context.key, ascii_only=context.ascii_only, id="roster", classes="pane")
        self._peek = LineView(id="peek", classes="pane")
        self._inbox = MessageList(id="board-inbox", classes="pane")
        self._tasks = LineList(id="board-tasks", classes="pane")
        self._panes, self._work = Container(id="panes", classes="-table"), Container(id="board-work")
        self._beside_roster, self._lists = (ResizingColumn(self.refresh_soon, id=each) for each in ("detail", "lists"))
        self._facts, self._pulse = StaticLines(id="agent-facts"), StaticLines(id="board-pulse", classes="-low")
        self._needs = LineList(id="board-needs", classes="pane")
        self._cost: CostRows | None = None
        """The pane of costs; None until there is room.

        Facts, pulse and needs are mounted when they are first shown, too.
        """
        self.search = Search(context, self.narrow, FINDS_AGENTS, AGENT_GROUPS)
        self._messaging = Messaging(context, partial(shown_composer, self))
        self._shown: Snapshot | None = None
        """The snapshot that all parts show; None if something else may have changed."""
        self._peeked = (Work(), 0, list[Line]())
        """The work of the selected agent, the width, and the lines that follow from them."""
        marks = Layer(lambda: bool(self._marked), lambda: self.rows.unmark(self._marked), "unmark")
        away = Layer(lambda: bool(context.absence) and not context.absence_seen, self._forget_absence, "seen")
        coach = Layer(lambda: context.coach is not None, self._leave_coach, "hide tip")
        self.back_layers = (marks, self.panes.layer, self.search.layer, away, coach)
        self._tree, self._done = TaskTree(), DoneTasks()
        self._pulse_rows = 0
        """The number of lines that the bars of the chart of spending have room for; 0 where it is not shown."""
        self._pulsed: tuple[tuple[object, ...], list[Line]] = ((), [])
        """The facts that the chart of spending was made from, and its lines."""
        self._arranged: object = None
        """The last arrangement of the panes."""
        self._local_server: LocalServer | None = None
        """A server of models that was found on this machine, if there is no key."""
        local = Action(
            "agent.local_model",
            self._use_local_server,
            lambda _: None if self._lacks_key() and self._local_server else "no model was found on this machine",
        )
        own = NeedActions(context).actions, self._messaging.actions
        self._steps = FirstSteps(context, lambda: self.app, self._lacks_key, self._chose_server)
        self.offer(*own, [local], self._steps.actions, self.search.actions, self.panes.actions)

    def _forget_absence(self) -> None:
        self.context.absence_seen = True
        self.context.announce()
        self.refresh_bindings()

    def _leave_coach(self) -> None:
        self.context.coach = None
        self.refresh_all()

    def body(self) -> Iterable[Widget]:
        with self._panes:
            yield self.rows
            with self._beside_roster:
                if self._has_room_beside:
                    yield self._facts
                yield self._peek
                yield self._inbox
            with self._lists:
                with self._work:
                    yield self._tasks
                if _needs_beside(self.context.view):
                    yield self._needs
                if self._tells_cost:
                    yield self._make_cost()
        yield Composer(self.context)

    def queries(self) -> Iterable[Query[object]]:
        seen = self.context.reading.shown = self.rows.seen_keys
        if seen and self.rows.has_lanes:
            yield Lanes(tuple(sorted(filter(None, seen))))
        name = self.selected
        if name:
            yield from (WorkOf(name), MailTo(name))
        if self._tells_cost:
            yield SpendingRate()
        if self._pulse_rows:
            yield _PULSE

    @property
    def _tells_cost(self) -> bool:
        # While it is composed, the screen has no size of its own.
        return self.app.size.width >= HUGE and self.app.size.height >= HIGH

    def tells(self, need: Need) -> bool:
        is_beside = need.agent == self.selected and bool(self._peek.size)
        return is_beside and is_told_by_row(need, self.context.view.agent(need.agent))

    @property
    def _has_room_beside(self) -> bool:
        size = self.size or self.app.size
        return size.width >= BESIDE_WIDTH and size.height >= TALL

    @property
    def _shows_beside(self) -> bool:
        """Return True if the selected agent is shown beside the roster, in the full height."""
        has_agents = bool(self.context.view.agents)
        return self._has_room_beside and not self.rows.wide and has_agents

    def _welcome(self, snapshot: Snapshot, width: int) -> list[Line]:
        if (gone := why_gone(self.context)) is not None:
            return [(say(gone),)]
        place = "on a host" if snapshot.view.hosts else f"in {one_line(format_path(snapshot.view.root))}"
        named = {name: self.context.key(f"{scope}.{name}") for scope, name in _NAMED}
        lines: list[Line] = [(Span(text.format(place=place, **named)),) for text in _WELCOME]
        spawn, no_key = self._first_steps
        lines.append((Span(" " * _INDENT), say(spawn)))
        if self._claude_team:
            key = self.context.key("app.teams")
            lines[:0] = [(Span(f"{key}  "), say(f"shows Claude Code's team {self._claude_team}, which works here")), ()]
        # Hosts have keys of their own.
        if self._steps.offered and not snapshot.view.hosts:
            lines[:0] = [*((Span(each),) for each in self._steps.words), ()]
        if no_key and not snapshot.view.hosts:
            if (found := self._local_server) is not None:
                key = self.context.key("agent.local_model")
                no_key = f"no API key, but {found}: {key} lets this team use it"
            lines.insert(0, (say(no_key, "warning"),))
        return [piece for each in lines for piece in hang(each, width, _INDENT, _MOST_OF_ONE)]

    @cached_property
    def _claude_team(self) -> str:
        """Return the name of a team of Claude Code that works in this root and is not attached; empty if none does."""
        # Imported here, because only a team without agents needs it.
        from crewboard.attach import teams as attach_teams

        root = self.context.team.directory.root
        found = () if self.context.read_only else attach_teams.find_teams_below(root)
        known = {team.path.name for team in team_directories(root)}
        return next((each.name for each in found if each.directory_name not in known), "")

    @cached_property
    def _first_steps(self) -> tuple[str, str]:
        """Return the command that hires, and why a first agent would have no key; empty if it has one.

        If there is no key, look for a server of models on this machine. Read once, because the screen waits for the
        store.
        """
        spawn = command_for(self.context.team, _SPAWN)
        engine = self.context.team.config.engine
        if engine is not None and not self.context.team.offline:
            from crewboard import engines

            return spawn if engines.known(engine).hosts else f"{spawn} --network", ""
        try:
            check_credentials(self.context.team.worker_environment)
        except CredentialsError as error:
            if not self.context.team.environment.get(endpoint.BASE_URL):
                self._look_for_servers()
            return spawn, str(error)
        return spawn, ""

    def _lacks_key(self) -> bool:
        """Return True if there are no agents, and a first one would have no key."""
        return not self.context.view.agents and bool(self._first_steps[1])

    @work
    async def _look_for_servers(self) -> None:
        def find() -> LocalServer | None:
            from crewboard import local_servers

            return next(iter(local_servers.find()), None)

        self._local_server = await self.context.jobs.wait_for("looking for models on this machine", find)
        if self._local_server is None:
            # It may be started while the dashboard is open.
            self.set_timer(LOOK_AGAIN, lambda: self._look_for_servers() if self._lacks_key() else None)
            return
        self._paint_peek(self.context.snapshot)
        self.refresh_bindings()

    def _use_local_server(self, _: Selection) -> None:
        """Let the team use the server of models that was found."""
        found, team = self._local_server, self.context.team
        if found is None:
            return

        def use() -> str:
            from crewboard.commands import settings

            settings.use_server(team.ensure(), found)
            return f"new agents use {found.best} of {found.name}: `crewboard doctor --try` tries it"

        self.context.do("choosing the model", use, self._chose_server)

    def _chose_server(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        # There may be no key any more that is missing.
        del self._first_steps
        if worked:
            self._local_server = None
        if self.is_mounted:
            self._paint_peek(self.context.snapshot)
            self.refresh_bindings()

    @property
    def _marked(self) -> list[str]:
        """Return the names of the marked agents; empty while the keys act on a list next to the roster."""
        return self.rows.shown_marks if self._beside() is None else []

    def go_to(self, key: str) -> None:
        # A new agent is shown whatever the list was narrowed to.
        if self.search.is_narrowed:
            self.search.clear()
        super().go_to(key)
        self.panes.begin()

    def selection(self) -> Selection:
        view, roster, beside = self.context.view, self.rows, self._beside()
        found = select_in(view, roster) if beside is None else select(view, beside)
        if self.focused is self._tasks:
            # With the cursor on a task, no key may end an agent that stands elsewhere.
            found = replace(found, agents=())
        need = view.need(self._needs.selected) if self.focused is self._needs else None
        if need is not None:
            found = select_needs(view, [need], found)
        return replace(found, unmark=roster.unmark, show_agent=roster.want)

    def what_decides_keys(self) -> object:
        if not self.rows.has_focus:
            return None
        view, found = self.context.view, self.selection()
        # Of agents that are not selected and of needs, no key asks for more.
        team = [(agent.name, agent.type, agent.alive) for agent in view.agents]
        needs = {(need.key, need.is_acknowledgeable) for need in view.needs}
        # Nor does a key depend on what is measured, or on who else looks.
        supervisor = replace(view.supervisor, shared_bytes=None)
        rest = replace(
            view, agents=(), needs=(), asked=(), unread={}, hosts=(), present=(), supervisor=supervisor, now=0
        )  # fmt: skip
        return found.targets, found.agents, found.agent, found.marked, team, needs, rest, self._back_label(found)

    def _beside(self) -> str | None:
        """Return the agent of the row under the cursor in a list next to the roster; empty if the row has none.

        None if no such list has the focus.
        """
        if self.focused is self._needs:
            need = self.context.view.need(self._needs.selected)
            return need.agent if need else ""
        return self._cost.selected or "" if self._cost is not None and self.focused is self._cost else None

    # ----------------------------------------------------------------------------------------------- painting

    def refresh_all(self) -> None:
        self._shown = None
        super().refresh_all()

    def show(self, snapshot: Snapshot) -> None:
        shown, self._shown = self._shown, snapshot
        facts = (snapshot.problem, snapshot.hinted)
        if shown is None or snapshot.view is not shown.view or facts != (shown.problem, shown.hinted):
            super().show(snapshot)
            return
        # Only answers are new, as after each move of the cursor: the team looks the same.
        self.ask()
        self.paint_times(snapshot)
        if self.rows.note_lanes(snapshot):
            self.rows.tick(self.context.now)
        self._paint_peek(snapshot)
        self._paint_inbox(snapshot)
        self._paint_cost(snapshot)
        self._paint_pulse(snapshot)
        if not self.rows.has_focus:
            self.paint_keys_soon()

    def paint(self, snapshot: Snapshot) -> None:
        self._paint_roster(snapshot)
        self._paint_peek(snapshot)
        self._paint_tasks(snapshot)
        self._paint_inbox(snapshot)
        self._paint_needs(snapshot)
        self._paint_cost(snapshot)
        self._paint_pulse(snapshot)
        self._messaging.follow(self.selection())

    def tick(self) -> None:
        self.rows.tick(self.context.now)
        # Other rows may have come into sight, with lanes that are not read yet.
        self.ask()
        self._paint_tasks(self.context.snapshot)
        self._paint_needs(self.context.snapshot)
        self._paint_pulse(self.context.snapshot)

    def _paint_roster(self, snapshot: Snapshot) -> None:
        roster = self.rows
        roster.note_lanes(snapshot)
        roster.read(snapshot.view, self.context.now)
        count = len(snapshot.view.agents)
        shown = f"{sum(map(bool, roster.keys))} of " if self.search.is_narrowed else ""
        roster.rule.entitle(f"Team {shown}{count}{roster.state}{self.search.narrowed_to}")
        self._arrange()

    def _arrange(self) -> None:
        """Lay out the panes: the roster gets its rows, and beside an agent, the lists get the free lines below it."""
        panes, is_beside, one = self._panes, self._shows_beside, self.panes.zoomed is not None
        height, wanted = panes.size.height, len(self.rows.rows) + 1
        width = max(_LEAST_ROSTER, self.size.width - max(_LEAST_DETAIL, self.size.width * 36 // 100))
        columns = f"{width} 1fr" if is_beside else "6fr 5fr"
        rows = min(wanted, height) if is_beside else min(max(5, wanted), height * 62 // 100)
        is_alone = self.has_class("-short") or self.has_class("-narrow")
        is_low = is_beside and height - rows < _LEAST_FREE
        layout = (is_beside, one, columns, "1fr" if is_alone else f"{rows} 1fr", is_low)
        if layout == self._arranged or not height:
            return
        self._arranged = layout
        # At once: each change of a class computes the styles of all panes.
        panes.update_classes({"-beside": is_beside, "-table": not is_beside, "-one": one})
        panes.styles.grid_columns, panes.styles.grid_rows = layout[2], layout[3]
        self._lists.set_class(is_low, "-low")

    def _paint_peek(self, snapshot: Snapshot) -> None:
        peek, agent = self._peek, snapshot.view.agent(self.selected)
        # Facts about the agent that have no room in its row, while it is shown beside the roster.
        facts, width = self._facts, self._facts.size.width
        if not facts.is_attached:
            if self._shows_beside:
                self._mount(self._beside_roster, facts, before=peek)
        elif not self._shows_beside or agent is None or not width:
            facts.show([])
        else:
            facts.show(agent_facts(agent, snapshot.view, self.context.now, width))
        if agent is None:
            peek.rule.entitle("Welcome" if not snapshot.view.agents else "Peek", "")
            # The first steps stand at the top. The first agent follows its end again.
            peek.follow = False
            peek.show(self._welcome(snapshot, peek.line_width) if not snapshot.view.agents else [])
            return
        peek.rule.entitle(f"Peek · {agent.name}", follow_words(peek, self.context.key("log.follow")))
        work = snapshot.get(WorkOf(agent.name))
        if work is not None:
            if self._peeked[:2] != (work, peek.line_width):
                # The first picture is painted before any work is read.
                from crewboard_tui.views.activity import activity_lines

                lines = activity_lines(work, peek.line_width, recent=120, caret=not self.context.reduced_motion)
                self._peeked = (work, peek.line_width, lines)
            since = f" since {format_clock(agent.since)}" if agent.since else ""
            nothing = f"nothing in its journal yet; {one_line(agent.reason or agent.state)}{since}"
            peek.show(self._peeked[2] or [(Span(nothing, "dim"),)])

    def _paint_tasks(self, snapshot: Snapshot) -> None:
        rows = self._tasks
        if not rows.display or not rows.size.width:
            return
        tasks = tally(snapshot.view.tasks)
        opens = f"{self.context.key('list.open')} open" if rows.has_focus else ""
        rows.rule.entitle(f"Tasks · {tasks}" if tasks else "Tasks", opens)
        found = task_rows(
            snapshot.view, self.context.now, rows.row_width, self._tree, self._done, selected=rows.selected,
            opens=self.context.key("list.open"),
        )  # fmt: skip
        keys = f"{self.context.key('app.tasks')} and then {self.context.key('task.new')}"
        rows.show(found or rows.empty_rows("no tasks yet" + ("" if self.context.read_only else f"; {keys} adds one")))
        rows.note_glyphs(self._tree.glyphs)

    def _paint_inbox(self, snapshot: Snapshot) -> None:
        inbox, agent = self._inbox, snapshot.view.agent(self.selected)
        if not inbox.size.width:
            return
        if agent is None:
            inbox.rule.entitle("Inbox", "")
            inbox.show(inbox.empty_rows("the selected agent's mail stands here"))
            return
        inbox.rule.entitle(f"Inbox · {agent.name}")
        mailbox = snapshot.get(MailTo(agent.name))
        if mailbox is not None:
            nothing = "no mail" + (
                "" if self.context.read_only else f"; {self.context.key('agent.message')} writes some"
            )
            box = MailboxInfo(agent.name, unread=agent.unread, now=self.context.now)
            asked = snapshot.view.asked
            # It shows the newest mail until the cursor is moved in it, as the journal above it does.
            follows = inbox.follow or not inbox.selected
            inbox.read(as_approved(mailbox.letters, asked), box, nothing, asked)
            inbox.follow = follows

    def _paint_needs(self, snapshot: Snapshot) -> None:
        rows, view = self._needs, snapshot.view
        needs = _needs_beside(view)
        if not rows.is_attached:
            # Beside a pane that fills the screen it would be seen.
            if needs and self.panes.zoomed is None:
                self._mount(self._lists, rows, after=self._work)
            return
        rows.set_class(not needs, "-low")
        if rows.size.width:
            name = "Results to read" if all(need.kind == "result" for need in needs) else "Also needs you"
            rows.rule.entitle(f"{name} · {len(needs)}")
            found = {row.key: row for row in need_rows(replace(view, needs=needs), self.context.now, rows.row_width)}
            shown = [row.key for row in rows.rows] if rows.has_focus else []
            rows.show([found[key] for key in keep_order(shown, list(found))])

    def _mount(self, column: Widget, pane: Widget, **place: Widget) -> None:
        """Mount a pane that was not shown before, unless the dashboard ends and the column is gone."""
        if column.is_attached:
            column.mount(pane, **place)
            self.refresh_soon()

    def _make_cost(self) -> CostRows:
        """Create and return the pane of costs, which is loaded only where there is room for it."""
        from crewboard_tui.views.cost import CostRows

        self._cost = CostRows(id="board-cost", classes="pane")
        return self._cost

    def _paint_cost(self, snapshot: Snapshot) -> None:
        rows = self._cost
        if rows is None:
            # Beside a pane that fills the screen it would be seen.
            if self._tells_cost and self.panes.zoomed is None:
                self._mount(self._lists, self._make_cost())
        elif rows.has_class("-low") == self._tells_cost:
            rows.set_class(not self._tells_cost, "-low")
            self.refresh_soon()  # what stands in it depends on the room that it gets
        elif rows.size.width:
            spent = format_spending(snapshot.view, snapshot.get(SpendingRate()), window=False)
            # The last row tells how much it was.
            rows.rule.entitle("Cost", spent.partition(" · ")[2])
            rows.read(snapshot.view, with_total=True)

    def _paint_pulse(self, snapshot: Snapshot) -> None:
        """Show the chart of tokens per minute beside the tasks, or below them in free lines."""
        lists, tasks, needs, pane = self._lists, self._tasks, self._needs, self._pulse
        # The costs follow at once: what is free stands below them.
        is_ended = self._tells_cost and self.panes.zoomed is None
        most = max(len(tasks.rows) + 1, _MOST_PULSE + 2)
        work, limit = self._work.styles, most if is_ended else None
        # Setting it lays out the screen, also where it is the same.
        if (work.max_height and work.max_height.value) != limit:
            work.max_height = limit
        if self.size.width >= HUGE:
            height, width = tasks.size.height, lists.size.width // 2 - 1
        else:
            below = 0 if not needs.is_attached or needs.has_class("-low") else len(needs.rows) + 1
            height, width = lists.size.height - len(tasks.rows) - 1 - below, lists.size.width
        before, rows = self._pulse_rows, min(_MOST_PULSE, height - 2)
        self._pulse_rows = rows if rows >= _LEAST_PULSE and self.panes.zoomed is None else 0
        if bool(self._pulse_rows) != bool(before):
            # On a team at rest the screen would next say in some seconds what it asks.
            self.ask()
        found = snapshot.get(_PULSE) if self._pulse_rows else None
        decides = found, int(self.context.now // 60), width, self._pulse_rows
        if self._pulse_rows and found is None and decides[2:] == self._pulsed[0][2:]:
            # It is not read yet, and what stood there before is not wrong.
            return
        if decides != self._pulsed[0]:
            self._pulsed = decides, []
            if found is not None:
                # The first picture is painted before any spending is read.
                from crewboard_tui.views.cost import pulse

                self._pulsed = decides, pulse(found, self.context.now, width, rows)
            if not pane.is_attached:
                if not self._pulsed[1]:
                    return
                self._mount(self._work, pane)
            if pane.has_class("-low") == bool(self._pulsed[1]):
                pane.set_class(not self._pulsed[1], "-low")
                self.refresh_soon()  # the tasks have other room
            pane.show(self._pulsed[1])

    # ------------------------------------------------------------------------------------------------- events

    @on(LineList.Moved, "#roster")
    def _look_at_selected(self) -> None:
        self.ask()
        self._peek.restart()
        self._inbox.restart()
        self._paint_peek(self.context.snapshot)
        self._paint_inbox(self.context.snapshot)
        self._messaging.follow(self.selection())
        self.paint_keys_soon()

    @on(LineList.Marked, "#roster")
    @on(LineList.Moved, "#board-needs")
    @on(LineList.Moved, "#board-cost")
    def _aim_elsewhere(self) -> None:
        self._messaging.follow(self.selection())
        self.paint_keys_soon()

    @on(LineList.Opened, "#roster")
    def _open_agent(self, event: LineList.Opened) -> None:
        self.context.navigator.open_agent(event.key)

    @on(LineList.Opened, "#board-tasks")
    async def _open_task(self, event: LineList.Opened) -> None:
        if event.key == DONE:
            self._done.is_unfolded ^= True
            self._paint_tasks(self.context.snapshot)
            return
        await self.context.navigator.open_view("tasks", event.key)

    @on(LineList.Opened, "#board-inbox")
    async def _open_inbox(self) -> None:
        await self.context.navigator.open_view("inbox", self.selected or "")

    @on(LineList.Opened, "#board-needs")
    async def _open_need(self, event: LineList.Opened) -> None:
        await self.context.navigator.open_need(event.key)

    @on(LineList.Opened, "#board-cost")
    def _open_bill(self, event: LineList.Opened) -> None:
        if event.key:
            self.context.navigator.open_agent(event.key, "Vitals")

    @on(LineView.Scrolled)
    def _followed(self) -> None:
        self._paint_peek(self.context.snapshot)

    def narrow(self) -> None:
        self.rows.narrow(self.search.words, self.search.group)
        self._paint_roster(self.context.snapshot)
        self.refresh_bindings()

    def refresh_bindings(self) -> None:
        super().refresh_bindings()
        if self.is_ready and not self.is_due:
            self._paint_roster(self.context.snapshot)


def _needs_beside(view: TeamView) -> tuple[Need, ...]:
    """Return the needs that are not in the rows of their agents."""
    return tuple(need for need in view.needs if not is_told_by_row(need, view.agent(need.agent)))


def agent_facts(agent: AgentView, view: TeamView, now: float, width: int) -> list[Line]:
    """Return a rule, and below it the facts about an agent that have no room in its row.

    These are its work and task in full, context, cost, process, changes and mail.
    """
    look, usage, lines, task = look_of(agent), agent.usage, agent.unmerged, view.task(agent.task)
    age = f" {format_age(now - agent.since)}" if agent.since else ""
    share = context_share(agent.status.context)
    used = f" {format_percent(share)} of {format_limit(agent.status.context.limit)}" if share is not None else ""
    facts: dict[str, Line] = {
        "context": (*share_bar(share, _BAR), Span(used, limit_tone(share))),
        "cost": (Span(f" {format_money(agent.status.cost_usd)}" if agent.status.cost_usd is not None else ""),),
        "cpu": (Span(f" {usage.cpu_percent:.0f}%" if usage is not None else ""),),
        "memory": (Span(f" {format_size(usage.memory)}" if usage is not None else ""),),
        "changed": (Span(f" {format_lines(lines)}" if lines is not None else ""),),
        "mail": (Span(f" {agent.unread} unread" if agent.unread else ""),),
    }
    known = [
        (Span(f" {name:<{_FACT}}", "dim"), *value) for name, value in facts.items() if any(each.text for each in value)
    ]
    # What it does, in a row cut short, and its task.
    does = doing(agent, now)
    texts = [("does", does)] * bool(does) + ([("task", f"#{task.id} {task.subject}")] if task is not None else [])
    told = [
        piece
        for fact, text in texts
        for piece in hang((Span(f" {fact:<{_FACT}} ", "dim"), say(text)), width, _FACT + 2, 2)
    ]
    across = max(map(width_of, known[::2]), default=0) + 1
    told += [crop(line, width) for line in side_by_side(known[::2], known[1::2], across)]
    name, state = f"{one_line(agent.name)} · {one_line(agent.type)}", f"{look.glyph} {look.word}{age}"
    return [rule_line(name, state, (), 1, width, is_focused=False), *told]
