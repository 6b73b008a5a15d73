"""A real terminal with a program in it, read as the bytes that the program paints."""

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pexpect

WAIT_TIMEOUT = 30


@contextmanager
def terminal(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, rows: int = 30
) -> Iterator[pexpect.spawn]:
    """Run `command` in a terminal of 100 columns, and end it."""
    child = pexpect.spawn(
        command[0],
        list(command[1:]),
        cwd=str(folder),
        env={**environment, "TERM": "xterm-256color"},
        dimensions=(rows, 100),
        timeout=WAIT_TIMEOUT,
        # Thousands of leases leave no descriptor that select() could wait for.
        use_poll=True,
    )
    # pexpect's delay imitates a typing user, and would be measured.
    child.delaybeforesend = None
    try:
        yield child
    finally:
        # `close` alone gives a busy machine a tenth of a second.
        if child.isalive():
            child.kill(signal.SIGKILL)
            child.wait()
        child.close()


def painted_ms(command: Sequence[str], folder: Path, environment: Mapping[str, str], words: str) -> float:
    """Measure from the start of `command` until `words` are painted."""
    began = time.perf_counter()
    with terminal(command, folder, environment) as child:
        child.expect_exact(words)
        return (time.perf_counter() - began) * 1e3


def rest(child: pexpect.spawn, seconds: float) -> int:
    """Return how many bytes a program writes to its terminal within some seconds."""
    count, end = 0, time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with suppress(pexpect.TIMEOUT):
            count += len(child.read_nonblocking(65536, timeout=left))
    return count
