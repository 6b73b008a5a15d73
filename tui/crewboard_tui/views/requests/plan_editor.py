"""An editor for plans; edits are kept as a draft until sent."""

from textual.content import Content
from textual.widgets import TextArea

from crewboard.records import Request
from crewboard_tui.compose.drafts import edit_of
from crewboard_tui.context import AppContext
from crewboard_tui.render.sanitize import safe_text


class PlanEditor(TextArea):
    """The plan of a request, with the edits so far."""

    def __init__(self, desk: AppContext, request: Request) -> None:
        self._drafts = desk.drafts
        self._draft = edit_of(request.id)
        self._original = safe_text(str(request.payload.get("plan", "")))
        self._is_sent = False
        super().__init__(self.rewritten or self._original, id="editor", classes="pane", soft_wrap=True)
        self.cursor_blink = False
        self.border_title = Content(f"Edit, then {desk.key('edit.send')} approves what stands here")

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
