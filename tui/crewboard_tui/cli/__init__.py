"""The command line. Each command lives in a module that is imported when the command runs."""

import gc
import os
import signal
import sys
from types import FrameType


# The signature of a signal handler.
def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Exit with the code that a shell reports for a signal, after running all clean-up."""
    raise SystemExit(128 + number)


def open_missing() -> None:
    """Open /dev/null in place of each closed standard stream.

    Otherwise the next file opened would take the stream's number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            # dup2 leaves a descriptor that already has this number as it is, so set it inheritable here.
            os.set_inheritable(number, True)  # noqa: FBT003
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w"))


def main() -> None:
    """Run the command line of this process and exit with its code."""
    open_missing()
    if sys.argv[1:] == ["hook"]:
        # Before anything else is imported: a session of Claude Code waits for it.
        from crewboard.attach import hooks

        sys.exit(hooks.main())
    # What imports make is no garbage, and looking for some takes a tenth of a start. `program` enables it again for
    # each command that is not in its QUICK.
    gc.disable()
    signal.signal(signal.SIGTERM, leave)
    try:
        from crewboard_tui.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
