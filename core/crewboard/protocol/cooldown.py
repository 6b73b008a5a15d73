"""A rest that the API asked for, kept by the whole team, so that its workers do not come back all at once."""

from crewboard.errors import BadDataError
from crewboard.records import Cooldown
from crewboard.store import json_files
from crewboard.store.layout import AgentDirectory

MAX_COOLDOWN = 60.0
"""Seconds that one refusal may keep everybody waiting, whatever the API says."""


def current(agent: AgentDirectory) -> Cooldown | None:
    """The rest that was asked for last, which may be over."""
    try:
        return json_files.load(agent.team.cooldown, Cooldown)
    except BadDataError:
        return None


def extend(agent: AgentDirectory, until: float, error: str) -> None:
    """Have the team rest until then, if it does not rest longer already."""

    def edit(old: Cooldown | None) -> Cooldown:
        if old is not None and old.until >= until:
            return old
        return Cooldown(until=until, by=agent.name, error=error)

    json_files.change(agent.team.cooldown, agent.team.lock("cooldown"), Cooldown, edit)
