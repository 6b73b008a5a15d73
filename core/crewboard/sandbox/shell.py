"""Running one command for a worker, and leaving nothing of it behind."""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass

from crewboard.linux import process
from crewboard.sandbox.process import REAPED_WITHIN, Child, reap
from crewboard.sandbox.sandbox import Sandbox

HEAD = 8_000
TAIL = 22_000
"""Bytes kept from the beginning and the end of a command's output."""

LONGEST = 3600.0
"""Seconds that a command may ask for."""

MOST_PROCESSES = 1024
"""Processes that a command may have at a time. The kernel's own limit does not hold for root."""

LOOK = 0.25
"""Seconds between two counts of them."""

_TRIES = 3
"""Times that a sandbox is set up: what it is made of may go away meanwhile."""

_BREATH = 0.001
"""Seconds that the kernel is given to end what was killed."""

_LAST_WORDS_WITHIN = 1.0
"""Seconds to wait for the end of the output of a command that has ended."""


@dataclass(frozen=True)
class CommandResult:
    """What a command printed, and whether it failed to run to its end."""

    content: str
    is_error: bool = False


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


async def run(command: str, box: Sandbox, seconds: float, keep: set[int]) -> CommandResult:
    """Run `command` with bash behind an agent's wall for at most `seconds`, and end every process that it started.

    `keep` are children of this worker that are none of its.
    """
    if not box.contains_processes:
        keep = {*keep, *process.descendants(os.getpid())}  # a supervisor that a lead started, say
    outcome, ran = await _try(command, box, seconds, keep)
    for _ in range(_TRIES - 1):
        if not ran:
            outcome, ran = await _try(command, box, seconds, keep)
    if ran:
        return outcome
    return CommandResult(f"the command was not run, its sandbox could not be set up: {outcome.content}", is_error=True)


async def _try(command: str, box: Sandbox, seconds: float, keep: set[int]) -> tuple[CommandResult, bool]:
    """What came of a command, and whether it came to run at all."""
    output = Output()
    source, target = os.pipe2(os.O_CLOEXEC)
    try:
        child = box.command(command, target)
    except (OSError, ValueError) as error:
        os.close(source)
        return CommandResult(f"the command could not be started: {error}", is_error=True), True
    finally:
        os.close(target)
    reading = asyncio.ensure_future(_read(source, output))
    why: str | None = None
    try:
        why = await _watch(child, min(seconds, LONGEST), None if box.contains_processes else keep)
    finally:
        await child.end()
        if not box.contains_processes:
            await end_strangers(keep)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, _LAST_WORDS_WITHIN)
    ending = f"[exit code {child.code}]" if why is None else f"[ended {why}]"
    if removed := box.tidy():
        ending += f"\n[removed {removed}: it makes git obey other settings than its own]"
    text = f"{output.text.rstrip()}\n{ending}".lstrip("\n")
    return CommandResult(text, is_error=why is not None), why is not None or not child.never_ran


async def _watch(child: Child, seconds: float, keep: set[int] | None) -> str | None:
    """Wait until a command ended by itself; says why it may not go on.

    All that it starts stays below `child`, or else is whatever is below this process and none of `keep`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(min(LOOK, deadline - time.monotonic())):
                await child.wait()
            return None
        except TimeoutError:
            if time.monotonic() >= deadline:
                return f"after {seconds:g} s: time limit"
            if len(process.descendants(child.pid) if keep is None else _strangers(keep)) > MOST_PROCESSES:
                return f"with more than {MOST_PROCESSES} processes"


async def _read(source: int, output: Output) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(source, "rb", buffering=0) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while piece := await reader.read(65536):
                output.add(piece)
        finally:
            transport.close()


async def end_strangers(keep: set[int]) -> None:
    """End every descendant of this process that is none of `keep`: what a command left running fell to us."""
    deadline = time.monotonic() + REAPED_WITHIN
    while (left := _strangers(keep)) and time.monotonic() < deadline:
        for pid in left:
            process.send_signal(pid, signal.SIGKILL)
        for pid in left:
            reap(pid)
        await asyncio.sleep(_BREATH)


def _strangers(keep: set[int]) -> list[int]:
    family = process.parents()
    known = {*keep, *(other for pid in keep for other in process.descendants(pid, family))}
    return [pid for pid in process.descendants(os.getpid(), family) if pid not in known]
