"""Teams of Claude Code on the board: mirrored into ordinary team directories, and their plans held for the user.

`places` says where that program's files are, `formats` reads them, `teams` finds its teams. `mirror` writes the records
of a team, with `transcripts` and `letters`, which translate conversations and mail, and `asks`, which shows what that
program asks its user; `follow` keeps it up to date. `hooks` answers that program's hooks, `gate` asks the user, and
`install` changes a project's settings. `delivery` hands letters of the user to that program's
agents.

Nothing is imported before it is used: a hook must start fast.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.attach import delivery as delivery
    from crewboard.attach import follow as follow
    from crewboard.attach import formats as formats
    from crewboard.attach import mirror as mirror
    from crewboard.attach import places as places
    from crewboard.attach import teams as teams
else:
    __getattr__ = lazy(__name__, {}, modules="delivery follow formats mirror places teams")
