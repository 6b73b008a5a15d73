"""The commands `attach` and `hook`: teams of Claude Code on the board, and the gate of their plans."""

import sys
import time
from pathlib import Path

import click

from crewboard import Team, TryLaterError, UsageError, read_team
from crewboard.attach import delivery, formats, hooks, install, places
from crewboard.attach import teams as attach_teams
from crewboard.attach.mirror import MirrorThread
from crewboard.commands.context import CommandLine
from crewboard.readmodel.team import describe_runner
from crewboard.store import leases, roster
from crewboard.store.layout import team_directories
from crewboard_tui.cli.common import Session, note, one_of, say, table

POLL = 0.5
"""Seconds between two checks whether a mirrored team has ended."""


@click.command()
@click.argument("team", required=False)
@click.option("--install", is_flag=True, help="Have Claude Code ask you about plans and permissions.")
@click.option("--uninstall", is_flag=True, help="Remove exactly these hooks again.")
@click.option("--print", is_flag=True, help="Print the hooks, to put them into settings yourself.")
@click.option(
    "--allow-letters/--no-letters", "letters", default=None, help="Let `send` and `stop` write to its agents, or not."
)
@click.pass_obj
def attach(session: Session, /, team: str | None, letters: bool | None, **actions: bool) -> None:
    """Mirror the Claude Code team TEAM into a team here, until Ctrl-C or its end.

    Without TEAM, attach to the only team of the workspace, or list what there is. Every view and command then shows
    the team; the dashboard keeps it up to date by itself. Only what is Claude Code's own to do is refused.

    The hooks let your answers decide about plans. They are for the project only, in its .claude/settings.local.json.
    Sessions read it when they start.
    """
    action = one_of(actions)
    if action is None:
        follow(session, choose(session, team), letters)
    elif action == "print":
        say(install.as_text(install.snippet()).rstrip("\n"))
    else:
        change_hooks(project_of(session), action)


def choose(session: Session, name: str | None) -> attach_teams.FoundTeam:
    """Return the team called `name`, else the only one that works in the workspace; else list all, and exit.

    Raises:
        UsageError: There is no team of that name.
        TryLaterError: There is no team at all.
    """
    config = places.config_dir()
    found = attach_teams.find_teams(config)
    if name is not None:
        named = [each for each in found if name in (each.name, each.directory_name)]
        if not named:
            known = ", ".join(each.name for each in found) or "none"
            raise UsageError(f"Claude Code has no team {name!r} in {config} (teams: {known})")
        return named[0]
    teams = attach_teams.find_teams_below(session.root)
    if len(teams) == 1:
        return teams[0]
    shown = [each for each in found if len(each.roster.members) > 1] or teams
    if not shown:
        raise TryLaterError(f"Claude Code runs no team in {config} yet; start one, then try again")
    rows = [
        (each.name, str(len(each.roster.members)), "yes" if each.alive else "no", each.cwd or "?") for each in shown
    ]
    say(*table(("TEAM", "MEMBERS", "ALIVE", "FOLDER"), rows))
    raise click.exceptions.Exit(0)


def is_inside(folder: str, root: Path) -> bool:
    """Return True if a folder is the workspace or lies in it."""
    return bool(folder) and Path(folder).resolve().is_relative_to(root)


def follow(session: Session, found: attach_teams.FoundTeam, letters: bool | None) -> None:
    """Mirror a team in the foreground until it ends.

    `letters` allows or forbids to write to its agents; None: as before.
    """
    elsewhere = session.root_option is None and not is_inside(found.cwd, session.root)
    root = Path(found.cwd) if elsewhere and Path(found.cwd).is_dir() else session.root
    directory = attach_teams.attach(root, found, time.time())
    if letters is not None:
        delivery.allow(directory, letters=letters)
    thread = MirrorThread(directory, on_error=note)
    thread.refresh()
    typed = CommandLine.of(Team(directory))
    say(f"attached to {found.name} as {directory.path.name}: `{typed()}` opens the board, Ctrl-C ends the mirror")
    view = read_team(directory)
    note(describe_runner(view))
    if view.attached is not None and not view.attached.tested:
        oldest, *_, newest = formats.TESTED
        note(f"warning: this version is outside of those tested, {oldest} to {newest}; something may be missing")
    if not thread.mirror.is_active and leases.is_held(directory.mirror_lock):
        note("another process mirrors it; this one takes over when that ends")
    thread.start()
    while not thread.mirror.has_ended:
        time.sleep(POLL)
    thread.stop()
    say(f"{found.name} has ended; its history stays in {directory.path}")


def project_of(session: Session) -> Path:
    """Return the folder in which the sessions of the workspace's attached team start; the root if there is none."""
    # A team that came with a repository must not name another project.
    for team in (each for each in team_directories(session.root) if not each.is_foreign()):
        attached = roster.load(team).attached if roster.is_attached(team) else None
        if attached is not None and attached.cwd and session.team_option in (None, team.path.name, attached.team):
            return Path(attached.cwd)
    return session.root


def change_hooks(project: Path, action: str) -> None:
    """Add or remove the hooks of a project (`action` is `install` or `uninstall`); print who approves plans then."""
    path = project / install.SETTINGS
    if action == "install":
        changed = install.install(project)
        say(f"the hooks {'are now' if changed else 'were already'} in {path}")
        note("they hold for sessions that start from now on; plans: you approve")
        note(f"{install.SETTINGS} names a path of this machine: do not commit it")
    else:
        changed = install.uninstall(project)
        say(f"the hooks {'are gone from' if changed else 'were not in'} {path}")
        note("plans: Claude Code approves by itself")


@click.command()
def hook() -> None:
    """Answer one event of Claude Code. `attach --install` has it run this; you need not.

    Reads the event from stdin. Without an attached team of the session it does nothing, at once.
    """
    sys.exit(hooks.main())
