"""The dashboard and the demo, which is the dashboard with a team at work."""

import os
import sys

import click

from crewboard.commands.cli_hint import CommandLine
from crewboard.errors import UsageError
from crewboard_tui.cli import params
from crewboard_tui.cli.session import Session


@click.command()
@params.board
@click.pass_obj
def board(session: Session, plain_glyphs: bool, plain: bool, read_only: bool) -> None:
    """Open the dashboard, as `crewboard` alone does.

    q leaves it; the agents go on. --plain is for screen readers and terminals that cannot paint: one sentence for
    each thing that needs you, with the command that answers it, until Ctrl-C.
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
@click.option("--headless", is_flag=True, help="Print the events and end by itself.")
def demo(headless: bool) -> None:
    """Show a team at work on a scratch copy of a small project.

    Five agents, each its own process; they read, edit and test real files. Their thinking comes from the
    embedded model, which is no language model: no key and no network are needed. Leaving ends the agents.
    """
    if not headless:
        check_terminal("`crewboard demo --headless` does not")
    from crewboard_tui.demo import run

    raise click.exceptions.Exit(run(headless=headless))


def check_terminal(instead: str) -> None:
    """Make sure that there is a terminal to paint on; `instead` is what does without.

    Raises:
        UsageError: There is none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"the dashboard needs a terminal; {instead}")
    if os.environ.get("TERM") == "dumb":
        raise UsageError(f"the dashboard needs a terminal that can do more than TERM=dumb; {instead}")
