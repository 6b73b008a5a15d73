"""A process in a sandbox: start it, wait for it in the event loop, end it with all that it started."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crewboard.unix import process as unix_process

REAP_TIMEOUT = 5.0
"""Seconds that the kernel may take to end a killed process."""


living: set[int] = set()
"""Processes of this worker that were started in its sandbox and not ended: a cleanup after another one spares them."""


@dataclass(frozen=True)
class Start:
    """Arguments for the start of a process in a session of its own."""

    arguments: list[str]
    cwd: Path
    environment: Mapping[str, str]
    umask: int
    stdin: int
    stdout: int
    stderr: int | None

    def now(self, *descriptors: int) -> "subprocess.Popen[bytes]":
        """Start it, with `descriptors` passed on in addition to the standard three.

        Raises:
            OSError: It cannot be started.
            ValueError: An argument holds a NUL.
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
    """A started process. From `about`, bubblewrap's report on what it started can be read (`--json-status-fd`).

    `held` is closed at its end: while the program in the sandbox starts, it is a sign that this process lives.
    """

    def __init__(self, popen: "subprocess.Popen[bytes]", about: int | None = None, held: int | None = None) -> None:
        self._popen = popen
        self._held = held
        self._about = about
        self._said = b""
        self._report: dict[str, int] = {}
        living.add(popen.pid)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Return True if it runs."""
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._popen.poll()

    async def wait(self) -> None:
        """Wait for its end."""
        while self.alive:
            await _ended(self.pid)

    async def end(self) -> None:
        """End it if it runs, with all processes of its namespace."""
        if self.alive:
            try:
                if self._about is not None:
                    # Killed before it said what it started, it would leave us a child that we do not know.
                    self._said = await _first_line(self._about)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            await self.wait()
        living.discard(self.pid)
        if self._held is not None:
            held, self._held = self._held, None
            os.close(held)
        if self._about is not None:
            about, self._about = self._about, None
            self._report = _read_report(about, self._said)
            # With the first process of a namespace, all others in it end.
            for first in [self._report["child-pid"]] if "child-pid" in self._report else self._unreported():
                await _reap(first)

    def _unreported(self) -> list[int]:
        """Return what became our child when bubblewrap was killed by another process before its report."""
        found = []
        for pid, parent in unix_process.parents().items() if self.code == -signal.SIGKILL else ():
            # Only one that waits for bubblewrap is still in its process group.
            with contextlib.suppress(ProcessLookupError):
                if parent == os.getpid() and os.getpgid(pid) == self.pid:
                    found.append(pid)
        return found

    @property
    def never_ran(self) -> bool:
        """Return True if bubblewrap failed before it started anything. Known after `end`."""
        return "child-pid" in self._report and "exit-code" not in self._report and (self.code or 0) > 0


async def _first_line(about: int) -> bytes:
    """Return what bubblewrap has reported once that is a whole line, or all if it has ended."""
    # Imported here, and below, because a command that only looks which sandbox works here runs no loop.
    import asyncio

    os.set_blocking(about, False)
    loop, readable, said = asyncio.get_running_loop(), asyncio.Event(), b""
    loop.add_reader(about, readable.set)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAP_TIMEOUT):
                while b"\n" not in said:
                    await readable.wait()
                    readable.clear()
                    # The event may be of what was read already.
                    with contextlib.suppress(BlockingIOError):
                        if not (piece := os.read(about, 4096)):
                            break
                        said += piece
    finally:
        loop.remove_reader(about)
    return said


def _read_report(about: int, said: bytes) -> dict[str, int]:
    """Return what bubblewrap reported, as JSON lines, of which `said` is what was read before."""
    os.set_blocking(about, False)
    told: dict[str, int] = {}
    try:
        with open(about, "rb", buffering=0) as pipe:
            for line in (said + (pipe.read(4096) or b"")).splitlines():
                told.update(json.loads(line))
    except (OSError, ValueError):
        return {}
    return told


async def _reap(pid: int) -> None:
    """End and reap a process that became our child when bubblewrap ended."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # noqa: ASYNC222  it does not wait
    except ChildProcessError:
        # It is not ours: another process reaps it, and it ends with bubblewrap (--die-with-parent).
        return
    import asyncio

    # Until we reap it, no other process can have its pid.
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_TIMEOUT):
            await _ended(pid)
    reap(pid)


def reap(pid: int) -> None:
    """Reap a process if it is our child and has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def _ended(pid: int) -> None:
    """Wait for the end of a child of ours, without reaping it."""
    import asyncio

    try:
        fd = unix_process.watch_end(pid)
    except OSError:
        # It has ended, or its end cannot be watched: the caller checks again.
        await asyncio.sleep(0.02)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
