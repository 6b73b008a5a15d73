"""`python -I -m crewboard.worker.prefork_server <team directory>`: load a worker's code once, and fork workers.

`crewboard.protocol.prefork` describes the messages. The server forks twice for each worker, so that the worker becomes
a child of the supervisor, which is a subreaper and so learns how the worker ended. The server has one thread, never
sees a worker's environment or prompt, and ends with its supervisor.
"""

import asyncio
import contextlib
import gc
import importlib
import os
import pkgutil
import random
import socket
import sys
import tempfile
import time
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from crewboard.unix import process, syscalls

if TYPE_CHECKING:
    from crewboard.protocol.prefork import SpawnRequest

_CHUNK = 65536

_THREAD_EXIT_TIMEOUT = 2.0
"""Seconds to wait for threads that have ended to leave the process."""


_EVENTS = """\
event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"model":"m",\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"."}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"glob","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":1}}

event: message_stop
data: {"type":"message_stop"}

"""

_MODEL = '{"type":"model","id":"m","display_name":"m","created_at":"2026-01-01T00:00:00Z","max_input_tokens":1}'


def _response(kind: str, body: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


_PACKAGES = ("protocol", "sandbox", "store", "unix", "worker")
"""The packages of crewboard whose modules workers use."""


def _redirect(path: str | Path, flags: int, *descriptors: int) -> None:
    from crewboard.store import files

    opened = files.open_private(path, flags)
    for descriptor in descriptors:
        os.dup2(opened, descriptor)
    os.close(opened)


def _serve(control: socket.socket) -> socket.socket | None:
    """Fork a worker for each socket that comes over `control`.

    Return in each worker its socket, and in the server None when the supervisor is gone.
    """
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, _CHUNK, 1)
        if not descriptors:
            return None
        # If there is no room for a process, the supervisor sees that the socket closes.
        with contextlib.suppress(OSError):
            # A child that forks in turn and exits. The worker is the grandchild.
            if child := os.fork():
                os.waitpid(child, 0)
            else:
                try:
                    if os.fork():
                        os._exit(0)
                except OSError:
                    # Only the server may go on from here.
                    os._exit(1)
                return socket.socket(fileno=descriptors[0])
        os.close(descriptors[0])


def _receive(connection: socket.socket) -> "SpawnRequest":
    """Send this worker's pid to the supervisor, and return the supervisor's request. Exit if none comes."""
    from crewboard.protocol.prefork import SpawnRequest

    received = b""
    with connection:
        connection.sendall(str(os.getpid()).encode())
        while piece := connection.recv(_CHUNK):
            received += piece
    request = SpawnRequest.decode(received)
    if request is None:
        os._exit(0)
    return request


def _become_worker(request: "SpawnRequest") -> None:
    """Give this process the environment, log, name and arguments of a worker that was started on its own."""
    from crewboard.errors import CrewboardError

    # First, because it says where the secret is that marks the team as the user's own.
    os.environ.clear()
    os.environ.update(request.environment)
    # If nothing can be written, the worker reports that itself with its exit code.
    with contextlib.suppress(OSError, CrewboardError):
        _redirect(request.agent / "worker.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1, 2)
    time.tzset()
    tempfile.tempdir = None
    random.seed()
    sys.argv[1:] = [str(request.agent)]
    process.rename(request.agent.name, [sys.executable, "-I", "-m", "crewboard.worker", str(request.agent)])
    gc.enable()


async def _serve_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    is_for_model = request.startswith(b"GET ")
    writer.write(_response("application/json", _MODEL) if is_for_model else _response("text/event-stream", _EVENTS))
    await writer.drain()
    writer.close()


async def _make_requests() -> None:
    from crewboard.worker.llm.client import make_client, rehearse

    server = await asyncio.start_server(_serve_reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = make_client(api_key="none", base_url=f"http://127.0.0.1:{port}")
    async with server, client:
        await rehearse(client)


def _import_modules(package: str) -> None:
    """Import a package and all modules in it, as most import each other only when needed.

    Programs (`__main__`, `file_server`) are left out, and modules for PostgreSQL where its driver is not installed.
    """
    has_driver = util.find_spec("psycopg") is not None
    folder = importlib.import_module(package).__path__
    for each in pkgutil.iter_modules(folder, f"{package}."):
        if each.ispkg:
            _import_modules(each.name)
        elif not each.name.endswith(("__main__", "file_server")) and (has_driver or "postgres" not in each.name):
            importlib.import_module(each.name)


def preload() -> None:
    """Load all code that a worker needs for its first assignment, and make sample requests to a local server.

    Imports are four fifths of a cold start. The rest is what the SDK builds at its first request: models, the
    transport, a TLS context. Whatever is loaded only after the fork takes time and memory in each worker. No descriptor
    is left open.
    """
    import anthropic

    from crewboard import pricing
    from crewboard.store import codec

    for package in _PACKAGES:
        _import_modules(f"crewboard.{package}")
    from crewboard.worker.tools import registry

    for tool in registry.TOOLS.values():
        tool.definition()
    codec.prepare()
    pricing.load_shipped()
    # Without a loopback interface, each worker loads the rest by itself.
    with contextlib.suppress(OSError, anthropic.AnthropicError):
        asyncio.run(_make_requests())


def _exit(code: int) -> NoReturn:
    """Exit at once with `code`, without the interpreter's own shutdown. The end of the run is recorded already.

    That shutdown would write to every page of memory that is shared with the server, and so copy them all.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Load the code and fork workers until the supervisor ends; return the exit code of the server.

    The code is 1 if a library left a thread, else 0. In each forked worker this function does not return: the process
    exits with the exit code of the worker.
    """
    process.end_with_parent()
    # Every worker inherits this, so its key and mail are protected from its first instruction.
    process.keep_memory_private()
    # The collector would take a tenth of the import time and find no garbage.
    gc.disable()
    # Imported here, so that this process is bound to its parent and closed to others before anything slow.
    from crewboard.protocol.prefork import READY, SERVER_MODULE

    process.rename("crewboard", [sys.executable, "-I", "-m", SERVER_MODULE, sys.argv[1]])
    # The supervisor's socket came as stdin.
    control = socket.socket(fileno=os.dup(0))
    _redirect(os.devnull, os.O_RDONLY, 0)
    from crewboard.worker import __main__ as worker

    preload()
    # A fork copies all of a process only if it has one thread.
    deadline = time.monotonic() + _THREAD_EXIT_TIMEOUT
    while process.count_threads() > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    if process.count_threads() > 1:
        sys.stderr.write(f"{SERVER_MODULE}: a library left a thread, which a fork would break; not forking workers\n")
        return 1
    from crewboard.errors import CrewboardError
    from crewboard.sandbox import bubblewrap
    from crewboard.store.layout import TeamDirectory

    team = Path(sys.argv[1])
    # Try the sandbox once for all workers, with the same rights as a worker. A worker that needs another sandbox, or
    # finds none, tries by itself.
    syscalls.no_new_privileges()
    with contextlib.suppress(OSError, CrewboardError):
        bubblewrap.try_for_forks(Path(os.path.realpath(TeamDirectory(team).root)))
    # Load what opens the team's store, which is not contacted.
    with contextlib.suppress(CrewboardError):
        _ = TeamDirectory(team).store
    # Without a collection before: it takes a tenth of the start, for half a megabyte.
    gc.freeze()
    control.send(READY)
    connection = _serve(control)
    control.close()
    if connection is None:
        return 0
    os.setsid()
    # Every descriptor but stdin, stdout, stderr and this one.
    os.closerange(3, connection.fileno())
    os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    request = _receive(connection)
    _become_worker(request)
    _exit(worker.main(request.agent))


if __name__ == "__main__":
    sys.exit(main())
