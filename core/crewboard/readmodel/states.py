"""The state of an agent, decided from its lease, spec, status and exit record, in that order of trust.

A held lease means that the worker is alive, even if its pid seems to be gone. An exit record says how a run ended. A
run with neither was killed while no supervisor ran, or the machine went down.
"""

import time
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from crewboard.records.agents import HELD_REPEATS, HireOptions, Spec, State, Status
from crewboard.records.processes import (
    EXIT_REASONS,
    LIMIT_REASONS,
    VANISHED,
    Exit,
    describe_exit,
    ended_by_shutdown,
    has_vanished,
    is_orderly,
    was_cut_off,
)
from crewboard.records.requests import Request
from crewboard.store import hosts as store_hosts
from crewboard.store.agents import is_late, is_starting

Shown = Literal["dead", "ask", "stuck", "loop", "limit", "start", "run", "wait", "pause", "idle", "done", "unknown"]
"""The words for states on the screen (docs/reference/dashboard.md#states)."""

URGENCY: tuple[Shown, ...] = (
    "dead", "ask", "stuck", "loop", "limit", "start", "run", "wait", "pause", "idle", "unknown", "done",
)  # fmt: skip
"""The words for states, the most urgent first."""

LOOP_LENGTH = 5
"""How many equal tool calls with equal outcomes in a row are a loop."""

EXIT_TIMEOUT = 10.0
"""Seconds after an exit record within which its process must have ended; after that, the two contradict each other."""

CAUSE_TIMEOUT = 5.0
"""Seconds that a supervisor may need to record how a worker ended."""

DEAD: frozenset[State] = frozenset({"crashed", "vanished"})
"""States of an agent whose run ended unexpectedly."""

_SHOWN: dict[State, Shown] = {
    "starting": "start", "working": "run", "waiting": "wait", "retrying": "wait", "idle": "idle", "paused": "pause",
    "stopping": "wait", "queued": "wait", "exited": "done", "crashed": "dead", "vanished": "dead", "stuck": "stuck",
    "looping": "loop", "unknown": "unknown",
}  # fmt: skip


HostState = Literal["up", "draining", "lost", "ended"]
"""The state of a host. `draining`: it takes no more agents. `ended`: it ended as it had said. `lost`: it no longer
holds its lease, and had not said that it would end.
"""


class SeenHost(Struct, frozen=True):
    """The facts about a host on which the states of its agents depend.

    `is_here`: its processes can be looked at from this machine. `is_full`: it had no free slot. `offline`: its agents
    use the offline model. `seen` is when a host that is not up last wrote its record.
    """

    name: str
    state: HostState
    labels: frozenset[str] = frozenset()
    boot_id: str = ""
    is_here: bool = False
    is_full: bool = False
    offline: bool = False
    seen: float = 0

    @property
    def is_up(self) -> bool:
        """Return True if the host is alive, even if it takes no more agents."""
        return self.state in ("up", "draining")

    def describe_end(self) -> str:
        """Return in words that the host is not up: `host build2 is lost, last seen at 15:02:10`."""
        word = "has ended" if self.state == "ended" else "is lost"
        at = time.strftime("%H:%M:%S", time.localtime(self.seen))
        return f"host {self.name} {word}, last seen at {at}"


class Evidence(Struct, frozen=True):
    """The evidence about one agent, read at one time. `held` says whether its lease was held, and was read first.

    - `pid_gone`: the lease is held, but the process that the status names is gone.
    - `seen_stopped`: when this reader first saw that a signal had stopped the process; None while none has.
    - `supervised`: a supervisor runs. `boot_id`: the present boot of this machine.
    - `seen_alive` and `seen_gone`: when this reader last saw the lease held, and when it first saw it free after that;
      None if it never did.
    - `lease_unreadable`: it is not known whether the worker is alive.
    """

    held: bool
    spec: Spec | None
    status: Status | None
    exit: Exit | None
    boot_id: str
    now: float
    pid_gone: bool = False
    seen_stopped: float | None = None
    supervised: bool = False
    seen_alive: float | None = None
    seen_gone: float | None = None
    monotonic: float = field(default_factory=time.monotonic)
    lease_unreadable: bool = False
    queued: str = ""
    """Why the desired run waits in the queue, in words; empty if it does not."""
    hosts: Mapping[str, SeenHost] = field(default_factory=dict)

    @property
    def host(self) -> SeenHost | None:
        """Return the host of the last run; None if it is not known, and on a team without hosts."""
        return self.hosts.get(self.status.host) if self.status is not None and self.status.host else None

    @property
    def machine_boot_id(self) -> str:
        """Return the id of the present boot of the machine of the last run.

        If the present boot of a host is not known, it is the boot in which that run began.
        """
        if self.status is None or not self.status.host:
            return self.boot_id
        return self.host.boot_id if self.host is not None else self.status.boot_id


class WantedHost(Struct, frozen=True):
    """The host that agents wait for: any host with these `labels`, or the host called `name` that they were hired for.

    `is_up` says that the host called `name` is up. `other` is another host that has the labels and a free slot, None if
    there is none. A new host must be `offline` if a host of the team was, and have the program of the `engine` if there
    is one.
    """

    labels: tuple[str, ...] = ()
    name: str | None = None
    is_up: bool = False
    other: str | None = None
    offline: bool = False
    engine: str | None = None

    @property
    def needs(self) -> list[str]:
        """Return the labels that the host must have: `labels`, and that of the `engine` if there is one."""
        return store_hosts.needs_of(None, self.labels, self.engine)


class Finding(Struct, frozen=True):
    """A state of an agent and its reason, as one clause for the screen. `since` is in epoch seconds.

    `is_starting`: a start is under way. `failed_start`: a start did not begin in time. `is_open`: the cause of an end
    will be known in a moment. `is_held`: a looping agent makes no more calls until it gets mail.
    """

    state: State
    since: float
    reason: str = ""
    failed_start: bool = False
    is_starting: bool = False
    is_open: bool = False
    is_held: bool = False
    ended_with_host: bool = False
    """The agent's host was lost, or ended while the agent was at work."""
    waits_for_host: WantedHost | None = None
    """The host for which the agent has waited so long that the user should know; None if there is none."""


def find_state(seen: Evidence) -> Finding:
    """Return the state of an agent by the evidence."""
    if seen.lease_unreadable or seen.spec is None:
        since = seen.status.since if seen.lease_unreadable and seen.status else 0
        return Finding("unknown", since, "its lease cannot be read" if seen.lease_unreadable else "no usable spec.json")
    last_run = max(seen.status.run if seen.status else 0, seen.exit.run if seen.exit else 0)
    if seen.held:
        return _alive(seen, seen.spec, last_run)
    if seen.spec.run > last_run:
        return _not_begun(seen, seen.spec, last_run)
    if seen.exit is not None and seen.exit.run == last_run:
        if seen.status is not None and ended_by_shutdown(seen.exit, seen.status.boot_id, seen.machine_boot_id):
            return Finding("exited", seen.exit.at, EXIT_REASONS["reboot"])
        state: State = "vanished" if has_vanished(seen.exit) else "exited" if is_orderly(seen.exit) else "crashed"
        ended_with_host = was_cut_off(seen.exit) or (seen.exit.reason == "lost" and bool(seen.exit.evidence))
        return Finding(state, seen.exit.at, describe_exit(seen.exit), ended_with_host=ended_with_host)
    return _gone(seen, seen.spec)


def _alive(seen: Evidence, spec: Spec, last_run: int) -> Finding:
    status = seen.status
    if status is None or spec.run > last_run:
        return Finding("starting", spec.at, "process is up, not ready yet")
    if seen.exit is not None and seen.exit.run >= status.run:
        # A worker writes its exit record a moment before it ends.
        if seen.now - seen.exit.at > EXIT_TIMEOUT:
            reason = f"exit record says {seen.exit.reason or 'ended'} · lease still held"
            return Finding("unknown", seen.exit.at, reason)
        return Finding("stopping", seen.exit.at, describe_exit(seen.exit))
    if seen.pid_gone:
        return Finding("unknown", status.since, f"says {status.state} · pid {status.pid} gone · lease still held")
    if seen.seen_stopped is not None:
        stopped = f"process {status.pid} was stopped by a signal; `kill -CONT` continues it"
        return Finding("stuck", seen.seen_stopped, stopped)
    # A worker writes its status again before its deadline.
    if status.deadline_monotonic is not None and status.boot_id == seen.boot_id:
        is_overdue = seen.monotonic > status.deadline_monotonic
    else:
        is_overdue = status.deadline is not None and seen.now > status.deadline
    if is_overdue:
        return Finding("stuck", status.since, f"no progress past its deadline: {status.doing}")
    if status.repeats >= LOOP_LENGTH and status.state == "working":
        is_held = status.repeats >= HELD_REPEATS
        held = ", held until it gets mail" if is_held else ""
        call = status.last_tool or status.doing
        return Finding("looping", status.since, f"{call} ×{status.repeats}, same outcome{held}", is_held=is_held)
    return Finding(status.state, status.since, status.doing)


def _not_begun(seen: Evidence, spec: Spec, last_run: int) -> Finding:
    if spec.want in ("killed", "stopped"):
        return Finding("exited", spec.at, EXIT_REASONS["killed"])
    if seen.queued:
        return Finding("queued", spec.at, seen.queued)
    late, starting = is_late(spec, seen.now), is_starting(spec, last_run, seen.now)
    if seen.hosts:
        wanted, engine = None, spec.engine_name
        if late:
            labels, name = tuple(sorted({*spec.flags.needs})), spec.flags.host
            needs = store_hosts.needs_of(None, labels, engine)
            taking = [host for host in seen.hosts.values() if host.state == "up"]
            others = [host.name for host in taking if not host.is_full and host.labels.issuperset(needs)]
            wanted = WantedHost(
                labels,
                name,
                is_up=any(host.name == name for host in taking),
                other=min(others, default=None),
                offline=any(host.offline for host in seen.hosts.values()),
                engine=engine,
            )
        why = why_no_host(spec.flags, seen.hosts, engine) or "waiting for a host to start it"
        return Finding("queued", spec.at, why, is_starting=starting, waits_for_host=wanted)
    reason = "was never started: resume it or remove it" if late else "waiting to start"
    return Finding("starting", spec.at, reason, failed_start=late, is_starting=starting)


def _gone(seen: Evidence, spec: Spec) -> Finding:
    since = seen.status.beat if seen.status else 0
    if seen.host is not None and not seen.host.is_up:
        since = max(since, seen.host.seen)
        return Finding("vanished", since, f"its {seen.host.describe_end()}", ended_with_host=True)
    if seen.status and seen.status.boot_id and seen.status.boot_id != seen.machine_boot_id:
        return Finding("exited", since, EXIT_REASONS["reboot"])
    if seen.status and spec.run == seen.status.run and spec.want in ("killed", "stopped"):
        # It was asked to end; the supervisor is about to record that it did.
        return Finding("exited", since, EXIT_REASONS["killed"])
    since = max(since, seen.seen_alive or 0)
    if seen.supervised and seen.seen_gone is not None and seen.now - seen.seen_gone < CAUSE_TIMEOUT:
        since = since if seen.seen_alive is None else seen.seen_gone
        return Finding("vanished", since, "exited; determining cause", is_open=seen.seen_alive is not None)
    if seen.status and seen.status.host:
        return Finding("vanished", since, f"exited without an exit record on {seen.status.host}; no host has told why")
    return Finding("vanished", since, f"exited without an exit record: {VANISHED}")


def why_no_host(flags: HireOptions, hosts: Mapping[str, SeenHost], engine: str | None) -> str | None:
    """Return in words why no host would now begin an agent with these options; None if one would."""
    needs = store_hosts.needs_of(flags.host, flags.needs, engine)
    taking = [host for host in hosts.values() if host.state == "up"]
    if any(host.labels.issuperset(needs) and not host.is_full for host in taking):
        return None
    pinned = hosts.get(flags.host or "")
    is_down = taking and pinned is not None and pinned.state != "up"
    reason = store_hosts.reason(needs, [host.labels for host in taking])
    return f"{reason}, which is {pinned.state}" if is_down and pinned is not None else reason


def show(state: State, asks_operator: list[Request], ended: Exit | None = None, *, acknowledged: bool = False) -> Shown:
    """Return the word of the screen for a state. An open request to the operator counts before what the agent does.

    A crash, and a run that `ended` because of a limit or with its host, are shown until they are `acknowledged`.
    """
    if asks_operator and state in ("waiting", "working", "idle", "retrying"):
        return "ask"
    if state in DEAD and acknowledged:
        return "done"
    if state == "exited" and not acknowledged and ended is not None:
        if was_cut_off(ended):
            return "dead"
        if ended.reason in LIMIT_REASONS:
            return "limit"
    return _SHOWN[state]
