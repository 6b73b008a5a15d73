"""The offline model as a process, one for each team: python -I -m crewboard.offline TEAM_DIRECTORY.

It holds the team's `model.lock`, which contains its pid and address, and ends by itself when neither a supervisor nor a
worker of the team has run for a while.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from crewboard import env
from crewboard.errors import CrewboardError, UsageError
from crewboard.offline import http
from crewboard.offline.service import Faults, Service
from crewboard.records.processes import ModelServerInfo
from crewboard.store import leases
from crewboard.store.interface import Held
from crewboard.store.layout import TeamDirectory


def main(argv: list[str] | None = None) -> int:
    """Serve one team until it needs no server, or until SIGTERM or SIGINT; return the exit code.

    Return 0 at once if another process serves the team.
    """
    parser = argparse.ArgumentParser(prog="python -m crewboard.offline", description="The offline model of one team.")
    parser.add_argument("team", type=Path, help="the team's directory")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds to stay without supervisor and workers")
    parser.add_argument("--look", type=float, default=5.0, help="seconds from one look to the next")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; a free one if it is 0 or taken")
    args = parser.parse_args(argv)
    team = TeamDirectory(args.team.resolve())
    try:
        team.require_adopted()
        lock = leases.take(team.model_lock)
        if lock is None:
            return 0
        pace, faults = os.environ.get(env.OFFLINE_PACE) or "1", os.environ.get(env.OFFLINE_FAULTS)
        try:
            service = Service(max(0.0, float(pace)), Faults(file=Path(faults).resolve() if faults else None))
        except ValueError as error:
            raise UsageError(f"{env.OFFLINE_PACE} is a number, not {pace!r}") from error
        os.chdir("/")
        asyncio.run(_serve(service, team, lock, args.grace, args.look, args.port))
    except CrewboardError as error:
        sys.stderr.write(f"offline model: {error}\n")
        return error.exit_code
    return 0


async def _serve(service: Service, team: TeamDirectory, lock: Held, grace: float, look: float, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # The terminal of the process that started it may close.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    async with http.listening(service.handle, port) as url:
        info = ModelServerInfo(pid=os.getpid(), url=url)
        leases.sign(lock, info)
        unneeded = asyncio.ensure_future(_until_unneeded(team, lock, info, grace, look))
        await asyncio.wait({unneeded, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)


async def _until_unneeded(team: TeamDirectory, lock: Held, info: ModelServerInfo, grace: float, look: float) -> None:
    """Wait until the server was not needed for `grace` seconds, checked every `look` seconds, or has lost its lock."""
    loop = asyncio.get_running_loop()
    while True:
        needed_at = loop.time()
        while loop.time() - needed_at < grace:
            if not leases.has(lock):
                return
            if is_needed(team):
                needed_at = loop.time()
            await asyncio.sleep(look)
        # A process that has read the address by now holds a lock that is seen here; a later one finds none and waits.
        leases.unsign(lock)
        if not is_needed(team):
            return
        leases.sign(lock, info)


def is_needed(team: TeamDirectory) -> bool:
    """Return True if a supervisor or a worker of the team is running."""
    return leases.is_held(team.supervisor_lock) or any(
        leases.is_held(team.agent(name).lease) for name in team.agent_names()
    )


if __name__ == "__main__":
    sys.exit(main())
