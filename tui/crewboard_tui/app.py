"""The dashboard: what the keys do that work everywhere."""

from typing import ClassVar

from textual.binding import Binding, BindingType

from crewboard.errors import CrewboardError
from crewboard.readmodel.processes import NoUsageProbe
from crewboard.readmodel.reader import TeamReader
from crewboard.readmodel.team import Need, TeamView
from crewboard.store.layout import TeamDirectory, team_directories
from crewboard_tui.compose.prompt_line import PromptLine
from crewboard_tui.keymap import bindings
from crewboard_tui.keymap.palette import Commands
from crewboard_tui.notifications import WAYS
from crewboard_tui.render.themes import THEMES, after
from crewboard_tui.updates import Flow
from crewboard_tui.views.base import Framed, goes_to_form, is_form
from crewboard_tui.views.needs.rows import find_need, need_key
from crewboard_tui.views.numbered import Numbered

_TELLS = {
    "off": "what comes to need you makes no sound",
    "bell": "what comes to need you rings the bell of this terminal",
    "desktop": "what comes to need you is a notification of this terminal's desktop",
}


class CrewboardApp(Flow):
    """The dashboard of one team on one terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings.bindings("app"),
        Binding("ctrl+c", "leave", "leave", tooltip=bindings.BY_ID["app.leave"].says, show=False, id="app.leave_too"),
    ]
    COMMANDS = {Commands}
    COMMAND_PALETTE_BINDING = "ctrl+p"
    ENABLE_COMMAND_PALETTE = True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if action in ("leave", "teams"):
            # One stray letter must not throw away what is being written.
            return not is_form(self.screen)
        if action == "halt":
            return not self.context.read_only and any(agent.alive for agent in self.context.snapshot.view.agents)
        return bool(self.context.snapshot.view.needs) if action == "next_need" else True

    async def action_view(self, mode: str) -> None:
        """Go to a numbered view where one left it; pressed again, to the view itself and its list."""
        again = mode == self.current_mode
        await self.switch_mode(mode)
        while isinstance(self.screen, Framed) and self.screen.is_over:
            await self.pop_screen()
        if again:
            await self._pop_to_view()
            for view in self.screen_stack[-1:]:  # none is left where the dashboard was left meanwhile
                if isinstance(view, Numbered):
                    view.begin()

    async def _pop_to_view(self) -> None:
        """Leave the pages on top of a view, but not a form that is being filled."""
        while len(self.screen_stack) > 1 and not is_form(self.screen):
            await self.pop_screen()

    async def action_go(self, mode: str, mailbox: str = "") -> None:
        """Go to a numbered view itself, whatever page is on top; in the Inbox, to a mailbox."""
        await self.switch_mode(mode)
        await self._pop_to_view()
        from crewboard_tui.views.inbox.screen import InboxScreen

        if mailbox and isinstance(self.screen, InboxScreen):
            self.screen.show_box(mailbox)

    async def action_meet(self, name: str) -> None:
        """Show the Board itself, with the cursor on an agent, who may not be read yet."""
        await self.action_go("board")
        from crewboard_tui.views.board.screen import BoardScreen

        if isinstance(self.screen, BoardScreen):
            self.screen.meet(name)

    async def action_teams(self) -> None:
        """Choose another team of this root."""
        from crewboard_tui.views.teams import TeamsScreen

        if await goes_to_form(self, self.context):
            return
        here = self.context.team.directory
        teams = [team for team in team_directories(here.root) if team.is_own()]

        def chosen(team: TeamDirectory | None) -> None:
            if team is not None and team != here:
                self.call_later(self.turn_to, team)

        shown = teams if here in teams else [here, *teams]
        self.push_screen(TeamsScreen(shown, here, self._look_at, self.context.key), chosen)

    def _look_at(self, team: TeamDirectory) -> TeamView:
        return TeamReader(team, clock=self.context.team.now, probe=self._probe or NoUsageProbe()).read()

    async def action_next_need(self) -> None:
        """Open the most urgent need, or the one behind the one that is on the screen."""
        screen = next((each for each in reversed(self.screen_stack) if isinstance(each, Framed)), None)
        need = screen.next_need if screen is not None else None
        if need is None:
            self.context.say("nobody needs you", "dim")
        else:
            await self._open(need)

    async def action_open_need(self, key: str) -> None:
        """Open one need."""
        need = find_need(self.context.snapshot.view, key)
        if need is not None:
            await self._open(need)

    async def _open(self, need: Need) -> None:
        from crewboard_tui.views.needs.screen import NeedsScreen
        from crewboard_tui.views.requests.base import RequestScreen
        from crewboard_tui.views.requests.routing import open_request

        self.context.visited = need_key(need)
        request = self.context.snapshot.view.request(need.request_id) if need.request_id else None
        if request is not None:
            for below in self.screen_stack:
                if isinstance(below, NeedsScreen):  # Esc leads back to the same thing
                    below.show_need(self.context.visited)
            open_request(self, self.context, request)
            return
        if isinstance(self.screen, RequestScreen):  # its keys answer: it must not wait below the number of a view
            await self.pop_screen()
        # Whatever else is open keeps its place, and a form keeps what was written into it.
        await self.switch_mode(NeedsScreen.MODE)
        await self._pop_to_view()
        if isinstance(self.screen, NeedsScreen):
            self.screen.show_need(self.context.visited)

    def action_help(self) -> None:
        from crewboard_tui.views.help import HelpScreen

        self.push_screen(HelpScreen(self.screen, self.context.key))

    def action_turn_theme(self) -> None:
        if self.no_color:
            self.context.say("no colours here: NO_COLOR is set", "warning")
            return
        name = after(self.theme)
        self.theme = THEMES[name].name
        try:
            self.settings.remember(name)
        except (CrewboardError, OSError) as error:
            self.context.say(f"{name} colours, but only for now: {error}", "warning")
        else:
            self.context.say(f"{name} colours")

    def action_turn_notify(self) -> None:
        """Tell of new needs in the next way."""
        self.outside.notify = WAYS[(WAYS.index(self.outside.notify) + 1) % len(WAYS)]
        self.context.say(_TELLS[self.outside.notify])

    def action_halt(self) -> None:
        """End everybody, once the team's name was typed."""
        view = self.context.snapshot.view
        living = sum(agent.alive for agent in view.agents)

        def done(text: str | None) -> None:
            if text is not None and text.strip() == view.name:
                self.context.do("ending everybody", self._halt)
            else:
                self.context.say(f"nobody was ended: that takes the team's name, {view.name}", "warning")

        hint = f"Type {view.name} · the files stay · {self.context.key('line.leave')} ends nobody"
        ask = PromptLine(f"end all {living}: the team's name", hint=hint)
        self.push_screen(ask, done)

    def _halt(self) -> str:
        from crewboard.commands import stop

        stop.delete(self.context.team, now=True)
        return f"everybody is ended; the files stay, {self.context.key('agent.resume')} brings one back"

    async def action_leave(self) -> None:
        if not await goes_to_form(self, self.context):
            self.exit()
