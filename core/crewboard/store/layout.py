"""Where everything of a team lies (docs/reference/files.md). Nothing else spells a path."""

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from crewboard.errors import CrewboardError, StorageError, UsageError
from crewboard.names import TEAMS_FOLDER, is_name
from crewboard.store import files

HOME = TEAMS_FOLDER
DEFAULT_TEAM = "default"


@dataclass(frozen=True)
class AgentDirectory:
    """The files of one agent."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def cursor(self) -> Path:
        return self.path / "cursor.json"

    @property
    def exit(self) -> Path:
        return self.path / "exit.json"

    @property
    def lease(self) -> Path:
        return self.path / "lease"

    @property
    def log(self) -> Path:
        return self.path / "worker.log"

    @property
    def live(self) -> Path:
        return self.path / "live"

    @property
    def team(self) -> "TeamDirectory":
        return TeamDirectory(self.path.parent.parent)


@dataclass(frozen=True)
class TeamDirectory:
    """The directory of one team: `<root>/.crewboard/<team>/`."""

    path: Path

    @property
    def root(self) -> Path:
        """The workspace that the agents work in."""
        return self.path.parent.parent

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def inboxes(self) -> Path:
        return self.path / "inbox"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def tasks(self) -> Path:
        return self.path / "tasks"

    @property
    def requests(self) -> Path:
        return self.path / "requests"

    @property
    def agents(self) -> Path:
        return self.path / "agents"

    @property
    def operator(self) -> Path:
        return self.path / "operator.json"

    @property
    def supervisor_lock(self) -> Path:
        return self.path / "supervisor.lock"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def cooldown(self) -> Path:
        return self.path / "cooldown.json"

    @property
    def model_lock(self) -> Path:
        """Held by the embedded model's server for life; says its pid and address."""
        return self.path / "model.lock"

    @property
    def model_log(self) -> Path:
        return self.path / "model.log"

    def agent(self, name: str) -> AgentDirectory:
        return AgentDirectory(self.agents / name)

    def inbox(self, name: str) -> Path:
        return self.inboxes / f"{name}.jsonl"

    @property
    def last_task_id(self) -> Path:
        """Holds the highest id that a task was ever given."""
        return self.tasks / ".last-id"

    def task(self, task_id: int) -> Path:
        return self.tasks / f"{task_id}.json"

    def request(self, request_id: str) -> Path:
        return self.requests / f"{request_id}.json"

    def lock(self, what: str) -> Path:
        return self.path / ".locks" / what

    def exists(self) -> bool:
        return self.config.exists()

    def make(self) -> None:
        """Make every folder of the team, readable by its owner alone.

        Raises:
            StorageError: The root cannot be written to.
        """
        try:
            for folder in (
                self.path.parent, self.path, self.inboxes, self.results, self.tasks,
                self.requests, self.agents, self.path / ".locks",
            ):  # fmt: skip
                files.make_folder(folder)
        except OSError as error:
            raise StorageError(f"cannot make the team directory {self.path}: {error.strerror}") from error
        ignore = self.path.parent / ".gitignore"
        if not ignore.exists():
            files.replace_file(ignore, b"*\n")


def find_root(explicit: str | os.PathLike[str] | None = None, cwd: Path | None = None) -> Path:
    """The root to work in: `explicit`, else `$CREWBOARD_ROOT`, else the nearest ancestor with a team, else here.

    Raises:
        UsageError: The root that was named is not a directory.
    """
    named = explicit or os.environ.get("CREWBOARD_ROOT")
    if named:
        return _existing(named)
    here = (cwd or Path.cwd()).resolve()
    return next((folder for folder in (here, *here.parents) if (folder / HOME).is_dir()), here)


def _existing(named: str | os.PathLike[str]) -> Path:
    try:
        root = Path(named).expanduser().resolve()
        # Asks itself, because from Python 3.13 on neither resolve() nor is_dir() raises for a loop of links.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(root.stat().st_mode):
                return root
    except (OSError, RuntimeError, ValueError) as error:  # too long, a loop of links, no such user, a NUL
        raise UsageError(f"{str(named)!r} cannot be a root: {error}") from error
    raise UsageError(f"the root {root} is not a directory")


def team_directories(root: Path) -> list[TeamDirectory]:
    """Every team below `root`, in the order of their directories' names."""
    try:
        folders = sorted(path for path in (root / HOME).iterdir() if is_name(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {root / HOME}: {error.strerror}") from error
    return [team for team in map(TeamDirectory, folders) if team.exists()]


def find_team(root: Path, name: str) -> TeamDirectory | None:
    """The team called `name`, else the one in the directory `name`, if either is there."""
    from crewboard.store import roster

    teams = team_directories(root)
    for team in teams:
        try:
            if roster.load(team).name == name:
                return team
        except CrewboardError:
            continue
    return next((team for team in teams if team.path.name == name), None)
