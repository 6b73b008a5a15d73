"""The command `team`: create, join, list and delete teams."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

import crewboard as core
from crewboard import BadDataError, StorageError, Team, UsageError
from crewboard.commands import context, hosts, stop, transfer
from crewboard.names import check_team
from crewboard.protocol import requests
from crewboard.records.agents import HireOptions
from crewboard.records.base import JsonValue, counted
from crewboard.records.requests import payload_sha256
from crewboard.store import agents, leases, roster
from crewboard.store.layout import TeamDirectory, team_directories
from crewboard.store.roster import find_team
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, note, say, say_json, table


@click.group(
    cls=LazyGroup,
    sections={
        "Commands": {
            "create": ("teams:create", "Create the team NAME in the workspace."),
            "join": ("teams:join", "Use the team NAME of another machine from this one, too."),
            "list": ("teams:list_", "List the teams of the workspace."),
            "adopt": ("teams:adopt", "Use a team that you did not make, or that was copied."),
            "delete": ("teams:delete", "End all workers of the team NAME."),
        }
    },
)
def team() -> None:
    """Create, join, list, adopt and delete teams."""


@click.command()
@click.argument("name")
@click.option("--description", type=common.text, default="", help="What the team is for.")
@click.option(
    "--store",
    "url",
    metavar="URL",
    help="Keep the team in this database: postgresql://USER@HOST/DATABASE, no password.",
)
@as_json
@click.pass_obj
def create(session: Session, name: str, description: str, url: str | None, as_json: bool) -> None:
    """Create the team NAME in the workspace."""
    url = url or session.store_option
    made = context.create(session.root, name, description, url)
    if url is None:
        common.warn_of_network(made.directory)
    if as_json:
        say_json(_describe(made.directory))
    else:
        say(f"created the team {name} in {made.directory.path}")
    sys.stdout.flush()
    common.prepare(made.directory)


@click.command()
@click.argument("name")
@click.option("--store", "url", metavar="URL", required=True, help="The database that the team is kept in.")
@as_json
@click.pass_obj
def join(session: Session, name: str, url: str, as_json: bool) -> None:
    """Use the team NAME of another machine from this one, too.

    Creates a folder in the workspace that says where the team is kept. `crewboard host` runs agents here.
    """
    joined = hosts.join(session.root, name, url)
    if as_json:
        say_json(_describe(joined))
    else:
        say(f"joined the team {name}: {joined.path}")


@click.command("list")
@as_json
@click.pass_obj
def list_(session: Session, as_json: bool) -> None:
    """List the teams of the workspace."""
    found = [_describe(each) for each in team_directories(session.root)]
    if as_json:
        say_json(found)
        return
    if not found:
        note(f"no teams below {session.root} yet; {context.create_command(session.root)}")
        return
    rows = [
        (each["name"], str(each["agents"]), str(each["alive"]), each["problem"] or each["description"])
        for each in found
    ]
    for line in table(("TEAM", "AGENTS", "ALIVE", "DESCRIPTION"), rows):
        say(line)


def _describe(directory: TeamDirectory) -> dict[str, Any]:
    known: dict[str, Any] = {"name": directory.path.name, "description": "", "agents": 0}
    alive = 0
    try:
        names = stop.all_agents(Team(directory))
        known["agents"] = len(names)
        alive = sum(leases.is_held(directory.agent(name).lease) for name in names)
        config = roster.load(directory)
        known |= {"name": config.name, "description": config.description, "agents": len(config.members)}
        problem = None
    except (BadDataError, StorageError) as error:
        problem = str(error)
    return {**known, "alive": alive, "path": str(directory.path), "problem": problem}


@click.command()
@click.option("--yes", is_flag=True, help="Without effect: --sha256 says what you looked at.")
@common.sha256
@as_json
@click.pass_obj
def adopt(session: Session, yes: bool, sha256: str | None, as_json: bool) -> None:  # noqa: ARG001  scripts give --yes
    """Use a team that you did not make, or that was copied.

    Such a team is foreign: it can be read, but nothing is started, resumed or sent. Shows first what the team contains
    that acts for you, and asks in a terminal; a script needs the --sha256 of that. Teams of version 0.1.0 need this
    once.
    """
    # Not `session.team`, which refuses a foreign team whose records are in a database.
    directory = core.choose_team(session.root, session.team_option)
    if directory.address is None and not directory.exists():
        raise UsageError(f"there is no team in {session.root}")
    was_foreign = directory.is_foreign()
    if was_foreign:
        _require_yes(session, directory, sha256, as_json=as_json)
    context.adopt(Team(directory, environment=dict(os.environ)))
    if as_json:
        say_json({**_describe(directory), "adopted": was_foreign})
    else:
        say(f"the team {directory.path.name} {'is yours now' if was_foreign else 'was yours already'}")


def _require_yes(session: Session, directory: TeamDirectory, sha256: str | None, *, as_json: bool) -> None:
    """Show what a foreign team contains, and return if the user says yes to exactly that."""
    contents = _contents(directory)
    for line in contents if not as_json else ():
        say(line)
    shown: list[JsonValue] = [*contents]
    digest = payload_sha256({"contents": shown})
    seen = common.Shown(f"the team {directory.path.name}", digest, "look at what it contains", lambda: ())
    root, team = str(session.root), directory.path.name
    accept = f"crewboard {shlex.join(['--root', root, '--team', team, 'team', 'adopt'])}"
    common.require_yes(sha256, seen, accept, asks=not as_json)
    if _contents(directory) != contents:
        raise BadDataError(f"the team {team} changed while it was shown; look at it again")


def _contents(directory: TeamDirectory) -> list[str]:
    """Return what of a foreign team would act for its user. A database is not asked: any user may have named it."""
    if directory.address is not None:
        return [f"team {directory.path.name} in {directory.path}, with its records in {directory.address}"]
    config = roster.load(directory)
    lines = [f"team {config.name} in {directory.path}, plans approved by {config.plan_approver}"]
    usual = HireOptions().as_dict()
    for name in stop.all_agents(Team(directory)):
        try:
            spec = agents.spec(directory.agent(name))
        except BadDataError as error:
            lines.append(f"agent {name}: {error}")
            continue
        given = spec.flags.as_dict().items() if spec else ()
        options = ", ".join(f"{key}={value}" for key, value in given if usual.get(key) != value) or "no options"
        lines.append(f"agent {name}: {spec.type if spec else 'no spec'}, {options}")
    lines += [f"standing rule: {json.dumps(rule.as_dict())}" for rule in config.rules]
    pending = sum(request.status == "pending" for request in requests.load_all(directory))
    lines.append(f"budget {config.budget or 'none'}, {pending} pending requests")
    if config.server is not None:
        lines.append(f"server {config.server}: conversations of its agents go there")
    for name in ("prices.toml", "models.toml"):
        if (directory.path.parent / name).exists():
            lines.append(f"{name}: prices of its own, which budgets are reckoned with")
    return lines


@click.command()
@click.argument("name")
@click.option("--now", is_flag=True, help="Do not ask: end all workers and everything that they started.")
@click.option("--purge", is_flag=True, help="Delete the team's files as well.")
@as_json
@click.pass_obj
def delete(session: Session, name: str, now: bool, purge: bool, as_json: bool) -> None:
    """End all workers of the team NAME.

    All are asked at once; those still running after 10 s are ended with everything that they started. The files
    stay unless you use --purge.
    """
    directory = find_team(session.root, check_team(name))
    if directory is None:
        raise UsageError(f"there is no team {name!r} in {session.root}")
    directory.require_adopted()
    team = Team(directory)
    if purge:
        stop.require_purgeable(team)
    alive = _describe(directory)["alive"]
    if alive:
        note(f"ends {counted(alive, 'worker')} of the team {name}")
    names = stop.all_agents(team) if purge else []
    stop.delete(team, now=now, purge=purge)
    common.note_left_branches(team, names)
    if as_json:
        say_json({"name": name, "ended": alive, "purged": purge})
    elif purge:
        say(f"the team {name} and its files are gone")
    else:
        say(f"the workers of {name} have ended; its files stay in {directory.path} (--purge deletes them)")


_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("folder", metavar="DIR", type=_FOLDER)
@as_json
@click.pass_obj
def export(session: Session, folder: Path, as_json: bool) -> None:
    """Write all that is stored of the team into the new folder DIR.

    The files are the same, byte by byte, whether the team is kept in files or in PostgreSQL. They contain the mail and
    the conversations of the agents.
    """
    count = transfer.export(session.team, folder)
    _say_files("exported", folder, count, as_json=as_json)


@click.command("import")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@as_json
@click.pass_obj
def import_(session: Session, folder: Path, as_json: bool) -> None:
    """Replace all that is stored of a new team by what `export` wrote into DIR.

    The team must have no agents. Make it with `team create`, and name it with --team: it keeps that name. Runs that
    were under way end there.
    """
    count = transfer.import_(session.team, folder)
    _say_files("imported", folder, count, as_json=as_json)


def _say_files(done: str, folder: Path, count: int, *, as_json: bool) -> None:
    if as_json:
        say_json({"folder": str(folder), "files": count})
    else:
        say(f"{done} {counted(count, 'file')} {'to' if done == 'exported' else 'from'} {folder}")
