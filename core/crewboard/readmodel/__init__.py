"""Projections of a team's files for people and scripts. They write nothing."""
