"""The user's own directories, following the XDG base directory specification. They are private (0700)."""

from collections.abc import Mapping
from pathlib import Path


def config_home(environment: Mapping[str, str]) -> Path:
    """Return the directory of configuration: `$XDG_CONFIG_HOME/crewboard`, else `~/.config/crewboard`."""
    return _home(environment, "XDG_CONFIG_HOME", ".config")


def state_home(environment: Mapping[str, str]) -> Path:
    """Return the directory of saved state: `$XDG_STATE_HOME/crewboard`, else `~/.local/state/crewboard`."""
    return _home(environment, "XDG_STATE_HOME", ".local/state")


def make_private(folder: Path) -> None:
    """Create a directory and its missing parents, accessible only to the user.

    Raises:
        OSError: It cannot be created.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def _home(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    # The specification says to ignore a relative path.
    given = Path(environment.get(variable, ""))
    return (given if given.is_absolute() else Path.home() / usual) / "crewboard"
