"""Answering a question: one of the choices, or in words of one's own."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from crewboard.records import Request
from crewboard.team import decisions
from crewboard_tui import keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, crop, say
from crewboard_tui.reading import Snapshot
from crewboard_tui.screens.request import ANSWERS, RequestScreen
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.plan_text import plan_lines
from crewboard_tui.widgets.rows import Row, Rows
from crewboard_tui.widgets.still import Still


class QuestionScreen(RequestScreen):
    """A question of an agent, who waits for the answer."""

    TITLE_WORD = "QUESTION"
    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("digits")]

    def __init__(self, desk: Desk, request: Request) -> None:
        super().__init__(desk, request)
        options = request.payload.get("options")
        self.options = [str(option) for option in options] if isinstance(options, list) else []

    def body(self) -> Iterable[Widget]:
        yield Still(id="facts")
        question = Log(id="question", classes="pane", follow=False, follows=False)
        question.border_title = Content("Question")
        yield question
        choices = Choices(id="choices", classes="pane")
        choices.border_title = Content("Choices · Enter answers with the one under the cursor")
        choices.display = bool(self.options)
        yield choices
        with Vertical(id="answer-frame", classes="pane") as frame:
            frame.border_title = Content("In your own words · Enter sends")
            answer = Input(self.desk.drafts.get(self.seen.id, ""), id="answer", compact=True, select_on_focus=False)
            answer.cursor_blink = False
            yield answer

    def on_mount(self) -> None:
        self.query_one("#choices" if self.options else "#answer").focus()

    def paint_request(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the request is shown as it was opened
        width = max(1, self.size.width - 2)
        self.query_one("#facts", Still).show([(Span(" "), *crop(content, width)) for content in self.head_lines()])
        question = self.query_one("#question", Log)
        question.show(plan_lines(str(self.seen.payload.get("question", "")), question.line_width))
        choices = self.query_one("#choices", Rows)
        choices.show([Row(str(at), _choice(at, option)) for at, option in enumerate(self.options, 1)])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "choose":
            return parameters in [(number,) for number, _ in enumerate(self.options, 1)]
        return super().check_action(action, parameters)

    def offers(self, action: str) -> bool | None:
        if action in ANSWERS:
            return False
        return super().offers(action)

    def action_choose(self, number: int) -> None:
        choices = self.query_one("#choices", Rows)
        choices.focus()
        choices.select(str(number))

    @on(Rows.Opened, "#choices")
    def _choose(self, event: Rows.Opened) -> None:
        self._answer(self.options[int(event.key) - 1])

    @on(Input.Submitted, "#answer")
    def _say(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self._answer(event.value)

    def _answer(self, text: str) -> None:
        if self.desk.read_only or not super().offers("send"):
            return

        def answer() -> str:
            decisions.answer(self.desk.team, self.seen.id, text)
            return f"answered: {self.seen.from_} goes on"

        self.desk.do(f"answering {self.seen.from_}", answer, self.answered, settle=self._forget_draft)

    def _forget_draft(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        if worked:
            self.desk.drafts.pop(self.seen.id, None)

    def answered(self, worked: bool, says: str) -> None:  # noqa: FBT001
        if worked:
            for answer in self.query("#answer").results(Input):
                answer.clear()
        super().answered(worked, says)

    def action_back(self) -> None:
        if self.options and self.query_one("#answer").has_focus:
            self.query_one("#choices").focus()
            return
        super().action_back()

    def on_unmount(self) -> None:
        answer = next(iter(self.query("#answer").results(Input)), None)
        if answer is not None and answer.value:
            self.desk.drafts[self.seen.id] = answer.value


class Choices(Rows):
    """The offered answers: Enter gives the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("choices")]


def _choice(number: int, option: str) -> Line:
    return (Span(f"{number}  ", "key"), say(option))
