"""The cooldown: a pause that the API asked for. The whole team keeps it, so that not all workers retry at once."""

import time

from crewboard import store
from crewboard.errors import BadDataError
from crewboard.linux import process
from crewboard.records import Cooldown
from crewboard.store import AgentDirectory

MAX_COOLDOWN = 60.0
"""Longest pause, in seconds, if only the clock of the day tells when it ends: that clock may have been set."""


def current(agent: AgentDirectory) -> Cooldown | None:
    """Return the last cooldown, which may be over, or None."""
    try:
        return store.json_files.load(agent.team.cooldown, Cooldown)
    except BadDataError:
        return None


def left(pause: Cooldown) -> float:
    """Return how many seconds a cooldown still lasts; 0 or less if it is over."""
    if pause.until_monotonic is not None and pause.boot_id == process.boot_id():
        return pause.until_monotonic - time.monotonic()
    return min(pause.until - time.time(), MAX_COOLDOWN)


def extend(agent: AgentDirectory, seconds: float, error: str) -> None:
    """Extend the team's cooldown to `seconds` from now, unless it lasts longer already."""

    def edit(old: Cooldown | None) -> Cooldown:
        if old is not None and left(old) >= seconds:
            return old
        return Cooldown(
            until=time.time() + seconds,
            until_monotonic=time.monotonic() + seconds,
            boot_id=process.boot_id(),
            by=agent.name,
            error=error,
        )

    store.json_files.change(agent.team.cooldown, agent.team.lock("cooldown"), Cooldown, edit)
