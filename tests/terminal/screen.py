"""A real terminal for tests: the dashboard on a pseudo terminal, with its screen as a person sees it."""

import contextlib
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pexpect
import pyte

from crewboard.store.team_marks import marks, secret_file
from tests.crew import eventually


class Screen(pyte.Screen):
    """Ignore OSC 22, the shape of the pointer, which pyte takes for a title."""

    def set_title(self, param: str) -> None:
        if not param.startswith(";"):
            super().set_title(param)


class Terminal:
    """Run `crewboard` in a terminal of `columns` × `lines`, as a job of a shell if asked, and end it in any case.

    `patch` is code that its process runs first.
    """

    def __init__(
        self,
        root: Path,
        environment: Mapping[str, str],
        columns: int = 80,
        lines: int = 24,
        *,
        in_shell: bool = False,
        patch: str = "",
    ) -> None:
        self.state = root.with_name(f"{root.name}-state")
        """The folder where the dashboard keeps its state."""
        # The team was made with another folder of state, and would be foreign without its secret.
        secret = self.state / "crewboard/secret"
        if not secret.exists():
            secret.parent.mkdir(parents=True, exist_ok=True)
            # It may be the first time that a secret is needed.
            marks(root)
            shutil.copy(secret_file(), secret)
        command = [sys.executable, "-I", "-c", f"{patch}\nfrom crewboard_tui.cli import main\nmain()"]
        program, *arguments = ["bash", "--norc", "--noprofile", "-i"] if in_shell else command
        self.child = pexpect.spawn(
            program,
            arguments,
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
        if in_shell:
            self.child.sendline(shlex.join(command))
        self._screen = Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close(self.child)

    @property
    def text(self) -> str:
        """Return the text on the screen now."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
            while True:
                self._stream.feed(self.child.read_nonblocking(65_536, timeout=0.05))
        return "\n".join(self._screen.display)

    @property
    def title(self) -> str:
        """Return the title of the window now."""
        _ = self.text
        return self._screen.title

    def shows(self, words: str) -> None:
        """Wait until `words` are on the screen."""
        try:
            eventually(lambda: words in self.text, f"{words!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def press(self, keys: str, shows: str) -> None:
        """Press keys and wait for their effect on the screen."""
        self.child.send(keys)
        self.shows(shows)

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal."""
        self.child.setwinsize(lines, columns)
        self._screen.resize(lines, columns)

    def kill(self) -> None:
        """Kill the dashboard."""
        self.child.kill(signal.SIGKILL)
        self.child.wait()


def close(child: "pexpect.spawn[Any]") -> None:
    """Close the terminal of a program, and wait for the program's end; one that goes on is killed."""
    try:
        child.close(force=True)
    except pexpect.ExceptionPexpect:
        # It was killed, but pexpect waits for its end for a tenth of a second, too short on a busy machine.
        child.wait()
