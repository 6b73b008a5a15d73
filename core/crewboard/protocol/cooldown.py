"""The cooldown: a pause that the API asked for. The whole team keeps it, so that not all workers retry at once.

Each server has its own, by host and port: agents that use another server go on.

An outage is a cooldown that repeats: each failed attempt makes the next pause longer. After a pause the agents try one
after the other, so that a single request shows whether the API works again.
"""

import time
from collections.abc import Callable

from crewboard.errors import BadDataError
from crewboard.records.team import Cooldown
from crewboard.store import hosts, roster
from crewboard.store.layout import AgentDirectory
from crewboard.unix import process

MAX_COOLDOWN = 60.0
"""Longest pause in seconds if its end is known by the wall clock alone, which may have been set."""

FIRST_OUTAGE_PAUSE = 30.0
MAX_OUTAGE_PAUSE = 900.0
"""First and longest pause in an outage, in seconds, unless the API says when it will be available."""

WAKE_STEP = 2.0
"""Seconds between the attempts of two agents after a pause in an outage: an overloaded API refuses within them."""


REMEMBERED = 7 * 86_400.0
"""Seconds for which a field that a server refused is left out: after that, a new version may know the field."""

SIZE_REMEMBERED = 3600.0
"""Seconds for which no request is sent as large as one that a server refused: the size may not have been the reason."""

TRY_INTERVAL = 10.0
"""Seconds between the attempts of two agents before the pause of an outage is over."""


def current(agent: AgentDirectory, address: str) -> Cooldown | None:
    """Return the last cooldown of the server at `address`, which may be over; None if none is known."""
    try:
        return _of(agent.team.cooldown.load(), address)
    except BadDataError:
        return None


def _of(whole: Cooldown | None, address: str) -> Cooldown | None:
    found = (each for each in (whole, *whole.others) if each.address in (address, "")) if whole is not None else ()
    return next(iter(found), None)


def _change(agent: AgentDirectory, address: str, edit: Callable[[Cooldown | None, float], Cooldown]) -> Cooldown:
    """Replace the cooldown of a server by the one that `edit` returns for it and for the present time; return it."""
    new = Cooldown()

    def edit_all(whole: Cooldown | None) -> Cooldown:
        nonlocal new
        old, now = _of(whole, address), hosts.now(agent.team)
        new = edit(old, now)
        if whole is not None and new is old:
            return whole
        others = [each for each in (whole, *whole.others) if each.address not in (address, "")] if whole else []
        kept = [
            each.replace(others=[])
            for each in others
            if left(each, now) > 0 or is_outage(each, now) or each.refuses or each.too_large
        ]
        learned = old if old is not None and old.too_large_at > new.too_large_at else new
        new = new.replace(
            address=address,
            others=kept,
            refuses={**(old.refuses if old is not None else {}), **new.refuses},
            too_large=learned.too_large,
            too_large_at=learned.too_large_at,
        )
        return new

    agent.team.cooldown.edit(edit_all)
    return new


def left(pause: Cooldown, now: float) -> float:
    """Return how many seconds a cooldown still lasts; 0 or less if it is over. `now` is from `store.hosts.now`."""
    if pause.until_monotonic is not None and pause.boot_id == process.boot_id():
        return pause.until_monotonic - time.monotonic()
    return min(pause.until - now, MAX_COOLDOWN)


def extend(agent: AgentDirectory, address: str, seconds: float, error: str) -> None:
    """Let the team's cooldown of a server last for `seconds` from now, unless it lasts longer already."""

    def edit(old: Cooldown | None, now: float) -> Cooldown:
        if old is not None and left(old, now) >= seconds:
            return old
        outage = old if old is not None and is_outage(old, now) else Cooldown()
        return _lasting(agent, seconds, error, now).replace(since=outage.since, failures=outage.failures)

    _change(agent, address, edit)


def _lasting(agent: AgentDirectory, seconds: float, error: str, now: float) -> Cooldown:
    """Return a cooldown that lasts `seconds` from now, and is no outage."""
    return Cooldown(
        until=now + seconds,
        until_monotonic=time.monotonic() + seconds,
        boot_id=process.boot_id(),
        by=agent.name,
        error=error,
    )


def is_outage(pause: Cooldown, now: float) -> bool:
    """Return True if a cooldown is of an outage that is not over.

    An outage counts as over if no agent has tried for `MAX_OUTAGE_PAUSE` seconds after its pause.
    """
    return pause.since > 0 and left(pause, now) > -MAX_OUTAGE_PAUSE


def outage_pause(failures: int, wait: float) -> float:
    """Return the pause in seconds after a number of failures in a row; `wait` is what the API asked for, 0 if nothing.

    After the first failure the pause is that of the API. If the API then refuses again, the pauses grow.
    """
    growing = min(FIRST_OUTAGE_PAUSE * 2.0 ** min(failures - 1, 16), MAX_OUTAGE_PAUSE)
    return wait if wait and failures == 1 else max(wait, growing)


def extend_outage(agent: AgentDirectory, address: str, wait: float, error: str, since: float) -> float:
    """Record that an attempt failed in an outage that began at `since`; return the seconds until the next attempt.

    `wait` is the pause in seconds that the API asked for, 0 if none. Attempts that fail at the same time count once.
    """

    def edit(old: Cooldown | None, now: float) -> Cooldown:
        outage = old if old is not None and is_outage(old, now) else Cooldown(since=since)
        at_once = left(outage, now)
        if at_once > 0 and at_once >= wait:
            return outage
        # An attempt that fails during a pause was started before the pause.
        seconds = wait if at_once > 0 else outage_pause(outage.failures + 1, wait)
        failures = max(1, outage.failures) if at_once > 0 else outage.failures + 1
        return _lasting(agent, seconds, error, now).replace(since=outage.since, failures=failures)

    return left(_change(agent, address, edit), hosts.now(agent.team))


def may_try(agent: AgentDirectory, address: str) -> bool:
    """Return True if an agent may call a server once although its outage goes on, and record that attempt.

    False if an agent tried within the last `TRY_INTERVAL` seconds. A user who starts an agent may have corrected the
    cause, and should not have to wait until that is noticed.
    """
    may = False

    def edit(old: Cooldown | None, now: float) -> Cooldown:
        nonlocal may
        # A clock may have been set back.
        may = old is None or not 0 <= now - old.tried < TRY_INTERVAL
        return (old or Cooldown()).replace(tried=now) if may else old or Cooldown()

    _change(agent, address, edit)
    return may


def end_outage(agent: AgentDirectory, address: str) -> None:
    """End the outage of a server and its pause, because the server answered; without an outage, do nothing."""

    def edit(old: Cooldown | None, now: float) -> Cooldown:
        return _lasting(agent, 0, old.error if old else "", now)

    pause = current(agent, address)
    if pause is not None and pause.since:
        _change(agent, address, edit)


def note_refused(agent: AgentDirectory, address: str, field: str) -> None:
    """Record for all agents of the team that a server refuses a field of requests."""

    def edit(old: Cooldown | None, now: float) -> Cooldown:
        known = old or Cooldown()
        return known.replace(refuses={**known.refuses, field: now})

    _change(agent, address, edit)


def is_refused(agent: AgentDirectory, address: str, field: str) -> bool:
    """Return True if a server refused a field of requests within `REMEMBERED` seconds."""
    known = current(agent, address)
    at = known.refuses.get(field, 0) if known is not None else 0
    return 0 <= hosts.now(agent.team) - at < REMEMBERED


def note_too_large(agent: AgentDirectory, address: str, size: int) -> None:
    """Record for all agents of the team that a server refuses requests of `size` bytes; 0 if it no longer does."""

    def edit(old: Cooldown | None, now: float) -> Cooldown:
        return (old or Cooldown()).replace(too_large=size, too_large_at=now)

    _change(agent, address, edit)


def too_large(agent: AgentDirectory, address: str) -> int:
    """Return the size in bytes of a request that a server refused as too large; 0 if none is known.

    A refusal counts for `SIZE_REMEMBERED` seconds.
    """
    known = current(agent, address)
    if known is None or not 0 <= hosts.now(agent.team) - known.too_large_at < SIZE_REMEMBERED:
        return 0
    return known.too_large


def place_in_line(agent: AgentDirectory) -> int:
    """Return how many agents wait for the API and try before this one: those earlier in the roster."""
    before = 0
    for name in roster.load(agent.team).names:
        if name == agent.name:
            break
        status = agent.team.agent(name).status.load_or_none()
        before += status is not None and status.outage_since is not None
    return before
