"""The policy of a sandbox: which paths the tools of an agent may reach, and whether they may use the network."""

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
    """What a sandbox of one agent may reach. `root`, its workspace or checkout, and `scratch` are real paths.

    `scratch` is a private folder that lasts as long as the run. `results` is the folder of the team's results; a policy
    with it is for the file tools, one without it for commands.
    """

    root: Path
    writes: bool
    network: bool = False
    scratch: Path | None = None
    results: Path | None = None
    host: HostPaths = field(default_factory=HostPaths.of_this_machine)
    git: GitFiles | None = None
    """The result of `git.git_files` for the workspace, if it was called just now."""
    concealed: Path | None = None
    """The team's root, which is hidden, if `root` is a worktree in it."""
    borrowed: tuple[Path, ...] = ()
    """Folders of objects that the repository in `root` borrows, which can be read."""
    commits: bool = True
    """True if commands may write in git directories what a commit writes; those in the background may not."""
    home: Path | None = None
    """The home of the agent's engine: a private folder that lasts as long as the agent."""
    login: tuple[Path, Path] | None = None
    """The file with the user's login for the engine, which can be read, and the path at which the engine finds it."""
    folder: str = ""
    """The folder in `root` where commands begin and that file tools may reach; empty for all."""

    def for_file_tools(self, results: Path) -> "Policy":
        """Return the policy for the file tools: with the team's results, without network and scratch folder."""
        return replace(self, network=False, scratch=None, results=results)

    def git_files(self) -> GitFiles:
        """Return the files in the workspace that must be protected because of git; they are looked for if need be."""
        return self.git or git_files(self.root)

    def team_folders(self) -> list[Path]:
        """Return the `.crewboard` folders of the workspace, above it and below it, which must be hidden."""
        below = list(self.git_files().teams) if self.writes else own_teams(folders_below(self.root))
        found = [*team_folders(self.root), *below]
        if self.concealed is None:
            return found
        # What is hidden with the team's root need not be hidden by itself.
        return [path for path in found if not path.is_relative_to(self.concealed) or path.is_relative_to(self.root)]

    @property
    def umask(self) -> int:
        """Return the umask with which new files give other users no more rights than the workspace does."""
        return 0o077 & ~stat.S_IMODE(self.root.stat().st_mode)


def policy_of(team: TeamDirectory, name: str, spec: Spec) -> Policy:
    """Return the policy for the tools of an agent: in the team's root, or in the worktree that it works in."""
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
