"""Start, signal and reap workers as child processes, and limit their memory where the kernel can.

A worker is forked from a prefork server, which has all code loaded, if that works; otherwise it is a new interpreter.
The offline model's server is started here too, for the first worker that needs it.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from crewboard import env
from crewboard.protocol.prefork import FORK, READY, SERVER_MODULE, SpawnRequest
from crewboard.records.processes import ModelServerInfo
from crewboard.sandbox.host_paths import TOOL_VARIABLES
from crewboard.store import files, leases
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.unix import process

FORK_TIMEOUT = 2.0
"""Seconds after which a prefork server that did not fork counts as broken. A fork takes some hundredths of a second on
a busy machine.
"""

STUCK_TIMEOUT = 1.0
"""Seconds without any use of the processor after which a prefork server that still loads code counts as stuck."""

_LOAD_TIMEOUT = 30.0

_KEPT = frozenset({
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR", env.PLATFORM, *TOOL_VARIABLES,
})  # fmt: skip
"""The variables that a prefork server gets. /proc shows them as the environment of each worker that it forks."""

_READ_ON_IMPORT = ("ANTHROPIC_LOG", env.PLATFORM, "DEFER_PYDANTIC_BUILD", "LD_", "OPENSSL_", "OTEL_", "PYDANTIC_")
"""Prefixes of variables that the interpreter, its libraries and crewboard read once, when they are loaded."""

_ARGUMENT_ROOM = " " * 64
"""Makes room in the prefork server's command line, because a worker writes its own, longer one in its place."""

MODEL_START_TIMEOUT = 15.0
"""Seconds that the offline model's server may take to start."""

MODEL_LOOK_INTERVAL = 2.0
"""Shortest time in seconds between two looks for the offline model's server; with each start in a row it doubles."""

_MOST_DOUBLINGS = 5

_UNREACHABLE = "http://127.0.0.1:9"
"""The address that a worker gets if the offline model's server did not start: its calls fail, and it reports that."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ref:
    """A process: its pid, and when it started, in clock ticks since boot."""

    pid: int
    ticks: int


@dataclass(frozen=True)
class Ended:
    """The end of a process: an exit code or a signal; both are None if it is not known."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def from_status(cls, status: int) -> "Ended":
        """Return the end that a status of `wait(2)` reports."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))


def _server_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key in _KEPT}


def _read_on_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_READ_ON_IMPORT)}


def can_prefork(environment: Mapping[str, str]) -> bool:
    """Return True if a worker with this environment may be forked.

    Variables that are read on import must have the values that they have in the server.
    """
    same = _read_on_import(environment) == _read_on_import(_server_environment())
    return env.may_prefork(environment) and same


def code_fingerprint() -> str:
    """Return a hash that changes when crewboard, the interpreter or an installed package changes.

    It is made from names, times, sizes and inodes, because an installer may write files with old times.
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
    """One prefork server, from its start to its end. `fingerprint` is that of the code that it has loaded."""

    def __init__(self, team: TeamDirectory, launcher: "Launcher", fingerprint: str) -> None:
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
        """Return True if the server still loads code and makes progress, so that waiting is quicker.

        A new interpreter would have the same work to do, and would begin later.
        """
        now, ticks = time.monotonic(), process.cpu_ticks(self.ref.pid)
        if ticks != self._cpu_ticks:
            self._cpu_ticks, self._progress_at = ticks, now
        in_time = now - self._progress_at < STUCK_TIMEOUT and now - self.started_at < _LOAD_TIMEOUT
        return not self.is_ready and in_time

    async def fork_worker(self, agent: AgentDirectory, environment: Mapping[str, str]) -> int | None:
        """Make the server fork a worker; return the worker's pid, or None if the server forked none and will not."""
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


class Launcher:
    """Starts each process in a session of its own. A worker is forked from a prefork server if there is one."""

    def __init__(self, team: TeamDirectory) -> None:
        self._team = team
        self._children: dict[int, subprocess.Popen[bytes] | None] = {}
        """Known children by pid; None for a child that was not started through `Popen`."""
        self._server: PreforkClient | None = None
        self._failed_fingerprint = ""
        """The fingerprint of the code with which a prefork server ended before it was ready; empty if none did."""
        self._wake: Callable[[], None] = lambda: None
        self._enabled = not env.is_posix() and env.may_prefork()

    def open(self, wake: Callable[[], None]) -> None:
        """Start a prefork server. `wake` is called whenever a start that was put off should be tried again."""
        self._wake = wake
        self._current_server()

    def close(self) -> None:
        """End the prefork server."""
        if self._server is not None:
            self._drop(self._server)

    async def launch(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref | None:
        """Start the agent's worker, and return it. None if the prefork server is almost ready: try again when woken."""
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

    def start_worker(self, agent: AgentDirectory, environment: Mapping[str, str]) -> Ref:
        """Start the agent's worker as a new interpreter, and return it. Its output goes to `worker.log`."""
        with open(agent.log, "ab", opener=files.open_private) as log:
            return self.start(["crewboard.worker", str(agent.path)], environment, log.fileno())

    def start(
        self, module: list[str], environment: Mapping[str, str], log: int, stdin: int = subprocess.DEVNULL
    ) -> Ref:
        """Start `python -I -m` with `module` and its arguments, and return the process.

        Its output goes to the descriptor `log`, its input comes from the descriptor `stdin`, by default from none.
        """
        return self.run([sys.executable, "-I", "-m", *module], environment, log, stdin)

    def run(self, command: list[str], environment: Mapping[str, str], log: int, stdin: int) -> Ref:
        """Start a program with its arguments, and return the process.

        Its output goes to the descriptor `log`, its input comes from the descriptor `stdin`.

        Raises:
            OSError: It cannot be started.
        """
        child = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=log,
            stderr=log,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        )
        self._children[child.pid] = child
        return Ref(child.pid, process.start_ticks(child.pid))

    def adopt(self, pid: int) -> Ref:
        """Register a process that is, or is about to become, a child of this one, and return it."""
        self._children[pid] = None
        return Ref(pid, process.start_ticks(pid))

    @staticmethod
    def signal(ref: Ref, number: int, *, tree: bool = False) -> None:
        """Send a signal to a worker and, with `tree`, to all its descendants."""
        below = process.descendants(ref.pid) if tree else []
        process.send_signal(ref.pid, number, ref.ticks)
        for pid in below:
            process.send_signal(pid, number)

    def reap(self) -> dict[int, Ended]:
        """Return how children ended since the last call, by pid. Kill the processes that ended children left behind."""
        ended = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._children:
                if (child := self._children.pop(pid)) is not None:
                    # Else Popen would wait for a process that is reaped already.
                    child.returncode = status
                ended[pid] = Ended.from_status(status)
        if not ended:
            return ended
        me, parents = os.getpid(), process.parents()
        for pid, parent in parents.items():
            # As a subreaper, this process inherits unknown children only from ended ones.
            if parent == me and pid not in self._children:
                for orphan in [pid, *process.descendants(pid, parents)]:
                    process.send_signal(orphan, signal.SIGKILL)
        return ended

    def _current_server(self) -> PreforkClient | None:
        """Return the prefork server for the present code; None if there is none.

        A server with older code is replaced; one is started if that may work.
        """
        if not self._enabled:
            return None
        fingerprint = code_fingerprint()
        if self._server is not None and self._server.fingerprint != fingerprint:
            log.info("the code changed; restarting the prefork server")
            self._drop(self._server)
        if self._server is None and fingerprint != self._failed_fingerprint:
            try:
                self._server = PreforkClient(self._team, self, fingerprint)
            except OSError as error:
                log.warning("no prefork server: %s", error)
                return None
            asyncio.get_running_loop().add_reader(self._server.control, self._on_message, self._server)
        return self._server

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


class OfflineModel:
    """The offline model's server of one team, which runs while a worker needs it."""

    def __init__(self, team: TeamDirectory, launcher: Launcher) -> None:
        self._team = team
        self._launcher = launcher
        self._started_at: float | None = None
        self._looked_at = float("-inf")
        self._starts = 0
        """The starts since the server was last seen to run."""
        self._settings: Mapping[str, str] = {}
        self._url = ""
        """The last address of the server, which living workers have; empty if there was none."""

    def worker_environment(self, environment: Mapping[str, str]) -> dict[str, str] | None:
        """Return the environment of a worker; for a worker that uses the offline model it names that model's server.

        Start the server if it is not running. Return None while it starts; ask again after a moment.
        """
        if not env.is_offline(environment):
            return dict(environment)
        self._settings = env.offline_settings(environment)
        holder = leases.holder(self._team.model_lock, ModelServerInfo)
        if holder is not None and holder.url:
            url = holder.url
        else:
            self._started_at = self._started_at or time.monotonic()
            self.keep_running()
            if time.monotonic() - self._started_at < MODEL_START_TIMEOUT:
                return None
            log.error("the offline model did not start; see %s", self._team.model_log)
            url = _UNREACHABLE
        self._started_at = None
        return {**env.without_api(environment), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "offline"}

    def keep_running(self) -> None:
        """Start the server if it does not run, at its last address if that is free: living workers know no other.

        Look at most once in `MODEL_LOOK_INTERVAL` seconds, less often if the server ends again and again.
        """
        if time.monotonic() - self._looked_at < MODEL_LOOK_INTERVAL * 2 ** min(self._starts, _MOST_DOUBLINGS):
            return
        self._looked_at = time.monotonic()
        # What a killed server said stays until the next one takes the lock.
        said = leases.last_said(self._team.model_lock, ModelServerInfo)
        self._url = said.url if said is not None and said.url else self._url
        if leases.is_held(self._team.model_lock):
            self._starts = 0
        else:
            self._starts += 1
            port = ["--port", self._url.rpartition(":")[2]] if self._url else []
            with open(self._team.model_log, "ab", opener=files.open_private) as output:
                command = ["crewboard.offline", str(self._team.path), *port]
                self._launcher.start(command, {**os.environ, **self._settings}, output.fileno())

    def end(self) -> None:
        """End the team's offline model server if there is one."""
        holder = leases.holder(self._team.model_lock, ModelServerInfo)
        if holder is not None:
            process.send_signal(holder.pid, signal.SIGTERM)


class MemoryGroups:
    """The cgroups that limit the memory of a team's workers, one for each run that began with a limit.

    Without a delegated cgroup, or if the kernel refuses a cgroup, the supervisor watches the memory instead.
    """

    def __init__(self, team: TeamDirectory) -> None:
        self._parent = process.find_memory_cgroup()
        digest = hashlib.sha256(os.fsencode(team.path)).hexdigest()[:12]
        self._prefix = f"{process.MEMORY_CGROUP_PREFIX}{digest}-"
        self._groups: dict[tuple[str, int], Path] = {}
        self._limits: dict[tuple[str, int], int | None] = {}
        self._exceeded: set[tuple[str, int]] = set()
        # Those of an earlier supervisor, so that they are removed too.
        for group in self._parent.glob(f"{self._prefix}*") if self._parent is not None else ():
            name, _, run = group.name.removeprefix(self._prefix).rpartition("-")
            if run.isdecimal():
                self._groups[name, int(run)] = group

    def enclose(self, name: str, run: int, pid: int, limit: int) -> None:
        """Put a new worker into a cgroup with a memory limit in bytes, if the kernel allows it."""
        if self._parent is None:
            return
        group = self._parent / f"{self._prefix}{name}-{run}"
        try:
            process.make_memory_cgroup(group, limit, pid)
        except OSError as error:
            log.warning("the memory of %s is watched, because its cgroup failed: %s", name, error)
            with contextlib.suppress(OSError):
                group.rmdir()
        else:
            self._groups[name, run] = group
            self._limits[name, run] = limit

    def adopt(self, name: str, run: int, pid: int) -> None:
        """Find the cgroup of a worker that an earlier supervisor started, perhaps below another cgroup."""
        group = process.cgroup(pid)
        if group is not None and group.name == f"{self._prefix}{name}-{run}":
            self._groups[name, run] = group

    def set_limit(self, name: str, run: int, limit: int | None) -> bool:
        """Set a run's memory limit in bytes, None for none; return False if no cgroup limits the run."""
        key = (name, run)
        if key not in self._groups:
            return False
        # Each write above the limit makes the kernel look for processes to kill.
        if key not in self._limits or self._limits[key] != limit:
            try:
                process.set_memory_limit(self._groups[key], limit)
            except OSError:
                return False
            self._limits[key] = limit
        return True

    def exceeded(self, name: str, run: int) -> bool:
        """Return True if the kernel killed this run because it reached its memory limit."""
        self.sweep()
        return (name, run) in self._exceeded

    def sweep(self) -> None:
        """Remove the cgroups whose processes have all ended, and remember which runs reached their limit."""
        for key, group in list(self._groups.items()):
            if process.exceeded_memory(group):
                self._exceeded.add(key)
            # Refused while a process is in it.
            with contextlib.suppress(OSError):
                group.rmdir()
            if not group.exists():
                del self._groups[key]
                self._limits.pop(key, None)
