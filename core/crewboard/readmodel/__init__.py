"""Projections: what readers (the dashboard, commands, scripts) compute from a team's files. They write nothing."""
