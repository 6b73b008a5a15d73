"""The commands about the worktrees of agents: what changed, and how it comes into the user's branch."""

from typing import TYPE_CHECKING, Any

import click

import crewboard as core
from crewboard import UsageError
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, columns, cut, note, say, say_json, table
from crewboard_tui.render import safe_line

if TYPE_CHECKING:
    from crewboard.worktrees.changes import Changes

_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R", "type": "T"}


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@click.option("--stat", is_flag=True, help="List the files of each agent.")
@click.option("--diff", is_flag=True, help="Print the changes as a unified diff.")
@as_json
@click.pass_obj
def changes(session: Session, name: str | None, stat: bool, diff: bool, as_json: bool) -> None:
    """Show what agents with a worktree changed, committed or not.

    Without NAME, one line for each agent; with NAME, the files of that agent. Nothing is changed.

    Example: crewboard changes fixer --diff
    """
    if [stat, diff, as_json].count(True) > 1:
        raise UsageError("use one of --stat, --diff and --json")
    team = session.team
    if name is not None:
        core.commands.changes.require_worktree(team, name)
    found = core.commands.changes.list_changes(team, [name] if name is not None else None)
    if as_json:
        say_json([describe(each) for each in found])
    elif diff:
        for each in found:
            say(core.commands.changes.read_diff(team, each.agent))
    elif stat or name is not None:
        for each in found:
            _say_files(each)
    elif found:
        for line in table(("AGENT", "CHANGES", "FILES", "BEHIND", "MERGES"), [_row(each) for each in found]):
            say(line)
    else:
        note("no agent has a worktree; `crewboard spawn NAME --worktree` gives one")


def _row(each: "Changes") -> tuple[str, ...]:
    counts = f"+{each.added} -{each.removed}"
    return (each.agent, counts, str(len(each.files)), str(each.behind), _state(each))


def _state(each: "Changes") -> str:
    if not each.files:
        return "nothing to merge"
    return "cleanly" if each.applies else f"conflicts in {', '.join(each.conflicts)}"


def _say_files(each: "Changes") -> None:
    """List the files of one agent, and what the changes are based on."""
    behind = f" · base {each.behind} behind" if each.behind else ""
    say(cut(f"{each.agent} · +{each.added} -{each.removed} · merges: {_state(each)}{behind}", columns()))
    for file in each.files:
        lines = "binary" if file.added is None else f"+{file.added} -{file.removed}"
        name = f"{file.old_path} → {file.path}" if file.old_path else file.path
        say(f"  {_LETTERS[file.status]} {lines:>12}  {safe_line(name)}")
    for missing in each.missing:
        note(safe_line(f"{each.agent}: not taken in: {missing}"))


def describe(each: "Changes") -> dict[str, Any]:
    """Return the changes of one agent as JSON."""
    return {
        "agent": each.agent,
        "branch": each.branch,
        "base": each.base,
        "files": [
            {"path": file.path, "status": file.status, "added": file.added, "removed": file.removed}
            for file in each.files
        ],
        "added": each.added,
        "removed": each.removed,
        "behind": each.behind,
        "applies": each.applies,
        "collides_with": [],
        "check": None,
    }
