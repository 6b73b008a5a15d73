"""A worker and everything that it started, as a tree."""

import contextlib
import os
from dataclasses import dataclass

import psutil

from crewboard.linux import process

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessNode:
    """One process of a tree; `depth` is 0 for the worker. CPU is the time it has used, in seconds."""

    pid: int
    depth: int
    command: str
    cpu_seconds: float
    rss_bytes: int


def process_tree(pid: int) -> tuple[ProcessNode, ...]:
    """The process `pid` and what descends from it, each child below its parent; empty when it is gone."""
    children: dict[int, list[int]] = {}
    for child, parent in process.parents().items():
        children.setdefault(parent, []).append(child)
    found: list[ProcessNode] = []
    waiting = [(pid, 0)]
    while waiting:
        here, depth = waiting.pop()
        # A process may end between the list and the look at it.
        with contextlib.suppress(psutil.Error):
            found.append(_look(here, depth))
            waiting += [(child, depth + 1) for child in sorted(children.get(here, []), reverse=True)]
    return tuple(found)


def _look(pid: int, depth: int) -> ProcessNode:
    seen = psutil.Process(pid)
    with seen.oneshot():
        program, *arguments = seen.cmdline() or [seen.name()]
        command = " ".join([os.path.basename(program), *arguments])  # noqa: PTH119  as written, not as a path of ours
        return ProcessNode(pid, depth, command, round(process.cpu_ticks(pid) / _TICKS, 1), seen.memory_info().rss)
