"""The needs view."""
