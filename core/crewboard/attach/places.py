"""The paths of Claude Code's files, and the team directories that mirror its teams.

Imports little, because a hook must start in milliseconds.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from crewboard.store import team_marks

PROGRAM: Final = "claude-code"
"""`AttachedTeam.program` of the teams that this package mirrors."""

_TEAMS_FOLDER = ".crewboard"
"""The same as `names.TEAMS_FOLDER`, repeated to import less."""

_DIGITS = 8


def config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return Claude Code's configuration directory: `$CLAUDE_CONFIG_DIR`, else `~/.claude`."""
    given = environment.get("CLAUDE_CONFIG_DIR", "")
    return Path(os.path.realpath(given)) if given else Path.home() / ".claude"


def directory_name(config: Path, team: str) -> str:
    """Return the name of the team directory that mirrors Claude Code's `team` in the configuration directory."""
    digest = hashlib.sha256(f"{os.path.realpath(config)}\0{team}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"claude-{digest[:_DIGITS]}"


def find_attached(cwd: Path, session_ids: Collection[str]) -> Path | None:
    """Return the team directory that mirrors the team of one of these sessions; None if there is none.

    The `.crewboard` folders of `cwd` and of its parents are searched.
    """
    for team, attached in _mirrors(cwd):
        if attached is not None and any(each in attached["session_ids"] for each in session_ids):
            return team
    return None


def find_damaged(cwd: Path) -> Path | None:
    """Return a mirror whose `config.json` is damaged, so that its sessions are not known; None if there is none.

    The same folders are searched as in `find_attached`.
    """
    return next((team for team, attached in _mirrors(cwd) if attached is None), None)


def _mirrors(cwd: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield the pairs of `_mirrors_in` for the `.crewboard` folders of `cwd` and of its parents."""
    here = Path(os.path.realpath(cwd))
    for folder in (here, *here.parents):
        yield from _mirrors_in(folder / _TEAMS_FOLDER)


def _mirrors_in(folder: Path) -> list[tuple[Path, dict[str, Any] | None]]:
    """Return the mirrors in a folder, the last changed first, each with `attached` of its `config.json`.

    That is None if the file is damaged.
    Mirrors that this user did not make, as in a cloned repository, are left out: they could name any session.
    """
    found: list[tuple[float, Path, dict[str, Any] | None]] = []
    try:
        teams = sorted(path for path in folder.iterdir() if path.name.startswith("claude-"))
    except OSError:
        return []
    for team in teams:
        config, changed, attached = team / "config.json", 0.0, None
        # Where it cannot be read whether a mirror is foreign, the code that uses the mirror refuses it.
        with contextlib.suppress(OSError):
            if not team_marks.is_marked(team):
                continue
        try:
            changed = config.stat().st_mtime
            attached = json.loads(config.read_bytes()).get("attached")
            if attached is None or attached.get("program") != PROGRAM:
                continue
            is_damaged = not isinstance(attached.setdefault("session_ids", []), list)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, AttributeError, RecursionError):
            is_damaged = True
        found.append((changed, team, None if is_damaged else attached))
    return [(path, attached) for _, path, attached in sorted(found, key=lambda each: each[0], reverse=True)]


@dataclass(frozen=True)
class Places:
    """The files of one configuration directory of Claude Code."""

    config: Path

    @property
    def teams(self) -> Path:
        """Return the folder with one folder for each team."""
        return self.config / "teams"

    @property
    def sessions(self) -> Path:
        """Return the folder with one file for each running session."""
        return self.config / "sessions"

    @property
    def projects(self) -> Path:
        """Return the folder that has one folder of transcripts for each working directory."""
        return self.config / "projects"

    def roster(self, team: str) -> Path:
        """Return the file that lists the members of a team."""
        return self.teams / team / "config.json"

    def inboxes(self, team: str) -> Path:
        """Return the folder of a team's inbox files, one for each member: letters that were not read yet."""
        return self.teams / team / "inboxes"

    def tasks(self, team: str) -> Path:
        """Return the folder with one file for each task of a team."""
        return self.config / "tasks" / team

    def team_names(self) -> list[str]:
        """Return the names of the teams that have a roster, without those that are being deleted."""
        try:
            names = [path.name for path in self.teams.iterdir()]
        except OSError:
            return []
        return sorted(name for name in names if ".deleted-" not in name and self.roster(name).exists())
