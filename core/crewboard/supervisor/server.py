"""The supervisor's control server: a unix socket in the user's runtime directory."""

import asyncio
import contextlib
import hashlib
import os
import secrets
import select
from collections.abc import Callable
from pathlib import Path

from crewboard.protocol import supervisor_client
from crewboard.protocol.supervisor_client import ControlRequest, peer_of
from crewboard.store.layout import TeamDirectory

_MAX_REQUEST = 4 * 1024 * 1024


def choose_path(team: TeamDirectory) -> Path:
    """Return a new socket path. Remove the sockets of this team's earlier supervisors, which are dead."""
    folder = supervisor_client.make_socket_folder(os.environ)
    stem = hashlib.sha256(str(team.path).encode()).hexdigest()[:16]
    for old in folder.glob(f"{stem}-*.sock"):
        old.unlink(missing_ok=True)
    return folder / f"{stem}-{secrets.token_hex(4)}.sock"


async def listen(path: Path, on_request: Callable[[ControlRequest], None]) -> asyncio.Server:
    """Call `on_request` for each request of this user, and answer it with `ok`.

    Drop a request whose caller has gone: the caller reported it as refused, so it must not be carried out later.
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
