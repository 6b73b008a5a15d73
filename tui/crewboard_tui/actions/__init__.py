"""What the user can do with the selection of a view."""
