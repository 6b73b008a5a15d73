"""Run the command line, for `python -m crewboard_tui.cli`."""

from crewboard_tui.cli import main

main()
