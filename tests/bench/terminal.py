"""A real terminal with a program in it, read as the bytes that the program paints."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pexpect

WAIT_TIMEOUT = 30


@contextmanager
def terminal(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[pexpect.spawn]:
    """Run `command` in a terminal of 100 × 30, and end it."""
    child = pexpect.spawn(
        command[0],
        list(command[1:]),
        cwd=str(folder),
        env={**environment, "TERM": "xterm-256color"},
        dimensions=(30, 100),
        timeout=WAIT_TIMEOUT,
    )
    # pexpect's delay imitates a typing user, and would be measured.
    child.delaybeforesend = None
    try:
        yield child
    finally:
        child.close(force=True)


def painted_ms(command: Sequence[str], folder: Path, environment: Mapping[str, str], words: str) -> float:
    """Measure from the start of `command` until `words` are painted."""
    began = time.perf_counter()
    with terminal(command, folder, environment) as child:
        child.expect_exact(words)
        return (time.perf_counter() - began) * 1e3
