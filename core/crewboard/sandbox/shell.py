"""Run commands of agents in their sandbox: to their end, in the background, as services, or as checks.

Whatever a command started is ended with it. Of a check, the whole output is kept.
"""

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from crewboard import redaction
from crewboard.records.agents import Spec
from crewboard.records.team import Checked
from crewboard.sandbox.git import GitGuard
from crewboard.sandbox.process import REAP_TIMEOUT, Child, living, reap
from crewboard.sandbox.sandbox import Sandbox, harden, open_sandbox, state_of
from crewboard.store import files, mailbox
from crewboard.store.layout import TeamDirectory
from crewboard.unix import process

HEAD = 8_000
TAIL = 22_000
"""Bytes kept from the beginning and the end of a command's output."""

MAX_SECONDS = 3600.0
"""The longest time limit, in seconds, of a command that does not run in the background."""

BACKGROUND_SECONDS = 24 * 3600.0
"""Seconds that a command in the background may run."""

KILL_GRACE = 10.0
"""Seconds beyond its own timeout after which a command counts as stuck."""

CHECK_SECONDS = 1800.0
"""Seconds that a check may take."""

MOST_OF_CHECK = 8 << 20
"""Characters from the beginning of a check's output that are kept, so that `read_file` can read the file.

If there are more, the end is kept as well.
"""

LINES_OF_CHECK = 40
"""Number of the last lines of a check's output that are shown."""

MOST_PROCESSES = 1024
"""Processes that a command may have at a time. The kernel's limit does not apply to root."""

COUNT_INTERVAL = 0.25
"""Seconds between two counts of a command's processes."""

_TERMINAL_SEQUENCE = re.compile(
    rb"\x1b(?:"
    rb"\[[0-?]*[ -/]*[@-~]"  # colours, and movements of the cursor
    rb"|\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links, the clipboard
    rb"|[ -/][0-~]"  # character sets
    rb"|[0-Z\\^-~]"
    rb")"
)

_TRIES = 3
"""Attempts to set up a sandbox: a path in it may disappear meanwhile."""

_REAP_PAUSE = 0.001
"""Seconds between two attempts to reap killed processes."""

_LONGEST_LINE = 1 << 16
"""Most bytes of an unfinished line that are held back from `show`."""

_OUTPUT_TIMEOUT = 1.0
"""Seconds to wait for the end of the output of a command that has ended."""


@dataclass(frozen=True)
class CommandResult:
    """The outcome of a command. `content` is its output, without the middle if that is long, and how it ended.

    `is_error` is True if it could not be started or was ended early. `exit_code` is None then.
    """

    content: str
    is_error: bool = False
    exit_code: int | None = None
    """The exit code, or minus the number of the signal that ended the command."""
    ending: str = ""
    """Words for how it ended, such as `[exit code 0]`; the last lines of `content`."""
    ran: bool = True
    """False if its sandbox could not be set up."""


Show = Callable[[str], None]
"""A function that gets the output of a command as plain text, piece by piece, while it runs."""


Begin = Callable[[int, GitGuard | None], Child]
"""A function that starts a program. It gets a descriptor for the output, and the guard that is open meanwhile."""


class Output:
    """Keeps the beginning (`HEAD`) and the end (`TAIL`) of a command's output; passes all of it on to `show`."""

    def __init__(self, show: Show | None = None) -> None:
        self._head = b""
        self._tail = b""
        self._total = 0
        self._show = show
        self._unshown = b""

    def add(self, piece: bytes) -> None:
        """Add a piece of output."""
        self._total += len(piece)
        if self._show is not None:
            # In whole lines: a character or a terminal sequence may be in two pieces.
            lines, newline, self._unshown = (self._unshown + piece).rpartition(b"\n")
            if newline:
                self._show(_plain(lines + newline))
            if len(self._unshown) > _LONGEST_LINE:
                self.end()
        room = HEAD - len(self._head)
        self._head += piece[:room] if room > 0 else b""
        self._tail = (self._tail + (piece[room:] if room > 0 else piece))[-TAIL:]

    def end(self) -> None:
        """Pass on the last line to `show`, with a line break, if it has none yet."""
        if self._show is not None and self._unshown:
            self._show(_plain(self._unshown) + "\n")
            self._unshown = b""

    @property
    def text(self) -> str:
        """Return the output that was kept, without terminal sequences, and with the number of bytes left out."""
        left_out = self._total - len(self._head) - len(self._tail)
        if not left_out:
            return _plain(self._head + self._tail)
        return f"{_plain(self._head)}\n[{left_out} bytes left out]\n{_plain(self._tail)}"


def _plain(output: bytes) -> str:
    """Return output as text without terminal sequences, such as those for colours."""
    return _TERMINAL_SEQUENCE.sub(b"", output).decode("utf-8", "replace")


async def run(
    command: str,
    sandbox: Sandbox,
    seconds: float,
    keep: set[int],
    show: Show | None = None,
    *,
    commits: bool = True,
    handle: str = "",
) -> CommandResult:
    """Run `command` with bash in a sandbox for at most `seconds`, and end every process that it started.

    `keep` are pids of children of this worker that must not be ended. `show` gets the whole output. If not `commits`,
    the command cannot write in git directories. `handle` names it in the list of processes.
    """
    start: Begin = partial(sandbox.command, command, handle=handle)
    reason = ""
    for _ in range(_TRIES):
        result = await _try(start, sandbox, seconds, keep, Output(show), commits=commits)
        if result.ran:
            return result
        reason = result.content
    return CommandResult(f"the command was not run, its sandbox could not be set up: {reason}", is_error=True)


class BackgroundCommand:
    """A command that runs while its agent does other work, until it ends, is ended, or the run ends."""

    def __init__(self, command: str, sandbox: Sandbox, seconds: float, keep: set[int], handle: str = "") -> None:
        self.command = command
        self.has_network = sandbox.policy.network
        self.end_was_told = False
        """True once the model was told that the command has ended. Set by the user of this object."""
        self._began = time.monotonic()
        self._ended_by = ""
        self._unread = Output()
        self._news = asyncio.Event()
        # It may run for hours, in which the user works in the repository, too.
        work = run(command, sandbox, seconds, keep, self._take, commits=False, handle=handle)
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda _: self._news.set())

    def _take(self, text: str) -> None:
        self._unread.add(text.encode("utf-8", "replace"))
        self._news.set()

    @property
    def seconds(self) -> float:
        """Return how many seconds ago the command began."""
        return time.monotonic() - self._began

    @property
    def result(self) -> CommandResult | None:
        """Return the outcome of the command; None while it runs."""
        if not self._task.done():
            return None
        if self._task.cancelled():
            return CommandResult("", ending=f"[ended: {self._ended_by}]" if self._ended_by else "[ended by bash_kill]")
        if (error := self._task.exception()) is not None:
            return CommandResult("", is_error=True, ending=f"[ended: {error!r}]")
        return self._task.result()

    async def wait(self, seconds: float) -> None:
        """Wait until there is output that was not read, or the command has ended, but at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def read(self) -> str:
        """Return the output since the last call, without the middle if that is long."""
        text, self._unread = self._unread.text, Output()
        if not self._task.done():
            self._news.clear()
        return text

    async def end(self, why: str = "") -> None:
        """End the command with all that it started; `why` becomes part of the `ending` of its result."""
        self._ended_by = self._ended_by or why
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task


class Service:
    """A program of an agent, such as an MCP server, that is talked to by its standard input and output.

    It runs until it ends, is ended, or the run ends.
    """

    def __init__(
        self, label: str, arguments: list[str], variables: Mapping[str, str], sandbox: Sandbox, keep: set[int]
    ) -> None:
        ours, theirs = socket.socketpair()
        self._ours: socket.socket | None = ours
        self._log = Output()

        def start(log: int, guard: GitGuard | None) -> Child:
            # What is left open here would keep the end of the program from being seen.
            with theirs:
                return sandbox.start_service(label, arguments, variables, theirs.fileno(), log, guard)

        self._task = asyncio.ensure_future(_try(start, sandbox, BACKGROUND_SECONDS, keep, self._log, commits=False))
        self._task.add_done_callback(lambda _: theirs.close())

    async def receive(self) -> socket.socket:
        """Return the socket that the program sends over its connection before any output. Call this before `connect`.

        Raises:
            OSError: The program sent none, because it ended, for example.
        """
        ours = self._ours
        assert ours is not None  # noqa: S101  it is connected later
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(ours, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(ours)
        _, passed, _, _ = socket.recv_fds(ours, 1, 1)
        if not passed:
            raise OSError("it ended before it passed a socket on")
        os.set_inheritable(passed[0], False)  # noqa: FBT003  the signature of Python
        return socket.socket(fileno=passed[0])

    async def connect(self, longest_line: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams from and to the program, with lines of at most `longest_line` bytes. Call this once."""
        ours, self._ours = self._ours, None
        return await asyncio.open_connection(sock=ours, limit=longest_line)

    @property
    def log(self) -> str:
        """Return the program's output on its standard error so far, without the middle if that is long."""
        return self._log.text

    @property
    def ending(self) -> str | None:
        """Return in words how the program ended; None while it runs."""
        if not self._task.done():
            return None
        if self._task.cancelled():
            return "[ended]"
        if (error := self._task.exception()) is not None:
            return f"[ended: {error!r}]"
        result = self._task.result()
        return (result.ending or result.content) if result.ran else "its sandbox could not be set up"

    async def wait(self, seconds: float) -> None:
        """Wait until the program has ended by itself, but at most `seconds`."""
        await asyncio.wait({self._task}, timeout=seconds)

    def when_ended(self, notify: Callable[[], object]) -> None:
        """Call `notify` when the program has ended."""
        self._task.add_done_callback(lambda _: notify())

    async def end(self) -> None:
        """End the program with all that it started."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await self._task
        if self._ours is not None:
            self._ours.close()


@dataclass(frozen=True)
class FinishedCheck:
    """The record of a check that ran, and the last lines of its output, redacted."""

    checked: Checked
    tail: str


async def run_check(
    command: str,
    sandbox: Sandbox,
    keep: set[int],
    team: TeamDirectory,
    name: str,
    now: Callable[[], float],
    show: Show | None = None,
) -> FinishedCheck:
    """Run the check of the agent `name` in its sandbox, keep the output in `results/`, and return the outcome.

    `keep` and `show` are as in `run`; `now` returns the time.

    Raises:
        StorageError: The output cannot be kept.
    """
    files.check_before_writing()
    at = time.strftime("%Y%m%d-%H%M%S", time.localtime(now()))
    path = team.results / f"{name}-check-{at}-{mailbox.new_id()[:8]}.txt"
    with files.storage_errors(f"cannot keep the output of the check in {path}"):
        with open(path, "x", encoding="utf-8", errors="replace", opener=files.open_private) as file:
            record = _CheckRecord(file, show)
            record.write(f"$ {command}\n")
            result = await run(command, sandbox, CHECK_SECONDS, keep, record.write)
            record.end(result.content)
        if record.error is not None:
            raise record.error
    team.share_result(path.name)
    tail = "\n".join(redaction.redact(result.content).splitlines()[-LINES_OF_CHECK:])
    checked = Checked(at=now(), command=command, exit_code=result.exit_code, result=f"results/{path.name}")
    return FinishedCheck(checked, tail)


def run_check_alone(
    command: str, team: TeamDirectory, name: str, spec: Spec, now: Callable[[], float], show: Show
) -> Checked:
    """Run the check of an agent in a sandbox like its worker's, in a process that is no worker; return the record.

    This process stays restricted afterwards (`harden`).

    Raises:
        NoSandboxError: No sandbox works here.
        StorageError: The output cannot be kept.
    """
    harden()
    with open_sandbox(team, name, spec) as sandbox:
        return asyncio.run(run_check(command, sandbox, set(), team, name, now, show)).checked


class _CheckRecord:
    """The file with the output of a check, which also goes to `show`."""

    def __init__(self, file: TextIO, show: Show | None) -> None:
        self._file = file
        self._show = show
        self._left = MOST_OF_CHECK
        self.error: OSError | None = None
        """The reason why the output could not be written."""

    def write(self, text: str) -> None:
        """Redact, write and show a piece of output."""
        text = redaction.redact(text)
        if self._show is not None:
            self._show(text)
        kept, self._left = text[: max(0, self._left)], self._left - len(text)
        self._append(kept)

    def end(self, content: str) -> None:
        """Write how the command ended; if output was cut, write `content`, its beginning and end, again."""
        content = redaction.redact(content)
        ending = f"{content.rpartition(chr(10))[2]}\n"
        if self._show is not None:
            self._show(ending)
        cut = f"\n[some is left out; the beginning and the end again:]\n{content}\n"
        self._append(cut if self._left <= 0 else ending)

    def _append(self, text: str) -> None:
        if self.error is not None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        # The command ends in its own way first: it is not the one that failed.
        except OSError as error:
            self.error = error


async def _try(
    start: Begin, sandbox: Sandbox, seconds: float, keep: set[int], output: Output, *, commits: bool
) -> CommandResult:
    """Start a command by `start`, watch it until its end, and return its outcome. It may not have run, see `ran`."""
    if not sandbox.contains_processes:
        # A lead may have started a supervisor, for example.
        keep = {*keep, *process.descendants(os.getpid())}
    guard = sandbox.git_guard(commits=commits)
    with guard or contextlib.nullcontext():
        source, target = os.pipe()
        covered = sandbox.covered(guard)
        try:
            child = start(target, guard)
        except (OSError, ValueError) as error:
            os.close(source)
            return CommandResult(f"the command could not be started: {error}", is_error=True)
        finally:
            os.close(target)
        reading = asyncio.ensure_future(_read(source, output))
        why: str | None = None
        try:
            left = None if sandbox.contains_processes else keep
            why = await _watch(child, seconds, left, guard, covered)
        finally:
            await child.end()
            if not sandbox.contains_processes:
                await end_leftovers(keep)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_OUTPUT_TIMEOUT):
                    await reading
        ending = f"[exit code {child.code}]" if why is None else f"[ended {why}]"
        if guard and (aside := guard.put_aside()):
            ending += f"\n[renamed {', '.join(aside)}: used outside the sandbox, by git or as the project's file]"
    text = f"{output.text.rstrip()}\n{ending}".lstrip("\n")
    if why is not None:
        return CommandResult(text, is_error=True, ending=ending)
    return CommandResult(text, exit_code=child.code, ending=ending, ran=not child.never_ran)


async def _watch(
    child: Child,
    seconds: float,
    keep: set[int] | None,
    guard: GitGuard | None,
    covered: Mapping[Path, tuple[int, int]],
) -> str | None:
    """Wait for the end of a command; return why it must be ended early, or None if it has ended.

    `covered` are files that its sandbox protects or hides only until another file replaces them, with their states. Its
    processes are those below `child` if `keep` is None, else those below this process that are not in `keep`.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(min(COUNT_INTERVAL, deadline - time.monotonic())):
                await child.wait()
            return None
        except TimeoutError:
            if time.monotonic() >= deadline:
                return f"after {seconds:g} s: time limit"
            if len(process.descendants(child.pid) if keep is None else _leftovers(keep, child.pid)) > MOST_PROCESSES:
                return f"with more than {MOST_PROCESSES} processes"
            if guard and (planted := guard.planted()):
                return f"because git outside the sandbox would run programs that {planted[0].name} names"
            replaced = next((path for path, state in covered.items() if state_of(path) != state), None)
            if replaced is not None:
                return f"because the protected file {replaced.name} was replaced outside the sandbox; run it again"


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
            output.end()


async def end_leftovers(keep: set[int]) -> None:
    """Kill all descendants of this process, except those in `keep` and `living` and the descendants of these.

    Orphans of ended commands are killed, too: they become children of this process. Stop trying after `REAP_TIMEOUT`.
    """
    deadline = time.monotonic() + REAP_TIMEOUT
    while (left := _leftovers(keep)) and time.monotonic() < deadline:
        for pid in left:
            process.send_signal(pid, signal.SIGKILL)
        for pid in left:
            reap(pid)
        await asyncio.sleep(_REAP_PAUSE)


def _leftovers(keep: set[int], command: int = 0) -> list[int]:
    """Return the descendants of this process that are not in `keep` or `living`, nor below one of these.

    The process `command` and those below it are included.
    """
    tree = process.parents()
    spared = (keep | living) - {command}
    known = {*spared, *(other for pid in spared for other in process.descendants(pid, tree))}
    return [pid for pid in process.descendants(os.getpid(), tree) if pid not in known]
