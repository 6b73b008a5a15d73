"""Hosts: join a team from another machine, and begin to run its agents on this one."""

import os
import socket
import sys
from pathlib import Path

from crewboard import linux, protocol, store
from crewboard.commands.context import Team, check_credentials, choose_team, wait_until
from crewboard.names import NAME_RULE, is_name
from crewboard.records import Host, Lease, Supervisor, TryLaterError, UsageError, check_team
from crewboard.store import AgentDirectory, TeamDirectory

SLOTS_PER_CORE = 4
"""Agents that a host runs at once for each core unless it is told: most of them wait for the model."""

_LEAVE_TIMEOUT = 10.0
_LONGEST_NAME = 32


def join(root: Path, name: str | None, url: str) -> TeamDirectory:
    """Create this machine's folder of a team that another machine made in the database at `url`. Idempotent.

    Without a name it is the only team of the root that is kept there, else the default team.

    Raises:
        UsageError: The database has no such team, or the folder is another team's.
        StorageError: The database is out of reach, or the folder cannot be made.
    """
    directory = _kept_at(root, name, url)
    directory.join(url)
    return directory


def choose(root: Path, name: str | None, url: str | None) -> TeamDirectory:
    """Return the team that gets a host on this machine. One in the database at `url` is only looked at, not joined.

    Raises:
        UsageError: There is no such team, or the folder is another team's.
        StorageError: The database is out of reach.
    """
    if url is not None:
        directory = _kept_at(root, name, url)
        directory.visit(url)
        return directory
    found = store.roster.find_team(root, check_team(name)) if name else choose_team(root, None)
    if found is None or not found.exists():
        raise UsageError(
            f"there is no team{f' {name}' if name else ''} in {root} yet: `crewboard --team {name or 'NAME'} host "
            "--store postgresql://USER@HOST/DATABASE` joins the one in that database"
        )
    return found


def _kept_at(root: Path, name: str | None, url: str) -> TeamDirectory:
    known = [team.path.name for team in store.team_directories(root) if team.address == url]
    chosen = name or (known[0] if len(known) == 1 else store.DEFAULT_TEAM)
    return TeamDirectory(root / ".crewboard" / check_team(chosen))


def default_name() -> str:
    """Return the name of this machine as the name of a host."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname().partition(".")[0].lower())
    name = kept.strip("-")[:_LONGEST_NAME]
    return name if is_name(name) else f"host-{name}"[:_LONGEST_NAME].rstrip("-")


def default_slots() -> int:
    """Return how many agents this machine runs at once."""
    return SLOTS_PER_CORE * len(os.sched_getaffinity(0))


def command(team: Team, name: str, slots: int, labels: list[str], url: str | None = None) -> list[str]:
    """Return the program and the arguments of the process that is a host of the team, which takes the caller's place.

    All is checked before the team in the database at `url` is joined. A supervisor that a command started in the same
    folder is ended, if it has no workers.

    Raises:
        UsageError: The team is kept in files, a name is not valid or taken, or the team's other hosts use the offline
            model.
        CredentialsError: There is no API key, and the team is not offline.
        TryLaterError: A supervisor or a host runs in this folder.
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
    store.roster.require_own_agents(directory)
    known = store.hosts.load_all(directory)
    _require_free(directory, name, known)
    offline = [host.name for host in known if host.offline]
    if offline and not team.offline:
        raise UsageError(
            f"the team {directory.path.name} uses the offline model (host {offline[0]}), and its agents would become "
            "paid work here: begin this host with --offline too, or create another team"
        )
    check_credentials(team.worker_environment)
    directory.join(url)
    _end_supervisor(directory)
    team.note("host", name, f"{slots} slots")
    return [
        sys.executable, "-I", "-m", "crewboard.supervisor", str(directory.path), "--host", name, str(slots), *labels
    ]  # fmt: skip


def _require_free(team: TeamDirectory, name: str, known: list[Host]) -> None:
    """Refuse a second host in this folder, and one with the name of another that runs on this machine.

    A name that is taken on another machine is found by the host itself, which waits in case that one was killed.
    """
    holder = store.leases.holder(team.supervisor_lock, Supervisor)
    for host in known:
        if not linux.process.is_same(host.pid, host.boot_id, host.start_ticks):
            continue
        if holder is not None and (holder.pid, holder.start_ticks) == (host.pid, host.start_ticks):
            raise TryLaterError(
                f"the host {host.name} (process {host.pid}) runs in {team.path} already: end it with "
                f"`kill {host.pid}`, or give this one a folder of its own, `crewboard --root DIR`"
            )
        if host.name == name and store.hosts.is_up(team, name):
            raise UsageError(
                f"a host {name} is up on this machine, process {host.pid}: choose another --name, or end it "
                f"with `kill {host.pid}`"
            )


def _end_supervisor(team: TeamDirectory) -> None:
    """Let a supervisor that a command started in this folder end.

    Raises:
        TryLaterError: It has workers, or does not end.
    """
    if not protocol.supervisor_client.is_alive(team):
        return
    busy = [name for name in team.agent_names() if _runs_here(team.agent(name))]
    if busy:
        raise TryLaterError(
            f"agents run here already, without a host: {', '.join(sorted(busy))}; stop them first, then `resume` them"
        )
    protocol.supervisor_client.request_exit(team)
    if not wait_until(lambda: not protocol.supervisor_client.is_alive(team), _LEAVE_TIMEOUT):
        holder = store.leases.holder(team.supervisor_lock, Supervisor)
        who = f" (process {holder.pid})" if holder is not None else ""
        raise TryLaterError(
            f"a supervisor{who} of {team.path} still runs, which ends some minutes after its last agent: wait for "
            "that, or use another --root"
        )


def _runs_here(agent: AgentDirectory) -> bool:
    holder = store.leases.holder(agent.lease, Lease)
    return (
        holder is not None and not holder.host and linux.process.is_same(holder.pid, holder.boot_id, holder.start_ticks)
    )
