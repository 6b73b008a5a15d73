"""The agent view."""
