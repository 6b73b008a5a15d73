"""The only readers of /proc and callers of raw system calls; programs that the system provides."""

from crewboard.linux import process, programs, syscalls

__all__ = ["process", "programs", "syscalls"]
