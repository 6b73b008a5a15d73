"""Hosts: join a team from another machine, and begin to run its agents on this one."""

import os
import socket
import sys
from pathlib import Path

from crewboard import linux, protocol, store
from crewboard.commands.context import Team, check_credentials, wait_until
from crewboard.names import NAME_RULE, is_name
from crewboard.records import Lease, TryLaterError, UsageError, check_team
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
    known = [team.path.name for team in store.team_directories(root) if team.address == url]
    chosen = name or (known[0] if len(known) == 1 else store.DEFAULT_TEAM)
    directory = TeamDirectory(root / ".crewboard" / check_team(chosen))
    directory.join(url)
    return directory


def default_name() -> str:
    """Return the name of this machine as the name of a host."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname().partition(".")[0].lower())
    name = kept.strip("-")[:_LONGEST_NAME]
    return name if is_name(name) else f"host-{name}"[:_LONGEST_NAME].rstrip("-")


def default_slots() -> int:
    """Return how many agents this machine runs at once."""
    return SLOTS_PER_CORE * len(os.sched_getaffinity(0))


def command(team: Team, name: str, slots: int, labels: list[str]) -> list[str]:
    """Return the program and the arguments of the process that is a host of the team, which takes the caller's place.

    A supervisor that a command started in the same folder is ended, if it has no workers.

    Raises:
        UsageError: The team is kept in files, a name is not valid, or the team's other hosts use the offline model.
        CredentialsError: There is no API key, and the team is not offline.
        TryLaterError: A supervisor or a host runs in this folder.
    """
    directory = team.directory
    if directory.address is None:
        raise UsageError(
            f"the team {directory.path.name} is kept in files of this machine, and hosts need a team in PostgreSQL: "
            "`crewboard team create NAME --store postgresql://USER@HOST/DATABASE` makes one"
        )
    for each in (name, *labels):
        if not is_name(each):
            raise UsageError(f"{each!r} cannot name a host or a label: {NAME_RULE}")
    store.roster.require_own_agents(directory)
    offline = [host.name for host in store.hosts.load_all(directory) if host.offline]
    if offline and not team.offline:
        raise UsageError(
            f"the team {directory.path.name} uses the offline model (host {offline[0]}), and its agents would become "
            "paid work here: begin this host with --offline too, or create another team"
        )
    check_credentials(team.worker_environment)
    _end_supervisor(directory)
    team.note("host", name, f"{slots} slots")
    return [
        sys.executable, "-I", "-m", "crewboard.supervisor", str(directory.path), "--host", name, str(slots), *labels
    ]  # fmt: skip


def _end_supervisor(team: TeamDirectory) -> None:
    """Let a supervisor that a command started in this folder end.

    Raises:
        TryLaterError: It has workers, or it is a host.
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
        raise TryLaterError(f"a supervisor or a host runs in {team.path} already; stop it, or use another --root")


def _runs_here(agent: AgentDirectory) -> bool:
    holder = store.leases.holder(agent.lease, Lease)
    return (
        holder is not None and not holder.host and linux.process.is_same(holder.pid, holder.boot_id, holder.start_ticks)
    )
