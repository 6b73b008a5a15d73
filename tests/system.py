"""Parts of the system that a test needs and a bare machine lacks."""

import os
import shutil
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""Where files are kept in memory, if there is such a place."""

LINUX_ALONE = {
    "cgroups": "the supervisor watches memory itself",
    "descent": "psutil asks all processes for their parents each time",
    "file events": "watchdog hears less, and a sweep finds the rest",
    "fork": "each worker is a new interpreter, which a test cannot patch",
    "orphans": "only those with a mark in their environment are found",
    "private memory": "other programs of the user can read it",
    "process ends": "they are polled for, and nothing tells that one has begun",
    "sandbox": "bubblewrap and Landlock are parts of Linux",
}
"""What is done only on Linux, and what is so without it: elsewhere, and in the plain-POSIX variant (`make plain`)."""

_ROOM = 1 << 30
"""Bytes that must be free in memory: a run has a hundred megabytes of files at a time."""


def has_room(folder: Path) -> bool:
    """Return True if the files of all tests fit, and programs can be run from there, which containers often forbid."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


def need(part: str, complaint: str | None) -> None:
    """Skip the test if `part` does not work here; in CI, which has all parts, fail."""
    if complaint is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{part} must work in CI: {complaint}")
    pytest.skip(f"{part} does not work here: {complaint}")


def need_program(name: str) -> None:
    """Skip the test if a program is not installed; in CI, fail."""
    need(name, None if shutil.which(name) else "it is not installed")
