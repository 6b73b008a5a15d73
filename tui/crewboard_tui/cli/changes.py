"""The commands about the worktrees of agents: what changed, and how it comes into the user's branch."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import crewboard as core
from crewboard import BadDataError, CrewboardError, Team, UsageError
from crewboard_tui.cli import common
from crewboard_tui.cli.common import LazyGroup, Session, as_json, columns, cut, note, say, say_json, table
from crewboard_tui.render import describe_check, safe_line

if TYPE_CHECKING:
    from crewboard.commands.changes import Merge, PullRequest
    from crewboard.commands.undo import PutBack
    from crewboard.worktrees.changes import Changes, LastCheck

_LAST = "last"
"""The value of `--assignment` without an id (`commands.undo.LAST`)."""

_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R", "type": "T"}

_LONGEST_CHECK = 12
"""Columns for the command of a check in a table at most."""


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@click.option("--stat", is_flag=True, help="List the files of each agent.")
@click.option("--diff", is_flag=True, help="Print the changes as a patch for `git apply`, binary files included.")
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
        say_json([describe(each) for each in found])
    elif diff:
        for each in found:
            say(core.commands.changes.read_diff(team, each.agent, binary=True))
    elif not found:
        _note_none(name)
    elif stat or name is not None:
        for each in found:
            _say_files(each)
    else:
        _say_table(found)


def _say_table(found: "list[Changes]") -> None:
    for line in table(("AGENT", "CHANGES", "FILES", "BEHIND", "CHECK", "MERGES"), [_row(each) for each in found]):
        say(line)
    for each in found:
        _note_missing(each)


def _note_none(name: str | None) -> None:
    if name is not None:
        note(f"{name} has no checkout: it was discarded; `crewboard resume {name}` makes a new one")
    else:
        note("no agent has a worktree; `crewboard spawn NAME --worktree` gives one")


def _read(team: Team, name: str | None) -> "list[Changes]":
    """Return the changes of one agent or of all, as they are now. What cannot be read is as of the last snapshot."""
    if name is not None:
        core.commands.changes.require_worktree(team, name)
    with team.directory.store.glance():
        known = [name] if name is not None else team.config.names
        names = [each for each in known if core.commands.changes.worktree_of(team, each) is not None]
    if not team.directory.is_foreign():
        _recover(team)
    for each in names if not team.directory.is_foreign() else []:
        try:
            core.commands.changes.take_snapshot(team, each)
        except core.worktrees.repository.NoRepositoryError:
            # There is none for the other agents either.
            raise
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
    ran = each.check.checked if each.check is not None else None
    command = cut(ran.command, _LONGEST_CHECK) if ran is not None else ""
    check = describe_check(each.check, command) if each.check is not None else "–"
    return (each.agent, counts, str(len(each.files)), str(each.behind), check, _state(each))


def _state(each: "Changes") -> str:
    if not each.files:
        return "nothing to merge"
    if each.is_merged:
        return "merged here"
    failed = each.check is not None and each.check.state == "failed"
    merges = "cleanly" if each.applies else f"conflicts in {', '.join(each.conflicts)}"
    if each.applies and failed:
        # Beside a collision short, so that both are whole at 80 columns; the column CHECK says the rest.
        merges = "refused" if each.collides_with else "refused: its check failed"
    return f"{merges}; collides with {', '.join(each.collides_with)}" if each.collides_with else merges


def _say_files(each: "Changes") -> None:
    """List the files of one agent, what the changes are based on, and the state of its last check."""
    behind = f" · base {each.behind} behind" if each.behind else ""
    checked = f" · {safe_line(describe_check(each.check))}" if each.check is not None else ""
    say(cut(f"{each.agent} · +{each.added} -{each.removed} · merges: {_state(each)}{behind}{checked}", columns()))
    for file in each.files:
        lines = "binary" if file.added is None else f"+{file.added} -{file.removed}"
        name = f"{file.old_path} → {file.path}" if file.old_path else file.path
        name += f" → {file.target}" if file.target is not None else ""
        name += f" (mode {file.new_mode})" if file.new_mode is not None else ""
        say(f"  {_LETTERS[file.status]} {lines:>12}  {safe_line(name)}")
    _note_missing(each)


def _note_missing(each: "Changes") -> None:
    """Say what a snapshot could not take in."""
    for missing in each.missing:
        note(safe_line(f"{each.agent}: not taken in: {missing}"))


def describe(each: "Changes") -> dict[str, Any]:
    """Return the changes of one agent as JSON."""
    return {
        "agent": each.agent,
        "branch": each.branch,
        "base": each.base,
        "files": [
            {
                "path": file.path,
                "old_path": file.old_path,
                "status": file.status,
                "added": file.added,
                "removed": file.removed,
                "mode": file.mode,
                "old_mode": file.old_mode,
                "target": file.target,
            }
            for file in each.files
        ],
        "added": each.added,
        "removed": each.removed,
        "behind": each.behind,
        "applies": each.applies,
        "merged": each.is_merged,
        "conflicts": list(each.conflicts),
        "missing": list(each.missing),
        "collides_with": list(each.collides_with),
        "check": _describe_last(each.check) if each.check is not None else None,
    }


def _ask_to_resolve(team: Team, name: str, as_json: bool) -> None:
    sent = core.commands.changes.ask_to_resolve(team, name)
    if as_json:
        say_json(sent.as_dict())
    else:
        say(f"asked {name} to resolve its conflicts")
    common.revive(team.directory)
    if not core.commands.messages.is_listening(team, name):
        resume = core.commands.command_for(team, f"resume {name}")
        note(f"{name} is not running: the message is kept; `{resume}` resumes it")


def _describe_last(last: "LastCheck") -> dict[str, Any]:
    """Return the state of a check as JSON. While the first one runs, only the state is known."""
    unknown = dict.fromkeys(core.records.Checked.__struct_fields__)
    return {"state": last.state, **(last.checked.as_dict() if last.checked is not None else unknown)}


@click.command()
@common.agent_name
@click.option("--squash", "how", flag_value="squash", default=True, help="One commit (default).")
@click.option("--merge", "how", flag_value="merge", help="A merge commit, with the commits of the agent.")
@click.option("--rebase", "how", flag_value="rebase", help="The commits of the agent, one by one on the branch.")
@click.option("--pr", is_flag=True, help="Merge nothing here: push one commit, and open a pull request with gh.")
@click.option("--into", metavar="B", help="Branch to merge into; default: the one that is checked out.")
@click.option("--message", "-m", type=common.text, help="Message of the commit.")
@click.option("--now", is_flag=True, help="Take the last snapshot, also while the agent is at work.")
@click.option("--unchecked", is_flag=True, help="Merge it although its last check failed.")
@click.option("--resolve", is_flag=True, help="Merge nothing: ask the agent to resolve its conflicts with your branch.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@as_json
@click.pass_obj
def merge(
    session: Session,
    name: str,
    how: core.records.How,
    pr: bool,
    into: str | None,
    message: str | None,
    now: bool,
    unchecked: bool,
    resolve: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring the work of the agent NAME into your branch, committed or not.

    You are the author of the commit, the agent its co-author. Nothing is changed unless all of it merges cleanly:
    conflicts and files that you did not commit are named, and so is a check that failed (exit 65). Exits 75 while the
    agent is at work. `undo` takes it back.

    With --pr, the work is pushed to the remote of your branch as `crew/NAME`, with your settings and hooks of git, and
    gh opens a pull request. Where one is open, it gets the new commit.

    Example: crewboard merge fixer -m "paginate /orders"
    """
    if resolve:
        _ask_to_resolve(session.team, name, as_json)
        return
    if pr:
        if how != "squash" or dry_run:
            raise UsageError("--pr pushes one commit: use it without --merge, --rebase and --dry-run")
        with _resolve_hint(session.team, name, unchecked=unchecked):
            opened = core.commands.changes.open_pull_request(
                session.team, name, into=into, message=message, now=now, unchecked=unchecked
            )
        _tell_pull_request(name, opened, as_json)
        return
    with _resolve_hint(session.team, name, unchecked=unchecked):
        done = core.commands.changes.merge(
            session.team, name, how=how, into=into, message=message, now=now, dry_run=dry_run, unchecked=unchecked
        )
    if as_json:
        say_json({**_describe_merge(done.acceptance), "dry_run": dry_run} if done else None)
    elif done is None:
        say(f"nothing to merge: all of the work of {name} is there already")
    else:
        _say_merged(session.team, name, done, dry_run=dry_run)


def _say_merged(team: Team, name: str, done: "Merge", *, dry_run: bool) -> None:
    made, files = done.acceptance, len(done.changes.files)
    counts = f"+{done.changes.added} -{done.changes.removed} in {core.records.counted(files, 'file')}"
    say(safe_line(f"{'would merge' if dry_run else 'merged'} {name} into {_branch(made)}: {counts}"))
    if made.ref == "HEAD":
        note(core.commands.changes.DETACHED)
    for task in core.store.tasks.load_all(team.directory):
        if task.owner == name and task.in_review is not None:
            note(f"task {task.id} waits for the review of {task.review}: {safe_line(task.subject)}")
    if not dry_run:
        note(f"commit {made.result[:12]}; `{core.commands.command_for(team, 'undo')}` takes it back")


@contextlib.contextmanager
def _resolve_hint(team: Team, name: str, *, unchecked: bool) -> Iterator[None]:
    """Name the command that asks the agent to resolve conflicts, if a merge is refused because of them."""
    try:
        yield
    except BadDataError as error:
        for each in core.commands.changes.list_changes(team, [name]):
            failed = each.check is not None and each.check.state == "failed" and not unchecked
            if each.conflicts and not failed:
                ask = core.commands.command_for(team, f"merge {name} --resolve")
                raise BadDataError(f"{error}; `{ask}` asks {name} to resolve it") from error
        raise


def _tell_pull_request(name: str, made: "PullRequest | None", as_json: bool) -> None:
    if as_json:
        say_json(asdict(made) if made is not None else None)
    elif made is None:
        say(f"nothing to merge: all of the work of {name} is there already")
    else:
        say(safe_line(made.url or f"gh printed no address; pushed {made.branch} to {made.remote}"))
        note(safe_line(f"commit {made.commit[:12]} is {made.branch} of {made.remote}; nothing is merged here"))


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@click.option(
    "--assignment",
    metavar="[ID]",
    is_flag=False,
    flag_value=_LAST,
    help="Put back what NAME changed in this assignment; default: the last one.",
)
@click.option("--file", "path", metavar="PATH", help="Put back this file alone.")
@click.option("--hunk", metavar="N", type=click.IntRange(min=1), help="Put back this hunk of it alone, counted from 1.")
@click.option("--snapshot", metavar="COMMIT", help="Make the checkout of NAME as it was in this snapshot of it.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@as_json
@click.pass_obj
def undo(session: Session, /, name: str | None, dry_run: bool, as_json: bool, **chosen: Any) -> None:
    """Take the last merge back, the last one of the agent NAME, or what NAME changed.

    If nothing came after a merge, the branch is reset to where it was, else a commit reverts it. The work stays with
    the agent and can be merged again.

    With --assignment, --file or --snapshot, files in the checkout of NAME are put back. --file without --assignment
    means all that `changes NAME` shows of it, and --hunk counts the hunks of `changes NAME --diff`. The agent's commits
    stay. A snapshot is taken first; undo --snapshot brings it back.

    If NAME has no worktree, this puts back what its file tools changed in its last assignment; the next call puts back
    the one before. What commands changed stays.

    If something cannot be put back, because it was changed later, it is named, and nothing is changed (exit 65). Exits
    75 while the agent is at work.

    Examples: crewboard undo fixer --assignment; crewboard undo fixer --file api.py --hunk 2
    """  # fmt: skip
    team = session.team
    if name is not None and core.commands.changes.works_in_shared_tree(team, name):
        _say_put_back(team, _undo_shared(team, name, dry_run=dry_run, **chosen), dry_run=dry_run, as_json=as_json)
        return
    if any(value is not None for value in chosen.values()):
        _say_put_back(team, _undo_checkout(team, name, dry_run=dry_run, **chosen), dry_run=dry_run, as_json=as_json)
        return
    undone = core.commands.changes.undo(team, name, dry_run=dry_run)
    if as_json:
        say_json({**_describe_merge(undone), "dry_run": dry_run})
    else:
        how = "reset to" if undone.undone == undone.before else "reverted by"
        what = "would take back" if dry_run else "took back"
        say(safe_line(f"{what} the merge of {undone.agent}: {_branch(undone)} {how} {(undone.undone or '')[:12]}"))


def _undo_shared(
    team: Team, name: str, *, assignment: str | None, path: str | None, hunk: int | None, snapshot: str | None,
    dry_run: bool,
) -> "PutBack":  # fmt: skip
    if hunk is not None or snapshot is not None:
        raise UsageError(f"--hunk and --snapshot need an agent with a worktree; {name} works in the shared tree")
    return core.commands.undo.undo_file_tools(team, name, assignment=assignment, path=path, dry_run=dry_run)


def _undo_checkout(
    team: Team, name: str | None, *, assignment: str | None, path: str | None, hunk: int | None, snapshot: str | None,
    dry_run: bool,
) -> "PutBack":  # fmt: skip
    if name is None:
        raise UsageError("say whose files to put back: crewboard undo NAME")
    if hunk is not None and path is None:
        raise UsageError("--hunk needs --file, which has the hunk")
    if snapshot is not None and (assignment is not None or path is not None):
        raise UsageError("--snapshot puts the whole checkout back; use it without --assignment and --file")
    return core.commands.undo.undo_in_checkout(
        team, name, assignment=assignment, path=path, hunk=hunk, commit=snapshot, dry_run=dry_run
    )


def _say_put_back(team: Team, done: "PutBack", *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        files = [{"path": each.path, "removed": each.removed} for each in done.files]
        say_json({
            "agent": done.agent, "assignment": done.assignment, "files": files, "snapshot": done.snapshot,
            "dry_run": dry_run,
        })  # fmt: skip
        return
    put_back, removed = ("would put back", "would remove") if dry_run else ("put back", "removed")
    for each in done.files:
        say(safe_line(f"{removed if each.removed else put_back} {each.path}"))
    if done.snapshot is None:
        note("what its commands changed stays; git can undo that")
    elif not dry_run:
        again = core.commands.command_for(team, f"undo {done.agent} --snapshot {done.snapshot[:12]}")
        note(f"`{again}` brings it back")


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
    core.commands.changes.require_discardable(team, name)
    if not yes:
        _confirm_discard(team, name)
    had_work = core.commands.changes.has_work(team, name)
    last = core.commands.changes.discard(team, name)
    if as_json:
        say_json({"agent": name, "commit": last})
    elif not had_work:
        say(f"{name} has no work to throw away: it has no checkout")
    else:
        say(f"the work of {name} is thrown away")
        if last:
            note(f"git keeps it for some weeks: `git branch NEW {last[:12]}` brings it back")
    common.note_left_branches(team, [name])


def _confirm_discard(team: Team, name: str) -> None:
    try:
        left = core.commands.changes.unmerged(team, name)
    except CrewboardError as error:
        what = safe_line(f"it is unknown whether {name} has unmerged work: {error}")
    else:
        if left is None:
            return
        files = core.records.counted(len(left.files), "file")
        what = f"{name} has unmerged work in {files} (+{left.added} -{left.removed})"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}; use --yes to throw it away")
    note(what)
    if click.prompt("Type the agent's name to throw it away", default="", show_default=False) != name:
        raise click.Abort


@click.group(
    cls=LazyGroup,
    sections={
        "Commands": {
            "list": ("changes:list_", "List the worktrees of agents, and what is left of removed ones."),
            "prune": ("changes:prune", "Remove what is left of removed agents whose work is merged or gone."),
        }
    },
)
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
    """Remove what is left of removed agents whose work is merged or gone.

    These are checkouts and refs; gone is work that was thrown away.
    """
    gone, kept = core.commands.changes.prune(session.team)
    if as_json:
        say_json({"pruned": gone, "kept": kept})
        return
    say(f"pruned: {', '.join(gone) or 'nothing'}")
    common.note_left_branches(session.team, gone)
    for name in kept:
        drop = core.commands.command_for(session.team, f"discard {name} --yes")
        note(f"{name} has unmerged work; `{drop}` throws it away")
