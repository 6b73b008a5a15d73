"""Snapshots of worktrees: an agent's whole checkout as a commit of the user's repository, kept by a ref."""

from dataclasses import dataclass

from crewboard.store import DEFAULT_TEAM, TeamDirectory


@dataclass(frozen=True)
class Snapshot:
    """A checkout at one moment. `commit` has its whole tree, committed or not, and the one parent `head`.

    `head` is the commit that the agent itself has checked out, `base` the one at which its worktree began. `missing`
    describes what could not be taken in, such as files that cannot be read.
    """

    commit: str
    head: str
    tree: str
    base: str
    missing: tuple[str, ...] = ()


def branch_of(team: TeamDirectory, name: str) -> str:
    """Return the branch of an agent: `crew/NAME`, and in a team other than the default one `crew/@TEAM/NAME`."""
    return f"crew/{name}" if team.path.name == DEFAULT_TEAM else f"crew/@{team.path.name}/{name}"


def ref_of(team: TeamDirectory, name: str) -> str:
    """Return the full name of the ref that keeps the newest snapshot of an agent."""
    return f"refs/{branch_of(team, name)}"
