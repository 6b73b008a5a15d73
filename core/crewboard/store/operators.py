"""The operators of a team: what they did (`audit.jsonl`), and which of them have the dashboard open (`presence/`)."""

from crewboard.errors import BadDataError
from crewboard.records import Act
from crewboard.store import codec, files
from crewboard.store.layout import TeamDirectory


def note_act(team: TeamDirectory, act: Act) -> None:
    """Append one act.

    Raises:
        StorageError: It could not be written.
    """
    files.append_line(team.audit, team.lock("audit"), codec.encode(act))


def acts(team: TeamDirectory) -> tuple[list[Act], int]:
    """Return every act, oldest first, and the number of damaged lines.

    Raises:
        StorageError: The file cannot be read.
    """
    found, damaged = [], 0
    for line, _ in files.read_lines(team.audit):
        if line is not None and not line.strip():
            continue
        try:
            found.append(codec.decode(line or b"", Act))
        except BadDataError:
            damaged += 1
    return found, damaged
