"""Texts of a project that become instructions of agents: skills, project files, imported files and commands.

They are the skills in `.claude/skills`, each `CLAUDE.md` or `AGENTS.md` below the root, the files that these and the
one in the root import, and the commands in `.claude/commands`. Agents can write them, and a cloned repository can bring
them. So only what the user accepted is used, with the content that was accepted. A skill is called by its name, a file
by `@` and its path, as where it is imported, and a command by `/NAME`, as the user sends it. In this module all of them
count as skills.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from crewboard import consent, type_files
from crewboard.consent import Acceptance
from crewboard.errors import BadDataError, UsageError
from crewboard.names import PROJECT_FILES, imports_of
from crewboard.records.base import counted
from crewboard.type_files import SKILL_FILE, SKILLS_FOLDER, open_folder

NAME = re.compile(r"\w[\w .:-]*")
LONGEST_NAME = 100
"""The form and the most characters of a skill's name: the model writes names, and the user copies them into a
command line.
"""

MAX_SKILLS = 100
"""Most skills of one folder that are read."""

MAX_FILES = 500
MAX_BYTES = 10 * 1024 * 1024
"""Most files of one skill, and most bytes of all of them. No file tool reads more."""

LEFT_OUT = "__pycache__"
"""The name of folders in a skill that are made when its scripts run, and that are no part of it."""

COMMANDS_FOLDER = ".claude/commands"
"""The folder of a project with commands: texts that the user sends by name, as in Claude Code."""

COMMAND = re.compile(r"/([\w-]+(?::[\w-]+)?)")
"""A command as the user sends it: `/fix`, or `/web:fix` for a text in the folder `web`."""

SLASH = re.compile(rf"{COMMAND.pattern}(?:\s+(.*))?", re.DOTALL)
"""A text that begins with a command: the name, and the text behind it."""

_MOST_COMMANDS = 200

_MOST_FILES = 500
_MOST_FOLDERS = 2000
"""Most project files that are listed, and most folders that are searched for them, the upper ones first."""

_NOT_SEARCHED = frozenset({"node_modules", "__pycache__", "venv"})

_RECORDS = "skills"


class ProjectSkill(Struct, frozen=True):
    """A skill, file or command of the project. `text` is that of its main file, `others` are paths of its other files.

    `sha256` is the digest of all its files. `why` says why it cannot be used; empty if it can.
    """

    name: str
    sha256: str = ""
    text: str = ""
    why: str = ""
    others: tuple[str, ...] = ()


def digest(files: Mapping[str, str]) -> str:
    """Return the digest of a skill. `files` has the SHA-256 of each of its files, by path in its folder."""
    return hashlib.sha256(msgspec.json.encode(sorted((ascii(name), each) for name, each in files.items()))).hexdigest()


def find_all(root: Path) -> list[ProjectSkill]:
    """Return the skills, project files and commands of a workspace, whether they are accepted or not.

    Project files are those below the root, and imported files. No link is followed. A skill or file that cannot be read
    is in the result with the reason (`ProjectSkill.why`).
    """
    return list_all(root)[0]


def list_all(root: Path) -> tuple[list[ProjectSkill], list[str]]:
    """Return what `find_all` returns, and in words what was left out because there was too much of it."""
    left_out: list[str] = []
    names = _command_names(root)
    commands = (_file(root, f"/{name}") for name in names[:_MOST_COMMANDS])
    found = [*_skills(root, left_out), *_project_files(root, left_out), *filter(None, commands)]
    if more := len(names[_MOST_COMMANDS:]):
        left_out.append(f"{counted(more, 'more command')} in {COMMANDS_FOLDER}")
    return found, left_out


def _project_files(root: Path, left_out: list[str]) -> Iterator[ProjectSkill]:
    """Yield the project files below the root and all imported files, also those that imported files import."""
    waiting = [*_found_below(root, left_out)]
    found = {*waiting}
    for name in PROJECT_FILES:
        if (top := _file(root, f"@{name}")) is not None:
            found.update(PROJECT_FILES)
            waiting += _new_imports(top.text, name, found)
            break
    # The list grows while it is read.
    for name in islice(waiting, _MOST_FILES):
        if (file := _file(root, f"@{name}")) is not None:
            yield file
            waiting += _new_imports(file.text, name, found)
    if more := len(waiting[_MOST_FILES:]):
        left_out.append(f"{counted(more, 'more file')} that are told or imported as @PATH")


def _new_imports(text: str, name: str, found: set[str]) -> list[str]:
    new = [each for each in imports_of(text, name) if each not in found and not each.startswith(("/", "~", ".."))]
    found.update(new)
    return new


def _found_below(root: Path, left_out: list[str]) -> Iterator[str]:
    """Yield the paths of the project files in folders below the root."""
    waiting = [""]
    # The list grows while it is read.
    for folder in islice(waiting, _MOST_FOLDERS):
        try:
            with open_folder(root, folder or ".") as opened, os.scandir(opened) as listing:
                entries = sorted((each.name, each.is_dir(follow_symlinks=False)) for each in listing)
        except OSError:
            continue
        for name, is_folder in entries:
            path = f"{folder}/{name}" if folder else name
            if folder and name in PROJECT_FILES:
                yield path
            elif is_folder and not name.startswith(".") and name not in _NOT_SEARCHED:
                waiting.append(path)
    if more := len(waiting[_MOST_FOLDERS:]):
        left_out.append(f"{counted(more, 'more folder')}, and what is in them")


def command_names(root: Path) -> list[str]:
    """Return the names of the project's commands: `fix`, or `web:fix` for a text in the folder `web`."""
    return _command_names(root)[:_MOST_COMMANDS]


def _command_names(root: Path) -> list[str]:
    found: list[str] = []
    for folder in ("", *(f"/{name}" for name in _entries(root, COMMANDS_FOLDER) if "." not in name)):
        names = [name[:-3] for name in _entries(root, COMMANDS_FOLDER + folder) if name.endswith(".md")]
        found += [f"{folder[1:]}:{name}" if folder else name for name in names]
    return [name for name in found if COMMAND.fullmatch(f"/{name}")]


def _entries(root: Path, folder: str) -> list[str]:
    """Return the sorted names in a folder of the project; empty if it does not exist, or a link leads there."""
    try:
        with open_folder(root, folder) as opened:
            return sorted(os.listdir(opened))  # noqa: PTH208  a descriptor
    except OSError:
        return []


def place(name: str) -> str:
    """Return the path, relative to the root, of the skill's folder, the file or the command called `name`."""
    if name.startswith("@"):
        return name[1:]
    if name.startswith("/"):
        return f"{COMMANDS_FOLDER}/{name[1:].replace(':', '/')}.md"
    return f"{SKILLS_FOLDER}/{name}"


def _file(root: Path, name: str) -> ProjectSkill | None:
    """Return the file or command called `name`; None if it does not exist."""
    folder, _, last = place(name).rpartition("/")
    try:
        with open_folder(root, folder or ".") as opened:
            data = type_files.read_regular(opened, last)
    except (OSError, BadDataError) as error:
        if not os.path.lexists(root / place(name)):
            return None
        return ProjectSkill(name, why=error.strerror or "" if isinstance(error, OSError) else str(error))
    return ProjectSkill(name, hashlib.sha256(data).hexdigest(), data.decode("utf-8", "replace"))


def _skills(root: Path, left_out: list[str]) -> list[ProjectSkill]:
    names = _entries(root, SKILLS_FOLDER)
    if more := len(names[MAX_SKILLS:]):
        left_out.append(f"{counted(more, 'more name')} in {SKILLS_FOLDER}")
    return [
        skill for name in names[:MAX_SKILLS] if not name.startswith("@") and (skill := _read(root, name)) is not None
    ]


def _read(root: Path, name: str) -> ProjectSkill | None:
    """Return the skill in the folder called `name`; None if the folder has no `SKILL.md`."""
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
    """Read all files of an open folder into `files`, by path.

    Raises:
        BadDataError: One is a link or not a regular file, or they are too many or too large.
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
    """Return the skill, file or command called `name` of a workspace.

    Raises:
        UsageError: There is none of this name, or it cannot be used.
    """
    is_name = COMMAND.fullmatch(name) or name.startswith("@")
    found = _file(root, name) if is_name else {each.name: each for each in _skills(root, [])}.get(name)
    if found is None:
        raise UsageError(f"there is no skill {name!r}; there are {', '.join(x.name for x in find_all(root)) or 'none'}")
    if found.why:
        raise UsageError(f"the skill {name} cannot be used: {found.why}")
    return found


def accepted_files(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each project file that the user accepted in a workspace, by path."""
    return {name[1:]: each for name, each in accepted(root, environment).items() if name.startswith("@")}


def accepted(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each skill, file and command that the user accepted in a workspace, by name."""
    return {each.name: each.sha256 for each in consent.find_all(_RECORDS, root, environment) if each.name}


def accept(skill: ProjectSkill, root: Path, environment: Mapping[str, str]) -> None:
    """Record that the user accepts a skill, file or command as it is; it is new again once a file of it changes.

    Raises:
        StorageError: It could not be recorded.
    """
    consent.accept(_RECORDS, Acceptance(skill.name, os.path.realpath(root), skill.sha256), environment)


def not_accepted(root: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the names of the skills, files and commands of a workspace that wait for the user to accept them."""
    yes = accepted(root, environment)
    return [each.name for each in find_all(root) if not each.why and yes.get(each.name) != each.sha256]


def was_told(root: Path, environment: Mapping[str, str]) -> bool:
    """Return True if the user was told that skills of this workspace must be accepted, or has accepted one."""
    return any(True for _ in consent.find_all(_RECORDS, root, environment))


def note_told(root: Path, environment: Mapping[str, str]) -> None:
    """Record that the user was told that skills of this workspace must be accepted.

    Raises:
        StorageError: It could not be recorded.
    """
    consent.accept(_RECORDS, Acceptance("", os.path.realpath(root), ""), environment)
