"""`python -I -m crewboard.worker.prefork_server <team directory>`: the warm parent of a team's workers.

It imports once what every worker needs, and forks a worker on request, as `crewboard.protocol.prefork` says. It forks
twice, so that the worker falls to the supervisor, which is a subreaper, reaps it and learns how it ended. It has one
thread, never sees an environment or a prompt, and ends with its supervisor.
"""

import contextlib
import gc
import os
import random
import socket
import sys
import tempfile
import time
from pathlib import Path

from crewboard.linux import process
from crewboard.protocol.prefork import PARENT, READY, SpawnRequest
from crewboard.store import files

_CHUNK = 65536

_ALONE_WITHIN = 2.0
"""Seconds that a thread which has ended may take to leave the process."""


def _control() -> socket.socket:
    """The supervisor's socket, which came as stdin; from now on that is /dev/null."""
    control = socket.socket(fileno=os.dup(0))
    _redirect(os.devnull, os.O_RDONLY, 0)
    return control


def _redirect(path: str | Path, flags: int, *descriptors: int) -> None:
    opened = files.open_private(path, flags)
    for descriptor in descriptors:
        os.dup2(opened, descriptor)
    os.close(opened)


def _attend(control: socket.socket) -> socket.socket | None:
    """Fork whenever the supervisor asks. Returns in each child, with its socket; here when the supervisor is gone."""
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, _CHUNK, 1)
        if not descriptors:
            return None
        with contextlib.suppress(OSError):  # no room for a process: the supervisor sees its socket close
            if _fork_twice():
                return socket.socket(fileno=descriptors[0])
        os.close(descriptors[0])


def _fork_twice() -> bool:
    """Whether this is the grandchild."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)  # only the parent may go on from here
    return True


def _receive(birth: socket.socket) -> SpawnRequest:
    """Tell the supervisor who we are; returns its order, or ends this process if none comes."""
    received = b""
    with birth:
        birth.sendall(str(os.getpid()).encode())
        while piece := birth.recv(_CHUNK):
            received += piece
    order = SpawnRequest.decode(received)
    if order is None:
        os._exit(0)
    return order


def _keep_only(kept: int) -> None:
    """Close every descriptor but stdin, stdout, stderr and `kept`."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _become(order: SpawnRequest) -> None:
    """Be as if started for this worker alone."""
    with contextlib.suppress(OSError):  # where nothing can be written, the worker itself says so by its exit code
        _redirect(order.agent / "worker.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1, 2)
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    tempfile.tempdir = None
    random.seed()
    sys.argv[1:] = [str(order.agent)]
    process.rename(order.agent.name, [sys.executable, "-I", "-m", "crewboard.worker", str(order.agent)])
    gc.enable()


def _is_alone() -> bool:
    """Whether this process has one thread, so that a fork copies all of it."""
    deadline = time.monotonic() + _ALONE_WITHIN
    while process.count_threads() > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    return process.count_threads() == 1


def main() -> int:
    """Warm up, fork workers; returns in the parent at its end, and in each worker at its own."""
    process.end_with_parent()
    process.keep_memory_private()  # passes to every worker, whose key and mail are safe so from its first instruction
    process.rename("crewboard", [sys.executable, "-I", "-m", PARENT, sys.argv[1]])
    control = _control()
    gc.disable()  # a tenth of the time that imports take, and nothing of what they make is garbage
    from crewboard.worker import __main__ as worker
    from crewboard.worker.preload import warm_up

    warm_up()
    if not _is_alone():
        sys.stderr.write(f"{PARENT}: something left a thread, which a fork would break; workers start cold\n")
        return 1
    gc.collect()
    gc.freeze()
    control.send(READY)
    birth = _attend(control)
    control.close()
    if birth is None:
        return 0
    os.setsid()
    _keep_only(birth.fileno())
    order = _receive(birth)
    _become(order)
    return worker.main(order.agent)


if __name__ == "__main__":
    sys.exit(main())
