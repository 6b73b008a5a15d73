"""What agents with worktrees changed: list it and read it. It is read from the user's repository alone."""

from crewboard import store
from crewboard.commands.context import Team
from crewboard.records import Spec, UsageError, Worktree
from crewboard.worktrees.changes import Changes, changes_of, diff_of
from crewboard.worktrees.repository import Repository, open_repository
from crewboard.worktrees.snapshot import Snapshot, kept


def list_changes(team: Team, names: list[str] | None = None) -> list[Changes]:
    """Return what each agent changed, or each of `names`, in the order of the roster.

    Agents without a worktree are left out: they work in the same tree.

    Raises:
        UsageError: There is no such agent, or the root is in no repository.
        GitFailedError: git cannot read the repository.
    """
    chosen = team.config.names if names is None else [team.member(name).name for name in names]
    found = [(name, worktree) for name in chosen if (worktree := worktree_of(team, name)) is not None]
    if not found:
        return []
    repository = open_repository(team.directory.root)
    return [_changes(team, repository, name, worktree) for name, worktree in found]


def read_diff(team: Team, name: str, path: str | None = None) -> str:
    """Return what an agent changed, or its change of one file, as a unified diff. File names need not be UTF-8.

    Raises:
        UsageError: There is no such agent, or it has no worktree.
        GitFailedError: git cannot read the repository.
    """
    worktree = require_worktree(team, name)
    repository = open_repository(team.directory.root)
    return diff_of(repository, _changes(team, repository, name, worktree), path)


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
        raise UsageError(f"{name} has no worktree: it works in the shared tree, {team.directory.root}")
    return worktree


def _changes(team: Team, repository: Repository, name: str, worktree: Worktree) -> Changes:
    snapshot = kept(team.directory, repository, name, worktree.base)
    # Before the first snapshot, nothing is known to have changed.
    snapshot = snapshot or Snapshot(worktree.base, worktree.base, f"{worktree.base}^{{tree}}", worktree.base)
    return changes_of(repository, snapshot, name, worktree.branch)
