"""Client side of the supervisor: start one if the team has none, and send it requests.

Only a start request carries the caller's environment, because no file may hold the API key. All other requests only
mean "look now". A lost request does no harm: the supervisor also looks by itself.

A supervisor listens in a folder that only this user can enter, which both sides derive from the user id and the
environment. `supervisor.lock` only says which of the sockets in that folder is the team's: a team directory can come
from a repository or another user, and the caller's environment holds the API key.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from crewboard import env
from crewboard.errors import CrewboardError, StorageError, TryLaterError, UntrustedError, UsageError
from crewboard.names import is_name
from crewboard.records.processes import Lease, Supervisor
from crewboard.redaction import is_secret
from crewboard.store import agents, files, leases, roster
from crewboard.store import hosts as store_hosts
from crewboard.store.layout import AgentDirectory, TeamDirectory
from crewboard.unix import process

if TYPE_CHECKING:
    import socket

# json, socket and subprocess are imported where they are used: most commands only look whether a supervisor runs.

Verb = Literal["wake", "start", "kill", "leave"]

WAKE_SIGNAL = signal.SIGURG
"""The signal that wakes a worker. It has no effect on a process that does not handle it yet."""

START_TIMEOUT = 15.0
"""Seconds that a supervisor may take to start on a busy machine."""

HUNG_AFTER = 15.0
"""Seconds without a sign of life after which a supervisor counts as hung. It gives one at least every 5 s; a supervisor
that is only slow on a busy machine, or that looks at many agents, needs a few more.
"""

KILL_TIMEOUT = 10.0
"""Seconds that the kernel may take to end a hung supervisor."""

_LONGEST_FOLDER = 66
"""Most bytes of the path of a socket's folder: the address of a unix socket has 108 bytes, of which the name
takes up to 32.
"""

_SEND_TIMEOUT = 5.0
_POLL = 0.01

_TAKEN_WITHIN = 1.0
"""Seconds within which a process that takes the lock erases what its last holder wrote."""


class ControlRequest(Struct, frozen=True):
    """One request to the supervisor, a line of JSON on its socket.

    `wake`: look now. `start`: start run `run` of the agent `name` with `environment`. `kill`: end that run, although
    its spec cannot be written. `leave`: exit when no worker is left. It is no `Record`: those are UTF-8, and a variable
    of the environment may hold any bytes.
    """

    verb: Verb = "wake"
    name: str | None = None
    run: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the request as one line of JSON."""
        import json

        fields = {"verb": self.verb, "name": self.name, "run": self.run, "environment": dict(self.environment)}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> ControlRequest:
        """Parse a request. One with an unknown verb, or a start or kill without its agent, becomes a `wake`.

        Raises:
            ValueError: The line is not a request.
        """
        import json

        try:
            fields = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004  callers handle one kind of error
        environment = fields.get("environment") or {}
        if not isinstance(environment, dict):
            raise ValueError("the environment is not an object")  # noqa: TRY004  as above
        verb, name, run = fields.get("verb"), fields.get("name"), fields.get("run")
        if verb == "leave":
            return cls("leave")
        if verb not in ("start", "kill") or not (isinstance(name, str) and is_name(name) and type(run) is int):
            return cls("wake")
        return cls(verb, name, run, {str(key): str(value) for key, value in environment.items()})


def is_alive(team: TeamDirectory) -> bool:
    """Return True if the team has a supervisor on this machine."""
    return leases.is_held(team.supervisor_lock)


def open_supervisor(team: TeamDirectory) -> tuple[Supervisor, int] | None:
    """Return the team's supervisor and a pidfd that shows its end; None if there is none."""
    holder = leases.holder(team.supervisor_lock, Supervisor)
    if holder is None:
        return None
    try:
        pidfd = process.watch_end(holder.pid)
    except OSError:
        return None
    if process.is_same(holder.pid, holder.boot_id, holder.start_ticks):
        return holder, pidfd
    os.close(pidfd)
    return None


def wake_supervisor(team: TeamDirectory) -> None:
    """Make the supervisor compare desired and observed state now. Start a supervisor if the team has none.

    Do nothing for a team that mirrors one of another program, which has no supervisor, and for a team with hosts, which
    hear of changes through its store.

    Raises:
        TryLaterError: No supervisor started in time.
        UntrustedError: The lock's holder is not this user's own supervisor; nothing was sent.
    """
    if not roster.is_attached(team) and not store_hosts.exist(team):
        _send(team, ControlRequest())


def start_or_tell(start: Callable[[TeamDirectory], object], team: TeamDirectory, tell: Callable[[str], object]) -> None:
    """Call `start`, which wakes or starts the supervisor of a team. If that fails, call `tell` with the reason."""
    try:
        start(team)
    except (CrewboardError, OSError) as error:
        tell(f"no supervisor can be started: {error}")


def request_start(team: TeamDirectory, name: str, run: int, environment: Mapping[str, str]) -> None:
    """Ask the supervisor to start run `run` of the agent `name`. The supervisor starts each run at most once.

    Do nothing on a team with hosts: they claim runs from a queue (`store.hosts`).

    Raises:
        TryLaterError: No supervisor started in time.
        UntrustedError: The lock's holder is not this user's own supervisor; nothing was sent.
    """
    if not store_hosts.exist(team):
        _send(team, ControlRequest("start", name, run, environment))


def request_kill(team: TeamDirectory, name: str, run: int) -> None:
    """Ask the supervisor to kill run `run` of the agent `name`, although its spec cannot be written.

    The supervisor remembers it, and records it once it can.

    Raises:
        TryLaterError: No supervisor started in time.
        UntrustedError: The lock's holder is not this user's own supervisor; nothing was sent.
    """
    _send(team, ControlRequest("kill", name, run))


def request_exit(team: TeamDirectory) -> None:
    """Ask the supervisor, if there is one, to exit once no worker is left. Hosts of a team are not asked.

    Raises:
        TryLaterError: The supervisor did not answer in time.
        UntrustedError: The lock's holder is not this user's own supervisor; nothing was sent.
    """
    if not store_hosts.exist(team):
        _send(team, ControlRequest("leave"))


def end(team: TeamDirectory, seconds: float) -> bool:
    """Ask the supervisor to exit, and wait until there is none. Return False if there still is one after `seconds`.

    Each supervisor is asked once. If callers started several at the same time, a slow one may take the lock when the
    first leaves, and would wait for agents.

    Raises:
        TryLaterError: A supervisor did not answer in time.
        UntrustedError: The lock's holder is not this user's own supervisor; nothing was sent.
    """
    deadline = time.monotonic() + seconds
    asked: Supervisor | None = None
    while is_alive(team):
        holder = leases.holder(team.supervisor_lock, Supervisor)
        if holder is not None and holder != asked:
            request_exit(team)
            asked = holder
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _send(team: TeamDirectory, request: ControlRequest) -> None:
    line = request.encode()
    deadline = time.monotonic() + START_TIMEOUT
    started = 0.0
    doubted: Supervisor | None = None
    doubted_since = 0.0
    while time.monotonic() < deadline:
        holder = leases.holder(team.supervisor_lock, Supervisor)
        if holder is not None and silent_for(holder) is not None:
            break
        # A process that takes the lock erases what the holder before it wrote only then.
        if holder is not None and holder != doubted and not is_own_socket(Path(holder.socket), os.environ):
            doubted, doubted_since = holder, time.monotonic()
        is_doubtful = holder is not None and holder == doubted and time.monotonic() - doubted_since < _TAKEN_WITHIN
        if not is_doubtful and holder is not None and holder.socket and _deliver(team, holder, line):
            return
        # Asked once: one that ends between two looks would be gone, and another be started that nothing ends.
        if not is_alive(team):
            if request.verb == "leave":
                return
            if time.monotonic() - started > 1:
                _start(team)
                # On a busy machine it takes long until the process runs. So its time begins here, only once.
                deadline = time.monotonic() + START_TIMEOUT if not started else deadline
                started = time.monotonic()
        time.sleep(_POLL)
    name, holder = team.path.name, leases.holder(team.supervisor_lock, Supervisor)
    if holder is None:
        raise TryLaterError(f"the supervisor of team {name} did not start in time; see {team.supervisor_log}")
    raise TryLaterError(
        f"the supervisor of team {name} (process {holder.pid}) does not answer; `crewboard supervisor --restart` "
        "replaces it, and agents keep working"
    )


def show_life(socket_path: Path) -> None:
    """Give a sign of life of this supervisor: set the time of its socket to the monotonic clock.

    The monotonic clock does not jump, and stops while the machine sleeps. The socket is not on the team's disk, which
    may be full or read-only.

    Raises:
        OSError: The socket was removed, so that requests no longer arrive.
    """
    now = time.monotonic_ns()
    os.utime(socket_path, ns=(now, now))


def silent_for(holder: Supervisor) -> float | None:
    """Return for how many seconds a hung supervisor has given no sign of life; None if it is not hung, or unknown."""
    if not holder.socket or holder.boot_id != process.boot_id():
        return None
    try:
        shown = Path(holder.socket).stat().st_mtime_ns
    except (OSError, ValueError):
        return None
    silence = (time.monotonic_ns() - shown) / 1e9
    return silence if silence > HUNG_AFTER else None


def restart(team: TeamDirectory) -> int:
    """Kill the team's supervisor if there is one, start another one, and return its pid. Workers continue.

    Raises:
        BadDataError: The team mirrors one of another program, and has no supervisor.
        UsageError: The team has hosts.
        TryLaterError: The supervisor cannot be identified, does not end, or no new one started in time.
        UntrustedError: The lock's holder is not this user's own supervisor; it was not killed.
    """
    roster.require_own_agents(team)
    if hosts := sorted(team.hosts.names()):
        raise UsageError(
            f"the agents of team {team.path.name} are run by hosts ({', '.join(hosts)}), each started with "
            "`crewboard host` on its machine: end and start it there"
        )
    holder = leases.holder(team.supervisor_lock, Supervisor)
    if holder is None and is_alive(team):
        raise TryLaterError(f"the process that holds {team.supervisor_lock} has not written its process id yet")
    if holder is not None:
        _kill(team, holder)
    wake_supervisor(team)
    successor = leases.holder(team.supervisor_lock, Supervisor)
    if successor is None:
        raise TryLaterError(f"the supervisor of team {team.path.name} did not start in time; see {team.supervisor_log}")
    return successor.pid


def _kill(team: TeamDirectory, holder: Supervisor) -> None:
    """Kill the holder of the team's lock and wait until the lock is free. Do nothing if the holder has ended.

    The lock's text alone is no proof of who holds it, so the process must also be the one that listens at the socket:
    the kernel names it, and completes the connection for a process that is stopped or deadlocked.

    Raises:
        TryLaterError: The process does not listen at its socket, or does not end.
    """
    try:
        with _connect(team, holder) as connection:
            if not _is_holder(team, holder, peer_of(connection)):
                return
    except OSError as error:
        raise TryLaterError(
            f"process {holder.pid}, which {team.supervisor_lock} names, does not listen at {holder.socket} "
            f"({error.strerror or error}), so it was not killed; look at it, and end it yourself"
        ) from error
    process.send_signal(holder.pid, signal.SIGKILL, holder.start_ticks)
    deadline = time.monotonic() + KILL_TIMEOUT
    while leases.holder(team.supervisor_lock, Supervisor) == holder:
        if time.monotonic() > deadline:
            raise TryLaterError(
                f"supervisor {holder.pid} was killed, but has not ended; the kernel may wait for a disk"
            )
        time.sleep(_POLL)


def ensure_running(team: TeamDirectory) -> None:
    """Start a supervisor if the team has none and an agent needs one. Do not wait for it.

    An agent needs one while its worker lives, and until the end of its last run is finalized. Agents of another
    program, and agents of a team with hosts, need none.

    Raises:
        TryLaterError: Agents of the team run on another machine.
        UntrustedError: There is no private folder for the supervisor's socket, or the team is foreign.
    """
    if roster.is_attached(team) or is_alive(team):
        return
    try:
        with team.store.glance():
            is_needed = any(_needs_supervisor(team.agent(name)) for name in team.agent_names())
            is_missing = is_needed and not store_hosts.exist(team) and not _run_elsewhere(team)
    except StorageError:
        # No supervisor can help.
        return
    if is_missing:
        _start(team)


def _run_elsewhere(team: TeamDirectory) -> list[str]:
    """Return the names of agents, of a team in a database without hosts, whose workers live on another machine."""
    if team.store == team.local:
        return []
    holders = ((name, leases.holder(team.agent(name).lease, Lease)) for name in team.agent_names())
    here = ("", process.boot_id())
    return [name for name, holder in holders if holder is not None and holder.boot_id not in here]


def _needs_supervisor(agent: AgentDirectory) -> bool:
    """Return True if a supervisor is needed for this agent; False if not, or if its files cannot be read."""
    try:
        return leases.is_held(agent.lease) or is_unfinalized(agent)
    except StorageError:
        return False


def is_unfinalized(agent: AgentDirectory) -> bool:
    """Return True if a run of the agent began whose end is not finalized.

    False if the agent's files cannot be read: no supervisor could finalize it then.
    """
    try:
        status = agent.status.load_or_none()
        record = agent.exit.load_or_none()
    except StorageError:
        return False
    return agents.is_unfinalized(status, record)


def wake_worker(team: TeamDirectory, name: str) -> None:
    """Make the worker of `name` look at its files now, if it lives on this machine; elsewhere its host wakes it."""
    holder = leases.holder(team.agent(name).lease, Lease)
    if holder is not None and holder.boot_id in ("", process.boot_id()):
        process.send_signal(holder.pid, WAKE_SIGNAL, holder.start_ticks)


class Peer(Struct, frozen=True):
    """The process at the other end of a unix socket, as the kernel reports it (struct ucred)."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the process at the other end: the one that connected, or the one that listens."""
    import socket

    if sys.platform == "darwin":
        # Never run. LOCAL_PEERPID and LOCAL_PEERCRED (struct xucred) of sys/un.h, at the level SOL_LOCAL.
        pid = connection.getsockopt(0, 2)
        _, uid, _, gid = struct.unpack_from("=IIhxxI", connection.getsockopt(0, 1, 76))
        return Peer(pid, uid, gid)
    layout = "3i"
    return Peer(
        *struct.unpack(layout, connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(layout)))
    )


def _connect(team: TeamDirectory, holder: Supervisor) -> socket.socket:
    """Return a connection to the socket that the team's lock names. It is not yet checked which process listens there.

    Raises:
        OSError: No process listens there.
        UntrustedError: The socket is in no folder of this user alone, or the team is foreign.
    """
    team.require_adopted()
    if not is_own_socket(Path(holder.socket), os.environ):
        raise UntrustedError(_foreign_socket(team, holder))
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_SEND_TIMEOUT)
        connection.connect(holder.socket)
    except OSError:
        connection.close()
        raise
    return connection


def _foreign_socket(team: TeamDirectory, holder: Supervisor) -> str:
    folder = Path(holder.socket).parent
    is_named = folder.name == "crewboard" and is_private_folder(folder)
    started_with = f"XDG_RUNTIME_DIR={folder.parent}" if is_named else "another XDG_RUNTIME_DIR"
    return (
        f"the supervisor of {team.path} (pid {holder.pid}) listens at {holder.socket!r}, which is in no folder of "
        f"this user's own, so nothing was sent to it. If you started it in a shell with {started_with}, "
        "set that here too; if you did not make this team, remove its directory"
    )


def unreachable_reason(team: TeamDirectory) -> str | None:
    """Return why this process may send nothing to the team's supervisor; None if it may, or if there is none."""
    holder = leases.holder(team.supervisor_lock, Supervisor)
    if holder is None or not holder.socket or is_own_socket(Path(holder.socket), os.environ) or store_hosts.exist(team):
        return None
    return _foreign_socket(team, holder)


def require_reachable(team: TeamDirectory) -> None:
    """Check that this process may send to the team's supervisor, before a command records what it is to do.

    Raises:
        UntrustedError: The supervisor listens in no folder of this user's own.
    """
    deadline = time.monotonic() + _TAKEN_WITHIN
    # A process that takes the lock erases what the holder before it wrote only then.
    while (why := unreachable_reason(team)) is not None:
        if time.monotonic() > deadline:
            raise UntrustedError(why)
        time.sleep(_POLL)


def _deliver(team: TeamDirectory, holder: Supervisor, line: bytes) -> bool:
    """Send one line to the holder of the team's lock; return False if the holder did not accept it.

    Raises:
        UntrustedError: The holder is not this user's own supervisor, or the team is foreign.
    """
    try:
        with _connect(team, holder) as connection:
            if not _is_holder(team, holder, peer_of(connection)):
                return False
            connection.sendall(line)
            return connection.recv(16).startswith(b"ok")
    except OSError:
        return False


def _is_holder(team: TeamDirectory, holder: Supervisor, peer: Peer) -> bool:
    """Return True if the peer is the process that holds the lock, and False if the holder ended in the meantime.

    Raises:
        UntrustedError: The peer is another user's process, or another process.
    """
    own = peer.uid == os.geteuid()
    if own and peer.pid == holder.pid and process.is_same(holder.pid, holder.boot_id, holder.start_ticks):
        return True
    ended = not process.start_ticks(holder.pid) or leases.holder(team.supervisor_lock, Supervisor) != holder
    if own and ended:
        return False
    raise UntrustedError(
        f"{holder.socket!r} is answered by process {peer.pid} of uid {peer.uid}, not by the one that "
        f"{team.supervisor_lock} names (pid {holder.pid}), so nothing was sent to it. End that process if it is yours; "
        "if you did not make this team, remove its directory"
    )


def _start(team: TeamDirectory) -> None:
    """Start a supervisor, which detaches itself, and exits at once if another one already holds the lock.

    Raises:
        BadDataError: The team mirrors one of another program.
        TryLaterError: Agents of the team run on another machine, whose supervisor would not know of this one.
        UntrustedError: There is no private folder for its socket, or the team is foreign.
    """
    team.require_adopted()
    roster.require_own_agents(team)
    if others := _run_elsewhere(team):
        raise TryLaterError(
            f"agents of the team {team.path.name} run on another machine ({', '.join(others)}): to use several, stop "
            "them, and start `crewboard host` on each machine"
        )
    make_socket_folder(os.environ)
    environment = {key: value for key, value in os.environ.items() if not is_secret(key)}
    with open(team.supervisor_log, "ab", opener=files.open_private) as log:
        _spawn(team, environment, log.fileno())


def _spawn(team: TeamDirectory, environment: Mapping[str, str], log: int) -> None:
    import subprocess

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


def socket_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders in which this user's supervisors may have their sockets, the preferred one first.

    `platformdirs` does not name a next folder if another user took the first one, and gives paths of any length; the
    address of a socket has 108 bytes (unix(7)). So the folders are named here.
    """
    uid = os.geteuid()
    folders = [
        Path(environment.get("XDG_RUNTIME_DIR", "")) / "crewboard",
        Path(f"/tmp/crewboard-{uid}"),  # noqa: S108  another user may have made it: `is_private_folder` looks
        env.state_home(environment) / "run",
    ]
    return [folder for folder in folders if folder.is_absolute() and len(os.fsencode(folder)) <= _LONGEST_FOLDER]


def is_private_folder(folder: Path) -> bool:
    """Return True if `folder` is a real directory that this user owns and no other user can enter."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def make_socket_folder(environment: Mapping[str, str]) -> Path:
    """Return the first of the `socket_folders` that is this user's alone, after creating it if it is missing.

    Raises:
        UntrustedError: None can be had: each is in another user's hands, or cannot be written to.
    """
    tried = socket_folders(environment)
    for folder in tried:
        with contextlib.suppress(OSError):
            if folder.name == "run":
                folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        if is_private_folder(folder) and os.access(folder, os.W_OK):
            return folder
    names = ", ".join(map(str, tried))
    raise UntrustedError(
        f"no folder for the supervisor's socket is this user's alone (tried {names}); set XDG_RUNTIME_DIR to a short "
        "path of a directory that you own, with mode 700"
    )


def is_own_socket(address: Path, environment: Mapping[str, str]) -> bool:
    """Return True if the socket `address` is in one of this user's own folders.

    The login session's folder counts although `$XDG_RUNTIME_DIR` may not name it here: a supervisor may have been
    started in a shell with another environment.
    """
    session = Path(f"/run/user/{os.geteuid()}/crewboard")
    return address.parent in (*socket_folders(environment), session) and is_private_folder(address.parent)
