"""The state of an agent, decided from lease, spec, status and exit record, in that order of trust.

A held lease means that the worker is alive, whatever the pid says. An exit record says how a run ended. A run with
neither was killed while no supervisor ran, or the machine went down.
"""

import time
from typing import Literal

from msgspec import Struct, field

from crewboard.records import (
    EXIT_REASONS,
    LIMIT_REASONS,
    VANISHED,
    Exit,
    Request,
    Spec,
    State,
    Status,
    describe_exit,
    ended_by_shutdown,
    has_vanished,
    is_orderly,
)
from crewboard.store import is_late, is_starting

Shown = Literal["dead", "ask", "stuck", "loop", "limit", "start", "run", "wait", "pause", "idle", "done", "unknown"]
"""The words of the screen (docs/reference/dashboard.md#states)."""

URGENCY: tuple[Shown, ...] = (
    "dead", "ask", "stuck", "loop", "limit", "start", "run", "wait", "pause", "idle", "unknown", "done",
)  # fmt: skip
"""Most urgent first."""

LOOP_LENGTH = 5
"""How often the same tool call with the same result in a row is a loop."""

EXIT_TIMEOUT = 10.0
"""Seconds from an exit record to the end of its process, after which the two contradict each other."""

CAUSE_TIMEOUT = 5.0
"""Seconds that a supervisor may need to find out and record how a worker ended."""

DEAD: frozenset[State] = frozenset({"crashed", "vanished"})
"""States of an agent whose run ended unexpectedly."""

_SHOWN: dict[State, Shown] = {
    "starting": "start", "working": "run", "waiting": "wait", "retrying": "wait", "idle": "idle", "paused": "pause",
    "stopping": "wait", "queued": "wait", "exited": "done", "crashed": "dead", "vanished": "dead", "stuck": "stuck",
    "looping": "loop", "unknown": "unknown",
}  # fmt: skip


class Evidence(Struct, frozen=True):
    """The evidence about one agent, read at one time. `held`, whether the lease was held, was read first.

    `pid_gone`: the lease is held, but the process that the status names is gone. `is_stopped`: a signal stopped that
    process. `supervised`: a supervisor runs. `seen_alive` and `seen_gone`: when this reader last saw the lease held,
    and when it first saw it free after that; None if it never did. `lease_unreadable`: it is unknown whether the worker
    is alive.
    """

    held: bool
    spec: Spec | None
    status: Status | None
    exit: Exit | None
    boot_id: str
    now: float
    pid_gone: bool = False
    is_stopped: bool = False
    supervised: bool = False
    seen_alive: float | None = None
    seen_gone: float | None = None
    monotonic: float = field(default_factory=time.monotonic)
    lease_unreadable: bool = False
    queued: str = ""
    """In words, that the wanted run waits in the queue."""
    for_host: bool = False
    """True if it waits there for a host."""


class Finding(Struct, frozen=True):
    """A state and its reason, as one clause for the screen. `since` is in epoch seconds.

    `is_starting` says that a start is under way, `failed_start` that it did not begin in time, `is_open` that the
    cause of an end will be known in a moment.
    """

    state: State
    since: float
    reason: str = ""
    failed_start: bool = False
    is_starting: bool = False
    is_open: bool = False


def find_state(seen: Evidence) -> Finding:
    """Return the state of an agent."""
    if seen.lease_unreadable or seen.spec is None:
        since = seen.status.since if seen.lease_unreadable and seen.status else 0
        return Finding("unknown", since, "its lease cannot be read" if seen.lease_unreadable else "no usable spec.json")
    last_run = max(seen.status.run if seen.status else 0, seen.exit.run if seen.exit else 0)
    if seen.held:
        return _alive(seen, last_run)
    if seen.spec.run > last_run:
        return _not_begun(seen, seen.spec, last_run)
    if seen.exit is not None and seen.exit.run == last_run:
        if (
            seen.status is not None
            and not seen.status.host
            and ended_by_shutdown(seen.exit, seen.status.boot_id, seen.boot_id)
        ):
            return Finding("exited", seen.exit.at, EXIT_REASONS["reboot"])
        return _ended(seen.exit)
    return _gone(seen)


def _alive(seen: Evidence, last_run: int) -> Finding:
    status = seen.status
    asked_at = seen.spec.at if seen.spec else 0
    if status is None or (seen.spec is not None and seen.spec.run > last_run):
        return Finding("starting", asked_at, "process is up, not ready yet")
    if seen.exit is not None and seen.exit.run >= status.run:
        return _exiting(seen.exit, seen.now)
    if seen.pid_gone:
        return Finding("unknown", status.since, f"says {status.state} · pid {status.pid} gone · lease still held")
    if (why := _why_stuck(status, seen)) is not None:
        return Finding("stuck", status.since, why)
    if status.repeats >= LOOP_LENGTH and status.state == "working":
        return Finding("looping", status.since, f"{status.last_tool or status.doing} ×{status.repeats}, same outcome")
    return Finding(status.state, status.since, status.doing)


def _why_stuck(status: Status, seen: Evidence) -> str | None:
    if seen.is_stopped:
        return f"process {status.pid} was stopped by a signal; `kill -CONT` continues it"
    return f"no progress past its deadline: {status.doing}" if _is_overdue(status, seen) else None


def _is_overdue(status: Status, seen: Evidence) -> bool:
    """Return True if a worker should have written its status again by now."""
    if status.deadline_monotonic is not None and status.boot_id == seen.boot_id:
        return seen.monotonic > status.deadline_monotonic
    return status.deadline is not None and seen.now > status.deadline


def _exiting(record: Exit, now: float) -> Finding:
    # A worker writes its exit record a moment before it ends.
    if now - record.at > EXIT_TIMEOUT:
        return Finding("unknown", record.at, f"exit record says {record.reason or 'ended'} · lease still held")
    return Finding("stopping", record.at, describe_exit(record))


def _not_begun(seen: Evidence, spec: Spec, last_run: int) -> Finding:
    if spec.want in ("killed", "stopped"):
        return Finding("exited", spec.at, EXIT_REASONS["killed"])
    if seen.queued:
        # A place below a cap becomes free by itself, a host perhaps not.
        return Finding("queued", spec.at, seen.queued, failed_start=seen.for_host and is_late(spec, seen.now))
    late = is_late(spec, seen.now)
    reason = "was never started: resume it or remove it" if late else "waiting for the supervisor"
    starting = is_starting(spec, last_run, seen.now)
    return Finding("starting", spec.at, reason, failed_start=late, is_starting=starting)


def _ended(record: Exit) -> Finding:
    state: State = "vanished" if has_vanished(record) else "exited" if is_orderly(record) else "crashed"
    return Finding(state, record.at, describe_exit(record))


def _gone(seen: Evidence) -> Finding:
    since = seen.status.beat if seen.status else 0
    if seen.status and not seen.status.host and seen.status.boot_id not in ("", seen.boot_id):
        return Finding("exited", since, EXIT_REASONS["reboot"])
    if seen.spec and seen.status and seen.spec.run == seen.status.run and seen.spec.want in ("killed", "stopped"):
        # It was asked to end; the supervisor is about to record that it did.
        return Finding("exited", since, EXIT_REASONS["killed"])
    since = max(since, seen.seen_alive or 0)
    if seen.supervised and seen.seen_gone is not None and seen.now - seen.seen_gone < CAUSE_TIMEOUT:
        since = since if seen.seen_alive is None else seen.seen_gone
        return Finding("vanished", since, "exited; determining cause", is_open=seen.seen_alive is not None)
    if seen.status and seen.status.host:
        return Finding("vanished", since, f"exited without an exit record on {seen.status.host}; no host has told why")
    return Finding("vanished", since, f"exited without an exit record: {VANISHED}")


def show(state: State, asks_operator: list[Request], ended: Exit | None = None, *, acknowledged: bool = False) -> Shown:
    """Return the state as a word for the screen. An open request to the operator has priority over what the agent does.

    A crash, and a run that `ended` because of a limit, are shown until they are `acknowledged`.
    """
    if asks_operator and state in ("waiting", "working", "idle", "retrying"):
        return "ask"
    if state in DEAD and acknowledged:
        return "done"
    if state == "exited" and not acknowledged and ended is not None and ended.reason in LIMIT_REASONS:
        return "limit"
    return _SHOWN[state]
