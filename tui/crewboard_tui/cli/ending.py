"""The commands `stop`, `ack` and `remove`."""

import click

from crewboard.commands import messages
from crewboard.commands import stop as ending
from crewboard.protocol.approvals import SHUTDOWN_TIMEOUT
from crewboard.store import leases
from crewboard_tui.cli.output import as_json, note, say, say_json
from crewboard_tui.cli.session import Session


@click.command()
@click.argument("name")
@click.option("--now", is_flag=True, help="Do not ask: end it and everything that it started.")
@as_json
@click.pass_obj
def stop(session: Session, name: str, now: bool, as_json: bool) -> None:
    """Ask the agent NAME to shut down, and wait until it is gone.

    A working agent may refuse. If it does, or does not answer within 30 s, it keeps running (exit 75).
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
    """Acknowledge how the agent NAME ended.

    It then no longer needs you. Exits 75 if the agent is still running.
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
    """Remove the stopped agent NAME from the roster; its files are kept."""
    kept = ending.remove(session.team, name)
    if as_json:
        say_json({"name": name, "kept": str(kept)})
    else:
        say(f"{name} is removed from the roster; its files are in {kept}")
