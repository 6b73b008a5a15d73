"""Fault injection: a disk that fails at a chosen operation, and a process that dies there.

Every file operation that the store calls by its bare name in `os` is counted. At one of them, things go wrong: the
process is killed before or after it, the disk is full (once, or from then on), or a write takes only a part, after
which it goes on, finds the disk full, or is killed. A killed process does nothing more: what its `finally` blocks
call has no effect, and its descriptors are closed, which drops its locks.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from unittest import mock

OPERATIONS = ("open", "write", "pwrite", "fsync", "ftruncate", "replace", "rename", "close", "unlink", "mkdir")
WRITES = frozenset({"write", "pwrite"})
_NEED_ROOM = frozenset({"open", "write", "fsync", "replace", "rename", "mkdir"})
"""The calls that a full disk refuses; bytes that exist can be written over, cut off or removed."""

Kind = Literal["killed before", "killed after", "refused", "full from here", "short", "short, full", "short, killed"]
Part = Literal["a byte", "half", "all but a byte"]


DIED = 99
"""The exit code of a process that was really ended."""


class Killed(BaseException):
    """The process is gone."""


@dataclass(frozen=True)
class Fault:
    """The fault at the operation `number`, counted from 1. `part` is what a short write takes."""

    number: int
    kind: Kind
    part: Part = "half"

    def __str__(self) -> str:
        return f"operation {self.number} {self.kind}" + (f", {self.part}" if "short" in self.kind else "")


def kinds_for(operation: str) -> list[tuple[Kind, Part]]:
    """Return all faults that are possible at an operation."""
    everywhere: list[tuple[Kind, Part]] = [("killed before", "half"), ("killed after", "half"), ("refused", "half")]
    if operation in _NEED_ROOM:
        everywhere.append(("full from here", "half"))
    if operation in WRITES:
        parts: tuple[Part, ...] = ("a byte", "half", "all but a byte")
        short: tuple[Kind, ...] = ("short", "short, full", "short, killed")
        everywhere += [(kind, part) for kind in short for part in parts]
    return everywhere


def some_kinds_for(operation: str, number: int) -> list[tuple[Kind, Part]]:
    """Return a kill after the operation `number`, and others that are possible, in turn from operation to operation."""
    parts: tuple[Part, ...] = ("a byte", "half", "all but a byte")
    part = parts[number % 3]
    others: list[tuple[Kind, Part]] = [("refused", "half"), ("killed before", "half")]
    if operation in _NEED_ROOM:
        others.append(("full from here", "half"))
    chosen: list[tuple[Kind, Part]] = [("killed after", "half"), others[number % len(others)]]
    if operation in WRITES:
        chosen += [("short, killed", part), ("short, full", part)]
        chosen += [("short", part)] if number % 3 == 0 else []
    return chosen


@dataclass
class Disk:
    """Wrap `os` for the length of a `with` block; `calls` names the operations in order.

    What threads do that were there before is not counted, nor that a descriptor from before is closed: the garbage
    collector does that at any moment.

    With `really`, a kill ends this process, for tests that have forked one for that.
    """

    fault: Fault | None = None
    really: bool = False
    calls: list[str] = field(default_factory=list)
    reached: bool = False
    """True once the fault was reached."""
    _dead: bool = False
    _full: bool = False
    _short: bool = False
    _opened: dict[int, os.stat_result] = field(default_factory=dict)
    _elsewhere: set[int] = field(default_factory=set)
    _other_threads: set[int | None] = field(default_factory=set)
    _real: dict[str, Callable[..., Any]] = field(default_factory=dict)
    _patches: list[Any] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._real = {name: getattr(os, name) for name in OPERATIONS}
        self._other_threads = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        for name in OPERATIONS:
            patch = mock.patch.object(os, name, self._wrapped(name))
            patch.start()
            self._patches.append(patch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._patches:
            self._patches.pop().stop()
        for fd, file in self._opened.items():
            # A file object closes its descriptor without os.close(), and the number may be another file's by now.
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(fd), file):
                    self._real["close"](fd)

    def _wrapped(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  what `os` takes and gives
            return self._call(name, *arguments, **named)

        return call

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  as above
        if threading.get_ident() in self._other_threads or (name == "close" and self._is_from_before(arguments[0])):
            return self._real[name](*arguments, **named)
        if self._dead:
            raise Killed
        if self._is_elsewhere(name, arguments):
            return self._call_elsewhere(name, *arguments, **named)
        if name == "open" and _only_reads(arguments[1]):
            return self._do(name, *arguments, **named)
        self.calls.append(name)
        fault = self.fault
        # On a busy machine the worker saves its status once more, and the write is not where it was.
        is_possible = fault is not None and (name in WRITES or not fault.kind.startswith("short"))
        if fault is not None and is_possible and not self.reached and len(self.calls) >= fault.number:
            self.reached = True
            return self._fail(fault, name, *arguments, **named)
        if self._short and name in WRITES:
            self._continue_after_short()
        if self._full and name in _NEED_ROOM and not _is_harmless(name, arguments):
            raise _no_room()
        return self._do(name, *arguments, **named)

    def _is_from_before(self, fd: int) -> bool:
        return fd not in self._opened and fd not in self._elsewhere

    def _is_elsewhere(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Return True if this call only reads from /proc, which is no file of a team."""
        return arguments[0] in self._elsewhere or (name == "open" and str(arguments[0]).startswith("/proc/"))

    def _call_elsewhere(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  as above
        given = self._real[name](*arguments, **named)
        if name == "open":
            self._elsewhere.add(given)
        elif name == "close":
            self._elsewhere.discard(arguments[0])
        return given

    def _continue_after_short(self) -> None:
        self._short = False
        if self.fault is not None and self.fault.kind == "short, full":
            raise _no_room()

    def _fail(self, fault: Fault, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  as above
        if fault.kind == "killed before":
            self._die()
        if fault.kind in ("refused", "full from here"):
            self._full = fault.kind == "full from here"
            # The kernel closes a descriptor even if close() fails.
            if name == "close":
                self._do(name, *arguments, **named)
            raise _no_room()
        if fault.kind == "killed after":
            # The operation may fail by itself, too.
            with contextlib.suppress(OSError):
                self._do(name, *arguments, **named)
            self._die()
        fd, data, *rest = arguments
        taken = self._do(name, fd, data[: _length(fault.part, len(data))], *rest)
        if fault.kind == "short, killed":
            self._die()
        self._short = True
        return taken

    def _do(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401  as above
        if name == "fsync":
            # A killed process needs no sync, and a sync takes milliseconds.
            return None
        given = self._real[name](*arguments, **named)
        if name == "open":
            self._opened[given] = os.fstat(given)
        if name == "close":
            self._opened.pop(arguments[0], None)
        return given

    def _die(self) -> None:
        self._dead = True
        if self.really:
            os._exit(DIED)
        raise Killed


def _length(part: Part, whole: int) -> int:
    return {"a byte": min(1, whole), "half": max(1, whole // 2), "all but a byte": max(1, whole - 1)}[part]


def _only_reads(flags: int) -> bool:
    """Return True for an open that changes nothing and needs no room. A folder is opened to sync it."""
    return not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_DIRECTORY)


def _is_harmless(name: str, arguments: tuple[Any, ...]) -> bool:
    """Return True for an open that makes no file, which needs no space."""
    return name == "open" and (not arguments[1] & os.O_CREAT or Path(arguments[0]).exists())


def _no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
