"""Programs in a workspace, first on PATH, as an agent could put them where a user has activated an environment."""

import os
from pathlib import Path

NAMES = ("bwrap", "git", "true", "uname", "lsb_release", "ldconfig")
SHELLS = ("bash", "sh", "env")
"""These would also be run by scripts that the agents themselves run, in their sandbox."""


class Planted:
    """The programs of `root/.venv/bin`, each of which notes that it ran."""

    def __init__(self, root: Path, names: tuple[str, ...] = NAMES) -> None:
        self.root = root
        self._folder = root / ".venv/bin"
        self._folder.mkdir(parents=True)
        (root / ".crewboard").mkdir(exist_ok=True)
        for name in names:
            program = self._folder / name
            program.write_text(f'#!/bin/sh\necho "{name} $ANTHROPIC_API_KEY" >> {root}/ran\nexit 1\n')
            program.chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH on which they come first."""
        return f"{self._folder}{os.pathsep}{os.environ['PATH']}"

    @property
    def ran(self) -> list[str]:
        """Those that ran, with the key that they found."""
        noted = self.root / "ran"
        return noted.read_text().splitlines() if noted.exists() else []
