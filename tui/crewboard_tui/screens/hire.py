"""Hiring an agent: a form that says what the type may do, and is a command at the same time."""

import shlex
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import Input, TextArea

from crewboard import own_types
from crewboard.errors import CrewboardError, UsageError
from crewboard.records import Profile
from crewboard.team import hiring
from crewboard_tui import fmt, keys, profiles
from crewboard_tui.desk import Desk
from crewboard_tui.hire_words import free_name, spawn_words, why_not
from crewboard_tui.lines import Line, Span, say, wrap
from crewboard_tui.reading import Snapshot
from crewboard_tui.screens.ask_line import AskLine
from crewboard_tui.screens.foreground import ForegroundPage
from crewboard_tui.screens.frame import Framed
from crewboard_tui.widgets.choice import Choice
from crewboard_tui.widgets.heading import crumbs_line
from crewboard_tui.widgets.hire_form import HireForm
from crewboard_tui.widgets.still import Still
from crewboard_tui.widgets.tick import Tick


class HireScreen(Framed):
    """The form. `^s` hires; the form stays until the worker is up, and says why if it does not come.

    It begins with what `profile` says, for an agent called `name`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("edit", "hire")]
    AUTO_FOCUS = "#hire-name"

    def __init__(
        self, desk: Desk, hired: Callable[[str], None], name: str | None = None, profile: Profile | None = None
    ) -> None:
        super().__init__(desk)
        self._hired = hired
        self._first = name or free_name(desk.snapshot.view, "agent1"), profile or Profile(type="code")
        self._types, _ = own_types.find_all(desk.team.directory.root)
        self._busy = False
        self._refused: str | None = None
        self._shelf = profiles.folder(desk.team.environment)

    @property
    def form(self) -> HireForm:
        """The fields."""
        return self.query_one(HireForm)

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return crumbs_line([snapshot.view.name, "Hire an agent"], "", width)

    def body(self) -> Iterable[Widget]:
        yield HireForm(self._first[0], self._types, self.desk.snapshot.view, self.desk.team.environment)
        yield Still(id="hire-word")

    def on_mount(self) -> None:
        self._fill(*self._first)

    # ------------------------------------------------------------------------------------------- what it says

    def paint(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the form does not change by itself
        self.form.paint()
        self._say_word()

    def _say_word(self) -> None:
        problem = self._refused or self.problem()
        width = max(10, self.size.width - 4)
        if self._busy:
            word: list[Line] = [(Span("  it is coming up …", "info"),)]
        elif problem:
            word = [(Span("  "), say(piece, "error")) for piece in wrap(problem, width)[:2]]
        else:
            word = [(Span("  ✓ ready: ", "success"), Span("^s", "key"), Span(" hires it"))]
        pieces = wrap(self.command(), width - 2, "    ")[:2]
        word += [(Span("  = " if not at else "  ", "dim"), say(piece, "dim")) for at, piece in enumerate(pieces)]
        self.query_one("#hire-word", Still).show(word)
        self.refresh_bindings()

    def problem(self) -> str | None:
        """Why this cannot be hired yet, as a sentence; None when it can."""
        try:
            return why_not(self.form.hire(), self.desk.snapshot.view)
        except UsageError as error:
            return str(error)

    def command(self) -> str:
        """The form as a command line."""
        try:
            return shlex.join(spawn_words(self.form.hire(), foreground=self.form.foreground))
        except CrewboardError:
            return "crewboard spawn …"

    # ------------------------------------------------------------------------------------------------ events

    @on(Input.Changed)
    @on(TextArea.Changed)
    @on(Tick.Changed)
    @on(Choice.Changed)
    def _edited(self) -> None:
        self._refused = None
        self.paint(self.desk.snapshot)

    @on(Input.Submitted)
    def _next_field(self) -> None:
        self.focus_next()

    def offers(self, action: str) -> bool | None:
        if action == "send":
            return not self._busy and self.problem() is None
        if action in ("save_profile", "load_profile"):
            return not self._busy
        return super().offers(action)

    def action_send(self) -> None:
        hire = self.form.hire()
        self._busy = True
        self._say_word()
        since = self.desk.now

        def spawn() -> str:
            """Runs in a thread."""
            assignment = hiring.spawn(self.desk.team, hire)
            return f"hired {assignment.agent}: run {assignment.run} is up"

        self.desk.do(f"hiring {hire.name}", spawn, partial(self._came_back, hire.name, since))

    def _came_back(self, name: str, since: float, worked: bool, says: str) -> None:  # noqa: FBT001
        self._busy = False
        if worked:
            self._hired(name)
        if not self.is_attached:
            return
        if worked and self.is_current:
            self._leave_for(name, since)
            return
        self._refused = None if worked else says
        self._say_word()

    def _leave_for(self, name: str, since: float) -> None:
        """Back to where the form was called, or on to the agent's work."""
        if self.form.foreground:
            self.app.switch_screen(ForegroundPage(self.desk, name, since))
        else:
            self.dismiss()

    # ---------------------------------------------------------------------------------------------- profiles

    def action_save_profile(self) -> None:
        try:
            profile = self.form.profile()
        except UsageError as error:
            self.desk.say(str(error), "error")
            return

        def done(name: str | None) -> None:
            if name is not None:
                self.desk.do(f"keeping the profile {name}", partial(self._save, name.strip(), profile))

        def check(name: str) -> str | None:
            return profiles.why_not(name.strip(), profile)

        names = list(profiles.load_all(self._shelf).profiles)
        self.app.push_screen(AskLine("keep as profile", check=check, names=names, hint="Enter keeps it"), done)

    def _save(self, name: str, profile: Profile) -> str:
        path = profiles.save(self._shelf, name, profile)
        return f"kept as {name}, without a key, in {fmt.homely(path)}"

    def action_load_profile(self) -> None:
        shelf = profiles.load_all(self._shelf)
        damaged = f"damaged, left out: {', '.join(shelf.damaged)}" if shelf.damaged else ""
        if not shelf.profiles:
            self.desk.say(damaged or "no profile is kept yet: ^p keeps this form as one", "warning")
            return
        if damaged:
            self.desk.say(damaged, "warning")

        def done(name: str | None) -> None:
            if name is not None:
                self._load(name.strip(), shelf.profiles[name.strip()])

        def check(name: str) -> str | None:
            return None if name.strip() in shelf.profiles else f"the profiles are {', '.join(shelf.profiles)}"

        self.app.push_screen(AskLine("load profile", check=check, names=list(shelf.profiles)), done)

    def _load(self, name: str, profile: Profile) -> None:
        chosen = self.form.agent_name
        untouched = chosen in ("", self._first[0])
        self.desk.say(f"filled from the profile {name}")
        self._fill(free_name(self.desk.snapshot.view, name) if untouched else chosen, profile)

    def _fill(self, name: str, profile: Profile) -> None:
        self.form.fill(name, profile)
        if profile.type not in self._types:
            self.desk.say(f"there is no type {profile.type} in this project: choose another", "error")
