"""Where a person's own settings lie: folders of the XDG base directory specification, for their eyes alone."""

from collections.abc import Mapping
from pathlib import Path


def config_home(environment: Mapping[str, str]) -> Path:
    """What the person wrote: `$XDG_CONFIG_HOME/crewboard`, else `~/.config/crewboard`."""
    return _home(environment, "XDG_CONFIG_HOME", ".config")


def state_home(environment: Mapping[str, str]) -> Path:
    """What is remembered for them: `$XDG_STATE_HOME/crewboard`, else `~/.local/state/crewboard`."""
    return _home(environment, "XDG_STATE_HOME", ".local/state")


def make_private(folder: Path) -> None:
    """Make a folder of ours, and those above it that are missing, for nobody else.

    Raises:
        OSError: It cannot be made.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def _home(environment: Mapping[str, str], variable: str, usual: str) -> Path:
    given = Path(environment.get(variable, ""))  # a relative one is to be ignored, says the specification
    return (given if given.is_absolute() else Path.home() / usual) / "crewboard"
