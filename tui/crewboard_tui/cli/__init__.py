"""The command line: each command in a module that is loaded when it is called."""

import os
import signal
import sys
from types import FrameType


def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  the signature of a handler
    """End as a shell reports a signal, after what has to be done at an end."""
    raise SystemExit(128 + number)


def open_missing() -> None:
    """Put nothing in the place of a standard stream that is closed: the next file opened would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)  # noqa: FBT003  it has no name; dup2 leaves a file that is there as it is
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def main() -> None:
    """Run the command line of this process and end it with its exit code."""
    open_missing()
    signal.signal(signal.SIGTERM, leave)
    try:
        from crewboard_tui.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
