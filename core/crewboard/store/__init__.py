"""Where a team is kept: the layout of its files, reading and writing, leases, journals, mailboxes, roster and tasks.

Files in folders, and PostgreSQL, are two kinds of the same store (`interface.py`). Most modules are used as namespaces
(`leases.is_held`, `roster.load`).
"""
