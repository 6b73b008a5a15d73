"""Running one command for a worker, and leaving nothing of it behind."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from crewboard import process
from crewboard.worker.environment import tool_environment
from crewboard.worker.outcome import Outcome

HEAD = 8_000
TAIL = 22_000
"""Bytes kept from the beginning and the end of a command's output."""

LONGEST = 3600.0
"""Seconds that a command may ask for."""


class Output:
    """Keeps the head and the tail of what a command prints, and counts the rest."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._total = 0

    def add(self, piece: bytes) -> None:
        """Take a piece in."""
        self._total += len(piece)
        room = HEAD - len(self._head)
        self._head += piece[:room] if room > 0 else b""
        self._tail = (self._tail + (piece[room:] if room > 0 else piece))[-TAIL:]

    @property
    def text(self) -> str:
        """What was kept, with a word about what was left out."""
        left_out = self._total - len(self._head) - len(self._tail)
        middle = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return (self._head + middle + self._tail).decode("utf-8", "replace")


async def run(command: str, root: Path, seconds: float, keep: set[int]) -> Outcome:
    """Run `command` with bash in `root` for at most `seconds`, and end every process that it started.

    `keep` are children of this worker that are none of its.
    """
    output = Output()
    child = await asyncio.create_subprocess_exec(
        "bash", "-c", command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=root,
        env=tool_environment(),
        start_new_session=True,
    )  # fmt: skip
    reading = asyncio.ensure_future(_read(child, output))
    try:
        async with asyncio.timeout(min(seconds, LONGEST)):
            await child.wait()
        ending = f"[exit code {child.returncode}]"
    except TimeoutError:
        ending = f"[ended after {seconds:g} s: time limit]"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
        end_strangers(keep)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, 1)
    text = output.text
    return Outcome(
        f"{text.rstrip()}\n{ending}".lstrip("\n"), is_error=child.returncode is None or "time limit" in ending
    )


async def _read(child: asyncio.subprocess.Process, output: Output) -> None:
    if child.stdout is not None:
        while piece := await child.stdout.read(65536):
            output.add(piece)


def end_strangers(keep: set[int]) -> None:
    """End every descendant of this process that is none of `keep`: what a command left running fell to us."""
    while left := [pid for pid in _strangers(keep) if process.send_signal(pid, signal.SIGKILL)]:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _strangers(keep: set[int]) -> list[int]:
    family = process.parents()
    known = {*keep, *(other for pid in keep for other in process.descendants(pid, family))}
    return [pid for pid in process.descendants(os.getpid(), family) if pid not in known]
