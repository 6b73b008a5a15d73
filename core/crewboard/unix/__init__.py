"""Calls to the operating system, on Linux and elsewhere: processes, file locks, finding programs, system calls."""
