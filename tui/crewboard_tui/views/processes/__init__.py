"""The processes view."""
