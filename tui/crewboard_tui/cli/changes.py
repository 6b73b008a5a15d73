"""The commands about the work of agents in worktrees: show, merge, undo, discard, and list what is left."""

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from crewboard import BadDataError, CrewboardError, Team, UsageError, redaction
from crewboard.commands import changes as commands_changes
from crewboard.commands import put_back as commands_put_back
from crewboard.commands.context import command_for
from crewboard.executed_files import diff_as_run
from crewboard.records.base import counted, pick
from crewboard.records.team import Acceptance, Checked, How
from crewboard.store import roster, tasks
from crewboard.untrusted import as_run
from crewboard.worktrees import repository
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, columns, cut, note, say, say_json, table
from crewboard_tui.render.looks import describe_check
from crewboard_tui.render.sanitize import is_revealing, revealing, safe_line

if TYPE_CHECKING:
    from crewboard.commands.changes import Merge
    from crewboard.commands.put_back import PutBack
    from crewboard.worktrees.changes import Changes, KeyLine

_LAST = "last"
"""The value of `--assignment` without an id (`commands.put_back.LAST`)."""

_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R", "type": "T"}

_LONGEST_CHECK = 12
"""The most columns for the command of a check in a table."""


@click.command()
@click.argument("name", required=False, shell_complete=common.complete_agent)
@click.option("--stat", is_flag=True, help="List the files of each agent.")
@click.option("--diff", is_flag=True, help="Print the changes as a patch for `git apply`, binary files included.")
@click.option("--reveal", is_flag=True, help="Show the keys in the diff, too.")
@as_json
def changes(session: Session, name: str | None, stat: bool, diff: bool, reveal: bool) -> None:
    """Show what agents with a worktree changed, committed or not.

    Without NAME, one line for each agent; with NAME, the files of that agent. Takes a snapshot of each checkout first,
    and finishes or takes back a merge that was interrupted.

    On a terminal, --diff shows control characters as marks; into a file or a pipe it writes the patch as it is. stderr
    names the command that merges exactly what is shown. Where --diff hides what looks like a key, stderr says so, and
    `git apply` refuses the patch as a whole; with --reveal it applies.

    Example: crewboard changes fixer --diff
    """
    if [stat, diff, session.as_json].count(True) > 1:
        raise UsageError("use one of --stat, --diff and --json")
    if reveal and not diff:
        raise UsageError("--reveal is for --diff")
    team = session.team
    found = _read(team, name)
    if session.as_json:
        say_json([describe(each) for each in found])
    elif diff:
        patches = [commands_changes.read_diff(team, each, binary=True) for each in found]
        with revealing(wanted=reveal):
            _say_patches(patches, command_for(team, f"changes {name or ''}".rstrip() + " --diff --reveal"))
            _note_what_runs(found)
            for each in found:
                _note_review(each)
                if each.files and not each.is_merged:
                    _note_yes(_shown(team, each), command_for(team, f"merge {each.agent}"))
    elif not found:
        gone = f"{name} has no checkout: it was discarded, or not imported; `crewboard resume {name}` makes a new one"
        note(gone if name is not None else _no_worktree(team))
    elif stat or name is not None:
        for each in found:
            _say_files(each)
    else:
        rows = []
        for each in found:
            ran = each.check.checked if each.check is not None else None
            command = cut(as_run(ran.command), _LONGEST_CHECK) if ran is not None else ""
            check = describe_check(each.check, command) if each.check is not None else "–"
            counts = f"+{each.added} -{each.removed}"
            rows.append((each.agent, counts, str(len(each.files)), str(each.behind), check, _state(each)))
        say(*table(("AGENT", "CHANGES", "FILES", "BEHIND", "CHECK", "MERGES"), rows))
        for each in found:
            _note_review(each)
            _note_missing(each)


_REFUSED = """\
--- {} hidden here because it looks like a key
+++ this is no patch for `git apply`; --reveal prints one
@@ -1 +1 @@"""
"""The head of a patch that must not be applied: a hunk without lines. git and patch(1) refuse it before they write."""


def _say_patches(patches: list[str], reveals: str) -> None:
    """Print diffs as one patch.

    If secrets are hidden in it, make the patch unusable; the command `reveals` shows them.
    """
    hiding = sum(len(redaction.hidden_lines(each)) for each in patches) if not is_revealing() else 0
    if hiding:
        say(_REFUSED.format(f"{counted(hiding, 'line')} {'is' if hiding == 1 else 'are'}"))
    if not any(patches):
        note("no changes")
    for each in filter(None, patches):
        # On a terminal with marks for control characters, else byte by byte, as `git apply` needs it.
        if sys.stdout.isatty():
            say(diff_as_run(each))
        else:
            common.put(os.fsencode(each if is_revealing() else redaction.redact(each)))
    if hiding:
        hold = commands_changes.count_with_key(hiding)
        note(f"{hold}, which is hidden: `git apply` refuses this patch; `{reveals}` shows it")


def _shown(team: Team, work: "Changes", where: str = "", question: str = "") -> common.Shown:
    """Return the work of an agent as the thing that a yes is bound to.

    `where` is added to how to look at it, `question` is asked on a terminal.
    """
    look = f"look at it with `{command_for(team, f'changes {work.agent} --diff')}`{where}"

    def lines() -> Iterator[str]:
        yield common.quoted(diff_as_run(commands_changes.read_diff(team, work)))
        yield f"{work.agent}: +{work.added} -{work.removed} in {counted(len(work.files), 'file')}"
        if work.review is not None:
            yield safe_line(f"{work.agent}: {commands_changes.describe_review(work.review)}")

    return common.Shown(f"the work of {work.agent}", work.sha256, look, lines, question)


def _note_yes(seen: common.Shown, merges: str) -> None:
    """Name the command that merges exactly the work that was shown, or shows it first if secrets are hidden in it."""
    is_shown = is_revealing() or not seen.hides
    note(f"`{seen.yes(merges)}` {'merges exactly this' if is_shown else 'shows it first, then merges it'}")


def _no_worktree(team: Team) -> str:
    if roster.is_attached(team.directory):
        return "Claude Code keeps the checkouts of its agents itself: use git to see what they changed"
    with team.directory.store.glance():
        without = [name for name in team.config.names if commands_changes.worktree_of(team, name) is not None]
    if without:
        return f"no checkout is here of {', '.join(without)}: each was discarded, or not imported with the team"
    return "no agent has a worktree; `crewboard spawn NAME --worktree` gives one"


def _read(team: Team, name: str | None) -> "list[Changes]":
    """Return the changes of one agent or of all, as they are now. If a snapshot fails, they are as of the last one."""
    if name is not None:
        commands_changes.require_worktree(team, name)
    with team.directory.store.glance():
        known = [name] if name is not None else team.config.names
        names = [each for each in known if commands_changes.worktree_of(team, each) is not None]
    if not team.directory.is_foreign():
        recover(team)
    for each in names if not team.directory.is_foreign() else []:
        try:
            commands_changes.take_snapshot(team, each)
        except repository.NoRepositoryError:
            # There is none for the other agents either.
            raise
        except CrewboardError as error:
            note(f"{each} as of its last snapshot: {error}")
    return commands_changes.list_changes(team, names)


def recover(team: Team) -> None:
    """Finish or take back a merge or undo whose process was killed, and say so."""
    try:
        if commands_changes.recover(team):
            note("a merge or undo was interrupted; it is finished or taken back now")
    except CrewboardError as error:
        note(f"a merge or undo is under way or was interrupted: {error}")


def _state(each: "Changes") -> str:
    if not each.files:
        return "nothing to merge"
    if each.is_merged:
        return "merged here"
    failed = each.check is not None and each.check.state == "failed"
    merges = "cleanly" if each.applies else f"conflicts in {as_run(', '.join(each.conflicts))}"
    if each.applies and failed:
        # Beside a collision short, so that both are whole at 80 columns; the column CHECK says the rest.
        merges = "refused" if each.collides_with else "refused: its check failed"
    return f"{merges}; collides with {', '.join(each.collides_with)}" if each.collides_with else merges


def _say_files(each: "Changes") -> None:
    """Print the files of one agent's work, how far its base is behind, and the state of its last check."""
    behind = f" · base {each.behind} behind" if each.behind else ""
    checked = f" · {safe_line(describe_check(each.check))}" if each.check is not None else ""
    say(cut(f"{each.agent} · +{each.added} -{each.removed} · merges: {_state(each)}{behind}{checked}", columns()))
    for file in each.files:
        lines = "binary" if file.added is None else f"+{file.added} -{file.removed}"
        name = f"{file.old_path} → {file.path}" if file.old_path else file.path
        name += f" → {file.target}" if file.target is not None else ""
        name += f" (mode {file.new_mode})" if file.new_mode is not None else ""
        say(f"  {_LETTERS[file.status]} {lines:>12}  {safe_line(as_run(name))}")
    _note_what_runs([each])
    _note_review(each)
    _note_missing(each)


def _note_what_runs(found: "list[Changes]") -> None:
    """Print which changed files the user's hooks, build or CI run: a merge or a push may be enough to run them."""
    for each in found:
        if runs := each.run_by_user:
            note(safe_line(f"{each.agent} changed what runs on your machine or in your CI: {as_run(', '.join(runs))}"))


def _note_review(each: "Changes") -> None:
    """Print who reviewed the work, and whether it is still what the reviewer saw."""
    if each.review is not None:
        note(safe_line(f"{each.agent}: {commands_changes.describe_review(each.review)}"))


def _note_missing(each: "Changes") -> None:
    """Print which paths a snapshot could not take in."""
    for missing in each.missing:
        note(safe_line(f"{each.agent}: not taken in: {missing}"))


def describe(each: "Changes") -> dict[str, Any]:
    """Return the changes of one agent as JSON."""
    # While the first check runs, only its state is known.
    ran = each.check.checked if each.check is not None else None
    checked = ran.as_dict() if ran is not None else dict.fromkeys(Checked.__struct_fields__)
    names = (
        "agent", "branch", "base", "files", "added", "removed", "behind", "applies", "merged", "sha256", "conflicts",
        "missing", "collides_with", "check", "review",
    )  # fmt: skip
    of_file = ("path", "old_path", "status", "added", "removed", "mode", "old_mode", "target")
    return pick(
        names,
        each,
        files=[pick(of_file, file) for file in each.files],
        merged=each.is_merged,
        check={"state": each.check.state, **checked} if each.check is not None else None,
        review=_describe_review(each),
    )


def _describe_review(each: "Changes") -> dict[str, Any] | None:
    last = each.review
    return {"state": last.state, "task": last.task, **last.reviewed.as_dict()} if last is not None else None


@click.command()
@common.agent_name
@click.option("--squash", is_flag=True, help="One commit (default).")
@click.option("--merge", is_flag=True, help="A merge commit, with the commits of the agent.")
@click.option("--rebase", is_flag=True, help="The commits of the agent, one by one on the branch.")
@click.option("--pr", is_flag=True, help="Merge nothing here: push one commit, and open a pull request with gh.")
@click.option("--into", metavar="B", help="Branch to merge into; default: the one that is checked out.")
@click.option("--message", "-m", type=common.text, help="Message of the commit.")
@click.option("--now", is_flag=True, help="Take the last snapshot, also while the agent is at work.")
@click.option("--unchecked", is_flag=True, help="Merge it although its last check failed.")
@click.option("--resolve", is_flag=True, help="Merge nothing: ask the agent to resolve its conflicts with your branch.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@common.sha256
@as_json
def merge(
    session: Session,
    name: str,
    pr: bool,
    into: str | None,
    message: str | None,
    now: bool,
    unchecked: bool,
    resolve: bool,
    dry_run: bool,
    sha256: str | None,
    reveal: bool,
    **ways: bool,
) -> None:
    """Bring the work of the agent NAME into your branch, committed or not.

    You are the author of the commit, the agent its co-author. Nothing is changed unless all of it merges cleanly:
    conflicts and files that you did not commit are named, and so is a check that failed (exit 65). Exits 75 while the
    agent is at work. `undo` takes it back. Lines that hold what looks like a key are named on stderr before the merge.

    `changes NAME --diff` and --dry-run print the command with the --sha256 of the work that they show: other work is
    refused (exit 65). Without it, a terminal shows the diff and asks, and a script is refused.

    With --pr, the work is pushed to the remote of your branch, under the name of the agent's branch, with your settings
    and hooks of git, and gh opens a pull request. Where one is open, it gets the new commit.

    Example: crewboard merge fixer -m "paginate /orders"
    """
    how = cast("How", common.one_of(ways) or "squash")
    if resolve:
        sent = commands_changes.ask_to_resolve(session.team, name)
        session.tell(sent.as_dict(), f"asked {name} to resolve its conflicts")
        common.note_asleep(session.team, [sent])
        return

    team = session.team
    _note_ignored_settings()

    def accept(branch: str | None) -> str:
        """Return the command that merges as asked, into `branch`; None means the branch that is checked out by then."""
        chosen = {f"--{how}": how != "squash", "--pr": pr, "--now": now, "--unchecked": unchecked}
        options = common.as_options({**chosen, "--message": message, "--into": branch})
        return as_run(command_for(team, shlex.join(["merge", name, *options])))

    def warn(keys: str) -> None:
        note(safe_line(f"{keys}; `{command_for(team, f'changes {name} --diff --reveal')}` shows it"))

    def agree(work: "Changes", question: str, branch: str | None, where: str = "") -> None:
        _note_what_runs([work])
        if sha256 is not None:
            # Else it stands below the diff, above the question.
            _note_review(work)
        seen = _shown(team, work, where, question)
        common.require_yes(sha256, seen, accept(branch), reveal=reveal, asks=not session.as_json)

    def agree_to_push(work: "Changes", where: str, base: str) -> None:
        to = f"to {as_run(where)}, for a pull request into {as_run(base)}"
        agree(work, f"Push the work of {name} as shown {to}?", base, f" (it is pushed {to})")

    if pr:
        if how != "squash" or dry_run:
            raise UsageError("--pr pushes one commit: use it without --merge, --rebase and --dry-run")
        with _resolve_hint(team, name, unchecked=unchecked):
            opened = commands_changes.open_pull_request(
                team, name, into=into, message=message, now=now, unchecked=unchecked, warn=warn, agree=agree_to_push
            )
        if session.as_json:
            say_json({**asdict(opened), "keys": _places(opened.keys)} if opened is not None else None)
        elif opened is None:
            say(_nothing_to_merge(team, name))
        else:
            say(safe_line(opened.url or f"gh printed no address; pushed {opened.branch} to {opened.remote}"))
            note(
                safe_line(f"commit {opened.commit[:12]} is {opened.branch} of {opened.remote}; nothing is merged here")
            )
        return
    act = partial(commands_changes.merge, team, name, how=how, into=into, message=message, now=now)
    with _resolve_hint(team, name, unchecked=unchecked):
        if sha256 is None and not dry_run:
            done = act(dry_run=True, unchecked=unchecked, warn=warn)
            if done is not None:
                question = f"Merge the work of {name} as shown into {_branch(done.acceptance)}?"
                agree(done.changes, question, _named(done.acceptance))
                done = act(unchecked=unchecked, sha256=done.changes.sha256, onto=done.acceptance)
        else:
            reads = partial(agree, question="", branch=into) if sha256 is not None else None
            done = act(dry_run=dry_run, unchecked=unchecked, agree=reads, warn=warn)
            if done is not None and sha256 is None:
                _note_what_runs([done.changes])
                _note_review(done.changes)
    _tell_merged(session, name, done, accept if dry_run else None)


def _note_ignored_settings() -> None:
    """Say which variables with settings of git, set in this shell, do not reach the git that merges."""
    # With them, git in the same shell may name another author.
    if ignored := [
        name for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_COUNT") if name in os.environ
    ]:
        of_files = (
            "" if "GIT_AUTHOR_NAME" in os.environ else ": the author is that of ~/.gitconfig or of the repository"
        )
        note(f"merges without {', '.join(ignored)}{of_files}")


def _nothing_to_merge(team: Team, name: str) -> str:
    if not commands_changes.has_work(team, name) and not commands_changes.is_on_host(team, name):
        return f"nothing to merge: no checkout of {name} is here, and no snapshot of one"
    if commands_changes.has_no_changes(team, name):
        return f"nothing to merge: {name} has no changes"
    return f"nothing to merge: all of the work of {name} is there already"


def _tell_merged(session: Session, name: str, done: "Merge | None", accept: Callable[[str | None], str] | None) -> None:
    """Print what was merged, or, with `accept`, what would be: it returns the command that merges into a branch."""
    team, dry_run = session.team, accept is not None
    if session.as_json:
        more = {"dry_run": dry_run, "keys": _places(done.keys), "sha256": done.changes.sha256} if done else {}
        more |= {"review": _describe_review(done.changes)} if done else {}
        say_json({**_describe_merge(done.acceptance), **more} if done else None)
    elif done is None:
        say(_nothing_to_merge(team, name))
    else:
        made, files = done.acceptance, len(done.changes.files)
        counts = f"+{done.changes.added} -{done.changes.removed} in {counted(files, 'file')}"
        say(safe_line(f"{'would merge' if dry_run else 'merged'} {name} into {_branch(made)}: {counts}"))
        if made.ref == "HEAD":
            note(commands_changes.DETACHED)
        for task in tasks.load_all(team.directory):
            if task.owner == name and task.in_review is not None:
                note(f"task {task.id} waits for the review of {task.review}: {safe_line(task.subject)}")
        if not dry_run:
            note(f"commit {made.result[:12]}; `{command_for(team, 'undo')}` takes it back")
        if accept is not None:
            _note_yes(_shown(team, done.changes), accept(_named(done.acceptance)))
    for each in done.background if done is not None else ():
        note(safe_line(f"{name} still runs {as_run(each)}: what it writes from now on is not in this"))


def _places(keys: "Iterable[KeyLine]") -> list[dict[str, Any]]:
    """Return the places of lines with secrets, as JSON, without their text."""
    return [{"path": each.path, "line": each.line} for each in keys]


@contextlib.contextmanager
def _resolve_hint(team: Team, name: str, *, unchecked: bool) -> Iterator[None]:
    """Add the command that asks the agent to resolve conflicts to the error if a merge is refused because of them."""
    try:
        yield
    except BadDataError as error:
        for each in commands_changes.list_changes(team, [name]):
            failed = each.check is not None and each.check.state == "failed" and not unchecked
            if each.conflicts and not failed:
                ask = command_for(team, f"merge {name} --resolve")
                raise BadDataError(f"{error}; `{ask}` asks {name} to resolve it") from error
        raise


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
def undo(
    session: Session,
    name: str | None,
    assignment: str | None,
    path: str | None,
    hunk: int | None,
    snapshot: str | None,
    dry_run: bool,
) -> None:
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
    if name is not None and commands_changes.works_in_shared_tree(team, name):
        if hunk is not None or snapshot is not None:
            raise UsageError(f"--hunk and --snapshot need an agent with a worktree; {name} works in the shared tree")
        put_back = commands_put_back.undo_file_tools(team, name, assignment=assignment, path=path, dry_run=dry_run)
        _say_put_back(session, put_back, dry_run=dry_run)
        return
    if (assignment, path, hunk, snapshot) != (None, None, None, None):
        if name is None:
            raise UsageError("say whose files to put back: crewboard undo NAME")
        if hunk is not None and path is None:
            raise UsageError("--hunk needs --file, which has the hunk")
        if snapshot is not None and (assignment is not None or path is not None):
            raise UsageError("--snapshot puts the whole checkout back; use it without --assignment and --file")
        put_back = commands_put_back.undo_in_checkout(
            team, name, assignment=assignment, path=path, hunk=hunk, commit=snapshot, dry_run=dry_run
        )
        _say_put_back(session, put_back, dry_run=dry_run)
        return
    undone = commands_changes.undo(team, name, dry_run=dry_run)
    how = "reset to" if undone.undone == undone.before else "reverted by"
    what = "would take back" if dry_run else "took back"
    says = f"{what} the merge of {undone.agent}: {_branch(undone)} {how} {(undone.undone or '')[:12]}"
    session.tell({**_describe_merge(undone), "dry_run": dry_run}, safe_line(says))


def _say_put_back(session: Session, done: "PutBack", *, dry_run: bool) -> None:
    if session.as_json:
        files = [{"path": each.path, "removed": each.removed} for each in done.files]
        say_json({
            "agent": done.agent, "assignment": done.assignment, "files": files, "snapshot": done.snapshot,
            "dry_run": dry_run,
        })  # fmt: skip
        return
    put_back, removed = ("would put back", "would remove") if dry_run else ("put back", "removed")
    for each in done.files:
        say(safe_line(f"{removed if each.removed else put_back} {as_run(each.path)}"))
    if done.snapshot is None:
        note("what its commands changed stays: only files that its file tools wrote are put back")
    elif not dry_run:
        again = command_for(session.team, f"undo {done.agent} --snapshot {done.snapshot[:12]}")
        note(f"`{again}` brings it back")


def _branch(made: Acceptance) -> str:
    return as_run(made.ref.removeprefix("refs/heads/"))


def _named(made: Acceptance) -> str | None:
    """Return the name of a merge's branch; None if no branch was checked out."""
    return None if made.ref == "HEAD" else made.ref.removeprefix("refs/heads/")


def _describe_merge(made: Acceptance) -> dict[str, Any]:
    names = ("agent", "how", "branch", "before", "commit", "undone")
    return pick(names, made, branch=_named(made), commit=made.result)


@click.command()
@common.agent_name
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def discard(session: Session, name: str, yes: bool) -> None:
    """Throw away the worktree of the agent NAME, with all work that is not merged.

    The agent must not be running. Without --yes, you type its name if work is unmerged.
    """
    team = session.team
    commands_changes.require_discardable(team, name)
    if not yes:
        what = ""
        try:
            left = commands_changes.unmerged(team, name)
            if left is not None:
                what = f"{name} has unmerged work in {counted(len(left.files), 'file')} (+{left.added} -{left.removed})"
        except CrewboardError as error:
            what = safe_line(f"it is unknown whether {name} has unmerged work: {error}")
        if what:
            if not sys.stdin.isatty():
                raise UsageError(f"{what}; use --yes to throw it away")
            note(what)
            if click.prompt("Type the agent's name to throw it away", default="", show_default=False) != name:
                note("that is not its name: nothing was thrown away")
                raise click.Abort
    had_work = commands_changes.has_work(team, name)
    last = commands_changes.discard(team, name)
    if session.as_json:
        say_json({"agent": name, "commit": last})
    elif not had_work:
        say(f"{name} has no work to throw away: it has no checkout")
    else:
        say(f"the work of {name} is thrown away")
        if last:
            note(f"git keeps it for some weeks: `git branch NEW {last[:12]}` brings it back")
    common.note_left_branches(team, [name])


@common.listing()
def worktree(session: Session) -> None:
    """List the worktrees of agents, or remove what is left of removed agents."""
    click.get_current_context().invoke(list_, as_json=session.as_json)


@worktree.command("list")
@as_json
def list_(session: Session) -> None:
    """List the worktrees of agents, and what is left of removed ones."""
    found = commands_changes.list_worktrees(session.team)
    names = ("name", "path", "branch", "removed", "merged")
    data = [pick(names, each, path=each.path if each.exists else None, merged=each.changes is None) for each in found]
    rows = [
        (
            each.name + (" (removed)" if each.removed else ""),
            f"+{each.changes.added} -{each.changes.removed}" if each.changes else "none",
            each.path if each.exists else "no checkout",
        )
        for each in found
    ]
    lines = table(("AGENT", "UNMERGED", "CHECKOUT"), rows) if rows else []
    session.tell(data, *lines, empty=_no_worktree(session.team))


@worktree.command()
@as_json
def prune(session: Session) -> None:
    """Remove what is left of removed agents whose work is merged or gone.

    These are checkouts and refs; gone is work that was thrown away.
    """
    gone, kept = commands_changes.prune(session.team)
    session.tell({"pruned": gone, "kept": kept}, f"pruned: {', '.join(gone) or 'nothing'}")
    if session.as_json:
        return
    common.note_left_branches(session.team, gone)
    for name in kept:
        drop = command_for(session.team, f"discard {name} --yes")
        note(f"{name} has unmerged work; `{drop}` throws it away")
