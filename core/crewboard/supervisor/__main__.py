"""`python -I -m crewboard.supervisor <team directory>`: serve the team, or exit at once if its lock is held."""

import asyncio
import logging
import os
import sys
from pathlib import Path

from crewboard import linux, protocol, store
from crewboard.records import BadDataError, UntrustedError
from crewboard.records import Supervisor as SupervisorInfo
from crewboard.store import TeamDirectory
from crewboard.supervisor import server as control_server
from crewboard.supervisor.offline_model import OfflineModel
from crewboard.supervisor.prefork_launcher import PreforkLauncher
from crewboard.supervisor.reconciler import Supervisor, note_failure

log = logging.getLogger(__name__)


async def supervise(team: TeamDirectory, lock: store.Held) -> None:
    """Listen, write the address into the lock, and reconcile until there is nothing left to do."""
    path = control_server.choose_path(team)
    me = SupervisorInfo(
        pid=os.getpid(),
        socket=str(path),
        boot_id=linux.process.boot_id(),
        start_ticks=linux.process.start_ticks(os.getpid()),
    )

    def stay_reachable() -> None:
        protocol.supervisor_client.show_life(path)
        if store.leases.holder(team.supervisor_lock, SupervisorInfo) != me:
            store.leases.sign(lock, me)

    launcher = PreforkLauncher(team)
    model = OfflineModel(team, launcher)
    supervisor = Supervisor(team, launcher, model, lock, stay_reachable)
    server = await control_server.listen(path, supervisor.on_request)
    stay_reachable()
    try:
        await supervisor.run()
    finally:
        server.close()
        # The lock of a lost directory may name the model server of its successor. Workers that a supervisor leaves
        # behind need theirs.
        if store.leases.has(lock) and not supervisor.has_workers:
            model.end()
        path.unlink(missing_ok=True)


def main() -> int:
    """Run one team's supervisor."""
    # Detach, so that the process that started this one need not reap it.
    if os.fork():
        os._exit(0)
    return run(TeamDirectory(Path(sys.argv[1])))


def run(team: TeamDirectory) -> int:
    """Take the team's lock and supervise it in this process. Return the exit code, 0 at once if the lock is held."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    os.umask(0o077)
    # Start requests carry the API key.
    linux.process.keep_memory_private()
    try:
        team.require_adopted()
        store.roster.require_own_agents(team)
        lock = store.leases.take(team.supervisor_lock)
        if lock is None:
            return 0
        store.files.require_before_writing(lambda: store.leases.require(lock))
        linux.process.adopt_orphans()
        store.files.remove_stale_files(team.path)
        asyncio.run(supervise(team, lock))
    except (BadDataError, UntrustedError) as error:
        log.error("%s", error)  # noqa: TRY400  an expected error: the message is enough
        return error.exit_code
    except Exception as error:
        note_failure(team, error)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
