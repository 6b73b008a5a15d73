"""The files of a team: paths, locks, appending, replacing, reading, and the rules of roster, board and mailboxes.

The modules are used as namespaces (`leases.is_held`, `roster.load`); everything else that other packages use is named
here.
"""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard.store import (
        agents,
        codec,
        files,
        hosts,
        journal,
        json_records,
        leases,
        mailbox,
        operators,
        ownership,
        roster,
        tasks,
    )
    from crewboard.store.agents import START_TIMEOUT, is_late, is_starting
    from crewboard.store.file_store import key_of
    from crewboard.store.interface import SCHEMA_VERSION, Held, Key, Listener, Store, Version
    from crewboard.store.journal import JournalTail, ReplacementDetector
    from crewboard.store.json_records import CachedFile, CachedFolder, cached_folder
    from crewboard.store.layout import (
        DEFAULT_TEAM,
        HOME,
        AgentDirectory,
        TeamDirectory,
        find_root,
        team_directories,
        under_lock,
    )
    from crewboard.store.roster import find_team
    from crewboard.store.tasks import CLOSED, blockers, check_type, terminal_state
else:
    __getattr__ = lazy(
        __name__,
        {
            "agents": "START_TIMEOUT is_late is_starting",
            "file_store": "key_of",
            "interface": "Held Key Listener SCHEMA_VERSION Store Version",
            "journal": "JournalTail ReplacementDetector",
            "json_records": "CachedFile CachedFolder cached_folder",
            "layout": "AgentDirectory DEFAULT_TEAM HOME TeamDirectory find_root team_directories under_lock",
            "roster": "find_team",
            "tasks": "CLOSED blockers check_type terminal_state",
        },
        modules="agents codec files hosts journal json_records leases mailbox operators ownership roster tasks",
    )

__all__ = [
    "CLOSED",
    "DEFAULT_TEAM",
    "HOME",
    "SCHEMA_VERSION",
    "START_TIMEOUT",
    "AgentDirectory",
    "CachedFile",
    "CachedFolder",
    "Held",
    "JournalTail",
    "Key",
    "Listener",
    "ReplacementDetector",
    "Store",
    "TeamDirectory",
    "Version",
    "agents",
    "blockers",
    "cached_folder",
    "check_type",
    "codec",
    "files",
    "find_root",
    "find_team",
    "hosts",
    "is_late",
    "is_starting",
    "journal",
    "json_records",
    "key_of",
    "leases",
    "mailbox",
    "operators",
    "ownership",
    "roster",
    "tasks",
    "team_directories",
    "terminal_state",
    "under_lock",
]
