"""The commands `board` and `demo`."""

import os
import sys

import click

from crewboard.commands.cli_hint import CommandLine
from crewboard.errors import UsageError
from crewboard_tui.cli import options
from crewboard_tui.cli.session import Session


@click.command()
@options.board
@click.pass_obj
def board(session: Session, plain_glyphs: bool, plain: bool, read_only: bool) -> None:
    """Open the dashboard, as `crewboard` without a command does.

    q leaves it; the agents keep running. --plain is for screen readers and simple terminals: it prints one sentence
    for each need, with the command that answers it, until Ctrl-C.
    """
    team = session.team
    if plain:
        from crewboard_tui.cli.plain import follow

        follow(team)
        return
    typed = CommandLine.of(team)
    check_terminal(f"`{typed('board --plain')}`, `{typed('status')}` and `{typed('watch')}` do not")
    from crewboard_tui.session import run

    raise click.exceptions.Exit(int(run(team, ascii=plain_glyphs, read_only=read_only)))


@click.command()
@click.option("--headless", is_flag=True, help="Print the events, and exit when the demo is over.")
def demo(headless: bool) -> None:
    """Show a team at work on a scratch copy of a small project.

    Five agents, one process each, read, edit and test real files. The offline model answers for them; it is not a
    language model and needs no key and no network. Leaving the demo ends its agents.
    """
    if not headless:
        check_terminal("`crewboard demo --headless` does not")
    from crewboard_tui.demo import run

    raise click.exceptions.Exit(run(headless=headless))


def check_terminal(instead: str) -> None:
    """Require a terminal that can show the dashboard; `instead` names what works without one.

    Raises:
        UsageError: There is no such terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"the dashboard needs a terminal; {instead}")
    if os.environ.get("TERM") == "dumb":
        raise UsageError(f"the dashboard needs a terminal that can do more than TERM=dumb; {instead}")
