"""A process behind the wall, watched by the event loop: start it, wait for it, end it, leave nothing of it."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REAPED_WITHIN = 5.0
"""Seconds that the kernel may take to end what was killed."""


@dataclass(frozen=True)
class Start:
    """How to start a process: in a session of its own, its output wherever the caller says."""

    arguments: list[str]
    cwd: Path
    environment: Mapping[str, str]
    umask: int
    stdin: int
    stdout: int
    stderr: int | None

    def now(self, *descriptors: int) -> "subprocess.Popen[bytes]":
        """Start it, with `descriptors` handed down besides the usual three.

        Raises:
            OSError: It cannot be started.
            ValueError: An argument cannot be one: it holds a NUL.
        """
        return subprocess.Popen(
            self.arguments,
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            cwd=self.cwd,
            env=dict(self.environment),
            umask=self.umask,
            pass_fds=descriptors,
            start_new_session=True,
        )


class Child:
    """A started process. `about` is where bubblewrap says which process is the first of its namespace."""

    def __init__(self, popen: "subprocess.Popen[bytes]", about: int | None = None) -> None:
        self._popen = popen
        self._about = about

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code once it ended; minus the number of the signal that ended it."""
        return self._popen.poll()

    async def wait(self) -> None:
        """Wait until it ended."""
        while self.alive:
            await _ended(self.pid)

    async def end(self) -> None:
        """End it if it runs, and with it all of its namespace, if it has one."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            await self.wait()
        if (first := self._first()) is not None:
            await _reap(first)

    def _first(self) -> int | None:
        """The first process of bubblewrap's namespace, with which all others in it end."""
        if self._about is None:
            return None
        about, self._about = self._about, None
        try:
            with open(about, "rb", buffering=0) as pipe:  # noqa: PTH123  a descriptor
                return int(json.loads(pipe.read(4096) or b"{}")["child-pid"])
        except (OSError, ValueError, KeyError):
            return None


async def _reap(pid: int) -> None:
    """End a process that fell to us when bubblewrap ended, and take note of its end."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # it is another's, and ends with bubblewrap (--die-with-parent)
    os.kill(pid, signal.SIGKILL)  # it cannot be anybody else's: until we reap it, the number is taken
    with contextlib.suppress(TimeoutError, ChildProcessError):
        async with asyncio.timeout(REAPED_WITHIN):
            await _ended(pid)
        os.waitpid(pid, os.WNOHANG)


async def _ended(pid: int) -> None:
    """Wait until a child of ours ended; it is not reaped."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        await asyncio.sleep(0.02)  # no pidfd here: the caller looks again
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
