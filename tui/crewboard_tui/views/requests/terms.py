"""The terms with which a plan is approved, one row each: what its agent may do until the result."""

from collections.abc import Iterator
from typing import ClassVar

from textual.binding import BindingType

from crewboard import Request, agent_types
from crewboard.commands import answers
from crewboard.errors import CrewboardError
from crewboard.records.agents import Spec, Terms
from crewboard.records.requests import steps_of
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import bindings_of
from crewboard_tui.render.lines import Line, Span, crop, say
from crewboard_tui.widgets.line_list import LineList, Row

_ASK, _NETWORK, _BUDGET, _TOOL, _STEP = "ask", "network", "budget", "tool ", "step "
"""The keys of the rows; those of tools and steps go on with which."""

_ABOUT_TOOLS = frozenset({"bash", "write_file", "edit_file"})
"""Tools without which there is nothing to ask for."""


class TermsList(LineList):
    """The terms that are chosen for a plan. A row is switched on or off; that of the budget asks for the amount."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("tick")]

    def __init__(self, context: AppContext, request: Request) -> None:
        super().__init__(id="terms", classes="pane -hidden")
        self._app_context = context
        self._request = request
        self._plan = str(request.payload.get("plan", ""))
        self._steps = steps_of(self._plan)
        self._turned_on: set[str] = set()
        """The choices that are switched on and were off at first."""
        self._turned_off: set[str] = set()
        """The tools and steps that are switched off and were on at first."""
        self._budget: str | None = None

    @property
    def _spec(self) -> Spec | None:
        agent = self._app_context.snapshot.view.agent(self._request.from_)
        return agent.spec if agent is not None else None

    @property
    def why_none(self) -> str | None:
        """Return why no terms can be chosen; None if they can."""
        if self._app_context.snapshot.view.attached is not None:
            return "Claude Code takes a plan with a yes or a no"
        spec = self._spec
        if spec is None:
            return f"what {self._request.from_} was hired for is not known"
        if agent_types.known_type(spec.type, spec.definition) is None:
            return f"which tools an agent of type {spec.type} has is not known"
        return None

    @property
    def _kind(self) -> agent_types.AgentType | None:
        """Return the type of the agent; None if no terms can be chosen: a type of another program may have any name."""
        spec = self._spec
        if spec is None or self.why_none is not None:
            return None
        return agent_types.known_type(spec.type, spec.definition)

    @property
    def _tools(self) -> list[str]:
        """Return the tools that can be taken from the agent."""
        spec, kind = self._spec, self._kind
        if spec is None or kind is None:
            return []
        known = agent_types.nameable_tools(kind, has_web=spec.flags.web)
        return [tool for tool in known if not agent_types.kept_by_terms(Terms(tools=[]), tool)]

    @property
    def terms(self) -> Terms:
        """Return the terms as they are chosen."""
        tools = [tool for tool in self._tools if _TOOL + tool not in self._turned_off]
        return Terms(
            ask=_ASK in self._turned_on,
            tools=tools if len(tools) < len(self._tools) else None,
            network=_NETWORK in self._turned_on,
            budget=self._budget,
            hold=[number for number in self._steps if f"{_STEP}{number}" in self._turned_off],
        )

    def describe(self, terms: Terms | None) -> str:
        """Return terms of this plan on one line; empty without any."""
        return agent_types.describe_terms(terms, self._kind) if terms is not None else ""

    def lacking(self, terms: Terms | None) -> str:
        """Return a sentence about tools that the plan needs and these terms take; empty if there are none."""
        kind, plan = self._kind, self._request.payload
        if kind is None:
            return ""
        return agent_types.tools_a_plan_lacks(terms, kind, plan.get("files"), plan.get("commands"))

    def paint(self) -> None:
        """Show the rows."""
        self.show([Row(key, crop(content, self.row_width)) for key, content in self._contents()])

    def _contents(self) -> Iterator[tuple[str, Line]]:
        tools = self._tools
        if not _ABOUT_TOOLS.isdisjoint(tools):
            yield _ASK, (_box(on=_ASK in self._turned_on), Span("ask me before each write and each command"))
        if "bash" in tools:
            yield _NETWORK, (_box(on=_NETWORK in self._turned_on), Span("its commands reach the network"))
        amount = Span("budget of its own for this plan") if self._budget is None else say(f"budget {self._budget}")
        yield _BUDGET, (_box(on=self._budget is not None), amount)
        for tool in tools:
            yield _TOOL + tool, (_box(on=_TOOL + tool not in self._turned_off), Span("tool ", "dim"), say(tool))
        for number, text in self._steps.items():
            held = f"{_STEP}{number}" in self._turned_off
            words: Line = (Span("step ", "dim"), say(f"{number}. {text}"))
            mark: Line = (Span("held: ", "warning"),) if held else ()
            yield f"{_STEP}{number}", (_box(on=not held), *mark, *words)
        if not self._steps:
            yield "", (Span("no steps: the plan has no list that is numbered from 1", "dim"),)

    def action_turn(self) -> None:
        """Switch what is under the cursor on or off."""
        if self.selected == _BUDGET:
            self._ask_budget()
        elif self.selected:
            changed = self._turned_on if self.selected in (_ASK, _NETWORK) else self._turned_off
            changed ^= {self.selected}
            self._show_change()

    def action_open(self) -> None:
        self.action_turn()

    def _show_change(self) -> None:
        self.paint()
        # The screen shows what is chosen above the list.
        self.marks_changed()

    def _ask_budget(self) -> None:
        def check(text: str) -> str | None:
            try:
                if text.strip():
                    team, terms = self._app_context.team, Terms(budget=text.strip())
                    answers.check_terms(team, self._request.from_, self._plan, terms)
            except CrewboardError as error:
                return str(error)
            return None

        def done(text: str | None) -> None:
            if text is not None:
                self._budget = text.strip() or None
                self._show_change()

        hint = "$2 or 100k, from now until the result · empty: none but its own"
        self._app_context.navigator.ask(PromptLine("budget", self._budget or "", hint=hint, check=check), done)


def _box(*, on: bool) -> Span:
    return Span("[x] " if on else "[ ] ", "key")
