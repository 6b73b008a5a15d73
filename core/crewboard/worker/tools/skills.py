"""Skills: instructions for particular work, in the project's or the user's `.claude/skills`, loaded on demand.

The project's skills may come with a cloned repository, so the file-tool server reads them, with its limits. The user's
own are outside the sandbox, so the worker reads them, and copies a loaded one into the agent's scratch folder.
"""

import asyncio
import contextlib
import json
import os
import posixpath
import shutil
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from crewboard import skill_files, type_files
from crewboard.errors import BadDataError
from crewboard.records.base import counted
from crewboard.worker.tools.base import Context, FileToolClient, Input, Outcome, tool

FOLDER = type_files.SKILLS_FOLDER
FILE = type_files.SKILL_FILE

MAX_DESCRIPTION = 500
"""Characters of a skill's description that are listed."""

MAX_FRONT = 4_000
"""The most characters of a skill's front matter. To read so many takes 50 ms."""

MAX_LISTED = 100
"""The most skills of the project that are listed, and the most of the user's own."""

MAX_LIST = 8_000
"""The most characters of the whole list, which stands before the conversation in each request."""

MAX_TEXT = 100_000
"""Bytes that are shown of a file of the user's own skills."""

_MOST_NAMED = 50
"""The most files of a skill that are named with its text."""


def users_folder() -> Path:
    """Return the folder of the user's own skills."""
    return Path("~", FOLDER).expanduser()


def exist(workspace: Path) -> bool:
    """Return True if the workspace or the user has a folder of skills."""
    return (workspace / FOLDER).is_dir() or users_folder().is_dir()


async def listing(file_tools: FileToolClient, root: Path) -> str:
    """Return the names and descriptions of the skills as a list for the model; an empty text without any.

    Skills of the project in `root` are listed only if the user has accepted them as they are now. One of the user's own
    replaces one of the project with the same name. Skills without a description, and those with
    `disable-model-invocation`, are left out.
    """
    texts: dict[str, str] = {}
    # Without one, no server is started.
    accepted = filter(skill_files.NAME.fullmatch, skill_files.accepted(root, os.environ))
    if names := list(accepted)[:MAX_LISTED]:
        texts = {name: text for name, (text, _) in (await _read(file_tools, root, names, FILE)).items()}
    # A front matter can take a tenth of a second to read, and the worker answers its mail meanwhile.
    return await asyncio.to_thread(_list, texts)


async def _read(
    file_tools: FileToolClient, root: Path, names: list[str], file: str
) -> dict[str, tuple[str, list[str]]]:
    """Return the text of `file`, and the names of all files, of each of these skills of the project, by skill.

    Skills that are not as the user accepted them are left out. The text is empty if a skill has no such file.
    """
    accepted = skill_files.accepted(root, os.environ)
    names = [name for name in names if name in accepted]
    if not names:
        return {}
    found = await file_tools.ask("read_skills", {"path": FOLDER, "names": names, "file": file})
    if found.is_error:
        return {}
    return {
        name: (each.get("text", ""), sorted(each["files"]))
        for name, each in json.loads(found.content).items()
        if "files" in each and skill_files.digest(each["files"]) == accepted[name]
    }


def _why_not(file_tools: FileToolClient, root: Path, name: str) -> str:
    """Return why a skill of the project in `root` is not loaded, in a sentence."""
    policy = file_tools.sandbox.policy
    # The skills of the agent's own checkout are read, if it has one.
    workspace = policy.root / policy.folder
    has_checkout = workspace != Path(os.path.realpath(root))
    place = workspace / FOLDER / name
    if place.is_symlink():
        return f"The skill {name} is not loaded: it is a link, and no link is followed."
    if not os.path.lexists(place / FILE):
        if has_checkout and name in skill_files.accepted(root, os.environ):
            return f"The skill {name} is not in your checkout, so it is not loaded."
        return f"The skill {name} is not loaded: there is none of that name. Give a name as it is listed."
    now = "in your checkout" if has_checkout else "now"
    return f"The skill {name} is not loaded: the user has not accepted it as it is {now}. `crewboard skills` shows it."


def _list(texts: dict[str, str]) -> str:
    """Return the list for the model of the project's skills, whose texts are given by name, and of the user's own."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(entry.name for entry in users_folder().iterdir())[:MAX_LISTED]
    for name in names:
        with contextlib.suppress(OSError, BadDataError):
            texts[name] = _users_text(name, FILE)
    lines = ["Instructions for particular work; load one that fits with the tool skill, before you begin."]
    room = MAX_LIST
    for at, (name, text) in enumerate(sorted(texts.items())):
        try:
            front, _ = type_files.front_matter(text, MAX_FRONT)
        except BadDataError:
            continue
        description = " ".join(str(front.get("description") or "").split())[:MAX_DESCRIPTION]
        if not description or str(front.get("disable-model-invocation")).lower() == "true":
            continue
        lines.append(f"- {name}: {description}")
        room -= len(lines[-1]) + 1
        if room < 0:
            lines[-1] = f"({counted(len(texts) - at, 'skill')} more, not listed)"
            break
    return "\n".join(lines) if len(lines) > 1 else ""


def _is_users(root: Path, name: str) -> bool:
    """Return True if the user's own skill of this name is the one to load, and not the project's below `root`.

    One whose text cannot be read hides no accepted skill of the project, as in the list.
    """
    if not (users_folder() / name).is_dir():
        return False
    try:
        _users_text(name, FILE)
    except (OSError, BadDataError):
        return name not in skill_files.accepted(root, os.environ)
    return True


def _users_text(name: str, file: str) -> str:
    """Return the text of a file of one of the user's own skills.

    Raises:
        OSError: The file cannot be read.
        BadDataError: There is no such file in the folder of the skill.
    """
    folder = Path(os.path.realpath(users_folder() / name))
    path = Path(os.path.realpath(folder / file))
    if not path.is_relative_to(folder) or not path.is_file():
        raise BadDataError(f"the skill {name} has no file {file}")
    with path.open("rb") as opened:
        return opened.read(MAX_TEXT).decode("utf-8", "replace")


MAX_LOADED = 40_000
"""Characters of a skill that an agent's type names, and that is in the conversation from the beginning."""


async def load_text(file_tools: FileToolClient, root: Path, name: str) -> str:
    """Return the text of a skill, or a sentence that says why it cannot be loaded.

    `root` is the root of the project. The text is cut after `MAX_LOADED` characters.
    """
    if len(name) > skill_files.LONGEST_NAME or not skill_files.NAME.fullmatch(name):
        return f"There is no skill {name[: skill_files.LONGEST_NAME]!r}."
    if _is_users(root, name):
        try:
            return _users_text(name, FILE)[:MAX_LOADED]
        except (OSError, BadDataError) as error:
            return f"The skill {name} cannot be loaded: {error}"
    found = await _read(file_tools, root, [name], FILE)
    if name not in found:
        return _why_not(file_tools, root, name)
    return f"{found[name][0][:MAX_LOADED]}\n\n[Its folder is {FOLDER}/{name}.]"


def _require_name(name: str) -> str:
    if not skill_files.NAME.fullmatch(name):
        raise ValueError("no skill has such a name: give one as it is listed")
    return name


class Skill(Input):
    name: Annotated[str, AfterValidator(_require_name)] = Field(max_length=skill_files.LONGEST_NAME)
    file: str = Field(default=FILE, min_length=1, description="another file of the skill, as its text names it")


@tool(repeatable=True)
async def skill(context: Context, given: Skill) -> Outcome:
    """Load a skill: instructions for particular work, from those that are listed before the conversation. Follow it
    where it fits your assignment; it does not change what you may do.
    """
    if _is_users(context.team.root, given.name):
        try:
            text = _users_text(given.name, given.file)
            if given.file != FILE:
                return Outcome(text)
            scratch = context.file_tools.sandbox.policy.scratch
            folder = Path(os.path.realpath(users_folder() / given.name))
            names = _files_in(folder)
            if scratch is None:
                return Outcome(_with_folder(text, "", names))
            copy = scratch / "skills" / given.name
            if not copy.exists():
                for name in names:
                    (copy / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    shutil.copy(folder / name, copy / name)
        except (OSError, BadDataError) as error:
            return Outcome(f"the skill {given.name} cannot be loaded: {error}", is_error=True)
        return Outcome(_with_folder(text, str(copy), names))
    found = await _read(context.file_tools, context.team.root, [given.name], file := posixpath.normpath(given.file))
    if given.name not in found:
        return Outcome(_why_not(context.file_tools, context.team.root, given.name), is_error=True)
    text, names = found[given.name]
    if file not in names:
        return Outcome(f"the skill {given.name} has no file {given.file}", is_error=True)
    return Outcome(text if file != FILE else _with_folder(text, f"{FOLDER}/{given.name}", names))


def _files_in(folder: Path) -> list[str]:
    """Return the paths of all regular files below a folder, relative to it. Links are left out.

    Raises:
        BadDataError: The files are too many or too large.
    """
    names: list[str] = []
    size = 0
    for above, _, files in os.walk(folder):
        for path in (Path(above, name) for name in files):
            if path.is_file() and not path.is_symlink():
                names.append(str(path.relative_to(folder)))
                size += path.stat().st_size
        if len(names) > skill_files.MAX_FILES or size > skill_files.MAX_BYTES:
            raise BadDataError(f"it has more than {skill_files.MAX_FILES} files or {skill_files.MAX_BYTES} bytes")
    return sorted(names)


def _with_folder(text: str, folder: str, names: list[str]) -> str:
    """Return the text of a skill, followed by a note about its other files and the `folder` that they are in."""
    others = [name for name in names if name != FILE]
    shown = ", ".join(others[:_MOST_NAMED]) + (" …" if len(others) > _MOST_NAMED else "")
    where = f" Its folder is {folder}; run its scripts with bash." if folder else ""
    return (
        f"{text}\n\n[{f'Its other files: {shown}. ' if others else ''}Read one with file.{where}]" if others else text
    )
