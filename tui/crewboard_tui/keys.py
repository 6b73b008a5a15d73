"""Read keys from the terminal, and handle them one after another.

A thread reads them, which wakes up only for input, where Textual's thread looks ten times a second. They act in the
order in which they came, also when a terminal delivers several together.

Once Textual has what `docs/decisions/textual.patch` proposes, `RestingDriver` can go.
"""

import asyncio
import os
import select
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from textual import events
from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message
from textual.message_pump import MessagePump
from textual.widget import Widget

_READ = 4096
"""Bytes that are read from the terminal at once."""

EFFECTS_TIMEOUT = 10.0
"""The most seconds for which a key waits for the effects of the key before, so that a view that hangs stops no key."""

_RECHECK = 0.05
"""Seconds between two checks whether a widget is closed: a closed one handles no message."""


class KeyOrder:
    """Holds a key back until the effects of the key before are complete. `handle` passes a key on.

    Textual inserts a character in the focused widget at once, but runs a binding only after its key went up to the app:
    of keys that come together, characters would overtake Backspace, the arrows and Enter.
    """

    def __init__(self, app: App[Any], handle: Callable[[events.Key | events.Paste], Awaitable[None]]) -> None:
        self._app = app
        self._handle = handle
        self._held = deque[events.Key | events.Paste]()
        self._effects: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Return True if a key waits, or the effects of one are not complete."""
        return self._effects is not None

    async def take(self, event: events.Key | events.Paste) -> None:
        """Handle a key or a pasted text in its turn."""
        self._held.append(event)
        if self._effects is None:
            await self._handle_held()

    async def _handle_held(self) -> None:
        """Handle the waiting keys up to the first whose effects must be complete before the next one."""
        self._effects = None
        while self._held and self._app.is_running:
            event, target = self._held.popleft(), self._app.focused or self._app.screen
            # Characters stay in order by themselves; waiting after each would slow down a long text.
            is_text = isinstance(event, events.Paste) or target.check_consume_key(event.key, event.character)
            await self._handle(event)
            if not is_text:
                self._effects = asyncio.create_task(self._await_effects(target))
                return

    async def _await_effects(self, target: Widget) -> None:
        """Wait for the effects of a key for `target`, also on a screen that it opened; then handle the next key."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EFFECTS_TIMEOUT):
                # First the key goes up to the app, then the messages that it caused, which may move the focus.
                await self._await_messages(target)
                before = None
                while target is not before and self._app.screen_stack:
                    await self._await_messages(target)
                    before, target = target, self._app.focused or self._app.screen
        # In the app's own turn, as any key.
        if not self._app.call_later(self._handle_held):
            self._effects = None

    async def _await_messages(self, target: Widget) -> None:
        """Wait until the messages on their way from `target` up to the app were handled."""
        pumps: list[MessagePump] = [*target.ancestors_with_self]
        for pump in pumps:
            handled = asyncio.Event()
            if not pump.call_later(handled.set):
                continue
            while not (handled.is_set() or _is_closed(pump) or _is_closed(self._app)):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RECHECK):
                        await handled.wait()


def _is_closed(pump: MessagePump) -> bool:
    return pump._closing or pump._closed  # noqa: SLF001


class RestingDriver(LinuxDriver):
    """Textual's driver for Linux, with a thread for input that sleeps until there is input."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ends, self._end = os.pipe()
        """The two ends of a pipe: the thread ends once the first is readable, the second is written to."""

    def run_input_thread(self) -> None:
        """Pass on input from the terminal until it is disabled."""
        parser, decoder = XTermParser(self._debug), getincrementaldecoder("utf-8")()
        poll = select.poll()
        for file in (self.fileno, self._ends):
            poll.register(file, select.POLLIN)
        while not self.exit_event.is_set():
            # An Esc may be a key, or begin a sequence: that is known a moment later.
            due = parser._timeout_time  # noqa: SLF001
            ready = dict(poll.poll(None if due is None else max(0.0, due - get_time()) * 1e3))
            if self.fileno in ready:
                data = os.read(self.fileno, _READ)
                if not data:
                    poll.unregister(self.fileno)
                # The parser takes an empty text for the end.
                elif text := decoder.decode(data):
                    self._pass_on(parser.feed(text))
            self._pass_on(parser.tick())
        os.read(self._ends, 1)

    def _pass_on(self, events: Iterable[Message]) -> None:
        for event in events:
            self.process_message(event)

    def disable_input(self) -> None:
        """Wake the thread for input, so that it ends, and disable input."""
        if self._key_thread is not None and self._key_thread.is_alive():
            os.write(self._end, b"\0")
        super().disable_input()
