"""The command line: each command in a module that is loaded when it is called."""

import sys


def main() -> None:
    """Run the command line of this process and end it with its exit code."""
    try:
        from crewboard_tui.cli.program import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
