"""Hosts: join a team from another machine, run its agents on this one, and start runs.

A run is put into the queue for hosts, or on a team without hosts, its supervisor is asked to start it.
"""

import socket
import sys
import threading
import time
from pathlib import Path

from msgspec.structs import replace

from crewboard.commands.context import (
    POLL_INTERVAL,
    Team,
    check_credentials,
    check_variables,
    choose_team,
    command_for,
    only_or_default,
    wait_until,
)
from crewboard.errors import TryLaterError, UsageError
from crewboard.names import NAME_RULE, check_team, is_name
from crewboard.protocol import supervisor_client
from crewboard.records.agents import HireOptions, Spec
from crewboard.records.processes import Lease, Supervisor, WantedRun
from crewboard.store import agents, hosts, leases, roster
from crewboard.store.agents import START_TIMEOUT
from crewboard.store.layout import AgentDirectory, TeamDirectory, team_directories
from crewboard.unix import process

SLOTS_PER_CORE = 4
"""Agents that a host runs at once for each core by default; most of them wait for the model."""

QUEUE_TIMEOUT = 1.5
"""Seconds that a command waits for a host to take a run, before it says that the run is queued."""

LOST_TIMEOUT = 20.0
"""Seconds to wait for the end of agents whose host is lost: their leases last 15 s by default."""

_LEAVE_TIMEOUT = 10.0
_supervisor_start = threading.Lock()
_failed_starts: dict[Path, float] = {}
"""When the last start of a team's supervisor by this process failed, by `time.monotonic`."""
_LONGEST_NAME = 32


def join(root: Path, name: str | None, url: str) -> TeamDirectory:
    """Create this machine's folder of a team that another machine made in the database at `url`. Idempotent.

    Without a name, take the only team of `root` that is kept in that database, else the default team.

    Raises:
        UsageError: The database has no such team, the folder is another team's, or several teams could be meant.
        StorageError: The database is out of reach, or the folder cannot be made.
    """
    directory = _kept_at(root, name, url)
    directory.join(url)
    return directory


def choose(root: Path, name: str | None, url: str | None) -> TeamDirectory:
    """Return the team that gets a host on this machine; with `url`, that in the database, without joining it yet.

    Raises:
        UsageError: There is no such team, or the folder is another team's.
        StorageError: The database is out of reach.
    """
    if url is not None:
        directory = _kept_at(root, name, url)
        directory.visit(url)
        return directory
    found = roster.find_team(root, check_team(name)) if name else choose_team(root, None)
    if found is None or not found.exists():
        raise UsageError(
            f"there is no team{f' {name}' if name else ''} in {root} yet: `crewboard --team {name or 'NAME'} host "
            "--store postgresql://USER@HOST/DATABASE` joins the one in that database"
        )
    return found


def _kept_at(root: Path, name: str | None, url: str) -> TeamDirectory:
    if name:
        return TeamDirectory(root / ".crewboard" / check_team(name))
    return only_or_default(root, [team for team in team_directories(root) if team.address == url])


def default_name() -> str:
    """Return this machine's host name, changed to a valid name of a host, if need be."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname().partition(".")[0].lower())
    # The end of a long name is what differs between the pods of a deployment.
    name = kept.strip("-")[-_LONGEST_NAME:].lstrip("-")
    return name if is_name(name) else f"host-{name[5 - _LONGEST_NAME :].lstrip('-')}".rstrip("-")


def default_slots() -> int:
    """Return how many agents a host on this machine runs at once by default."""
    return SLOTS_PER_CORE * process.cores()


def command(team: Team, name: str, slots: int, labels: list[str], url: str | None = None) -> list[str]:
    """Join the team as a host, and return the command line of the host's process, for the caller to replace itself by.

    Everything is checked before the team in the database at `url` is joined. A supervisor that a command started in the
    same folder is ended.

    Raises:
        UsageError: The team is kept in files, a name is not valid or taken, the team's other hosts use the offline
            model, or a variable that workers read has a wrong value.
        CredentialsError: There is no API key, and the team is not offline.
        TryLaterError: A host runs in this folder, or a supervisor that has workers or does not end.
    """
    directory, url = team.directory, url or team.directory.address
    if url is None:
        raise UsageError(
            f"the team {directory.path.name} is kept in files of this machine, and hosts need a team in PostgreSQL: "
            "`crewboard team create NAME --store postgresql://USER@HOST/DATABASE` makes one"
        )
    for each in (name, *labels):
        if not is_name(each):
            raise UsageError(f"{each!r} cannot name a host or a label: {NAME_RULE}")
    roster.require_own_agents(directory)
    known = hosts.load_all(directory)
    # A name that is taken on another machine is found by the host itself, which waits in case that one was killed.
    holder = leases.holder(directory.supervisor_lock, Supervisor)
    for host in known:
        if not process.is_same(host.pid, host.boot_id, host.start_ticks):
            continue
        if holder is not None and (holder.pid, holder.start_ticks) == (host.pid, host.start_ticks):
            raise TryLaterError(
                f"the host {host.name} (process {host.pid}) runs in {directory.path} already: end it with "
                f"`kill {host.pid}`, or give this one a folder of its own, `crewboard --root DIR`"
            )
        if host.name == name and hosts.is_up(directory, name):
            raise UsageError(
                f"a host {name} is up on this machine, process {host.pid}: choose another --name, or end it "
                f"with `kill {host.pid}`"
            )
    offline = [host.name for host in known if host.offline]
    if offline and not team.offline_here:
        raise UsageError(
            f"the team {directory.path.name} uses the offline model (host {offline[0]}), and its agents would become "
            "paid work here: begin this host with --offline too, or create another team"
        )
    check_variables(team.worker_environment)
    check_credentials(team.worker_environment)
    directory.join(url)
    end_supervisor(directory)
    team.note("host", name, f"{slots} slots")
    return [
        sys.executable, "-I", "-m", "crewboard.supervisor", str(directory.path), "--host", name, str(slots), *labels
    ]  # fmt: skip


def end_supervisor(team: TeamDirectory) -> None:
    """End the supervisor of a team on this machine that a command started, if there is one.

    Raises:
        TryLaterError: The supervisor has workers, or does not end.
    """
    if not supervisor_client.is_alive(team):
        return
    busy = []
    for name in team.agent_names():
        lease = leases.holder(team.agent(name).lease, Lease)
        if lease is not None and not lease.host and process.is_same(lease.pid, lease.boot_id, lease.start_ticks):
            busy.append(name)
    if busy:
        raise TryLaterError(
            f"agents run here already, without a host: {', '.join(sorted(busy))}; stop them first, then `resume` them"
        )
    if not supervisor_client.end(team, _LEAVE_TIMEOUT):
        holder = leases.holder(team.supervisor_lock, Supervisor)
        who = f" (process {holder.pid})" if holder is not None else ""
        raise TryLaterError(
            f"a supervisor{who} of {team.path} still runs, which ends some minutes after its last agent: wait for "
            "that, or use another --root"
        )


def start(team: Team, agent: AgentDirectory, spec: Spec) -> None:
    """Start the run that a spec asks for; return when its worker has started or ended, or the run is queued.

    The supervisor is asked again every second, because one that is killed loses the request: no file contains the API
    key. On a team with hosts, the run goes into their queue.

    Raises:
        TryLaterError: The worker did not start in time.
    """
    if hosts.exist(team.directory):
        _start_on_host(team, agent, spec)
        return
    asked_at = time.monotonic()
    # One after the other, so that several starts at once say it once.
    with _supervisor_start:
        # If it failed meanwhile, the others do not wait for it one after the other, too.
        failed_at = _failed_starts.get(team.directory.path, float("-inf"))
        if failed_at < asked_at and not supervisor_client.is_alive(team.directory):
            team.tell("starting the supervisor …")
            try:
                _request(team, agent, spec.run)
            except TryLaterError:
                _failed_starts[team.directory.path] = time.monotonic()
                raise
    deadline = time.monotonic() + START_TIMEOUT
    next_wake = 0.0
    while time.monotonic() < deadline:
        if _is_up(agent, spec.run):
            return
        # The supervisor holds the run back, and has its environment.
        held = agents.held_starts(team.directory).find(agent.name, spec.run) if next_wake else None
        if held is not None and held.provided:
            return
        if time.monotonic() >= next_wake:
            _request(team, agent, spec.run)
            next_wake = time.monotonic() + 1
        time.sleep(POLL_INTERVAL)
    going_on = (
        "its supervisor goes on starting it, and `crewboard status` shows it when it is up"
        if supervisor_client.is_alive(team.directory)
        else "no supervisor runs: try again"
    )
    raise TryLaterError(f"{agent.name} did not start within {START_TIMEOUT:.0f} s; {going_on}; see {agent.log}")


def _request(team: Team, agent: AgentDirectory, run: int) -> None:
    """Ask the supervisor to start a run; start a supervisor if there is none.

    Raises:
        TryLaterError: It does not answer; the message says how the agent, whose run is recorded, is started.
    """
    try:
        supervisor_client.request_start(team.directory, agent.name, run, team.worker_environment)
    except TryLaterError as error:
        again = command_for(team, f"resume {agent.name}")
        raise TryLaterError(f"{error}. The run of {agent.name} is recorded; `{again}` starts it") from error


def _start_on_host(team: Team, agent: AgentDirectory, spec: Spec) -> None:
    """Put a run into the queue; wait until its worker has started or ended, or no host has taken it for a moment.

    Raises:
        TryLaterError: A host took the run, and its worker did not start in time.
    """
    needs = hosts.needs_of(spec.flags.host, spec.flags.needs, spec.engine_name)
    wanted = WantedRun(agent=agent.name, run=spec.run, needs=needs, at=team.now())
    known = hosts.find_queued(team.directory, agent.name, spec.run)
    # After another command that resumes the same run, a host may have claimed or begun it.
    is_new = not hosts.is_wanted(team.directory, agent.name, spec.run) and agents.last_run(agent) < spec.run
    if is_new or (known is not None and known.needs != wanted.needs):
        hosts.want(team.directory, wanted)
    late_at = time.monotonic() + QUEUE_TIMEOUT

    def is_up_or_waits() -> bool:
        waits = time.monotonic() > late_at and hosts.find_queued(team.directory, agent.name, spec.run) is not None
        return waits or _is_up(agent, spec.run)

    if not wait_until(is_up_or_waits, START_TIMEOUT):
        raise TryLaterError(
            f"{agent.name} did not start within {START_TIMEOUT:.0f} s; the host that took it goes on starting it, and "
            "`crewboard status` shows it when it is up; see the log of that host"
        )


def _is_up(agent: AgentDirectory, run: int) -> bool:
    # Damaged ones are as good as none: both are made again, from the journal and at the end of the run.
    ended = agent.exit.load_or_none()
    if ended is not None and ended.run >= run:
        return True
    status = agent.status.load_or_none()
    return status is not None and status.run >= run and (status.state != "starting" or bool(status.doing))


def is_lost(team: Team, name: str) -> bool:
    """Return True if an agent runs on a host that is not up, so that nothing there ends the agent."""
    holder = leases.holder(team.directory.agent(name).lease, Lease)
    return holder is not None and bool(holder.host) and not hosts.is_up(team.directory, holder.host)


def still_running(team: Team, names: list[str]) -> str:
    """Return a sentence that says which agents are still running, where, and what to do."""
    still = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} still running"
    holders = (leases.holder(team.directory.agent(name).lease, Lease) for name in names)
    known = sorted({holder.host for holder in holders if holder is not None and holder.host})
    if not known:
        return f"{still}; see {team.directory.supervisor_log}"
    down = [host for host in known if not hosts.is_up(team.directory, host)]
    if not down:
        return f"{still} on {', '.join(known)}; see the log of `crewboard host` there"
    return (
        f"{still} on {', '.join(down)}, which is not up: its agents end by themselves as soon as they cannot reach the "
        "store; else start `crewboard host` there again, and it ends them"
    )


def queued(team: Team, name: str, run: int) -> str:
    """Return why a run is queued, such as `queued 2nd: max_agents 4 reached`; an empty text if it is not."""
    held = agents.held_starts(team.directory).describe(name, run, team.now())
    if held or agents.last_run(team.directory.agent(name)) >= run:
        return held
    host = hosts.claimed_by(team.directory, name, run)
    return f"queued: the host {host} is about to start it" if host is not None else ""


def how_to_move(team: Team, name: str) -> str:
    """Return the command that resumes an agent on another host, if the one that it is bound to takes no runs now.

    Return an empty text if the agent is bound to no host, its host takes runs, or no other one could run it.
    """
    spec = team.agent(name).spec.load()
    if spec is None or not spec.flags.host:
        return ""
    other = hosts.find_other(team.directory, spec.flags.host, hosts.needs_of(None, spec.flags.needs, spec.engine_name))
    return command_for(team, f"resume {name} --host {other}") if other is not None else ""


def require_no_wait(
    team: Team, name: str, flags: HireOptions, *, waits_for_it: str | None, engine: str | None, memory: int
) -> None:
    """Check that an agent could start at once, without waiting for a host or because of a cap.

    The agent `waits_for_it`, if given, does not count as working meanwhile. `memory` is that of its engine, in bytes.

    Raises:
        TryLaterError: The agent would have to wait.
    """
    if not team.directory.exists():
        return
    living = [each for each in team.config.names if leases.is_held(team.directory.agent(each).lease)]
    waiting = sum(not held.for_host for held in agents.held_starts(team.directory).held)
    config = team.config
    load = roster.load_of(team.directory, living)
    working, free = load.working - (waits_for_it in living), load.free_memory - memory
    reached = roster.cap_reached(config, replace(load, working=working, free_memory=free))
    reached = reached or (f"{waiting} others are queued" if waiting else None)
    if reached is None and hosts.exist(team.directory):
        needs = hosts.needs_of(flags.host, flags.needs, engine)
        if (why := hosts.reason_to_wait(team.directory, needs)) is not None:
            raise TryLaterError(f"{name} was not started: it {why}")
    if reached is not None:
        raise TryLaterError(f"{name} was not started: {reached}; `{command_for(team, 'settings')}` shows the caps")


def provide(team: Team) -> None:
    """Send the supervisor the environment for queued runs whose environment an earlier, killed supervisor had."""
    for held in agents.held_starts(team.directory).held:
        if not held.provided and not held.for_host:
            supervisor_client.request_start(team.directory, held.name, held.run, team.worker_environment)
