"""Narrowing what a view lists: `/` to what contains some words, `f` to a group of states; Esc shows all again."""

from collections.abc import Callable, Iterable

from crewboard_tui.actions.filters import ALL
from crewboard_tui.actions.registry import NOT_NOW, Action, Layer, Selection
from crewboard_tui.compose.prompt_line import PromptLine
from crewboard_tui.context import AppContext


class Search:
    """What a list is narrowed to: `words`, and one `group` of states. `changed` is called when either has changed.

    `finds` says what may be typed. `groups` are the groups of states of a numbered view; None on a page.
    """

    def __init__(
        self,
        context: AppContext,
        changed: Callable[[], None],
        finds: str = "words of a line",
        groups: Iterable[str] | None = None,
    ) -> None:
        self._context = context
        self._changed = changed
        self._finds = finds
        self._groups = [ALL, *(groups or ())]
        self.words = ""
        self.group = ALL
        filter_ = Action("view.filter", self._ask)
        turn = Action("view.group", self._turn_group, lambda _: None if len(self._groups) > 1 else NOT_NOW)
        self.actions = (filter_,) if groups is None else (filter_, turn)
        self.layer = Layer(lambda: self.is_narrowed, self.clear)
        """What Esc closes: the narrowing."""

    def _ask(self, _: Selection) -> None:
        def done(text: str | None) -> None:
            if text is not None:
                self.narrow(text)

        self._context.navigator.ask(PromptLine("find", self.words, hint=self._finds, changed=self.narrow), done)

    def narrow(self, text: str) -> None:
        """Show only what matches `text`."""
        self.words = text.strip()
        self._changed()

    def _turn_group(self, _: Selection) -> None:
        self.group = self._groups[(self._groups.index(self.group) + 1) % len(self._groups)]
        self._changed()

    def clear(self) -> None:
        """Show all again."""
        self.group = ALL
        self.narrow("")

    @property
    def is_narrowed(self) -> bool:
        """Return True if the list may leave something out."""
        return bool(self._parts)

    @property
    def _parts(self) -> list[str]:
        return [*([self.group] if self.group != ALL else []), *([f"filter {self.words}"] if self.words else [])]

    @property
    def narrowed_to(self) -> str:
        """What the list is narrowed to and the key that undoes it, for the pane's title; empty if it shows all.

        As in ` · running · filter api · Esc shows all`.
        """
        if not self.is_narrowed:
            return ""
        return "".join(f" · {part}" for part in [*self._parts, f"{self._context.key('view.back')} shows all"])

    def nothing(self, otherwise: str) -> str:
        """Return the line of an empty list: how to see more of it, or `otherwise`, which says what to do first."""
        return (
            f"nothing here is like that; {self._context.key('view.back')} shows all" if self.is_narrowed else otherwise
        )
