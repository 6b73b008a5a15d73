"""The user's settings of the dashboard, from environment variables and files, and how each team was left.

Invalid settings are reported.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeVar

from msgspec import Struct, field

from crewboard import CrewboardError, env
from crewboard.records.messages import LastVisit
from crewboard.store import files, json_records
from crewboard.store.layout import key_of
from crewboard_tui.keymap.user_file import keymap_path, read_keymap
from crewboard_tui.notifications import WAYS, Notify
from crewboard_tui.render.themes import THEMES, ThemeName

log = logging.getLogger(__name__)

T = TypeVar("T", bound=str)


class Settings(Struct, frozen=True):
    """The dashboard's settings.

    `keys` are those that differ from the default, by id. `remembers` is the file that stores the theme, `drafts` the
    directory of unsent texts, `sent` the directory of texts sent last, `visits` the directory of how teams were left;
    None if they are not stored. `problems` are sentences about invalid settings.
    """

    notify: Notify = "off"
    theme: ThemeName = "dark"
    reduced_motion: bool = False
    remembers: Path | None = None
    drafts: Path | None = None
    sent: Path | None = None
    visits: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings from this environment, and from the files of the user."""
        problems: list[str] = []
        notify = _one_of(env.NOTIFY, WAYS, environment, problems)
        theme = _one_of(env.THEME, tuple(THEMES), environment, problems)
        remembers = env.state_home(environment) / "theme"
        keymap = read_keymap(keymap_path())
        return cls(
            notify=notify or "off",
            theme=theme or _remembered(remembers),
            reduced_motion=env.has_reduced_motion(environment),
            remembers=remembers,
            drafts=env.state_home(environment) / "drafts",
            sent=env.state_home(environment) / "sent",
            visits=env.visits_folder(environment),
            keys=keymap.keys,
            problems=(*problems, *keymap.problems),
        )

    def remember(self, theme: ThemeName) -> None:
        """Store a theme for the next start.

        Raises:
            OSError: It cannot be stored.
        """
        if self.remembers is not None:
            files.make_private_folders(self.remembers.parent)
            files.replace_file(self.remembers, f"{theme}\n".encode())


def read_visit(file: Path | None) -> LastVisit:
    """Return how the user left a team; the default if that is not known."""
    try:
        found = json_records.load_or_none(key_of(file), LastVisit) if file is not None else None
    except CrewboardError as error:
        log.warning("how the team was left cannot be read: %s", error)
        found = None
    return found or LastVisit()


def keep_visit(file: Path | None, visit: LastVisit) -> None:
    """Store how the user leaves a team."""
    if file is None:
        return
    try:
        files.make_private_folders(file.parent)
        json_records.save(key_of(file), visit)
    except (CrewboardError, OSError) as error:
        log.warning("how the team was left is not kept: %s", error)


def _remembered(file: Path) -> ThemeName:
    """Return the stored theme; the default if there is none or it cannot be read."""
    try:
        given = file.read_text().strip()
    except (OSError, ValueError):
        return "dark"
    return next((name for name in THEMES if name == given), "dark")


def _one_of(name: str, known: tuple[T, ...], environment: Mapping[str, str], problems: list[str]) -> T | None:
    given = environment.get(name, "").strip().lower()
    for value in known:
        if value == given:
            return value
    if given:
        problems.append(f"{name}={given} is invalid; use one of {', '.join(known)}")
    return None
