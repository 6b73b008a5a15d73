"""The process in which an agent's file tools run: one JSON request per line on stdin, one response per line on stdout.

It is a process of its own so that a pattern or a device that hangs it costs one tool call: the worker ends it and
starts another one. It imports only the standard library, to start fast and use little memory.

    python -I -m crewboard.worker.tools.file_server ROOT TEAM-RESULTS
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crewboard.worker.tools.workspace import HIDDEN, Found, Limits, Place, RefusedError, Workspace, escape_name

MAX_TEXT = 60_000
"""Characters of one response."""

MAX_WHOLE_FILE = 1024 * 1024
"""Bytes of a file that `read_text` returns."""

MAX_LINES = 2000
MAX_MATCHES = 500
MAX_PATHS = 1000
MAX_LINE = 500
"""Characters of a line that grep shows."""


class Done(NamedTuple):
    """The result of an operation; `created` says that it made a new file."""

    content: str
    created: bool = False


def _bounded(lines: list[str], most: int, what: str) -> str:
    """Join at most `most` lines; say how much was left out."""
    text = "\n".join(lines[:most])
    if len(lines) > most:
        text += f"\n[{len(lines) - most} more {what} left out]"
    if len(text) > MAX_TEXT:
        text = text[:MAX_TEXT] + f"\n[cut after {MAX_TEXT} characters]"
    return text


def read_file(workspace: Workspace, path: str, offset: int = 1, limit: int = MAX_LINES) -> str:
    """Return numbered lines, from line `offset` on (1 is the first)."""
    lines = workspace.read(workspace.resolve(path, results=True)).decode("utf-8", "replace").splitlines()
    first = max(offset, 1)
    shown = [f"{number}\t{line}" for number, line in enumerate(lines[first - 1 :], first)]
    if lines and not shown:
        raise RefusedError(f"{path} has {len(lines)} lines; there is no line {first}")
    return _bounded(shown, max(min(limit, MAX_LINES), 1), f"lines (of {len(lines)})") or "(an empty file)"


def read_text(workspace: Workspace, path: str) -> str:
    """Return the whole text of a file."""
    data = workspace.read(workspace.resolve(path))
    if len(data) > MAX_WHOLE_FILE:
        raise RefusedError(f"{path} has {len(data)} bytes; the limit is {MAX_WHOLE_FILE}")
    return data.decode("utf-8", "replace")


def write_file(workspace: Workspace, path: str, content: str) -> Done:
    """Create or replace a file."""
    place = workspace.resolve(path)
    workspace.check_writable(place)
    before = workspace.stat(place)
    if before is not None:
        if not stat.S_ISREG(before.st_mode):
            raise RefusedError(f"{path} is not a regular file")
        workspace.check_unchanged(place)
    workspace.write(place, _encoded(content))
    created = before is None
    return Done(f"{'created' if created else 'replaced'} {path} ({len(content.splitlines())} lines)", created)


def edit_file(workspace: Workspace, path: str, old_text: str, new_text: str) -> str:
    """Replace the only occurrence of a text."""
    place = workspace.resolve(path)
    workspace.check_writable(place)
    workspace.check_unchanged(place)
    if not old_text:
        raise RefusedError("old_text is empty")
    data = workspace.read(place)
    old, new = _encoded(old_text), _encoded(new_text)
    if b"\r\n" in data and data.count(b"\n") == data.count(b"\r\n"):
        # `read_file` shows lines without their ends.
        old, new = (re.sub(rb"\r?\n", b"\r\n", text) for text in (old, new))
    count = data.count(old)
    if count != 1:
        raise RefusedError(f"old_text occurs {count} times in {path}; it must occur exactly once")
    workspace.write(place, data.replace(old, new))
    added, removed = _line_changes(old_text.splitlines(), new_text.splitlines())
    return f"edited {path} (+{added} −{removed} lines)"


def _line_changes(before: list[str], after: list[str]) -> tuple[int, int]:
    """Return how many lines a diff shows as added and as removed."""
    # Imported here, because the server starts for each agent and rarely edits.
    from difflib import SequenceMatcher

    changes = [step[1:] for step in SequenceMatcher(None, before, after).get_opcodes() if step[0] != "equal"]
    return sum(to - at for _, _, at, to in changes), sum(to - at for at, to, _, _ in changes)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedError("the text contains half of a surrogate pair, which cannot be written to a file") from None


def glob(workspace: Workspace, pattern: str, path: str = ".") -> str:
    """Return paths that match a pattern; `**` matches any folders."""
    place = workspace.resolve(path)
    matches = _matcher(pattern)
    found = [_named(place, file) for file in workspace.walk(place) if matches(escape_name(file.path))]
    return _bounded(found, MAX_PATHS, "paths") or f"no file matches {pattern}"


def _named(place: Place, file: Found) -> str:
    return escape_name("/".join((*place.steps, file.path)))


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that matches relative paths. A pattern without a slash matches only names at the top."""
    if "/" not in pattern and "**" not in pattern:
        return lambda path: "/" not in path and fnmatch.fnmatchcase(path, pattern)
    parts = re.split(r"(\*\*/?|\*|\?|\[[^]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = "".join(special.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts if p)
    compiled = _compiled(expression, pattern)
    return lambda path: compiled.fullmatch(path) is not None


def _compiled(expression: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except (re.error, OverflowError) as error:
        raise RefusedError(f"{pattern!r} is not a valid pattern: {error}") from None


def grep(workspace: Workspace, pattern: str, path: str = ".") -> str:
    """Return `path:line:text` for each line that a regular expression matches."""
    expression = _compiled(pattern, pattern)
    place = workspace.resolve(path)
    found: list[str] = []
    for name, data in _texts(workspace, place):
        lines = enumerate(data.decode("utf-8", "replace").splitlines(), 1)
        found += [f"{name}:{number}:{line[:MAX_LINE]}" for number, line in lines if expression.search(line)]
        if len(found) > MAX_MATCHES:
            break
    return _bounded(found, MAX_MATCHES, "matches or more") or f"no line matches {pattern}"


def _texts(workspace: Workspace, place: Place) -> Iterator[tuple[str, bytes]]:
    """Yield a file, or all text files below a folder, with its name."""
    before = workspace.stat(place)
    if before is None:
        raise RefusedError(f"there is no file {place.given}")
    if not stat.S_ISDIR(before.st_mode):
        yield place.name, workspace.read(place)
        return
    for file in workspace.walk(place):
        data = workspace.read_found(file)
        if data is not None:
            yield _named(place, file), data


def list_dir(workspace: Workspace, path: str = ".") -> str:
    """Return one entry per line, folders with a slash."""
    with workspace.open_folder(workspace.resolve(path)) as folder, os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
        names = [
            escape_name(entry.name) + ("/" if _is_folder(entry) else "") for entry in entries if entry.name != HIDDEN
        ]
    return _bounded(names, MAX_PATHS, "entries") or "(an empty directory)"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads back to itself.
        return False


_OPERATIONS: dict[str, Callable[..., str | Done]] = {
    "read_file": read_file, "read_text": read_text, "write_file": write_file, "edit_file": edit_file,
    "glob": glob, "grep": grep, "list_dir": list_dir,
}  # fmt: skip


def answer(workspace: Workspace, request: dict[str, Any]) -> dict[str, Any]:
    """Run one request: `{name, input, limits}` → `{content, is_error, created}`."""
    workspace.limits = Limits(**request.get("limits", {}))
    try:
        done = _OPERATIONS[request["name"]](workspace, **request["input"])
    except RefusedError as refusal:
        return {"content": str(refusal), "is_error": True}
    except OSError as error:
        name = escape_name(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else ""
        return {"content": f"{name}: {error.strerror}".lstrip(": "), "is_error": True}
    except RecursionError:
        return {"content": "the pattern is nested too deeply", "is_error": True}
    except MemoryError:
        return {"content": "out of memory", "is_error": True}
    content, created = done if isinstance(done, Done) else (done, False)
    return {"content": content, "is_error": False, "created": created}


def main() -> None:
    """Serve until stdin ends or the worker is gone."""
    workspace = Workspace(Path(sys.argv[1]), Path(sys.argv[2]))
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
