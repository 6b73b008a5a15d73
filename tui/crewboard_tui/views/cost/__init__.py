"""The cost view."""
