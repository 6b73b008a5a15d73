"""Hiring an agent: a form that says what the type may do, and is a command at the same time."""

import shlex
from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Label, TextArea

from crewboard import own_types
from crewboard.agent_types import AgentType
from crewboard.errors import CrewboardError, UsageError
from crewboard.names import check_agent
from crewboard.prices import parse_budget
from crewboard.records import Flags
from crewboard.store.tasks import CLOSED
from crewboard.team import hiring
from crewboard.view.fold import TeamView
from crewboard_tui import keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, say, wrap
from crewboard_tui.reading import Snapshot
from crewboard_tui.screens.frame import Framed
from crewboard_tui.widgets.choice import Choice
from crewboard_tui.widgets.heading import crumbs_line
from crewboard_tui.widgets.still import Still
from crewboard_tui.widgets.tick import Tick

_MOST_TURNS = 100


class HireScreen(Framed):
    """The form. `^s` hires; the form stays until the worker is up, and says why if it does not come."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("edit")]
    AUTO_FOCUS = "#hire-name"

    def __init__(self, desk: Desk, hired: Callable[[str], None]) -> None:
        super().__init__(desk)
        self._hired = hired
        self._types, _ = own_types.find_all(desk.team.directory.root)
        self._busy = False
        self._refused: str | None = None

    def _kind(self) -> AgentType:
        return self._types[self.query_one("#hire-type", Choice).value]

    def heading(self, snapshot: Snapshot, width: int) -> Line:
        return crumbs_line([snapshot.view.name, "Hire an agent"], "", width)

    def body(self) -> Iterable[Widget]:
        view = self.desk.snapshot.view
        with Vertical(id="form", classes="pane") as form:
            form.border_title = Content("Hire an agent")
            yield _row("Name", _input("hire-name", free_name(view)))
            yield _row("Type", Choice([(name, name) for name in self._types], id="hire-type"))
            yield _row("", Label("", id="hire-may"))
            yield _row("Role", _input("hire-role", placeholder="what it is on this team, in a word or two"))
            prompt = TextArea(id="hire-prompt", compact=True, soft_wrap=True, tab_behavior="focus")
            prompt.cursor_blink = False
            yield _row("Prompt", prompt, classes="-tall-row")
            yield _row("First", Tick("a plan, and my yes, before it writes or runs anything", id="hire-plan"))
            yield _row("", Tick("ask me before each write and command", id="hire-ask"), id="row-ask")
            yield _row("May", Tick("use the network", id="hire-network"), id="row-network")
            limits = (Label(" turns ", classes="aside"), _input("hire-turns"), Label(" budget ", classes="aside"))
            yield _row("Model", _input("hire-model"), *limits, _input("hire-budget", placeholder="$5, 200k"))
            yield _row("Task", Choice(_task_options(view), id="hire-task"))
        yield Still(id="hire-word")

    def on_mount(self) -> None:
        self.query_one("#hire-type", Choice).choose("code")
        self.query_one("#hire-turns", Input).value = str(_MOST_TURNS)

    # ------------------------------------------------------------------------------------------- what it says

    def paint(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the form does not change by itself
        kind = self._kind()
        self.query_one("#hire-may", Label).update(Content(kind.summary))
        self.query_one("#row-network").display = kind.executes
        self.query_one("#row-ask").display = kind.executes or kind.writes
        model = hiring.choose_model(kind, None, self.desk.team.environment)
        self.query_one("#hire-model", Input).placeholder = model
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
            hire = self.hire()
            check_agent(hire.name, hire.type)
            if hire.flags.budget is not None:
                parse_budget(hire.flags.budget)
        except UsageError as error:
            return str(error)
        member = self.desk.snapshot.view.agent(hire.name)
        if member is not None and member.type != hire.type:
            return f"{hire.name} is of type {member.type}; choose another name"
        if member is not None and member.alive and member.state != "idle":
            return f"{hire.name} is at work; choose another name, or write to it with m"
        if not hire.prompt.strip():
            return "it needs a prompt: say what it should do"
        return None

    def hire(self) -> hiring.Hire:
        """What the form says.

        Raises:
            UsageError: The turn limit is no number.
        """
        kind = self._kind()
        turns = self._text("hire-turns")
        if not turns.isdigit() or int(turns) < 1:
            raise UsageError("the turn limit is a number from 1 on")
        task = self.query_one("#hire-task", Choice).value
        flags = Flags(
            plan=self.query_one("#hire-plan", Tick).value,
            ask=(kind.executes or kind.writes) and self.query_one("#hire-ask", Tick).value,
            network=kind.executes and self.query_one("#hire-network", Tick).value,
            budget=self._text("hire-budget") or None,
            max_turns=int(turns),
            task=int(task) if task else None,
        )
        prompt = self.query_one("#hire-prompt", TextArea).text
        model = self._text("hire-model") or None
        return hiring.Hire(self._text("hire-name"), kind.name, prompt, self._text("hire-role"), model, flags)

    def command(self) -> str:
        """The form as a command line."""
        try:
            hire = self.hire()
        except CrewboardError:
            return "crewboard spawn …"
        return shlex.join(spawn_words(hire))

    def _text(self, ident: str) -> str:
        return self.query_one(f"#{ident}", Input).value.strip()

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
        return super().offers(action)

    def action_send(self) -> None:
        hire = self.hire()
        self._busy = True
        self._say_word()

        def spawn() -> str:
            """Runs in a thread."""
            assignment = hiring.spawn(self.desk.team, hire)
            return f"hired {assignment.agent}: run {assignment.run} is up"

        self.desk.do(f"hiring {hire.name}", spawn, partial(self._came_back, hire.name))

    def _came_back(self, name: str, worked: bool, says: str) -> None:  # noqa: FBT001
        self._busy = False
        if worked:
            self._hired(name)
        if not self.is_attached:
            return
        if worked and self.is_current:
            self.dismiss()
            return
        self._refused = None if worked else says
        self._say_word()


def spawn_words(hire: hiring.Hire) -> list[str]:
    """The command line that hires the same agent."""
    flags = hire.flags
    terms: list[tuple[str, object]] = [
        ("--role", hire.role),
        ("--model", hire.model),
        ("--plan", flags.plan),
        ("--ask", flags.ask),
        ("--network", flags.network),
        ("--max-turns", flags.max_turns if flags.max_turns != _MOST_TURNS else None),
        ("--budget", flags.budget),
        ("--task", flags.task),
    ]
    words = ["crewboard", "spawn", hire.name or "NAME", "--type", hire.type, "--background"]
    for name, value in terms:
        if value:
            words += [name] if value is True else [name, str(value)]
    return [*words, "--prompt", hire.prompt.strip() or "…"]


def free_name(view: TeamView) -> str:
    """A name that nobody has yet."""
    taken = {agent.name for agent in view.agents}
    return next(name for number in range(1, len(taken) + 2) if (name := f"agent{number}") not in taken)


def _task_options(view: TeamView) -> list[tuple[str, str]]:
    open_tasks = [task for task in view.tasks if task.status not in CLOSED and task.owner is None]
    return [("", "none"), *((str(task.id), f"#{task.id} {task.subject}") for task in open_tasks)]


def _row(label: str, *fields: Widget, classes: str = "", id: str | None = None) -> Horizontal:
    return Horizontal(Label(label, classes="field-label"), *fields, classes=f"field-row {classes}", id=id)


def _input(ident: str, value: str = "", placeholder: str = "") -> Input:
    field = Input(value, id=ident, compact=True, placeholder=placeholder)
    field.cursor_blink = False
    return field
