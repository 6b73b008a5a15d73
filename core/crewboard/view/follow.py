"""Following an assignment, for readers."""

from crewboard.store.follow import Follower

__all__ = ["Follower"]
