"""The work of agents with worktrees: list it, read it, merge it, undo a merge, open a pull request, or discard it.

All of this is done with objects in the user's repository. No git runs in an agent's checkout outside a sandbox.
"""

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from crewboard.commands import messages
from crewboard.commands.context import Team, command_for
from crewboard.commands.tasks import has_check, is_at_work, is_checking, last_checked, last_lines
from crewboard.errors import BadDataError, CrewboardError, TryLaterError, UsageError
from crewboard.names import OPERATOR, is_name
from crewboard.records.agents import Spec, Worktree
from crewboard.records.base import counted
from crewboard.records.messages import Message
from crewboard.records.requests import require_shown
from crewboard.records.team import Acceptance, Collisions, How
from crewboard.sandbox.sandbox import running_below
from crewboard.store import agents, leases, mailbox, operators, roster, tasks
from crewboard.worktrees import checkout, collisions, merging, snapshot, workspaces
from crewboard.worktrees.changes import (
    Changes,
    KeyLine,
    LastCheck,
    LastReview,
    added_keys,
    changes_of,
    diff_of,
    is_ancestor,
    merge_base,
    name_some,
)
from crewboard.worktrees.repository import NoRepositoryError, Repository, find_gh, open_workspace

DETACHED = (
    "no branch is checked out: the next `git switch` leaves the commit behind; `git switch -c NAME` makes a branch"
)
"""The warning of a merge into a detached HEAD."""


@dataclass(frozen=True)
class Merge:
    """A merge, made or previewed: its record, the work that it brings in, and the message of its last commit.

    `keys` are the added lines that have what looks like a key. `background` are the commands of the agent that are
    running, so that its work may change after this.
    """

    acceptance: Acceptance
    changes: Changes
    message: str
    keys: tuple[KeyLine, ...] = ()
    background: tuple[str, ...] = ()


@dataclass(frozen=True)
class PullRequest:
    """A pull request into the branch `base`: the commit that was pushed to `remote` as `branch`, and its web address.

    `keys` are the added lines that have what looks like a key.
    """

    agent: str
    branch: str
    base: str
    remote: str
    commit: str
    url: str
    keys: tuple[KeyLine, ...] = ()


@dataclass(frozen=True)
class ListedWorktree:
    """A worktree of an agent on the roster, or what is left of one whose agent was removed (`removed`).

    `exists` is True if its folder is there. `changes` is the work that is not merged; None if there is none.
    """

    name: str
    path: str
    branch: str
    removed: bool
    exists: bool
    changes: Changes | None


def list_changes(team: Team, names: list[str] | None = None) -> list[Changes]:
    """Return what each agent changed, or each of `names`, as of its newest snapshot, in the order of roster or names.

    Agents without a worktree, and those whose work was discarded, are left out.

    Raises:
        UsageError: There is no such agent, or the root is in the repository of another project.
        NoRepositoryError: The root is in no repository.
        GitFailedError: git cannot read the repository.
    """
    chosen = team.config.names if names is None else [team.member(name).name for name in names]
    worktrees = {name: worktree for name in chosen if (worktree := worktree_of(team, name)) is not None}
    if not worktrees:
        return []
    repository = _repository(team)
    # A lead on a host has not the refs of the user.
    is_users = repository.directory != team.directory.workspace_repository.resolve()
    worktrees = {name: worktree for name, worktree in worktrees.items() if has_work(team, name)}
    reasons = [workspaces.why_unrelated(team.directory, repository, *each) for each in worktrees.items() if is_users]
    if reasons and all(reasons):
        raise UsageError(reasons[0])
    known = collisions.update(team.directory, team.now()) if is_users else Collisions()
    found = []
    for name, worktree in worktrees.items():
        changes, taken = read_changes(team, repository, name, worktree.base)
        check, others = last_check(team, name, taken.tree), collisions.partners(known, name)
        found.append(replace(changes, check=check, collides_with=others))
    return found


def note_collisions(team: Team) -> None:
    """Update the record of which agents collide. An error is ignored: the next call updates it, too."""
    with contextlib.suppress(CrewboardError, OSError):
        collisions.update(team.directory, team.now())


def last_check(team: Team, name: str, tree: str) -> LastCheck | None:
    """Return the state of an agent's last check; None if there is none. `tree` is the id of its checkout's tree now.

    A failed check stays failed whatever was changed since: only a check that passes shows that it is fixed.
    """
    checked = last_checked(team, name)
    if is_checking(team, name):
        return LastCheck("running", checked)
    if checked is None:
        return None
    if not checked.passed:
        return LastCheck("failed", checked)
    return LastCheck("old" if checked.tree and checked.tree != tree else "passed", checked)


_SINCE_REVIEW = {"same": "", "old": ", changed since", "part": ", without earlier changes"}


def describe_review(review: LastReview) -> str:
    """Return a review in words, such as `reviewed by qa 12:03, changed since`."""
    at = time.strftime("%H:%M", time.localtime(review.reviewed.at))
    return f"reviewed by {review.reviewed.by} {at}{_SINCE_REVIEW[review.state]}"


def newest(team: Team, name: str) -> Changes:
    """Return what an agent changed, as of its newest snapshot.

    Raises:
        UsageError: There is no such agent, or it has no worktree.
        GitFailedError: git cannot read the repository.
    """
    return read_changes(team, _repository(team), name, require_worktree(team, name).base)[0]


def has_no_changes(team: Team, name: str) -> bool:
    """Return True if an agent has changed nothing in its worktree so far, neither merged nor unmerged.

    Raises:
        UsageError: There is no such agent, or it has no worktree.
        GitFailedError: git cannot read the repository.
    """
    changes, base = newest(team, name), require_worktree(team, name).base
    # Another base is work of it that came into a branch without a merge of ours.
    return not changes.files and not merging.merges_of(team.directory, name) and changes.base in (base, changes.commit)


def read_diff(team: Team, work: str | Changes, path: str | None = None, *, binary: bool = False) -> str:
    """Return what an agent changed, or its change of one file, as a unified diff. File names need not be UTF-8.

    `work` is the name of the agent, for its newest snapshot, or changes that were read before. With `binary`, the diff
    has the contents of binary files, so that `git apply` can use it.

    Raises:
        UsageError: There is no such agent, or it has no worktree.
        GitFailedError: git cannot read the repository.
    """
    found = newest(team, work) if isinstance(work, str) else work
    return diff_of(_repository(team), found, path, binary=binary)


def changed_since(team: Team, seen: Changes, now: Changes) -> list[str]:
    """Return the files of an agent's work that differ between `seen`, an earlier state of it, and `now`.

    Raises:
        GitFailedError: git cannot read the repository.
    """
    options = ("-r", "-z", "--name-only", "--no-renames")
    differ = _repository(team).git("diff-tree", *options, seen.commit, now.commit, "--").split("\0")
    # What came from the user's branch is in both, and no work of the agent.
    of_work = {name for work in (seen, now) for each in work.files for name in (each.path, each.old_path)}
    return [each for each in differ if each in of_work]


def count_with_key(lines: int) -> str:
    """Return in words that this number of lines have what looks like a key: `2 lines hold what looks like a key`."""
    return f"{counted(lines, 'line')} {'holds' if lines == 1 else 'hold'} what looks like a key"


def name_keys(keys: tuple[KeyLine, ...]) -> str:
    """Return in words how many lines have what looks like a key, and where the first of them are."""
    return f"{count_with_key(len(keys))}: {name_some([f'{each.path}:{each.line}' for each in keys])}"


def take_snapshot(team: Team, name: str) -> tuple[str, ...]:
    """Take a new snapshot of an agent's checkout, if it has one; for an agent on a host, fetch the newest snapshot.

    Return descriptions of what the snapshot could not take in; empty if nothing is missing, or there is no snapshot.

    Raises:
        CrewboardError: The checkout cannot be read.
    """
    spec = _spec_of(team, name)
    if spec is None or spec.worktree is None:
        return ()
    if spec.worktree.carried:
        fetched = workspaces.fetch(team.directory, _repository(team), name, spec.worktree)
        return fetched.missing if fetched is not None else ()
    if team.directory.worktree(name).is_dir():
        return snapshot.take(team.directory, name, spec).missing
    return ()


def _repository(team: Team) -> Repository:
    """Return the repository with the agents' snapshots: the user's, or for a lead on a host, crewboard's own there."""
    if team.by != OPERATOR:
        with contextlib.suppress(NoRepositoryError):
            return open_workspace(team.directory)
    return workspaces.open_home(team.directory)


def _require_related(team: Team, repository: Repository, name: str, worktree: Worktree, tip: str = "HEAD") -> None:
    if why := workspaces.why_unrelated(team.directory, repository, name, worktree, tip):
        raise UsageError(why)


def merge(  # noqa: PLR0913  the options of the command
    team: Team,
    name: str,
    *,
    how: How = "squash",
    into: str | None = None,
    message: str | None = None,
    now: bool = False,
    dry_run: bool = False,
    unchecked: bool = False,
    sha256: str | None = None,
    onto: Acceptance | None = None,
    agree: Callable[[Changes], object] | None = None,
    warn: Callable[[str], object] | None = None,
) -> Merge | None:
    """Merge the work of an agent, committed or not, into the branch that is checked out, or into the branch `into`.

    Return the merge; None if all of the work is in that branch already. `how` says whether the work becomes one commit
    (`squash`), a merge commit or several commits (`rebase`), and `message` is that of the new commits. With `now`,
    merge the last snapshot even while the agent is at work. With `dry_run`, only check that the merge would work. With
    `unchecked`, merge even if the agent's last check failed. With `sha256`, merge only the work that was shown
    (`Changes.sha256`), and with `onto`, the record of a preview, only on the same commit of the same branch. `agree` is
    called with the work before a commit is made, and may raise. `warn` is called with a text, before the branch is
    moved, if the merge adds what looks like a key.

    Raises:
        UsageError: There is no such agent or branch, the agent has no worktree, the branch is checked out elsewhere,
            the message is empty, or the repository is that of another project.
        BadDataError: The work has conflicts, its check failed, it was discarded, it or the branch is not what was
            shown, or the merge would overwrite what the user did not commit.
        TryLaterError: The agent is at work, or git or another merge is.
        NoRepositoryError: The root is in no repository, or git is missing or too old.
    """
    worktree = _ready_to_merge(team, name, message, now=now, unchecked=unchecked)
    repository = workspaces.open_home(team.directory)
    with merging.open_mover(team.directory, repository) as mover:
        target = _target(repository, into)
        if onto is not None and (target.ref, target.tip) != (onto.ref, onto.before):
            raise BadDataError(
                f"the merge that was shown goes into {onto.ref.removeprefix('refs/heads/')} at {onto.before[:12]}, and "
                f"now it would go into {target.name} at {target.tip[:12]}; look at it again"
            )
        _require_related(team, repository, name, worktree, target.tip)
        changes, taken = read_changes(team, repository, name, worktree.base, target.tip)
        if sha256 is not None:
            require_shown(sha256, changes.sha256, f"the work of {name}")
        if agree is not None:
            agree(changes)
        new = merging.make_commit(repository, target, changes, taken, how, message)
        if new is None:
            return None
        mover.require_clean(target, new)
        keys = _warn_of_keys(repository, changes, warn)
        made = Acceptance(
            id=mailbox.new_id(), agent=name, commit=taken.commit, base=changes.base, how=how, ref=target.ref,
            before=target.tip, result=new, at=team.now(), by=team.operator if team.by == OPERATOR else team.by,
        )  # fmt: skip
        if not dry_run:
            mover.move(target, new, made)
    if not dry_run:
        team.note("merge", name, f"{how} into {target.name}, {new[:12]}")
        note_collisions(team)
    written = repository.git("log", "-1", "--format=%B", new)
    status = team.directory.agent(name).status.load_or_none()
    # The commands of an agent on this machine that run now, each behind its handle.
    running = running_below(status.pid, status.boot_id, status.start_ticks) if status is not None else ()
    return Merge(made, changes, written, keys, running)


def _target(repository: Repository, into: str | None) -> merging.Target:
    """Return the branch that work is merged into: `into`, or the one that is checked out.

    Raises:
        UsageError: There is no such branch, it is checked out elsewhere, or git takes its name for something else.
    """
    if into is not None:
        exists = not into.startswith("-") and repository.ref(f"refs/heads/{into}") is not None
        # It may be a tag, too.
        whole = repository.git("rev-parse", "--symbolic-full-name", into) if exists else ""
        if _OF_GIT.match(into) is not None or (exists and whole != merging.full_name(repository, into)):
            raise UsageError(
                f"{into} means something else to git than that branch alone; name another branch, or leave it out for "
                "the one that is checked out"
            )
    return merging.find_target(repository, into)


def _warn_of_keys(
    repository: Repository, changes: Changes, warn: Callable[[str], object] | None
) -> tuple[KeyLine, ...]:
    """Return the added lines that have what looks like a key. If there are any, call `warn` with a text about them."""
    keys = added_keys(repository, changes)
    if keys and warn is not None:
        warn(name_keys(keys))
    return keys


def target_name(team: Team, into: str | None) -> str:
    """Return the name of the branch that a merge into `into` goes to; None means the branch that is checked out.

    Return `HEAD` if `into` is None and no branch is checked out.

    Raises:
        UsageError: There is no branch `into`, it is checked out elsewhere, or git takes its name for something else.
    """
    return _target(workspaces.open_home(team.directory), into).name


def _ready_to_merge(team: Team, name: str, message: str | None, *, now: bool, unchecked: bool) -> Worktree:
    """Check that the work of an agent may be merged, take a snapshot of it, and return its worktree.

    Raises:
        UsageError: There is no such agent, it has no worktree, or the message is empty.
        BadDataError: The work was discarded, or its last check failed.
        TryLaterError: The agent is at work.
    """
    worktree = require_worktree(team, name)
    if message is not None and not message.strip():
        raise UsageError("the message is empty")
    # What was discarded may be merged only if the agent has a new checkout.
    if not has_work(team, name):
        known, _ = operators.acts(team.directory)
        last = next((each for each in reversed(known) if (each.act, each.target) == ("discard", name)), None)
        if last is not None:
            commit = f" (commit {last.detail})" if last.detail else ""
            raise BadDataError(f"the work of {name} was discarded{commit}; there is nothing to merge")
    if not unchecked:
        checked = last_checked(team, name)
        if checked is not None and not checked.passed:
            at = time.strftime("%Y-%m-%d %H:%M", time.localtime(checked.at))
            tail = last_lines(team, checked)
            if team.by == OPERATOR:
                again = f"`{command_for(team, f'check {name}')}` runs it again, " if has_check(team, name) else ""
                remedy = f"{again}`{command_for(team, f'merge {name} --unchecked')}` merges it anyway"
            # A lead has no commands.
            else:
                remedy = f"have {name} make it pass; only the operator merges work whose check failed"
            raise BadDataError(
                f"the check `{checked.command}` of {name} failed last, at {at}; {remedy}; "
                f"its output is in {team.directory.path / checked.result}"
                + (f", and ends with:\n{tail}" if tail else "")
            )
    if not now:
        # A lead merges with a tool, which has no options.
        remedy = "wait for it, or take the last snapshot with --now" if team.by == OPERATOR else "wait until it idles"
        require_idle(team, name, remedy)
    if not now or worktree.carried:
        take_snapshot(team, name)
    return worktree


def open_pull_request(
    team: Team,
    name: str,
    *,
    into: str | None = None,
    message: str | None = None,
    now: bool = False,
    unchecked: bool = False,
    agree: Callable[[Changes, str, str], object] | None = None,
    warn: Callable[[str], object] | None = None,
) -> PullRequest | None:
    """Push the work of an agent in one commit as its branch, and open a pull request with gh; merge nothing here.

    Return the pull request; None if all of the work is in the branch to merge into already: `into`, else the one that
    is checked out. If a pull request of the agent's branch is open, it gets the new commit. git and gh run with the
    user's settings, hooks and credentials. `message`, `now`, `unchecked` and `warn` are as in `merge`. Before the push,
    `agree` is called with the work, the place it is pushed to (`crew/NAME of REMOTE`) and the branch to merge into, and
    may raise.

    Raises:
        UsageError: gh, a remote or a branch is missing, there is no such agent, or it has no worktree.
        BadDataError: The work has conflicts, its check failed, it was discarded, or git or gh refused.
        TryLaterError: The agent is at work.
        NoRepositoryError: The root is in no repository, or git is missing or too old.
    """
    repository = workspaces.open_home(team.directory)
    gh, run = find_gh(team.directory.root), partial(repository.as_user, team.environment)
    base = _target(repository, into).name if into else repository.branch()
    tip = repository.ref(f"refs/heads/{base}^{{commit}}") if base is not None else None
    if base is None or tip is None:
        raise UsageError(f"there is no branch {base!r}" if base else "no branch is checked out; name one with --into")
    remote = repository.remote_of(base)
    worktree = _ready_to_merge(team, name, message, now=now, unchecked=unchecked)
    _require_related(team, repository, name, worktree, tip)
    target = merging.Target(f"refs/heads/{base}", tip, checked_out=False)
    changes, taken = read_changes(team, repository, name, worktree.base, tip)
    commit = merging.make_commit(repository, target, changes, taken, "squash", message)
    if commit is None:
        return None
    keys = _warn_of_keys(repository, changes, warn)
    branch = snapshot.branch_of(team.directory, name)
    if agree is not None:
        agree(changes, f"{branch} of {remote}", base)
    # What is there now must be what was pushed last: nothing that another user added is overwritten.
    known = repository.ref(f"refs/remotes/{remote}/{branch}") or ""
    lease, refspec = f"--force-with-lease=refs/heads/{branch}:{known}", f"{commit}:refs/heads/{branch}"
    # Settings of the user may send more along.
    alone = ("--no-follow-tags", "--recurse-submodules=no")
    run(repository.program, "push", "--quiet", *alone, lease, "--", remote, refspec)
    subject, _, body = repository.git("log", "-1", "--format=%B", commit).partition("\n")
    shown = ("--json=url", "--jq=.[0].url // empty")
    url = run(gh, "pr", "list", f"--head={branch}", "--state=open", *shown)
    if not url:
        text = (f"--title={subject}", f"--body={body.strip()}")
        said = run(gh, "pr", "create", f"--head={branch}", f"--base={base}", *text)
        url = said.rpartition("\n")[2]
    team.note("merge", name, f"pull request into {base}, {commit[:12]}")
    return PullRequest(name, branch, base, remote, commit, url, keys)


def ask_to_resolve(team: Team, name: str) -> Message:
    """Send an agent a message that asks it to merge the user's branch into its own and resolve the conflicts.

    Return the message.

    Raises:
        UsageError: There is no such agent, it has no worktree, its work has no conflicts, or its host does not have
            the commit to merge.
        NoRepositoryError: The root is in no repository, or git is missing or too old.
    """
    worktree = require_worktree(team, name)
    repository = workspaces.open_home(team.directory)
    _require_related(team, repository, name, worktree)
    found = read_changes(team, repository, name, worktree.base)[0]
    if not found.conflicts:
        raise UsageError(f"the work of {name} has no conflicts: `{command_for(team, f'merge {name}')}` merges it")
    if worktree.carried and not workspaces.has_pushed(team.directory, repository, found.head):
        push = f"`{command_for(team, 'workspace push')}`"
        raise UsageError(f"the host of {name} does not have your commit {found.head[:12]}: {push} gives it to hosts")
    return messages.send(
        team, name,
        f"Your work conflicts with the branch that it goes to, in: {', '.join(found.conflicts)}.\n"
        f"Commit what you have, merge the commit {found.head} of that branch into yours "
        f"(`git merge {found.head}`), resolve the conflicts, commit, and say when it is done.",
    )  # fmt: skip


def merge_into_branch(
    team: Team, name: str, branch: str, *, sha256: str | None = None, message: str | None = None
) -> Merge | None:
    """Merge the work of an agent, for a lead, into a branch that is not checked out; return the merge.

    Return None if all of the work is in the branch already. A missing branch is made at HEAD, and removed if the merge
    fails. With `sha256`, merge only the work that was shown (`Changes.sha256`).

    Raises:
        UsageError: There is no such agent, it has no worktree or is on a host, the branch is checked out, or its name
            is invalid or means something else to git.
        BadDataError: The work has conflicts, or is not what was shown.
        TryLaterError: The agent is at work, or another merge is under way.
        NoRepositoryError: The root is in no repository, or git is missing or too old.
    """
    if require_worktree(team, name).carried:
        raise UsageError("on a team with hosts only the operator merges: say what is ready")
    repository = workspaces.open_home(team.directory)
    # Of a lead, which is an agent.
    message = merging.quoted(message) if message is not None and message.strip() else message
    current = repository.branch()
    if current is not None and merging.full_name(repository, branch) == f"refs/heads/{current}":
        raise UsageError(f"{branch} is checked out, and only the operator changes it: choose another branch")
    try:
        repository.git("check-ref-format", "--branch", branch)
    except CrewboardError:
        raise UsageError(f"{branch!r} cannot name a branch") from None
    if repository.ref(f"refs/heads/{branch}") is not None:
        return merge(team, name, into=branch, message=message, sha256=sha256)
    # Such as `origin/main`.
    remotes = repository.git("remote").split()
    if (
        repository.ref(branch) is not None
        or merging.full_name(repository, branch) != f"refs/heads/{branch}"
        or _OF_GIT.match(branch) is not None
        or any(f"{branch}/".startswith(f"{remote}/") for remote in remotes)
    ):
        raise UsageError(f"{branch} means something else to git in {repository.top}: choose another name")
    repository.git("branch", "--no-track", "--", branch, "HEAD")
    try:
        return merge(team, name, into=branch, message=message, sha256=sha256)
    except CrewboardError:
        # Nothing was merged, so it is still where it was made.
        repository.git("branch", "-D", "--", branch)
        raise


_OF_GIT = re.compile(r"(?:refs|heads|tags|remotes)/|stash$|(?:.*_)?HEAD$")
"""Matches names of branches that git would take for another ref."""


def undo(team: Team, name: str | None = None, *, dry_run: bool = False) -> Acceptance:
    """Undo the last merge, or the last one of an agent: reset the branch if nothing came after it, else revert it.

    Return the record of the merge. With `dry_run`, only check that it would work.

    Raises:
        UsageError: There is no merge to undo or no such agent, the branch does not contain the merge any more, or it
            was made in another clone.
        BadDataError: Later commits changed the same lines, or the undo would overwrite what the user did not commit.
        TryLaterError: Another merge is under way, or git is.
        NoRepositoryError: The root is in no repository, or git is missing or too old.
    """
    if not team.directory.exists():
        raise _nothing_to_undo(team, name)
    repository = workspaces.open_home(team.directory)
    with merging.open_mover(team.directory, repository) as mover:
        known = [each for each in reversed(mover.record.acceptances) if not each.undone and name in (None, each.agent)]
        # Merges of a team on several machines may be in other clones.
        last = next((each for each in known if repository.has(each.result)), None)
        if last is None and known:
            raise UsageError(
                f"the merge of {known[0].agent} into {known[0].ref.removeprefix('refs/heads/')} "
                f"({known[0].result[:12]}) is not in this repository: undo it in the clone where it was made"
            )
        if last is None:
            raise _nothing_to_undo(team, name)
        branch = last.ref.removeprefix("refs/heads/")
        target = merging.find_target(repository, None if last.ref == "HEAD" else branch)
        if target.ref != last.ref or not is_ancestor(repository, last.result, target.tip):
            raise UsageError(f"{branch} does not contain the merge of {last.agent} ({last.result[:12]}) any more")
        at_tip = target.tip == last.result
        new = last.before if at_tip else merging.make_revert(repository, target, last) or target.tip
        mover.require_clean(target, new)
        undone = last.replace(undone=new)
        if not dry_run:
            mover.move(target, new, undone)
    if not dry_run:
        team.note("undo", last.agent, f"{'reset' if at_tip else 'revert'} {branch}, {new[:12]}")
        note_collisions(team)
    return undone


def _nothing_to_undo(team: Team, name: str | None) -> UsageError:
    """Return the error that there is no merge to undo, or none of an agent.

    Raises:
        UsageError: There is no such agent.
    """
    if name is None:
        return UsageError("no merge to undo")
    again = command_for(team, f"undo {team.member(name).name} --assignment")
    return UsageError(f"no merge of {name} to undo; `{again}` puts back what it changed")


def recover(team: Team) -> bool:
    """Finish or take back a merge or undo whose process was killed; return False if none was interrupted."""
    if merging.load(team.directory).move is None:
        return False
    with merging.open_mover(team.directory, workspaces.open_home(team.directory)):
        return True


def unmerged(team: Team, name: str) -> Changes | None:
    """Take a snapshot, and return the work of an agent that is in no branch of the user; None if there is none.

    Raises:
        CrewboardError: It cannot be told, for example because the snapshot could not take in all files.
    """
    worktree = worktree_of(team, name)
    if worktree is None:
        return None
    if not has_work(team, name):
        return None
    missing = take_snapshot(team, name)
    repository = workspaces.open_home(team.directory)
    left = _unmerged(team, repository, name, worktree.base)
    if left is None and missing:
        raise BadDataError(f"a snapshot cannot have all of its checkout: {'; '.join(missing)}")
    return left


def has_work(team: Team, name: str) -> bool:
    """Return True if there is a checkout of an agent, or a snapshot. After a discard there is neither."""
    if team.directory.worktree(name).is_dir() or team.directory.carried(name).exists():
        return True
    with contextlib.suppress(NoRepositoryError):
        return snapshot.exists(team.directory, _repository(team), name)
    return False


def require_merged(team: Team, names: list[str]) -> None:
    """Check that none of these agents has unmerged work, before something that would lose it.

    Raises:
        UsageError: Some have unmerged work, or it cannot be told; the message names all of them, and what to do.
    """
    problems = []
    for name, what in unmerged_work(team, names).items():
        keep, drop = (command_for(team, each) for each in (f"merge {name}", f"discard {name} --yes"))
        problems.append(f"{what}: `{keep}` keeps it, `{drop}` throws it away")
    if problems:
        raise UsageError("; ".join(problems))


def unmerged_work(team: Team, names: list[str]) -> dict[str, str]:
    """Return, by agent, a sentence about its unmerged work, for those of `names` that have or may have some."""
    told = {}
    for name in names:
        try:
            left = unmerged(team, name)
        except CrewboardError as error:
            told[name] = f"it is unknown whether {name} has unmerged work ({error})"
            continue
        if left is not None:
            counts = f"{counted(len(left.files), 'file')} (+{left.added} -{left.removed})"
            told[name] = f"{name} has unmerged work in {counts}"
    return told


def discard(team: Team, name: str) -> str | None:
    """Throw away the work of an agent that is not running, and its checkout.

    Return the commit of the last snapshot, if there is one: git keeps it for some weeks.

    Raises:
        UsageError: There is no such worktree.
        TryLaterError: The agent is running.
    """
    require_discardable(team, name)
    with contextlib.suppress(CrewboardError):
        take_snapshot(team, name)
    had_work = has_work(team, name)
    last = forget(team, name, base=team.config.member(name) is None)
    if had_work:
        team.note("discard", name, last[:12] if last else "")
    return last


def require_discardable(team: Team, name: str) -> None:
    """Check that the work of an agent can be discarded.

    Raises:
        UsageError: There is no such worktree.
        TryLaterError: The agent is running.
    """
    if team.config.member(name) is not None:
        require_worktree(team, name)
    elif name not in [each.name for each in list_worktrees(team)]:
        raise UsageError(f"there is no worktree of {name!r}; `{command_for(team, 'worktree list')}` lists them")
    if leases.is_held(team.directory.agent(name).lease):
        raise TryLaterError(f"{name} is alive; stop it first: `{command_for(team, f'stop {name}')}`")


def forget(team: Team, name: str, *, base: bool) -> str | None:
    """Remove the checkout of an agent, and the refs and branch of its work; return the commit of its last snapshot.

    Return None if there is none. With `base`, remove the ref of its base as well: the checkout cannot be made again.
    """
    checkout.remove(team.directory, name)
    workspaces.forget(team.directory, name)
    tasks.forget_trees(team.directory, name)
    try:
        repository = workspaces.open_home(team.directory)
    except NoRepositoryError:
        return None
    with merging.open_mover(team.directory, repository) as mover:
        mover.discard(name)
    last = repository.ref(snapshot.ref_of(team.directory, name))
    refs = [snapshot.ref_of(team.directory, name, kind) for kind in ("", "setup", "merged")]
    if base:
        refs.append(snapshot.ref_of(team.directory, name, "base"))
    for ref in refs:
        repository.git("update-ref", "-d", ref)
    workspaces.remove_branch(team.directory, repository, name)
    note_collisions(team)
    return last


def list_worktrees(team: Team) -> list[ListedWorktree]:
    """Return the worktrees of the agents, and what is left of those of removed agents.

    Raises:
        NoRepositoryError: There are worktrees, but the root is in no repository.
    """
    hired = [name for name in team.config.names if worktree_of(team, name) is not None]
    try:
        repository = workspaces.open_home(team.directory)
    except NoRepositoryError:
        if hired or team.directory.worktrees.exists():
            raise
        return []
    # Removed agents of which there is a checkout or work.
    start = snapshot.ref_of(team.directory, "")
    refs = repository.git("for-each-ref", "--format=%(refname)", start.rstrip("/")).splitlines()
    names = {ref.removeprefix(start) for ref in refs}
    names |= {path.name for path in team.directory.worktrees.glob("*") if path.is_dir()}
    left = sorted(name for name in names if is_name(name) and team.config.member(name) is None)
    listed = []
    for name in [*hired, *left]:
        worktree, path = worktree_of(team, name), team.directory.worktree(name)
        base = worktree.base if worktree is not None else _find_base(team, repository, name)
        listed.append(
            ListedWorktree(
                name,
                str(path),
                snapshot.branch_of(team.directory, name),
                removed=name not in hired,
                exists=path.is_dir(),
                changes=_unmerged(team, repository, name, base),
            )
        )
    return listed


def prune(team: Team) -> tuple[list[str], list[str]]:
    """Remove the worktrees and refs left of removed agents, except for those with unmerged work.

    Return two lists of names: agents whose worktrees and refs were removed, and agents whose were kept.

    Raises:
        NoRepositoryError: There are worktrees, but the root is in no repository.
    """
    left = [each for each in list_worktrees(team) if each.removed]
    gone = [each.name for each in left if each.changes is None]
    for name in gone:
        forget(team, name, base=True)
    if gone:
        team.note("prune", detail=", ".join(gone))
    return gone, [each.name for each in left if each.changes is not None]


def worktree_of(team: Team, name: str) -> Worktree | None:
    """Return the agent's own worktree; None if it has none.

    An explorer has none, even where the agent that it searches for has one.

    Raises:
        StorageError: The spec cannot be read.
    """
    spec = _spec_of(team, name)
    return spec.worktree if spec is not None else None


def _spec_of(team: Team, name: str) -> Spec | None:
    """Return an agent's spec, rebuilt if it is damaged or gone; None if the agent is gone, or has none.

    Unmerged work must not be lost because a spec does not tell of it.
    """
    agent = team.directory.agent(name)
    if (spec := agent.spec.load_or_none()) is not None or not agent.folder.exists():
        return spec
    # Agents of Claude Code have no spec. A damaged roster is none of theirs.
    with contextlib.suppress(BadDataError):
        if team.config.attached is not None:
            return None
    return rebuild_spec(team, name)


def rebuild_spec(team: Team, name: str) -> Spec:
    """Return the spec of an agent from its journal; an incomplete one from its roster entry and its checkout, too."""
    spec = agents.recover_spec(team.directory.agent(name))
    if not spec.incomplete:
        return spec
    with contextlib.suppress(BadDataError):
        if (member := team.config.member(name)) is not None:
            spec = spec.replace(type=member.type, role=member.role)
    if not has_work(team, name):
        return spec
    # Enough to tell that there may be work.
    worktree = Worktree(snapshot.branch_of(team.directory, name), base="")
    with contextlib.suppress(NoRepositoryError):
        repository = workspaces.open_home(team.directory)
        worktree = checkout.find(team.directory, repository, name, _find_base(team, repository, name))
    return spec.replace(worktree=worktree.replace(carried=team.directory.carried(name).exists()))


def _find_base(team: Team, repository: Repository, name: str) -> str:
    """Return the commit at which the worktree of an agent without a spec began, as far as the repository tells."""
    if (base := repository.ref(snapshot.ref_of(team.directory, name, "base"))) is not None:
        return base
    # A commit of the agent must not be taken for one that it began at: its work would count as merged.
    head, last = repository.commit("HEAD"), repository.ref(snapshot.ref_of(team.directory, name))
    return (merge_base(repository, head, last) if last else None) or head


def is_on_host(team: Team, name: str) -> bool:
    """Return True if the checkout of an agent is on a host, so that its newest snapshot is in the store."""
    worktree = worktree_of(team, name)
    return worktree is not None and worktree.carried


def works_in_shared_tree(team: Team, name: str) -> bool:
    """Return True if an agent is on the roster and has no worktree."""
    return team.config.member(name) is not None and worktree_of(team, name) is None


def require_worktree(team: Team, name: str) -> Worktree:
    """Return the worktree of an agent.

    Raises:
        UsageError: There is no such agent, or it works in the shared tree.
        BadDataError: The team is one of Claude Code, whose agents have no worktrees here.
    """
    worktree = worktree_of(team, team.member(name).name)
    if worktree is None:
        roster.require_own_agents(team.directory)
        raise UsageError(
            f"{name} has no worktree: it works in the shared tree, {team.directory.root}; "
            f"`{command_for(team, 'spawn NAME --worktree')}` gives a new agent one"
        )
    return worktree


def read_changes(
    team: Team, repository: Repository, name: str, base: str, tip: str | None = None
) -> tuple[Changes, snapshot.Snapshot]:
    """Return what an agent changed, compared with the commit `tip` or with HEAD, and its newest snapshot.

    `base` is the commit at which its worktree began.
    """
    # Before the first snapshot, nothing is known to have changed.
    taken = snapshot.kept(team.directory, repository, name, base) or snapshot.beginning(repository, base)
    head = tip or repository.commit("HEAD")
    branch = snapshot.branch_of(team.directory, name)
    accepted = merging.accepted_base(team.directory, repository, name, head, taken)
    merges = merging.merges_of(team.directory, name)
    known = [
        (task.id, task.reviewed)
        for task in tasks.load_all(team.directory)
        if task.reviewed is not None and task.reviewed.of == name and task.reviewed.tree
    ]
    since = merging.last_merge_at(team.directory, repository, name, head) if known else 0
    reviews = sorted((each for each in known if each[1].at > since), key=lambda each: each[1].at)
    changes = changes_of(repository, taken, name, branch, head=head, accepted=accepted, merges=merges, reviews=reviews)
    return changes, taken


def _unmerged(team: Team, repository: Repository, name: str, base: str) -> Changes | None:
    changes, taken = read_changes(team, repository, name, base)
    if not changes.files or changes.is_merged:
        return None
    return None if merging.is_elsewhere(team.directory, repository, name, taken) else changes


def require_idle(team: Team, name: str, remedy: str) -> None:
    """Check that an agent is not at work; `remedy` says what to do if it is.

    Raises:
        TryLaterError: The agent is at work; `remedy` of the error is the given one.
    """
    if is_at_work(team, name):
        status = team.directory.agent(name).status.load_or_none()
        what = status.state if status is not None else "starting"
        # It may wait for an answer.
        why = f" ({status.doing})" if status is not None and what == "waiting" and status.doing else ""
        raise TryLaterError(f"{name} is {what}{why}, so its work may be half done", remedy=remedy)
