"""The changes view: what agents with a worktree changed, and how that is merged."""
