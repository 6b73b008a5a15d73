"""The files that agents read and changed with their file tools, by their journals."""

import posixpath
from collections import deque
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from crewboard import edits
from crewboard.records.events import ToolResult, ToolStart
from crewboard.store.journal import JournalTail
from crewboard.store.layout import AgentDirectory

TAIL = 512 * 1024
"""Bytes at the end of a journal in which file calls are looked for."""

IN_USE = 1800.0
"""Seconds for which a file counts as in use after an agent read or changed it."""

_MOST = 300
"""Most changes, and most reads, that are kept for each agent. They are kept apart, so that reads displace no change."""

_TOOLS: dict[str, Literal["read", "write", "edit"]] = {
    "read_file": "read", "write_file": "write", "edit_file": "edit",
}  # fmt: skip


class FileAccess(Struct, frozen=True):
    """A call of a tool that read or changed a file.

    `diff` is a unified diff, empty for a read; `added` and `removed` count its lines. `removed` is None if the previous
    content is not known. `call` is the id of the call.
    """

    ts: float
    agent: str
    path: str
    kind: Literal["read", "write", "edit"]
    diff: str = ""
    added: int = 0
    removed: int | None = 0
    call: str = ""

    @property
    def changed(self) -> bool:
        """Return True if the call changed the file."""
        return self.kind != "read"


class FileAccessReader:
    """A reader of the successful file calls at the end of an agent's journal."""

    def __init__(self, agent: AgentDirectory) -> None:
        self.agent = agent
        self._reads: deque[FileAccess] = deque(maxlen=_MOST)
        self._changes: deque[FileAccess] = deque(maxlen=_MOST)
        self._tail = JournalTail(agent.journal, TAIL)
        self._begun: dict[str, ToolStart] = {}
        self._known: dict[str, str] = {}

    def read(self) -> list[FileAccess]:
        """Return the newest calls, the newest last."""
        if self._tail.restarted():
            for gathered in (self._reads, self._changes, self._begun, self._known):
                gathered.clear()
        for event in self._tail.read_new():
            if isinstance(event, ToolStart) and event.name in _TOOLS:
                self._begun[event.tool_use_id] = event
            elif isinstance(event, ToolResult):
                begun = self._begun.pop(event.tool_use_id, None)
                if begun is not None and not event.is_error:
                    access = self._access(begun, event)
                    (self._changes if access.changed else self._reads).append(access)
        return sorted([*self._reads, *self._changes], key=lambda access: access.ts)

    def _access(self, begun: ToolStart, result: ToolResult) -> FileAccess:
        path = normal(str(begun.input.get("path", "")))
        access = FileAccess(result.ts, self.agent.name, path, _TOOLS[begun.name], call=begun.tool_use_id)
        if not access.changed:
            # Another agent may have changed the file before it was read.
            self._known.pop(path, None)
            return access
        if begun.name == "write_file":
            before = "" if result.created else self._known.get(path)
            after = self._known[path] = str(begun.input.get("content", ""))
            return _with_diff(access, [(before, after)])
        try:
            pieces = edits.replacements(begun.input)
            if path in self._known:
                self._known[path] = edits.apply(self._known[path], pieces)
        except edits.EditError:
            # A command changed the file meanwhile, or the journal is of another program.
            self._known.pop(path, None)
            pieces = edits.replacements({**begun.input, "diff": None})
        return _with_diff(access, [(each.old, each.new) for each in pieces])


def normal(path: str) -> str:
    """Return a path of the workspace in a form in which paths can be compared: `a/b.py` for `./a/b.py`."""
    return posixpath.normpath(path.strip()) if path.strip() else ""


def _with_diff(access: FileAccess, pieces: list[tuple[str | None, str]]) -> FileAccess:
    """Return the call with its diff. Each piece is the text before, None if it is not known, and the text after."""
    lines: list[str] = []
    for before, after in pieces:
        hunks = edits.diff_lines(before or "", after, context=2)
        if access.kind == "edit":
            # Line numbers would count from the start of the edited piece.
            hunks = ["…" if line.startswith("@@") else line for line in hunks][1:]
        lines += [*(["…"] if lines else []), *hunks]
    removed = sum(line.startswith("-") for line in lines)
    return replace(
        access,
        diff="\n".join(lines),
        added=sum(line.startswith("+") for line in lines),
        removed=None if any(before is None for before, _ in pieces) else removed,
    )


class FileActivity:
    """The file calls of all agents, oldest first, and the last ones of each agent by file and folder. Immutable."""

    def __init__(self, accesses: Iterable[FileAccess] = ()) -> None:
        self.all = tuple(sorted(accesses, key=lambda access: access.ts))
        self._last: dict[str, dict[tuple[str, bool], FileAccess]] = {}
        for access in self.all:
            place = access.path
            # The file, and every folder that it is in.
            while place.strip("/") not in ("", "."):
                self._last.setdefault(place, {})[access.agent, access.changed] = access
                place = posixpath.dirname(place)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileActivity) and self.all == other.all

    def __hash__(self) -> int:
        return hash(self.all)

    def others(self, path: str, own: str, now: float) -> list[FileAccess]:
        """Return the recent use of a file, or of files in a folder, by agents other than `own`: one call for each.

        It is the agent's last change, or its last read if it changed nothing. Changes come first.
        """
        last: dict[str, FileAccess] = {}
        known = self._last.get(normal(path), {}).values()
        for access in sorted(known, key=lambda each: each.changed):
            if access.agent != own and now - access.ts <= IN_USE:
                last[access.agent] = access
        return sorted(last.values(), key=lambda each: (not each.changed, -each.ts))
