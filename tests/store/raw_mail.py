"""Mailbox lines as other programs write them."""

import json
import os
from pathlib import Path
from typing import Any

from crewboard.store.file_store import FileStore
from crewboard.store.interface import Key


def line(ident: str, content: str = "hello", *, to: str = "scout", **fields: Any) -> bytes:
    """Return one message as a line, without its newline."""
    message = {
        "v": 1, "id": ident, "ts": 1.5, "from": "ci", "to": to, "type": "message", "content": content, "metadata": {},
    }  # fmt: skip
    return json.dumps({**message, **fields}).encode()


_write = os.write
"""The `os.write` of another program, which no test replaces."""


def append(to: Path | Key, data: bytes) -> None:
    """Append as a program does that does not know the locks: one write with O_APPEND, or a call for each line."""
    if isinstance(to, Key) and not isinstance(to.store, FileStore):
        assert data.endswith(b"\n")
        for each in data.split(b"\n")[:-1]:
            to.store.append(to.name, each + b"\n")
        return
    fd = os.open(to if isinstance(to, Path) else to.on_disk, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        assert _write(fd, data) == len(data)
    finally:
        os.close(fd)
