"""The cooldown: a pause that the API asked for. The whole team keeps it, so that not all workers retry at once."""

from crewboard.errors import BadDataError
from crewboard.records import Cooldown
from crewboard.store import json_files
from crewboard.store.layout import AgentDirectory

MAX_COOLDOWN = 60.0
"""Longest pause, in seconds, that one failed call may cause, whatever the API says."""


def current(agent: AgentDirectory) -> Cooldown | None:
    """Return the last cooldown, which may be over, or None."""
    try:
        return json_files.load(agent.team.cooldown, Cooldown)
    except BadDataError:
        return None


def extend(agent: AgentDirectory, until: float, error: str) -> None:
    """Extend the team's cooldown until `until`, unless it lasts longer already."""

    def edit(old: Cooldown | None) -> Cooldown:
        if old is not None and old.until >= until:
            return old
        return Cooldown(until=until, by=agent.name, error=error)

    json_files.change(agent.team.cooldown, agent.team.lock("cooldown"), Cooldown, edit)
