"""The only readers of /proc and callers of raw system calls; programs that the system provides."""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.linux import mounts, process, programs, syscalls
else:
    __getattr__ = lazy(
        __name__,
        {},
        modules="mounts process programs syscalls",
    )

__all__ = ["mounts", "process", "programs", "syscalls"]
