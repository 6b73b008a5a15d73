"""The helper in which a worker's file tools run: one JSON request a line on stdin, one answer a line on stdout.

A process of its own, so that a pattern or a device that hangs it costs one tool call: the worker ends it and starts
another. It imports nothing but the standard library, to start fast and weigh little.

    python -I -m crewboard.worker.hands ROOT TEAM-RESULTS
"""

import fnmatch
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LARGEST_FILE = 10 * 1024 * 1024
"""Bytes; larger files are not read whole."""

MOST_TEXT = 60_000
"""Characters of one answer."""

MOST_LINES = 2000
MOST_MATCHES = 500
MOST_PATHS = 1000

HIDDEN = ".crewboard"
_SKIPPED = frozenset(
    {HIDDEN, ".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"}
)
"""Folders that searches leave out; all but the team's own can still be named."""


class RefusedError(Exception):
    """A tool call that cannot be done; the text says why."""


class Workspace:
    """The files that the tools may touch: everything inside the root, nothing of `.crewboard` but the results."""

    def __init__(self, root: Path, results: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self.results = Path(os.path.realpath(results))
        self._seen: dict[Path, tuple[int, int]] = {}

    def resolve(self, given: str, *, results: bool = False) -> Path:
        """The file that `given` means.

        Raises:
            RefusedError: It lies outside, by `..`, an absolute path or a link, or among the team's own files.
        """
        if "\0" in given:
            raise RefusedError("a path cannot hold a NUL byte")
        if ".." in Path(given).parts:
            raise RefusedError(f"{given}: paths with .. are not allowed; give the path from the workspace's root")
        real = Path(os.path.realpath(self.root / given))
        if results and real.is_relative_to(self.results):
            return real
        if not real.is_relative_to(self.root):
            raise RefusedError(f"{given} lies outside the workspace {self.root}")
        if HIDDEN in real.relative_to(self.root).parts:
            raise RefusedError(f"{given} belongs to the team's own files")
        return real

    def name(self, path: Path) -> str:
        """A path as the model writes it: from the root."""
        return str(path.relative_to(self.root)) or "."

    def read(self, path: Path, given: str) -> str:
        """The text of a regular file.

        Raises:
            RefusedError: No such file, not a regular one, too large, or not text.
        """
        found = _stat(path, given)
        if stat.S_ISDIR(found.st_mode):
            raise RefusedError(f"{given} is a directory; list_dir shows what is in it")
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError(f"{given} is not a regular file")
        if found.st_size > LARGEST_FILE:
            raise RefusedError(f"{given} has {found.st_size} bytes; files beyond {LARGEST_FILE} are not read")
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            raise RefusedError(f"{given} is a binary file ({len(data)} bytes)")
        self.remember(path)
        return data.decode("utf-8", "replace")

    def remember(self, path: Path) -> None:
        """Note the state in which the agent knows a file."""
        found = path.stat()
        self._seen[path] = (found.st_mtime_ns, found.st_size)

    def check_unchanged(self, path: Path, given: str) -> None:
        """Refuse to change a file that somebody changed since the agent read it.

        Raises:
            RefusedError: It was changed.
        """
        found = path.stat()
        if path in self._seen and self._seen[path] != (found.st_mtime_ns, found.st_size):
            raise RefusedError(f"{given} was changed by somebody else since you read it; read it again")

    def write(self, path: Path, text: str) -> None:
        """Put a file in place in one step, with the permissions it had."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8", newline="")
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self.remember(path)

    def walk(self, start: Path) -> Iterator[Path]:
        """Every regular file below `start`, in order, without following links."""
        for folder, folders, files in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED)
            for name in sorted(files):
                path = Path(folder) / name
                if path.is_file() and not path.is_symlink():
                    yield path


def _stat(path: Path, given: str) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        raise RefusedError(f"there is no file {given}") from None
    except OSError as error:
        raise RefusedError(f"{given}: {error.strerror}") from None


def _bounded(lines: list[str], most: int, what: str) -> str:
    """Lines as text, cut with a word about what was left out."""
    text = "\n".join(lines[:most])
    if len(lines) > most:
        text += f"\n[{len(lines) - most} more {what} left out]"
    if len(text) > MOST_TEXT:
        text = text[:MOST_TEXT] + f"\n[cut after {MOST_TEXT} characters]"
    return text


def read_file(workspace: Workspace, path: str, offset: int = 1, limit: int = MOST_LINES) -> str:
    """Numbered lines, from line `offset` (1 is the first) on."""
    text = workspace.read(workspace.resolve(path, results=True), path)
    lines = text.splitlines()
    first = max(offset, 1)
    shown = [f"{number}\t{line}" for number, line in enumerate(lines[first - 1 :], first)]
    if lines and not shown:
        raise RefusedError(f"{path} has {len(lines)} lines; there is no line {first}")
    return _bounded(shown, max(min(limit, MOST_LINES), 1), f"lines (of {len(lines)})") or "(an empty file)"


def read_text(workspace: Workspace, path: str) -> str:
    """A whole file as it stands."""
    return workspace.read(workspace.resolve(path), path)


def write_file(workspace: Workspace, path: str, content: str) -> str:
    """Create or replace a file."""
    target = workspace.resolve(path)
    existed = target.exists()
    if existed:
        if not target.is_file():
            raise RefusedError(f"{path} is not a regular file")
        workspace.check_unchanged(target, path)
    workspace.write(target, content)
    return f"{'replaced' if existed else 'created'} {path} ({len(content.splitlines())} lines)"


def edit_file(workspace: Workspace, path: str, old_text: str, new_text: str) -> str:
    """Replace the one occurrence of a text."""
    target = workspace.resolve(path)
    before = _stat(target, path)
    if stat.S_ISREG(before.st_mode):
        workspace.check_unchanged(target, path)
    text = workspace.read(target, path)
    if not old_text:
        raise RefusedError("old_text is empty")
    count = text.count(old_text)
    if count != 1:
        raise RefusedError(f"old_text occurs {count} times in {path}; it must occur exactly once")
    raw = target.read_bytes().decode("utf-8", "surrogateescape")
    if raw.count(old_text) != 1:
        raise RefusedError(f"{path} is not valid UTF-8; edit it with another tool")
    workspace.write(target, raw.replace(old_text, new_text))
    return f"edited {path} (+{len(new_text.splitlines())} −{len(old_text.splitlines())} lines)"


def glob(workspace: Workspace, pattern: str, path: str = ".") -> str:
    """Paths that match a pattern; `**` stands for any folders."""
    start = workspace.resolve(path)
    matches = _matcher(pattern)
    found = [
        name
        for file in workspace.walk(start)
        if matches(str(file.relative_to(start)))
        for name in [workspace.name(file)]
    ]
    return _bounded(found, MOST_PATHS, "paths") or f"no file matches {pattern}"


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a relative path matches; a pattern without a slash is for the whole depth's file names."""
    if "/" not in pattern and "**" not in pattern:
        return lambda path: "/" not in path and fnmatch.fnmatchcase(path, pattern)
    parts = re.split(r"(\*\*/?|\*|\?|\[[^]]+\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = "".join(special.get(p) or (p if p.startswith("[") else re.escape(p)) for p in parts if p)
    compiled = re.compile(expression)
    return lambda path: compiled.fullmatch(path) is not None


def grep(workspace: Workspace, pattern: str, path: str = ".") -> str:
    """`path:line:text` for each line that a regular expression matches."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise RefusedError(f"{pattern!r} is no regular expression: {error}") from None
    start = workspace.resolve(path)
    files = [start] if start.is_file() else workspace.walk(start)
    found: list[str] = []
    for file in files:
        found += _grep_file(workspace, expression, file)
        if len(found) > MOST_MATCHES:
            break
    return _bounded(found, MOST_MATCHES, "matches or more") or f"no line matches {pattern}"


def _grep_file(workspace: Workspace, expression: re.Pattern[str], file: Path) -> list[str]:
    try:
        if not stat.S_ISREG(file.stat().st_mode) or file.stat().st_size > LARGEST_FILE:
            return []
        data = file.read_bytes()
    except OSError:
        return []
    if b"\0" in data[:8192]:
        return []
    name = workspace.name(file)
    lines = enumerate(data.decode("utf-8", "replace").splitlines(), 1)
    return [f"{name}:{number}:{line[:500]}" for number, line in lines if expression.search(line)]


def list_dir(workspace: Workspace, path: str = ".") -> str:
    """One entry a line, folders with a slash."""
    folder = workspace.resolve(path)
    if not stat.S_ISDIR(_stat(folder, path).st_mode):
        raise RefusedError(f"{path} is not a directory")
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    names = [entry.name + ("/" if entry.is_dir() else "") for entry in entries if entry.name != HIDDEN]
    return _bounded(names, MOST_PATHS, "entries") or "(an empty directory)"


_OPERATIONS: dict[str, Callable[..., str]] = {
    "read_file": read_file, "read_text": read_text, "write_file": write_file, "edit_file": edit_file,
    "glob": glob, "grep": grep, "list_dir": list_dir,
}  # fmt: skip


def answer(workspace: Workspace, request: dict[str, Any]) -> dict[str, Any]:
    """Do one request: `{name, input}` → `{content, is_error}`."""
    try:
        content = _OPERATIONS[request["name"]](workspace, **request["input"])
    except RefusedError as refusal:
        return {"content": str(refusal), "is_error": True}
    except OSError as error:
        return {"content": f"{error.filename or ''}: {error.strerror}".lstrip(": "), "is_error": True}
    except RecursionError:
        return {"content": "the pattern is nested too deeply", "is_error": True}
    return {"content": content, "is_error": False}


def main() -> None:
    """Serve until stdin ends."""
    workspace = Workspace(Path(sys.argv[1]), Path(sys.argv[2]))
    for line in sys.stdin.buffer:
        reply = json.dumps(answer(workspace, json.loads(line)))
        sys.stdout.buffer.write(reply.encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
