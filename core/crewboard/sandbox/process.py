"""Start a process in a sandbox, wait for it in the event loop, and end it with all that it started."""

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
"""Seconds to wait until the kernel has ended a killed process."""


living: set[int] = set()
"""Pids of the processes that this worker started in its sandbox and has not ended (`Child.end`).

What is cleaned up after one of them leaves the others alone.
"""


@dataclass(frozen=True)
class Start:
    """Arguments for the start of a process in a session of its own; the last three are descriptors."""

    arguments: list[str]
    cwd: Path
    environment: Mapping[str, str]
    umask: int
    stdin: int
    stdout: int
    stderr: int | None

    def now(self, *descriptors: int) -> "subprocess.Popen[bytes]":
        """Start the process, with `descriptors` passed on in addition to the standard three.

        Raises:
            OSError: The process cannot be started.
            ValueError: An argument contains a NUL.
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
    """A started process, with bubblewrap around the program or without.

    With bubblewrap, `about` is the descriptor from which bubblewrap's report is read (`--json-status-fd`): it names the
    process that bubblewrap started. `held` is crewboard's end of a pipe. `Child.end`, or the end of crewboard's own
    process, closes it; by that the start script in the sandbox knows that it must not start the program
    (`bubblewrap.UNLESS_LEFT`).
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
        """Return the process id."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Return True if the process is running."""
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """Return the exit code, or minus the number of the signal that ended the process; None while it runs."""
        return self._popen.poll()

    async def wait(self) -> None:
        """Wait for the end of the process."""
        while self.alive:
            await _ended(self.pid)

    async def end(self) -> None:
        """Kill the process if it is running, with its process group and all processes in its namespace; clean up.

        Call this also after the process has ended by itself.
        """
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
            found = [self._report["child-pid"]] if "child-pid" in self._report else []
            if not found and self.code == -signal.SIGKILL:
                # Another process killed bubblewrap before its report, and what it had started became our children. Only
                # one that waits for bubblewrap is still in its process group.
                for pid, parent in unix_process.parents().items():
                    with contextlib.suppress(ProcessLookupError):
                        if parent == os.getpid() and os.getpgid(pid) == self.pid:
                            found.append(pid)
            # With the first process of a namespace, all others in it end.
            for first in found:
                await _reap(first)

    @property
    def never_ran(self) -> bool:
        """Return True if bubblewrap failed before it ran the program. This is known after `end`."""
        return "child-pid" in self._report and "exit-code" not in self._report and (self.code or 0) > 0


async def _first_line(about: int) -> bytes:
    """Wait for the first line of bubblewrap's report, or its end; return what was read from the descriptor `about`."""
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
    """Read the rest of bubblewrap's report from `about`, close it, and return all fields of its JSON lines.

    `said` is what was read before. Return nothing if the report cannot be parsed.
    """
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
    """Kill and reap the process `pid` if it became a child of this process when bubblewrap ended."""
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
    """Reap a process if it is a child of this one and has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def _ended(pid: int) -> None:
    """Wait until a child of this process has ended, without reaping it; it may return before, so check again."""
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
