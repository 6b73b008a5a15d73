"""Reviewing a plan, or a permission: all of it to read, then one key."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, TextArea

from crewboard.records import Request
from crewboard.team import decisions, rules
from crewboard.view.touched import Touched
from crewboard_tui import keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, crop, say, wrap
from crewboard_tui.reading import Interest, Snapshot
from crewboard_tui.screens.request import RequestScreen, revision_of
from crewboard_tui.text import safe_text
from crewboard_tui.widgets.diff_text import changed, diff_lines, exact_lines
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.plan_text import plan_lines
from crewboard_tui.widgets.stakes import file_lines, stake_lines, texts
from crewboard_tui.widgets.still import Still

QUESTION = "Question: "
"""How feedback begins that asks back: an agent that waits reads nothing else, so that it comes with a no."""


class ReviewScreen(RequestScreen):
    """A plan (or a single tool call) that waits for a yes or a no."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("edit")]
    AUTO_FOCUS = "#plan"

    def __init__(self, desk: Desk, request: Request) -> None:
        super().__init__(desk, request)
        self._denying = False
        self._editing = False
        self._comparing = False
        self._answered = False

    def body(self) -> Iterable[Widget]:
        yield Still(id="facts")
        plan = Log(id="plan", classes="pane", follow=False, follows=False)
        yield plan
        editor = TextArea(self._rewritten or safe_text(self._plan), id="editor", classes="pane", soft_wrap=True)
        editor.cursor_blink = False
        editor.border_title = Content("Edit, then ^s approves what stands here")
        yield editor
        with Vertical(id="feedback-frame", classes="pane"):
            feedback = Input(self.desk.drafts.get(self.seen.id, ""), id="feedback", compact=True, select_on_focus=False)
            feedback.cursor_blink = False
            yield feedback

    @property
    def _is_plan(self) -> bool:
        return self.seen.type == "plan_approval"

    @property
    def _plan(self) -> str:
        return str(self.seen.payload.get("plan", ""))

    @property
    def _scope(self) -> str | None:
        """What a rule would cover; None where none is offered."""
        scope = self.seen.payload.get("scope")
        return scope if self.seen.type == "permission" and isinstance(scope, str) else None

    @property
    def _before(self) -> Request | None:
        """The revision before."""
        return next((each for each in self.desk.snapshot.view.asked if each.id == self.seen.supersedes), None)

    def title_word(self) -> str:
        if not self._is_plan:
            return self.seen.type.upper()
        return f"PLAN v{revision_of(self.seen, self.desk.snapshot.view)}"

    @property
    def _rewritten(self) -> str:
        """The plan as it was rewritten before, if it was."""
        return self.desk.drafts.get(self._edited_draft, "")

    def on_mount(self) -> None:
        self._show_mode()
        if self._rewritten:
            self.desk.say("what you made of this plan is kept: e shows it", "info")

    # ------------------------------------------------------------------------------------------------ painting

    def interest(self) -> Interest:
        return Interest(touches=self._is_plan)

    @property
    def _touches(self) -> Touched | None:
        """Which files everybody read and changed; None while that is not read yet."""
        snapshot = self.desk.snapshot
        return snapshot.touches if snapshot.interest == self.interest() else None

    def paint_request(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the request is shown as it was opened
        facts = self.query_one("#facts", Still)
        width = max(1, self.size.width - 2)
        facts.show([(Span(" "), *crop(content, width)) for content in [*self.head_lines(), *self._stakes()]])
        plan = self.query_one("#plan", Log)
        plan.show(self._whole(plan.line_width))
        self._show_progress()

    def _stakes(self) -> list[Line]:
        """What it touches, on one line each; the whole lists stand below the plan."""
        found = stake_lines(self.seen, self._touches, self.desk.now)
        if self._scope is not None:
            found.append((Span("RULE  ", "dim"), Span("A says yes to "), say(self._covers(), "bold")))
        return found

    def _covers(self) -> str:
        who, tool = self.seen.from_, str(self.seen.payload.get("tool", ""))
        if tool == "bash":
            return f"any single command of {who} that starts {self._scope}"
        folder = "the top folder" if self._scope in (".", "") else f"{self._scope}/"
        return f"every {tool} of {who} directly in {folder}"

    def _whole(self, width: int) -> list[Line]:
        if not self._is_plan:
            return self._permission(width)
        before = self._before
        if self._comparing and before is not None:
            number = revision_of(self.seen, self.desk.snapshot.view)
            diff = changed(_text_of(before), _text_of(self.seen), (f"v{number - 1}", f"v{number}"))
            return diff_lines(diff, width) if diff else [(Span("the same words as before", "dim"),)]
        lines = plan_lines(self._plan, width)
        if files := file_lines(self.seen, self._touches, self.desk.now, width):
            lines += [(), (Span("Files it names", "bold"),), *files]
        for name, title in (("commands", "Commands it names"), ("risk", "Risk")):
            values = texts(self.seen.payload.get(name))
            if values:
                lines += [(), (Span(title, "bold"),)]
                lines += [(Span(piece),) for value in values for piece in wrap(f"  {value}", width, "    ")]
        return lines

    def _permission(self, width: int) -> list[Line]:
        """The command or the change exactly as it would be done, then whatever else the call says."""
        payload = self.seen.payload
        given = payload.get("input")
        call = dict(given) if isinstance(given, dict) else {}
        lines: list[Line] = [(Span("tool ", "dim"), say(str(payload.get("tool", "")), "bold"))]
        command, diff = call.pop("command", None), payload.get("diff")
        if isinstance(command, str):
            lines += [(), *exact_lines(command, width, "bold")]
        if isinstance(diff, str) and diff:
            lines += [(), *diff_lines(diff, width)]
            call = {name: value for name, value in call.items() if name not in ("old_text", "new_text", "content")}
        elif not isinstance(command, str) and payload.get("summary"):
            lines += [(), *exact_lines(str(payload["summary"]), width, "bold")]
        known = ("tool", "input", "summary", "diff", "scope")
        for name, value in [*call.items(), *((name, payload[name]) for name in payload if name not in known)]:
            lines += [(), (say(name, "dim"),), *exact_lines(value if isinstance(value, str) else str(value), width)]
        if self._scope is not None:
            lines += [(), (Span("A would say yes, now and from now on, to", "dim"),)]
            lines += exact_lines(self._covers(), width)
        return lines

    @on(Log.Scrolled)
    def _show_progress(self) -> None:
        plan = self.query_one("#plan", Log)
        wanted = Content(f"{plan.read_percent}% read")
        if plan.border_subtitle != wanted:
            plan.border_subtitle = wanted

    def _show_mode(self) -> None:
        """Plan, editor and feedback box, as they are used now."""
        self.query_one("#plan").display = not self._editing
        self.query_one("#editor").display = self._editing
        shown = "Plan" if self._is_plan else "Permission"
        title = "What changed · = shows the plan" if self._comparing else shown
        self.query_one("#plan", Log).border_title = Content(title)
        frame = self.query_one("#feedback-frame")
        wanted = "Feedback (sent with your answer)"
        if self._denying:
            asks = self.query_one("#feedback", Input).value.startswith(QUESTION)
            wanted = "What do you ask? Enter sends it, with a no for now" if asks else "Why not? Enter sends your no"
            wanted += ", Esc goes back"
        frame.border_title = Content(wanted)
        frame.set_class(self._denying, "-denying")
        self.refresh_bindings()

    # ------------------------------------------------------------------------------------------------ answers

    def offers(self, action: str) -> bool | None:
        if action == "send":
            return super().offers(action) if self._editing or self._denying else False
        if action == "edit":
            return super().offers(action) if self._is_plan and not self._editing else False
        if action == "compare":
            return self._is_plan and self._before is not None and not self._editing
        if action == "approve_rule" and self._scope is None:
            return False
        if action in ("approve", "approve_rule", "deny", "ask_back") and self._editing:
            return False
        return super().offers(action)

    def _feedback(self) -> str:
        text = self.query_one("#feedback", Input).value.strip()
        return "" if text == QUESTION.strip() else text

    def action_approve(self) -> None:
        self._answer("approving", partial(self._approve, self._feedback() or None, None))

    def action_approve_rule(self) -> None:
        if self._feedback():
            self.desk.say("A sends no feedback: empty the box first, or approve with a", "warning")
            return
        self._answer("approving", self._approve_rule)

    def _approve_rule(self) -> str:
        _, rule = rules.approve_with_rule(self.desk.team, self.seen.id, sha256=self.seen.sha256)
        return f"approved, and from now on {self._covers()}; `crewboard rules revoke {rule.id}` takes it back"

    def action_compare(self) -> None:
        self._comparing = not self._comparing
        self.query_one("#plan", Log).restart()
        self._show_mode()
        self.paint(self.desk.snapshot)

    def action_ask_back(self) -> None:
        feedback = self.query_one("#feedback", Input)
        if not feedback.value.startswith(QUESTION):
            feedback.value = QUESTION + feedback.value
        self.action_deny()
        feedback.cursor_position = len(feedback.value)

    def action_deny(self) -> None:
        self._denying = True
        self.query_one("#feedback", Input).focus()
        self._show_mode()

    def action_edit(self) -> None:
        self._editing = True
        self._show_mode()
        self.query_one("#editor", TextArea).focus()

    def action_send(self) -> None:
        if self._editing:
            edited = self.query_one("#editor", TextArea).text
            self._answer("approving", partial(self._approve, self._feedback() or None, edited))
        elif self._denying:
            self._deny()

    @on(Input.Submitted, "#feedback")
    def _feedback_done(self) -> None:
        if self._denying:
            if self.offers("deny"):
                self._deny()
        else:
            self._read_on()

    def _deny(self) -> None:
        if not self._feedback():
            self.desk.say("say why: a no without a word helps nobody", "warning")
            return
        asks = self._feedback().startswith(QUESTION)
        self._answer("asking back about" if asks else "denying", partial(self._reject, self._feedback()))

    def _answer(self, label: str, command: Callable[[], str]) -> None:
        self.desk.do(f"{label} what {self.seen.from_} asks", command, self.answered, settle=self._forget_draft)

    def _approve(self, feedback: str | None, edited: str | None) -> str:
        decisions.approve(self.desk.team, self.seen.id, feedback=feedback, sha256=self.seen.sha256, edited=edited)
        how = "approved as you edited it" if edited is not None else "approved"
        return f"{how}: {self.seen.from_} goes on"

    def _reject(self, feedback: str) -> str:
        decisions.reject(self.desk.team, self.seen.id, feedback, sha256=self.seen.sha256)
        asks = feedback.startswith(QUESTION)
        return f"asked back: {self.seen.from_} reads it" if asks else f"denied: {self.seen.from_} reads why"

    def _forget_draft(self, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        if worked:
            self._answered = True
            self.desk.drafts.pop(self.seen.id, None)
            self.desk.drafts.pop(self._edited_draft, None)

    def answered(self, worked: bool, says: str) -> None:  # noqa: FBT001
        if worked:
            for feedback in self.query("#feedback").results(Input):
                feedback.clear()
        super().answered(worked, says)

    # ------------------------------------------------------------------------------------------------- leaving

    def _read_on(self) -> None:
        self._denying = self._editing = False
        if not self._feedback():
            self.query_one("#feedback", Input).clear()
        self._show_mode()
        self.query_one("#plan", Log).focus()

    def action_back(self) -> None:
        if self._editing or self._denying or self.query_one("#feedback").has_focus:
            self._read_on()
            return
        self._keep_draft()
        super().action_back()

    def on_unmount(self) -> None:
        self._keep_draft()

    def _keep_draft(self) -> None:
        feedback = next(iter(self.query("#feedback").results(Input)), None)
        if feedback is not None:
            self._keep(self.seen.id, feedback.value)
        editor = next(iter(self.query("#editor").results(TextArea)), None)
        if editor is not None:
            self._keep(self._edited_draft, "" if editor.text == safe_text(self._plan) else editor.text)

    def _keep(self, draft: str, text: str) -> None:
        """A text that was emptied is not remembered."""
        if text and not self._answered:
            self.desk.drafts[draft] = text
        else:
            self.desk.drafts.pop(draft, None)

    @property
    def _edited_draft(self) -> str:
        """Under which name the plan is kept as far as it was rewritten."""
        return f"{self.seen.id} plan"


def _text_of(request: Request) -> str:
    """A plan with its lists, as text to compare."""
    lines = [str(request.payload.get("plan", ""))]
    for name, title in (("files", "Files it names"), ("commands", "Commands it names"), ("risk", "Risk")):
        values = texts(request.payload.get(name))
        lines += ["", title, *(f"  {value}" for value in values)] if values else []
    return "\n".join(lines)
