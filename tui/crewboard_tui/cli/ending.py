"""Ending agents, and what is left to do for those that ended."""

import click

from crewboard.commands import messages
from crewboard.commands import stop as ending
from crewboard.protocol.approvals import SHUTDOWN_TIMEOUT
from crewboard.store import leases
from crewboard_tui.cli.output import as_json, note, say, say_json
from crewboard_tui.cli.session import Session


@click.command()
@click.argument("name")
@click.option("--now", is_flag=True, help="Ask nothing: end it and everything that it started.")
@as_json
@click.pass_obj
def stop(session: Session, name: str, now: bool, as_json: bool) -> None:
    """Ask the agent NAME to shut down, and wait until it is gone.

    It may refuse while it is at work; that, or no answer within 30 s, exits 75 and it goes on.
    """
    team = session.team
    lived = leases.is_held(team.agent(name).lease)
    if now:
        ending.stop_now(team, name)
    else:
        if lived:
            note(f"asked {name} to shut down; it has {SHUTDOWN_TIMEOUT:.0f} s to answer")
        ending.stop(team, name)
    if as_json:
        say_json({"name": name, "was_alive": lived, "alive": False})
    else:
        say(f"{name} has ended" if lived else f"{name} is not running")


@click.command()
@click.argument("name")
@as_json
@click.pass_obj
def ack(session: Session, name: str, as_json: bool) -> None:
    """Note that you have seen how the agent NAME ended.

    It then no longer counts as needing you. Of one that is alive nothing has ended: exit 75.
    """
    team = session.team
    messages.acknowledge(team, name)
    if as_json:
        say_json({"name": name, "acknowledged": True})
    else:
        say(f"acknowledged how {name} ended")


@click.command()
@click.argument("name")
@as_json
@click.pass_obj
def remove(session: Session, name: str, as_json: bool) -> None:
    """Take the stopped agent NAME off the roster. Its files are kept aside."""
    kept = ending.remove(session.team, name)
    if as_json:
        say_json({"name": name, "kept": str(kept)})
    else:
        say(f"{name} is off the roster; its files are in {kept}")
