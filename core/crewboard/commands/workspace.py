"""The workspace of a team with hosts: push what agents begin with, and fetch what they did."""

from dataclasses import dataclass

from crewboard.commands.changes import (
    note_collisions,
    open_users_repository,
    require_worktree,
    why_unrelated,
    worktree_of,
)
from crewboard.commands.context import Team
from crewboard.records import OPERATOR, UsageError, Workspace
from crewboard.worktrees import snapshot, workspaces
from crewboard.worktrees.repository import GitFailedError, Repository


@dataclass(frozen=True)
class Fetched:
    """What was brought home of an agent: the snapshot `commit`, taken `at`, and what it lacks.

    `branch` was moved to it; else `note` says why not. It says, too, if the repository is that of another project. It
    is `new` if it was not here before.
    """

    agent: str
    commit: str
    branch: str
    at: float
    missing: tuple[str, ...]
    new: bool
    note: str = ""


def push(team: Team, url: str | None = None, *, force: bool = False) -> Workspace:
    """Put HEAD and the uncommitted files into the store of a team with hosts: new agents begin with them.

    With `url`, hosts fetch what is committed from that remote. Only with `force`, the history may be another one than
    that of what was pushed before.

    Raises:
        UsageError: The team is kept in files, the root is in no repository, the workspace is too large, or its history
            is another one.
        TryLaterError: Another process pushes.
        StorageError: The store failed.
    """
    team.directory.require_adopted()
    if team.directory.address is None:
        raise UsageError("agents of this team work in its root: only a team in PostgreSQL has hosts to push to")
    by = team.operator if team.by == OPERATOR else team.by
    pushed = workspaces.push(team.directory, by, team.now(), url, force=force)
    team.note("workspace", "push", pushed.commit[:12])
    return pushed


def pushed(team: Team) -> Workspace | None:
    """Return what was pushed last, None if nothing was."""
    return workspaces.load(team.directory)


def fetch(team: Team, name: str) -> Fetched | None:
    """Bring the newest work of an agent on a host into the user's repository, as a branch; None if it has none yet.

    Raises:
        UsageError: There is no such agent, or it works on no host.
        NoRepositoryError: The root is in no repository.
        BadDataError: Its objects were refused.
        StorageError: The store failed.
    """
    worktree = require_worktree(team, name)
    if not worktree.carried:
        raise UsageError(f"{name} works on this machine: its work is in {team.directory.worktree(name)}")
    repository = open_users_repository(team)
    found = workspaces.fetch(team.directory, repository, name, worktree)
    if found is None:
        return None
    note_collisions(team)
    # Not `crew/NAME`: git would find the snapshot `refs/crew/NAME` under that name, and call it ambiguous.
    branch = f"crewboard/{snapshot.branch_of(team.directory, name).removeprefix('crew/')}"
    note = _move_branch(repository, branch, found.commit) or why_unrelated(team, repository, name, worktree)
    return Fetched(name, found.commit, branch, found.at, found.missing, found.changed, note)


def fetch_all(team: Team) -> list[Fetched]:
    """Bring the newest work of every agent on a host; those that have none are left out.

    Raises:
        CrewboardError: As of `fetch`.
    """
    names = [name for name in team.config.names if (found := worktree_of(team, name)) is not None and found.carried]
    return [each for name in names if (each := fetch(team, name)) is not None]


def _move_branch(repository: Repository, branch: str, commit: str) -> str:
    """Let a branch of the user name a commit; return why it does not. What the user did in it is never lost."""
    ref, ours = f"refs/heads/{branch}", f"refs/crew/+fetched/{branch.removeprefix('crewboard/')}"
    tip = repository.ref(ref)
    if tip == commit:
        return ""
    if tip is not None and tip != repository.ref(ours):
        return f"the branch {branch} was not moved, because it has commits of yours: `git merge {commit[:12]}`"
    try:
        # git refuses to move one that is checked out.
        repository.git("branch", "--quiet", "--no-track", "--force", "--", branch, commit)
    except GitFailedError as error:
        return f"the branch {branch} was not moved: {error}"
    repository.keep(ours, commit)
    return ""
