"""The tools that the model sees (docs/reference/tools.md)."""
