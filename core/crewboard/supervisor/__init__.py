"""The supervisor: one small process per team that starts workers, and records and finalizes their ends."""
