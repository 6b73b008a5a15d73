"""The keeping of a team: places, leases, appending, replacing, reading, and the rules of roster, board and mailboxes.

Most modules are used as namespaces (`leases.is_held`, `roster.load`).
"""
