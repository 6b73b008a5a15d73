"""Writing to agents: the composer, the prompt line, the input that both use, and the syntax of a text."""

from crewboard_tui.compose.composer import Composer, ComposeTarget, PromptLine, shown_composer
from crewboard_tui.compose.draft_input import DraftInput, Prose
from crewboard_tui.compose.parser import Note, Visit, openings, parse_line, resolve_prefix

__all__ = [
    "ComposeTarget",
    "Composer",
    "DraftInput",
    "Note",
    "PromptLine",
    "Prose",
    "Visit",
    "openings",
    "parse_line",
    "resolve_prefix",
    "shown_composer",
]
