"""The commands `host`, `hosts`, `workspace` and `fetch`: the machines that run agents of a team in PostgreSQL.

`workspace` gives these agents the user's files to begin with, and `fetch` brings their work back.
"""

import os
import time
from dataclasses import asdict
from typing import Any

import click

import crewboard as core
from crewboard import TeamView, UsageError, env
from crewboard.readmodel.hosts import no_hosts
from crewboard.records.team import Workspace
from crewboard.store import roster
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, age, as_json, note, say, say_json, table
from crewboard_tui.render.formats import format_load, format_moment, format_size
from crewboard_tui.render.sanitize import safe_line


@common.listing(
    sections={
        "Commands": {
            "up": ("ray_hosts:up", "Start a host of the team on each node of a Ray cluster that has none."),
            "down": ("ray_hosts:down", "Drain the hosts that `hosts up` started, and end their actors."),
        }
    },
)
def hosts(session: Session) -> None:
    """List the hosts of the team, and what each runs.

    A host is `crewboard host` on a machine that runs agents of the team. LOAD is for each core; the SLOTS of a host are
    how many agents it runs at most.
    """
    from crewboard.readmodel import as_json as readmodel_as_json

    directory = session.team.directory
    view = core.TeamReader(directory).read(measured=0)
    data = [readmodel_as_json.host(each) for each in view.hosts]
    session.tell(data, *describe(view), empty="" if view.hosts else no_hosts(directory))


def describe(view: TeamView, indent: str = "") -> list[str]:
    """Return a table of the hosts that fits the terminal; empty if the team has no hosts."""
    if not view.hosts:
        return []
    head = ("HOST", "STATE", "SLOTS", "LOAD", "MEMORY", "SEEN", "LABELS", "AGENTS")
    rows = []
    for host in view.hosts:
        clock = f"clock {host.clock}" if host.clock else ""
        lost = f"lost: {', '.join(host.lost)}" if host.lost else ""
        rows.append(
            (
                host.name,
                host.state,
                f"{host.used}/{host.record.slots}",
                format_load(host.record.load, host.record.cores) if host.is_up else "–",
                format_size(host.record.memory) if host.record.memory else "–",
                f"{age(view.now - host.seen)} ago",
                " ".join(host.record.offers) or "–",
                " · ".join(part for part in (clock, ", ".join(host.agents), lost) if part) or "–",
            )
        )
    return table(head, rows, indent=indent)


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
        team, name or commands_hosts.default_name(), slots or commands_hosts.default_slots(), sorted(set(labels)), url
    )
    os.execve(command[0], command, dict(team.worker_environment))


@common.listing()
def workspace(session: Session) -> None:
    """Show what agents on hosts begin with, or push it."""
    from crewboard.commands import workspace as commands_workspace

    found = commands_workspace.pushed(session.team)
    if session.as_json:
        say_json(_workspace_as_json(found) if found is not None else None)
    elif found is None:
        note("no workspace was pushed: agents on hosts work in the roots of these; `crewboard workspace push`")
    else:
        say(*_describe_workspace(found))
        if stale := commands_workspace.describe_unpushed(session.team, found):
            note(stale)


@workspace.command()
@click.option("--git", "url", metavar="URL", help="Let hosts fetch what is committed from this remote.")
@click.option("--force", is_flag=True, help="Push although the history is not that of the last push.")
@as_json
def push(session: Session, url: str | None, force: bool) -> None:
    """Put HEAD and your uncommitted files into the team's store.

    New agents on hosts begin with them. Files that git ignores are left out. Nothing in your working tree, index or
    branches changes. Push again after a merge; agents that have begun keep their beginning.

    With more than 256 MiB, use --git: hosts then fetch the commits from a remote with their own credentials, and the
    store has your uncommitted files alone.

    A repository that shares no history with what was pushed before is refused without --force.
    """
    from crewboard.commands import workspace as commands_workspace

    made = commands_workspace.push(session.team, url, force=force)
    session.tell(_workspace_as_json(made), *_describe_workspace(made))


def _workspace_as_json(found: Workspace) -> dict[str, Any]:
    return {
        "commit": found.commit, "head": found.head, "branch": found.branch or None, "url": found.url or None,
        "size": sum(each.size for each in found.bundles), "by": found.by, "at": found.at,
    }  # fmt: skip


def _describe_workspace(found: Workspace) -> list[str]:
    size = roster.format_size(sum(each.size for each in found.bundles))
    # A number alone is bytes.
    size += " bytes" if size.isdecimal() else ""
    uncommitted = " and uncommitted files" if found.commit != found.head else ""
    branch = f" ({found.branch})" if found.branch else ""
    source = f", history from {found.url}" if found.url else ""
    pushed = f"pushed {format_moment(found.at, time.time())} by {found.by or 'you'}, {size} in the store{source}"
    return [safe_line(f"agents on hosts begin with {found.head[:12]}{branch}{uncommitted}"), safe_line(pushed)]


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@click.option("--all", "everyone", is_flag=True, help="Fetch the work of every agent.")
@as_json
def fetch(session: Session, name: str | None, everyone: bool) -> None:
    """Bring the work of the agent NAME from its host into your repository.

    Its newest snapshot is the branch `crewboard/NAME` then (`crewboard/@TEAM/NAME` in a team not called `default`).
    Your working tree is not changed. `changes` and `merge` fetch by themselves.

    Example: crewboard fetch fixer
    """
    from crewboard.commands import workspace as commands_workspace

    if (name is None) != everyone:
        raise UsageError("name an agent, or use --all" + (", not both" if everyone else ""))
    team = session.team
    one = commands_workspace.fetch(team, name) if name is not None else None
    found = commands_workspace.fetch_all(team) if name is None else [one] if one is not None else []
    if session.as_json:
        say_json([asdict(each) for each in found])
        return
    for each in found:
        of = f"{each.commit[:12]}, of {format_moment(each.at, time.time())}{'' if each.new else ', as before'}"
        say(safe_line(f"{each.agent}: {each.branch} is at {of}"))
        for problem in (each.note, *(f"not taken in: {missing}" for missing in each.missing)):
            if problem:
                note(safe_line(f"{each.agent}: {problem}"))
    if not found:
        note(f"{name} has no work yet" if name is not None else "no agent on a host has work yet")
