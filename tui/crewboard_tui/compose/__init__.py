"""Write to agents: the composer, the prompt line, their input, the syntax of a text, and unsent texts."""

from typing import TYPE_CHECKING

from crewboard.lazy import lazy

if TYPE_CHECKING:
    from crewboard_tui.compose.composer import Composer, ComposeTarget, PromptLine, shown_composer
    from crewboard_tui.compose.draft_input import DraftInput, Prose, clean
    from crewboard_tui.compose.parser import (
        COMMANDS,
        Note,
        Visit,
        openings,
        parse_line,
        resolve_prefix,
        split_attachments,
    )
else:
    __getattr__ = lazy(
        __name__,
        {
            "composer": "ComposeTarget Composer PromptLine shown_composer",
            "draft_input": "DraftInput Prose clean",
            "parser": "COMMANDS Note Visit openings parse_line resolve_prefix split_attachments",
        },
    )

from crewboard_tui.drafts import (
    ALL_AGENTS,
    HIRE,
    TALK,
    TASK,
    Drafts,
    LineNote,
    called,
    edit_of,
    edit_of_task,
    for_merge,
    for_no,
    interrupting,
    notes_on,
    to_agents,
)
from crewboard_tui.history import SentTexts

__all__ = [
    "ALL_AGENTS",
    "COMMANDS",
    "HIRE",
    "TALK",
    "TASK",
    "ComposeTarget",
    "Composer",
    "DraftInput",
    "Drafts",
    "LineNote",
    "Note",
    "PromptLine",
    "Prose",
    "SentTexts",
    "Visit",
    "called",
    "clean",
    "edit_of",
    "edit_of_task",
    "for_merge",
    "for_no",
    "interrupting",
    "notes_on",
    "openings",
    "parse_line",
    "resolve_prefix",
    "shown_composer",
    "split_attachments",
    "to_agents",
]
