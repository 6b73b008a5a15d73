"""The user's own directories, following the XDG base directory specification. They are private (0700)."""

from pathlib import Path

import platformdirs


def config_home() -> Path:
    """Return the directory of configuration: `$XDG_CONFIG_HOME/crewboard`, else `~/.config/crewboard`."""
    return platformdirs.user_config_path("crewboard")


def state_home() -> Path:
    """Return the directory of saved state: `$XDG_STATE_HOME/crewboard`, else `~/.local/state/crewboard`."""
    return platformdirs.user_state_path("crewboard")


def make_private(folder: Path) -> None:
    """Create a directory and its missing parents, accessible only to the user.

    Raises:
        OSError: It cannot be created.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)
