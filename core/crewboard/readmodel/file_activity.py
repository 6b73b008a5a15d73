"""Which files agents have read and changed, and how: from their journals, as far as their file tools did it."""

import difflib
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from crewboard.readmodel.journal_tail import JournalTail
from crewboard.records import ToolResult, ToolStart
from crewboard.store.layout import AgentDirectory

TAIL = 512 * 1024
"""Bytes of a journal that are searched for changed files when a pane is opened."""

LATELY = 1800.0
"""Seconds for which a file that somebody read or changed counts as open."""

_MOST = 300
"""How many changes of an agent are kept, and how many readings: who reads a lot forgets no change for it."""

_TOOLS: dict[str, Literal["read", "write", "edit"]] = {
    "read_file": "read", "write_file": "write", "edit_file": "edit",
}  # fmt: skip


@dataclass(frozen=True)
class FileAccess:
    """A file that somebody read or changed, by which call.

    `diff` is a unified diff, `removed` is None where it is not known what stood there before.
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
        """Whether the file is another one since."""
        return self.kind != "read"


@dataclass
class FileAccessReader:
    """The file calls in the end of an agent's journal that succeeded, read forward."""

    agent: AgentDirectory
    _reads: deque[FileAccess] = field(default_factory=lambda: deque(maxlen=_MOST))
    _changes: deque[FileAccess] = field(default_factory=lambda: deque(maxlen=_MOST))
    _tail: JournalTail = field(init=False)
    _begun: dict[str, ToolStart] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = JournalTail(self.agent, TAIL)

    def read(self) -> list[FileAccess]:
        """The newest ones, newest last."""
        if self._tail.begins_anew():
            for gathered in (self._reads, self._changes, self._begun, self._known):
                gathered.clear()
        for event in self._tail.fresh():
            if isinstance(event, ToolStart) and event.name in _TOOLS:
                self._begun[event.tool_use_id] = event
            elif isinstance(event, ToolResult):
                begun = self._begun.pop(event.tool_use_id, None)
                if begun is not None and not event.is_error:
                    touch = self._touch(begun, event)
                    (self._changes if touch.changed else self._reads).append(touch)
        return sorted([*self._reads, *self._changes], key=lambda touch: touch.ts)

    def _touch(self, begun: ToolStart, result: ToolResult) -> FileAccess:
        path = normal(str(begun.input.get("path", "")))
        touch = FileAccess(result.ts, self.agent.name, path, _TOOLS[begun.name], call=begun.tool_use_id)
        if not touch.changed:
            self._known.pop(path, None)  # somebody else may have changed it meanwhile
            return touch
        before, after = self._texts(begun, result, path)
        return _with_diff(touch, before, after)

    def _texts(self, begun: ToolStart, result: ToolResult, path: str) -> tuple[str | None, str]:
        """What was changed into what; None where it is not known what stood there."""
        if begun.name == "write_file":
            before = "" if result.created else self._known.get(path)
            after = self._known[path] = str(begun.input.get("content", ""))
            return before, after
        old, new = (str(begun.input.get(name, "")) for name in ("old_text", "new_text"))
        if path in self._known:
            self._known[path] = self._known[path].replace(old, new, 1)
        return old, new


def normal(path: str) -> str:
    """A path of the workspace in the form in which paths are compared: `./a/b.py` is `a/b.py`."""
    return posixpath.normpath(path.strip()) if path.strip() else ""


def _with_diff(touch: FileAccess, before: str | None, after: str) -> FileAccess:
    lines = list(difflib.unified_diff((before or "").splitlines(), after.splitlines(), lineterm="", n=2))[2:]
    if touch.kind == "edit":
        lines = _without_numbers(lines)
    removed = sum(line.startswith("-") for line in lines)
    return replace(
        touch,
        diff="\n".join(lines),
        added=sum(line.startswith("+") for line in lines),
        removed=None if before is None else removed,
    )


def _without_numbers(lines: list[str]) -> list[str]:
    """A diff of a piece of a file, whose line numbers would be those of the piece."""
    return ["…" if line.startswith("@@") else line for line in lines][1:]


def _places(path: str) -> Iterator[str]:
    """A file, and every folder that it lies in."""
    while path.strip("/") not in ("", "."):
        yield path
        path = posixpath.dirname(path)


class Touched:
    """What everybody touched, oldest first, and by file and folder what each did there last. It never changes."""

    def __init__(self, touches: Iterable[FileAccess] = ()) -> None:
        self.all = tuple(sorted(touches, key=lambda touch: touch.ts))
        self._last: dict[str, dict[tuple[str, bool], FileAccess]] = {}
        for touch in self.all:
            for place in _places(touch.path):
                self._last.setdefault(place, {})[touch.agent, touch.changed] = touch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Touched) and self.all == other.all

    def __hash__(self) -> int:
        return hash(self.all)

    def others(self, path: str, own: str, now: float) -> list[FileAccess]:
        """Who else had a file, or one in a folder, open lately: of each the last change, else the last reading.

        Who changed it comes first.
        """
        last: dict[str, FileAccess] = {}
        known = self._last.get(normal(path), {}).values()
        for touch in sorted(known, key=lambda each: each.changed):
            if touch.agent != own and now - touch.ts <= LATELY:
                last[touch.agent] = touch
        return sorted(last.values(), key=lambda each: (not each.changed, -each.ts))
