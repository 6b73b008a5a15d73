"""A dashboard under test: open it at a size, press keys, and read the screen as a person does."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby

from textual import events
from textual._context import visible_screen_stack
from textual._xterm_parser import XTermParser
from textual.geometry import Size
from textual.keys import _character_to_key, key_to_character
from textual.pilot import Pilot

from crewboard_tui.app import CrewboardApp
from crewboard_tui.settings import Settings
from crewboard_tui.views.base import BaseScreen
from crewboard_tui.widgets.bars import working_keys
from tests.frozen import Frozen
from tests.tui.lighter import changes

WAIT_TIMEOUT = 60.0
"""Seconds after which something that should appear counts as missing, on a busy machine."""


_POLL = 0.02
"""Seconds between two looks at a condition: each look renders the screen."""

_HELD = frozenset({"j", "k", "tab", "shift+tab", "backspace"})
"""Keys that are held, where they are pressed several times in a row."""


@dataclass
class Stage:
    """One open dashboard."""

    app: CrewboardApp
    pilot: Pilot[None]
    _seen: tuple[object, ...] = ()
    _text: list[str] = field(default_factory=list)

    @property
    def text(self) -> list[str]:
        """Return the lines of the screen, without trailing blanks."""
        if (seen := (self.app.screen, self.app.size, changes())) != self._seen:
            self._text = self._render()
            self._seen = seen
        return self._text

    def _render(self) -> list[str]:
        width, height = self.app.size
        # As a paint does: what is rendered here is cached for it.
        visible_screen_stack.set(self.app._background_screens)
        strips = self.app.screen._compositor.render_strips(Size(width, height))
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    @property
    def all(self) -> str:
        """Return the screen as one text."""
        return "\n".join(self.text)

    def part(self, ident: str) -> str:
        """Return the text of one part of the frame: strip, heading, alert, keys."""
        screen = self.app.screen
        assert isinstance(screen, BaseScreen)
        return "\n".join("".join(span.text for span in line) for line in screen._still(ident).lines)

    async def until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Wait for `condition`, and check that it still holds when pending updates are done."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while not (condition() and self.is_painted):
            while not condition():
                if time.monotonic() > deadline:
                    raise AssertionError(f"{what} did not come true; on the screen:\n{self.all}")
                # pilot.pause() would ask every widget whether it is done.
                await asyncio.sleep(_POLL)
            await self.pilot.pause()
            await self._painted()

    async def _painted(self) -> None:
        """Wait until everything is laid out and painted."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while not self.is_painted:
            if time.monotonic() > deadline:
                raise AssertionError("it never comes to rest")
            await asyncio.sleep(_POLL)

    async def sees(self, *texts: str) -> None:
        """Wait until all of these words are on the screen."""
        for text in texts:
            await self.until(lambda text=text: text in self.all, f"{text!r} on the screen")  # type: ignore[misc]

    @property
    def tab(self) -> str:
        """The open tab of an agent's page: its name stands above the heavy part of the rule."""
        rules = (at for at, line in enumerate(self.text[:4]) if "━" in line and set(line) <= set("─━"))
        at = next(rules, 0)
        return self.text[at - 1][self.text[at].index("━") :].split()[0] if at else ""

    async def turns_to(self, tab: str) -> None:
        """Wait until this tab of an agent's page is open."""
        await self.until(lambda: self.tab == tab, f"the tab {tab}")

    async def sees_not(self, text: str) -> None:
        """Wait until these words are gone from the screen."""
        await self.until(lambda: text not in self.all, f"{text!r} gone from the screen")

    async def settles(self) -> None:
        """Wait until keys work, the shown data was read, and the screen does not change."""
        before = ""
        while before != self.all or not self._is_quiet():
            await self.until(self._is_quiet, "the keys to live and what is shown to be read")
            before = self.all
            await self.pilot.pause(0.1)

    def _is_quiet(self) -> bool:
        screen = self.app.screen
        is_read = not isinstance(screen, BaseScreen) or self._is_read()
        return getattr(screen, "settled", True) and is_read and self.is_painted

    @property
    def is_painted(self) -> bool:
        """Return True if everything is laid out, and no paint, scroll or focus change is pending."""
        if self.app._exit:
            # The dashboard has ended.
            return True
        screen = self.app.screen
        if screen._callbacks or screen._layout_required or screen._scroll_required:
            return False
        if not isinstance(screen, BaseScreen):
            return True
        # After a paint a page notes which lines stand on the screen; a person sees no line before.
        notes = screen.is_current and screen.is_ready
        is_noted = all(text._places[at].is_shown for text in screen.texts for at in text._in_sight()) or not notes
        return is_noted and not (screen.is_due or screen.are_keys_due)

    def _is_read(self) -> bool:
        screen = self.app.screen
        return isinstance(screen, BaseScreen) and self.app.context.snapshot.answers.keys() == set(screen.queries())

    async def press(self, *keys: str) -> None:
        """Press keys, each after the screen has been updated, as a person does; `j j j` comes as from a held key."""
        for key, held in groupby(keys):
            presses = list(held)
            for group in [presses] if key in _HELD else [[press] for press in presses]:
                await self._wait_for_reading()
                for press in group:
                    self._send(press)
                await self._processed()

    def _send(self, key: str) -> None:
        name = _character_to_key(key) if len(key) == 1 else key
        event = events.Key(name, key if len(key) == 1 else key_to_character(name))
        event.set_sender(self.app)
        # As the terminal's driver does, one round of the event loop earlier.
        self.app.post_message(event)

    async def _wait_for_reading(self) -> None:
        """Wait until what the screen asks is read."""
        deadline = time.monotonic() + WAIT_TIMEOUT
        while isinstance(screen := self.app.screen, BaseScreen) and screen.is_ready and not self._is_read():
            if time.monotonic() > deadline:
                missing = set(screen.queries()) ^ self.app.context.snapshot.answers.keys()
                raise AssertionError(f"it never came to rest: {missing} is not read; on the screen:\n{self.all}")
            await asyncio.sleep(_POLL)

    async def _processed(self) -> None:
        """Wait until the pending messages are processed, also by a new screen."""
        before = None
        while before is not self.app.screen or (self.app.key_order.is_busy and not self.app._exit):
            if self.app._exception is not None:
                raise self.app._exception
            before = self.app.screen
            await self.pilot._wait_for_screen()
        await self.pilot._wait_for_screen()
        await self._painted()

    async def write(self, text: str) -> None:
        """Type a text without waiting for the screen."""
        await self._wait_for_reading()
        for character in text:
            self._send("space" if character == " " else character)
        await self._processed()

    async def send_bytes(self, data: str) -> None:
        """Send what a terminal delivers in one read, without waiting between the keys."""
        await self._wait_for_reading()
        for event in XTermParser().feed(data):
            event.set_sender(self.app)
            self.app.post_message(event)
        await self._processed()

    @property
    def offered(self) -> str:
        """Return the keys that work here with their labels, also those for which the footer has no space."""
        screen = self.app.screen
        shown = working_keys(screen) if isinstance(screen, BaseScreen) and screen.is_ready else []
        return "  ".join(f"{pressed.split()[0]} {key.label}" for key, pressed in shown if key.footer is not None)

    async def can(self, key: str, label: str) -> None:
        """Wait until a key works here under this label."""
        await self.until(lambda: f"{key} {label}" in self.offered, f"{key} {label} offered")


@asynccontextmanager
async def opened(
    frozen: Frozen,
    width: int = 120,
    height: int = 36,
    *,
    read_only: bool = False,
    ascii_only: bool = False,
    settings: Settings | None = None,
) -> AsyncIterator[Stage]:
    """Open a dashboard on a frozen team."""
    app = CrewboardApp(frozen.team, read_only=read_only, ascii_only=ascii_only, probe=frozen.probe, settings=settings)
    async with app.run_test(size=(width, height)) as pilot:
        stage = Stage(app, pilot)
        await stage.until(lambda: app.screen.is_mounted and isinstance(app.screen, BaseScreen), "the first screen")
        yield stage
