"""What the tools of one agent may reach."""

import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

from crewboard.sandbox.host_paths import HostPaths


@dataclass(frozen=True)
class Policy:
    """One agent's limits. `root` and `scratch` are real paths.

    `scratch` is a private folder that lasts as long as the run. `results` are the team's results, which `hands` may
    read; a policy without them is for commands.
    """

    root: Path
    writes: bool
    network: bool = False
    scratch: Path | None = None
    results: Path | None = None
    places: HostPaths = field(default_factory=HostPaths.look)

    def for_hands(self, results: Path) -> "Policy":
        """The limits of the file tools: they need neither network nor scratch, but the team's results."""
        return replace(self, network=False, scratch=None, results=results)

    @property
    def umask(self) -> int:
        """New files are as open to others as the workspace is."""
        return 0o077 & ~stat.S_IMODE(self.root.stat().st_mode)
