"""The engine: team files, the supervisor, the workers and the view. Draws nothing."""

__version__ = "0.1.0"
