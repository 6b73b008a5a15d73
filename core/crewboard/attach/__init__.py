"""Show teams of Claude Code in crewboard: mirror them into team directories, and have the operator review their plans.

`places` says where Claude Code's files are, `formats` reads them, `teams` finds teams, sessions and processes. `mirror`
writes the records of a team and keeps them up to date, with `transcripts` and `letters`, which translate conversations
and mail. `hooks` is the command that Claude Code runs, `gate` makes requests of plans and permissions, and `install`
adds the hooks to a project's settings. `delivery` sends letters of the user to Claude Code's agents.
"""
