"""The box for the words that go along with an answer: one text for a yes, another for a no, never mixed."""

from collections.abc import Callable
from functools import partial

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Key

from crewboard.readmodel.mail import QUESTION
from crewboard_tui.compose.draft_input import DraftInput
from crewboard_tui.compose.drafts import for_no
from crewboard_tui.context import AppContext

_YES, _NO = 0, 1
"""What a text is for."""


class Feedback(Vertical):
    """What one says to the request `ident`; kept among the drafts until an answer takes it.

    `denying` while one says why not, `editing` while the plan is rewritten beside it; `leave` is called when the key
    that sends ends a text that is not sent from here.
    """

    def __init__(self, desk: AppContext, ident: str, leave: Callable[[], None]) -> None:
        super().__init__(id="feedback-frame", classes="pane")
        self._over = False
        self._desk = desk
        self._leave = leave
        self._drafts = ident, for_no(ident)  # in the order of `_YES` and `_NO`
        self._texts = [desk.drafts.get(draft, "") for draft in self._drafts]
        self._taken = [False, False]
        self._begun = ""  # the no as it was when it had become a question
        self._at = self._of_interest
        self.denying = False
        self.editing = False
        self._line = DraftInput(self._texts[self._at], prose=True, id="feedback")
        self._line.keep = self._note
        self._line.refuse = partial(self._desk.say, tone="error")

    def compose(self) -> ComposeResult:
        yield self._line

    @property
    def with_yes(self) -> str | None:
        """What goes along with a yes."""
        return self._texts[_YES].strip() or None

    @property
    def with_no(self) -> str:
        """What goes along with a no; nothing while a question is only begun."""
        text = self._texts[_NO].strip()
        return "" if text == QUESTION.strip() else text

    @property
    def asks(self) -> bool:
        """Whether the no is a question."""
        return self._texts[_NO].startswith(QUESTION)

    @property
    def _of_interest(self) -> int:
        """Which text to show while nobody writes."""
        return _NO if self.with_no and not self.with_yes else _YES

    @property
    def has_cursor(self) -> bool:
        """Whether one writes in it now."""
        return self._line.has_focus

    # ----------------------------------------------------------------------------------------------- writing

    def deny(self, *, ask: bool = False) -> None:
        """Have somebody write why not, or what they `ask`."""
        self.denying = True
        self._drop_unasked()
        self._show(_NO)
        if ask and not self.asks:
            self._line.value = QUESTION + self._line.value
            self._line.cursor_position = len(self._line.value)
            self._begun = self._line.text
        self._line.focus()
        self.show_use()

    def rest(self) -> None:
        """Nobody writes any more; what was written stays."""
        self.denying = False
        self._drop_unasked()
        if not self.with_no:
            self._texts[_NO] = ""
        self._show(self._of_interest)
        self.show_use()

    def _drop_unasked(self) -> None:
        """A no that was made a question, in which nothing was asked, is the no it was before."""
        if self._texts[_NO] == self._begun:
            self._texts[_NO] = self._begun.removeprefix(QUESTION)
        self._begun = ""

    def end(self, *, over: bool) -> None:
        """Whether nobody waits for an answer any more: the box is there for what was written alone."""
        if over != self._over:
            self._over = over
            self.show_use()

    def _show(self, which: int) -> None:
        """Show the text for a yes or that for a no; the other one is kept meanwhile."""
        if which != self._at or self._line.text != self._texts[which]:
            self._at = which
            self._line.load(self._texts[which])

    def _note(self, text: str) -> None:
        self._texts[self._at] = text
        self.show_use()

    def on_key(self, event: Key) -> None:
        if not self.denying and event.key in self._desk.keys_of("draft.send"):
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
        """Say what the words are for, and with which key they are sent: in one line while there are none."""
        self._line.sends = self.denying
        use = self._use()
        folded = not (self._texts[self._at] or self.denying or self.has_cursor)
        self.border_title = Content(use)
        self._line.placeholder = use if folded else ""
        self.set_class(folded, "-folded")
        self.display = not (self._desk.read_only or (self._over and folded))
        self.set_class(self.denying, "-denying")

    def _use(self) -> str:
        key = self._desk.key
        send, back, yes = key("draft.send"), key("view.back"), key("edit.send" if self.editing else "request.approve")
        if self._over:
            return "Not sent: what it was about is over"
        if self.denying:
            asks = f"What do you ask? {send} sends it, with a no for now"
            return f"{asks if self.asks else f'Why not? {send} sends your no'}, {back} goes back"
        # Where one types it would be a letter.
        deny = f"{back} " * (self.editing or self.has_cursor) + key("request.deny")
        if self._at == _NO:
            return f"Kept for a no · {deny} goes on with it · {yes} leaves it out"
        kept = f" · {deny} shows what is kept for a no" if self.with_no else ""
        if not self.with_yes:
            writes = "" if self.has_cursor else f"{key('view.pane')} writes some, "
            return f"Feedback · {writes}to go with your yes{kept}"
        ready = f"{send} when it is written, then " if self.has_cursor else ""
        return f"Feedback · {ready}{yes} sends it with your yes{kept}"

    # ----------------------------------------------------------------------------------------------- keeping

    def take(self, *, no: bool) -> None:
        """An answer is given: forget what went along with it, and words for a yes in any case.

        Words for a no are kept after a yes: they may say best why it is taken back. Touches nothing but the drafts.
        """
        self._taken = [True, no]
        self.keep()

    def keep(self) -> None:
        """Put what is written among the drafts; a text that was emptied or sent is none."""
        for draft, text, taken in zip(self._drafts, self._texts, self._taken, strict=True):
            if text and not taken:
                self._desk.drafts[draft] = text
            else:
                self._desk.drafts.pop(draft, None)
