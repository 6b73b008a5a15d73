"""The caller's side of the supervisor: starting it where none lives, and ringing its bell.

A ring for a start carries the caller's whole environment, because the key is in no file; every other ring only says
"look". Losing one is harmless: the supervisor looks by itself as well.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from crewboard.errors import TryLaterError, UntrustedError
from crewboard.linux import process
from crewboard.names import is_name
from crewboard.protocol import runtime_directory
from crewboard.records import Exit, Lease, Status, Supervisor
from crewboard.redaction import is_secret
from crewboard.store import files, json_files, leases
from crewboard.store.layout import AgentDirectory, TeamDirectory

Verb = Literal["bell", "start", "leave"]

WAKE_SIGNAL = signal.SIGURG
"""Does nothing to a process that does not listen for it yet."""

START_TIMEOUT = 15.0
"""Seconds that a supervisor may need to come up on a busy machine."""


def is_alive(team: TeamDirectory) -> bool:
    """Whether the team has a supervisor."""
    return leases.is_held(team.supervisor_lock)


def wake_supervisor(
    team: TeamDirectory,
    verb: Verb = "bell",
    *,
    name: str | None = None,
    run: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Ring the team's supervisor, after starting one if none lives.

    Raises:
        TryLaterError: None came up in time.
        UntrustedError: What holds the lock is not this user's own supervisor; nothing was sent.
    """
    message = {"verb": verb, "name": name, "run": run, "environment": dict(environment or {})}
    line = json.dumps(message).encode() + b"\n"
    deadline = time.monotonic() + START_TIMEOUT
    started = 0.0
    while time.monotonic() < deadline:
        holder = leases.holder(team.supervisor_lock, Supervisor)
        if holder is not None and holder.socket and _deliver(team, holder, line):
            return
        if not is_alive(team) and time.monotonic() - started > 1:
            started = time.monotonic()
            _start(team)
        time.sleep(0.01)
    raise TryLaterError(f"the supervisor of {team.path.name} does not come up; see {team.supervisor_log}")


def ensure_running(team: TeamDirectory) -> None:
    """Start a supervisor where none lives and an agent needs one, without waiting for it.

    An agent does that lives, or of whose end the team was not told.
    """
    if not is_alive(team) and any(_needs_supervisor(team.agent(name)) for name in _hired(team)):
        _start(team)


def _hired(team: TeamDirectory) -> list[str]:
    return [path.name for path in team.agents.glob("*") if is_name(path.name)]


def _needs_supervisor(agent: AgentDirectory) -> bool:
    return leases.is_held(agent.lease) or is_unfinalized(agent)


def is_unfinalized(agent: AgentDirectory) -> bool:
    """Whether a run began of whose end, if it has ended, the team was not told; one that never began has none."""
    status, record = json_files.load_or_none(agent.status, Status), json_files.load_or_none(agent.exit, Exit)
    return status is not None and (record is None or record.run < status.run or not record.buried)


def wake_worker(team: TeamDirectory, name: str) -> None:
    """Make the worker of `name` look at its files now, if it lives."""
    holder = leases.holder(team.agent(name).lease, Lease)
    if holder is not None:
        process.send_signal(holder.pid, WAKE_SIGNAL, holder.start_ticks)


class Peer(NamedTuple):
    """The process at the other end of a unix socket, as the kernel knows it (struct ucred)."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return which process connected, or called listen(2)."""
    layout = "3i"
    return Peer(
        *struct.unpack(layout, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(layout)))
    )


def _deliver(team: TeamDirectory, holder: Supervisor, line: bytes) -> bool:
    """Hand one line to the holder of the team's lock; False if nothing took it.

    Raises:
        UntrustedError: It is not this user's own supervisor.
    """
    if not runtime_directory.holds(Path(holder.socket), os.environ):
        raise UntrustedError(
            f"the supervisor of {team.path} (pid {holder.pid}) listens at {holder.socket!r}, which is in no folder of "
            "this user's own, so nothing was sent to it. If you started it in a shell with another XDG_RUNTIME_DIR, "
            "set that here too; if you did not make this team, remove its directory"
        )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(5)
            caller.connect(holder.socket)
            _require_holder(team, holder, peer_of(caller))
            caller.sendall(line)
            return caller.recv(16).startswith(b"ok")
    except OSError:
        return False


def _require_holder(team: TeamDirectory, holder: Supervisor, peer: Peer) -> None:
    """Refuse a peer that is not the process that holds the lock, before one byte is sent.

    Raises:
        UntrustedError: It is of another user, or another process.
    """
    own = peer.uid == os.geteuid()
    if own and peer.pid == holder.pid and process.is_same(holder.pid, holder.boot_id, holder.start_ticks):
        return
    raise UntrustedError(
        f"{holder.socket!r} is answered by process {peer.pid} of uid {peer.uid}, not by the one that "
        f"{team.supervisor_lock} names (pid {holder.pid}), so nothing was sent to it. End that process if it is yours; "
        "if you did not make this team, remove its directory"
    )


def _start(team: TeamDirectory) -> None:
    """Start a supervisor, which detaches itself. If somebody else's is quicker, this one leaves at once.

    Raises:
        UntrustedError: It would have no folder to listen in.
    """
    runtime_directory.make(os.environ)
    environment = {key: value for key, value in os.environ.items() if not is_secret(key)}
    with open(team.supervisor_log, "ab", opener=files.open_private) as log:
        subprocess.run(
            [sys.executable, "-I", "-m", "crewboard.supervisor", str(team.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=environment,
            start_new_session=True,
            check=False,
        )
