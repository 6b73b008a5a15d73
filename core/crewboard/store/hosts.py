"""The hosts of a team in PostgreSQL, and the queue of runs that they claim.

A host is the supervisor on one machine that runs agents of the team (`crewboard host`). It holds the lease of its
folder while it lives. A wanted run is a record in the queue. A host claims the run by moving this record into its own
folder, and removes it once the run has begun.
"""

import contextlib
import threading
import time
from collections.abc import Collection

from msgspec import Struct, structs

from crewboard.errors import StorageError, UsageError
from crewboard.names import is_name
from crewboard.records.processes import ENGINE_LABEL, HeldStart, Host, Lease, WantedRun
from crewboard.store import leases
from crewboard.store.interface import Key
from crewboard.store.json_records import RecordFolder
from crewboard.store.layout import TeamDirectory

HOST_LABEL = "host:"
"""The beginning of the label that only one host has; the host's name follows."""

_CLOCK_TOLERANCE = 1.0
"""Seconds by which two clocks may differ and still count as equal: times compared across machines differ by many
seconds.
"""

_CLOCK_INTERVAL = 60.0


class Clock(Struct, frozen=True):
    """How many seconds this machine's clock is `ahead` of the store's, and how many seconds the store took to answer.

    `ahead` may be wrong by half of the `round_trip`.
    """

    ahead: float
    round_trip: float


def compare_clocks(team: TeamDirectory) -> Clock:
    """Ask the store three times for its time, and return the comparison with the shortest round trip.

    Raises:
        StorageError: The store failed.
    """
    return min((_compare_clocks(team) for _ in range(3)), key=lambda clock: clock.round_trip)


def _compare_clocks(team: TeamDirectory) -> Clock:
    began, began_at = time.monotonic(), time.time()
    there = team.store.now()
    took = time.monotonic() - began
    return Clock(began_at + took / 2 - there, took)


class _Offset(Struct, frozen=True):
    """How many seconds this machine's clock was ahead of the store's, and when that was measured (monotonic clock).

    `base` is the difference between wall clock and monotonic clock, which changes if the wall clock is set.
    """

    ahead: float
    measured_at: float
    base: float


_offsets: dict[str, _Offset] = {}
"""The last comparison with each store, by the store's address."""


def now(team: TeamDirectory) -> float:
    """Return the time that all machines of a team use: the store's, or this machine's if the two about agree.

    Times that one machine wrote are compared with it on another. The store is asked at most once a minute, unless this
    machine's clock is set; while it does not answer, its last answer holds.
    """
    there, at = team.store, time.time()
    if there == team.local:
        return at
    place, monotonic = there.describe(""), time.monotonic()
    known = _offsets.get(place)
    ahead = known.ahead + at - monotonic - known.base if known is not None else 0.0
    if known is None or abs(at - monotonic - known.base) > _CLOCK_TOLERANCE:
        known = _measure(team, ahead)
    elif monotonic - known.measured_at >= _CLOCK_INTERVAL:
        known = _offsets[place] = structs.replace(known, measured_at=monotonic)
        # A screen asks for the time, too, and must not stand still while the store is away.
        threading.Thread(target=_measure, args=(team, ahead), name="crewboard-clock", daemon=True).start()
    return at - known.ahead if abs(known.ahead) > _CLOCK_TOLERANCE else at


def _measure(team: TeamDirectory, ahead: float) -> _Offset:
    """Compare the clocks and keep the result; if the store does not answer, this machine's clock is still `ahead`."""
    with contextlib.suppress(StorageError):
        ahead = _compare_clocks(team).ahead
    found = _offsets[team.store.describe("")] = _Offset(ahead, time.monotonic(), time.time() - time.monotonic())
    return found


def exist(team: TeamDirectory) -> bool:
    """Return True if a team has or had hosts. For such a team, commands start no supervisor.

    Raises:
        StorageError: The store failed.
    """
    return bool(team.hosts.names())


def lease(team: TeamDirectory, name: str) -> Key:
    """Return the key of the lease that a host holds while it lives."""
    return team.host(name).lease


def load(team: TeamDirectory, name: str) -> Host | None:
    """Return the record that a host writes about itself; None if there is none, or it is damaged."""
    return team.host(name).record.load_or_none()


def load_all(team: TeamDirectory) -> list[Host]:
    """Return the records of all hosts, also of those that ended, by name."""
    found = (load(team, name) for name in sorted(team.hosts.names()))
    return [host for host in found if host is not None]


def save(team: TeamDirectory, host: Host) -> None:
    """Write the record of a host about itself.

    Raises:
        LostLeaseError: This process may no longer write.
        StorageError: The write failed.
    """
    team.host(host.name).record.overwrite(host)


def is_up(team: TeamDirectory, name: str) -> bool:
    """Return True if a host is alive: it holds its lease.

    Raises:
        StorageError: It is not known whether the host is alive.
    """
    return leases.is_held(lease(team, name))


def are_offline(team: TeamDirectory) -> bool:
    """Return True if all hosts that are up, or all hosts if none is up, use the offline model.

    False if the team has no hosts, or it is not known.
    """
    try:
        known = load_all(team)
        hosts = [host for host in known if is_up(team, host.name)] or known
    except StorageError:
        return False
    return bool(hosts) and all(host.offline for host in hosts)


def labels(host: Host) -> frozenset[str]:
    """Return all labels of a host, including those of its engines and the one that only it has."""
    return frozenset({*host.offers, HOST_LABEL + host.name})


def want(team: TeamDirectory, run: WantedRun) -> None:
    """Put a run into the queue, in place of an earlier one of the same agent.

    Raises:
        StorageError: The write failed.
    """
    team.starts_queue.record(run.agent).save(run, durable=True)


def wanted(team: TeamDirectory) -> list[WantedRun]:
    """Return the runs in the queue, which no host has claimed, the oldest first."""
    return _runs(team.starts_queue)


def claim(team: TeamDirectory, host: Host, most: int) -> list[str]:
    """Claim up to `most` runs of the queue that a host can begin; return the names of their agents.

    From then on `claimed` returns these runs. If an answer of the store was lost, it returns also runs whose agents are
    not named here.

    Raises:
        LostLeaseError: The host lost its lease.
        StorageError: The store failed.
    """
    names = team.store.claim(team.starts_queue.name, team.host(host.name).claims.name, labels(host), most)
    return [name.removesuffix(".json") for name in names]


def claimed(team: TeamDirectory, name: str) -> list[WantedRun]:
    """Return the runs that a host has claimed and not begun, the oldest first."""
    return _runs(team.host(name).claims)


def keep(team: TeamDirectory, name: str, run: WantedRun) -> None:
    """Claim a run for a host that will begin the run itself, without the queue: a restart.

    Raises:
        StorageError: The write failed.
    """
    team.host(name).claims.record(run.agent).save(run, durable=True)


def begun(team: TeamDirectory, name: str, agent: str) -> None:
    """Remove a host's claim of an agent's run, which has begun or is no longer wanted."""
    team.host(name).claims.record(agent).remove()


def give_back(team: TeamDirectory, name: str, *, but: Collection[str] = ()) -> None:
    """Move the claims of a host whose runs have not begun back into the queue, unless a later run is wanted.

    The claims of the agents in `but` stay.
    """
    for run in claimed(team, name):
        if run.agent in but:
            continue
        claim, wanted = team.host(name).claims.record(run.agent), team.starts_queue.record(run.agent)
        if not wanted.exists():
            team.store.move(claim.name, wanted.name)
        else:
            claim.remove()


def make(team: TeamDirectory, name: str) -> None:
    """Create the folders of a host, and of all hosts.

    Raises:
        StorageError: The write failed.
    """
    host = team.host(name)
    for folder in (team.hosts, team.starts_queue, host.folder, host.claims):
        team.store.make_folder(folder.name)


def withdraw(team: TeamDirectory, name: str) -> None:
    """Remove an agent's run from the queue if it is there."""
    team.starts_queue.record(name).remove()


def find_queued(team: TeamDirectory, name: str, run: int) -> WantedRun | None:
    """Return an agent's run if it is in the queue, so that no host has claimed it; else None."""
    found = team.starts_queue.record(name).load_or_none()
    return found if found is not None and found.run == run else None


def is_wanted(team: TeamDirectory, name: str, run: int) -> bool:
    """Return True if a run is in the queue, or a host has claimed and not begun it.

    Raises:
        StorageError: The store failed.
    """
    # The queue first: a run that is claimed meanwhile is in the other place then.
    return find_queued(team, name, run) is not None or claimed_by(team, name, run) is not None


def claimed_by(team: TeamDirectory, name: str, run: int) -> str | None:
    """Return the name of the host that claimed a run and has not begun it; None if there is none.

    Raises:
        StorageError: The store failed.
    """
    with team.store.glance():
        for host in sorted(team.hosts.names()):
            found = team.host(host).claims.record(name).load_or_none()
            if found is not None and found.run == run:
                return host
    return None


def waiting(team: TeamDirectory, runs: Collection[WantedRun]) -> list[HeldStart]:
    """Return these runs of the queue as held starts, each with the reason why no host has claimed it.

    Raises:
        StorageError: The store failed.
    """
    up = [labels(host) for host in _taking(team)] if runs else []
    return [
        HeldStart(name=run.agent, run=run.run, since=run.at, reason=reason(run.needs, up), for_host=True)
        for run in runs
    ]


def reason_to_wait(team: TeamDirectory, needs: Collection[str]) -> str | None:
    """Return why no host would now claim a run that needs these labels; None if one would.

    Raises:
        StorageError: The store failed.
    """
    with team.store.glance():
        up = _taking(team)
        is_free = any(free_slots(team, host) > 0 for host in up if labels(host).issuperset(needs))
    return None if is_free else reason(needs, [labels(host) for host in up])


def free_slots(team: TeamDirectory, host: Host) -> int:
    """Return how many more agents a host takes; the runs that it has claimed count as taken.

    Raises:
        StorageError: The store failed.
    """
    holders = (leases.holder(team.agent(name).lease, Lease) for name in team.agent_names())
    used = sum(holder is not None and holder.host == host.name for holder in holders)
    return host.slots - used - len(claimed(team, host.name))


def _taking(team: TeamDirectory) -> list[Host]:
    """Return the hosts that are up and not draining."""
    with team.store.glance():
        return [host for host in load_all(team) if not host.draining and is_up(team, host.name)]


def find_other(team: TeamDirectory, host: str, needs: Collection[str]) -> str | None:
    """Return the name of another host to use in place of `host`; None if `host` takes runs, or no other host fits.

    Another host fits if it takes runs and has the labels `needs`.

    Raises:
        StorageError: The store failed.
    """
    taking = _taking(team)
    if any(each.name == host for each in taking):
        return None
    return next((each.name for each in taking if labels(each).issuperset(needs)), None)


def reason(needs: Collection[str], up: Collection[frozenset[str]]) -> str:
    """Return in words what a run that needs these labels waits for.

    `up` has the labels of each host that takes runs.
    """
    if not up:
        return "waits for a host: none of this team is up; start one with `crewboard host`"
    pinned = next((need.removeprefix(HOST_LABEL) for need in needs if need.startswith(HOST_LABEL)), None)
    fits = any(offered.issuperset(needs) for offered in up)
    wanted_labels = [need for need in needs if not need.startswith(HOST_LABEL)]
    having = " and ".join([*wanted_labels, *(["a free slot"] if fits else [])])
    return f"waits for {f'the host {pinned}' if pinned else 'a host'}{having and f' with {having}'}"


def check_labels(needs: Collection[str]) -> None:
    """Check that these texts can be labels of hosts.

    Raises:
        UsageError: A text cannot be a label.
    """
    if wrong := [label for label in needs if not is_name(label)]:
        raise UsageError(f"{wrong[0]!r} is no label: use a-z, 0-9, - and _, as in gpu")


def check(team: TeamDirectory, host: str | None, needs: Collection[str], engine: str | None = None) -> str:
    """Return a note if no host that takes agents could run an agent hired with these options; else an empty text.

    Raises:
        UsageError: The team has no hosts or none of this name, or a label is invalid.
        StorageError: The store failed.
    """
    if not host and not needs and not (engine and exist(team)):
        return ""
    if not exist(team):
        remedy = "leave out --host and --needs"
        if team.address is None:
            raise UsageError(f"this team is kept in files of this machine, and has no hosts; {remedy}")
        raise UsageError(f"this team has no hosts; start one with `crewboard host`, or {remedy}")
    check_labels(needs)
    known = sorted(team.hosts.names())
    if host and host not in known:
        raise UsageError(f"there is no host {host!r} in this team; its hosts are {', '.join(known)}")
    with team.store.glance():
        up = [each for each in load_all(team) if is_up(team, each.name)]
    if any(each.name == host and each.draining for each in up):
        return f"the host {host} is ending and takes no more agents; it waits until a host {host} is started again"
    offered = {each.name: labels(each) for each in up if not each.draining}
    wanted = needs_of(None, needs, engine)
    if any(found.issuperset(needs_of(host, needs, engine)) for found in offered.values()):
        return ""
    if missing := sorted({*wanted}.difference(*offered.values())):
        return f"no host that is up has {' and '.join(missing)}; it waits for one"
    if host in offered:
        return f"the host {host} has no {' and '.join(sorted({*wanted} - offered[host]))}; it waits until that changes"
    return f"no host that is up has {' and '.join(wanted)} together; it waits for one" if host is None else ""


def _runs(folder: RecordFolder[WantedRun]) -> list[WantedRun]:
    records = (folder.record(name.removesuffix(".json")).load_or_none() for name in folder.names())
    return sorted((run for run in records if run is not None), key=lambda run: (run.at, run.agent))


def needs_of(host: str | None, needs: Collection[str], engine: str | None) -> list[str]:
    """Return the labels that a host must have to run an agent that was hired with these options."""
    return sorted({*needs, *([HOST_LABEL + host] if host else []), *([ENGINE_LABEL + engine] if engine else [])})
