"""Programs in a workspace, first on PATH, as an agent could plant them where the user activated an environment."""

import os
from pathlib import Path

NAMES = ("bwrap", "git", "true", "uname", "lsb_release", "ldconfig")
SHELLS = ("bash", "sh", "env")
"""Programs that the agents' own scripts in the sandbox would also run."""


class Planted:
    """The programs of `root/.venv/bin`, each of which records that it ran."""

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
        """Return a PATH on which these programs come first."""
        return f"{self._folder}{os.pathsep}{os.environ['PATH']}"

    @property
    def ran(self) -> list[str]:
        """Return the programs that ran, with the key that they found."""
        noted = self.root / "ran"
        return noted.read_text().splitlines() if noted.exists() else []
