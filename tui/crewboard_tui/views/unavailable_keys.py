"""Keys that do nothing here and now, and say why."""

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding
from textual.screen import Screen

from crewboard_tui.compose.prompt_line import PromptLine
from crewboard_tui.context import AppContext
from crewboard_tui.keymap import bindings as keys
from crewboard_tui.widgets.line_list import LineList

NOT_NOW = "not now"
"""Why a key of this screen does nothing, where nobody knows better."""

ONLY_LOOKING = "not while you only look (--read-only)"
"""Why a key that changes the team does nothing where the dashboard is read-only."""

_NOT_FOUND = "nothing to find here"


class DeadKeys(Screen[None]):
    """A screen on which no key is silent."""

    IS_FORM: ClassVar[bool] = False
    """Whether leaving it loses what was filled in."""

    context: AppContext

    def on_key(self, event: events.Key) -> None:
        """Say why a key does nothing here; `/` never lets its words run as keys."""
        active = self.active_bindings.get(event.key)
        if not self.is_current or (active is not None and active.enabled):
            return
        key = self._meant(event)
        if key is None:
            return
        if key.action == "filter" and not self.IS_FORM:
            self.context.say(_NOT_FOUND, "warning")
            self.context.navigator.ask(PromptLine("find", hint=_NOT_FOUND))
        else:
            self.context.say(f"{keys.name_of(key)}: {self.why_not(key)}", "warning")

    def _meant(self, event: events.Key) -> keys.Key | None:
        """The command that a key stands for: one that works on this screen at times, else one that works elsewhere."""
        pressed = {event.key, event.character}
        found = {
            key.id: key
            for key in keys.KEYS
            if key.scope in keys.WHERE and key.says and not pressed.isdisjoint(self.context.keys_of(key.id))
        }
        return next((found[ident] for ident in [*self._taken(), *found] if ident in found), None)

    def _taken(self) -> list[str]:
        """The keys that this screen, or what the keys go to now, takes at times, by id; the most special first."""
        nodes = (self, self.app) if self.focused is None else self.focused.ancestors_with_self
        return [ident for node in nodes for ident in _bound(type(node))]

    def why_not(self, key: keys.Key) -> str:
        """Why `key` does nothing here and now."""
        if key.changes and self.context.read_only:
            return ONLY_LOOKING
        is_taken = key.id in self._taken()
        if is_taken and key.changes and isinstance(self.focused, LineList) and self.focused.came_by_itself:
            return "not taken: what is under the cursor has only just come there; press it again"
        if self.IS_FORM and key.scope == "app":
            return "not while this form is open"
        if key.id == "app.next":
            return "nothing needs you"
        if key.scope == "copy":
            return "nothing to copy here"
        return NOT_NOW if is_taken and key.scope != "view" else f"only {keys.WHERE[key.scope]}"


def _bound(kind: type[Any]) -> Iterable[str]:
    """The keys that a kind of screen or widget takes, its bases' too, by id."""
    bindings = (each for base in kind.__mro__ for each in vars(base).get("BINDINGS", ()))
    return (each.id for each in bindings if isinstance(each, Binding) and each.id)
