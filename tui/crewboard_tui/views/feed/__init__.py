"""The feed view."""
