"""The process in which an agent's file tools run: one JSON request per line on stdin, one response per line on stdout.

It is a process of its own, so that a pattern or a device that hangs it costs only one tool call: the worker ends it and
starts another one. Apart from modules of crewboard, it imports only the standard library, to start fast.

    python -I -m crewboard.worker.tools.file_server ROOT TEAM-RESULTS FOLDER

The arguments are those of `Workspace`.
"""

import fnmatch
import hashlib
import json
import os
import re
import stat
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crewboard import edits, media
from crewboard.names import PROJECT_FILES, imports_of
from crewboard.worker.tools.workspace import (
    HIDDEN,
    MAX_FILE,
    SKIPPED,
    Change,
    Found,
    Limits,
    MissingError,
    PartlyWrittenError,
    Place,
    RefusedError,
    Workspace,
    escape_name,
    match_steps,
)

MAX_TEXT = 60_000
"""The most characters of one response."""

MAX_WHOLE_FILE = 1024 * 1024
"""The most bytes of a file that `read_text` returns."""

MAX_PROJECT_TEXT = 40_000
"""Characters that are returned of a project's file and its imports together."""

MAX_IMPORTS = 20
"""The most files that a project's file may import, directly and indirectly."""

MAX_IMPORT_DEPTH = 5
"""Number of imports that may lead from a project's file to another file."""

MAX_SKILL = MAX_FILE
MAX_SKILL_FILES = 500
MAX_SKILL_TEXT = 100_000
SKILL_LEAVES_OUT = "__pycache__"
"""Limits of a skill, as in the module `skill_files`, which is not imported because this process must start fast."""

MAX_LINES = 2000
MAX_MATCHES = 500
MAX_PATHS = 1000
MAX_LINE = 500
"""Characters of a line that grep shows."""
MAX_READ_LINE = 2000
"""Characters of a line that `read_file` shows: one line of generated code may be longer than a response."""

RIPGREP = ("/usr/bin/rg", "/usr/local/bin/rg", "/bin/rg")
"""The paths at which ripgrep may be. The search path is not used: agents may write in its folders."""

RIPGREP_TIMEOUT = 10.0
"""Seconds after which grep goes on without ripgrep."""

TYPES = {
    "c": ("c", "h"), "cpp": ("cpp", "cc", "cxx", "hpp", "hh", "hxx", "h"), "cs": ("cs",), "css": ("css", "scss"),
    "go": ("go",), "html": ("html", "htm"), "java": ("java",), "js": ("js", "jsx", "mjs", "cjs"), "json": ("json",),
    "kotlin": ("kt", "kts"), "lua": ("lua",), "md": ("md", "markdown"), "php": ("php",), "py": ("py", "pyi"),
    "ruby": ("rb",), "rust": ("rs",), "sh": ("sh", "bash", "zsh"), "sql": ("sql",), "swift": ("swift",),
    "toml": ("toml",), "ts": ("ts", "tsx", "mts", "cts"), "txt": ("txt",), "xml": ("xml",), "yaml": ("yaml", "yml"),
}  # fmt: skip
"""The endings of file names by the file types that grep knows."""

_LITERAL = frozenset(" _-=:;,<>/\"'!@#%&~`")
"""Characters of a regular expression that stand for themselves, in addition to letters and digits."""

_NAMED = 5
"""The most unreadable folders that a result names."""

_MOST_LEFT_OUT = 5000
"""The most paths that ripgrep is told to leave out; a command line has room for no more."""

_CHOICE = re.compile(r"(.*?)\{([^{}]*,[^{}]*)\}(.*)", re.DOTALL)
"""A pattern with alternatives, such as `*.{js,ts}`."""

_STARS_IN_NAME = re.compile(r"(.*?)(?:(?<=[^/])\*\*|\*\*(?=[^/]))(.*)", re.DOTALL)
"""A pattern with `**` that is only a part of a name, such as `**.ts`."""

_MOST_SPLIT = 8
"""The most `**` of a pattern in which they may be parts of names: each doubles what is compared."""

_PART = re.compile(
    r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\N\{[^}]*\}|\\[0-7]{1,3}|\\."
    r"|\[\^?\]?(?:\\.|[^]\\])*\]|\{\d*,?\d*\}|.",
    re.DOTALL,
)
"""One part of a regular expression: an escape, a set of characters, a count, or a character."""


class Done(NamedTuple):
    """The result of a tool: the text, `created` if it made a new file, and `media`, an image or document it read."""

    content: str
    created: bool = False
    media: dict[str, str] | None = None


def _bounded(lines: list[str], most: int, what: str) -> str:
    """Return at most `most` lines as a text, and at most `MAX_TEXT` characters, with a note if some are left out.

    `what` is the word for the lines in the note.
    """
    text = "\n".join(lines[:most])
    if len(lines) > most:
        text += f"\n[{len(lines) - most} more {what} left out]"
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + f"\n[cut after {MAX_TEXT} characters]"
    return text


def read_file(workspace: Workspace, path: str, offset: int = 1, limit: int = MAX_LINES) -> "str | Done":
    """Return at most `limit` numbered lines, from line `offset` on (1 is the first), or a whole image or document.

    Raises:
        RefusedError: The file cannot be read or has no such line, or the image or document is too large.
    """
    data = workspace.read(workspace.resolve(path, results=True), media=True)
    if (kind := media.type_of(data)) is not None:
        if (why := media.refusal(kind, data)) is not None:
            raise RefusedError(f"{path} was not read: {why}")
        name = escape_name(path.rsplit("/", 1)[-1])[:200]
        found = {"name": name, "type": kind, "data": b64encode(data).decode()}
        return Done(media.describe(name, kind, len(data)), media=found)
    lines = edits.split_lines(text := data.decode("utf-8", "replace"))
    first = max(offset, 1)
    if lines and first > len(lines):
        last = f"read from a line between 1 and {len(lines)}"
        raise RefusedError(f"{path} has {len(lines)} lines; there is no line {first}: {last}")
    shown, room, end = list[str](), MAX_TEXT, first - 1 + max(min(limit, MAX_LINES), 1)
    for number, line in enumerate(lines[first - 1 : end], first):
        more = len(line) - MAX_READ_LINE
        numbered = f"{number}\t{line[:MAX_READ_LINE]}" + (f" [{more} more characters left out]" if more > 0 else "")
        room -= len(numbered) + 1
        if room < 0:
            break
        shown.append(numbered)
    if (following := first + len(shown)) <= len(lines):
        shown.append(f"[go on with offset {following}; the file has {len(lines)} lines]")
    if edits.line_end(text) == "\r":
        shown.append("[each line ends in CR alone, also after an edit]")
    return "\n".join(shown) or "(an empty file)"


def read_text(workspace: Workspace, path: str) -> str:
    """Return the whole text of a file.

    Raises:
        RefusedError: The file cannot be read, or is too large.
    """
    data = workspace.read(workspace.resolve(path))
    if len(data) > MAX_WHOLE_FILE:
        raise RefusedError(f"{path} has {len(data)} bytes; the limit is {MAX_WHOLE_FILE}")
    return data.decode("utf-8", "replace")


def read_project_file(workspace: Workspace, path: str, accepted: dict[str, str]) -> str:
    """Return the text of a project's file (`CLAUDE.md`), followed by the files that it imports with `@path`.

    The project's files in the root are read-only for agents. Any other file is left out unless its SHA-256 is the one
    in `accepted`, by path.

    Raises:
        RefusedError: The first file cannot be read, or is not accepted.
    """
    texts, found, left = list[str](), {path}, MAX_PROJECT_TEXT
    waiting = [(path, path, "", 0)]
    while waiting and left > 0 and len(texts) <= MAX_IMPORTS:
        name, written, by, depth = waiting.pop(0)
        try:
            data = workspace.read(workspace.resolve(name))
        except RefusedError as refusal:
            if not by:
                raise
            # `@name` may be no import: a decorator, or a person.
            if "/" in written:
                texts.append(f"[{by} imports a file that was not read: {refusal}]")
            continue
        if name not in PROJECT_FILES and accepted.get(name) != hashlib.sha256(data).hexdigest():
            why = "is left out: the user has not accepted it as it is now"
            if not by:
                raise RefusedError(f"{name} {why}")
            texts.append(f"[{by} imports {name}, which {why}]")
            continue
        text = data.decode("utf-8", "replace")
        texts.append((f"[{name}, which {by} imports:]\n" if by else "") + text[:left])
        left -= len(text)
        wanted = imports_of(text, name) if depth < MAX_IMPORT_DEPTH else {}
        waiting += [(each, as_written, name, depth + 1) for each, as_written in wanted.items() if each not in found]
        found.update(wanted)
    return "\n\n".join(texts)


def read_skills(workspace: Workspace, path: str, names: list[str], file: str) -> str:
    """Return as JSON the text of `file` and the SHA-256 of all files of each of these skills.

    The JSON has an object for each name: with `files`, the SHA-256 by path, and `text` if the skill has the file; or
    with `why` the skill cannot be read. `path` is the folder of all skills. Text and SHA-256 are of the same reading of
    a file.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            files = _files_of_skill(workspace, f"{path}/{name}")
        except (RefusedError, OSError) as error:
            found[name] = {"why": str(error)}
            continue
        sums = {each: hashlib.sha256(data).hexdigest() for each, data in files.items()}
        found[name] = {"files": sums}
        if file in files:
            found[name]["text"] = files[file].decode("utf-8", "replace")[:MAX_SKILL_TEXT]
    return json.dumps(found)


def _files_of_skill(workspace: Workspace, path: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    waiting, room = [""], MAX_SKILL
    while waiting:
        below = waiting.pop()
        with workspace.open_folder(workspace.resolve(f"{path}/{below}")) as folder, os.scandir(folder) as listing:
            entries = [(each.name, each.is_dir(follow_symlinks=False), each.is_symlink()) for each in listing]
        for name, is_folder, is_link in entries:
            if is_link:
                raise RefusedError(f"{escape_name(below + name)} is a link")
            if is_folder:
                waiting += [f"{below}{name}/"] if name != SKILL_LEAVES_OUT else []
                continue
            data = files[below + name] = workspace.read(workspace.resolve(f"{path}/{below}{name}"), binary=True)
            room -= len(data)
            if room < 0 or len(files) > MAX_SKILL_FILES:
                raise RefusedError(f"it has more than {MAX_SKILL} bytes or {MAX_SKILL_FILES} files")
    return files


def plan_write(workspace: Workspace, path: str, content: str) -> Change:
    """Return the change that creates or replaces a file, without making it.

    Raises:
        RefusedError: The file must not be written, is no regular file, or has changed since it was read.
    """
    place = workspace.resolve(path)
    state = workspace.state(place)
    workspace.check_writable(place)
    before = workspace.stat(place)
    if before is not None:
        if not stat.S_ISREG(before.st_mode):
            raise RefusedError(f"{path} is not a regular file")
        workspace.check_unchanged(place)
    created = before is None
    lines = len(edits.split_lines(content))
    said = f"{'created' if created else 'replaced'} {path} ({lines} {'line' if lines == 1 else 'lines'})"
    return Change(place, state, _encoded(content), said, created)


def plan_edit(workspace: Workspace, path: str, **given: Any) -> Change:
    """Return the change that makes all replacements of a call in a file, without making it.

    `given` are the inputs of `edit_file` without the path.

    Raises:
        RefusedError: The file must not be written, has changed since it was read, or a replacement cannot be made.
    """
    place = workspace.resolve(path)
    state = workspace.state(place)
    workspace.check_writable(place)
    workspace.check_unchanged(place)
    _encoded(json.dumps(given, ensure_ascii=False))
    data = workspace.read(place)
    text = data.decode("utf-8", "surrogateescape")
    try:
        pieces, before, after, line_end = edits.edit(text, given)
    except edits.EditError as error:
        raise RefusedError(f"{path} was not changed: {error}") from None
    times = [before.count(each.old) if each.everywhere else 1 for each in pieces]
    # Imported here, because the server starts for each agent and rarely edits.
    from difflib import SequenceMatcher

    # How many lines a diff shows as added and as removed.
    changed = []
    for each in pieces:
        matcher = SequenceMatcher(None, edits.split_at_lf(each.old), edits.split_at_lf(each.new))
        steps = [step[1:] for step in matcher.get_opcodes() if step[0] != "equal"]
        changed.append((sum(to - at for _, _, at, to in steps), sum(to - at for at, to, _, _ in steps)))
    added, removed = (sum(n * lines[side] for n, lines in zip(times, changed, strict=True)) for side in (0, 1))
    several = f"{sum(times)} places, " if sum(times) > 1 else ""
    data = after.replace("\n", line_end).encode("utf-8", "surrogateescape")
    return Change(place, state, data, f"edited {path} ({several}+{added} −{removed} lines)")


def _describe(workspace: Workspace, change: Change) -> dict[str, Any]:
    """Return the fields of `base.PlannedChange`, with which the worker can undo a planned change later."""
    before, lost = workspace.read_before(change.place)
    name = change.place.name
    if name != "/".join(change.place.steps):
        before, lost = None, "its name is not UTF-8"
    return {
        "path": name,
        "before": None if before is None else b64encode(before).decode(),
        "after": hashlib.sha256(change.data).hexdigest(),
        "lost": lost,
        "folders": workspace.missing_folders(change.place),
    }


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedError("the text contains half of a surrogate pair, which cannot be written to a file") from None


def glob(workspace: Workspace, pattern: str, path: str = ".") -> str:
    """Return the paths of files below a folder that match a pattern, one a line, or a note that there are none.

    Raises:
        RefusedError: The path is not valid.
    """
    place = workspace.resolve(path)
    matches = _matcher(pattern)
    found = [_named(place, file) for file in workspace.walk(place) if matches(escape_name(file.path))]
    if not found and "/" not in pattern and "**" not in pattern:
        hint = f"no file matches {pattern} in {place.name} itself; **/{pattern} looks in all folders below it"
        return hint + _unread(workspace)
    return (_bounded(found, MAX_PATHS, "paths") or f"no file matches {pattern}") + _unread(workspace)


def _unread(workspace: Workspace) -> str:
    """Return a line that names the folders that the last search could not read; empty if it read all."""
    if not workspace.unread:
        return ""
    more = f" and {len(workspace.unread) - _NAMED} more" if len(workspace.unread) > _NAMED else ""
    return f"\n[could not be read: {', '.join(map(escape_name, workspace.unread[:_NAMED]))}{more}]"


def _named(place: Place, file: Found) -> str:
    return escape_name("/".join((*place.steps, file.path)))


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns True for relative paths that match a pattern; `**` stands for any folders.

    A pattern without a slash or `**` matches only names at the top.
    """
    pattern = re.sub(r"\*{3,}", "**", pattern)
    if (choice := _CHOICE.fullmatch(pattern)) is not None:
        begin, words, end = choice.groups()
        each = [_matcher(f"{begin}{word}{end}") for word in words.split(",")]
        return lambda path: any(matches(path) for matches in each)
    if pattern.count("**") <= _MOST_SPLIT and (stars := _STARS_IN_NAME.fullmatch(pattern)) is not None:
        begin, end = stars.groups()
        in_name, in_folders = _matcher(f"{begin}*{end}"), _matcher(f"{begin}*/**/*{end}")
        return lambda path: in_name(path) or in_folders(path)
    # `fnmatch` takes no `[^`.
    steps = tuple(pattern.replace("[^", "[!").split("/"))

    def matches(path: str) -> bool:
        # Most files are settled by their name, which costs less.
        return fnmatch.fnmatchcase(path.rpartition("/")[2], steps[-1]) and match_steps(steps, tuple(path.split("/")))

    return matches


class GrepOptions(NamedTuple):
    """The options of a call of grep in addition to pattern and path; see `files.Grep`."""

    glob: str = ""
    type: str = ""
    context: int = 0
    ignore_case: bool = False
    names_only: bool = False
    ignored: bool = False


def grep(workspace: Workspace, pattern: str, path: str = ".", **options: Any) -> str:
    """Return `path:line:text` for each line that a regular expression matches, or a note that there is none.

    `options` are those of `GrepOptions`: lines of the context are `path-line-text`.

    Raises:
        RefusedError: The expression, the path or the file type is not valid.
    """
    how = GrepOptions(**options)
    try:
        expression = re.compile(pattern, re.IGNORECASE if how.ignore_case else 0)
    except (re.error, OverflowError) as error:
        hint = "; put a backslash before a character that stands for itself, such as \\( or \\["
        raise RefusedError(f"{pattern!r} is not a valid pattern: {error}{hint}") from None
    place = workspace.resolve(path)
    if how.type and how.type not in TYPES:
        known = ", ".join(sorted(TYPES))
        raise RefusedError(
            f"there is no file type {how.type!r}; the types are {known}; or give a glob such as **/*.{how.type}"
        )
    # Without a slash it is about the name, in any folder.
    matches = _matcher(how.glob if "/" in how.glob else f"**/{how.glob}") if how.glob else None
    endings = tuple(f".{ending}" for ending in TYPES[how.type]) if how.type else ("",)

    def wanted(path: str) -> bool:
        return path.endswith(endings) and (matches is None or matches(path))

    literal = "" if how.ignore_case else _literal_in(pattern)
    found: list[str] = []
    left, is_cut = MAX_MATCHES, False
    for name, data in _texts(workspace, place, wanted, literal, ignored=how.ignored):
        if literal.encode() not in data:
            continue
        lines = edits.split_lines(data.decode("utf-8", "replace"))
        matching = [number for number, line in enumerate(lines) if expression.search(line)]
        if how.names_only:
            matching = matching[:1]
        shown = matching[:left]
        if shown and how.names_only:
            found.append(name)
        elif how.context and shown:
            found += [*(["--"] if found else []), *_with_context(name, lines, matching, shown, how.context)]
        else:
            found += [f"{name}:{number + 1}:{lines[number][:MAX_LINE]}" for number in shown]
        left -= len(shown)
        is_cut = len(shown) < len(matching)
        if is_cut:
            break
    if not found:
        kept = "" if how.ignored else "; files that .gitignore names were left out, ignored: true searches them"
        return f"no line matches {pattern}{kept if workspace.left_out else ''}{_unread(workspace)}"
    more = f"\n[more than {MAX_MATCHES} matches; the others are left out]" if is_cut else ""
    return _bounded(found, len(found), "lines") + more + _unread(workspace)


def _with_context(name: str, lines: list[str], matching: list[int], shown: list[int], context: int) -> Iterator[str]:
    """Yield lines of a file with `context` lines before and after each; `--` stands between two groups.

    `matching` are the indexes of the lines that match, and `shown` those of them that are yielded for themselves.
    """
    hits, last = set(matching), None
    near = {at for hit in shown for at in range(max(0, hit - context), min(len(lines), hit + context + 1))}
    for at in sorted(near):
        if last is not None and at > last + 1:
            yield "--"
        last, mark = at, ":" if at in hits else "-"
        yield f"{name}{mark}{at + 1}{mark}{lines[at][:MAX_LINE]}"


def _literal_in(pattern: str) -> str:
    """Return the longest text of which it is certain that each match of a pattern contains it; it may be empty."""
    parts = _PART.findall(pattern)
    if any(part in ("(", ")", "|") for part in parts):
        return ""
    runs, run = [""], ""
    for part, following in zip(parts, [*parts, ""][1:], strict=True):
        is_literal = part.isascii() and (part.isalnum() or part in _LITERAL)
        optional = following[:1] in ("*", "?", "{")
        if is_literal and not optional:
            run += part
        if not is_literal or optional or following == "+":
            runs.append(run)
            run = ""
    return max([*runs, run], key=len)


def _texts(
    workspace: Workspace, place: Place, wanted: Callable[[str], bool], literal: str, *, ignored: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of a file, or of each text file below a folder that may contain `literal`.

    `wanted` returns True for the paths of files that are searched in a folder.

    Raises:
        MissingError: The place does not exist.
    """
    before = workspace.stat(place)
    if before is None:
        raise MissingError(place)
    if not stat.S_ISDIR(before.st_mode):
        yield place.name, workspace.read(place)
        return
    program = next((path for path in RIPGREP if os.access(path, os.X_OK)), None)
    if len(literal) > 1 and program is not None:
        # The walk comes first, because ripgrep is told what it leaves out.
        paths = [file.path for file in workspace.walk(place, ignored=ignored) if wanted(escape_name(file.path))]
        listed = _listed_by_ripgrep(program, workspace, place, literal) if paths else frozenset[str]()
        for path in paths:
            if (listed is None or path in listed) and (data := workspace.read_below(place, path)) is not None:
                yield escape_name("/".join((*place.steps, path))), data
        return
    for file in workspace.walk(place, ignored=ignored):
        if wanted(escape_name(file.path)) and (data := workspace.read_found(file)) is not None:
            yield _named(place, file), data


def _listed_by_ripgrep(program: str, workspace: Workspace, place: Place, literal: str) -> frozenset[str] | None:
    """Return the paths of files below a folder that contain a text, as ripgrep finds them; None if it fails.

    They only save the reading of other files: what may be read and what matches is decided elsewhere. The folder must
    be the one of the last walk.
    """
    # Imported here, because the server starts for each agent.
    import subprocess

    given = ["--no-config", "--hidden", "--text", "--null", "--files-with-matches", "--no-messages", "--fixed-strings"]
    # What is ignored is decided by `walk`: ripgrep knows more files of such rules, and reads some rules differently. So
    # it leaves out only what `walk` leaves out, because that may be large, and it fails at a credential that is masked.
    given += ["--no-ignore", f"--max-filesize={MAX_FILE}", *(f"--glob=!{name}/" for name in SKIPPED)]
    # Folders, which end in a slash, come before files, because the list is limited.
    found = [*workspace.hidden_below(place), *sorted(workspace.left_out, key=lambda path: not path.endswith("/"))]
    # ripgrep takes only UTF-8, removes white space at the end, and a backslash before a slash, also an escaped one.
    nameable = [path for path in found if path.isprintable() and not path.endswith(("\\", "\\/"))]
    given += [f"--glob=!/{re.escape(path)}" for path in nameable[:_MOST_LEFT_OUT]]
    try:
        done = subprocess.run(
            [program, *given, "--regexp", literal, "--", "."],
            cwd=workspace.root.joinpath(*place.steps),
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=RIPGREP_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # 1: nothing found. 2: something could not be read, so that the list may lack files.
    if done.returncode not in (0, 1):
        return None
    return frozenset(os.fsdecode(name).removeprefix("./") for name in done.stdout.split(b"\0") if name)


def list_dir(workspace: Workspace, path: str = ".") -> str:
    """Return the names of the entries of a folder, one a line, with a slash after those of folders.

    The team's own folder `.crewboard` is left out.

    Raises:
        RefusedError: The path is not valid, or names no folder.
    """
    names = []
    with workspace.open_folder(workspace.resolve(path)) as folder, os.scandir(folder) as listing:
        for entry in sorted(listing, key=lambda entry: entry.name):
            if entry.name == HIDDEN:
                continue
            try:
                is_folder = entry.is_dir()
            except OSError:
                # A link that leads back to itself.
                is_folder = False
            names.append(escape_name(entry.name) + ("/" if is_folder else ""))
    return _bounded(names, MAX_PATHS, "entries") or "(an empty directory)"


_OPERATIONS: dict[str, Callable[..., str | Done]] = {
    "read_file": read_file, "read_text": read_text, "read_project_file": read_project_file, "read_skills": read_skills,
    "glob": glob, "grep": grep, "list_dir": list_dir,
}  # fmt: skip

_CHANGES: dict[str, Callable[..., Change]] = {"write_file": plan_write, "edit_file": plan_edit}


def answer(workspace: Workspace, request: dict[str, Any]) -> dict[str, Any]:
    """Run one request, `{name, input, limits}`, and return the response, `{content, is_error, created, media}`.

    With `plan` in the request, a change is only checked, and described in `planned` of the response. The request with
    the name `make` makes it, if it comes next; `unchanged` in its response says that it certainly was not made.
    """
    workspace.limits = Limits(**request.get("limits", {}))
    unchanged = request["name"] == "make"
    try:
        name, given = request["name"], request["input"]
        change, workspace.planned = workspace.planned, None
        if name in _CHANGES:
            change = _CHANGES[name](workspace, **given)
            if request.get("plan"):
                workspace.planned = change
                return {"is_error": False, "content": "", "planned": _describe(workspace, change)}
        if name in _OPERATIONS:
            found = _OPERATIONS[name](workspace, **given)
            done = found if isinstance(found, Done) else Done(found)
        elif change is None:
            raise RefusedError("no change is planned")
        elif workspace.state(change.place) != change.state:
            raise RefusedError(f"{change.place.given} was changed by another program just now; read it again")
        else:
            workspace.write(change.place, change.data)
            done = Done(change.said, change.created)
        more = {"media": done.media} if done.media else {}
        return {"is_error": False, "content": done.content, "created": done.created, **more}
    except MissingError as missing:
        text = f"{missing}{workspace.suggestion(missing.place)}"
    except RefusedError as refusal:
        text, unchanged = str(refusal), unchanged and not isinstance(refusal, PartlyWrittenError)
    except OSError as error:
        name = escape_name(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else ""
        text = f"{name}: {error.strerror}".lstrip(": ")
    except RecursionError:
        text = "the pattern is nested too deeply"
    except MemoryError:
        text = "out of memory"
    return {"content": text, "is_error": True, "unchanged": unchanged}


def main() -> None:
    """Answer requests until stdin ends or the worker is gone."""
    workspace = Workspace(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    try:
        for line in sys.stdin.buffer:
            reply = json.dumps(answer(workspace, json.loads(line)))
            sys.stdout.buffer.write(reply.encode() + b"\n")
            sys.stdout.buffer.flush()
    except ConnectionError:
        # The worker was killed. A normal exit would try to flush the buffer and fail again.
        os._exit(0)


if __name__ == "__main__":
    main()
