"""The commands about the worktrees of agents: what changed, and how it comes into the user's branch."""

import sys
from typing import TYPE_CHECKING, Any

import click

import crewboard as core
from crewboard import CrewboardError, Task, Team, UsageError
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, columns, cut, note, say, say_json, table
from crewboard_tui.render import describe_checked, safe_line

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

    Without NAME, one line for each agent; with NAME, the files of that agent. Takes a snapshot of each checkout first,
    and finishes or takes back a merge that was interrupted.

    Example: crewboard changes fixer --diff
    """
    if [stat, diff, as_json].count(True) > 1:
        raise UsageError("use one of --stat, --diff and --json")
    team = session.team
    found = _read(team, name)
    if as_json:
        say_json([describe(each, core.commands.tasks.last_checked(team, each.agent)) for each in found])
    elif diff:
        for each in found:
            say(core.commands.changes.read_diff(team, each.agent))
    elif stat or name is not None:
        for each in found:
            _say_files(each, core.commands.tasks.last_checked(team, each.agent))
    elif found:
        for line in table(("AGENT", "CHANGES", "FILES", "BEHIND", "MERGES"), [_row(each) for each in found]):
            say(line)
    else:
        note("no agent has a worktree; `crewboard spawn NAME --worktree` gives one")


def _read(team: Team, name: str | None) -> "list[Changes]":
    """Return the changes of one agent or of all, as they are now. What cannot be read is as of the last snapshot."""
    if name is not None:
        core.commands.changes.require_worktree(team, name)
    names = [name] if name is not None else team.config.names
    if not team.directory.is_foreign():
        _recover(team)
    for each in names if not team.directory.is_foreign() else []:
        try:
            core.commands.changes.take_snapshot(team, each)
        except CrewboardError as error:
            note(f"{each} as of its last snapshot: {error}")
    return core.commands.changes.list_changes(team, names)


def _recover(team: Team) -> None:
    try:
        if core.commands.changes.recover(team):
            note("a merge or undo was interrupted; it is finished or taken back now")
    except CrewboardError as error:
        note(f"a merge or undo is under way or was interrupted: {error}")


def _row(each: "Changes") -> tuple[str, ...]:
    counts = f"+{each.added} -{each.removed}"
    return (each.agent, counts, str(len(each.files)), str(each.behind), _state(each))


def _state(each: "Changes") -> str:
    if not each.files:
        return "nothing to merge"
    merges = "cleanly" if each.applies else f"conflicts in {', '.join(each.conflicts)}"
    return f"{merges}; collides with {', '.join(each.collides_with)}" if each.collides_with else merges


def _say_files(each: "Changes", task: Task | None) -> None:
    """List the files of one agent, what the changes are based on, and how the check of its `task` ended last."""
    behind = f" · base {each.behind} behind" if each.behind else ""
    checked = f" · {safe_line(describe_checked(task))}" if task is not None else ""
    say(cut(f"{each.agent} · +{each.added} -{each.removed} · merges: {_state(each)}{behind}{checked}", columns()))
    for file in each.files:
        lines = "binary" if file.added is None else f"+{file.added} -{file.removed}"
        name = f"{file.old_path} → {file.path}" if file.old_path else file.path
        say(f"  {_LETTERS[file.status]} {lines:>12}  {safe_line(name)}")
    for missing in each.missing:
        note(safe_line(f"{each.agent}: not taken in: {missing}"))


def describe(each: "Changes", task: Task | None) -> dict[str, Any]:
    """Return the changes of one agent as JSON, with the last run of a check of its `task`."""
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
        "collides_with": list(each.collides_with),
        "check": task.checked.model_dump() if task is not None and task.checked is not None else None,
    }


@click.command()
@common.agent_name
@click.option("--squash", "how", flag_value="squash", default=True, help="One commit (default).")
@click.option("--merge", "how", flag_value="merge", help="A merge commit, with the commits of the agent.")
@click.option("--rebase", "how", flag_value="rebase", help="The commits of the agent, one by one on the branch.")
@click.option("--into", metavar="B", help="Branch to merge into; default: the one that is checked out.")
@click.option("--message", "-m", type=common.text, help="Message of the commit.")
@click.option("--now", is_flag=True, help="Take the last snapshot, also while the agent is at work.")
@click.option("--unchecked", is_flag=True, help="Merge it although the check of its task failed.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@as_json
@click.pass_obj
def merge(
    session: Session,
    name: str,
    how: core.records.How,
    into: str | None,
    message: str | None,
    now: bool,
    unchecked: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring the work of the agent NAME into your branch, committed or not.

    You are the author of the commit, the agent its co-author. Nothing is changed unless everything applies: conflicts
    and files that you did not commit are named, and so is a check that failed (exit 65). Exits 75 while the agent is at
    work. `undo` takes it back.

    Example: crewboard merge fixer -m "paginate /orders"
    """
    done = core.commands.changes.merge(
        session.team, name, how=how, into=into, message=message, now=now, dry_run=dry_run, unchecked=unchecked
    )
    if as_json:
        say_json({**_describe_merge(done.acceptance), "dry_run": dry_run} if done else None)
    elif done is None:
        say(f"nothing to merge: all of the work of {name} is there already")
    else:
        made, files = done.acceptance, len(done.changes.files)
        counts = f"+{done.changes.added} -{done.changes.removed} in {files} file{'' if files == 1 else 's'}"
        say(safe_line(f"{'would merge' if dry_run else 'merged'} {name} into {_branch(made)}: {counts}"))
        if not dry_run:
            note(f"commit {made.result[:12]}; `{core.commands.command_for(session.team, 'undo')}` takes it back")


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@as_json
@click.pass_obj
def undo(session: Session, name: str | None, as_json: bool) -> None:
    """Take the last merge back, or the last one of the agent NAME.

    If nothing came after it, the branch is reset to where it was, else a commit reverts it. The work stays with the
    agent and can be merged again.
    """
    undone = core.commands.changes.undo(session.team, name)
    if as_json:
        say_json(_describe_merge(undone))
    else:
        how = "reset to" if undone.undone == undone.before else "reverted by"
        say(safe_line(f"took back the merge of {undone.agent}: {_branch(undone)} {how} {(undone.undone or '')[:12]}"))


def _branch(made: core.records.Acceptance) -> str:
    return made.ref.removeprefix("refs/heads/")


def _describe_merge(made: core.records.Acceptance) -> dict[str, Any]:
    return {
        "agent": made.agent,
        "how": made.how,
        "branch": None if made.ref == "HEAD" else _branch(made),
        "before": made.before,
        "commit": made.result,
        "undone": made.undone,
    }


@click.command()
@common.agent_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def discard(session: Session, name: str, yes: bool, as_json: bool) -> None:
    """Throw away the worktree of the agent NAME, with all work that is not merged.

    The agent must not be running. Without --yes, you type its name if work is unmerged.
    """
    team = session.team
    if not yes:
        _confirm_discard(team, name)
    last = core.commands.changes.discard(team, name)
    if as_json:
        say_json({"agent": name, "commit": last})
    else:
        say(f"the work of {name} is thrown away")
        if last:
            note(f"git keeps it for some weeks: `git branch NEW {last[:12]}` brings it back")


def _confirm_discard(team: Team, name: str) -> None:
    try:
        left = core.commands.changes.unmerged(team, name)
    except CrewboardError as error:
        what = safe_line(f"it is unknown whether {name} has unmerged work: {error}")
    else:
        if left is None:
            return
        files = f"{len(left.files)} file{'' if len(left.files) == 1 else 's'}"
        what = f"{name} has unmerged work in {files} (+{left.added} -{left.removed})"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}; use --yes to throw it away")
    note(what)
    if click.prompt("Type the agent's name to throw it away", default="", show_default=False) != name:
        raise click.Abort


@click.group(cls=LazyGroup, sections={"Commands": {"list": "changes:list_", "prune": "changes:prune"}})
def worktree() -> None:
    """List the worktrees of agents, or remove what is left of removed agents."""


@click.command("list")
@as_json
@click.pass_obj
def list_(session: Session, as_json: bool) -> None:
    """List the worktrees of agents, and what is left of removed ones."""
    found = core.commands.changes.list_worktrees(session.team)
    if as_json:
        say_json([
            {
                "name": each.name,
                "path": each.path if each.exists else None,
                "branch": each.branch,
                "removed": each.removed,
                "merged": each.changes is None,
            }
            for each in found
        ])  # fmt: skip
        return
    if not found:
        note("no agent has a worktree; `crewboard spawn NAME --worktree` gives one")
        return
    rows = [
        (
            each.name + (" (removed)" if each.removed else ""),
            f"+{each.changes.added} -{each.changes.removed}" if each.changes else "none",
            each.path if each.exists else "no checkout",
        )
        for each in found
    ]
    for line in table(("AGENT", "UNMERGED", "CHECKOUT"), rows):
        say(line)


@click.command()
@as_json
@click.pass_obj
def prune(session: Session, as_json: bool) -> None:
    """Remove the checkouts and refs of removed agents whose work is merged or thrown away."""
    gone, kept = core.commands.changes.prune(session.team)
    if as_json:
        say_json({"pruned": gone, "kept": kept})
        return
    say(f"pruned: {', '.join(gone) or 'nothing'}")
    for name in kept:
        note(f"{name} has unmerged work; `{core.commands.command_for(session.team, f'discard {name}')}` throws it away")
