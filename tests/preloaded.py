"""Processes of teams for tests, forked from one process that has loaded all code, which all test runners share.

A supervisor and its prefork server are new interpreters, which import for two seconds; a team of a few agents works for
half of one. So `spawn` replaces the start of supervisors in the tests' own process: the same code runs in a process of
its own, with an environment, a session and descriptors of its own, and only the imports are done before. Tests of how
processes start use the fixture `new_interpreters`; commands that a test runs in a process always start new ones.
"""

import fcntl
import gc
import importlib
import json
import os
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from crewboard.protocol import supervisor_client
from crewboard.protocol.prefork import SERVER_MODULE
from crewboard.store.layout import TeamDirectory
from crewboard.unix import syscalls

_SPAWN = supervisor_client._spawn

_patch = ""
"""Code that changes each team that is started, and its workers."""

_ROOM = " " * 1000
"""Makes room in the command line of the process, because its children write their own in its place."""

_LONGEST = 1 << 20

_START_TIMEOUT = 60.0
"""Seconds that the imports may take on a busy machine."""

_SOCKET = "preloaded.sock"

OFFLINE_MODULE = "crewboard.offline"

WORKER_MODULE = "crewboard.worker"

_PR_SET_CHILD_SUBREAPER = 36

TAKEN_FOR_THE_API = """
from crewboard import endpoint

endpoint.API_HOST = "127.0.0.1"
"""
"""For `patched`: workers take the tests' server for the API itself, and not for one of others."""


def _send(control: socket.socket, fields: Mapping[str, Any], descriptors: list[int]) -> int:
    """Ask for a process. Return its pid.

    Raises:
        OSError: The process that forks others has ended.
    """
    ours, theirs = socket.socketpair()
    # Without a deadline but that of the test: the first answer comes when all code is loaded, and an end is told.
    with ours:
        with theirs:
            socket.send_fds(control, [b"fork"], [theirs.fileno(), *descriptors])
        with ours.makefile("wb") as file:
            file.write(json.dumps(dict(fields)).encode())
        ours.shutdown(socket.SHUT_WR)
        answer = ours.recv(16)
    if not answer:
        raise ConnectionError("no process was forked")
    return int(answer)


def _receive(connection: socket.socket) -> dict[str, Any]:
    received = b""
    with connection:
        connection.sendall(str(os.getpid()).encode())
        while piece := connection.recv(_LONGEST):
            received += piece
    return dict(json.loads(received))


Forked = tuple[socket.socket, list[int]]
"""The beginning of a forked process: the socket of its request, and descriptors."""


def _serve(control: socket.socket) -> Forked | None:
    """Fork at each request. Return in each child; in the parent at the end, None."""
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 16, 3)
        if not descriptors:
            return None
        if forked := _fork(descriptors):
            return forked


def _serve_all(listener: socket.socket) -> Forked | None:
    """Fork at each request of each test runner, as `_serve` does, until the last runner has left."""
    with selectors.DefaultSelector() as ready:
        ready.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is listener:
                    ready.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                runner = key.fileobj
                assert isinstance(runner, socket.socket)
                _, descriptors, _, _ = socket.recv_fds(runner, 16, 3)
                if descriptors:
                    if forked := _fork(descriptors):
                        return forked
                    continue
                ready.unregister(runner)
                runner.close()
                if len(ready.get_map()) == 1:
                    return None


def _fork(descriptors: list[int]) -> Forked | None:
    """Fork a process that is no child of this one. Return None in this one."""
    child = os.fork()
    if child == 0:
        between = os.getpid()
        if os.fork():
            os._exit(0)
        # The supervisor, or init, must be the parent before this process asks to end with its parent.
        while os.getppid() == between:
            time.sleep(0.001)
        return socket.socket(fileno=descriptors[0]), descriptors[1:]
    os.waitpid(child, 0)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _become(connection: socket.socket, stdin: int | None, output: int, errors: int | None = None) -> dict[str, Any]:
    """Make this process look as if it had been started for a request alone, and return the request."""
    os.setsid()
    os.chdir("/")
    fields = _receive(connection)
    os.environ.clear()
    os.environ.update(fields["environment"])
    standard = stdin if stdin is not None else os.open(os.devnull, os.O_RDONLY)
    os.dup2(standard, 0)
    os.dup2(output, 1)
    os.dup2(output if errors is None else errors, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    time.tzset()
    sys.argv[1:] = fields["arguments"]
    return fields


def _try_sandbox_once() -> None:
    """Try bubblewrap now, so that no team that finds the same one tries it for its own root."""
    from crewboard.sandbox import bubblewrap
    from crewboard.sandbox.policy import Policy

    with tempfile.TemporaryDirectory() as folder:
        tried = Policy(Path(os.path.realpath(folder)), writes=False)
        if bubblewrap.unavailable_reason(tried) is not None:
            return
        program = bubblewrap._trial(tried)[0]
    try_for_forks = bubblewrap.try_for_forks

    def remember(root: Path) -> None:
        try:
            trials = [bubblewrap._trial(Policy(root, writes=writes)) for writes in (False, True)]
        except FileNotFoundError:
            return
        if {trial[0] for trial in trials} == {program}:
            bubblewrap._tried.update(dict.fromkeys(map(tuple, trials), float("inf")))
        else:
            try_for_forks(root)

    bubblewrap.try_for_forks = remember


def _main() -> int:
    """Load all code, then fork a supervisor at each request."""
    # Detach, so that no test runner has to wait for the others.
    if os.fork():
        os._exit(0)
    from crewboard.offline import __main__ as offline
    from crewboard.supervisor import __main__ as supervisor
    from crewboard.unix import process
    from crewboard.worker import __main__ as worker
    from crewboard.worker import prefork_server

    # It ends with the socket: the kernel would end it with the thread that started it, which may be a short-lived one.
    prefork_server.preload()
    prefork_server.preload = lambda: None
    # Each supervisor would load the first when it begins to listen, and each worker with MCP servers the others.
    for module in ("watchdog.observers.inotify_c", "mcp.client.client", "jsonschema.validators"):
        importlib.import_module(module)
    _try_sandbox_once()
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=os.dup(0))
    forked = _serve_all(listener)
    listener.close()
    if forked is None:
        return 0
    connection, outputs = forked
    fields = _become(connection, None, *outputs)
    if "module" in fields:
        return int(importlib.import_module(fields["module"]).main(sys.argv[1:]))
    exec(fields["patch"], {})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spawner = os.fork()
    if spawner:
        theirs.close()
        command = [sys.executable, "-I", "-m", "crewboard.supervisor", *sys.argv[1:]]
        process.rename("python", command)
        # A host that lost its lease begins again as a new interpreter.
        sys.orig_argv[:] = command
        _fork_modules(ours, spawner)
        return supervisor.begin(sys.argv[1:])
    # A child of the supervisor from before it began: it forks what the supervisor starts, free of the supervisor's
    # locks, handlers and caches.
    ours.close()
    forked = _serve(theirs)
    theirs.close()
    if forked is None:
        return 0
    connection, (stdin, output) = forked
    fields = _become(connection, stdin, output)
    process.rename("python", [sys.executable, "-I", "-m", fields["module"], *sys.argv[1:]])
    if fields["module"] == WORKER_MODULE:
        random.seed()
        return worker.main(Path(sys.argv[1]))
    return prefork_server.main() if fields["module"] == SERVER_MODULE else offline.main()


@contextmanager
def _becoming_parent() -> Iterator[None]:
    """Be for a moment the parent of what is forked by a child, and not of all orphans as on Linux elsewhere."""
    syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _fork_modules(control: socket.socket, spawner: int) -> None:
    """Make a supervisor fork the interpreters that it starts, except for workers that need new ones.

    In the plain-POSIX variant there is no prefork server, and each worker would import for two seconds: a new
    interpreter, as users have there, is what the fixture `new_interpreters` starts.
    """
    from crewboard import env
    from crewboard.supervisor.launcher import Launcher, Ref, can_prefork

    run = Launcher.run
    python = [sys.executable, "-I", "-m"]

    def run_or_fork(self: Launcher, command: list[str], environment: Mapping[str, str], log: int, stdin: int) -> Ref:
        # Else it would be killed as an orphan that a worker left.
        self.adopt(spawner)
        module = command[3] if command[:3] == python else ""
        # Only Linux lets a process become the parent of a worker that another one forked.
        is_worker = module == WORKER_MODULE and env.is_posix() and sys.platform == "linux" and can_prefork(environment)
        if not is_worker and module not in (SERVER_MODULE, OFFLINE_MODULE):
            return run(self, command, environment, log, stdin)
        fields = {"module": module, "arguments": command[4:], "environment": dict(environment)}
        null = os.open(os.devnull, os.O_RDONLY)
        with _becoming_parent() if is_worker else nullcontext():
            try:
                pid = _send(control, fields, [null if stdin < 0 else stdin, log])
            finally:
                os.close(null)
        return self.adopt(pid)

    mock.patch.object(Launcher, "run", run_or_fork).start()


class Preloaded:
    """The process that forks supervisors, for the test runners that have the same `folder`.

    The runner that needs it first starts it. It ends when all of them have left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._control: socket.socket | None = None

    def spawn(self, team: TeamDirectory, environment: Mapping[str, str], log: int, *host: str) -> None:
        """Start a supervisor as `supervisor_client._spawn` does, or a host with these arguments."""
        self._fork({"arguments": [str(team.path), *host], "environment": dict(environment), "patch": _patch}, log)

    def run(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str]:
        """Run the `main` of a module in a process of its own; return what it printed to stdout and stderr."""
        fields = {"module": module, "arguments": [*arguments], "environment": dict(environment)}
        reading, writing = os.pipe()
        with (
            os.fdopen(reading, encoding="utf-8") as printed,
            tempfile.TemporaryFile("w+", encoding="utf-8") as complaints,
        ):
            try:
                self._fork(fields, writing, complaints.fileno())
            finally:
                os.close(writing)
            # Until it ends.
            stdout = printed.read()
            complaints.seek(0)
            return stdout, complaints.read()

    def _fork(self, fields: Mapping[str, Any], *outputs: int) -> None:
        with self._lock:
            try:
                _send(self._connected(), fields, [*outputs])
            except ConnectionError:
                # It was about to end, because all others had left.
                self._leave()
                _send(self._connected(), fields, [*outputs])

    def _connected(self) -> socket.socket:
        if self._control is None:
            with (self._folder / "preloaded.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._control = self._connect() or self._start()
        return self._control

    def _connect(self) -> socket.socket | None:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(_START_TIMEOUT)
        try:
            self._at_folder(control.connect)
        except (FileNotFoundError, ConnectionRefusedError):
            control.close()
            return None
        return control

    def _start(self) -> socket.socket:
        from crewboard.supervisor.launcher import _server_environment

        (self._folder / _SOCKET).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            self._at_folder(listener.bind)
            listener.listen(64)
            # Before it starts: it ends when the last connection ends.
            control = self._connect()
            assert control is not None
            command = [sys.executable, "-I", __file__, _ROOM]
            subprocess.run(
                command, stdin=listener.fileno(), env=_server_environment(), cwd="/", start_new_session=True, check=True
            )
        return control

    def _at_folder(self, call: Callable[[str], None]) -> None:
        """Bind or connect to the socket: its path may be longer than an address can be."""
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        try:
            call(f"/proc/self/fd/{folder}/{_SOCKET}")
        finally:
            os.close(folder)

    def _leave(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Supervisors that it forked stay: each test ends its own.
        self._leave()


@contextmanager
def patched(code: str) -> Iterator[None]:
    """Run `code` in each supervisor that is started, from which workers inherit what it changes."""
    with mock.patch.object(sys.modules[__name__], "_patch", code):
        yield


@contextmanager
def start_new_interpreters() -> Iterator[None]:
    """Start supervisors, and what they start, as users do: as new interpreters."""
    with mock.patch.object(supervisor_client, "_spawn", _SPAWN):
        yield


if __name__ == "__main__":
    code = _main()
    # Taking the interpreter down would copy all memory that is shared with other processes.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
