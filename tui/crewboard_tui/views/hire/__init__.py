"""The hire view."""
