"""Inputs for messages: the composer at the bottom of a view, and the prompt line over the footer.

Keys of typing, completion of `@names` and paths, and the history are in `draft_input.py`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Label, Static

from crewboard import UsageError
from crewboard_tui.context import AppContext
from crewboard_tui.keymap.bindings import Pressed, bindings_of, default_key
from crewboard_tui.render.lines import one_line

# Textual's text area takes a twentieth of a start to load and to mount: the first picture does without.
if TYPE_CHECKING:
    from crewboard_tui.compose.draft_input import DraftInput, Prose


def shown_composer(screen: Screen[Any]) -> "Composer | None":
    """Return the composer of a screen; None if it has none, or is not wide enough to show it."""
    # Asked after every key: one walk takes a tenth of the time of a query.
    found = next(iter(screen.walk_children(Composer)), None)
    return found if found is not None and found.styles.display != "none" else None


class ComposeTarget(Struct, frozen=True):
    """The message being written. `label` names the recipient; the text is kept as `draft` until it is sent.

    `check` returns why a text cannot be sent; `names` can be completed at its start. An empty text is refused, unless
    `nothing` is set, which says what an empty text means. `write_out` returns the text that a slash command stands for,
    which is shown first, to be read before it is sent; None for another text. `addressed` returns the label for a text
    that names other agents, such as `@ui look`, and None for another text.
    """

    label: str
    draft: str
    send: Callable[[str], None]
    check: Callable[[str], str | None] = lambda _: None
    names: Sequence[str] = ()
    nothing: str | None = None
    write_out: Callable[[str], str | None] = lambda _: None
    addressed: Callable[[str], str | None] = lambda _: None

    def hint(self, pressed: Pressed) -> str:
        """Return a hint with the keys for a prompt that covers the footer."""
        empty = f" · empty: {self.nothing}" if self.nothing is not None else ""
        send, line, edit, back = map(pressed, ("draft.send", "draft.newline", "draft.edit", "line.leave"))
        return f"{send} sends · {line} new line · {edit} editor · {back} keeps it{empty}"

    def is_sent(self, text: str) -> bool:
        """Return True if Enter sends this text."""
        return bool(text.strip()) or self.nothing is not None


class Composer(Horizontal):
    """The message line. Its recipient follows the selection until the user begins to write, and then stays."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("composer")]

    def __init__(self, context: AppContext, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._app_context = context
        self._head: ComposeTarget | None = None
        self._came_from: Widget | None = None
        self.line: DraftInput | None = None
        """The input; None until it is mounted, after the first picture."""

    def compose(self) -> ComposeResult:
        # A label has styles of its own to parse, before the first picture.
        yield Static("", id="composer-to")

    def on_mount(self) -> None:
        if not self._app_context.read_only:
            self.call_after_refresh(self._add_line)

    async def _add_line(self) -> None:
        from crewboard_tui.compose.draft_input import DraftInput, Prose

        line = DraftInput(prose=Prose.of(self._app_context), id="composer-line")
        line.keep = self._keep
        line.refuse = self._refuse
        if self.is_attached:
            await self.mount(line, Label("", id="composer-hint"))
            self.line = line
            self._take(self._head)

    def rest(self, head: ComposeTarget | None) -> None:
        """Set the target for the next text; without a target, hide the composer. No effect while the user writes."""
        if self.line is None or not self.line.has_focus:
            self.set_class(head is None, "-no-target")
            self._take(head)

    def begin(self, head: ComposeTarget) -> None:
        """Start writing to `head`; the input must be mounted."""
        self._take(head)
        self._came_from = self.screen.focused
        if self.line is not None:
            self.line.focus()

    def _take(self, head: ComposeTarget | None) -> None:
        if self.line is not None:
            self.line.leave()
            self.line.names = head.names if head else ()
        self._head = head
        self.reload()
        self._show_label()

    def reload(self) -> None:
        """Show the target's draft."""
        kept = self._app_context.drafts.get(self._head.draft, "") if self._head else ""
        if self.line is not None and kept != self.line.text:
            self.line.load(kept)

    def _show_label(self) -> None:
        head, text = self._head, self.line.text if self.line is not None else ""
        self._show(self.query_one("#composer-to", Static), f"{head.addressed(text) or head.label} ›" if head else "")

    def _show(self, label: Static, text: str) -> None:
        """Set a label if it changed: each assignment lays out the line again."""
        content = Content(one_line(text))
        if label.content != content:
            label.update(content)

    def _keep(self, text: str) -> None:
        if self._head is not None:
            self._app_context.drafts.put(self._head.draft, text)

    def _refuse(self, why: str) -> None:
        self._app_context.say(why, "error")

    def on_descendant_focus(self) -> None:
        self._hint()

    def on_descendant_blur(self) -> None:
        self._show(self.query_one("#composer-hint", Label), "")

    def on_text_area_changed(self) -> None:
        self._show_label()
        self._hint()

    def _hint(self) -> None:
        """Show what Tab can complete the word to, or what an empty text means; the footer shows the keys."""
        if self._head is not None and self.line is not None and self.line.has_focus:
            words = _completes(self.line.completions, self._app_context.key)
            empty = f"empty: {self._head.nothing}" if self._head.nothing is not None else ""
            self._show(self.query_one("#composer-hint", Label), words or self.line.note or empty)

    def on_draft_input_submitted(self, event: "DraftInput.Submitted") -> None:
        event.stop()
        line = event.draft
        text, head = line.text, self._head
        try:
            written = head.write_out(text) if head is not None else None
        except UsageError as error:
            self._refuse(str(error))
            return
        if written is not None:
            line.load(written)
            self._app_context.say(WRITTEN_OUT)
            return
        problem = head.check(text) if head is not None and head.is_sent(text) else None
        if problem is not None:
            self._refuse(problem)
            return
        # Clear the target first, so that a second Enter sends nothing.
        self._head = None
        line.load("")
        if head is not None and head.is_sent(text):
            self._app_context.drafts.pop(head.draft, None)
            head.send(text)
        self.action_leave()

    def action_leave(self) -> None:
        """Return to the previous pane; the text is kept."""
        if self.line is not None:
            self.line.leave()
        before, self._came_from = self._came_from, None
        if before is not None and before.is_attached:
            before.focus()
        else:
            self.screen.focus_next()


WRITTEN_OUT = "The command is written out: read it, then send it"

_NAMES_SHOWN = 12

_LINES = 3
"""Lines of a prompt with its hint, unless the text has more."""


def _completes(found: Sequence[str], pressed: Pressed) -> str:
    """Return a hint with what Tab can complete a word to; empty if there is nothing."""
    more = " …" if len(found) > _NAMES_SHOWN else ""
    return f"{' '.join(found[:_NAMES_SHOWN])}{more} · {pressed('draft.complete')} completes" if found else ""


class PromptLine(ModalScreen[str | None]):
    """A prompt for one line of text, or with `prose` for several; the result is None after Esc.

    `label` may be a function that returns the label for the text so far, `text` one that returns the stored text, which
    another dashboard may change. `changed` is called on each change, to store the text. `check` returns why a text is
    invalid; Enter then does nothing. Matching `names` are shown as a hint; Tab completes them. `write_out` is as in
    `ComposeTarget`.
    """

    CSS_PATH = "composer.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("line")]

    def __init__(
        self,
        label: str | Callable[[str], str],
        text: str | Callable[[], str] = "",
        *,
        hint: str = "",
        changed: Callable[[str], object] = lambda _: None,
        check: Callable[[str], str | None] = lambda _: None,
        names: Sequence[str] = (),
        prose: "Prose | None" = None,
        write_out: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        from crewboard_tui.compose.draft_input import DraftInput

        super().__init__()
        self._write_out = write_out
        self._written: str | None = None
        """The text that a slash command was replaced by; None before that."""
        self._label = label if callable(label) else lambda _: label
        self._kept = text if callable(text) else None
        self._hint = hint
        self._check = check
        self.pressed: Pressed = default_key
        self._draft = DraftInput(text() if callable(text) else text, names, prose=prose, id="ask-input")
        self._draft.refuse, self._draft.keep = self._refuse, changed
        self._box = Horizontal(id="ask")
        self._shown_label, self._shown_hint = Label(id="ask-label"), Label(Content(hint), id="ask-hint")
        self._behind: Screen[Any] | None = None
        """The screen whose footer is covered."""

    def compose(self) -> ComposeResult:
        self._show_label()
        with self._box:
            yield from (self._shown_label, self._draft, self._shown_hint)

    def _show_label(self) -> None:
        self._shown_label.update(Content(f"{one_line(self._label(self._draft.text))} ›"))

    def on_mount(self) -> None:
        self._draft.focus()
        self._show_hint()
        # Only the footer is covered, whose keys are inactive meanwhile and which is as high, so that all else is seen.
        behind = self._behind = self.app.screen_stack[-2]
        covered = 2 if behind.has_class("-short") else _LINES
        self._box.styles.min_height = covered
        self._shown_hint.styles.max_height = covered - 1
        self._cover_footer(covered)

    def on_unmount(self) -> None:
        # What was entered may have opened another screen already.
        if self._behind is not None:
            self._cover_footer(None)

    def on_resize(self) -> None:
        self.call_after_refresh(self._grow)

    def _grow(self) -> None:
        """Make the footer as high as the prompt, so that the prompt covers no pane and not the alert bar."""
        if self.is_attached:
            self._cover_footer(self._box.outer_size.height)

    def _cover_footer(self, height: int | None) -> None:
        if self._behind is not None:
            for footer in self._behind.query("#keys"):
                footer.styles.min_height = height

    def take(self, character: str) -> None:
        """Take a character that was typed before the prompt was shown."""
        self._draft.add(character)

    def on_text_area_changed(self) -> None:
        self._show_label()
        self._show_hint()
        self.call_after_refresh(self._grow)

    def _show_hint(self) -> None:
        is_written_out = self._draft.text == self._written
        hint = WRITTEN_OUT if is_written_out else _completes(self._draft.completions, self.pressed)
        self._say(hint or self._draft.note or self._hint)

    def reload(self) -> None:
        """Show the stored text if it is another one."""
        if self._kept is not None and self._draft.text != self._kept():
            self._draft.load(self._kept())

    def _say(self, text: str, *, refused: bool = False) -> None:
        self._shown_hint.update(Content(one_line(text)))
        self._shown_hint.set_class(refused, "-refused")

    def _refuse(self, why: str) -> None:
        self._say(why, refused=True)

    def on_draft_input_submitted(self, event: "DraftInput.Submitted") -> None:
        text = event.text
        try:
            written = self._write_out(text)
        except UsageError as error:
            self._refuse(str(error))
            return
        if written is not None:
            self._written = written
            self._draft.load(written)
            self._show_hint()
            return
        problem = self._check(text)
        if problem is not None:
            self._refuse(problem)
        elif self.is_current:
            self.dismiss(text)

    def action_leave(self) -> None:
        self._draft.leave()
        self.dismiss(None)
