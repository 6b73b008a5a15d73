"""The parts of every tool: its input, its context with the client of the file-tool server, and its outcome."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from crewboard.records import Request
from crewboard.sandbox.process import Child
from crewboard.sandbox.sandbox import Sandbox
from crewboard.store import CachedFile, TeamDirectory
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState


@dataclass(frozen=True)
class Outcome:
    """The text of a tool result, and whether the model is told that it is an error."""

    content: str
    is_error: bool = False
    created: bool = False
    """The call made a new file."""
    consumed: tuple[str, ...] = ()
    """Ids of mail whose content this result shows, so that it does not enter the conversation again."""
    exit_code: int | None = None
    """The exit code of the command that the call ran."""
    rule: str | None = None
    """The id of the permission rule because of which the call was refused."""


CALL_TIMEOUT = 20.0
"""Seconds after which a file tool is stopped, by ending its server."""

_ATTEMPTS = 3
"""How often to set up a sandbox. It fails if a file that it mounts is removed just then."""

_WRITING = frozenset({"write_file", "edit_file"})

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
        limits = self.sandbox.file_limits(writing=name in _WRITING)
        request = json.dumps({"name": name, "input": arguments, "limits": limits}).encode() + b"\n"
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
        """End the server; the next call starts another one. Return True if it never started."""
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


class Input(BaseModel):
    """Base of all tool inputs."""

    model_config = ConfigDict(extra="forbid")


class NoInput(Input):
    """The input of a tool that takes none."""


In = TypeVar("In", bound=Input)


@dataclass(frozen=True)
class Context:
    """The means of one tool call. `tool_use_id` is the id of the call."""

    run_state: RunState
    interrupts: Interrupts
    file_tools: FileToolClient
    tool_use_id: str
    environment: Mapping[str, str]
    """The worker's own environment, with keys. Agents that a lead hires get it; commands never do."""

    @property
    def name(self) -> str:
        """Return the name of the calling agent."""
        return self.run_state.name

    @property
    def team(self) -> TeamDirectory:
        """Return the agent's team."""
        return self.run_state.team

    @property
    def survivors(self) -> set[int]:
        """Return the processes that the cleanup after a command must spare: the file-tool server."""
        server = self.file_tools.pid
        return {server} if server else set()

    def now(self) -> float:
        """Return the time."""
        return self.run_state.now()

    async def wait_for_decision(self, request: Request, doing: str) -> Request:
        """Wait until a request is closed. Meanwhile the agent approves shutdown requests.

        The request's file decides. The mail about the decision is marked as read by the result that follows.

        Raises:
            Interrupted: The agent must read its mail. The request is cancelled.
            WorkerExit: The run ends. The request stays open until the run is finalized.
        """
        self.run_state.show("waiting", doing, waiting_for=request.id)
        # A file that is damaged while the agent waits decides nothing.
        file = CachedFile(self.team.request(request.id), Request)

        async def closed() -> Request:
            while True:
                current = file.get()
                if current is not None and current.status != "pending":
                    return current
                await self.interrupts.wait()

        return await self.interrupts.run_interruptibly(closed(), waiting=True)


@dataclass(frozen=True)
class Tool(Generic[In]):
    """One tool.

    A tool that `waits` handles interrupts itself, and continues its wait after a crash. A `repeatable` tool may run
    again after a crash, because running it twice has the same effect as once.
    """

    name: str
    description: str
    input: type[In]
    run: Callable[[Context, In], Coroutine[Any, Any, Outcome]]
    waits: bool = False
    repeatable: bool = False
    seconds: Callable[[In], float] | None = None
    """After how many seconds the agent counts as stuck; None for the default."""

    def definition(self) -> dict[str, Any]:
        """Return the tool in the form of the Messages API."""
        return {"name": self.name, "description": self.description, "input_schema": _schema(self.input)}


@cache
def _schema(model: type[Input]) -> dict[str, Any]:
    """Return the JSON schema of an input. Cached: it takes 0.3 ms, for each tool of each model call."""
    schema = model.model_json_schema()
    schema.pop("description", None)
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)
    return schema
