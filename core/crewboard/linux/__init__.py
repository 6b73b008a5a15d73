"""The only readers of /proc and callers of raw system calls; programs that the system provides."""
