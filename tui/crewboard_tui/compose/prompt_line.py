"""A one-line prompt at the bottom of the screen: for a filter, a name, a message."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from crewboard_tui.compose.draft_input import DraftInput, fitting, unescape_newlines
from crewboard_tui.keymap import bindings
from crewboard_tui.render.lines import one_line

_NAMES_SHOWN = 12


class PromptLine(ModalScreen[str | None]):
    """Asks for one line; the result is None if it is left with Esc.

    `changed` is called on each change. `check` returns why a text is not valid; Enter then does nothing. A callable
    `text` returns what `changed` keeps, which may grow meanwhile. The matching `names` are shown as a hint, and Tab
    completes.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings.bindings("line")]

    def __init__(
        self,
        label: str,
        text: str | Callable[[], str] = "",
        *,
        hint: str = "",
        changed: Callable[[str], None] | None = None,
        check: Callable[[str], str | None] | None = None,
        names: Sequence[str] = (),
        prose: bool = False,
    ) -> None:
        super().__init__()
        self._label = label
        self._kept = text if callable(text) else None
        self._text = text() if callable(text) else text
        self._hint = hint
        self._changed = changed
        self._check = check
        self._names = names
        self._prose = prose
        self.pressed: bindings.Pressed = bindings.default_key

    def compose(self) -> ComposeResult:
        draft = DraftInput(self._text, self._names, prose=self._prose, id="ask-input")
        draft.refuse = self._refuse
        draft.keep = self._changed if self._kept is not None else None
        with Horizontal(id="ask"):
            yield Label(Content(f"{one_line(self._label)} ›"), id="ask-label")
            yield draft
            yield Label(Content(self._hint), id="ask-hint")

    def on_mount(self) -> None:
        self.query_one(DraftInput).focus()
        self._show_hint(self._text)
        self._cover_footer()

    def _cover_footer(self) -> None:
        """Cover only the footer, whose keys are inactive meanwhile, so that the panes stay visible."""
        behind = self.app.screen_stack[-2]
        covered = max(2, sum(part.size.height for part in behind.query("#keys, #status")))
        self.query_one("#ask").styles.height = covered
        self.query_one("#ask-hint").styles.max_height = covered - 1

    def take(self, character: str) -> None:
        """Take a character that was typed before the prompt was shown."""
        draft = next(iter(self.query(DraftInput)), None)
        if draft is None:
            self._text += character
        else:
            draft.insert_text_at_cursor(character)

    @on(Input.Changed)
    def _tell(self, event: Input.Changed) -> None:
        self._show_hint(event.value)
        if self._changed is not None and self._kept is None:
            self._changed(unescape_newlines(event.value))

    def reload(self) -> None:
        """Show the kept text if it differs."""
        draft = next(iter(self.query(DraftInput)), None)
        if draft is not None and self._kept is not None and draft.text != self._kept():
            draft.load(self._kept())

    def _show_hint(self, text: str) -> None:
        names = fitting(text, self._names) if text or not self._prose else []
        more = " …" if len(names) > _NAMES_SHOWN else ""
        found = f"{' '.join(names[:_NAMES_SHOWN])}{more} · {self.pressed('draft.complete')} completes"
        self._say(found if names else self._hint)

    def _say(self, text: str, *, refused: bool = False) -> None:
        hint = self.query_one("#ask-hint", Label)
        hint.update(Content(one_line(text)))
        hint.set_class(refused, "-refused")

    def _refuse(self, why: str) -> None:
        self._say(why, refused=True)

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        text = unescape_newlines(event.value)
        problem = self._check(text) if self._check is not None else None
        if problem is not None:
            self._refuse(problem)
        elif self.is_current:
            self.dismiss(text)

    def action_leave(self) -> None:
        self.dismiss(None)
