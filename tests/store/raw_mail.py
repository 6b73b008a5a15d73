"""Mail for tests: lines as other programs write them."""

import json
import os
from pathlib import Path
from typing import Any


def line(ident: str, content: str = "hello", *, to: str = "scout", **fields: Any) -> bytes:
    """One message as a line, without its newline."""
    message = {
        "v": 1, "id": ident, "ts": 1.5, "from": "ci", "to": to, "type": "message", "content": content, "metadata": {},
    }  # fmt: skip
    return json.dumps({**message, **fields}).encode()


_write = os.write
"""Another program's, which no test of ours makes fail."""


def append(path: Path, data: bytes) -> None:
    """What a program does that knows nothing of our locks: one write with O_APPEND."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        assert _write(fd, data) == len(data)
    finally:
        os.close(fd)
