"""The page to answer a question: with one of the choices, or in the user's own words."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

from msgspec.structs import replace
from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from crewboard import Request, redaction
from crewboard_tui.actions.registry import Action, Layer, unavailable
from crewboard_tui.compose.draft_input import NOT_SENT, DraftInput, Prose
from crewboard_tui.keymap.bindings import Key, bindings_of
from crewboard_tui.queries import Query, WorkOf
from crewboard_tui.render.lines import Line, Span, crop, markdown_lines, one_line, say, width_of, wrap
from crewboard_tui.render.sanitize import revealing, safe_line
from crewboard_tui.views.activity import paired, shown
from crewboard_tui.views.base import ONLY_LOOKING, TALL, AppContext, BaseScreen, Snapshot
from crewboard_tui.views.requests.base import TOO_SOON, RequestPage
from crewboard_tui.widgets.line_list import LineList, Row
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.painter import Frame
from crewboard_tui.widgets.reading import Passage, ReadText, named

_ABOUT_PLANS = (
    "request.approve", "request.rule", "request.deny", "request.edit", "request.compare", "request.ask_back",
)  # fmt: skip
"""Keys that work on the pages of other requests only."""

_IN_OWN_WORDS = "a question waits for an answer, not for a yes"
"""The reason why keys for other requests do nothing here."""

_IN_WORDS = "words"
"""The key of the row that becomes the input for the user's own words."""

_STEPS = 5
"""The number of the agent's last steps before its question that are shown."""


class QuestionScreen(BaseScreen):
    """The page of an agent's question."""

    CSS_PATH = "question_screen.tcss"

    def __init__(self, context: AppContext, request: Request) -> None:
        super().__init__(context)
        self.subject = self.page = RequestPage(self, request, lambda: "QUESTION")
        options = request.payload.get("options")
        self.options = [str(option) for option in options] if isinstance(options, list) else []
        self._question = LineView(id="question", classes="pane", follows=False)
        self._choices = Choices(id="choices", classes="pane")
        self._frame = Frame(id="answer-frame", classes="pane")
        self._why = LineView(id="why", classes="pane", follows=False)
        self._warned = False
        self._asked = ReadText(context, self._question)
        self.texts = (self._asked,)
        kept = context.drafts.get(request.id, "")
        self._answer = DraftInput(kept, prose=Prose.of(context), id="answer")
        # On every change, because the input is removed before the page.
        self._answer.keep = partial(context.drafts.put, request.id)
        self._answer.refuse = partial(context.say, tone="error")
        words = Action(
            "request.words",
            lambda _: self._write(),
            lambda _: self.page.why_over,
            lambda _: None if self.options else "answer",
        )
        writing = Layer(lambda: self._answer.has_focus, self._stop_writing)
        self.back_layers = (writing, self.panes.layer)
        self.offer(
            (words,),
            self.panes.actions,
            self.page.actions,
            unavailable(lambda: self.page.why_over or _IN_OWN_WORDS, *_ABOUT_PLANS),
        )

    def body(self) -> Iterable[Widget]:
        yield self.page.facts
        yield self._question
        self._choices.set_class(not self.options, "-hidden")
        yield self._choices
        self._frame.set_class(bool(self.options) and not self._kept, "-hidden")
        with self._frame:
            if self.app.size.height < TALL:
                self._answer.placeholder = self._how_to_write()
            yield self._answer
        yield self._why

    def queries(self) -> Iterable[Query[object]]:
        yield WorkOf(self.page.seen.from_)

    def _how_to_write(self) -> str:
        if not self.may_answer:
            return NOT_SENT if self.page.outcome and self._kept else "In your own words"
        words, send = self.context.key("request.words"), self.context.key("draft.send")
        if self._kept and not self._answer.has_focus:
            return f"In your own words · kept, not sent · {words} continues with them"
        return f"In your own words · {words} writes, {send} sends"

    @property
    def _kept(self) -> str:
        """Return an answer in the user's own words that was not sent; empty if there is none."""
        return self.context.drafts.get(self.page.seen.id, "").strip()

    def on_mount(self) -> None:
        self._rest()

    def _rest(self) -> None:
        """Move the focus from the input to the page, so that a key for the page is not typed into an answer."""
        (self._choices if self.options else self._question).focus()

    def paint(self, snapshot: Snapshot) -> None:
        self.page.read(snapshot)
        self.page.show_facts([*self.page.head_lines(), *self.page.outcome_lines()], 2 if self.page.outcome else 1)
        question, choices, why = self._question, self._choices, self._why
        down, up, answers = map(self.context.key, ("list.down", "list.up", "request.choose"))
        how = f" · {down} {up} move, {answers} answers with the marked one" if self.may_answer else ""
        choices.rule.entitle(f"Choices{how}")
        self._frame.rule.entitle(self._how_to_write())
        # Who writes in it just now stays there: the letters on their way would be keys of the page.
        self._answer.can_focus = self._answer.sends = self.may_answer
        with revealing(wanted=self._asked.reveals):
            rows = [Row(str(at), crop(_choice(option), choices.row_width)) for at, option in enumerate(self.options)]
        if self.may_answer and self._frame.has_class("-hidden"):
            rows.append(Row(_IN_WORDS, (Span(" … in my own words", "dim"),)))
        choices.show(rows)
        self._asked.show(self._whole(question.line_width, choices.row_width, choices.size.height or len(self.options)))
        # As high as its text, if there is room, so that the choices stand right below it.
        fits = len(question.lines) + question.styles.padding.height
        question.styles.max_height = None if self.panes.zoomed is question else fits
        self._show_progress()
        # What the agent did before it asked.
        work = snapshot.get(WorkOf(self.page.seen.from_))
        if work is None:
            return
        before = [what for what in work.activity if what.ts <= self.page.seen.created_at]
        # A call and its outcome are one step.
        steps = [*paired(before[-4 * _STEPS :])][-_STEPS:]
        why.rule.entitle("Why it asks · its last steps")
        lines = [each for what, outcome in steps for each in shown(what, outcome, why.line_width, 2)]
        why.show(lines or [(Span("nothing in its journal before it asked", "dim"),)])

    def _whole(self, width: int, room: int, rows: int) -> Iterator[Passage]:
        """Yield the question, and all choices, unless `rows` rows of `room` cells show them in full and unredacted."""
        request = self.page.seen
        lines = markdown_lines(str(request.payload.get("question", "")), width)
        # The first paragraph in bold: the rest explains it.
        end = lines.index(()) if () in lines else len(lines)
        yield Passage(
            named(request, "question"),
            [tuple(replace(span, tone=f"{span.tone} bold") for span in line) for line in lines[:end]] + lines[end:],
        )
        hides = any(
            redaction.redact(option) != option
            # A choice with blanks in it may be long, too.
            or width_of(_choice(option)) > room
            or one_line(option) != safe_line(option)
            for option in self.options
        )
        if hides or len(self.options) > rows:
            lines = [(), (Span("The choices in full", "bold"),)]
            lines += [(Span(piece),) for option in self.options for piece in wrap(f"- {option}", width, "  ")]
            yield Passage(named(request, "choices"), lines)

    @on(LineView.Scrolled)
    def _show_progress(self) -> None:
        self._question.rule.entitle("Question", self._asked.progress)

    def why_not(self, key: Key) -> str:
        if key.id != "list.open" or self.may_answer:
            return super().why_not(key)
        return ONLY_LOOKING if self.context.read_only else self.page.why_over or super().why_not(key)

    @property
    def may_answer(self) -> bool:
        """Return True if the question can still be answered from here."""
        return not self.context.read_only and not self.page.outcome

    def _write(self) -> None:
        self.panes.unzoom()
        # It stands in the place of its choice.
        self._frame.remove_class("-hidden")
        self._answer.focus()
        self.paint(self.context.snapshot)

    @on(LineList.Opened, "#choices")
    def _choose(self, event: LineList.Opened) -> None:
        if event.key == _IN_WORDS:
            self._write()
            return
        if self._kept and not self._warned:
            self._warned = True
            words, choose = self.context.key("request.words"), self.context.key("list.open")
            self.context.say(
                f"not answered: you wrote words of your own; {words} continues with them, {choose} answers as marked",
                "warning",
            )
            return
        self._send(self.options[int(event.key)], "list.open")

    @on(DraftInput.Submitted, "#answer")
    def _say(self, event: DraftInput.Submitted) -> None:
        if event.text.strip():
            self._send(event.text, "draft.send")

    def _send(self, text: str, key: str) -> None:
        if not self.may_answer:
            return
        if not self.settled:
            self.context.say(TOO_SOON, "warning")
            return
        if self._asked.holds_back(key, "answers"):
            self.panes.unzoom()
            return

        def forget_draft(worked: bool, says: str) -> None:  # noqa: ARG001, FBT001
            if worked:
                self.context.drafts.pop(self.page.seen.id, None)

        def answered(worked: bool, says: str) -> None:  # noqa: FBT001
            if worked:
                self._answer.write("")
            self.page.answered(worked, says)

        answer = partial(self.page.commands.answer, text)
        doing = f"answering {self.page.seen.from_}"
        self.context.do(doing, answer, answered, settle=forget_draft, undone="not answered")

    def _stop_writing(self) -> None:
        self._answer.leave()
        self._frame.set_class(bool(self.options) and not self._kept, "-hidden")
        self._rest()
        self.paint(self.context.snapshot)


class Choices(LineList):
    """The offered answers; Enter answers with the one under the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("choices")]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "open" and isinstance(self.screen, QuestionScreen) and not self.screen.may_answer:
            return None
        return super().check_action(action, parameters)


def _choice(option: str) -> Line:
    return (Span(" "), say(option))
