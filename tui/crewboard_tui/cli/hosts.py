"""The command `hosts`: the machines that run the agents of a team in PostgreSQL."""

import click

import crewboard as core
from crewboard import TeamView
from crewboard.readmodel import HostView
from crewboard_tui.cli.common import Session, age, as_json, note, say, say_json, table
from crewboard_tui.render import format_load, format_size


@click.group(invoke_without_command=True)
@as_json
@click.pass_context
def hosts(context: click.Context, as_json: bool) -> None:
    """List the hosts of the team, and what each runs.

    A host is `crewboard host` on a machine that runs agents of the team. LOAD is for each core; the SLOTS of a host are
    how many agents it runs at most.
    """
    if context.invoked_subcommand is not None:
        return
    session: Session = context.obj
    directory = session.team.directory
    view = core.TeamReader(directory, probe=core.readmodel.NoUsageProbe()).read()
    if as_json:
        say_json([core.readmodel.as_json.host(each) for each in view.hosts])
        return
    if not view.hosts:
        note(core.readmodel.no_hosts(directory))
    for line in describe(view):
        say(line)


def describe(view: TeamView, indent: str = "") -> list[str]:
    """Describe the hosts in lines that fit the terminal; none if the team has no hosts."""
    if not view.hosts:
        return []
    head = ("HOST", "STATE", "SLOTS", "LOAD", "MEMORY", "SEEN", "LABELS", "AGENTS")
    return table(head, [_row(host, view.now) for host in view.hosts], indent=indent)


def _row(host: HostView, now: float) -> tuple[str, ...]:
    lost = f"lost: {', '.join(host.lost)}" if host.lost else ""
    return (
        host.name,
        host.state,
        f"{host.used}/{host.slots}",
        format_load(host.load, host.cores) if host.is_up else "–",
        format_size(host.memory) if host.memory else "–",
        f"{age(now - host.seen)} ago",
        " ".join(host.labels) or "–",
        " · ".join(part for part in (host.clock, ", ".join(host.agents), lost) if part) or "–",
    )
