"""Where the supervisor listens: a unix socket in the user's runtime directory, for the user alone."""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crewboard.store.layout import TeamDirectory

_LONGEST_PATH = 100
"""A unix socket's address holds 108 bytes on Linux, 104 on macOS."""

_LARGEST_RING = 4 * 1024 * 1024


def runtime_directory() -> Path:
    """A folder that only this user can enter, short enough for a socket's address."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and len(given) < _LONGEST_PATH // 2 and Path(given).is_dir() and os.access(given, os.W_OK):
        folder = Path(given) / "crewboard"
    else:
        folder = Path(f"/tmp/crewboard-{os.getuid()}")  # noqa: S108  made for this user alone, and checked
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone; remove it")
    return folder


def choose_path(team: TeamDirectory) -> Path:
    """An address that nobody has used: a dead supervisor's stays behind, and is cleared away by its successor."""
    folder = runtime_directory()
    stem = hashlib.sha256(str(team.path).encode()).hexdigest()[:16]
    for old in folder.glob(f"{stem}-*.sock"):
        old.unlink(missing_ok=True)
    return folder / f"{stem}-{secrets.token_hex(4)}.sock"


def _same_user(peer: socket.socket) -> bool:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


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
            if _same_user(peer) and (ring := _read(await reader.readline())) is not None:
                on_ring(ring)
                writer.write(b"ok\n")
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    server = await asyncio.start_unix_server(serve, path=str(path), limit=_LARGEST_RING)
    path.chmod(0o600)
    return server
