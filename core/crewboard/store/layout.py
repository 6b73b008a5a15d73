"""Every path of a team directory (docs/reference/files.md), and the check that it belongs to this user.

No other module builds these paths.

Two checks are enough: one of the folders when a team is opened, and O_NOFOLLOW for each file that is opened
(`files.open_existing`). What could put a symbolic link or a foreign folder into a path of the team?

- A cloned repository: its files exist before the team is opened, so the first check finds them.
- An agent of the team: no sandbox allows writing in `.crewboard`.
- Another user of the machine: cannot write in folders that this user owns and that are closed to group and others; a
  `.crewboard` with another owner is refused. In a root where other users may rename entries of this user, they could
  exchange the whole `.crewboard` while a supervisor runs (SECURITY.md).
- Another program of this user outside every sandbox: has all rights of this program anyway.
"""

import contextlib
import errno
import functools
import os
import secrets
import shlex
import shutil
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crewboard import env
from crewboard.errors import CrewboardError, StorageError, UntrustedError, UsageError
from crewboard.names import TEAMS_FOLDER, is_name
from crewboard.store import files, ownership

HOME = TEAMS_FOLDER
DEFAULT_TEAM = "default"

_WRITABLE_BY_OTHERS = 0o022
_REMEDY = "crewboard opens only a team directory that this user made: remove it, or choose another folder with --root"


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
        """Return the workspace that the agents work in."""
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
    def worktrees(self) -> Path:
        return self.path / "worktrees"

    def worktree(self, name: str) -> Path:
        """Return the checkout of the agent `name`, if it was hired with one."""
        return self.worktrees / name

    @property
    def acceptances(self) -> Path:
        return self.path / "acceptances.json"

    def worktree_ready(self, name: str) -> Path:
        """Return the file that says with which command the checkout of an agent was set up."""
        return self.worktrees / f"{name}.ready"

    @property
    def operator(self) -> Path:
        return self.path / "operator.json"

    @property
    def audit(self) -> Path:
        return self.path / "audit.jsonl"

    @property
    def presence(self) -> Path:
        """Return the folder with a lease of each open dashboard."""
        return self.path / "presence"

    @property
    def supervisor_lock(self) -> Path:
        return self.path / "supervisor.lock"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def supervisor_failure(self) -> Path:
        return self.path / "supervisor-failure.json"

    @property
    def starts(self) -> Path:
        return self.path / "starts.json"

    @property
    def told(self) -> Path:
        return self.path / "told.json"

    @property
    def cooldown(self) -> Path:
        return self.path / "cooldown.json"

    @property
    def model_lock(self) -> Path:
        """Return the lease of the offline model's server, which holds its pid and address."""
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
        """Return the file that holds the highest task id ever used."""
        return self.tasks / ".last-id"

    def task(self, task_id: int) -> Path:
        return self.tasks / f"{task_id}.json"

    def request(self, request_id: str) -> Path:
        return self.requests / f"{request_id}.json"

    @property
    def owners(self) -> Path:
        """The file with the marks of the users who made or adopted the team."""
        return self.path / ownership.MARKS

    def lock(self, what: str) -> Path:
        return self.path / ".locks" / what

    def exists(self) -> bool:
        return self.config.exists()

    def require_own(self) -> None:
        """Refuse a team whose folders another user controls. Every process calls this before it opens a file of it.

        Raises:
            UntrustedError: `.crewboard`, the team's folder or one inside is a symbolic link, belongs to another user
                or can be written to by others.
            StorageError: A folder cannot be examined.
        """
        try:
            for folder in (self.path.parent, self.path):
                _require_own(folder)
            for folder in (self.path, self.agents):
                for inside in _folders_and_links(folder):
                    _require_own(inside)
        except OSError as error:
            raise StorageError(f"cannot look at {self.path}: {files.reason(error)}") from error

    def is_own(self) -> bool:
        """Return True if every folder of the team belongs to this user and only this user can write in it."""
        try:
            self.require_own()
        except CrewboardError:
            return False
        return True

    def is_foreign(self) -> bool:
        """Return True if there is a team that this user neither made nor adopted.

        A cloned repository can contain a team, and an agent can make one in a folder of its workspace: files of this
        user by owner and mode. It lacks a mark that only this user's secret gives.

        Raises:
            StorageError: The team or the secret cannot be read.
        """
        if not os.path.lexists(self.path):
            return False
        try:
            return not ownership.is_marked(self.path)
        except OSError as error:
            raise StorageError(f"cannot tell who made {self.path}: {files.reason(error)}") from error

    def require_adopted(self) -> None:
        """Refuse a team that this user neither made nor adopted. Whatever starts, resumes or sends calls this first.

        Raises:
            UntrustedError: It is foreign, or another user controls it.
            StorageError: It cannot be examined.
        """
        self.require_own()
        if self.is_foreign():
            raise UntrustedError(
                f"the team in {str(self.path)!r} is foreign: you did not make it, or it was copied. You can read it; "
                f"`crewboard --root {shlex.quote(str(self.root))} --team {self.path.name} team adopt` makes it yours"
            )

    def adopt(self) -> None:
        """Mark the team as this user's own. Idempotent.

        Raises:
            StorageError: The mark cannot be written.
            UntrustedError: Another user controls the team.
        """
        self.require_own()
        try:
            known = (files.read_file(self.owners) or b"").split()
            files.replace_file(self.owners, _mark_lines([*known, *ownership.marks(self.path)]), durable=True)
        except OSError as error:
            raise StorageError(f"cannot mark {self.path} as yours: {files.reason(error)}") from error

    def make(self) -> None:
        """Create every folder of the team, accessible to its owner only.

        Raises:
            StorageError: The root cannot be written to.
            UntrustedError: A folder exists already and another user controls it.
        """
        self.require_own()
        try:
            files.make_folder(self.path.parent)
            if not os.path.lexists(self.path):
                self._create()
            for folder in (
                self.path, self.inboxes, self.results, self.tasks, self.requests, self.agents, self.path / ".locks",
            ):  # fmt: skip
                files.make_folder(folder)
        except OSError as error:
            raise StorageError(f"cannot create the team directory {self.path}: {files.reason(error)}") from error
        ignore = self.path.parent / ".gitignore"
        if not ignore.exists():
            files.replace_file(ignore, b"*\n")

    def _create(self) -> None:
        """Create the directory and its mark in one step: without the mark it would be foreign to other processes.

        Raises:
            OSError: The directory cannot be created. One that another process has just made is no error.
        """
        new = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        files.make_folder(new)
        try:
            files.replace_file(new / self.owners.name, _mark_lines(ownership.marks(new, self.path)), durable=True)
            os.rename(new, self.path)
            files.sync_folder(self.path.parent)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _mark_lines(marks: Iterable[bytes]) -> bytes:
    return b"".join(mark + b"\n" for mark in dict.fromkeys(marks))


def _folders_and_links(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if entry.is_symlink() or entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _unsafe_reason(path: Path) -> str | None:
    """Return why another user or a cloned repository may control the folder `path`; None if neither can.

    Return None also if there is no such folder: opening a file in it will report that.

    Raises:
        OSError: The folder cannot be examined.
    """
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(found.st_mode):
        return "is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return None
    if found.st_uid != os.geteuid():
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written to by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _require_own(folder: Path) -> None:
    unsafe = _unsafe_reason(folder)
    if unsafe is not None:
        raise UntrustedError(f"{str(folder)!r} {unsafe}; {_REMEDY}")


def find_root(explicit: str | os.PathLike[str] | None = None, cwd: Path | None = None) -> Path:
    """Return `explicit`, else `$CREWBOARD_ROOT`, else the nearest ancestor that has a team, else the current directory.

    An ancestor whose `.crewboard` another user controls is skipped with a warning: any user can create one in a shared
    folder such as `/tmp`. One with foreign teams alone is skipped if there is a team of this user's own further up: an
    agent can create one in a folder of its workspace.

    Raises:
        UsageError: The named root is not a directory.
        UntrustedError: Another user controls the `.crewboard` of the named root.
    """
    named = explicit or env.root()
    if named:
        root = _require_directory(named)
        _require_own(root / HOME)
        return root
    here = (cwd or Path.cwd()).resolve()
    foreign: Path | None = None
    for folder in (here, *here.parents):
        if not _has_own_teams(folder):
            continue
        if _has_adopted_team(folder):
            if foreign is not None:
                _warn_once(f"skipped {str(foreign / HOME)!r}: its teams are foreign; `crewboard --root DIR team adopt`")
            return folder
        foreign = foreign or folder
    return foreign or here


def _has_adopted_team(folder: Path) -> bool:
    try:
        return any(not team.is_foreign() for team in team_directories(folder))
    except CrewboardError:
        return False


def _has_own_teams(folder: Path) -> bool:
    home = folder / HOME
    try:
        unsafe = _unsafe_reason(home)
    except OSError:
        return False
    if unsafe is not None:
        _warn_once(f"skipped {str(home)!r}: it {unsafe}")
        return False
    return home.is_dir()


@functools.cache
def _warn_once(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")


def _require_directory(named: str | os.PathLike[str]) -> Path:
    try:
        root = Path(named).expanduser().resolve()
        # stat() itself, because from Python 3.13 on neither resolve() nor is_dir() raises for a loop of links.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(root.stat().st_mode):
                return root
    # The name is too long, a loop of links, names an unknown user, or contains a NUL.
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{str(named)!r} cannot be a root: {error}") from error
    raise UsageError(f"the root {root} is not a directory")


def team_directories(root: Path) -> list[TeamDirectory]:
    """Return every team below `root`, sorted by directory name; symbolic links are left out.

    Raises:
        StorageError: The teams cannot be listed.
        UntrustedError: Another user controls the `.crewboard` of `root`.
    """
    try:
        _require_own(root / HOME)
        folders = sorted(path for path in (root / HOME).iterdir() if is_name(path.name) and not path.is_symlink())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {root / HOME}: {error.strerror}") from error
    return [team for team in map(TeamDirectory, folders) if team.exists()]
