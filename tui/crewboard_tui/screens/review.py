"""Reviewing a plan, or a permission: all of it to read, then one key."""

from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, TextArea

from crewboard.records import Request
from crewboard.team import decisions
from crewboard_tui import keys
from crewboard_tui.desk import Desk
from crewboard_tui.lines import Line, Span, crop, say, wrap
from crewboard_tui.reading import Snapshot
from crewboard_tui.screens.request import RequestScreen, revision_of
from crewboard_tui.text import safe_line, safe_text
from crewboard_tui.widgets.log import Log
from crewboard_tui.widgets.plan_text import plan_lines
from crewboard_tui.widgets.still import Still


class ReviewScreen(RequestScreen):
    """A plan (or a single tool call) that waits for a yes or a no."""

    BINDINGS: ClassVar[list[BindingType]] = [*keys.bindings("edit")]
    AUTO_FOCUS = "#plan"

    def __init__(self, desk: Desk, request: Request) -> None:
        super().__init__(desk, request)
        self._denying = False
        self._editing = False

    def body(self) -> Iterable[Widget]:
        yield Still(id="facts")
        plan = Log(id="plan", classes="pane", follow=False, follows=False)
        plan.border_title = Content("Plan" if self._is_plan else "Permission")
        yield plan
        editor = TextArea(safe_text(self._plan), id="editor", classes="pane", soft_wrap=True)
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

    def title_word(self) -> str:
        if not self._is_plan:
            return self.seen.type.upper()
        return f"PLAN v{revision_of(self.seen, self.desk.snapshot.view)}"

    def on_mount(self) -> None:
        self._show_mode()

    # ------------------------------------------------------------------------------------------------ painting

    def paint_request(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the request is shown as it was opened
        facts = self.query_one("#facts", Still)
        width = max(1, self.size.width - 2)
        facts.show([(Span(" "), *crop(content, width)) for content in [*self.head_lines(), *self._stakes()]])
        plan = self.query_one("#plan", Log)
        plan.show(self._whole(plan.line_width))
        self._show_progress()

    def _stakes(self) -> list[Line]:
        """What it touches, on one line each; the whole lists stand below the plan."""
        payload = self.seen.payload
        found: list[Line] = []
        if payload.get("risk"):
            found.append((Span("RISK  ", "warning bold"), say(str(payload["risk"]))))
        for name, title in (("commands", "RUNS  "), ("files", "FILES ")):
            values = _texts(payload.get(name))
            if values:
                found.append((Span(f"{title}", "dim"), Span(f"{len(values)}: "), say(" · ".join(values))))
        return found

    def _whole(self, width: int) -> list[Line]:
        if not self._is_plan:
            return self._permission(width)
        lines = plan_lines(self._plan, width)
        for name, title in (("files", "Files it names"), ("commands", "Commands it names"), ("risk", "Risk")):
            values = _texts(self.seen.payload.get(name))
            if values:
                lines += [(), (Span(title, "bold"),)]
                lines += [(Span(piece),) for value in values for piece in wrap(f"  {value}", width, "    ")]
        return lines

    def _permission(self, width: int) -> list[Line]:
        lines: list[Line] = []
        for name, value in self.seen.payload.items():
            lines.append((say(name, "dim"),))
            text = value if isinstance(value, str) else str(value)
            lines += [(Span(piece),) for piece in wrap(text, width - 2)]
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
        frame = self.query_one("#feedback-frame")
        wanted = "Why not? Enter sends your no, Esc goes back" if self._denying else "Feedback (sent with your answer)"
        frame.border_title = Content(wanted)
        frame.set_class(self._denying, "-denying")
        self.refresh_bindings()

    # ------------------------------------------------------------------------------------------------ answers

    def offers(self, action: str) -> bool | None:
        if action == "send":
            return super().offers(action) if self._editing or self._denying else False
        if action == "edit":
            return super().offers(action) if self._is_plan and not self._editing else False
        if action in ("approve", "deny") and self._editing:
            return False
        return super().offers(action)

    def _feedback(self) -> str:
        return self.query_one("#feedback", Input).value.strip()

    def action_approve(self) -> None:
        self._answer("approving", partial(self._approve, self._feedback() or None, None))

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
            self.desk.say("say why: a refusal without feedback helps nobody", "warning")
            return
        self._answer("denying", partial(self._reject, self._feedback()))

    def _answer(self, label: str, command: "partial[str]") -> None:
        self.desk.do(f"{label} what {self.seen.from_} asks", command, self.answered)

    def _approve(self, feedback: str | None, edited: str | None) -> str:
        decisions.approve(self.desk.team, self.seen.id, feedback=feedback, sha256=self.seen.sha256, edited=edited)
        how = "approved as you edited it" if edited is not None else "approved"
        return f"{how}: {self.seen.from_} goes on"

    def _reject(self, feedback: str) -> str:
        decisions.reject(self.desk.team, self.seen.id, feedback, sha256=self.seen.sha256)
        return f"denied: {self.seen.from_} reads why"

    def answered(self, worked: bool, says: str) -> None:  # noqa: FBT001
        if worked:
            self.desk.drafts.pop(self.seen.id, None)
            self.query_one("#feedback", Input).clear()
        super().answered(worked, says)

    # ------------------------------------------------------------------------------------------------- leaving

    def _read_on(self) -> None:
        self._denying = self._editing = False
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
        if feedback is not None and feedback.value:
            self.desk.drafts[self.seen.id] = feedback.value


def _texts(value: object) -> list[str]:
    """A payload's list of words; a single word is a list of one."""
    if isinstance(value, list):
        return [safe_line(str(each)) for each in value]
    return [safe_line(str(value))] if value else []
