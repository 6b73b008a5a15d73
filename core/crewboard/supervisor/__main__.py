"""The supervisor's process: `python -I -m crewboard.supervisor <team directory>`. It exits if the team's lock is held.

With `--host NAME SLOTS [LABEL …]` after the directory, it is a host of the team and stays in the foreground.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from crewboard import env
from crewboard.errors import (
    BadDataError,
    CrewboardError,
    ExitCode,
    LostLeaseError,
    StorageError,
    TryLaterError,
    UntrustedError,
    UsageError,
)
from crewboard.protocol import supervisor_client
from crewboard.protocol.supervisor_client import ControlRequest, peer_of
from crewboard.records.processes import Host, Lease
from crewboard.records.processes import Supervisor as SupervisorInfo
from crewboard.store import files, leases, roster
from crewboard.store import hosts as store_hosts
from crewboard.store.interface import Held
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import host as hosts
from crewboard.supervisor.host import LocalHost, Outage
from crewboard.supervisor.reconciler import Supervisor, note_failure
from crewboard.unix import process

log = logging.getLogger(__name__)


_HOST = "--host"

_POLL = 0.2

_REACH_INTERVAL = 1.0
"""Seconds between two attempts to reach the store, and before a host begins again after it failed."""

_MOST_ROUNDS = 20
"""Most rounds of killing the processes that a host started, because new ones may be started meanwhile."""

_MAX_REQUEST = 4 * 1024 * 1024
"""Most bytes of a request."""


def choose_socket(team: TeamDirectory) -> Path:
    """Return the path of a new socket, and remove the sockets of this team's earlier supervisors, which are dead.

    Raises:
        UntrustedError: No folder for the socket is this user's alone.
    """
    folder = supervisor_client.make_socket_folder(os.environ)
    stem = hashlib.sha256(str(team.path).encode()).hexdigest()[:16]
    for old in folder.glob(f"{stem}-*.sock"):
        old.unlink(missing_ok=True)
    return folder / f"{stem}-{secrets.token_hex(4)}.sock"


async def listen(path: Path, on_request: Callable[[ControlRequest], None]) -> asyncio.Server:
    """Listen at a socket: call `on_request` for each request of this user, and answer it with `ok`; return the server.

    A request whose caller has gone is dropped: the caller reported it as refused, so it must not be carried out later.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # ValueError: the line is too long, or no request. The caller gets no `ok` and tries again.
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            if peer_of(writer.get_extra_info("socket")).uid == os.geteuid():
                request = ControlRequest.decode(await reader.readline())
                # It reports without being asked that the other end is closed.
                poll = select.poll()
                poll.register(writer.get_extra_info("socket"), 0)
                if not poll.poll(0):
                    on_request(request)
                    writer.write(b"ok\n")
                    await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    server = await asyncio.start_unix_server(serve, path=str(path), limit=_MAX_REQUEST)
    path.chmod(0o600)
    supervisor_client.show_life(path)
    return server


async def supervise(team: TeamDirectory, lock: Held, host: LocalHost | None = None, held: Held | None = None) -> None:
    """Listen for requests, write the socket's path into the lock, and reconcile until there is nothing left to do.

    `held` is the lease of the `host`, if this process is one.
    """
    path = choose_socket(team)
    me = SupervisorInfo(
        pid=os.getpid(),
        socket=str(path),
        boot_id=process.boot_id(),
        start_ticks=process.start_ticks(os.getpid()),
    )

    def stay_reachable() -> None:
        supervisor_client.show_life(path)
        if leases.holder(team.supervisor_lock, SupervisorInfo) != me:
            leases.sign(lock, me)

    supervisor = Supervisor(team, lock, stay_reachable, host)
    if host is not None and held is not None:
        leases.fence(held, None, b"", lambda: _begin_again("it lost its lease", host.outage, host))
    # Hosts find what they start in the store.
    on_request = supervisor.on_request if host is None else lambda _: supervisor.wake()
    server = await listen(path, on_request)
    stay_reachable()
    try:
        if host is not None:
            host.tell()
            labels = ", ".join(host.record.labels) or "none"
            log.info(
                "host %s of team %s is up: %d slots, labels: %s", host.name, team.path.name, host.record.slots, labels
            )
            host.begin()
        await supervisor.run()
    finally:
        server.close()
        # The lock of a lost directory may name the model server of its successor. Workers that a supervisor leaves
        # behind need theirs.
        if leases.has(lock) and not supervisor.workers:
            supervisor.model.end()
        path.unlink(missing_ok=True)
        # asyncio closes the descriptor before it takes its handlers away. The prefork server ends just then, and Python
        # would complain that it cannot write the signal of that.
        signal.set_wakeup_fd(-1)


def main() -> int:
    """Run one team's supervisor, or one host of a team; return the exit code."""
    # Detach a supervisor, so that the process that started it need not reap it.
    if _HOST not in sys.argv and os.fork():
        os._exit(0)
    return begin(sys.argv[1:])


def begin(arguments: Sequence[str]) -> int:
    """Be a supervisor or a host in this process, as the arguments say; return the exit code."""
    team = TeamDirectory(Path(arguments[0]))
    os.umask(0o077)
    # Start requests, and the environment of a host, contain the API key.
    process.keep_memory_private()
    if arguments[1:2] != [_HOST]:
        return run(team)
    name, slots, *labels = arguments[2:]
    return run_host(team, hosts.describe(name, int(slots), labels, team.root))


def run(team: TeamDirectory) -> int:
    """Take the team's lock and supervise it in this process; return the exit code, 0 at once if the lock is held."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        team.require_adopted()
        lock = _take_lock(team)
        if lock is None:
            return 0
        asyncio.run(supervise(team, lock))
    except (BadDataError, UntrustedError) as error:
        log.error("%s", error)  # noqa: TRY400  an expected error: the message is enough
        return error.exit_code
    except Exception as error:
        note_failure(team, error)
        raise
    return 0


def _take_lock(team: TeamDirectory) -> Held | None:
    """Take the team's lock, without which this process changes no file; return None if another process holds it."""
    roster.require_own_agents(team)
    lock = leases.take(team.supervisor_lock)
    if lock is not None:
        files.require_before_writing(lambda: leases.require(lock))
        process.adopt_orphans()
        files.remove_stale_files(team.path)
    return lock


def run_host(team: TeamDirectory, record: Host) -> int:
    """Be a host of a team in this process until it is asked to end; return the exit code."""
    os.environ[env.HOST] = record.name
    # Set if this process began again during an outage.
    away_since = os.environ.pop(env.AWAY_SINCE, "")
    outage = Outage(float(away_since), is_on=True) if away_since else Outage()
    # The first process of a container has no default for this signal. Once it is up, the host drains instead.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if not team.path.is_dir():
        sys.stderr.write(f"the folder {team.path} was removed; the host ends\n")
        return ExitCode.USAGE
    try:
        team.require_adopted()
        kept = open(team.supervisor_log, "a", encoding="utf-8", opener=files.open_private)  # noqa: SIM115  for good
        handlers: list[logging.Handler] = [logging.StreamHandler(), logging.StreamHandler(kept)]
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, handlers=handlers)
        away = _wait_for_store(team, outage)
        if not team.config.exists():
            raise UsageError(f"the team {team.path.name} was removed from its database; the host ends")
        lock = _take_lock(team)
        if lock is None:
            holder = leases.holder(team.supervisor_lock, SupervisorInfo)
            who = f"process {holder.pid}" if holder is not None else "another process"
            raise TryLaterError(
                f"{who} is the supervisor or a host of {team.path} already; use another --root, or stop it"
            )
        store_hosts.make(team, record.name)
        held = _take_name(team, record)
        me = Lease(pid=record.pid, boot_id=record.boot_id, start_ticks=record.start_ticks, host=record.name)
        leases.sign(held, me)
        before = store_hosts.load(team, record.name)
        host = LocalHost(team, record, before, os.environ, away=away, outage=outage)
        asyncio.run(supervise(team, lock, host, held))
        leases.release(held)
    except (StorageError, LostLeaseError) as error:
        _begin_again(str(error), outage)
    except CrewboardError as error:
        log.error("%s", error)  # noqa: TRY400  an expected error: the message is enough
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        note_failure(team, error)
        raise
    log.info("host %s of team %s has ended", record.name, team.path.name)
    return 0


def _wait_for_store(team: TeamDirectory, outage: Outage) -> float:
    """Wait until the store can be reached; return for how many seconds it was away, 0 if it was not.

    It may be away for long: a host that lost it begins again, and waits here.
    """
    said = ""
    while True:
        try:
            team.store.now()
        except StorageError as error:
            if error.away:
                outage.begin(error)
            elif str(error) != said:
                log.warning("waits for the store: %s", error)
            said = str(error)
            time.sleep(_REACH_INTERVAL)
        else:
            away = outage.seconds if said or outage.is_on else 0.0
            outage.end()
            return away


def _take_name(team: TeamDirectory, record: Host) -> Held:
    """Take the lease of the host's name, after waiting until the lease of an earlier host that was killed is over.

    Raises:
        UsageError: A living host has this name.
    """
    place = store_hosts.lease(team, record.name)
    first = None
    while (held := leases.take(place)) is None:
        holder, known = leases.holder(place, Lease), store_hosts.load(team, record.name)
        is_here = holder is not None and holder.boot_id == record.boot_id and known is not None
        if holder is not None and known is not None and is_here and known.machine == record.machine:
            # After it lost its lease, this process began again.
            is_me = (holder.pid, holder.start_ticks) == (record.pid, record.start_ticks)
            if is_me or not process.is_same(holder.pid, holder.boot_id, holder.start_ticks):
                leases.free(place, holder.pid, holder.start_ticks)
                continue
            first = 0.0
        until = place.changed_at()
        if first is None:
            log.info("waits until the lease of an earlier host %s is over", record.name)
            first = until
        elif until > first:
            where = f" on {known.machine}, process {known.pid}" if known is not None else ""
            raise UsageError(f"a host {record.name} is up{where}: choose another --name, or stop that one")
        time.sleep(_POLL)
    return held


def _begin_again(why: str, outage: Outage, host: LocalHost | None = None) -> NoReturn:
    """Kill the workers of a host, and start the host again as a fresh process. May be called in any thread.

    A host that was asked to end, ends.
    """
    outage.leave()
    ends = host is not None and host.is_ending
    log.error("%s; kills its workers, and %s", why, "ends" if ends else "begins again")
    if host is not None:
        host.supervisor.lose_workers()
    for _ in range(_MOST_ROUNDS):
        living = [pid for pid in process.descendants(os.getpid()) if not process.is_ending(pid)]
        if not living:
            break
        for pid in living:
            process.send_signal(pid, signal.SIGKILL)
    if ends:
        os._exit(ExitCode.IO)
    time.sleep(_REACH_INTERVAL)
    if outage.is_on:
        os.environ[env.AWAY_SINCE] = str(outage.answered_at)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(os.environ))


if __name__ == "__main__":
    sys.exit(main())
