"""The paths and the network that the tools of one agent may reach: `policy_of` decides it."""

import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from crewboard.agent_types import type_of
from crewboard.records.agents import Spec
from crewboard.sandbox.git import GitFiles, folders_below, git_files, own_teams
from crewboard.sandbox.host_paths import HostPaths, team_folders
from crewboard.store.layout import TeamDirectory


@dataclass(frozen=True)
class Policy:
    """One agent's limits. `root` and `scratch` are real paths.

    `scratch` is a private folder that lasts as long as the run. `results` are the team's results, which the file tools
    may read; a policy without them is for commands.
    """

    root: Path
    writes: bool
    network: bool = False
    scratch: Path | None = None
    results: Path | None = None
    host: HostPaths = field(default_factory=HostPaths.of_this_machine)
    git: GitFiles | None = None
    """The files that git executes in the workspace, if they were looked for just now."""
    concealed: Path | None = None
    """The team's root, if `root` is a worktree in it: another checkout, which is not this agent's."""
    borrowed: tuple[Path, ...] = ()
    """Folders of objects that the repository in `root` borrows. They can be read."""
    commits: bool = True
    """Commands may write in git directories what a commit writes; those in the background may not."""
    home: Path | None = None
    """A private folder that lasts as long as the agent: the home of its engine."""
    login: tuple[Path, Path] | None = None
    """The file with the user's login for that engine, which it can read, and where in its home it is."""
    folder: str = ""
    """The folder in `root` where commands begin and that file tools may reach; empty for all."""

    def for_file_tools(self, results: Path) -> "Policy":
        """Return the limits of the file tools, which need the team's results, but no network and no scratch folder."""
        return replace(self, network=False, scratch=None, results=results)

    def git_files(self) -> GitFiles:
        """Return what git executes in the workspace, of which an agent that writes must change nothing."""
        return self.git or git_files(self.root)

    def team_folders(self) -> list[Path]:
        """Return the folders of teams of the workspace, above it and below it."""
        below = list(self.git_files().teams) if self.writes else own_teams(folders_below(self.root))
        found = [*team_folders(self.root), *below]
        if self.concealed is None:
            return found
        # What is hidden with the team's root need not be hidden by itself.
        return [path for path in found if not path.is_relative_to(self.concealed) or path.is_relative_to(self.root)]

    @property
    def umask(self) -> int:
        """The umask that gives other users the same rights to new files as to the workspace."""
        return 0o077 & ~stat.S_IMODE(self.root.stat().st_mode)


def policy_of(team: TeamDirectory, name: str, spec: Spec) -> Policy:
    """Return what an agent may reach: in the team's root, or in its own worktree and the objects that this borrows."""
    kind, root = type_of(spec.type, spec.definition), Path(os.path.realpath(team.root))
    owner, worktree = spec.checkout(name)
    if worktree is None:
        return Policy(root, writes=kind.writes, network=spec.flags.network)
    objects = worktree.objects
    return Policy(
        Path(os.path.realpath(team.worktree(owner))),
        writes=kind.writes,
        network=spec.flags.network,
        concealed=root,
        borrowed=(Path(os.path.realpath(root / objects)),) if objects else (),
        folder=worktree.folder,
    )
