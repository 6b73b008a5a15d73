"""Worktrees: the checkouts of single agents, what they changed, and how that comes into the user's repository.

An agent with a worktree has a repository of its own that borrows the objects of the user's one. Nothing that an agent
wrote is used by a git that runs outside its sandbox, except for objects that were checked.
"""
