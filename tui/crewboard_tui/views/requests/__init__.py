"""The requests view."""
