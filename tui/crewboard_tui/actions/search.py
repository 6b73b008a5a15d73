"""`/`: narrowing what a screen lists to what contains some words, saying so, and Esc, which shows all again."""

from typing import ClassVar

from crewboard_tui.actions.agents import AgentKeys
from crewboard_tui.compose.prompt_line import PromptLine
from crewboard_tui.context import AppContext


class Findable(AgentKeys):
    """A screen with something to find in it. `filter` is what it is narrowed to."""

    FINDS: ClassVar[str] = "words of a line"
    """What one may type to find something."""

    def __init__(self, desk: AppContext) -> None:
        super().__init__(desk)
        self.filter = ""

    def offers(self, action: str) -> bool | None:
        return True if action == "filter" else super().offers(action)

    def action_filter(self) -> None:
        def done(text: str | None) -> None:
            if text is not None:
                self.narrow(text)

        self.context.navigator.ask(PromptLine("find", self.filter, hint=self.FINDS, changed=self.narrow), done)

    def narrow(self, text: str) -> None:
        """Show only what matches `text`."""
        self.filter = text.strip()
        self.apply_filter()
        self.refresh_bindings()

    def apply_filter(self) -> None:
        """The filter has changed."""
        self.paint(self.context.snapshot)

    @property
    def narrowings(self) -> list[str]:
        """What may be missing, by the word for what lets the rest through."""
        return [f"filter {self.filter}"] if self.filter else []

    @property
    def is_narrowed(self) -> bool:
        """Whether something may be missing in its list."""
        return bool(self.narrowings)

    @property
    def narrowed_to(self) -> str:
        """What its list is narrowed to and which key undoes that, for the pane's title; nothing if it is not.

        As in ` · running · filter api · Esc shows all`.
        """
        parts = self.narrowings
        return "".join(f" · {part}" for part in [*parts, f"{self.context.key('view.back')} shows all"]) if parts else ""

    def nothing_of(self, else_: str) -> str:
        """What stands in an empty list: how to see more of it, or `else_`, which says what to do first."""
        return f"nothing here is like that; {self.context.key('view.back')} shows all" if self.is_narrowed else else_

    def action_back(self) -> None:
        if self.filter:
            self.narrow("")
        else:
            super().action_back()
