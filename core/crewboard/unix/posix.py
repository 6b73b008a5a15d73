"""Functions of `process` without calls that only Linux has: with psutil, plain signals and polling.

Each function replaces the one of the same name in `process`, with the same contract; a docstring here says only where
it is weaker. They are used on other systems than Linux, and on Linux with `CREWBOARD_PLATFORM=posix`, as tests do. They
were never run on a Mac.

psutil is imported by the first call that needs it, because that takes 15 ms, and Linux does without.
"""

import contextlib
import os
import re
import select
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from crewboard import env
from crewboard.unix import programs

if TYPE_CHECKING:
    import psutil

REPLACES = (
    "boot_id", "start_ticks", "started_at", "is_ending", "is_stopped", "usage", "private_bytes", "cpu_ticks",
    "arguments", "cores", "available_memory", "parents", "has_job_control", "send_signal",
    "adopt_orphans", "end_with_parent", "keep_memory_private", "count_threads", "rename", "environment", "watch_end",
    "exit_status", "cgroup", "find_memory_cgroup",
)  # fmt: skip
"""The names of the functions of `process` that are replaced by those of this module."""

_POLL = 0.1
"""Seconds between two checks whether a process has ended."""

_TICKS = 100
"""Clock ticks per second, in which the start of a process is given, as on Linux."""

_MARK = re.compile(rb"(?:^|\0)" + env.WORKER.encode() + rb"=([^\0]+)-(\d+)-(\d+)(?:\0|$)")


def _living(pid: int) -> "psutil.Process | None":
    import psutil

    try:
        found = psutil.Process(pid)
        return None if found.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else found
    except (psutil.Error, ValueError, OverflowError):
        return None


@cache
def boot_id() -> str:
    import subprocess

    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        sysctl = programs.system_program("sysctl", Path.cwd())
        told = subprocess.run(
            [sysctl, "-n", "kern.bootsessionuuid"],
            capture_output=True, text=True, timeout=5, check=True, env=programs.clean_environment(),
        )  # fmt: skip
        return told.stdout.strip()
    return ""


def start_ticks(pid: int) -> int:
    import psutil

    found = _living(pid)
    try:
        # As psutil itself tells a process from a later one with its pid: what `create_time` says moves with the clock.
        return round(found._proc.create_time(monotonic=True) * _TICKS) if found else 0  # type: ignore[attr-defined]  # noqa: SLF001
    except psutil.Error:
        return 0


def started_at(ticks: int) -> float:
    import psutil

    # Linux counts from the boot, others from the epoch.
    return (psutil.boot_time() if sys.platform == "linux" else 0.0) + ticks / _TICKS


def is_ending(pid: int) -> bool:
    """Return False, because the system does not tell that a process has begun to end."""
    return False


def is_stopped(pid: int) -> bool:
    import psutil

    found = _living(pid)
    return found is not None and found.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def usage(pid: int) -> tuple[int, float, int] | None:
    import psutil

    found = _living(pid)
    if found is None:
        return None
    try:
        with found.oneshot():
            used = found.cpu_times()
            return start_ticks(pid), used.user + used.system, found.memory_info().rss
    except psutil.Error:
        return None


def private_bytes() -> int:
    import psutil

    try:
        return int(psutil.Process().memory_full_info().uss)
    except (psutil.Error, AttributeError):
        return 0


def cpu_ticks(pid: int) -> int:
    found = usage(pid)
    return round(found[1] * _TICKS) if found is not None else 0


def arguments(pid: int) -> list[str]:
    import psutil

    try:
        found = psutil.Process(pid)
        return found.cmdline() or [found.name()]
    except (psutil.Error, ValueError, OverflowError):
        return []


def cores() -> int:
    return os.cpu_count() or 1


def available_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def parents(known: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return every process with its parent; for an orphan of a worker that is running, that worker.

    The system itself makes its first process the parent of orphans. Those of a worker are found by its mark in their
    environment, unless they have removed it.
    """
    import psutil

    found = {}
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found[each.pid] = each.ppid()
    # An orphan gets the first process as its parent, or the nearest above that asked for orphans (a subreaper).
    adopters = {0, 1, *(each.pid for each in psutil.Process().parents())}
    for pid, parent in found.items():
        if parent in adopters or parent not in found:
            with contextlib.suppress(OSError):
                marked = _MARK.search(environment(pid))
                if marked is not None and int(marked[2]) != pid and start_ticks(int(marked[2])) == int(marked[3]):
                    found[pid] = int(marked[2])
    return found


def has_job_control() -> bool:
    import psutil

    own = os.getpid()
    for above in psutil.Process().parents():
        try:
            if os.getsid(above.pid) != os.getsid(own):
                return False
            if os.getpgid(above.pid) != os.getpgid(own):
                return True
        except OSError:
            return False
    return False


def send_signal(pid: int, number: int, ticks: int = 0) -> bool:
    """Signal a process. If it ends between the check of its start and the signal, another one may have got its pid."""
    if pid <= 0 or (ticks and start_ticks(pid) != ticks):
        return False
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def adopt_orphans() -> None:
    """Do nothing: `parents` finds orphans by their mark."""


def end_with_parent() -> None:
    """Do nothing: only the prefork server needs it, which is not used here."""


def keep_memory_private() -> None:
    """Do nothing: other processes of this user can read the memory and the environment of this one."""


def count_threads() -> int:
    import psutil

    return int(psutil.Process().num_threads())


def rename(name: str, arguments: list[str]) -> None:
    """Do nothing: the process shows the arguments with which it was started."""


def environment(pid: int) -> bytes:
    import psutil

    try:
        found = psutil.Process(pid).environ()
    except (psutil.Error, ValueError, OverflowError) as error:
        raise OSError(f"the environment of process {pid} cannot be read: {error}") from error
    return b"\0".join(os.fsencode(f"{name}={value}") for name, value in found.items())


def watch_end(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends, up to a tenth of a second later."""
    ticks = start_ticks(pid)
    if not ticks:
        raise ProcessLookupError(f"there is no process {pid}")
    ours, theirs = os.pipe()

    def wait() -> None:
        closed = select.poll()
        closed.register(theirs, 0)
        # A zombie has ended, too. Without a reader, nothing waits any more.
        while start_ticks(pid) == ticks and not closed.poll(_POLL * 1000):
            pass
        os.close(theirs)

    threading.Thread(target=wait, name=f"crewboard-end-of-{pid}", daemon=True).start()
    return ours


def exit_status(pidfd: int) -> int | None:
    """Return None, because only the parent of a process is told how it ended."""
    return None


def cgroup(pid: int) -> Path | None:
    """Return None, because there are no cgroups here; the supervisor watches memory itself."""
    return None


def find_memory_cgroup(proc: Path = Path("/proc")) -> Path | None:
    """Return None, because there are no cgroups here."""
    return None
