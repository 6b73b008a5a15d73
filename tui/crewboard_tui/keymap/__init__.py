"""The table of all keys, the source of footer, help, palette and `crewboard keys`, and the user's own keys."""

from crewboard_tui.keymap.bindings import (
    BY_ID,
    GROUPS,
    KEY_NAMES,
    KEYS,
    KEYS_OF_NEED,
    WHERE,
    Key,
    Pressed,
    bindings_of,
    command_name,
    default_key,
    known_keys,
    palette_commands,
    show_key,
)
from crewboard_tui.keymap.user_file import keymap_path, keymap_template, read_keymap

__all__ = [
    "BY_ID",
    "GROUPS",
    "KEYS",
    "KEYS_OF_NEED",
    "KEY_NAMES",
    "WHERE",
    "Key",
    "Pressed",
    "bindings_of",
    "command_name",
    "default_key",
    "keymap_path",
    "keymap_template",
    "known_keys",
    "palette_commands",
    "read_keymap",
    "show_key",
]
