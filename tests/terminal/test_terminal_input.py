"""Reading from the terminal: the thread that reads it sleeps until there is something."""

import os
import queue
import select
import signal
from collections.abc import AsyncIterator
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from textual import events
from textual.message import Message

from crewboard_tui.keys import RestingDriver

WAIT_TIMEOUT = 60.0


class Typist:
    """A driver that reads a pipe in its thread, and the other end of that pipe."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.keyboard, self.hand = os.pipe()
        self.read: queue.Queue[Message] = queue.Queue()
        self.waits = list[float | None]()
        """For how many milliseconds each look at the terminal waits at most."""
        make_poll = select.poll

        def poll() -> SimpleNamespace:
            made = make_poll()

            def wait(timeout: float | None = None) -> list[tuple[int, int]]:
                self.waits.append(timeout)
                return made.poll(timeout)

            return SimpleNamespace(register=made.register, unregister=made.unregister, poll=wait)

        patch.setattr(select, "poll", poll)
        patch.setattr(RestingDriver, "process_message", lambda _, message: self.read.put(message))
        self.driver = RestingDriver(cast("Any", SimpleNamespace()), mouse=False)
        self.driver.fileno = self.keyboard
        self.start()

    def start(self) -> None:
        self.driver._key_thread = Thread(target=self.driver.run_input_thread, daemon=True)
        self.driver._key_thread.start()

    def write(self, data: bytes) -> None:
        os.write(self.hand, data)

    def key(self) -> str:
        """Return the next key that was read."""
        message = self.read.get(timeout=WAIT_TIMEOUT)
        assert isinstance(message, events.Key)
        return message.key


@pytest.fixture
async def typist(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Typist]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)}
    typist = Typist(monkeypatch)
    yield typist
    typist.driver.disable_input()
    for file in (typist.keyboard, typist.hand):
        os.close(file)
    for number, handler in handlers.items():
        signal.signal(number, handler)


async def test_between_keys_nothing_wakes_the_thread(typist: Typist) -> None:
    for data, key in ((b"a", "a"), (b"\x1b[A", "up"), (b"b", "b")):
        typist.write(data)
        assert typist.key() == key
    assert set(typist.waits) == {None}


async def test_esc_is_a_key_a_moment_later(typist: Typist) -> None:
    typist.write(b"\x1b")
    assert typist.key() == "escape"
    typist.write("é".encode()[:1])
    typist.write("é".encode()[1:])
    assert typist.read.get(timeout=WAIT_TIMEOUT).character == "é"  # type: ignore[attr-defined]
    waits = [wait for wait in typist.waits if wait is not None]
    assert waits
    assert typist.waits[-1] is None


async def test_the_thread_ends_at_once_and_reads_again_after_a_pause(typist: Typist) -> None:
    for key in "ab":
        typist.write(key.encode())
        assert typist.key() == key
        typist.driver.disable_input()
        assert typist.driver._key_thread is not None
        assert not typist.driver._key_thread.is_alive()
        typist.start()
