"""The tasks view."""
