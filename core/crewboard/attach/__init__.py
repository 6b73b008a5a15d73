"""Teams of Claude Code on the board: mirrored into ordinary team directories, and their plans held for the user.

`places` says where that program's files are, `formats` reads them, `teams` finds its teams. `mirror` writes the records
of a team, with `transcripts` and `letters`, which translate conversations and mail, and `asks`, which shows what that
program asks its user; `follow` keeps it up to date. `hooks` answers that program's hooks, `gate` asks the user, and
`install` changes a project's settings. `delivery` hands letters of the user to that program's agents.

`hooks` imports what it needs when it needs it: a hook must start fast.
"""
