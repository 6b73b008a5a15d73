"""The table of all keys, the source of footer, help, palette and `crewboard keys`, and the user's own keys."""
