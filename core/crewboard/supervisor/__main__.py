"""`python -I -m crewboard.supervisor <team directory>`: takes the team's supervisor lock, or leaves at once."""

import asyncio
import logging
import os
import sys
from pathlib import Path

from crewboard.errors import UntrustedError
from crewboard.linux import process
from crewboard.records import Supervisor as SupervisorInfo
from crewboard.store import files, leases
from crewboard.store.layout import TeamDirectory
from crewboard.supervisor import offline_model
from crewboard.supervisor import server as door
from crewboard.supervisor.prefork_launcher import PreforkLauncher
from crewboard.supervisor.reconciler import Supervisor

log = logging.getLogger(__name__)


async def supervise(team: TeamDirectory, lock: int) -> None:
    """Listen, say where, and work until there is nothing left to do."""
    path = door.choose_path(team)
    me = SupervisorInfo(
        pid=os.getpid(),
        socket=str(path),
        boot_id=process.boot_id(),
        start_ticks=process.start_ticks(os.getpid()),
    )

    def introduce() -> None:
        if leases.holder(team.supervisor_lock, SupervisorInfo) != me:
            leases.sign(lock, me)

    supervisor = Supervisor(team, PreforkLauncher(team), introduce)
    server = await door.listen(path, supervisor.on_ring)
    introduce()
    try:
        await supervisor.run()
    finally:
        server.close()
        offline_model.end(team)
        path.unlink(missing_ok=True)  # nobody else has this address


def main() -> int:
    """Run one team's supervisor."""
    if os.fork():
        os._exit(0)  # whoever started us need not reap us
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    os.umask(0o077)
    team = TeamDirectory(Path(sys.argv[1]))
    try:
        team.require_own()
        lock = leases.take(team.supervisor_lock)
        if lock is None:
            return 0
        process.adopt_orphans()
        files.remove_stale_files(team.path)
        asyncio.run(supervise(team, lock))
    except UntrustedError as error:
        log.error("%s", error)  # noqa: TRY400  the sentence says it all
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
