"""The worker's end of `hands`: starts it, asks it, and ends it when it hangs."""

import asyncio
import contextlib
import json
import socket
import sys
from typing import Any

from crewboard.sandbox.process import Child
from crewboard.sandbox.sandbox import Sandbox
from crewboard.worker.tools.outcome import Outcome

CALL_WITHIN = 20.0
"""Seconds that one file tool may take before its helper is ended."""

_TRIES = 3
"""Times that a sandbox is set up: what it is made of may go away meanwhile."""

_LONGEST_ANSWER = 16 * 1024 * 1024
"""Bytes; a whole file of the largest size, with every character escaped, is shorter."""


class FileToolClient:
    """One `hands` process behind an agent's wall, started when first needed."""

    def __init__(self, box: Sandbox, *, within: float = CALL_WITHIN) -> None:
        self.box = box
        self._within = within
        self._child: Child | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def pid(self) -> int | None:
        """The helper's process, if one lives."""
        return self._child.pid if self._child and self._child.alive else None

    async def ask(self, name: str, arguments: dict[str, Any]) -> Outcome:
        """Have a file tool run."""
        request = json.dumps({"name": name, "input": arguments}).encode() + b"\n"
        for _ in range(_TRIES):
            outcome = await self._try(name, request)
            if outcome is not None:
                return outcome
        return Outcome(f"{name} failed: its sandbox could not be set up", is_error=True)

    async def _try(self, name: str, request: bytes) -> Outcome | None:
        """What came of a request; None if the helper never ran."""
        try:
            async with asyncio.timeout(self._within):
                reader, writer = await self._living()
                writer.write(request)
                await writer.drain()
                line = await reader.readline()
        except TimeoutError:
            await self.end()
            return Outcome(f"{name} took longer than {self._within:g} s and was ended", is_error=True)
        except asyncio.CancelledError:
            await self.end()
            raise
        except (OSError, ValueError) as error:
            return None if await self.end() else Outcome(f"{name} failed: {error}", is_error=True)
        if not line:
            return None if await self.end() else Outcome(f"{name} failed: its helper process ended", is_error=True)
        reply = json.loads(line)
        return Outcome(reply["content"], is_error=reply["is_error"], created=reply.get("created", False))

    async def _living(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._child is None or not self._child.alive:
            await self.end()
            box = self.box
            ours, theirs = socket.socketpair()
            with theirs:
                arguments = ["-I", "-m", "crewboard.worker.tools.file_server", str(box.policy.root), str(box.results)]
                try:
                    self._child = box.start_file_server([sys.executable, *arguments], theirs.fileno())
                    self._streams = await asyncio.open_connection(sock=ours, limit=_LONGEST_ANSWER)
                except BaseException:
                    ours.close()
                    raise
        return self._streams

    async def end(self) -> bool:
        """End the helper; the next call starts another. Whether it never came to run."""
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
