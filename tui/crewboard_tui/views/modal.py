"""A box over a page: the page's footer, whose keys do nothing meanwhile, shows those of the box."""

from typing import Generic, TypeVar

from textual.screen import ModalScreen

from crewboard_tui.views.base import Framed

Result = TypeVar("Result")


class Boxed(ModalScreen[Result], Generic[Result]):
    """Something smaller than the page that it stands on."""

    def on_mount(self) -> None:
        self.bindings_updated_signal.subscribe(self, lambda _: self._paint_keys())

    def _paint_keys(self) -> None:
        behind = self.app.screen_stack[-2] if self.is_current else None
        if isinstance(behind, Framed) and behind.is_ready:
            behind.paint_keys_of(self)
