"""Where the supervisor listens: a unix socket in the user's runtime directory, for the user alone."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crewboard.protocol import runtime_directory
from crewboard.protocol.supervisor_client import peer_of
from crewboard.store.layout import TeamDirectory

_LARGEST_RING = 4 * 1024 * 1024


def choose_path(team: TeamDirectory) -> Path:
    """An address that nobody has used: a dead supervisor's stays behind, and is cleared away by its successor."""
    folder = runtime_directory.make(os.environ)
    stem = hashlib.sha256(str(team.path).encode()).hexdigest()[:16]
    for old in folder.glob(f"{stem}-*.sock"):
        old.unlink(missing_ok=True)
    return folder / f"{stem}-{secrets.token_hex(4)}.sock"


def _read(line: bytes) -> dict[str, Any] | None:
    """What somebody rang; None for what is no ring."""
    try:
        ring = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(ring, dict) or not isinstance(ring.get("environment") or {}, dict):
        return None
    return ring


async def listen(path: Path, on_ring: Callable[[dict[str, Any]], None]) -> asyncio.Server:
    """Call `on_ring` for each ring: one JSON object a line, answered `ok` once it was taken."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            peer = writer.get_extra_info("socket")
            if peer_of(peer).uid == os.geteuid() and (ring := _read(await reader.readline())) is not None:
                on_ring(ring)
                writer.write(b"ok\n")
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    server = await asyncio.start_unix_server(serve, path=str(path), limit=_LARGEST_RING)
    path.chmod(0o600)
    return server
