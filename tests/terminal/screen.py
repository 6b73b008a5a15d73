"""A real terminal for tests: the dashboard on a pseudo terminal, its screen as a person sees it."""

import contextlib
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pexpect
import pyte

from tests.crew import eventually


class _Screen(pyte.Screen):
    """Takes OSC 22, the shape of the pointer, for what it is, where pyte takes it for a title."""

    def set_title(self, param: str) -> None:
        if not param.startswith(";"):
            super().set_title(param)


class Terminal:
    """`crewboard` in a terminal of `columns` × `lines`; whatever happens, it is gone at the end."""

    def __init__(self, root: Path, environment: Mapping[str, str], columns: int = 80, lines: int = 24) -> None:
        self.state = root.with_name(f"{root.name}-state")
        """Where the dashboard keeps what it remembers for its user."""
        self.child = pexpect.spawn(
            sys.executable,
            ["-I", "-m", "crewboard_tui.cli"],
            cwd=str(root),
            env={
                **environment,
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
                "CREWBOARD_ROOT": str(root),
                "XDG_STATE_HOME": str(self.state),
            },
            dimensions=(lines, columns),
            timeout=30,
        )
        self._screen = _Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.close(force=True)

    @property
    def text(self) -> str:
        """What stands on the screen now."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            while True:
                self._stream.feed(self.child.read_nonblocking(65_536, timeout=0.05))
        return "\n".join(self._screen.display)

    @property
    def title(self) -> str:
        """What the window is called now."""
        _ = self.text
        return self._screen.title

    def shows(self, words: str) -> None:
        """Wait until `words` stand on the screen."""
        try:
            eventually(lambda: words in self.text, f"{words!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def press(self, keys: str, shows: str) -> None:
        """Press keys and wait for what they bring."""
        self.child.send(keys)
        self.shows(shows)

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal another size."""
        self.child.setwinsize(lines, columns)
        self._screen.resize(lines, columns)

    def kill(self) -> None:
        """End the dashboard without a chance to say goodbye."""
        self.child.kill(signal.SIGKILL)
        self.child.wait()
