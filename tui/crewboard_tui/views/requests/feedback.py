"""Additions to the answer to a request: feedback, an edited plan, terms. Texts are drafts until they are sent.

A comment on an approval and the reason of a refusal are separate texts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Key
from textual.geometry import Region
from textual.strip import Strip

from crewboard import CrewboardError, Request, agent_types
from crewboard.commands import answers
from crewboard.protocol import collisions
from crewboard.records.agents import VERDICTS, Spec, StepNames, StepVerdict, Terms, next_verdict
from crewboard.records.requests import QUESTION, steps_of
from crewboard_tui.compose.composer import PromptLine
from crewboard_tui.compose.draft_input import NOT_SENT, DraftInput, Editor, Prose
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import edit_of, for_no, terms_for
from crewboard_tui.keymap.bindings import bindings_of
from crewboard_tui.render.lines import Line, Span, crop, say
from crewboard_tui.render.sanitize import safe_text
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.painter import Frame, Rule

_YES, _NO = 0, 1
"""The two texts of the feedback: for an approval, and for a refusal."""


class Feedback(Frame):
    """The feedback on the request `ident`; kept as a draft until it is sent with an answer.

    `denying` is True while a refusal is written, `editing` while the plan is edited beside it. `leave` is called when
    the key that sends is pressed for a text that is not sent from here.
    """

    def __init__(self, context: AppContext, ident: str, leave: Callable[[], None]) -> None:
        super().__init__(id="feedback-frame", classes="pane")
        self._over = False
        self._app_context = context
        self._leave = leave
        # In the order of `_YES` and `_NO`.
        self._drafts = ident, for_no(ident)
        self._texts = [context.drafts.get(draft, "") for draft in self._drafts]
        self._kept = [*self._texts]
        """The drafts as this page wrote them last. One that moved to the next version is not written here again."""
        self._taken = [False, False]
        # The refusal before it was turned into a question.
        self._begun = ""
        self._at = self._of_interest
        self.denying = False
        self.editing = False
        self._line = DraftInput(self._texts[self._at], prose=Prose.of(context), id="feedback")
        self._line.keep = self._note
        self._line.refuse = partial(self._app_context.say, tone="error")

    def compose(self) -> ComposeResult:
        yield self._line

    @property
    def with_yes(self) -> str | None:
        """Return the comment to send with an approval; None without one."""
        return self._texts[_YES].strip() or None

    @property
    def with_no(self) -> str:
        """Return the text to send with a refusal; empty if there is none, or only the start of a question."""
        text = self._texts[_NO].strip()
        return "" if text == QUESTION.strip() else text

    @property
    def asks(self) -> bool:
        """Return True if the refusal is a question."""
        return self._texts[_NO].startswith(QUESTION)

    @property
    def _of_interest(self) -> int:
        """Return the index of the text to show while none is being written."""
        return _NO if self.with_no and not self.with_yes else _YES

    @property
    def has_cursor(self) -> bool:
        """Return True if the input has the focus."""
        return self._line.has_focus

    # ----------------------------------------------------------------------------------------------- writing

    def deny(self, *, ask: bool = False) -> None:
        """Start to write a refusal, or a question with `ask`. A text that was kept is the start of it."""
        self.denying = True
        self._drop_unasked()
        self._show(_NO)
        if ask and not self.asks:
            self._line.write(QUESTION + self._line.text)
            self._begun = self._line.text
        elif self.asks and not ask:
            self._line.write(self._line.text.removeprefix(QUESTION))
        self._line.focus()
        self.show_use()

    def rest(self) -> None:
        """Stop writing; the text is kept."""
        self._line.leave()
        self.denying = False
        self._drop_unasked()
        if not self.with_no:
            self._texts[_NO] = ""
        self._show(self._of_interest)
        self.show_use()

    def _drop_unasked(self) -> None:
        """Make a question a refusal again if nothing was written since it became a question."""
        if self._texts[_NO] == self._begun:
            self._texts[_NO] = self._begun.removeprefix(QUESTION)
        self._begun = ""

    def end(self, *, over: bool) -> None:
        """Set whether the request is closed; a closed one takes no feedback, and only shows what was written."""
        if over != self._over:
            self._over = over
            self.show_use()

    def _show(self, which: int) -> None:
        """Show one of the two texts in the input; the other is kept."""
        if which != self._at or self._line.text != self._texts[which]:
            self._at = which
            self._line.load(self._texts[which])

    def _note(self, text: str) -> None:
        self._texts[self._at] = text
        self.show_use()

    def on_key(self, event: Key) -> None:
        if not self._line.sends and event.key in self._app_context.keys_of("draft.send"):
            event.stop()
            self._leave()

    def on_descendant_focus(self) -> None:
        self._show(_NO if self.denying else _YES)
        self.show_use()

    def on_descendant_blur(self) -> None:
        if not self.denying:
            self._show(self._of_interest)
        self.show_use()

    def show_use(self) -> None:
        """Show what the text is for, and which key sends it."""
        self._line.sends = self.denying and not self._over
        use = self._use()
        folded = not (self._texts[self._at] or self.denying or self.has_cursor)
        self.rule.entitle(use)
        self._line.placeholder = use if folded else ""
        is_hidden = self._app_context.read_only or (self._over and folded)
        # At once: each change of a class computes the styles of the box and all in it.
        self.update_classes({"-folded": folded, "-hidden": is_hidden, "-denying": self.denying})

    def _use(self) -> str:
        key = self._app_context.key
        send, back, yes = key("draft.send"), key("view.back"), key("edit.send" if self.editing else "request.approve")
        if self._over:
            return NOT_SENT
        if self.denying:
            asks = f"Your question · {send} asks for a revision"
            return f"{asks if self.asks else f'Why not? {send} denies it'}, {back} goes back"
        # While writing, the key would type a letter.
        leave = f"{back} " * (self.editing or self.has_cursor)
        if self._at == _NO and self.asks:
            return f"Kept question · {leave}{key('request.ask_back')} continues · {yes} omits it"
        deny = leave + key("request.deny")
        if self._at == _NO:
            return f"Kept for a refusal · {deny} continues · {yes} omits it"
        kept = f" · {deny} shows the kept refusal" if self.with_no else ""
        if not self.with_yes:
            use = "sent with" if self.has_cursor else f"{key('view.pane')} comments on"
            return f"Feedback · {use} your approval{kept}"
        ready = f"{send} when done, then " if self.has_cursor else ""
        return f"Feedback · {ready}{yes} sends it with your approval{kept}"

    # ----------------------------------------------------------------------------------------------- keeping

    def take(self, *, no: bool) -> None:
        """Drop the draft that an answer has used: with `no` the refusal, else the comment on an approval.

        A comment is kept after a refusal, for the next version, and a refusal after an approval: it may be the reason
        for revoking it. Only the drafts are changed.
        """
        self._taken = [not no, no]
        self.keep()

    def keep(self) -> None:
        """Save the texts as drafts; drop empty and sent ones."""
        texts = ["" if taken else text for text, taken in zip(self._texts, self._taken, strict=True)]
        for draft, text, before in zip(self._drafts, texts, self._kept, strict=True):
            if text != before:
                self._app_context.drafts.put(draft, text)
        self._kept = texts


class PlanEditor(Editor):
    """The editor of a request's plan, with the edits so far."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("text")]

    def __init__(self, context: AppContext, request: Request) -> None:
        self._drafts = context.drafts
        self._draft = edit_of(request.id)
        self._original = safe_text(request.plan)
        self._is_sent = False
        super().__init__(self.rewritten or self._original, id="editor", classes="pane", soft_wrap=True)
        # Claude Code takes a plan from its teammate alone.
        effect = "asks the agent to submit this" if context.view.attached else "approves what stands here"
        self._use = f"Edit, then {context.key('edit.send')} {effect}"
        self.rule = Rule(self)
        self.end(over=False)

    def end(self, *, over: bool) -> None:
        """Set whether the request is closed, so that the edited plan can no longer be sent."""
        self.rule.entitle(NOT_SENT if over else self._use)

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.rule.above(super().render_lines(crop), crop)

    @property
    def rewritten(self) -> str:
        """Return the edited plan from the drafts; empty if there is none."""
        return self._drafts.get(self._draft, "")

    def keep(self) -> None:
        """Keep the text as a draft, unless it is the plan itself or was sent."""
        self._drafts.put(self._draft, "" if self._is_sent or self.text == self._original else self.text)

    def sent(self) -> None:
        """Drop the draft, because the edited plan was sent."""
        self._is_sent = True
        self.keep()


_ASK, _NETWORK, _BUDGET, _TOOL, _STEP = "ask", "network", "budget", "tool ", "step "
"""The keys of the rows; for a tool or a step, its name or number follows."""

_ON, _OFF = "yes", "no"

_ABOUT_TOOLS = frozenset({"bash", "write_file", "edit_file"})
"""The tools for which an agent can be made to ask."""


class TermsList(LineList):
    """The list of terms that can be chosen for a plan.

    A row is switched on or off; that of the budget asks for an amount.

    Choices that differ from the start are a draft, with a line for each row: `tool bash: no`, `step 3: hold`, `budget:
    $2`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("tick")]

    def __init__(self, context: AppContext, request: Request) -> None:
        super().__init__(id="terms", classes="pane -hidden")
        self._app_context = context
        self._request = request
        self._plan = request.plan
        self._steps = steps_of(self._plan)
        self._draft = terms_for(request)
        self._earlier: list[str] = []
        self.gone: list[str] = []
        """Sentences about decided steps of earlier versions that this version does not have."""
        self._denied_for: tuple[dict[int, StepVerdict], list[StepNames]] = ({}, [])

    @property
    def _spec(self) -> Spec | None:
        agent = self._app_context.view.agent(self._request.from_)
        return agent.spec if agent is not None else None

    @property
    def _is_attached(self) -> bool:
        return self._app_context.view.attached is not None

    @property
    def why_none(self) -> str | None:
        """Return why no terms can be chosen; None if they can."""
        if self._is_attached:
            # Which tools such an agent has is its program's matter: only steps can be chosen.
            return None if self._steps else "Claude Code takes only steps to hold, and the plan has none"
        spec = self._spec
        if spec is None:
            return f"what {self._request.from_} was hired for is not known"
        if agent_types.known_type(spec.type, spec.definition) is None:
            return f"which tools an agent of type {spec.type} has is not known"
        return None

    @property
    def _kind(self) -> agent_types.AgentType | None:
        """Return the type of the agent; None if no tools can be chosen: a type of another program may have any name."""
        spec = self._spec
        if spec is None or self._is_attached or self.why_none is not None:
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
        """Return the chosen terms; empty ones if nothing is chosen."""
        chosen = self._chosen
        if not chosen or self.why_none is not None:
            return Terms()
        tools = [tool for tool in self._tools if _TOOL + tool not in chosen]
        verdicts = self._verdicts
        if verdicts != self._denied_for[0] and not self._is_attached:
            root = str(answers.workspace_of(self._app_context.team, self._request.from_))
            denied = collisions.denied_by_steps(self._plan, self._request.payload, root, verdicts)
            self._denied_for = verdicts, denied
        return Terms(
            ask=_ASK in chosen,
            tools=tools if len(tools) < len(self._tools) else None,
            network=_NETWORK in chosen,
            budget=chosen.get(_BUDGET),
            hold=[number for number, verdict in verdicts.items() if verdict == "hold"],
            refused=[number for number, verdict in verdicts.items() if verdict == "not"],
            denied=self._denied_for[1],
        )

    @property
    def _chosen(self) -> dict[str, str]:
        """Return the choices that differ from the start, by row."""
        return _words_of(self._app_context.drafts.get(self._draft, ""))

    @property
    def _verdicts(self) -> dict[int, StepVerdict]:
        """Return the verdicts on steps that are not simply to be done, by number."""
        return _verdicts_in(self._chosen, self._steps)

    def _choose(self, row: str, word: str | None) -> None:
        """Keep the choice for a row; None for the choice at the start."""
        chosen = self._chosen
        chosen.pop(row, None)
        self._keep(self._draft, chosen if word is None else {**chosen, row: word})
        self._app_context.drafts.keep()
        self.paint()
        # The screen shows what is chosen above the list.
        self.marks_changed()

    def _keep(self, draft: str, chosen: Mapping[str, str]) -> None:
        self._app_context.drafts.put(draft, "\n".join(f"{row}: {word}" for row, word in chosen.items()))

    def carry_over(self, earlier: Iterable[Request]) -> None:
        """Take over the choices for `earlier` versions, which are newest first. Steps are found by their texts."""
        if self._app_context.read_only or self.why_none is not None:
            return
        here = list(self._steps.values())
        for before in earlier:
            draft, texts = terms_for(before), steps_of(before.plan)
            chosen = _words_of(self._app_context.drafts.get(draft, ""))
            found = {row: word for row, word in chosen.items() if not row.startswith(_STEP)}
            gone = dict[str, str]()
            for number, verdict in _verdicts_in(chosen, texts).items():
                if here.count(texts[number]) == 1:
                    found[f"{_STEP}{here.index(texts[number]) + 1}"] = verdict
                else:
                    gone[f"{_STEP}{number}"] = verdict
                    self.gone.append(f"{VERDICTS[verdict].decided}: {texts[number]}")
            self._keep(self._draft, {**found, **self._chosen})
            # It stays there until an answer: the page says so each time.
            self._keep(draft, gone)
            self._earlier.append(draft)

    def forget(self) -> None:
        """Drop the choices, because they were sent."""
        for draft in (self._draft, *self._earlier):
            self._keep(draft, {})

    def turn_steps(self, steps: Sequence[int]) -> None:
        """Give these steps the verdict that follows that of the first of them: do, hold, do not do."""
        verdict = next_verdict(self._verdicts.get(steps[0], "do"))
        for step in steps:
            self._choose(f"{_STEP}{step}", verdict if verdict != "do" else None)

    def describe(self, terms: Terms | None) -> str:
        """Return terms of this plan on one line; empty without any."""
        return agent_types.describe_terms(terms, self._kind) if terms is not None else ""

    def lacking(self, terms: Terms | None) -> str:
        """Return a sentence about tools that the plan needs and these terms take away; empty if there are none."""
        kind, plan = self._kind, self._request.payload
        if kind is None:
            return ""
        return agent_types.tools_a_plan_lacks(terms, kind, plan.get("files"), plan.get("commands"))

    def paint(self) -> None:
        """Show the rows of the list."""
        tools, chosen, verdicts = self._tools, self._chosen, self._verdicts
        budget = chosen.get(_BUDGET)
        rows: list[tuple[str, Line]] = []
        if not _ABOUT_TOOLS.isdisjoint(tools):
            rows.append((_ASK, (_box(on=_ASK in chosen), Span("ask me before each write and each command"))))
        if "bash" in tools:
            rows.append((_NETWORK, (_box(on=_NETWORK in chosen), Span("its commands reach the network"))))
        amount = Span("budget of its own for this plan") if budget is None else say(f"budget {budget}")
        if not self._is_attached:
            rows.append((_BUDGET, (_box(on=budget is not None), amount)))
        for tool in tools:
            key = _TOOL + tool
            rows.append((key, (_box(on=key not in chosen), Span("tool ", "dim"), say(tool))))
        for number, text in self._steps.items():
            verdict = verdicts.get(number, "do")
            words: Line = (Span("step ", "dim"), say(f"{number}. {text}"))
            mark: Line = (Span(f"{VERDICTS[verdict].decided}: ", "warning"),) if verdict != "do" else ()
            rows.append((f"{_STEP}{number}", (_box(on=verdict == "do"), *mark, *words)))
        if not self._steps:
            rows.append(("", (Span("no steps: the plan has no list that is numbered from 1", "dim"),)))
        self.show([Row(key, crop(content, self.row_width)) for key, content in rows])

    def action_turn(self) -> None:
        """Switch the row under the cursor, or ask for the amount of the budget."""
        if not self.selected:
            return
        if self.selected.startswith(_STEP):
            self.turn_steps([int(self.selected.removeprefix(_STEP))])
            return
        if self.selected != _BUDGET:
            other = _ON if self.selected in (_ASK, _NETWORK) else _OFF
            self._choose(self.selected, None if self.selected in self._chosen else other)
            return

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
                self._choose(_BUDGET, text.strip() or None)

        hint = "$2 or 100k, from now until the result · empty: none but its own"
        self._app_context.navigator.ask(
            PromptLine("budget", self._chosen.get(_BUDGET, ""), hint=hint, check=check), done
        )

    def action_open(self) -> None:
        self.action_turn()


def _words_of(draft: str) -> dict[str, str]:
    """Return the choices in a draft of terms, by row."""
    return {row: word for line in draft.splitlines() for row, colon, word in [line.partition(": ")] if colon}


def _verdicts_in(chosen: Mapping[str, str], steps: Iterable[int]) -> dict[int, StepVerdict]:
    """Return the verdicts on steps that are not simply to be done, by number."""
    words = {number: chosen.get(f"{_STEP}{number}") for number in steps}
    return {number: each for number, word in words.items() for each in VERDICTS if word == each != "do"}


def _box(*, on: bool) -> Span:
    return Span("[x] " if on else "[ ] ", "key")
