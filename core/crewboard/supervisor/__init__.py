"""The supervisor: one small process per team, or per host of a team, that starts workers and finalizes ended runs."""
