"""The command palette: every command that works now, and why the others do not."""

from collections.abc import Awaitable, Callable
from functools import partial

from msgspec import Struct
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from crewboard_tui.keymap.bindings import KEYS, WHERE, Key, command_name, palette_commands
from crewboard_tui.render.lines import pad
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.widgets.bars import press, working_keys

_NOT_HERE = frozenset({"app.palette", "list.down", "list.up", "log.down", "log.up"})
_LABEL = 14
_UNLIKELY = 0.5


class _Command(Struct, frozen=True):
    key: Key
    pressed: str
    run: Callable[[], Awaitable[None]]
    why_not: str = ""

    @property
    def title(self) -> Content:
        if self.why_not:
            return Content(f"{pad(command_name(self.key), _LABEL)}{self.why_not}: {self.key.says}").stylize("dim")
        return Content(f"{pad(command_name(self.key), _LABEL)}{self.key.says}  ({self.pressed})")

    def score(self, query: str) -> float:
        """Return how well the words of `query` match; 0 if one of them does not."""
        label, text = self.key.label.lower(), f"{self.key.label} {self.key.says} {self.key.id}".lower()
        words = query.lower().split()
        if not words or not all(word in text for word in words):
            return 0
        if self.why_not:
            return _UNLIKELY
        return 2 if any(label.startswith(word) for word in words) else 1


class Commands(Provider):
    """Provides the commands of the key table that work on the screen below the palette."""

    async def discover(self) -> Hits:
        for command in self._commands():
            yield DiscoveryHit(command.title, command.run, text=command.title.plain)

    async def search(self, query: str) -> Hits:
        working = self._commands()
        for command in [*working, *self._others(working)]:
            score = command.score(query)
            if score > 0:
                yield Hit(score, command.title, command.run, text=command.title.plain)

    def _commands(self) -> list[_Command]:
        return [
            _Command(key, pressed, partial(press, self.app, self.screen, key.id))
            for key, pressed in working_keys(self.screen)
            if key.id not in _NOT_HERE and key.says
        ] + [
            _Command(key, f":{key.label}", self._run(key.action))
            for key in palette_commands()
            if self.app.check_action(key.action, ())
        ]

    def _others(self, working: list[_Command]) -> list[_Command]:
        """Return the commands that do not work now, each once, with the reason."""
        found = {(command.key.label, command.key.says) for command in working}
        others: list[_Command] = []
        for key in KEYS:
            if key.scope in WHERE and key.says and (key.label, key.says) not in found:
                found.add((key.label, key.says))
                why = f"only {WHERE[key.scope]}"
                if isinstance(self.screen, BaseScreen):
                    why = self.screen.why_not(key)
                others.append(_Command(key, "", partial(self._tell, command_name(key), why), why))
        return others

    async def _tell(self, name: str, why_not: str) -> None:
        if isinstance(self.screen, BaseScreen):
            self.screen.context.say(f"{name}: {why_not}", "warning")

    def _run(self, action: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await self.app.run_action(action)

        return run
