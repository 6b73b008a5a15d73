"""The workspace of a team with hosts: push the files that agents begin with, and fetch their work."""

from collections.abc import Sequence
from dataclasses import dataclass

from crewboard.commands.changes import note_collisions, require_worktree, worktree_of
from crewboard.commands.context import Team, command_for
from crewboard.errors import UsageError
from crewboard.names import OPERATOR
from crewboard.records.agents import HireOptions, Worktree
from crewboard.records.base import counted
from crewboard.records.team import Workspace
from crewboard.worktrees import workspaces
from crewboard.worktrees.repository import NoRepositoryError


@dataclass(frozen=True)
class Fetched:
    """The work of an agent that was fetched: its snapshot `commit`, taken `at`.

    `missing` describes what the snapshot could not take in. `branch` was moved to the commit, unless `note` says why
    not; `note` also says if the repository is that of another project. `new` is True if the commit was not here before.
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

    With `url`, hosts fetch the commits from that remote. Without `force`, a repository that has no history in common
    with the last push is refused.

    Raises:
        UsageError: The team is kept in files, the root is in no repository, the workspace is too large, or it has no
            history in common with the last push.
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
    """Return the workspace that was pushed last; None if none was."""
    return team.directory.workspace.load()


def describe_unpushed(team: Team, pushed: Workspace) -> str:
    """Return in words how many commits of this repository are newer than the last push; empty if none are."""
    count = workspaces.unpushed(team.directory, pushed)
    if not count:
        return ""
    push = f"`{command_for(team, 'workspace push')}`"
    return f"this repository has {counted(count, 'commit')} that agents on hosts do not begin with: {push}"


def fetch(team: Team, name: str) -> Fetched | None:
    """Bring the newest work of an agent on a host into the user's repository, as a branch; None if it has none yet.

    Raises:
        UsageError: There is no such agent, or it works on no host.
        NoRepositoryError: The root is in no repository.
        BadDataError: git refused the objects.
        StorageError: The store failed.
    """
    worktree = require_worktree(team, name)
    if not worktree.carried:
        raise UsageError(f"{name} works on this machine: its work is in {team.directory.worktree(name)}")
    repository = workspaces.open_home(team.directory)
    found = workspaces.fetch(team.directory, repository, name, worktree)
    if found is None:
        return None
    note_collisions(team)
    branch = workspaces.branch_at_home(team.directory, name)
    note = workspaces.move_branch(team.directory, repository, name, found.commit)
    note = note or workspaces.why_unrelated(team.directory, repository, name, worktree)
    return Fetched(name, found.commit, branch, found.at, found.missing, found.changed, note)


def fetch_all(team: Team) -> list[Fetched]:
    """Fetch the newest work of every agent on a host; agents that have none are left out.

    Raises:
        CrewboardError: The errors of `fetch`.
    """
    names = [name for name in team.config.names if (found := worktree_of(team, name)) is not None and found.carried]
    return [each for name in names if (each := fetch(team, name)) is not None]


def left_branches(team: Team, names: Sequence[str]) -> list[str]:
    """Return a sentence for each branch made by `fetch` that is left of these agents: why, and how to remove it."""
    try:
        repository = workspaces.open_home(team.directory)
    except NoRepositoryError:
        return []
    left = ((workspaces.branch_at_home(team.directory, name), name) for name in names)
    return [
        f"the branch {branch} stays: it has commits of yours, or is checked out; `git branch -D {branch}` removes it"
        for branch, name in left
        if workspaces.has_branch(team.directory, repository, name)
    ]


def worktree_on_hosts(team: Team, name: str, flags: HireOptions) -> tuple[Worktree | None, str]:
    """Return the worktree that a host will make for a new agent, and a note for its hirer.

    The worktree is None if no workspace was pushed.

    Raises:
        UsageError: The hire asks for a worktree, and none was pushed; for a commit, which hosts cannot do; or for the
            work of an agent that does not exist.
    """
    source = flags.start_from
    if source is not None and (source == name or team.config.member(source) is None):
        raise UsageError(f"{name} cannot start from {source}: there is no such other agent")
    if flags.base is not None:
        raise UsageError("hosts know the commits that were pushed: check it out, and `crewboard workspace push` it")
    pushed = team.directory.workspace.load()
    if pushed is None:
        push = f"`{command_for(team, 'workspace push')}`"
        if source is not None or flags.worktree:
            raise UsageError(f"{name} was not hired: no workspace was pushed; {push} does that")
        note = f"agents work in the roots of their hosts; {push} gives them your files"
        return None, "" if team.config.members else note
    old = worktree_of(team, name)
    if old is not None and old.carried and team.directory.carried(name).load() is not None:
        return old, ""
    has_begun = source is not None and team.directory.carried(source).load() is not None
    notes = [] if has_begun else [describe_unpushed(team, pushed)]
    if source is not None and not has_begun:
        notes.insert(0, f"{source} has changed nothing yet: {name} begins with the pushed workspace")
    return workspaces.worktree_on_hosts(team.directory, name, pushed), "; ".join(filter(None, notes))
