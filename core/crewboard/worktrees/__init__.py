"""Worktrees: make checkouts for single agents, take snapshots of them, and merge their work into the user's branches.

An agent with a worktree has a repository of its own that borrows the objects of the user's repository. A git outside
the agent's sandbox uses nothing that the agent wrote, except for objects that were checked.
"""
