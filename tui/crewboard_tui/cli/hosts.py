"""The commands `host` and `hosts`: the machines that run the agents of a team in PostgreSQL."""

import os

import click

import crewboard as core
from crewboard import TeamView, env
from crewboard.readmodel.hosts import no_hosts
from crewboard.readmodel.processes import NoUsageProbe
from crewboard.readmodel.team import HostView
from crewboard_tui.cli.common import LazyGroup, Session, age, as_json, note, say, say_json, table
from crewboard_tui.render.formats import format_load, format_size


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    sections={
        "Commands": {
            "up": ("ray_hosts:up", "Start a host of the team on each node of a Ray cluster that has none."),
            "down": ("ray_hosts:down", "Drain the hosts that `hosts up` started, and end their actors."),
        }
    },
)
@as_json
@click.pass_context
def hosts(context: click.Context, as_json: bool) -> None:
    """List the hosts of the team, and what each runs.

    A host is `crewboard host` on a machine that runs agents of the team. LOAD is for each core; the SLOTS of a host are
    how many agents it runs at most.
    """
    from crewboard.readmodel import as_json as readmodel_as_json

    if context.invoked_subcommand is not None:
        return
    session: Session = context.obj
    directory = session.team.directory
    view = core.TeamReader(directory, probe=NoUsageProbe()).read()
    if as_json:
        say_json([readmodel_as_json.host(each) for each in view.hosts])
        return
    if not view.hosts:
        note(no_hosts(directory))
    for line in describe(view):
        say(line)


def describe(view: TeamView, indent: str = "") -> list[str]:
    """Describe the hosts in lines that fit the terminal; none if the team has no hosts."""
    if not view.hosts:
        return []
    head = ("HOST", "STATE", "SLOTS", "LOAD", "MEMORY", "SEEN", "LABELS", "AGENTS")
    return table(head, [_row(host, view.now) for host in view.hosts], indent=indent)


def _row(host: HostView, now: float) -> tuple[str, ...]:
    clock = f"clock {host.clock}" if host.clock else ""
    lost = f"lost: {', '.join(host.lost)}" if host.lost else ""
    return (
        host.name,
        host.state,
        f"{host.used}/{host.record.slots}",
        format_load(host.record.load, host.record.cores) if host.is_up else "–",
        format_size(host.record.memory) if host.record.memory else "–",
        f"{age(now - host.seen)} ago",
        " ".join(host.record.labels) or "–",
        " · ".join(part for part in (clock, ", ".join(host.agents), lost) if part) or "–",
    )


@click.command()
@click.option("--store", "url", metavar="URL", help="Join the team in this database first: postgresql://USER@HOST/DB.")
@click.option("--name", metavar="NAME", help="Name of the host; default: that of the machine.")
@click.option("--slots", type=click.IntRange(min=1), metavar="N", help="Agents at once; default: 4 for each core.")
@click.option("--label", "labels", multiple=True, metavar="LABEL", help="Take agents that need LABEL, too. Repeatable.")
@click.pass_obj
def host(session: Session, url: str | None, name: str | None, slots: int | None, labels: tuple[str, ...]) -> None:
    """Run agents of a team in PostgreSQL on this machine, until Ctrl-C.

    The team has a host on each of several machines. Agents that are hired anywhere start on a host with room for them,
    with the API key of that host's environment. Ctrl-C, SIGTERM or the end of its terminal asks the agents here to
    shut down, and ends them after 30 s; a second Ctrl-C or SIGTERM ends them at once. `nohup` keeps it without a
    terminal.
    """
    from crewboard.commands import hosts as commands_hosts

    url = url or session.store_option
    team = session.open(commands_hosts.choose(session.root, session.team_option or env.team(), url))
    command = commands_hosts.command(
        team,
        name or commands_hosts.default_name(),
        slots or commands_hosts.default_slots(),
        sorted(set(labels)),
        url,
    )
    os.execve(command[0], command, dict(team.worker_environment))
