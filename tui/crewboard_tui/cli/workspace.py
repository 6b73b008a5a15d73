"""The commands about the files of a team with hosts: what agents begin with, and what they did."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from crewboard import UsageError
from crewboard.commands import workspace as commands_workspace
from crewboard.records.team import Workspace
from crewboard.store import roster
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, note, say, say_json
from crewboard_tui.render.formats import format_moment
from crewboard_tui.render.sanitize import safe_line

if TYPE_CHECKING:
    from crewboard.commands.workspace import Fetched


@click.group(
    cls=LazyGroup,
    sections={"Commands": {"push": ("workspace:push", "Put HEAD and your uncommitted files into the team's store.")}},
    invoke_without_command=True,
)
@as_json
@click.pass_context
def workspace(context: click.Context, as_json: bool) -> None:
    """Show what agents on hosts begin with, or push it."""
    if context.invoked_subcommand is not None:
        return
    session: Session = context.obj
    found = commands_workspace.pushed(session.team)
    if as_json:
        say_json(_describe(found) if found is not None else None)
    elif found is None:
        note("no workspace was pushed: agents on hosts work in the roots of these; `crewboard workspace push`")
    else:
        _say(found)
        if stale := commands_workspace.describe_unpushed(session.team, found):
            note(stale)


@click.command()
@click.option("--git", "url", metavar="URL", help="Let hosts fetch what is committed from this remote.")
@click.option("--force", is_flag=True, help="Push although the history is not that of the last push.")
@as_json
@click.pass_obj
def push(session: Session, url: str | None, force: bool, as_json: bool) -> None:
    """Put HEAD and your uncommitted files into the team's store.

    New agents on hosts begin with them. Files that git ignores are left out. Nothing in your working tree, index or
    branches changes. Push again after a merge; agents that have begun keep their beginning.

    With more than 256 MiB, use --git: hosts then fetch the commits from a remote with their own credentials, and the
    store has your uncommitted files alone.

    A repository that shares no history with what was pushed before is refused without --force.
    """
    made = commands_workspace.push(session.team, url, force=force)
    if as_json:
        say_json(_describe(made))
    else:
        _say(made)


def _describe(found: Workspace) -> dict[str, Any]:
    return {
        "commit": found.commit, "head": found.head, "branch": found.branch or None, "url": found.url or None,
        "size": sum(each.size for each in found.bundles), "by": found.by, "at": found.at,
    }  # fmt: skip


def _say(found: Workspace) -> None:
    size = roster.format_size(sum(each.size for each in found.bundles))
    # A number alone is bytes.
    size += " bytes" if size.isdecimal() else ""
    uncommitted = " and uncommitted files" if found.commit != found.head else ""
    branch = f" ({found.branch})" if found.branch else ""
    say(safe_line(f"agents on hosts begin with {found.head[:12]}{branch}{uncommitted}"))
    source = f", history from {found.url}" if found.url else ""
    say(safe_line(f"pushed {format_moment(found.at, time.time())} by {found.by or 'you'}, {size} in the store{source}"))


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@click.option("--all", "everyone", is_flag=True, help="Fetch the work of every agent.")
@as_json
@click.pass_obj
def fetch(session: Session, name: str | None, everyone: bool, as_json: bool) -> None:
    """Bring the work of the agent NAME from its host into your repository.

    Its newest snapshot is the branch crewboard/NAME then. Your working tree is not changed. `changes` and `merge` fetch
    by themselves.

    Example: crewboard fetch fixer
    """
    if (name is None) != everyone:
        raise UsageError("name an agent, or use --all")
    team = session.team
    one = commands_workspace.fetch(team, name) if name is not None else None
    found = commands_workspace.fetch_all(team) if name is None else [one] if one is not None else []
    if as_json:
        say_json([asdict(each) for each in found])
        return
    for each in found:
        _say_fetched(each)
    if not found:
        note(f"{name} has no work yet" if name is not None else "no agent on a host has work yet")


def _say_fetched(each: "Fetched") -> None:
    what = "" if each.new else ", as before"
    say(
        safe_line(
            f"{each.agent}: {each.branch} is at {each.commit[:12]}, of {format_moment(each.at, time.time())}{what}"
        )
    )
    if each.note:
        note(safe_line(f"{each.agent}: {each.note}"))
    for missing in each.missing:
        note(safe_line(f"{each.agent}: not taken in: {missing}"))
