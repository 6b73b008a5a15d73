"""The files of a team: paths, locks, appending, replacing, reading, and the rules of roster, board and mailboxes.

The modules are used as namespaces (`leases.is_held`, `roster.load`); everything else that other packages use is named
here.
"""

from crewboard.store import (
    agents,
    codec,
    files,
    journal,
    json_files,
    leases,
    mailbox,
    operators,
    ownership,
    roster,
    tasks,
)
from crewboard.store.agents import START_TIMEOUT, is_late, is_starting
from crewboard.store.journal import JournalTail, ReplacedFileDetector
from crewboard.store.json_files import CachedFile, CachedFolder, cached_folder
from crewboard.store.layout import DEFAULT_TEAM, HOME, AgentDirectory, TeamDirectory, find_root, team_directories
from crewboard.store.roster import find_team
from crewboard.store.tasks import CLOSED, blockers, check_type, terminal_state

__all__ = [
    "CLOSED",
    "DEFAULT_TEAM",
    "HOME",
    "START_TIMEOUT",
    "AgentDirectory",
    "CachedFile",
    "CachedFolder",
    "JournalTail",
    "ReplacedFileDetector",
    "TeamDirectory",
    "agents",
    "blockers",
    "cached_folder",
    "check_type",
    "codec",
    "files",
    "find_root",
    "find_team",
    "is_late",
    "is_starting",
    "journal",
    "json_files",
    "leases",
    "mailbox",
    "operators",
    "ownership",
    "roster",
    "tasks",
    "team_directories",
    "terminal_state",
]
