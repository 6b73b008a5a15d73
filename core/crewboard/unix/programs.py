"""Find the programs that crewboard itself starts, in places that can be trusted, and make their environment.

A workspace may come first on PATH, as with an activated `.venv`, and agents write there. A program is therefore taken
only from a place where no agent and no other user can put or replace one.
"""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from crewboard.names import TEAMS_FOLDER

_MOST_LINKS = 40
"""The most links that the kernel follows in one path."""

_KEPT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE")


def find_program(name: str, workspace: Path, path: str | None = None) -> Path | None:
    """Return the first program `name` on PATH that no agent and no other user can replace; None if there is none.

    With `path`, that is searched in place of PATH. `workspace` is a folder in which agents write.
    """
    return _find(name, Path(os.path.realpath(workspace)), _search_path() if path is None else path)


@lru_cache(maxsize=32)
def _find(name: str, root: Path, path: str) -> Path | None:
    # A workspace without a team yet has no folder of teams, which would tell that it is one.
    return _first(_candidates(name, path), lambda step: step == root or _is_workspace(step) or _is_open_to_others(step))


def system_program(name: str, workspace: Path) -> str:
    """Return the path of the program `name` for use in a sandbox: in the system's folders, else on PATH.

    The system's folders come first, because a sandbox may hide the homes.

    Raises:
        FileNotFoundError: There is no such program that can be trusted.
    """
    found = find_program(name, workspace, os.pathsep.join((os.defpath, _search_path())))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, passed_over(name) or f"{name} is not installed")
    return str(found)


def find_user_program(command: str) -> Path | None:
    """Return a program that the user chose, such as an editor, unless it lies in a workspace; None if there is none.

    `command` is a name on PATH, or a path.
    """
    candidates = [Path.cwd() / command] if "/" in command else _candidates(command, _search_path())
    return _first(candidates, _is_workspace)


def is_own(path: Path) -> bool:
    """Return True if a file is outside every workspace, owned by this user or root, and not writable for all users."""
    if not _is_clear(path, _is_workspace):
        return False
    found = path.stat()
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH


def passed_over(name: str) -> str | None:
    """Return a sentence that says why the program `name` on PATH is not used; None if PATH has none."""
    found = shutil.which(name)
    if not found:
        return None
    for step in _steps(Path(found)):
        if _is_workspace(step):
            return f"{found} is not used, because agents of the team in {step / TEAMS_FOLDER} may change it"
        if _is_open_to_others(step):
            return f"{found} is not used, because other users can change {step}"
    return f"{found} is not used, because it is in the workspace, where agents may change it"


def clean_environment(*more: str) -> dict[str, str]:
    """Return an environment without credentials, and without variables that make programs load or run others.

    It has a standard PATH, and of this process's environment the home, the language and the variables `more`.
    """
    return {"PATH": os.defpath, **{name: os.environ[name] for name in (*_KEPT, *more) if name in os.environ}}


def path_outside_workspaces() -> str:
    """Return PATH without relative folders and folders in a workspace."""
    folders = _candidates("", _search_path())
    return os.pathsep.join(str(path) for path in folders if _is_clear(path, _is_workspace))


def _search_path() -> str:
    return os.environ.get("PATH", os.defpath)


def _candidates(name: str, path: str) -> list[Path]:
    """Return the paths at which a program could be, by the folders of `path`; relative folders are left out."""
    return [Path(folder, name) for folder in path.split(os.pathsep) if folder.startswith("/")]


def _first(candidates: list[Path], is_refused: Callable[[Path], bool]) -> Path | None:
    clear = (path for path in candidates if _is_clear(path, is_refused))
    return next((path for path in clear if path.is_file() and os.access(path, os.X_OK)), None)


def _is_clear(path: Path, is_refused: Callable[[Path], bool]) -> bool:
    """Return True if `path` exists and `is_refused` is False for every step on the way to it (`_steps`)."""
    try:
        return not any(map(is_refused, _steps(path)))
    except OSError:
        return False


def _steps(path: Path) -> Iterator[Path]:
    """Yield every folder and link that the kernel passes on the way to `path`, and the file at the end.

    Looking at the first and the last alone would miss a link that an agent can change in between.

    Raises:
        OSError: There are too many links.
    """
    here = Path("/")
    ahead = list(reversed(path.parts[1:]))
    links = 0
    yield here
    while ahead:
        part = ahead.pop()
        if part == "..":
            here = here.parent
            continue
        here /= part
        yield here
        if here.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, "too many links", str(path))
            target = here.readlink()
            ahead.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            here = Path("/") if target.is_absolute() else here.parent


def _is_workspace(step: Path) -> bool:
    """Return True if `step` is the root of a team, so that agents may write in all that is below it."""
    return os.path.lexists(step / TEAMS_FOLDER)


def _is_open_to_others(step: Path) -> bool:
    """Return True if another user, root apart, can change the file or folder `step` or replace what is in it."""
    found = step.lstat()
    # In a user namespace without root, files of root belong to another user, and so does the folder `/`.
    if found.st_uid not in (0, os.geteuid(), os.stat("/").st_uid):  # noqa: PTH116
        return True
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    # In a sticky folder others can add entries, but not replace those of another user.
    return not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
