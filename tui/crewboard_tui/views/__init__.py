"""One module or folder per view of the dashboard."""
