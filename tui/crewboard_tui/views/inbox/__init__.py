"""The inbox view."""
