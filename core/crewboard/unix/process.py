"""Processes as the kernel knows them: identity, parents and children, use of memory, signals, ends, cgroups.

A process is identified by its pid, its start time in clock ticks, and the id of the boot. On a system that is not
Linux, functions of `posix` replace those here, with the same contract.
"""

import contextlib
import fcntl
import os
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from crewboard import env

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_DUMPABLE = 4

_M_MMAP_THRESHOLD = -3
"""An option of `mallopt` from glibc's malloc.h; other C libraries ignore options that they do not know."""

_STATE, _PPID, _GROUP, _SESSION, _FLAGS, _START_TICKS = 0, 1, 2, 3, 6, 19
"""Indexes of the fields of /proc/<pid>/stat after the name, from the state (proc_pid_stat(5), fields 3 to 6, 9, 22)."""

_EXITING = 0x4
"""The flag PF_EXITING of linux/sched.h."""

_CPU = slice(11, 13)
"""The positions of the ticks spent in user and in kernel mode (fields 14 and 15)."""

_ARGUMENTS = slice(45, 47)
"""The positions of fields 48 and 49: where the arguments of a process begin and end in its memory."""

_RSS = 21
"""The index of the number of pages in RAM (field 24)."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")

_LONGEST_NAME = 15
"""Bytes of a process's name that the kernel keeps."""

_LONGEST_STAT = 4096
"""Bytes to read of /proc/<pid>/stat, which has fifty numbers and a name of at most 64 bytes."""


def runs_as_root() -> bool:
    """Return True if this process runs as root.

    Agents then run as root as well: without root's special rights, but on files that root owns.
    """
    return os.geteuid() == 0


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine; empty if it is not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat(pid: int, first: int = -1) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name; an empty list if there is no such process.

    With `first`, only that many are split off, and the last item is the rest.
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(fd, _LONGEST_STAT)
    except OSError:
        return []
    finally:
        os.close(fd)
    return text.rpartition(b")")[2].decode().split(None, first)


def start_ticks(pid: int) -> int:
    """Return when the process `pid` started, in clock ticks since boot; 0 if it is gone, or has ended unreaped."""
    fields = _stat(pid)
    return int(fields[_START_TICKS]) if fields and fields[_STATE] not in "ZX" else 0


def started_at(ticks: int) -> float:
    """Return a start time from `start_ticks` in epoch seconds."""
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_at + ticks / _TICKS


def is_ending(pid: int) -> bool:
    """Return True if the process has begun to end, so that it may have freed its locks already."""
    fields = _stat(pid)
    return bool(fields) and bool(int(fields[_FLAGS]) & _EXITING)


def is_stopped(pid: int) -> bool:
    """Return True if a signal stopped the process (SIGSTOP), so that it does nothing until SIGCONT."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE] in "Tt"


class Measurement(NamedTuple):
    """What a process uses: seconds of processor time so far, and bytes in RAM now. Pid and start identify it."""

    pid: int
    start_ticks: int
    cpu_seconds: float
    rss_bytes: int


def measure(pid: int) -> Measurement | None:
    """Return what a process uses; None if there is no such process."""
    found = usage(pid)
    return Measurement(pid, *found) if found is not None else None


def usage(pid: int) -> tuple[int, float, int] | None:
    """Return the start of a process in ticks, its seconds of processor time, its bytes in RAM; None if it is gone."""
    fields = _stat(pid)
    if not fields or fields[_STATE] in "ZX":
        return None
    cpu = sum(int(field) for field in fields[_CPU]) / _TICKS
    return int(fields[_START_TICKS]), cpu, int(fields[_RSS]) * _PAGE


def private_bytes() -> int:
    """Return how many bytes of memory in RAM this process shares with no other one; 0 if the kernel does not say.

    It works for this process even after `keep_memory_private`.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def cpu_ticks(pid: int) -> int:
    """Return the clock ticks for which the process had a processor; 0 if there is no such process."""
    return sum(int(field) for field in _stat(pid)[_CPU])


def arguments(pid: int) -> list[str]:
    """Return the program and the arguments of a process; its name alone if it has none, nothing if it is gone."""
    for file, end in (("cmdline", "\0"), ("comm", "\n")):
        try:
            text = Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="surrogateescape")
        except OSError:
            return []
        if text.strip("\0\n"):
            return text.removesuffix(end).split("\0")
    return []


def resident_bytes(pid: int) -> int:
    """Return how many bytes of memory a process and its descendants have in RAM; 0 if there is no such process.

    Shared memory counts once for each process that uses it.
    """
    return sum(found[2] for each in (pid, *descendants(pid)) if (found := usage(each)) is not None)


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Return the memory in bytes that programs can allocate on this machine without swapping.

    Return `sys.maxsize` if the kernel does not say.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def is_same(pid: int, boot: str, ticks: int) -> bool:
    """Return True if `pid` is still the process that started at `ticks` in the boot with the id `boot`."""
    return pid > 0 and ticks > 0 and boot == boot_id() and start_ticks(pid) == ticks


def parents(known: Mapping[int, int] | None = None) -> dict[int, int]:
    """Return the pid of every process with the pid of its parent.

    `known` is an earlier answer, not older than some seconds, by which fewer files are read: a process gets another
    parent only if its own one ends.
    """
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  a third of the time
    found = {}
    if known:
        living = set(pids)
        found = {pid: known[pid] for pid in pids if known.get(pid) in living}
    return found | {pid: int(fields[_PPID]) for pid in pids if pid not in found and (fields := _stat(pid, 2))}


def has_job_control() -> bool:
    """Return True if this process is the job of a shell, which can continue it after it was stopped.

    Such a shell is above it in its session, and gave it a process group of its own.
    """
    own = above = _stat(os.getpid())
    while (above := _stat(int(above[_PPID]))) and above[_SESSION] == own[_SESSION]:
        if above[_GROUP] != own[_GROUP]:
            return True
    return False


def descendants(pid: int, among: dict[int, int] | None = None) -> list[int]:
    """Return the pids of all descendants of the process `pid`.

    `among` has the parent of each process, by pid; if it is None, `parents` is asked.
    """
    return below(pid, children_of(parents() if among is None else among))


def children_of(among: dict[int, int]) -> dict[int, list[int]]:
    """Return the children of each process that has any, where `among` are processes with their parents."""
    children: dict[int, list[int]] = {}
    for child, parent in among.items():
        children.setdefault(parent, []).append(child)
    return children


def below(pid: int, children: dict[int, list[int]]) -> list[int]:
    """Return the pids of all descendants of `pid`, where `children` are those of each process."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        next_below = children.get(waiting.pop(), [])
        found += next_below
        waiting += next_below
    return found


def send_signal(pid: int, number: int, ticks: int = 0) -> bool:
    """Send a signal to the process `pid` that started at `ticks` (whenever it started, if 0), never to a later one.

    Return False if it is gone, or this user may not signal it.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if ticks and start_ticks(pid) != ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _prctl(option: int, value: int | bytes = 0) -> None:
    # Imported here: ctypes takes a few milliseconds, and most processes only read /proc.
    from crewboard.unix import syscalls

    syscalls.prctl(option, value)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that each can be found."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Make the kernel kill this process when the thread that started it ends. Forked processes do not inherit this."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def keep_memory_private() -> None:
    """Keep other processes of this user from reading this one's memory, environment and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def give_back_large_buffers() -> None:
    """Make this process give each freed buffer of 128 KiB or more back to the system at once from now on.

    By default, glibc raises this limit after each freed buffer, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD). If the C
    library has no `mallopt`, nothing happens.
    """
    import ctypes

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def count_threads() -> int:
    """Return how many threads this process has, including those that were not started by Python."""
    return len(list(Path("/proc/self/task").iterdir()))


def rename(name: str, arguments: list[str]) -> None:
    """Make `top` show this process as `name`, and `ps` as started with `arguments`.

    `arguments` are cut to the length of the real ones, whose memory they overwrite.
    """
    _prctl(_PR_SET_NAME, name.encode()[:_LONGEST_NAME])
    first, end = (int(field) for field in _stat(os.getpid())[_ARGUMENTS])
    if 0 < first < end:
        shown = "\0".join(arguments).encode("utf-8", "surrogateescape")[: end - first - 1]
        import ctypes

        ctypes.memmove(first, shown.ljust(end - first, b"\0"), end - first)


def mark(pid: int, ticks: int) -> str:
    """Return the mark of a worker's children, the value of `CREWBOARD_WORKER` in their environment.

    It is unique, because it is made of the boot and of the worker's `pid` and start, in `ticks`.
    """
    return f"{boot_id()}-{pid}-{ticks}"


def environment(pid: int) -> bytes:
    """Return the environment that a process was started with, as NUL-separated bytes.

    Raises:
        OSError: The process has ended, or this user may not read it.
    """
    return Path(f"/proc/{pid}/environ").read_bytes()


def kill_marked(marks: Sequence[str]) -> None:
    """Kill each process that has one of `marks`, those of ended workers, in its environment."""
    entries = {f"{env.WORKER}={each}".encode() for each in marks}
    for pid in parents():
        with contextlib.suppress(OSError):
            if not entries.isdisjoint(environment(pid).split(b"\0")):
                send_signal(pid, signal.SIGKILL)


_PIDFD_GET_INFO = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_AT = 60
"""The offset of exit_code in struct pidfd_info of linux/pidfd.h, whose first version has 64 bytes."""


def watch_end(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; the caller closes it.

    Raises:
        OSError: There is no such process.
    """
    return os.pidfd_open(pid)


def exit_status(pidfd: int) -> int | None:
    """Return the wait status of an ended process that need not be a child of this one; None if it is not known.

    It is known only on Linux 6.15 or newer, after the process's parent has reaped it.
    """
    buffer = bytearray(64)
    struct.pack_into("Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    (answered,) = struct.unpack_from("Q", buffer, 0)
    return struct.unpack_from("i", buffer, _EXIT_CODE_AT)[0] if answered & _PIDFD_INFO_EXIT else None


MEMORY_CGROUP_PREFIX = "crewboard-"
"""The beginning of the names of cgroups that limit the memory of workers."""

_DELEGATED = ("user.delegate", "trusted.delegate")
"""The extended attributes with which systemd marks a cgroup that it leaves to others (`Delegate=`)."""


def cgroup(pid: int) -> Path | None:
    """Return the folder of the cgroup (version 2) that a process is in; None if it cannot be found."""
    return _cgroup_below(Path("/proc"), str(pid))


def _cgroup_below(proc: Path, pid: str) -> Path | None:
    try:
        mounts = [line.split(" ") for line in (proc / "self" / "mountinfo").read_text().splitlines()]
        root, folder = next((each[3], each[4]) for each in mounts if each[each.index("-") + 1] == "cgroup2")
        lines = (proc / pid / "cgroup").read_text().splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        below = Path(path).relative_to(root)
        # `..` leads to a cgroup outside this namespace.
        return None if ".." in below.parts else Path(folder) / below
    except (OSError, StopIteration, ValueError):
        return None


def has_memory_cgroup(pid: int) -> bool:
    """Return True if the process is in a cgroup that limits the memory of one worker."""
    group = cgroup(pid)
    return group is not None and group.name.startswith(MEMORY_CGROUP_PREFIX)


def find_memory_cgroup(proc: Path = Path("/proc")) -> Path | None:
    """Return the nearest cgroup below which this user may make others with a memory limit; None if there is none.

    It is this process's own cgroup (version 2) or one above it. `proc` is the folder `/proc`.
    """
    own = _cgroup_below(proc, "self")
    for group in [own, *own.parents] if own is not None else ():
        with contextlib.suppress(OSError):
            if not _is_delegated(group):
                continue
            if "memory" in (group / "cgroup.subtree_control").read_text().split():
                return group
            # The kernel enables a controller only for the children of a cgroup without processes.
            has_processes = bool((group / "cgroup.procs").read_text())
            if not has_processes and "memory" in (group / "cgroup.controllers").read_text().split():
                return group
    return None


def _is_delegated(group: Path) -> bool:
    """Return True if this user may make cgroups below `group`; for root, only if systemd has marked it for that."""
    if not runs_as_root():
        return os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK)
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def make_memory_cgroup(group: Path, limit: int, pid: int) -> None:
    """Make a cgroup with a memory limit in bytes, and move a process and its descendants into it.

    Memory that they have at that time does not count. If they exceed the limit, the kernel kills all of them at once.

    Raises:
        OSError: The kernel refuses it; the cgroup may exist.
    """
    parent = group.parent
    if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
        (parent / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    set_memory_limit(group, limit)
    (group / "memory.oom.group").write_text("1")
    # Else a worker would slow the machine down long before it ends. A kernel without swap has no such file.
    with contextlib.suppress(OSError):
        (group / "memory.swap.max").write_text("0")
    (group / "cgroup.procs").write_text(str(pid))
    # Whatever it starts from here on is in the cgroup; this is for what it started before.
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(each))


def set_memory_limit(group: Path, limit: int | None) -> None:
    """Set the memory limit of a cgroup in bytes; None for no limit.

    Raises:
        OSError: There is no such cgroup.
    """
    (group / "memory.max").write_text("max" if limit is None else str(limit))


def exceeded_memory(group: Path) -> bool:
    """Return True if the kernel killed processes of a cgroup because they reached its memory limit."""
    try:
        events = (line.split() for line in (group / "memory.events").read_text().splitlines())
        return any(name == "oom_kill" and int(count) > 0 for name, count in events)
    except (OSError, ValueError):
        return False


if env.is_posix():
    # tests/unix/test_posix.py holds that each has the signature of the one that it replaces.
    from crewboard.unix import posix

    globals().update({name: getattr(posix, name) for name in posix.REPLACES})
