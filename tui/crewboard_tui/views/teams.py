"""The list of teams that `t` opens, with the needs of each; keys switch to, create and delete a team."""

import threading
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from msgspec import Struct
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message
from textual.screen import ModalScreen

from crewboard import CrewboardError, TeamView
from crewboard.store.layout import TeamDirectory
from crewboard_tui.keymap.bindings import Pressed, bindings_of
from crewboard_tui.notifications import waiting
from crewboard_tui.render.lines import Line, Span, pad, say, spread
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.widgets.line_list import LineList, Row

Look = Callable[[TeamDirectory], TeamView]

BADGE = "claude code"
"""The mark of teams of Claude Code, attached or not."""


class TeamChoice(Struct, frozen=True):
    """The user's choice: an action, and the team for it."""

    what: Literal["show", "attach", "create", "delete"]
    team: TeamDirectory


class TeamsScreen(ModalScreen[TeamChoice | None]):
    """The list of teams. The needs of each are read in a thread, because that may take a while."""

    CSS_PATH = "dialogs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("teams")]

    class Seen(Message):
        """Sent when a team was read; `line` describes it."""

        def __init__(self, name: str, line: Line) -> None:
            super().__init__()
            self.name = name
            self.line = line

    def __init__(
        self,
        teams: list[TeamDirectory],
        here: TeamDirectory,
        look: Look,
        pressed: Pressed,
        *,
        read_only: bool = False,
        is_empty: bool = False,
        found: Mapping[str, str] | None = None,
    ) -> None:
        """Show `teams`, and the teams of another program that can be attached: `found`, descriptions by directory name.

        `here` is the team that is shown now, and `is_empty` is True if it has no agents. `look` reads a team.
        """
        super().__init__()
        self._rows = LineList(id="teams", classes="dialog")
        self._is_empty = is_empty
        self._found = dict(found or {})
        offered = [TeamDirectory(here.path.with_name(name)) for name in self._found]
        self._teams = {team.path.name: team for team in (*teams, *offered)}
        self._here = here.path.name
        self._read_only = read_only
        self._look = look
        self._pressed = pressed
        self._seen: dict[str, Line] = {}

    def compose(self) -> ComposeResult:
        self._rows.rule.entitle(
            f"Teams · {len(self._teams)}",
            f"{self._pressed('list.open')} go there · {self._pressed('teams.leave')} stay",
        )
        yield self._rows

    def on_mount(self) -> None:
        self.bindings_updated_signal.subscribe(self, lambda _: self._paint_keys())
        # A team without agents is left for one that works.
        self._rows.want(next(iter(self._found), self._here) if self._is_empty else self._here)
        self._paint()
        threading.Thread(target=self._look_at_all, name="crewboard-teams", daemon=True).start()

    def _paint_keys(self) -> None:
        """Show the keys of this list in the footer of the screen behind it, whose own keys do nothing meanwhile."""
        behind = self.app.screen_stack[-2] if self.is_current else None
        if isinstance(behind, BaseScreen) and behind.is_ready:
            behind.paint_keys_of(self)

    def on_resize(self) -> None:
        self.call_after_refresh(self._paint)

    def _look_at_all(self) -> None:
        seen: Line
        for name, team in self._teams.items():
            try:
                if name in self._found:
                    seen = (Span(f"{BADGE}  ", "info"), Span("not attached  ", "dim"), say(self._found[name]))
                else:
                    view = self._look(team)
                    alive = sum(agent.alive for agent in view.agents)
                    counts = waiting(view)
                    seen = (
                        Span(f"{BADGE}  " if view.attached else "", "info"),
                        Span(f"{counts}  " if counts else "", "warning bold"),
                        Span(f"{alive} of {len(view.agents)} alive  " if view.agents else "no agents yet  ", "dim"),
                        say(view.description),
                    )
            except (CrewboardError, OSError) as error:
                seen = (say(str(error), "error"),)
            self.post_message(self.Seen(name, seen))

    @on(Seen)
    def _note(self, event: Seen) -> None:
        self._seen[event.name] = event.line
        self._paint()

    def _paint(self) -> None:
        rows, longest, found = self._rows, max(map(len, self._teams)), []
        for name in self._teams:
            here = "  here" if name == self._here else ""
            left = (Span(pad(name, longest) + "  ", "bold"), *self._seen.get(name, (Span("…", "dim"),)))
            found.append(Row(name, spread(left, (Span(here, "dim"),), rows.row_width)))
        rows.show(found)

    @on(LineList.Opened)
    def _choose(self, event: LineList.Opened) -> None:
        self.dismiss(TeamChoice("attach" if event.key in self._found else "show", self._teams[event.key]))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("create", "delete"):
            return not self._read_only
        return super().check_action(action, parameters)

    def action_create(self) -> None:
        self.dismiss(TeamChoice("create", self._teams[self._here]))

    def action_delete(self) -> None:
        if (name := self._rows.selected) is not None and name not in self._found:
            self.dismiss(TeamChoice("delete", self._teams[name]))
