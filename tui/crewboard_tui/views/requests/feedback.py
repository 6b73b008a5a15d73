"""Inputs for the answer to a request: feedback, and an edited plan. Both are kept as drafts until sent.

A comment on an approval and the reason of a refusal are separate texts.
"""

from collections.abc import Callable
from functools import partial

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Key
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import TextArea

from crewboard import Request
from crewboard.readmodel import mail
from crewboard_tui.compose.draft_input import DraftInput, Prose
from crewboard_tui.context import AppContext
from crewboard_tui.drafts import edit_of, for_no
from crewboard_tui.render.sanitize import safe_text
from crewboard_tui.widgets.painter import Rule

_YES, _NO = 0, 1
"""The purpose of a text."""


class Feedback(Vertical):
    """The feedback on request `ident`; kept as a draft until it is sent with an answer.

    `denying` is set while a refusal is written, `editing` while the plan is edited beside it; `leave` is called when
    the send key ends a text that is not sent from here.
    """

    def __init__(self, context: AppContext, ident: str, leave: Callable[[], None]) -> None:
        super().__init__(id="feedback-frame", classes="pane")
        self.rule = Rule(self)
        self._over = False
        self._app_context = context
        self._leave = leave
        # In the order of `_YES` and `_NO`.
        self._drafts = ident, for_no(ident)
        self._texts = [context.drafts.get(draft, "") for draft in self._drafts]
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

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.rule.above(super().render_lines(crop), crop)

    @property
    def with_yes(self) -> str | None:
        """Return the comment to send with an approval."""
        return self._texts[_YES].strip() or None

    @property
    def with_no(self) -> str:
        """Return the text to send with a refusal; empty while a question is only started."""
        text = self._texts[_NO].strip()
        return "" if text == mail.QUESTION.strip() else text

    @property
    def asks(self) -> bool:
        """Return True if the refusal is a question."""
        return self._texts[_NO].startswith(mail.QUESTION)

    @property
    def _of_interest(self) -> int:
        """Return which text to show while none is being written."""
        return _NO if self.with_no and not self.with_yes else _YES

    @property
    def has_cursor(self) -> bool:
        """Return True if the box has the cursor."""
        return self._line.has_focus

    # ----------------------------------------------------------------------------------------------- writing

    def deny(self, *, ask: bool = False) -> None:
        """Start writing a refusal, or a question with `ask`."""
        self.denying = True
        self._drop_unasked()
        self._show(_NO)
        if ask and not self.asks:
            self._line.write(mail.QUESTION + self._line.text)
            self._begun = self._line.text
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
        """Undo turning the refusal into a question if no question was written."""
        if self._texts[_NO] == self._begun:
            self._texts[_NO] = self._begun.removeprefix(mail.QUESTION)
        self._begun = ""

    def end(self, *, over: bool) -> None:
        """Set whether the request is closed; the box then only shows what was written."""
        if over != self._over:
            self._over = over
            self.show_use()

    def _show(self, which: int) -> None:
        """Show the text for an approval or a refusal; the other is kept."""
        if which != self._at or self._line.text != self._texts[which]:
            self._at = which
            self._line.load(self._texts[which])

    def _note(self, text: str) -> None:
        self._texts[self._at] = text
        self.show_use()

    def on_key(self, event: Key) -> None:
        if not self.denying and event.key in self._app_context.keys_of("draft.send"):
            event.stop()
            self._leave()

    def on_descendant_focus(self) -> None:
        self.rule.paint()
        self._show(_NO if self.denying else _YES)
        self.show_use()

    def on_descendant_blur(self) -> None:
        self.rule.paint()
        if not self.denying:
            self._show(self._of_interest)
        self.show_use()

    def show_use(self) -> None:
        """Show what the text is for and which key sends it."""
        self._line.sends = self.denying
        use = self._use()
        folded = not (self._texts[self._at] or self.denying or self.has_cursor)
        self.rule.entitle(use)
        self._line.placeholder = use if folded else ""
        self.set_class(folded, "-folded")
        self.set_class(self._app_context.read_only or (self._over and folded), "-hidden")
        self.set_class(self.denying, "-denying")

    def _use(self) -> str:
        key = self._app_context.key
        send, back, yes = key("draft.send"), key("view.back"), key("edit.send" if self.editing else "request.approve")
        if self._over:
            return "Not sent: this request was already answered"
        if self.denying:
            asks = f"Your question · {send} asks for a revision"
            return f"{asks if self.asks else f'Why not? {send} denies it'}, {back} goes back"
        # While writing, the key would type a letter.
        deny = f"{back} " * (self.editing or self.has_cursor) + key("request.deny")
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
        """Drop the drafts that an answer used, and the comment on an approval in any case.

        A refusal is kept after an approval: it may be the reason for revoking it. Changes only the drafts.
        """
        self._taken = [True, no]
        self.keep()

    def keep(self) -> None:
        """Save the texts as drafts; drop empty and sent ones."""
        for draft, text, taken in zip(self._drafts, self._texts, self._taken, strict=True):
            if text and not taken:
                self._app_context.drafts[draft] = text
            else:
                self._app_context.drafts.pop(draft, None)


class PlanEditor(TextArea):
    """The plan of a request, with the edits so far."""

    def __init__(self, context: AppContext, request: Request) -> None:
        self._drafts = context.drafts
        self._draft = edit_of(request.id)
        self._original = safe_text(str(request.payload.get("plan", "")))
        self._is_sent = False
        super().__init__(self.rewritten or self._original, id="editor", classes="pane", soft_wrap=True)
        self.cursor_blink = False
        # Claude Code takes a plan from its teammate alone.
        effect = "asks the agent to submit this" if context.snapshot.view.attached else "approves what stands here"
        self.rule = Rule(self)
        self.rule.entitle(f"Edit, then {context.key('edit.send')} {effect}")

    def on_focus(self) -> None:
        self.rule.paint()

    def on_blur(self) -> None:
        self.rule.paint()

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.rule.above(super().render_lines(crop), crop)

    @property
    def rewritten(self) -> str:
        """Return the kept edit of the plan; empty if there is none."""
        return self._drafts.get(self._draft, "")

    def keep(self) -> None:
        """Keep the text as a draft, unless it equals the plan or was sent."""
        if self._is_sent or self.text == self._original:
            self._drafts.pop(self._draft, None)
        else:
            self._drafts[self._draft] = self.text

    def sent(self) -> None:
        """Drop the draft: the edited plan was sent."""
        self._is_sent = True
        self.keep()
