"""Do one merge or undo of the team in a root: a process of its own, to be killed. Usage: ROOT merge|undo HOW."""

import sys
from pathlib import Path

from crewboard.commands import changes
from crewboard.commands.context import Team
from crewboard.records.team import How
from crewboard.store.layout import TeamDirectory


def main(root: str, act: str, how: How) -> None:
    team = Team(TeamDirectory(Path(root) / ".crewboard/default"))
    # What follows is what is to be interrupted.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if act == "merge":
        changes.merge(team, "bob", how=how)
    else:
        changes.undo(team)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "rebase" if sys.argv[3] == "rebase" else "squash")
