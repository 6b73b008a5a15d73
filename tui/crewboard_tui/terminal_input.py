"""The thread that reads keys from the terminal: it wakes up for input only, where Textual's looks ten times a second.

To be proposed to Textual, so that this can go: `LinuxDriver.run_input_thread` waits for input, for a byte that
`disable_input` writes, and only while a sequence is incomplete for the end of its time.
"""

import os
import select
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Any

from textual._time import get_time
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

_READ = 4096


class RestingDriver(LinuxDriver):
    """Textual's driver, whose thread for input sleeps until there is some."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ends = os.eventfd(0, os.EFD_CLOEXEC)
        """Readable if the thread shall end."""

    def run_input_thread(self) -> None:
        """Pass on what comes from the terminal until input is disabled."""
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
        os.eventfd_read(self._ends)

    def _pass_on(self, events: Iterable[Message]) -> None:
        for event in events:
            self.process_message(event)

    def disable_input(self) -> None:
        """End the thread, which would wait for a key."""
        if self._key_thread is not None and self._key_thread.is_alive():
            os.eventfd_write(self._ends, 1)
        super().disable_input()
