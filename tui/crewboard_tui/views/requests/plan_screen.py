"""Reviewing a plan, or a permission: all of it to read, then one key."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from crewboard.commands import answers, rules
from crewboard.commands.cli_hint import command_for
from crewboard.readmodel.file_activity import FileActivity
from crewboard.readmodel.mail import display_name, question_in
from crewboard.records import Request
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings
from crewboard_tui.poller import Interest, Snapshot
from crewboard_tui.render.lines import Line, Span, exact_lines, one_line, say
from crewboard_tui.views.board.columns import SHORT
from crewboard_tui.views.requests.base import RequestScreen
from crewboard_tui.views.requests.feedback import Feedback
from crewboard_tui.views.requests.outcome import newest_of, revision_of
from crewboard_tui.views.requests.plan_editor import PlanEditor
from crewboard_tui.views.requests.plan_impact import stake_lines
from crewboard_tui.views.requests.request_text import permission_text, plan_text, revision_text
from crewboard_tui.views.requests.rule_scope import covers, scope_of
from crewboard_tui.widgets.line_view import LineView
from crewboard_tui.widgets.static_lines import StaticLines

_ABOUT_PLANS = frozenset({"edit", "compare", "ask_back"})
"""Answers that lead to another revision; after a no to a single call the agent goes on without it."""


class ReviewScreen(RequestScreen):
    """A plan (or a single tool call) that waits for a yes or a no."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("edit")]
    AUTO_FOCUS = "#plan"

    def __init__(self, desk: AppContext, request: Request) -> None:
        super().__init__(desk, request)
        self._editing = False
        self._comparing = False
        self._other_place = 0
        """How far the plan is scrolled while revisions are compared, and the other way round."""
        self.editor = PlanEditor(desk, request)
        self.feedback = Feedback(desk, request.id, self._leave_feedback)

    def body(self) -> Iterable[Widget]:
        yield StaticLines(id="facts")
        plan = LineView(id="plan", classes="pane", follow=False, follows=False)
        yield plan
        yield self.editor
        yield self.feedback

    @property
    def _is_plan(self) -> bool:
        return self.seen.type == "plan_approval"

    @property
    def _scope(self) -> str | None:
        """What a rule would cover; None where none is offered."""
        return scope_of(self.seen)

    @property
    def _before(self) -> Request | None:
        """The revision before."""
        return next((each for each in self.context.snapshot.view.asked if each.id == self.seen.supersedes), None)

    @property
    def _pair(self) -> tuple[Request, Request] | None:
        """The revisions to compare: what came in the place of this one, else what it came in the place of."""
        if (newest := newest_of(self.seen, self.context.snapshot.view)) is not None:
            return self.seen, newest
        return (self._before, self.seen) if self._before is not None else None

    @property
    def copied(self) -> str:
        """What is shown: while revisions are compared, how they differ."""
        return self.query_one("#plan", LineView).copied if self._comparing else super().copied

    def title_word(self) -> str:
        if not self._is_plan:
            return self.seen.type.upper()
        return f"PLAN v{revision_of(self.seen, self.context.snapshot.view)}"

    def on_mount(self) -> None:
        self._show_mode()
        if self.editor.rewritten:
            edit = self.context.key("request.edit")
            self.context.say(f"what you made of this plan is kept: {edit} shows it", "warning")

    # ------------------------------------------------------------------------------------------------ painting

    def interest(self) -> Interest:
        return Interest(touches=self._is_plan)

    @property
    def _touches(self) -> FileActivity | None:
        """Which files everybody read and changed; None while that is not read yet."""
        snapshot = self.context.snapshot
        return snapshot.touches if snapshot.interest == self.interest() else None

    def paint_request(self, snapshot: Snapshot) -> None:  # noqa: ARG002  the request is shown as it was opened
        self.feedback.end(over=bool(self.fate))
        self.show_facts([*self._kept_edit(), *self.head_lines(), *self._answer_before(), *self._stakes()])
        plan = self.query_one("#plan", LineView)
        if plan.size:  # hidden, or not laid out again yet, it has no width to break lines at
            plan.show(self._whole(plan.line_width))
            self._show_progress()

    def _kept_edit(self) -> list[Line]:
        """Where the plan's pane has no title to say it in: that what is shown is not what one made of it."""
        if not (self.editor.rewritten and self.size.height < SHORT):
            return []
        return [(Span(f"your edit is kept: {self.context.key('request.edit')} shows it", "warning"),)]

    def _answer_before(self) -> list[Line]:
        """What was said to the revision before: whether this one heeds it is what one looks for."""
        before = self._before
        if before is None or not before.feedback or before.decided_by is None:
            return []
        asked = question_in(before.feedback)
        did = "SAID" if asked is None else "ASKED"
        said = before.feedback if asked is None else asked
        return [(Span(f"{one_line(display_name(before.decided_by)).upper()} {did:<6}", "dim"), say(said, "bold"))]

    def _stakes(self) -> list[Line]:
        """What it touches, on one line each; the whole lists stand below the plan."""
        found = stake_lines(self.seen, self._touches, self.context.now)
        if self._scope is not None:
            found.append(
                (
                    Span("RULE  ", "dim"),
                    Span(f"{self.context.key('request.rule')} says yes to "),
                    say(self._covers(), "bold"),
                )
            )
        return found

    def _covers(self) -> str:
        return covers(self.seen, self._scope or "")

    def _whole(self, width: int) -> list[Line]:
        if not self._is_plan:
            return [*permission_text(self.seen, width), *self._rule_text(width)]
        if self._comparing and (pair := self._pair):
            before, after = (f"v{revision_of(each, self.context.snapshot.view)}" for each in pair)
            return revision_text(*pair, (before, after), width)
        return plan_text(self.seen, self._touches, self.context.now, width)

    def _rule_text(self, width: int) -> list[Line]:
        if self._scope is None:
            return []
        key = self.context.key("request.rule")
        return [
            (),
            (Span(f"{key} would say yes, now and from now on, to", "dim"),),
            *exact_lines(self._covers(), width),
        ]

    @on(LineView.Scrolled)
    def _show_progress(self) -> None:
        plan = self.query_one("#plan", LineView)
        wanted = Content(f"{plan.read_percent}% read")
        if plan.border_subtitle != wanted:
            plan.border_subtitle = wanted

    def _show_mode(self) -> None:
        """Plan, editor and feedback box, as they are used now."""
        self.query_one("#plan").display = not self._editing
        self.editor.display = self._editing
        self.query_one("#plan", LineView).border_title = Content(self._title())
        self.feedback.editing = self._editing
        self.feedback.show_use()
        self.refresh_bindings()
        self.refresh_soon()

    def _title(self) -> str:
        """What stands in the pane, and whether it is all there is."""
        if self._comparing:
            return f"What changed · {self.context.key('request.compare')} shows the plan"
        if self.editor.rewritten:
            return f"Plan, as it came · your edit of it is kept: {self.context.key('request.edit')} shows it"
        return "Plan" if self._is_plan else "Permission"

    # ------------------------------------------------------------------------------------------------ answers

    def offers(self, action: str) -> bool | None:
        if action == "send":
            return super().offers(action) if self._editing else False
        if action in _ABOUT_PLANS and not self._is_plan:
            return False
        if action == "compare":
            return self._pair is not None and not self._editing
        if action == "approve_rule" and self._scope is None:
            return False
        if action in ("approve", "approve_rule", "deny", "ask_back", "edit") and self._editing:
            return False
        return super().offers(action)

    def why_not(self, key: bindings.Key) -> str:
        if key.action in _ABOUT_PLANS and not self._is_plan:
            return "only about a plan"
        return super().why_not(key)

    @property
    def key_labels(self) -> Mapping[str, str]:
        return {"request.edit": "your edit"} if self.editor.rewritten else {}

    def action_approve(self) -> None:
        self._answer("approving", partial(self._approve, self.feedback.with_yes, None))

    def action_approve_rule(self) -> None:
        if self.feedback.with_yes:
            rule, yes = self.context.key("request.rule"), self.context.key("request.approve")
            self.context.say(f"{rule} sends no feedback: empty the box first, or approve with {yes}", "warning")
            return
        self._answer("approving", self._approve_rule)

    def _approve_rule(self) -> str:
        _, rule = rules.approve_with_rule(self.context.team, self.seen.id, sha256=self.seen.sha256)
        revoke = command_for(self.context.team, f"rules revoke {rule.id}")
        return f"approved, and from now on {self._covers()}; `{revoke}` takes it back"

    def action_compare(self) -> None:
        plan = self.query_one("#plan", LineView)
        here, self._other_place = self._other_place, plan.scroll_offset.y
        self._comparing = not self._comparing
        self._show_mode()
        self.paint(self.context.snapshot)
        plan.scroll_to(y=here, animate=False, force=True)

    def action_ask_back(self) -> None:
        self.feedback.deny(ask=True)

    def action_deny(self) -> None:
        self.feedback.deny()

    def action_edit(self) -> None:
        self._editing = True
        self._show_mode()
        self.editor.focus()

    def action_send(self) -> None:
        self._answer("approving", partial(self._approve, self.feedback.with_yes, self.editor.text), edit=True)

    @on(Input.Submitted, "#feedback")
    def _feedback_done(self) -> None:
        if self.offers("deny"):
            self._deny()

    def _deny(self) -> None:
        if not self.feedback.with_no:
            self.context.say("say why: a no without a word helps nobody", "warning")
            return
        label = "asking back about" if self.feedback.asks else "denying"
        self._answer(label, partial(self._reject, self.feedback.with_no), no=True)

    def _answer(self, label: str, command: Callable[[], str], *, no: bool = False, edit: bool = False) -> None:
        """Give an answer in a thread; whether it is a `no`, and whether the `edit` of the plan goes along with it."""
        settle = partial(self._forget_drafts, no, edit)
        self.context.do(f"{label} what {self.seen.from_} asks", command, self.answered, settle=settle)

    def _approve(self, feedback: str | None, edited: str | None) -> str:
        answers.approve(self.context.team, self.seen.id, feedback=feedback, sha256=self.seen.sha256, edited=edited)
        how = "approved as you edited it" if edited is not None else "approved"
        left_out = ["your words for a no were not sent"] if self.feedback.with_no else []
        left_out += ["your edit was not sent"] if self.editor.rewritten and edited is None else []
        return "; ".join([f"{how}: {self.seen.from_} goes on", *left_out])

    def _reject(self, feedback: str) -> str:
        answers.reject(self.context.team, self.seen.id, feedback, sha256=self.seen.sha256)
        asks = question_in(feedback) is not None
        said = f"asked back: {self.seen.from_} reads it" if asks else f"denied: {self.seen.from_} reads why"
        left_out = ["your words for a yes were not sent"] if self.feedback.with_yes else []
        left_out += ["your edit was not sent"] if self.editor.rewritten else []
        return "; ".join([said, *left_out])

    def _forget_drafts(self, no: bool, edit: bool, worked: bool, says: str) -> None:  # noqa: ARG002, FBT001
        if worked and edit:
            self.editor.sent()
        if worked:
            self.feedback.take(no=no)

    # ------------------------------------------------------------------------------------------------- leaving

    def _read_on(self) -> None:
        was_editing, self._editing = self._editing, False
        self.feedback.rest()
        self.keep_drafts()
        if was_editing and self.editor.rewritten:
            edit, yes = self.context.key("request.edit"), self.context.key("request.approve")
            self.context.say(
                f"your edit is kept, not sent: {edit} goes on with it, {yes} approves what is shown", "warning"
            )
        self._show_mode()
        self.query_one("#plan", LineView).focus()

    def _leave_feedback(self) -> None:
        """Back to what it was written beside: the plan, or the edit of it."""
        if not self._editing:
            self._read_on()
            return
        self.feedback.rest()
        self.editor.focus()

    def action_back(self) -> None:
        if self.feedback.denying or self.feedback.has_cursor:
            self._leave_feedback()
        elif self._editing:
            self._read_on()
        else:
            self.keep_drafts()
            super().action_back()

    def on_unmount(self) -> None:
        self.keep_drafts()

    def keep_drafts(self) -> None:
        """Put what is said and what the plan was rewritten to among the drafts."""
        self.feedback.keep()
        self.editor.keep()
