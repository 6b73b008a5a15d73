"""The dashboard: modes, themes, and the flow of snapshots from the reading thread to the screens."""

import gc
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, Monochrome, NoColor
from textual.screen import Screen
from textual.widgets import Input, TextArea

from crewboard.errors import CrewboardError
from crewboard.store.directory import TeamDirectory, team_directories
from crewboard.team import ending
from crewboard.team.context import Team
from crewboard.view.fold import Need, TeamView
from crewboard.view.processes import Glance, Probe
from crewboard.view.reader import TeamReader
from crewboard_tui import keys
from crewboard_tui.ascii import AsciiFilter
from crewboard_tui.desk import Desk
from crewboard_tui.errands import Errands
from crewboard_tui.messages import ErrandDone, TeamRead
from crewboard_tui.outside import WAYS, Outside
from crewboard_tui.palette import Commands
from crewboard_tui.reading import Reading, Snapshot
from crewboard_tui.screens.ask_line import AskLine
from crewboard_tui.screens.board import BoardScreen
from crewboard_tui.screens.cost import CostScreen
from crewboard_tui.screens.feed import FeedScreen
from crewboard_tui.screens.frame import Framed
from crewboard_tui.screens.help import HelpScreen
from crewboard_tui.screens.hire import HireScreen
from crewboard_tui.screens.inbox import InboxScreen
from crewboard_tui.screens.needs import NeedsScreen
from crewboard_tui.screens.numbered import Numbered
from crewboard_tui.screens.opening import open_request
from crewboard_tui.screens.processes import ProcessesScreen
from crewboard_tui.screens.request import RequestScreen, fate_of
from crewboard_tui.screens.tasks import TasksScreen
from crewboard_tui.screens.teams import TeamsScreen
from crewboard_tui.settings import Settings
from crewboard_tui.themes import THEMES, after
from crewboard_tui.widgets.composer import Composer
from crewboard_tui.widgets.need_rows import find_need, need_key

_VIEWS: tuple[type[Numbered], ...] = (
    BoardScreen, InboxScreen, TasksScreen, NeedsScreen, ProcessesScreen, FeedScreen, CostScreen,
)  # fmt: skip

_HERE = Path(__file__).parent

TICK = 1.0
"""Seconds between two looks at the ages on the screen."""

_TELLS = {
    "off": "what comes to need you makes no sound",
    "bell": "what comes to need you rings the bell of this terminal",
    "desktop": "what comes to need you is a notification of this terminal's desktop",
}

_BETWEEN = "between"
"""The mode of the moment in which one team's views are gone and the next one's are not there."""


class CrewboardApp(App[None], inherit_bindings=False):
    """One team on one terminal."""

    CSS_PATH = [_HERE / "app.tcss", *sorted((_HERE / "screens").glob("*.tcss"))]
    BINDINGS: ClassVar[list[BindingType]] = [
        *keys.bindings("app"),
        Binding("ctrl+c", "leave", "leave", tooltip=keys.BY_ID["app.leave"].says, show=False, id="app.leave_too"),
    ]
    COMMANDS = {Commands}
    COMMAND_PALETTE_BINDING = "ctrl+p"
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        team: Team,
        *,
        ascii_only: bool = False,
        read_only: bool = False,
        probe: Probe | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings or Settings()
        self.title = f"crewboard · {team.directory.path.name}"
        self.animation_level = "none"
        for theme in THEMES.values():
            self.register_theme(theme)
        self.theme = THEMES[self.settings.theme].name
        self.set_keymap(dict(self.settings.keys))
        self.outside = Outside(self._write, notify=self.settings.notify, ascii_only=ascii_only)
        self._ascii = [AsciiFilter()] if ascii_only else []
        self._visited: str | None = None
        self._unshown = False
        self._probe = probe
        self.drafts: dict[Path, dict[str, str]] = {}
        """What was written and not sent, by team and by recipient."""
        self.desk = self._sit_down(team, Errands(self.post_message), read_only=read_only)

    def _sit_down(self, team: Team, errands: Errands, *, read_only: bool) -> Desk:
        """A desk for a team, which nobody reads for yet."""
        may_ring = not read_only and self._probe is None
        reading = Reading(team.directory, self._publish, clock=team.now, probe=self._probe, may_ring=may_ring)
        return Desk(
            team=team,
            read_only=read_only,
            snapshot=reading.first(),
            reading=reading,
            errands=errands,
            announce=self._paint_status,
            drafts=self.drafts.setdefault(team.directory.path, {}),
            keys=self.settings.keys,
            reduced_motion=self.settings.reduced_motion,
        )

    def on_mount(self) -> None:
        self._add_views()
        self.switch_mode(BoardScreen.MODE)
        self.set_interval(TICK, self._tick)
        self.outside.read(self.desk.snapshot.view)
        self._name_problems(self.settings.problems)
        self.desk.reading.start()

    def on_ready(self) -> None:
        gc.freeze()
        gc.enable()

    def _add_views(self) -> None:
        for view in _VIEWS:
            self.add_mode(view.MODE, _make(view, self.desk))

    async def turn_to(self, directory: TeamDirectory) -> None:
        """Show another team: its own desk and views; what was asked of the old one is still done."""
        old = self.desk
        old.left = True
        old.reading.stop()
        self.desk = self._sit_down(replace(old.team, directory=directory), old.errands, read_only=old.read_only)
        self._visited, self._unshown = None, False
        self.title = f"crewboard · {directory.path.name}"
        self.add_mode(_BETWEEN, Screen)
        await self.switch_mode(_BETWEEN)
        for view in _VIEWS:
            await self.remove_mode(view.MODE)
        self._add_views()
        await self.switch_mode(BoardScreen.MODE)
        await self.remove_mode(_BETWEEN)
        self.outside.turn(self.desk.snapshot.view)
        self.desk.reading.start()

    def on_unmount(self) -> None:
        self.desk.reading.stop()
        self.outside.restore()

    def _name_problems(self, problems: tuple[str, ...]) -> None:
        """Say which settings cannot be used, as far as that can be read at a glance."""
        if problems:
            more = f" … and {len(problems) - 2} more: `crewboard doctor`" if len(problems) > 2 else ""  # noqa: PLR2004
            self.desk.say(" · ".join(problems[:2]) + more, "error")

    def _write(self, sequence: str) -> None:
        """Send a sequence to the terminal, past the screen."""
        if self._driver is not None:
            self._driver.write(sequence)

    def get_line_filters(self) -> list[LineFilter]:
        # Textual turns colours to greys, which are colours too (no-color.org).
        filters = [NoColor() if isinstance(each, Monochrome) else each for each in super().get_line_filters()]
        return [*filters, *self._ascii]

    def on_resize(self, event: events.Resize) -> None:
        """Paint anew what a terminal forgot that shrank and grew back before anybody looked: its size is no news."""
        if event.size == self.size:
            self.refresh()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Nothing blinks, wherever one writes."""
        if isinstance(event.widget, Input | TextArea):
            event.widget.cursor_blink = False

    # ------------------------------------------------------------------------------------------------ the flow

    def _publish(self, snapshot: Snapshot) -> None:
        """Called in the reading thread."""
        self.post_message(TeamRead(snapshot))

    def on_team_read(self, message: TeamRead) -> None:
        if message.snapshot.view.path != self.desk.team.directory.path:
            return  # read for a team that was left meanwhile
        before, self.desk.snapshot = self.desk.snapshot, message.snapshot
        self.outside.read(message.snapshot.view)
        # Where motion is reduced, what moves by itself waits for the tick; what somebody asked to see does not.
        self._unshown = self.settings.reduced_motion and before.interest == message.snapshot.interest
        if not self._unshown:
            self._show()

    def on_errand_done(self, message: ErrandDone) -> None:
        self.desk.errands.hear(message)
        self._reload_drafts()
        if message.says:
            self.desk.say(message.says, "error" if message.error else "success")
        self.desk.reading.poke()
        if message.then is not None:
            message.then(not message.error, message.says)

    def _reload_drafts(self) -> None:
        """Show what came back among the drafts wherever one writes, lest what is typed next takes its place."""
        for screen in itertools.chain.from_iterable(self._screen_stacks.values()):
            if isinstance(screen, AskLine):
                screen.reload()
            for composer in screen.query(Composer):
                if composer.is_mounted:
                    composer.reload()

    def _tick(self) -> None:
        self.outside.tick()
        hushed = self.desk.hush()
        if self._unshown:
            self._show()
        for screen in self._framed():
            screen.tick()
            screen.paint_frame(self.desk.snapshot)
            if hushed:
                screen.paint_keys()

    def _show(self) -> None:
        self._unshown = False
        for screen in self._framed():
            screen.show(self.desk.snapshot)

    def _framed(self) -> Iterable[Framed]:
        """The full screens that can be seen, also behind something smaller."""
        shown: list[Framed] = []
        for screen in reversed(self.screen_stack):
            if isinstance(screen, Framed):
                shown.append(screen)
                break
        return [screen for screen in shown if screen.is_ready]

    def _paint_status(self) -> None:
        for screen in self._framed():
            screen.paint_status()

    # ------------------------------------------------------------------------------------------------ the keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if action in ("leave", "teams"):
            # One stray letter must not throw away what is being written.
            return not isinstance(self.screen, HireScreen)
        if action == "halt":
            return not self.desk.read_only and any(agent.alive for agent in self.desk.snapshot.view.agents)
        return bool(self.desk.snapshot.view.needs) if action == "next_need" else True

    async def action_view(self, mode: str) -> None:
        """Go to a numbered view where one left it; pressed again, to the view itself."""
        again = mode == self.current_mode
        await self.switch_mode(mode)
        while isinstance(self.screen, RequestScreen) and fate_of(self.screen.seen, self.desk.snapshot.view):
            await self.pop_screen()  # what is settled needs nobody any more
        if again:
            await self._pop_to_view()

    async def _pop_to_view(self) -> None:
        """Leave the pages on top of a view, but not a form that is being filled."""
        while len(self.screen_stack) > 1 and not isinstance(self.screen, HireScreen):
            await self.pop_screen()

    async def action_go(self, mode: str, mailbox: str = "") -> None:
        """Go to a numbered view itself, whatever page is on top; in the Inbox, to a mailbox."""
        await self.switch_mode(mode)
        await self._pop_to_view()
        if mailbox and isinstance(self.screen, InboxScreen):
            self.screen.show_box(mailbox)

    async def _goes_to_form(self) -> bool:
        """Whether a form is open on another view, which leaving would lose: then that is where one goes."""
        for mode, stack in self._screen_stacks.items():
            if any(isinstance(screen, HireScreen) for screen in stack):
                await self.switch_mode(mode)
                self.desk.say("this form is open still: ^s hires, Esc throws it away", "warning")
                return True
        return False

    async def action_teams(self) -> None:
        """Choose another team of this root."""
        if await self._goes_to_form():
            return
        here = self.desk.team.directory
        teams = team_directories(here.root)

        def chosen(team: TeamDirectory | None) -> None:
            if team is not None and team != here:
                self.call_later(self.turn_to, team)

        self.push_screen(TeamsScreen(teams if here in teams else [here, *teams], here, self._look_at), chosen)

    def _look_at(self, team: TeamDirectory) -> TeamView:
        return TeamReader(team, clock=self.desk.team.now, probe=self._probe or Glance()).read()

    async def action_next_need(self) -> None:
        """Open the most urgent need, or the one behind the one that was opened last."""
        needs = self.desk.snapshot.view.needs
        names = [need_key(need) for need in needs]
        if not names:
            self.desk.say("nobody needs you", "dim")
            return
        at = (names.index(self._visited) + 1) % len(names) if self._visited in names else 0
        await self._open(needs[at])

    async def action_open_need(self, key: str) -> None:
        """Open one need."""
        need = find_need(self.desk.snapshot.view, key)
        if need is not None:
            await self._open(need)

    async def _open(self, need: Need) -> None:
        self._visited = need_key(need)
        request = self.desk.snapshot.view.request(need.request_id) if need.request_id else None
        if request is not None:
            open_request(self, self.desk, request)
            return
        # Whatever is open elsewhere keeps its place, and a form keeps what was written into it.
        await self.switch_mode(NeedsScreen.MODE)
        await self._pop_to_view()
        if isinstance(self.screen, NeedsScreen):
            self.screen.show_need(self._visited)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.screen))

    def action_turn_theme(self) -> None:
        name = after(self.theme)
        self.theme = THEMES[name].name
        try:
            self.settings.remember(name)
        except (CrewboardError, OSError) as error:
            self.desk.say(f"{name} colours, but only for now: {error}", "warning")

    def action_turn_notify(self) -> None:
        """Tell of new needs in the next way."""
        self.outside.notify = WAYS[(WAYS.index(self.outside.notify) + 1) % len(WAYS)]
        self.desk.say(_TELLS[self.outside.notify])

    def action_halt(self) -> None:
        """End everybody, once the team's name was typed."""
        view = self.desk.snapshot.view
        living = sum(agent.alive for agent in view.agents)

        def done(text: str | None) -> None:
            if text is not None and text.strip() == view.name:
                self.desk.do("ending everybody", self._halt)
            else:
                self.desk.say(f"nobody was ended: that takes the team's name, {view.name}", "warning")

        ask = AskLine(f"end all {living}: the team's name", hint=f"Type {view.name} · the files stay · Esc ends nobody")
        self.push_screen(ask, done)

    def _halt(self) -> str:
        ending.delete(self.desk.team, now=True)
        return "everybody is ended; the files stay, r brings one back"

    async def action_leave(self) -> None:
        if not await self._goes_to_form():
            self.exit()


def _make(view: type[Numbered], desk: Desk) -> Callable[[], Screen[Any]]:
    return lambda: view(desk)
