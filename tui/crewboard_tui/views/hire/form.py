"""The fields of a hiring, filled from a profile and read as one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, Label, TextArea

from crewboard import env
from crewboard.agent_types.builtin import AgentType
from crewboard.commands import hire as hiring
from crewboard.errors import UsageError
from crewboard.readmodel.team import TeamView
from crewboard.records import HireOptions, Profile
from crewboard.store.tasks import CLOSED, blockers
from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import one_line
from crewboard_tui.render.sanitize import safe_text
from crewboard_tui.views.hire.validation import Problem
from crewboard_tui.widgets.form.checkbox import Checkbox
from crewboard_tui.widgets.form.radio import Radio
from crewboard_tui.widgets.form.segmented import SegmentedControl
from crewboard_tui.widgets.form.select import Select

_FOREGROUND = "foreground"
_MOST_DIGITS = 9
_MARKED = ("name", "limits")
"""Fields beneath which there is room to say what is wrong with them."""


class Field(Input):
    """One line of the form; Enter goes on to the next."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("form")]

    def __init__(self, ident: str, placeholder: str = "", value: str = "") -> None:
        super().__init__(value, id=ident, compact=True, placeholder=placeholder)
        self.cursor_blink = False


class Prompt(TextArea):
    """What the agent should do; Enter is a new line, and Tab goes on."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("prompt")]

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="hire-prompt", compact=True, soft_wrap=True, tab_behavior="focus", placeholder=placeholder)
        self.cursor_blink = False


class HireForm(Vertical):
    """What `spawn` may be told, as fields; `pressed` says how a key is pressed here."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("form")]

    def __init__(
        self,
        name: str,
        types: Mapping[str, AgentType],
        view: TeamView,
        environment: Mapping[str, str],
        pressed: bindings.Pressed,
    ) -> None:
        super().__init__(id="form", classes="pane")
        self._pressed = pressed
        self._first_name = name
        self._types = types
        self._view = view
        self._environment = environment
        self.border_title = Content("Hire an agent")

    def compose(self) -> ComposeResult:
        # Here at once, so that it is selected when the field takes the focus: what one types replaces it.
        yield _row("Name", Field("hire-name", value=self._first_name))
        yield _row("", Label("", classes="wrong"), id="wrong-name")
        yield _row("Type", SegmentedControl([(name, name) for name in self._types], id="hire-type"))
        yield _row("", Label("", id="hire-may"))
        yield _row("Role", Field("hire-role", "what it is on this team, in a word or two"))
        on = self._pressed("prompt.next")
        yield _row("Prompt", Prompt(f"what it should do; {on} goes on"), classes="-tall-row")
        yield from self._terms()

    def _terms(self) -> Iterable[Widget]:
        modes = [("", "background"), (_FOREGROUND, "foreground: stay with it")]
        yield _row("Mode", Radio(modes, id="hire-mode"))
        yield _row("First", Checkbox("a plan, and my yes, before it acts", id="hire-plan"))
        yield _row("", Checkbox("ask me before each write and command", id="hire-ask"), id="row-ask")
        network = Checkbox("network", id="hire-network")
        yield _row(
            "May", network, Checkbox("take tasks", id="hire-autoclaim"), Checkbox("end when done", id="hire-once")
        )
        limits = (Label(" turns ", classes="aside"), Field("hire-turns"), Label(" budget ", classes="aside"))
        yield _row("Model", Field("hire-model"), *limits, Field("hire-budget", "none"))
        yield _row("", Label("", classes="wrong"), id="wrong-limits")
        yield _row("Task", Select(_task_options(self._view), id="hire-task"))

    @property
    def kind(self) -> AgentType:
        """The type that is chosen."""
        return self._types[self.query_one("#hire-type", Select).value]

    @property
    def agent_name(self) -> str:
        """The name that stands in the form."""
        return self._text("name")

    @property
    def prompt(self) -> str:
        """What it should do, as far as that is written."""
        return self.query_one("#hire-prompt", TextArea).text

    @property
    def foreground(self) -> bool:
        """Whether its work is to be watched until its result."""
        return bool(self.query_one("#hire-mode", Radio).value)

    def paint(self) -> None:
        """Show what the chosen type may do, and only what may be chosen for it."""
        kind = self.kind
        self.query_one("#hire-may", Label).update(Content(one_line(kind.summary)))
        self.query_one("#hire-network").display = kind.executes
        self.query_one("#row-ask").display = kind.executes or kind.writes
        self.query_one("#hire-model", Input).placeholder = self._usual_model(kind)

    def _usual_model(self, kind: AgentType) -> str:
        """Which model answers if none is named here: what is hired in this environment works in it too."""
        if env.is_offline(self._environment):
            return "embedded model"
        return one_line(hiring.choose_model(kind, None, self._environment))

    def mark(self, problems: Sequence[Problem]) -> list[str]:
        """Say beneath its field why this cannot be hired; the fields at which there was room for that."""
        told = {field: "; ".join(each.says for each in problems if each.field == field) for field in _MARKED}
        for field, says in told.items():
            row = self.query_one(f"#wrong-{field}")
            row.display = bool(says)
            row.query_one(".wrong", Label).update(Content(one_line(says)))
        return [field for field, says in told.items() if says]

    # ----------------------------------------------------------------------------------------- filled and read

    def fill(self, name: str, profile: Profile) -> None:
        """Say in the fields what `profile` says; a type that this project does not have leaves the type standing."""
        self.query_one("#hire-name", Input).value = name
        self.query_one("#hire-type", Select).choose(profile.type)
        prompt = self.query_one("#hire-prompt", TextArea)
        prompt.text = safe_text(profile.prompt)
        prompt.move_cursor(prompt.document.end)
        flags = profile.flags
        for ident, text in (("role", profile.role), ("model", profile.model), ("budget", flags.budget)):
            self.query_one(f"#hire-{ident}", Input).value = one_line(text or "")
        self.query_one("#hire-turns", Input).value = str(flags.max_turns)
        for ident in ("plan", "ask", "network", "autoclaim", "once"):
            self.query_one(f"#hire-{ident}", Checkbox).value = getattr(flags, ident)
        self.query_one("#hire-mode", Radio).choose(_FOREGROUND if profile.foreground else "")

    def profile(self) -> Profile:
        """The fields without name and task, to be kept.

        Raises:
            UsageError: The turn limit is no number.
        """
        hire = self.hire()
        return Profile(
            type=hire.type,
            role=hire.role,
            prompt=hire.prompt,
            model=hire.model,
            flags=hire.flags.model_copy(update={"task": None}),
            foreground=self.foreground,
        )

    def hire(self, max_turns: int | None = None) -> hiring.Hire:
        """What the form says; `max_turns` stands in for a turn limit that is none.

        Raises:
            UsageError: The turn limit is no number.
        """
        kind = self.kind
        task = self.query_one("#hire-task", Select).value
        flags = HireOptions(
            plan=self._ticked("plan"),
            ask=(kind.executes or kind.writes) and self._ticked("ask"),
            network=kind.executes and self._ticked("network"),
            autoclaim=self._ticked("autoclaim"),
            once=self._ticked("once"),
            budget=self._text("budget") or None,
            max_turns=max_turns or self._turns(),
            task=int(task) if task else None,
        )
        return hiring.Hire(
            self.agent_name, kind.name, self.prompt, self._text("role"), self._text("model") or None, flags
        )

    def _turns(self) -> int:
        turns = self._text("turns")
        if not (turns.isascii() and turns.isdigit() and len(turns) <= _MOST_DIGITS) or int(turns) < 1:
            raise UsageError("the turn limit is a number from 1 on")
        return int(turns)

    def _text(self, ident: str) -> str:
        return self.query_one(f"#hire-{ident}", Input).value.strip()

    def _ticked(self, ident: str) -> bool:
        return self.query_one(f"#hire-{ident}", Checkbox).value


def _task_options(view: TeamView) -> list[tuple[str, str]]:
    board = {task.id: task for task in view.tasks}
    free = [
        task for task in view.tasks if task.status not in CLOSED and task.owner is None and not blockers(task, board)
    ]
    return [("", "none"), *((str(task.id), f"#{task.id} {task.subject}") for task in free)]


def _row(label: str, *fields: Widget, classes: str = "", id: str | None = None) -> Horizontal:
    return Horizontal(Label(label, classes="field-label"), *fields, classes=f"field-row {classes}", id=id)
