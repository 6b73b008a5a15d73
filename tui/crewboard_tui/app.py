"""The dashboard: it passes snapshots to the screens, opens views, and runs the keys that work everywhere."""

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import ClassVar

from msgspec.structs import replace
from textual import events, work
from textual.app import App
from textual.binding import Binding, BindingType
from textual.constants import DEFAULT_THEME
from textual.css.query import NoMatches
from textual.dom import NoScreen
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import AwaitMount
from textual.worker import WorkerFailed

from crewboard import (
    AgentView,
    CrewboardError,
    ExitCode,
    Request,
    Team,
    TeamReader,
    TeamView,
    TryLaterError,
    UsageError,
    create_team,
)
from crewboard.names import check_new_team
from crewboard.protocol import supervisor_client
from crewboard.readmodel.processes import KernelProbe
from crewboard.readmodel.usage import bill_team
from crewboard.records.messages import LastVisit
from crewboard.store import leases, operators
from crewboard.store.layout import DEFAULT_TEAM, TeamDirectory, team_directories
from crewboard.store.roster import find_team
from crewboard.unix import process
from crewboard_tui.background import BackgroundJobs, JobDone, TeamRead
from crewboard_tui.compose.composer import Composer, PromptLine
from crewboard_tui.drafts import Drafts, SentTexts, called, can_be_sent
from crewboard_tui.keymap.bindings import BY_ID, bindings_of
from crewboard_tui.keys import KeyOrder, RestingDriver
from crewboard_tui.notifications import WAYS, TerminalNotifications
from crewboard_tui.poller import TeamPoller, is_still
from crewboard_tui.render.lines import one_line
from crewboard_tui.render.themes import PREFIX, THEMES, AsciiFilter, SteadyStylesheet, for_terminal, names
from crewboard_tui.settings import Settings, keep_visit, read_visit
from crewboard_tui.views import registry
from crewboard_tui.views.base import AppContext, BaseScreen, Snapshot, is_form
from crewboard_tui.widgets.painter import SWITCHED, call_in_screen, hold_paint

_HERE = Path(__file__).resolve().parent

_FIRST = "board"
"""The mode in which the dashboard opens."""

TICK = 1.0
"""Seconds between two ticks, which paint the ages on the screen and store drafts."""

STILL_TICK = 5.0
"""Seconds between two ticks while the team rests and all ages are in minutes: to wake up is most of what rest costs."""

STEP, TIMES = 0.3, 2
"""The count of a state with a new need is reversed in the status bar so many times, for so many seconds each."""

VISIT_KEPT_EVERY = 60.0
"""Seconds between two writes of how the user left the team, while something changes."""

LOOK_AT_MERGE = 5.0
"""Seconds between two looks for a merge whose process was killed."""

_NEEDS = "needs"
"""The mode of the view that lists what needs the operator."""

_BETWEEN = "between"
"""The mode that is shown while the views of one team are removed and those of the next one are added."""

_TELLS = {
    "off": "Notifications off",
    "bell": "Notifications: terminal bell",
    "desktop": "Notifications: desktop, through this terminal",
}


class CrewboardApp(App[None], inherit_bindings=False):
    """The dashboard of one team on one terminal."""

    CSS_PATH = ["app.tcss", "views/board.tcss"]
    """The style sheets for the first picture. One that a screen adds later would style all widgets anew."""
    DEFAULT_MODE = _FIRST
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of("app"),
        Binding(
            "ctrl+c", "leave_unless_writing", "leave", tooltip=BY_ID["app.leave"].says, show=False, id="app.leave_too"
        ),
    ]

    COMMAND_PALETTE_BINDING = "ctrl+p"
    ENABLE_COMMAND_PALETTE = True

    _coloured_by = DEFAULT_THEME
    """The theme that the variables of the stylesheet were derived from; at first Textual's own, which is not shown."""

    def __init__(
        self,
        team: Team,
        *,
        ascii_only: bool = False,
        read_only: bool = False,
        probe: KernelProbe | None = None,
        settings: Settings | None = None,
        afterwards: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings or Settings()
        visit = read_visit(self._visit_file(team))
        # Textual reads it once, now.
        self.DEFAULT_MODE = visit.view if visit.view in registry.VIEWS else _FIRST  # type: ignore[misc]
        super().__init__()
        # What is to be said stands in the footer. Textual would mount a place for notifications on each screen.
        self._disable_notifications = True
        self.title = f"crewboard · {team.directory.path.name}"
        self.animation_level = "none"
        for theme in (*THEMES.values(), *self.settings.themes.values()):
            self.register_theme(theme)
        self._coloured_by = ""
        self._colour(self.settings.theme)
        self.stylesheet = SteadyStylesheet(variables=self.get_css_variables())
        self.set_keymap(dict(self.settings.keys))
        self.outside = TerminalNotifications(self._write, notify=self.settings.notify, ascii_only=ascii_only)
        self.ascii_only = ascii_only
        """True if the terminal shows only ASCII."""
        self._unshown = self._has_news = False
        """True if a snapshot waits to be shown; and True if something has changed since the visit was stored."""
        self._kept_at = monotonic()
        self._looks_at_merge = 0.0
        """The time at which the record of merges is read next (monotonic)."""
        self._shown_at = float("-inf")
        """The time at which a snapshot was shown last (monotonic)."""
        self._newest_read: TeamRead | None = None
        """The newest reading that was published and is not shown yet."""
        self._moves: Timer | None = None
        """The timer of the next step of what moves in the status bar."""
        self._ticks: Timer | None = None
        self._ticks_at = float("inf")
        """The timer of the next tick, and its time (monotonic)."""
        self._presenting = threading.Thread()
        """The thread that tells other dashboards that this one is open."""
        self._probe = probe
        self._afterwards = afterwards
        """Called once, after the first picture, whose start it would slow down."""
        self.drafts: dict[Path, Drafts] = {}
        """Texts that were not sent, by the folder of the team, and there by the name of the draft."""
        self.key_order = KeyOrder(self, self._handle_key)
        self._read_only = read_only
        self.context = self._context_for(team, BackgroundJobs(self.post_message))
        self.context.visit = visit
        self._add_views()

    def _visit_file(self, team: Team) -> Path | None:
        """Return the file that stores how the user left a team; None if it is not stored."""
        return operators.file_for(self.settings.visits, team.directory.path, team.operator)

    def _context_for(self, team: Team, errands: BackgroundJobs) -> AppContext:
        """Return the context for a team; its poller is not started yet."""
        read_only = self._read_only or team.directory.is_foreign()
        may_ring = not read_only and self._probe is None

        def publish(snapshot: Snapshot) -> None:
            self._publish(reading, snapshot)

        def provide() -> None:
            from crewboard.commands import hosts

            hosts.provide(team)

        reading = TeamPoller(
            team.directory, publish, clock=team.now, probe=self._probe, may_ring=may_ring, provide=provide
        )
        snapshot = reading.first()
        dashboard = None if read_only else operators.OpenDashboard(team.directory, team.operator, team.now())
        path, others = team.directory.path, frozenset(each.id for each in snapshot.view.present)
        file = None if dashboard is None else operators.file_for(self.settings.drafts, path)
        own = dashboard.id if dashboard is not None else ""
        if path not in self.drafts:
            self.drafts[path] = Drafts(file, own, others)
        sent = SentTexts(None if read_only else operators.file_for(self.settings.sent, path))
        drafts = self.drafts[path]
        drafts.own, drafts.others, drafts.put_aside = own, others, sent.add
        return AppContext(
            team=team,
            read_only=read_only,
            snapshot=snapshot,
            reading=reading,
            jobs=errands,
            announce=self._paint_footer,
            navigator=self,
            drafts=drafts,
            sent=sent,
            keys=self.settings.keys,
            reduced_motion=self.settings.reduced_motion,
            ascii_only=self.ascii_only,
            dashboard=dashboard,
        )

    def on_load(self) -> None:
        # From Python 3.12 on Textual starts tasks eagerly, but not under run_test(): then the first screen is composed
        # before it is on the stack, and an Input on it ends the app (Textual #6444).
        if sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(None)

    def on_mount(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
        self._tick_in(TICK)
        self._show_presence()
        self.outside.read(self.context.view)
        asked, names = self.context.view.asked, {agent.name for agent in self.context.view.agents}
        sendable = (each for each in self.context.drafts if can_be_sent(each, asked, names))
        if kept := dict.fromkeys(called(each, asked) for each in sendable):
            self.context.say(f"not sent yet, from the last time: {one_line(', '.join(kept))}")
        if problems := self.settings.problems:
            # As far as that can be read at a glance.
            more = f" … and {len(problems) - 2} more: `crewboard doctor`" if len(problems) > 2 else ""  # noqa: PLR2004
            self.context.say(" · ".join(problems[:2]) + more, "error")

    def _terminate(self) -> None:
        try:
            self._keep_drafts()
            self._keep_visit()
        finally:  # a page that is just closing may raise
            self.exit(return_code=ExitCode.TERMINATED)

    def on_ready(self) -> None:
        if not gc.isenabled():  # the start has put it off; frozen again and again, old objects would never be freed
            gc.freeze()
            # A reading makes thousands of records that live on: at 700, that took 39 % of a busy Feed's time.
            gc.set_threshold(20_000, 20, 50)
            gc.enable()
            # A reading of what many agents wrote at once takes some megabytes, and only for a moment.
            process.give_back_large_buffers()
        self.context.reading.start()
        self._read_absence()
        self._afterwards()
        # Those of the other screens, which the first picture does not need.
        self.stylesheet.read_all(
            [each for each in sorted(_HERE.rglob("*.tcss")) if not self.stylesheet.has_source(str(each))]
        )
        self.stylesheet.parse()
        threading.Thread(target=registry.load_all, name="crewboard-load", daemon=True).start()

    def _add_views(self) -> None:
        for mode in registry.VIEWS:
            self.add_mode(mode, partial(registry.open_view, mode, self.context))

    async def turn_to(self, directory: TeamDirectory, says: str = "") -> None:
        """Show another team, with new context and views. Jobs of the old team continue. `says` is shown to the user."""
        self._keep_visit()
        old = self.context
        old.left = True
        old.reading.stop()
        if old.dashboard is not None:
            old.dashboard.close()
        team = replace(old.team, directory=directory)
        self.context = await asyncio.to_thread(self._context_for, team, old.jobs)
        self.context.visit = read_visit(self._visit_file(team))
        self._unshown = False
        self.title = f"crewboard · {directory.path.name}"
        self.add_mode(_BETWEEN, Screen)
        await self.switch_mode(_BETWEEN)
        for mode in registry.VIEWS:
            await self.remove_mode(mode)
        self._add_views()
        await self.switch_mode(_FIRST)
        await self.remove_mode(_BETWEEN)
        self.outside.turn(self.context.view)
        self.context.reading.start()
        self._read_absence()
        if says:
            self.context.say(says)

    def on_unmount(self) -> None:
        self.context.reading.stop()
        if self.context.dashboard is not None:
            self.context.dashboard.close()
        self.outside.restore()

    def _handle_exception(self, error: Exception) -> None:
        # A page that opens while the dashboard ends finds its widgets gone: nothing broke.
        reason = error.error if isinstance(error, WorkerFailed) else error
        if self.is_running or not isinstance(reason, NoMatches | NoScreen):
            super()._handle_exception(error)

    def _write(self, sequence: str) -> None:
        """Send a sequence to the terminal, past the screen."""
        if self._driver is not None:
            self._driver.write(sequence)

    def get_css_variables(self) -> dict[str, str]:
        # Textual asks for them four times before the first picture, and derives all colours each time.
        if self._coloured_by != self.theme:
            super().get_css_variables()
            self._coloured_by = self.theme
        return self.theme_variables

    def get_driver_class(self) -> type[Driver]:
        # The environment may name another one.
        found = super().get_driver_class()
        return RestingDriver if found is LinuxDriver else found

    def get_line_filters(self) -> list[LineFilter]:
        # Textual turns colours to greys, which are colours too (no-color.org).
        filters = [NoColor() if isinstance(each, Monochrome) else each for each in super().get_line_filters()]
        return [*filters, AsciiFilter()] if self.ascii_only else filters

    def on_resize(self, event: events.Resize) -> None:
        """Paint everything after a terminal shrank and grew back: it forgot its content, and its size is the same."""
        if event.size == self.size:
            self.refresh()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            # Other rows may come into sight, and what is typed is kept.
            self._shown_at = float("-inf")
            self._tick_soon()
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            await self.key_order.take(event)
        else:
            await super().on_event(event)

    async def _handle_key(self, event: events.Key | events.Paste) -> None:
        if isinstance(event, events.Key):
            self.context.reading.note_key()
            # The pointer may have left the terminal, which does not tell that.
            self.context.pointed = "", ""
        await super().on_event(event)

    def on_key(self, event: events.Key) -> None:
        """Pass a typed character to an input line or a form that was still opening when its key was pressed."""
        if isinstance(self.screen, PromptLine | BaseScreen) and event.is_printable and event.character:
            self.screen.take(event.character)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Switch off the blinking cursor of each input, also of the palette's."""
        if hasattr(event.widget, "cursor_blink"):
            event.widget.cursor_blink = False

    # ------------------------------------------------------------------------------------------------ updates

    def _publish(self, reading: TeamPoller, snapshot: Snapshot) -> None:
        """Send a snapshot to the app. Called in the poller's thread."""
        self._newest_read = message = TeamRead(reading, snapshot)
        self.post_message(message)

    def on_team_read(self, message: TeamRead) -> None:
        if message.reading is not self.context.reading:
            return  # read for a team that was left meanwhile, be it for this one
        newest = self._newest_read
        if newest is not None and newest.reading is message.reading and newest is not message:
            return  # a newer one waits: on a machine that is too slow, they would pile up
        self._newest_read = None
        self._tick_soon()
        before, self.context.snapshot = self.context.snapshot, message.snapshot
        self.outside.read(message.snapshot.view)
        if message.snapshot.view.is_deleted:
            self.context.drafts.leave_file()
        self._has_news = True
        known = {need.key for need in before.view.needs}
        new = frozenset(each.kind for each in message.snapshot.view.needs if each.key not in known)
        if new and not self.settings.reduced_motion:
            self._reverse(new, 2 * TIMES)
        # Where motion is reduced, what moves by itself waits for the tick; what the user asked to see does not.
        self._unshown = self.settings.reduced_motion and before.answers.keys() == message.snapshot.answers.keys()
        if not self._unshown:
            self._show()

    def _reverse(self, kinds: frozenset[str], left: int) -> None:
        """Reverse the counts of these kinds of needs in the status bar, or set them back; in all, `left` times."""
        self.context.reversed = frozenset() if left % 2 else kinds
        for screen in self._framed():
            screen.paint_frame(self.context.snapshot)
        if left > 1:
            if self._moves is not None:
                self._moves.stop()
            self._moves = self.set_timer(STEP, partial(self._reverse, kinds, left - 1), name="motion")

    def on_job_done(self, message: JobDone) -> None:
        self.context.reading.keys.note_outcome()
        self.context.jobs.hear(message)
        self._reload_drafts()
        if message.says:
            self.context.say(message.says, "error" if message.error else "success")
        self.context.reading.poke()
        if message.then is not None:
            message.then(not message.error, message.says)

    def _reload_drafts(self) -> None:
        """Show drafts that were changed elsewhere in every input, so that what is typed next does not replace them."""
        for screen in itertools.chain.from_iterable(self._screen_stacks.values()):
            if isinstance(screen, PromptLine):
                screen.reload()
            for composer in screen.query(Composer):
                if composer.is_mounted:
                    composer.reload()

    def _keep_drafts(self) -> None:
        for screen in itertools.chain.from_iterable(self._screen_stacks.values()):
            if isinstance(screen, BaseScreen) and screen.is_ready:
                screen.keep_drafts()
        self.context.drafts.others = frozenset(each.id for each in self.context.others)
        news = [drafts.take_over() for drafts in self.drafts.values()]
        for drafts in self.drafts.values():
            drafts.keep()
        if any(news):
            self._reload_drafts()

    def _keep_visit(self) -> None:
        """Store how the user leaves the team now, unless the dashboard is read-only or the team is deleted."""
        context = self.context
        # The database is not asked: while it is away, that takes seconds.
        is_gone = context.view.is_deleted or not context.team.directory.path.exists()
        if context.read_only or is_gone:
            return
        self._has_news, self._kept_at = False, monotonic()
        orders, zoomed = dict(context.visit.orders), dict(context.visit.zoomed)
        for mode, stack in self._screen_stacks.items():
            view = stack[0] if stack else None
            if isinstance(view, BaseScreen) and view.is_ready:
                orders |= view.orders
                zoomed[mode] = view.panes.chosen
        visit = LastVisit(
            at=context.now,
            cost_usd=bill_team(context.view).usd,
            view=self.current_mode,
            orders={name: order for name, order in orders.items() if order},
            zoomed={mode: pane for mode, pane in zoomed.items() if pane},
        )
        keep_visit(self._visit_file(context.team), visit)

    @work
    async def _read_absence(self) -> None:
        """Read in a thread what happened since the user left this team; nothing if the user has it open elsewhere."""
        from crewboard.readmodel.changes import read_absence

        context = self.context
        team, visit, view = context.team, context.visit, context.view
        if not visit.at or any(each.who == team.operator for each in context.others):
            return
        read = partial(read_absence, team.directory, view, visit.at, cost_usd=visit.cost_usd, operator=team.operator)
        found = await context.jobs.wait_for("reading what happened", read)
        if found is not None and not context.left:
            context.absence = found or None
            self._paint_footer()

    def _show_presence(self) -> None:
        """Record for other dashboards that this one is open, and which request it shows.

        The screen does not wait for that: a database that is away would stop it.
        """
        dashboard = self.context.dashboard
        request = next((each.shown_request for each in self._framed()), None)
        if dashboard is None or self._presenting.is_alive():
            return
        is_gone = self.context.view.is_deleted
        if dashboard.is_shown if is_gone else not dashboard.says(request):
            show = dashboard.forget if is_gone else partial(dashboard.look_at, request)
            self._presenting = threading.Thread(target=show, name="crewboard-presence", daemon=True)
            self._presenting.start()

    def _end_interrupted_merge(self) -> None:
        """Finish or take back a merge, or an undo, whose process was killed: it holds the lock of the user's index."""
        team, now = self.context.team, monotonic()
        if self.context.read_only or now < self._looks_at_merge:
            return
        self._looks_at_merge = now + LOOK_AT_MERGE
        # Of this machine's clone, also on a team in a database.
        merges = team.directory.acceptances_here.load_or_none()
        # One that is under way is left alone.
        if merges is None or merges.move is None or leases.is_held(team.directory.lease("acceptance")):
            return

        def end() -> str:
            # Imported here, because that is rare, and loads git and worktrees.
            from crewboard.commands import changes

            # Another process may begin at the same time, or the user's own git.
            with contextlib.suppress(TryLaterError):
                if changes.recover(team):
                    return "a merge or undo was interrupted; it is finished or taken back now"
            return ""

        def ended(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if not worked:
                # It was said, and would fail again.
                self._looks_at_merge = float("inf")

        self.context.jobs.start("looking after a merge", end, ended)

    def _tick(self) -> None:
        self._keep_drafts()
        self.outside.tick()
        self._show_presence()
        self._end_interrupted_merge()
        if self._has_news and monotonic() - self._kept_at >= VISIT_KEPT_EVERY:
            self._keep_visit()  # a killed dashboard cannot say how it was left
        self.context.reading.note_late()
        hushed = self.context.hush()
        if self._unshown:
            self._show()
        # Of a team that works, the ages were painted just now, with what has changed.
        every = STILL_TICK if is_still(self.context.snapshot, self.context.now) else TICK
        # A message goes after a time, and a database may stop answering.
        is_quiet = self.context.said is None and not self.context.reading.is_remote
        self._tick_in(every if is_quiet else TICK)
        is_recent = monotonic() - self._shown_at < every - TICK / 2
        for screen in self._framed():
            if hushed or not is_recent:
                self._shown_at = monotonic()
                screen.tick()
                screen.paint_times(self.context.snapshot)
            if hushed:
                screen.paint_keys()

    def _tick_in(self, seconds: float) -> None:
        if self._ticks is not None:
            self._ticks.stop()
        self._ticks_at = monotonic() + seconds
        self._ticks = self.set_timer(seconds, self._tick, name="tick")

    def _tick_soon(self) -> None:
        """Tick within `TICK` seconds, because something has changed or will."""
        if self._ticks_at - monotonic() > TICK:
            self._tick_in(TICK)

    def _show(self) -> None:
        self._unshown, self._shown_at = False, monotonic()
        for screen in self._framed():
            screen.show(self.context.snapshot)

    def _framed(self) -> Iterable[BaseScreen]:
        """Return the full screens that are visible, also behind a smaller screen."""
        screens = (each for each in self.screen_stack if isinstance(each, BaseScreen))
        return [each for each in screens if each.is_in_front and each.is_ready]

    def _paint_footer(self) -> None:
        self._tick_soon()
        for screen in self._framed():
            screen.paint_footer()

    # ------------------------------------------------------------------------------------------------ the keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if action in ("leave", "teams", "rules", "hosts"):
            # One stray letter must not throw away what is being written.
            return not is_form(self.screen)
        if action in ("team_create", "team_delete"):
            return not (self.context.read_only or is_form(self.screen))
        if action == "halt":
            return not self.context.read_only and any(agent.alive for agent in self.context.view.agents)
        if action == "restart_supervisor":
            return not self.context.read_only and self.context.view.supervisor.silent_since is not None
        if action == "absence":
            return bool(self.context.absence) and not is_form(self.screen)
        return bool(self.context.view.needs) if action == "next_need" else True

    def switch_mode(self, mode: str) -> AwaitMount:
        if mode == self.current_mode:
            return super().switch_mode(mode)
        view = self.screen_stack[0] if self.screen_stack else None
        # A view is painted as soon as it is complete, with what the key did to it.
        end = hold_paint(self)
        try:
            switched = super().switch_mode(mode)
            if isinstance(view, BaseScreen) and view.is_ready:
                view.show_all()
            return switched
        finally:
            # After what the key does further, and then behind the messages with which the screen resumes.
            self.call_later(call_in_screen, self, end)

    def delay_update(self, delay: float = SWITCHED) -> None:
        # Textual paints nothing for 50 ms at each switch, so that no screen is seen before it is complete.
        if not self._batch_count:
            super().delay_update(delay)

    async def action_view(self, mode: str) -> None:
        """Show a numbered view with its open pages; the Board, and the view that is shown already, without pages.

        Pages with a tab of their own, such as the hosts, and pages of closed requests are left first.
        """
        again = mode == self.current_mode
        await self.switch_mode(mode)
        while isinstance(self.screen, BaseScreen) and (self.screen.is_over or self.screen.TAB):
            await self.pop_screen()
        if again or mode == _FIRST:
            await self._pop_to_view()
        if again:
            for view in self.screen_stack[-1:]:  # none is left if the dashboard was left meanwhile
                if isinstance(view, BaseScreen):
                    view.panes.begin()

    @work
    async def action_teams(self) -> None:
        """Choose another team of this root."""
        if await self._goes_to_form():
            return
        here = self.context.team.directory
        teams = [team for team in team_directories(here.root) if team.is_own()]
        # Imported here, as what other keys need, because the first picture need not wait for it.
        from crewboard.attach import teams as attach_teams
        from crewboard_tui.views.teams import TeamsScreen

        shown = teams if here in teams else [here, *teams]
        known = {team.path.name for team in shown}
        found = {} if self.context.read_only else {
            each.directory_name: each for each in attach_teams.find_teams_below(here.root)
            if each.directory_name not in known
        }  # fmt: skip
        screen = TeamsScreen(
            shown,
            here,
            self._look_at,
            self.context.key,
            read_only=self.context.read_only,
            is_empty=not self.context.view.agents,
            found={name: f"{each.name}, {len(each.roster.members)} members" for name, each in found.items()},
        )
        choice = await self.push_screen_wait(screen)
        if choice is None:
            return
        if choice.what == "create":
            await self._create_team()
        elif choice.what == "delete":
            await self._delete_team(choice.team)
        elif choice.what == "attach":
            chosen = found[choice.team.path.name]
            attach = partial(attach_teams.attach, here.root, chosen, self.context.now)
            says = f"attached to {chosen.name} of Claude Code"
            if (made := await self.context.wait_for("attaching", attach, lambda _: says)) is not None:
                self.call_later(self.turn_to, made, says)
        elif choice.team != here:
            self.call_later(self.turn_to, choice.team)

    def _look_at(self, team: TeamDirectory) -> TeamView:
        return TeamReader(team, clock=self.context.team.now, probe=self._probe).read(measured=0)

    @work
    async def action_team_create(self) -> None:
        """Create a team in this root, and show it."""
        await self._create_team()

    async def _create_team(self) -> None:
        root = self.context.team.directory.root

        def check(name: str) -> str | None:
            try:
                found = find_team(root, check_new_team(name.strip()))
            except UsageError as error:
                return str(error)
            return f"the team {name.strip()} exists" if found is not None else None

        hint = f"its name, such as webshop · {self.context.key('line.leave')} creates none"
        name = await self.push_screen_wait(PromptLine("new team", hint=hint, check=check))
        if name is not None:
            create, says = partial(create_team, root, name.strip()), f"created the team {name.strip()}"
            if (made := await self.context.wait_for("creating a team", create, lambda _: says)) is not None:
                self.call_later(self.turn_to, made.directory, says)

    @work
    async def action_team_delete(self) -> None:
        """End the agents of this team after the user confirmed that, and delete its files if the user chose that."""
        await self._delete_team(self.context.team.directory)

    async def _delete_team(self, team: TeamDirectory) -> None:
        """Show what the deletion of a team ends and loses, and delete it after the user typed its name."""
        name, is_here = team.path.name, team == self.context.team.directory
        try:
            team.require_adopted()
            view = self._look_at(team)
        except (CrewboardError, OSError) as error:
            self.context.say(str(error), "error")
            return
        purge = f"{name} --purge"
        living = sum(agent.alive for agent in view.agents)
        ends = f"Ends {living} running agent{'s' * (living != 1)} · " if living else ""
        agents, tasks = len(view.agents), len(view.tasks)
        lost = f"{agents} agent{'s' * (agents != 1)}, {tasks} task{'s' * (tasks != 1)}, all mail and results"

        def check(text: str) -> str | None:
            return None if " ".join(text.split()) in (name, purge) else f"type {name}, or {purge}"

        hint = f"{ends}Type its name: the files stay · with --purge behind it they are deleted: {lost}"
        text = await self.push_screen_wait(PromptLine(f"delete {name}", hint=hint, check=check))
        if text is None:
            return
        purges, of = " ".join(text.split()) == purge, replace(self.context.team, directory=team)

        def delete() -> str:
            from crewboard.commands import stop

            stop.delete(of, purge=purges)
            if purges:
                return f"the team {name} and its files are gone"
            return f"all agents of {name} are ended; files stay"

        says = await self.context.wait_for(f"deleting {name}", delete, str)
        if says is not None and purges and is_here:
            others = [each for each in team_directories(team.root) if each.is_own()]
            other = next(iter(others), TeamDirectory(team.path.with_name(DEFAULT_TEAM)))
            self.call_later(self.turn_to, other, says)

    async def action_next_need(self) -> None:
        await self.open_next_need()

    def action_absence(self) -> None:
        """Show what happened while the user was away."""
        from crewboard_tui.views.feed import AbsencePage

        self.context.absence_seen = True
        self.push_screen(AbsencePage(self.context))

    def action_rules(self) -> None:
        """Show the permission rules."""
        from crewboard_tui.views.needs import RulesPage

        if not isinstance(self.screen, RulesPage):
            self.push_screen(RulesPage(self.context))

    def action_hosts(self) -> None:
        """Show the hosts of the team."""
        from crewboard_tui.views.hosts import HostsPage

        if not isinstance(self.screen, HostsPage):
            self.push_screen(HostsPage(self.context))

    def action_command_palette(self) -> None:
        # Imported here, because the first picture need not wait for it.
        from crewboard_tui.views.palette import Palette

        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(self.screen))

    def action_help(self) -> None:
        from crewboard_tui.views.help import HelpScreen

        self.push_screen(HelpScreen(self.screen, self.context.key))

    def action_turn_theme(self) -> None:
        known = names(self.available_themes)
        self.action_use_theme(known[(known.index(self.theme.removeprefix(PREFIX)) + 1) % len(known)])

    def _colour(self, name: str) -> None:
        # Computed for the chosen one alone: all of them would take 15 ms of the start.
        theme = {**THEMES, **self.settings.themes}[name]
        self.register_theme(for_terminal(theme, self.console.color_system))
        self.theme = theme.name

    def action_use_theme(self, name: str) -> None:
        """Show the colours of a theme, and remember it."""
        if self.no_color:
            self.context.say("no colours here: NO_COLOR is set", "warning")
            return
        self._colour(name)
        try:
            self.settings.remember(name)
        except (CrewboardError, OSError) as error:
            self.context.say(f"{name} colours, but only for now: {error}", "warning")
        else:
            self.context.say(f"{name} colours")

    def action_turn_notify(self) -> None:
        """Switch to the next kind of notification."""
        self.outside.notify = WAYS[(WAYS.index(self.outside.notify) + 1) % len(WAYS)]
        self.context.say(_TELLS[self.outside.notify])

    def action_restart_supervisor(self) -> None:
        """Replace a supervisor that hangs."""

        def restart() -> str:
            return f"supervisor {supervisor_client.restart(self.context.team.directory)} works"

        self.context.do("replacing the supervisor", restart)

    @work
    async def action_halt(self) -> None:
        """End all agents after the user typed the team's name."""
        context, view = self.context, self.context.view
        living = sum(agent.alive for agent in view.agents)
        hint = f"Type {view.name} · the files stay · {context.key('line.leave')} ends none"

        def check(text: str) -> str | None:
            return None if text.strip() == view.name else f"no agent was ended: {hint}"

        label = f"end all {living}: the team's name"
        if await self.push_screen_wait(PromptLine(label, hint=hint, check=check)) is None:
            context.say("no agent was ended")
            return

        def halt() -> str:
            from crewboard.commands import stop

            stop.delete(context.team, now=True)
            return f"all agents are ended; the files stay, {context.key('agent.resume')} resumes one"

        context.do("ending all agents", halt)

    async def action_leave(self) -> None:
        if not await self._goes_to_form():
            self._keep_visit()
            self.exit()

    async def action_leave_unless_writing(self) -> None:
        """Leave the dashboard, but not from a text input outside a form, because editors use Ctrl-C to copy."""
        from textual.widgets import TextArea

        if isinstance(self.focused, TextArea) and not is_form(self.screen):
            self.context.say(
                f"{self.context.key('view.back')} ends writing, then {self.context.key('app.leave')} leaves"
            )
        else:
            await self.action_leave()

    def action_suspend(self) -> None:
        """Stop the dashboard and what runs in its job, as `make demo` does, and give the terminal back to the shell."""
        if self._driver is None or not self._driver.can_suspend:
            self.context.say("suspend: only in a terminal", "warning")
        elif not process.has_job_control():
            self.context.say("suspend: no shell here that would continue it", "warning")
        else:
            self.outside.restore()
            with self.suspend():
                # The system may give SIGCONT to any thread, and Textual's handler would run when `suspend` has resumed:
                # two threads would read keys, and one of them would wait for ever for what the other has read.
                resumes = signal.signal(signal.SIGCONT, signal.SIG_DFL)
                os.killpg(0, signal.SIGTSTP)
                signal.signal(signal.SIGCONT, resumes)
            self.outside.read(self.context.view)

    # ------------------------------------------------------------------------------------------- opening views

    def ask(
        self,
        prompt: Screen[str | None],
        given: Callable[[str], object] = lambda _: None,
        left: Callable[[], object] = lambda: None,
    ) -> None:
        if isinstance(prompt, PromptLine):
            prompt.pressed = self.context.key

        def answered(text: str | None) -> None:
            if text is None:
                left()
            else:
                given(text)

        self.push_screen(prompt, answered)

    def open_menu(self) -> None:
        from crewboard_tui.views.palette import Menu

        if isinstance(self.screen, BaseScreen):
            menu = Menu(self.screen)
            self.push_screen(menu, menu.do)

    async def open_view(self, mode: str, at: str = "", *, find: str = "") -> None:
        await self.switch_mode(mode)
        await self._pop_to_view()
        if at and isinstance(self.screen, BaseScreen):
            self.screen.go_to(at)
        if find and isinstance(self.screen, BaseScreen):
            self.screen.search.narrow(find)

    async def _pop_to_view(self) -> None:
        """Leave the pages on top of a view, but not a form that is being filled."""
        while len(self.screen_stack) > 1 and not is_form(self.screen):
            await self.pop_screen()

    def open_agent(self, name: str, tab: str = "Now", result_in: str = "") -> None:
        from crewboard_tui.views.agent import AgentPage

        self.push_screen(AgentPage(self.context, name, tab, result_in=result_in))

    def watch_agent(self, name: str, since: float) -> None:
        from crewboard_tui.views.agent import AgentPage

        self.switch_screen(AgentPage(self.context, name, since=since))

    async def open_hire_form(self, hired: Callable[[str], None], like: AgentView | None = None, host: str = "") -> None:
        from crewboard_tui.views.hire import HireScreen

        if not await self._goes_to_form():
            self.push_screen(HireScreen(self.context, hired, like, host))

    async def open_team(self, team: TeamDirectory) -> None:
        if not await self._goes_to_form():
            self.call_later(self.turn_to, team)

    async def _goes_to_form(self) -> bool:
        """Show the form that is open, if there is one, and return True: another screen would lose it or hide it."""
        for mode, stack in self._screen_stacks.items():
            if any(is_form(screen) for screen in stack):
                await self.switch_mode(mode)
                hires, leaves = self.context.key("hire.send"), self.context.key("hire.cancel")
                self.context.say(f"this form is open still: {hires} hires, {leaves} leaves it", "warning")
                return True
        return False

    def open_request(self, request: Request) -> None:
        from crewboard_tui.views.requests.plan_screen import ReviewScreen
        from crewboard_tui.views.requests.question_screen import QuestionScreen

        page = (QuestionScreen if request.type == "question" else ReviewScreen)(self.context, request)
        if isinstance(self.screen, BaseScreen) and self.screen.subject is not None:
            self.switch_screen(page)
        else:
            self.push_screen(page)

    async def open_next_need(self) -> None:
        screen = next((each for each in reversed(self.screen_stack) if isinstance(each, BaseScreen)), None)
        need = screen.next_need if screen is not None else None
        if need is None:
            self.context.say("nothing needs you", "dim")
        else:
            needs = self.context.view.needs
            if screen is not None and screen.shown_need == needs[-1].key != need.key:
                self.context.say("that was the last need: this is the first again", "dim")
            await self.open_need(need.key)

    async def open_need(self, key: str) -> None:
        need = self.context.view.need(key)
        if need is None:
            return
        self.context.visited = key
        request = self.context.view.request(need.request_id)
        if request is not None:
            for below in self.screen_stack:
                if isinstance(below, BaseScreen) and below.MODE == _NEEDS:  # Esc leads back to the same need
                    below.go_to(key)
            self.open_request(request)
            return
        if isinstance(self.screen, BaseScreen) and self.screen.subject is not None:
            # Its keys answer: it must not wait below the number of a view.
            await self.pop_screen()
        # Other open pages keep their place, and a form keeps what was written into it.
        await self.open_view(_NEEDS, key)
