"""Key bindings, the user's own keys, and the command palette."""
