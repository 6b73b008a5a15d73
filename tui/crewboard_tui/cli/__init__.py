"""The command line. Each command lives in a module that is imported when the command runs."""

import gc
import io
import os
import signal
import sys
from types import FrameType


# The signature of a signal handler.
def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Run all clean-up and exit with the code that a shell reports for the signal."""
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


def never_fail_to_print() -> None:
    """Make stdout and stderr print escapes for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_BOARDS = {(): False, ("board",): False, ("--read-only",): True, ("board", "--read-only"): True}
"""The arguments that open the dashboard without the command tree, with True if it is read-only."""


def _open_board(*, read_only: bool) -> int:
    """Open the dashboard without the command tree, which takes a twentieth of a start; return the exit code."""
    from crewboard_tui import bundle

    bundle.begin()
    from crewboard_tui.dashboard import open_board

    def tell(text: str) -> None:
        from crewboard_tui.cli.common import note

        note(text)

    try:
        return int(open_board(tell, read_only=read_only))
    # It reports every error as that of a command.
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        from crewboard_tui.cli.program import code_of

        return code_of(error)


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
    never_fail_to_print()
    try:
        from crewboard import env

        read_only = _BOARDS.get(tuple(sys.argv[1:]))
        if read_only is not None and not os.environ.get(env.COMPLETE):
            code = _open_board(read_only=read_only)
        else:
            from crewboard_tui.cli.program import run

            code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
