"""A launcher that starts workers from a prefork server, which has all code loaded. Falls back to new interpreters."""

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from crewboard import env
from crewboard.linux import process
from crewboard.protocol.prefork import FORK, READY, SERVER_MODULE, SpawnRequest
from crewboard.sandbox.host_paths import TOOL_VARIABLES
from crewboard.store import files
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.supervisor.launcher import PopenLauncher, Ref

FORK_TIMEOUT = 2.0
"""Seconds after which a server that did not fork counts as broken. A fork takes some hundredths on a busy machine."""

STUCK_TIMEOUT = 1.0
"""Seconds without any use of the processor after which a server that still loads code counts as stuck."""

_LOAD_TIMEOUT = 30.0

_KEPT = frozenset({
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR", *TOOL_VARIABLES,
})  # fmt: skip
"""The variables that a server gets. /proc shows them as the environment of each worker that it forks."""

_READ_ON_IMPORT = ("ANTHROPIC_LOG", "DEFER_PYDANTIC_BUILD", "LD_", "OPENSSL_", "OTEL_", "PYDANTIC_")
"""Prefixes of variables that the interpreter and its libraries read once, when they are loaded."""

_ARGUMENT_ROOM = " " * 64
"""Makes room in the server's command line, because a worker writes its own, longer one in its place."""

log = logging.getLogger(__name__)


def _server_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key in _KEPT}


def _read_on_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_READ_ON_IMPORT)}


def can_prefork(environment: Mapping[str, str]) -> bool:
    """Return True if a worker with this environment may be forked: no variable in it must be known at import."""
    same = _read_on_import(environment) == _read_on_import(_server_environment())
    return env.may_prefork(environment) and same


def code_fingerprint() -> str:
    """Return a hash that changes when crewboard, the interpreter or an installed package changes.

    Built from name, time, size and inode, because an installer may write files with old times.
    """
    paths = [sys.executable, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    digest = hashlib.sha256()
    for path in sorted([*paths, *_files_below(str(Path(__file__).parents[1]))]):
        # A file may vanish while an upgrade runs. That changes the hash too.
        with contextlib.suppress(OSError):
            found = os.stat(path)  # noqa: PTH116  300 files at each start, and `Path` takes three times as long
            digest.update(f"{path}\0{found.st_mtime_ns}\0{found.st_size}\0{found.st_ino}\n".encode())
    return digest.hexdigest()


def _files_below(folder: str) -> Iterator[str]:
    """Yield every file below a folder except compiled ones."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir():
                yield entry.path
            elif entry.name != "__pycache__":
                yield from _files_below(entry.path)


class PreforkClient:
    """One prefork server, from its start to its end. `fingerprint` tells which code it has loaded."""

    def __init__(self, team: TeamDirectory, launcher: PopenLauncher, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.is_ready = False
        self.started_at = self._progress_at = time.monotonic()
        self._cpu_ticks = 0
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [SERVER_MODULE, str(team.path), _ARGUMENT_ROOM]
        with theirs, open(team.supervisor_log, "ab", opener=files.open_private) as output:
            self.ref = launcher.start(arguments, _server_environment(), output.fileno(), theirs.fileno())

    def receive(self) -> bool:
        """Read what the server sent. Return False if it closed the socket, because it ended."""
        try:
            said = self.control.recv(len(READY), socket.MSG_DONTWAIT)
        except OSError:
            return False
        self.is_ready = self.is_ready or said == READY
        return bool(said)

    def is_loading(self) -> bool:
        """Return True if it still loads code and makes progress, so that it will be ready before a new interpreter.

        Both have the same work to do, whatever else the machine does, and the server began earlier.
        """
        now, ticks = time.monotonic(), process.cpu_ticks(self.ref.pid)
        if ticks != self._cpu_ticks:
            self._cpu_ticks, self._progress_at = ticks, now
        in_time = now - self._progress_at < STUCK_TIMEOUT and now - self.started_at < _LOAD_TIMEOUT
        return not self.is_ready and in_time

    async def fork_worker(self, agent: AgentDirectory, environment: Mapping[str, str]) -> int | None:
        """Make the server fork a worker. Return the worker's pid, or None if there is none and will be none."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        with ours, theirs:
            try:
                async with asyncio.timeout(FORK_TIMEOUT):
                    socket.send_fds(self.control, [FORK], [theirs.fileno()])
                    theirs.close()
                    pid = int(await loop.sock_recv(ours, 16))
                    await loop.sock_sendall(ours, SpawnRequest(agent.path, environment).encode())
            except (OSError, ValueError) as error:
                log.warning("the prefork server forked no worker: %r", error)
                return None
        return pid

    def end(self) -> None:
        """Kill the server. Its workers are children of the supervisor, and stay."""
        self.control.close()
        process.send_signal(self.ref.pid, signal.SIGKILL, self.ref.ticks)


class PreforkLauncher(PopenLauncher):
    """Forks workers from a prefork server if there is one; else starts new interpreters."""

    def __init__(self, team: TeamDirectory) -> None:
        super().__init__()
        self._team = team
        self._server: PreforkClient | None = None
        self._failed_fingerprint = ""
        """The code with which a server ended before it was ready."""
        self._wake: Callable[[], None] = lambda: None
        self._enabled = sys.platform == "linux" and env.may_prefork()

    def open(self, wake: Callable[[], None]) -> None:
        """Start a server. `wake` is called whenever a start that was put off should be tried again."""
        self._wake = wake
        self._current_server()

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._drop(self._server)

    async def launch(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref | None:
        """Start the agent's worker. Return None if the server is almost ready: try again when woken."""
        server = self._current_server() if can_prefork(environment) else None
        if server is not None and server.is_loading():
            asyncio.get_running_loop().call_later(STUCK_TIMEOUT, self._wake)
            return None
        if server is not None and server.is_ready:
            pid = await server.fork_worker(agent, environment)
            if pid is not None:
                return self.adopt(pid)
            self._drop(server)
        return self.start_worker(agent, environment)

    def _current_server(self) -> PreforkClient | None:
        """Return the server for today's code. Replace one with older code; start one if that may work."""
        if not self._enabled:
            return None
        fingerprint = code_fingerprint()
        if self._server is not None and self._server.fingerprint != fingerprint:
            log.info("the code changed; restarting the prefork server")
            self._drop(self._server)
        if self._server is None and fingerprint != self._failed_fingerprint:
            self._start_server(fingerprint)
        return self._server

    def _start_server(self, fingerprint: str) -> None:
        try:
            server = self._server = PreforkClient(self._team, self, fingerprint)
        except OSError as error:
            log.warning("no prefork server: %s", error)
            return
        asyncio.get_running_loop().add_reader(server.control, self._on_message, server)

    def _on_message(self, server: PreforkClient) -> None:
        if server.receive():
            log.info("prefork server ready after %.2f s, pid %d", time.monotonic() - server.started_at, server.ref.pid)
        else:
            if not server.is_ready:
                self._failed_fingerprint = server.fingerprint
            log.warning("the prefork server ended, pid %d", server.ref.pid)
            self._drop(server)
        self._wake()

    def _drop(self, server: PreforkClient) -> None:
        if server is not self._server:
            # It ended while a fork was awaited, and was dropped then.
            return
        asyncio.get_running_loop().remove_reader(server.control)
        server.end()
        self._server = None
