"""The worker's client of the file-tool server: starts it, sends it requests, and ends it when it hangs."""

import asyncio
import contextlib
import json
import socket
import sys
from typing import Any

from crewboard.sandbox.process import Child
from crewboard.sandbox.sandbox import Sandbox
from crewboard.worker.tools.outcome import Outcome

CALL_TIMEOUT = 20.0
"""Seconds after which a file tool is stopped, by ending its server."""

_ATTEMPTS = 3
"""How often to set up a sandbox. It fails if a file that it mounts is removed just then."""

_MAX_RESPONSE = 16 * 1024 * 1024
"""Bytes. More than a file of the largest size with every character escaped."""


class FileToolClient:
    """One file-tool server in an agent's sandbox, started when first needed."""

    def __init__(self, sandbox: Sandbox, *, timeout: float = CALL_TIMEOUT) -> None:
        self.sandbox = sandbox
        self._timeout = timeout
        self._child: Child | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def pid(self) -> int | None:
        """Return the pid of the server if it runs."""
        return self._child.pid if self._child and self._child.alive else None

    async def ask(self, name: str, arguments: dict[str, Any]) -> Outcome:
        """Run a file tool."""
        request = json.dumps({"name": name, "input": arguments}).encode() + b"\n"
        for _ in range(_ATTEMPTS):
            outcome = await self._try(name, request)
            if outcome is not None:
                return outcome
        return Outcome(f"{name} failed: its sandbox could not be set up", is_error=True)

    async def _try(self, name: str, request: bytes) -> Outcome | None:
        """Return the outcome of a request; None if the server could not start."""
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await self._connect()
                writer.write(request)
                await writer.drain()
                line = await reader.readline()
        except TimeoutError:
            await self.end()
            return Outcome(f"{name} took longer than {self._timeout:g} s and was stopped", is_error=True)
        except asyncio.CancelledError:
            await self.end()
            raise
        except (OSError, ValueError) as error:
            return None if await self.end() else Outcome(f"{name} failed: {error}", is_error=True)
        if not line:
            return None if await self.end() else Outcome(f"{name} failed: the file-tool server ended", is_error=True)
        reply = json.loads(line)
        return Outcome(reply["content"], is_error=reply["is_error"], created=reply.get("created", False))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._child is None or not self._child.alive:
            await self.end()
            sandbox = self.sandbox
            ours, theirs = socket.socketpair()
            with theirs:
                arguments = [
                    "-I",
                    "-m",
                    "crewboard.worker.tools.file_server",
                    str(sandbox.policy.root),
                    str(sandbox.results),
                ]
                try:
                    self._child = sandbox.start_file_server([sys.executable, *arguments], theirs.fileno())
                    self._streams = await asyncio.open_connection(sock=ours, limit=_MAX_RESPONSE)
                except BaseException:
                    ours.close()
                    raise
        return self._streams

    async def end(self) -> bool:
        """End the server; the next call starts another one. Return True if it could not start at all."""
        child, self._child = self._child, None
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()
        if child is None:
            return False
        await child.end()
        return child.never_ran
