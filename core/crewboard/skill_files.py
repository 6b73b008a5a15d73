"""Texts of a project that its agents are told unasked: skills in `.claude/skills`, and imports of its `CLAUDE.md`.

Agents can write them, and they can come with a cloned repository. They read as instructions, so agents are told only of
what the user accepted, as it was then. An imported file is named by its path with an `@`, as where it is imported.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from crewboard import type_files
from crewboard.errors import BadDataError, UsageError
from crewboard.names import PROJECT_FILES, imports_of
from crewboard.type_files import SKILL_FILE, SKILLS_FOLDER, Acceptance, open_folder

NAME = re.compile(r"\w[\w .:-]*")
LONGEST_NAME = 100
"""Names that a skill may have: the model writes them, and the user copies them into a command."""

MAX_SKILLS = 100
"""Skills of one folder that are looked at."""

MAX_FILES = 500
MAX_BYTES = 20 * 1024 * 1024
"""Files of one skill, and their size."""

LEFT_OUT = "__pycache__"
"""Folders of a skill that are made when its scripts run, and that do not count as a part of it."""

_RECORDS = "skills"


class ProjectSkill(Struct, frozen=True):
    """A skill of the project. `sha256` is that of all its files; `why` says why it cannot be used, if it cannot.

    `others` are the paths of its files beside `SKILL.md`.
    """

    name: str
    sha256: str = ""
    text: str = ""
    why: str = ""
    others: tuple[str, ...] = ()


def digest(files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a skill. `files` has those of its files, by their path in its folder."""
    return hashlib.sha256(msgspec.json.encode(sorted((ascii(name), each) for name, each in files.items()))).hexdigest()


def find_all(root: Path) -> list[ProjectSkill]:
    """Return the skills of a workspace, by name, and the files that are imported; no link is followed."""
    return [*_skills(root), *_imported(root)]


def _imported(root: Path) -> Iterator[ProjectSkill]:
    """Yield the imported files, also those that an imported file imports, whether they are accepted or not."""
    waiting = [next((name for name in PROJECT_FILES if os.path.lexists(root / name)), "")]
    found = {*PROJECT_FILES}
    while waiting and len(found) <= MAX_SKILLS:
        name = waiting.pop(0)
        folder, _, last = name.rpartition("/")
        try:
            with open_folder(root, folder or ".") as opened:
                data = type_files.read_regular(opened, last)
        except (OSError, BadDataError) as error:
            if name and not isinstance(error, FileNotFoundError) and os.path.lexists(root / name):
                yield ProjectSkill(f"@{name}", why=str(error))
            continue
        text = data.decode("utf-8", "replace")
        if name not in PROJECT_FILES:
            yield ProjectSkill(f"@{name}", hashlib.sha256(data).hexdigest(), text)
        new = [each for each in imports_of(text, name) if each not in found and not each.startswith(("/", "~", ".."))]
        found.update(new)
        waiting += new


def _skills(root: Path) -> list[ProjectSkill]:
    try:
        with open_folder(root, SKILLS_FOLDER) as opened:
            names = sorted(os.listdir(opened))[:MAX_SKILLS]  # noqa: PTH208  a descriptor
    except OSError:
        return []
    return [skill for name in names if not name.startswith("@") and (skill := _read(root, name)) is not None]


def _read(root: Path, name: str) -> ProjectSkill | None:
    """Return a skill; None if the folder holds none."""
    if len(name) > LONGEST_NAME or not NAME.fullmatch(name):
        return ProjectSkill(name, why="its name may have letters, digits, spaces and . : - _ alone")
    files: dict[str, bytes] = {}
    try:
        with open_folder(root, f"{SKILLS_FOLDER}/{name}") as opened:
            _take_in(opened, files)
    except (OSError, BadDataError) as error:
        return ProjectSkill(name, why=error.strerror or "" if isinstance(error, OSError) else str(error))
    if SKILL_FILE not in files:
        return None
    sums = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    others = tuple(sorted(path for path in files if path != SKILL_FILE))
    return ProjectSkill(name, digest(sums), files[SKILL_FILE].decode("utf-8", "replace"), others=others)


def _take_in(folder: int, files: dict[str, bytes]) -> None:
    """Read all files of a folder.

    Raises:
        BadDataError: One is a link or no regular file, or they are too many or too large.
    """
    room = MAX_BYTES
    for above, folders, names, opened in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        folders[:] = [each for each in folders if each != LEFT_OUT]
        for name in (*names, *folders):
            path = os.path.normpath(f"{above}/{name}")
            mode = os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            if not stat.S_ISREG(mode) or len(files) == MAX_FILES:
                raise BadDataError(f"{path} is a link, or no regular file, or one of more than {MAX_FILES}")
            with os.fdopen(os.open(name, flags, dir_fd=opened), "rb") as file:
                files[path] = file.read(room + 1)
            room -= len(files[path])
            if room < 0:
                raise BadDataError(f"its files have more than {MAX_BYTES} bytes")


def find(root: Path, name: str) -> ProjectSkill:
    """Return the skill called `name` of a workspace.

    Raises:
        UsageError: There is no such skill, or it cannot be used.
    """
    found = {each.name: each for each in find_all(root)}
    if name not in found:
        raise UsageError(f"there is no skill {name!r}; there are {', '.join(found) or 'none'}")
    if found[name].why:
        raise UsageError(f"the skill {name} cannot be used: {found[name].why}")
    return found[name]


def accepted_imports(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each imported file that the user accepted in a workspace, by path."""
    return {name[1:]: each for name, each in accepted(root, environment).items() if name.startswith("@")}


def accepted(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each skill that the user accepted in a workspace, by name."""
    return {each.name: each.sha256 for each in type_files.acceptances(_RECORDS, root, environment) if each.name}


def trust(skill: ProjectSkill, root: Path, environment: Mapping[str, str]) -> None:
    """Accept a skill for this user, until one of its files changes.

    Raises:
        StorageError: It could not be recorded.
    """
    type_files.accept(_RECORDS, Acceptance(skill.name, os.path.realpath(root), skill.sha256), environment)


def not_accepted(root: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the names of the skills of a workspace that the user could accept, and has not as they are now."""
    yes = accepted(root, environment)
    return [each.name for each in find_all(root) if not each.why and yes.get(each.name) != each.sha256]


def note_told(root: Path, environment: Mapping[str, str]) -> bool:
    """Return True if the user was told before that skills of this workspace must be accepted; from now on they were.

    Raises:
        StorageError: That could not be recorded.
    """
    if list(type_files.acceptances(_RECORDS, root, environment)):
        return True
    type_files.accept(_RECORDS, Acceptance("", os.path.realpath(root), ""), environment)
    return False
