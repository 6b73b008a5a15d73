"""The Changes view: what agents with a worktree changed, and how their work is merged."""
