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
    """A started process. `about` is where bubblewrap tells of what it started (`--json-status-fd`)."""

    def __init__(self, popen: "subprocess.Popen[bytes]", about: int | None = None) -> None:
        self._popen = popen
        self._about = about
        self._told: dict[str, int] = {}

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
        if self._about is not None:
            about, self._about = self._about, None
            self._told = _read_told(about)
            if first := self._told.get("child-pid"):
                await _reap(first)  # the first process of the namespace, with which all others in it end

    @property
    def never_ran(self) -> bool:
        """Whether bubblewrap failed before it came to start anything. Known after `end`."""
        return "child-pid" in self._told and "exit-code" not in self._told and (self.code or 0) > 0


def _read_told(about: int) -> dict[str, int]:
    """What bubblewrap told, in JSON lines."""
    os.set_blocking(about, False)
    told: dict[str, int] = {}
    try:
        with open(about, "rb", buffering=0) as pipe:
            for line in (pipe.read(4096) or b"").splitlines():
                told.update(json.loads(line))
    except (OSError, ValueError):
        return {}
    return told


async def _reap(pid: int) -> None:
    """End a process that fell to us when bubblewrap ended, and take note of its end."""
    if not _is_ours(pid):
        return  # another reaps it, and it ends with bubblewrap (--die-with-parent)
    os.kill(pid, signal.SIGKILL)  # until we reap it, nobody else can have its number
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAPED_WITHIN):
            await _ended(pid)
    reap(pid)


def reap(pid: int) -> None:
    """Take note of the end of a child, if it is one and has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _is_ours(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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
