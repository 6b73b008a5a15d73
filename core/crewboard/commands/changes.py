"""What agents with worktrees changed: list it, read it, merge it, undo that, or discard it.

All of this is done with objects in the user's repository. No git runs in an agent's checkout outside a sandbox.
"""

import contextlib
from dataclasses import dataclass

from crewboard import store
from crewboard.commands.context import Team, command_for
from crewboard.commands.tasks import last_checked
from crewboard.records import (
    OPERATOR,
    Acceptance,
    BadDataError,
    CrewboardError,
    How,
    Spec,
    Status,
    TryLaterError,
    UsageError,
    Worktree,
    is_name,
)
from crewboard.worktrees import acceptance, checkout, snapshot
from crewboard.worktrees.changes import Changes, changes_of, diff_of, is_ancestor, merged_ref_of, with_collisions
from crewboard.worktrees.repository import NoRepositoryError, Repository, open_repository


@dataclass(frozen=True)
class Merge:
    """A merge, made or previewed: where to, the files that it changes there, and the message of its last commit."""

    acceptance: Acceptance
    changes: Changes
    message: str


@dataclass(frozen=True)
class Checkout:
    """A worktree of an agent on the roster, or one that is left of an agent that was removed.

    `exists` says that its folder is there. `changes` is what is not merged; None if there is nothing.
    """

    name: str
    path: str
    branch: str
    removed: bool
    exists: bool
    changes: Changes | None


def list_changes(team: Team, names: list[str] | None = None) -> list[Changes]:
    """Return what each agent changed, or each of `names`, in the order of the roster, as of its newest snapshot.

    Agents without a worktree are left out: they work in the same tree.

    Raises:
        UsageError: There is no such agent.
        NoRepositoryError: The root is in no repository.
        GitFailedError: git cannot read the repository.
    """
    chosen = team.config.names if names is None else [team.member(name).name for name in names]
    # Of all, because each of them may collide with one that was chosen.
    worktrees = {name: worktree for name in team.config.names if (worktree := worktree_of(team, name)) is not None}
    if worktrees.keys().isdisjoint(chosen):
        return []
    repository = open_repository(team.directory.root)
    found = [_changes(team, repository, name, worktree.base)[0] for name, worktree in worktrees.items()]
    return [each for each in with_collisions(repository, found) if each.agent in chosen]


def read_diff(team: Team, name: str, path: str | None = None) -> str:
    """Return what an agent changed, or its change of one file, as a unified diff. File names need not be UTF-8.

    Raises:
        UsageError: There is no such agent, or it has no worktree.
        GitFailedError: git cannot read the repository.
    """
    worktree = require_worktree(team, name)
    repository = open_repository(team.directory.root)
    return diff_of(repository, _changes(team, repository, name, worktree.base)[0], path)


def take_snapshot(team: Team, name: str) -> tuple[str, ...]:
    """Take a new snapshot of an agent's checkout, if it has one, so that what it changed until now is known.

    Return descriptions of what could not be taken in.

    Raises:
        CrewboardError: The checkout cannot be read.
    """
    spec = store.json_files.load_or_none(team.directory.agent(name).spec, Spec)
    if spec is not None and spec.worktree is not None and team.directory.worktree(name).is_dir():
        return snapshot.take(team.directory, name, spec).missing
    return ()


def merge(
    team: Team,
    name: str,
    *,
    how: How = "squash",
    into: str | None = None,
    message: str | None = None,
    now: bool = False,
    dry_run: bool = False,
    unchecked: bool = False,
) -> Merge | None:
    """Bring the work of an agent, committed or not, into the branch that is checked out, or into `into`.

    Return None if all of it is there already. With `now`, take the last snapshot also while the agent is at work. With
    `dry_run`, only check that it would work. With `unchecked`, merge also if the check of its task failed last.

    Raises:
        UsageError: There is no such agent or branch, the agent has no worktree, or the branch is checked out elsewhere.
        BadDataError: It does not apply, its check failed, or it would overwrite what the user did not commit.
        TryLaterError: The agent is at work, or git or another merge is.
    """
    worktree = require_worktree(team, name)
    if message is not None and not message.strip():
        raise UsageError("the message is empty")
    if not unchecked:
        _require_checked(team, name)
    if not now:
        _require_idle(team, name)
        take_snapshot(team, name)
    repository = open_repository(team.directory.root)
    with acceptance.open_mover(team.directory, repository) as mover:
        target = acceptance.find_target(repository, into)
        changes, taken = _changes(team, repository, name, worktree.base, target.tip)
        new = acceptance.make_commit(repository, target, changes, taken, how, message)
        if new is None:
            return None
        mover.require_clean(target, new)
        made = Acceptance(
            id=store.mailbox.new_id(), agent=name, commit=taken.commit, base=changes.base, how=how, ref=target.ref,
            before=target.tip, result=new, at=team.now(), by=team.operator if team.by == OPERATOR else team.by,
        )  # fmt: skip
        if not dry_run:
            mover.move(target, new, made)
    if not dry_run:
        team.note("merge", name, f"{how} into {target.name}, {new[:12]}")
    return Merge(made, changes, repository.git("log", "-1", "--format=%B", new))


def merge_into_branch(team: Team, name: str, branch: str, *, message: str | None = None) -> Merge | None:
    """Merge the work of an agent into a branch that is not checked out, as a lead does.

    A branch that is missing is made at HEAD. Return None if all of it is there already.

    Raises:
        UsageError: There is no such agent, it has no worktree, or the branch is checked out or has no possible name.
        BadDataError: It does not apply.
        TryLaterError: The agent is at work, or another merge is under way.
    """
    repository = open_repository(team.directory.root)
    if branch == repository.branch():
        raise UsageError(f"{branch} is checked out, and only the operator changes it: choose another branch")
    try:
        repository.git("check-ref-format", "--branch", branch)
    except CrewboardError:
        raise UsageError(f"{branch!r} cannot name a branch") from None
    if repository.ref(f"refs/heads/{branch}") is None:
        repository.git("branch", "--no-track", "--", branch, "HEAD")
    return merge(team, name, into=branch, message=message)


def undo(team: Team, name: str | None = None) -> Acceptance:
    """Take the last merge back, or the last one of an agent: reset the branch if nothing came after, else revert it.

    Raises:
        UsageError: There is none, or its branch does not contain it any more.
        BadDataError: Later commits changed the same lines, or it would overwrite what the user did not commit.
        TryLaterError: Another merge is under way, or git is.
    """
    repository = open_repository(team.directory.root)
    with acceptance.open_mover(team.directory, repository) as mover:
        known = (each for each in reversed(mover.record.acceptances) if each.undone is None)
        last = next((each for each in known if name in (None, each.agent)), None)
        if last is None:
            raise UsageError(f"no merge of {name} to undo" if name else "no merge to undo")
        branch = last.ref.removeprefix("refs/heads/")
        target = acceptance.find_target(repository, None if last.ref == "HEAD" else branch)
        if target.ref != last.ref or not is_ancestor(repository, last.result, target.tip):
            raise UsageError(f"{branch} does not contain the merge of {last.agent} ({last.result[:12]}) any more")
        at_tip = target.tip == last.result
        new = last.before if at_tip else acceptance.make_revert(repository, target, last) or target.tip
        mover.require_clean(target, new)
        undone = last.model_copy(update={"undone": new})
        mover.move(target, new, undone)
    team.note("undo", last.agent, f"{'reset' if at_tip else 'revert'} {branch}, {new[:12]}")
    return undone


def recover(team: Team) -> bool:
    """Finish or take back a merge or undo that was killed; return False if there is none."""
    if acceptance.load(team.directory).move is None:
        return False
    with acceptance.open_mover(team.directory, open_repository(team.directory.root)):
        return True


def unmerged(team: Team, name: str) -> Changes | None:
    """Return the work of an agent that is in no branch of the user; None if there is nothing.

    Raises:
        CrewboardError: It cannot be found out.
    """
    worktree = worktree_of(team, name)
    if worktree is None:
        return None
    missing = take_snapshot(team, name)
    try:
        repository = open_repository(team.directory.root)
    except NoRepositoryError:
        # Neither the checkout nor the repository is left.
        if not team.directory.worktree(name).exists():
            return None
        raise
    left = _unmerged(team, repository, name, worktree.base)
    if left is None and missing:
        raise BadDataError(f"a snapshot cannot have all of its checkout: {'; '.join(missing)}")
    return left


def require_merged(team: Team, names: list[str]) -> None:
    """Refuse to lose the work of agents.

    Raises:
        UsageError: One of them has unmerged work; the message says how to go on.
    """
    for name in names:
        try:
            left = unmerged(team, name)
        except CrewboardError as error:
            raise UsageError(
                f"it is unknown whether {name} has unmerged work: {error}; "
                f"`{command_for(team, f'discard {name}')}` throws it away"
            ) from error
        if left is not None:
            files = f"{len(left.files)} file{'' if len(left.files) == 1 else 's'}"
            raise UsageError(
                f"{name} has unmerged work in {files} (+{left.added} -{left.removed}): "
                f"`{command_for(team, f'merge {name}')}` keeps it, "
                f"`{command_for(team, f'discard {name}')}` throws it away"
            )


def discard(team: Team, name: str) -> str | None:
    """Throw away the work of an agent that is not running; return the commit that still has it for some weeks, if any.

    Raises:
        UsageError: There is no such worktree.
        TryLaterError: The agent is running.
    """
    if store.leases.is_held(team.directory.agent(name).lease):
        raise TryLaterError(f"{name} is alive; stop it first: `{command_for(team, f'stop {name}')}`")
    if team.config.member(name) is not None:
        require_worktree(team, name)
    elif name not in [each.name for each in list_worktrees(team)]:
        raise UsageError(f"there is no worktree of {name!r}; `{command_for(team, 'worktree list')}` lists them")
    with contextlib.suppress(CrewboardError):
        take_snapshot(team, name)
    last = forget(team, name, base=team.config.member(name) is None)
    team.note("discard", name, last[:12] if last else "")
    return last


def forget(team: Team, name: str, *, base: bool) -> str | None:
    """Remove the checkout of an agent and the refs of its work; return its last snapshot, if there is one.

    With `base`, remove the ref of its base as well: the checkout cannot be made again.
    """
    checkout.remove(team.directory, name)
    try:
        repository = open_repository(team.directory.root)
    except NoRepositoryError:
        return None
    with acceptance.open_mover(team.directory, repository) as mover:
        mover.discard(name)
    last = repository.ref(snapshot.ref_of(team.directory, name))
    refs = [snapshot.ref_of(team.directory, name), merged_ref_of(team.directory, name)]
    if base:
        refs.append(snapshot.base_ref_of(team.directory, name))
    for ref in refs:
        repository.git("update-ref", "-d", ref)
    return last


def list_worktrees(team: Team) -> list[Checkout]:
    """Return the worktrees of the agents, and what is left of removed ones.

    Raises:
        NoRepositoryError: The root is in no repository.
    """
    hired = [name for name in team.config.names if worktree_of(team, name) is not None]
    try:
        repository = open_repository(team.directory.root)
    except NoRepositoryError:
        if hired or team.directory.worktrees.exists():
            raise
        return []
    return [
        Checkout(
            name,
            str(team.directory.worktree(name)),
            snapshot.branch_of(team.directory, name),
            removed=name not in hired,
            exists=team.directory.worktree(name).is_dir(),
            changes=_unmerged(team, repository, name, _base(team, repository, name)),
        )
        for name in [*hired, *_left(team, repository)]
    ]


def prune(team: Team) -> tuple[list[str], list[str]]:
    """Remove what is left of removed agents; return their names, and those whose work is unmerged: that is kept.

    Raises:
        NoRepositoryError: The root is in no repository.
    """
    left = [each for each in list_worktrees(team) if each.removed]
    gone = [each.name for each in left if each.changes is None]
    for name in gone:
        forget(team, name, base=True)
    if gone:
        team.note("prune", detail=", ".join(gone))
    return gone, [each.name for each in left if each.changes is not None]


def worktree_of(team: Team, name: str) -> Worktree | None:
    """Return the worktree of an agent; None if it works in the shared tree."""
    spec = store.json_files.load_or_none(team.directory.agent(name).spec, Spec)
    return spec.worktree if spec is not None else None


def require_worktree(team: Team, name: str) -> Worktree:
    """Return the worktree of an agent.

    Raises:
        UsageError: There is no such agent, or it works in the shared tree.
    """
    worktree = worktree_of(team, team.member(name).name)
    if worktree is None:
        raise UsageError(
            f"{name} has no worktree: it works in the shared tree, {team.directory.root}; "
            f"`{command_for(team, 'spawn NAME --worktree')}` gives a new agent one"
        )
    return worktree


def _changes(
    team: Team, repository: Repository, name: str, base: str, tip: str | None = None
) -> tuple[Changes, snapshot.Snapshot]:
    """Return what an agent changed, compared with `tip` or HEAD, and the snapshot that has it."""
    # Before the first snapshot, nothing is known to have changed.
    taken = snapshot.kept(team.directory, repository, name, base) or snapshot.Snapshot(
        base, base, repository.git("rev-parse", f"{base}^{{tree}}"), base
    )
    head = tip or repository.commit("HEAD")
    accepted = acceptance.accepted_base(team.directory, repository, name, head, taken)
    branch = snapshot.branch_of(team.directory, name)
    return changes_of(repository, taken, name, branch, head=head, accepted=accepted), taken


def _unmerged(team: Team, repository: Repository, name: str, base: str) -> Changes | None:
    changes, taken = _changes(team, repository, name, base)
    if not changes.files or acceptance.is_contained(repository, changes, taken):
        return None
    return None if acceptance.is_elsewhere(team.directory, repository, name, taken) else changes


def _base(team: Team, repository: Repository, name: str) -> str:
    """Return the commit at which a worktree began, also that of a removed agent."""
    worktree = worktree_of(team, name)
    if worktree is not None:
        return worktree.base
    kept = repository.ref(snapshot.base_ref_of(team.directory, name))
    return kept or repository.ref(f"{snapshot.ref_of(team.directory, name)}^1") or repository.commit("HEAD")


def _left(team: Team, repository: Repository) -> list[str]:
    """Return the removed agents of which there is a checkout or work."""
    start = snapshot.ref_of(team.directory, "")
    refs = repository.git("for-each-ref", "--format=%(refname)", start.rstrip("/")).splitlines()
    names = {ref.removeprefix(start) for ref in refs}
    names |= {path.name for path in team.directory.worktrees.glob("*") if path.is_dir()}
    return sorted(name for name in names if is_name(name) and team.config.member(name) is None)


def _require_checked(team: Team, name: str) -> None:
    task = last_checked(team, name)
    if task is not None and task.checked is not None and not task.checked.passed:
        raise BadDataError(
            f"the check `{task.checked.command}` of {name} failed last, its output is in {task.checked.result}; "
            f"`{command_for(team, f'check {name}')}` runs it again, "
            f"`{command_for(team, f'merge {name} --unchecked')}` merges it anyway"
        )


def _require_idle(team: Team, name: str) -> None:
    agent = team.directory.agent(name)
    status = store.json_files.load_or_none(agent.status, Status)
    if store.leases.is_held(agent.lease) and (status is None or status.state != "idle"):
        what = status.state if status is not None else "starting"
        raise TryLaterError(
            f"{name} is {what}, so its work may be half done; wait for it, or take the last snapshot with --now"
        )
