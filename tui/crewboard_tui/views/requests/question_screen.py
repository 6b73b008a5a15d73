"""Answering a question: one of the choices, or in words of one's own."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from crewboard.commands import answers
from crewboard.records import Request
from crewboard_tui.compose.draft_input import DraftInput, unescape_newlines
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings
from crewboard_tui.poller import Snapshot
from crewboard_tui.render.lines import Line, Span, crop, say, width_of, wrap
from crewboard_tui.views.board.columns import TALL
from crewboard_tui.views.requests.base import ANSWERS, RequestScreen
from crewboard_tui.views.requests.plan_text import plan_lines
from crewboard_tui.views.unavailable_keys import ONLY_LOOKING
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.pane_title import title
from crewboard_tui.widgets.static_lines import StaticLines


class QuestionScreen(RequestScreen):
    """A question of an agent, who waits for the answer."""

    TITLE_WORD = "QUESTION"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("question")]

    def __init__(self, desk: AppContext, request: Request) -> None:
        super().__init__(desk, request)
        options = request.payload.get("options")
        self.options = [str(option) for option in options] if isinstance(options, list) else []
        self._warned = False

    def body(self) -> Iterable[Widget]:
        yield StaticLines(id="facts")
        question = LineView(id="question", classes="pane", follow=False, follows=False)
        question.border_title = Content("Question")
        yield question
        choices = Choices(id="choices", classes="pane")
        choices.display = bool(self.options)
        yield choices
        with Vertical(id="answer-frame", classes="pane"):
            hint = self._how_to_write() if self.app.size.height < TALL else ""
            kept = self.context.drafts.get(self.seen.id, "")
            answer = DraftInput(kept, prose=True, id="answer", placeholder=hint)
            answer.keep = self._keep
            answer.refuse = partial(self.context.say, tone="error")
            yield answer

    def _how_to_choose(self) -> str:
        down, up, answer = map(self.context.key, ("list.down", "list.up", "request.choose"))
        return "Choices" if not self.may_answer else f"Choices · {down} {up} move, {answer} answers with the marked one"

    def _how_to_write(self) -> str:
        if not self.may_answer:
            return "In your own words"
        words, send = self.context.key("request.words"), self.context.key("draft.send")
        if self._kept and not self.query_one("#answer").has_focus:
            return f"In your own words · kept, not sent · {words} goes on with them"
        return f"In your own words · {words} writes, {send} sends"

    @property
    def _kept(self) -> str:
        """Words that were written and not sent."""
        return self.context.drafts.get(self.seen.id, "").strip()

    def on_mount(self) -> None:
        self._rest()

    def _rest(self) -> None:
        """Have the keys live: nobody writes before they say so, lest a key for the page is taken for an answer."""
        self.query_one("#choices" if self.options else "#question").focus()

    def paint_request(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the request is shown as it was opened
        self.show_facts(self.head_lines(), 2 if self.fate else 1)
        question = self.query_one("#question", LineView)
        choices = self.query_one("#choices", LineList)
        title(choices, self._how_to_choose())
        title(self.query_one("#answer-frame"), self._how_to_write())
        # Who writes in it just now stays there: the letters on their way would be keys of the page.
        answer = self.query_one("#answer", DraftInput)
        answer.can_focus = answer.sends = self.may_answer
        choices.show([Row(str(at), _choice(option, choices.row_width)) for at, option in enumerate(self.options)])
        lines = plan_lines(str(self.seen.payload.get("question", "")), question.line_width)
        question.show(lines + _in_full(self.options, choices.row_width, question.line_width))

    def offers(self, action: str) -> bool | None:
        if action in ANSWERS:
            return False
        if action == "words":
            return not self.fate
        return super().offers(action)

    def why_not(self, key: bindings.Key) -> str:
        if key.action != "open" or self.may_answer:
            return super().why_not(key)
        return ONLY_LOOKING if self.context.read_only else f"not now:{(self.fate or '').rstrip()}"

    @property
    def key_labels(self) -> Mapping[str, str]:
        return {} if self.options else {"request.words": "answer"}

    @property
    def may_answer(self) -> bool:
        """Whether the answer is open still, and one's own to give."""
        return not self.context.read_only and not self.fate

    def action_words(self) -> None:
        self.query_one("#answer").focus()

    @on(LineList.Opened, "#choices")
    def _choose(self, event: LineList.Opened) -> None:
        if self._kept and not self._warned:
            self._warned = True
            words, choose = self.context.key("request.words"), self.context.key("list.open")
            self.context.say(
                f"not answered: you wrote words of your own; {words} goes on with them, {choose} answers as marked",
                "warning",
            )
            return
        self._answer(self.options[int(event.key)])

    @on(Input.Submitted, "#answer")
    def _say(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self._answer(unescape_newlines(event.value))

    def _answer(self, text: str) -> None:
        if not self.may_answer:
            return
        if not self.settled:
            self.say_too_soon()
            return

        def answer() -> str:
            answers.answer(self.context.team, self.seen.id, text)
            return f"answered: {self.seen.from_} goes on"

        self.context.do(f"answering {self.seen.from_}", answer, self.answered, settle=self._forget_draft)

    def _forget_draft(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        if worked:
            self.context.drafts.pop(self.seen.id, None)

    def answered(self, worked: bool, says: str) -> None:  # noqa: FBT001
        if worked:
            for answer in self.query(DraftInput):
                answer.clear()
        super().answered(worked, says)

    def action_back(self) -> None:
        if self.query_one("#answer").has_focus:
            self._rest()
            return
        super().action_back()

    def _keep(self, text: str) -> None:
        """At once: when the page goes, what stands in its line is gone before it; an emptied answer is no draft."""
        if text:
            self.context.drafts[self.seen.id] = text
        else:
            self.context.drafts.pop(self.seen.id, None)


class Choices(LineList):
    """The offered answers: Enter gives the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("choices")]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open" and isinstance(self.screen, QuestionScreen) and not self.screen.may_answer:
            return False
        return super().check_action(action, parameters)


def _choice(option: str, width: int) -> Line:
    return crop((Span(" "), say(option)), width)


def _in_full(options: list[str], room: int, width: int) -> list[Line]:
    """The choices to read, where one of them is too long for its row of `room` cells."""
    if all(width_of((Span(" "), say(option))) <= room for option in options):
        return []
    lines: list[Line] = [(), (Span("The choices in full", "bold"),)]
    return lines + [(Span(piece),) for option in options for piece in wrap(f"- {option}", width, "  ")]
