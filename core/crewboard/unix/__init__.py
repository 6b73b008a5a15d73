"""The calls to the system itself, on Linux and elsewhere: processes, locks, programs, system calls."""
