"""The board view."""
