"""Which files agents have read and changed, and how: from their journals, as far as their file tools did it."""

import difflib
import posixpath
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from crewboard.records import ToolResult, ToolStart
from crewboard.store.directory import AgentDirectory
from crewboard.view.tail import JournalTail

TAIL = 512 * 1024
"""Bytes of a journal that are searched for changed files when a pane is opened."""

LATELY = 1800.0
"""Seconds for which a file that somebody read or changed counts as open."""

_MOST = 300
_TOOLS: dict[str, Literal["read", "write", "edit"]] = {
    "read_file": "read", "write_file": "write", "edit_file": "edit",
}  # fmt: skip
_NEW = "created "
"""How the result of a `write_file` begins where there was no file before."""


@dataclass(frozen=True)
class Touch:
    """A file that somebody read or changed.

    `diff` is a unified diff, `removed` is None where it is not known what stood there before.
    """

    ts: float
    agent: str
    path: str
    kind: Literal["read", "write", "edit"]
    diff: str = ""
    added: int = 0
    removed: int | None = 0

    @property
    def changed(self) -> bool:
        """Whether the file is another one since."""
        return self.kind != "read"


@dataclass
class TouchReader:
    """The file calls in the end of an agent's journal that succeeded, read forward."""

    agent: AgentDirectory
    touches: deque[Touch] = field(default_factory=lambda: deque(maxlen=_MOST))
    _tail: JournalTail = field(init=False)
    _begun: dict[str, ToolStart] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = JournalTail(self.agent, TAIL)

    def read(self) -> deque[Touch]:
        """The newest ones, newest last."""
        if self._tail.begins_anew():
            for gathered in (self.touches, self._begun, self._known):
                gathered.clear()
        for event in self._tail.fresh():
            if isinstance(event, ToolStart) and event.name in _TOOLS:
                self._begun[event.tool_use_id] = event
            elif isinstance(event, ToolResult):
                begun = self._begun.pop(event.tool_use_id, None)
                if begun is not None and not event.is_error:
                    self.touches.append(self._touch(begun, event))
        return self.touches

    def _touch(self, begun: ToolStart, result: ToolResult) -> Touch:
        path = normal(str(begun.input.get("path", "")))
        touch = Touch(result.ts, self.agent.name, path, _TOOLS[begun.name])
        if not touch.changed:
            self._known.pop(path, None)  # somebody else may have changed it meanwhile
            return touch
        before, after = self._texts(begun, result, path)
        return _with_diff(touch, before, after)

    def _texts(self, begun: ToolStart, result: ToolResult, path: str) -> tuple[str | None, str]:
        """What was changed into what; None where it is not known what stood there."""
        if begun.name == "write_file":
            before = "" if result.content.startswith(_NEW) else self._known.get(path)
            after = self._known[path] = str(begun.input.get("content", ""))
            return before, after
        old, new = (str(begun.input.get(name, "")) for name in ("old_text", "new_text"))
        if path in self._known:
            self._known[path] = self._known[path].replace(old, new, 1)
        return old, new


def normal(path: str) -> str:
    """A path of the workspace in the form in which paths are compared: `./a/b.py` is `a/b.py`."""
    return posixpath.normpath(path.strip()) if path.strip() else ""


def _with_diff(touch: Touch, before: str | None, after: str) -> Touch:
    lines = list(difflib.unified_diff((before or "").splitlines(), after.splitlines(), lineterm="", n=2))[2:]
    if touch.kind == "edit":
        lines = _without_numbers(lines)
    removed = sum(line.startswith("-") for line in lines)
    return Touch(
        touch.ts, touch.agent, touch.path, touch.kind,
        diff="\n".join(lines),
        added=sum(line.startswith("+") for line in lines),
        removed=None if before is None else removed,
    )  # fmt: skip


def _without_numbers(lines: list[str]) -> list[str]:
    """A diff of a piece of a file, whose line numbers would be those of the piece."""
    return ["…" if line.startswith("@@") else line for line in lines][1:]


def _is_in(path: str, place: str) -> bool:
    """Whether a file is `place`, or lies in it where that is a folder."""
    return path == place or path.startswith(f"{place}/")


def others(touches: Iterable[Touch], path: str, own: str, now: float) -> list[Touch]:
    """Who else had a file, or one in a folder, open lately: of each the last change, else the last reading.

    Who changed it comes first.
    """
    last: dict[str, Touch] = {}
    for touch in sorted(touches, key=lambda each: (each.changed, each.ts)):
        if touch.agent != own and _is_in(touch.path, normal(path)) and now - touch.ts <= LATELY:
            last[touch.agent] = touch
    return sorted(last.values(), key=lambda each: (not each.changed, -each.ts))
