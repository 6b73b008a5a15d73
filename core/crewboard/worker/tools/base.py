"""What every tool consists of and uses: `Tool`, `Input`, `Context` with the file-tool client, and `Outcome`."""

import asyncio
import contextlib
import json
import socket
import sys
import traceback
from base64 import b64decode
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from crewboard.agent_types import WRITE_TOOLS
from crewboard.errors import UsageError
from crewboard.sandbox.process import Child
from crewboard.sandbox.sandbox import Sandbox
from crewboard.sandbox.shell import BackgroundCommand
from crewboard.store.layout import TeamDirectory
from crewboard.worker.interrupts import Interrupts
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.schemas import simplify


@dataclass(frozen=True)
class Outcome:
    """The result of a tool call: the text for the model, and in `is_error` True if the call counts as failed."""

    content: str
    is_error: bool = False
    created: bool = False
    """True if the call made a new file."""
    consumed: tuple[str, ...] = ()
    """The ids of mail whose content this result shows, so that it does not enter the conversation again."""
    exit_code: int | None = None
    """The exit code of the command that the call ran; None if it ran none or it has no exit code."""
    rule: str | None = None
    """The id of the permission rule because of which the call was refused; None if there is none."""
    media: tuple[tuple[str, str, bytes], ...] = ()
    """The images and documents that the call read, each with name, MIME type and content."""
    tools: tuple[str, ...] = ()
    """The names of the tools loaded on demand that the call found, and that the model is shown from now on."""
    unchanged: bool = False
    """True if the change of a file that was kept for the call certainly was not made."""


INPUT_ERRORS = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)
"""The errors that the code of a tool may raise on an input that it does not expect."""


def failed_on_input(tool: str, error: Exception) -> Outcome:
    """Return the outcome of a call that ended with one of `INPUT_ERRORS`, and write its traceback to the log."""
    traceback.print_exception(error)
    return Outcome(f"{tool} failed on its input: {error!r}"[:1000], is_error=True)


@dataclass(frozen=True)
class PlannedChange:
    """The change that a file tool is about to make.

    `before` is the present content in base64; None if there is no file, or its content cannot be kept. See `FileKept`
    for the rest.
    """

    path: str
    before: str | None
    after: str
    lost: str
    folders: int


DEFAULT_TIMEOUT = 60.0
"""Seconds that a call may take before the agent counts as stuck, for a tool that names no time of its own."""

CALL_TIMEOUT = 20.0
"""Seconds after which a call of a file tool is stopped, by ending its server."""

MAX_SERVERS = 4
"""The most file-tool servers of one agent that run at once."""

_BUSY_WAIT = 0.05
"""Seconds that a call waits for a server that is busy. Most calls take less than it takes to start another one."""

_ATTEMPTS = 3
"""Attempts to set up a sandbox, which fails if a file that it mounts is removed at the same time."""

_FILE_SERVER = f"""\
import sys
sys.path.append({str(Path(__file__).resolve().parents[3])!r})
from crewboard.worker.tools.file_server import main
main()
"""

_MAX_RESPONSE = 16 * 1024 * 1024
"""The most bytes of a response: more than a file of the largest size has with every character escaped."""


class _Server:
    """One file-tool server in an agent's sandbox, started when first needed. It answers one request at a time."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._child: Child | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def pid(self) -> int | None:
        """Return the pid of the server; None if it does not run."""
        return self._child.pid if self._child and self._child.alive else None

    async def request(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """Return the server's reply to a request, or an error in the same form if it fails.

        If it takes longer than `limit` seconds, or is cancelled, the server is ended.
        """
        name, line = request["name"], json.dumps(request).encode() + b"\n"
        for _ in range(_ATTEMPTS):
            try:
                async with asyncio.timeout(limit):
                    reader, writer = await self._connect()
                    writer.write(line)
                    await writer.drain()
                    answer = await reader.readline()
            except TimeoutError:
                await self.end()
                return _error(f"{name} took longer than {limit:g} s and was stopped")
            except asyncio.CancelledError:
                await self.end()
                raise
            except (OSError, ValueError) as error:
                why = str(error)
            else:
                if answer:
                    reply: dict[str, Any] = json.loads(answer)
                    return reply
                why = "the file-tool server ended"
            if not await self.end():
                return _error(f"{name} failed: {why}")
        return _error(f"{name} failed: its sandbox could not be set up")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._child is None or not self._child.alive:
            await self.end()
            sandbox = self.sandbox
            ours, theirs = socket.socketpair()
            with theirs:
                # Without `-m`, which loads `runpy`, and without `site`: the server needs no installed package.
                python = [sys.executable, "-I", "-S", "-c", _FILE_SERVER]
                given = [str(sandbox.policy.root), str(sandbox.results), sandbox.policy.folder]
                try:
                    self._child = sandbox.start_file_server([*python, *given], theirs.fileno())
                    self._streams = await asyncio.open_connection(sock=ours, limit=_MAX_RESPONSE)
                except BaseException:
                    ours.close()
                    raise
        return self._streams

    async def end(self) -> bool:
        """End the server; the next request starts another one. Return True if its sandbox could not be set up."""
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


class FileToolClient:
    """The client of an agent's file-tool servers, which also holds the agent's background commands.

    The first server is started when it is needed. More are started for calls that run at the same time and take long.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._timeout = CALL_TIMEOUT
        self.background: dict[str, BackgroundCommand] = {}
        """The background commands of this run by handle, with those that have ended."""
        self._first = _Server(sandbox)
        self._more: set[_Server] = set()
        self._free: asyncio.Queue[_Server] = asyncio.Queue()
        self._free.put_nowait(self._first)
        self._waiting = 0

    @property
    def pid(self) -> int | None:
        """Return the pid of the first server, which is kept; None if it does not run."""
        return self._first.pid

    async def ask(
        self, name: str, arguments: dict[str, Any], keep: Callable[[PlannedChange], None] | None = None
    ) -> Outcome:
        """Run a file tool and return its outcome.

        If `keep` is given, the tool changes a file, and `keep` is called with the change before it is made.
        """
        # If no server gets free soon, start another one, which is ended once no call waits for a server.
        self._waiting += 1
        try:
            async with asyncio.timeout(_BUSY_WAIT):
                server = await self._free.get()
        except TimeoutError:
            if len(self._more) + 1 >= MAX_SERVERS:
                server = await self._free.get()
            else:
                server = _Server(self.sandbox)
                self._more.add(server)
        finally:
            self._waiting -= 1
        try:
            limits = self.sandbox.file_limits(writing=name in WRITE_TOOLS)
            request = {"name": name, "limits": limits, "input": arguments}
            if keep is not None:
                reply = await server.request({**request, "plan": True}, self._timeout)
                if reply["is_error"]:
                    return _outcome(reply)
                keep(PlannedChange(**reply["planned"]))
                request = {"name": "make", "limits": limits, "input": {}}
            return _outcome(await server.request(request, self._timeout))
        finally:
            if server is self._first or self._waiting:
                self._free.put_nowait(server)
            else:
                self._more.discard(server)
                await server.end()

    async def end_commands_with_lent_network(self) -> None:
        """End the background commands that have the network only by the terms of an approval that is over."""
        if not self.sandbox.policy.network:
            lent = (each for each in self.background.values() if each.has_network and each.result is None)
            await asyncio.gather(*(command.end("the approval that gave it the network is over") for command in lent))

    def ended_commands(self) -> dict[str, str]:
        """Return notices for the model about background commands that ended and of which it was not told, by handle."""
        told: dict[str, str] = {}
        for handle, command in self.background.items():
            result = command.result
            if result is not None and not command.end_was_told:
                how = (result.ending or result.content).partition("\n")[0]
                # Without the command: the API fetches addresses that stand in the user's part of a request.
                told[handle] = f"{handle} has ended {how}. bash_output shows what it printed."
        return told

    async def close(self) -> None:
        """End the servers and all background commands."""
        await asyncio.gather(self.end(), *(command.end() for command in self.background.values()))

    async def end(self) -> None:
        """End the servers; the next call of a file tool starts one again. Background commands go on."""
        for server in (*self._more, self._first):
            await server.end()


def _error(text: str) -> dict[str, Any]:
    return {"content": text, "is_error": True}


def _outcome(reply: dict[str, Any]) -> Outcome:
    found = reply.get("media")
    media = ((found["name"], found["type"], b64decode(found["data"])),) if found else ()
    return Outcome(
        reply["content"], is_error=reply["is_error"], created=reply.get("created", False), media=media,
        unchanged=reply.get("unchanged", False),
    )  # fmt: skip


class Input(BaseModel):
    """The base class of all tool inputs."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _mixes_up_no_flag(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a flag for a number and a word such as `yes` for a flag, which a model type takes by itself."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        kinds = {wanted, *get_args(wanted)}
        if bool in kinds:
            # Python's words for flags, too. `edits.replacements` reads calls as they are written by the same rule.
            if value is not None and str(value).lower() not in ("true", "false"):
                raise ValueError("it must be true or false")
        elif kinds & {int, float} and any(
            isinstance(each, bool) for each in (value if isinstance(value, list) else [value])
        ):
            raise ValueError("it must be a number")
        return value


class NoInput(Input):
    """The input of a tool that takes none."""


def _require_text(text: str) -> str:
    if not text.strip():
        raise ValueError("the text is blank")
    return text


# Not a pattern, which servers may refuse and models do not need.
NonBlank = Annotated[str, AfterValidator(_require_text)]
"""The type of a text in an input that must not be blank."""

In = TypeVar("In", bound=Input)


@dataclass(frozen=True)
class Context:
    """What a tool may use in one call. `tool_use_id` is the id of the call."""

    run_state: RunState
    interrupts: Interrupts
    file_tools: FileToolClient
    tool_use_id: str
    environment: Mapping[str, str]
    """The worker's own environment, with keys. Agents that a lead hires get it; commands never do."""
    cut_off: dict[str, str]
    """The output of commands that were interrupted, by id of the call; filled by `bash`."""
    of_servers: "Mapping[str, Tool[Any]]"
    """The agent's tools of MCP servers, by name."""

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
        """Return the pids that the cleanup after a command must spare: that of the file-tool server, if it runs."""
        server = self.file_tools.pid
        return {server} if server else set()

    @property
    def sandbox(self) -> Sandbox:
        """Return the sandbox of commands, with the network if the terms of the approved plan give it."""
        sandbox, terms = self.file_tools.sandbox, self.run_state.conversation.terms
        if terms is None or not terms.network:
            return sandbox
        return replace(sandbox, policy=replace(sandbox.policy, network=True))

    def now(self) -> float:
        """Return the time in epoch seconds, by the team's clock."""
        return self.run_state.now()


@dataclass(frozen=True)
class Tool(Generic[In]):
    """One tool, with the function `run` that does its work, and the type `input` of that function's input.

    A tool that `waits` handles interrupts itself, and continues its wait after a crash. A `repeatable` tool may run
    again after a crash, because running it twice has the same effect as once. A tool that `reads` changes nothing;
    calls of such tools that follow each other in a reply run at the same time.
    """

    name: str
    description: str
    input: type[In]
    run: Callable[[Context, In], Coroutine[Any, Any, Outcome]]
    waits: bool = False
    repeatable: bool = False
    reads: bool = False
    seconds: Callable[[In], float] | None = None
    """Returns for an input after how many seconds the agent counts as stuck; None stands for `DEFAULT_TIMEOUT`."""
    schema: dict[str, Any] | None = None
    """The JSON schema of the input as an MCP server gave it and as it is sent; None if it is made from `input`."""

    def timeout(self, given: In) -> float | None:
        """Return after how many seconds a call counts as stuck; None if it waits for a person or another agent."""
        if self.waits:
            return None
        return self.seconds(given) if self.seconds else DEFAULT_TIMEOUT

    def parse(self, arguments: object) -> In:
        """Return the input of a call, checked.

        Raises:
            UsageError: The input is wrong; the message tells the model why.
        """
        try:
            return self.input.model_validate(arguments)
        except ValidationError as error:
            problems = []
            for each in error.errors(include_url=False):
                place = ".".join(map(str, each["loc"])) or "input"
                text = each["msg"].removeprefix("Value error, ")
                if each["type"] == "extra_forbidden" and len(each["loc"]) == 1:
                    known = ", ".join(self.input.model_fields) or "none"
                    text = f"there is no such input; {self.name} takes {known}"
                problems.append(f"{place}: {text}")
            raise UsageError(f"{self.name} was not run: {'; '.join(problems)}") from None

    def definition(self) -> dict[str, Any]:
        """Return the tool in the form of the Messages API."""
        schema = _schema(self.input) if self.schema is None else self.schema
        return {"name": self.name, "description": self.description, "input_schema": schema}


def tool(
    *,
    waits: bool = False,
    repeatable: bool = False,
    reads: bool = False,
    seconds: Callable[[Any], float] | None = None,
) -> Callable[[Callable[[Context, In], Coroutine[Any, Any, Outcome]]], Tool[In]]:
    """Return a decorator that makes a `Tool` of a function.

    The tool has the function's name, and the type of its argument `given` as the input. The docstring, with all white
    space as single blanks, describes the tool to the model. The other arguments are fields of `Tool`.
    """

    def made_of(run: Callable[[Context, In], Coroutine[Any, Any, Outcome]]) -> Tool[In]:
        description = " ".join((run.__doc__ or "").split())
        return Tool(run.__name__, description, run.__annotations__["given"], run, waits, repeatable, reads, seconds)

    return made_of


@cache
def _schema(model: type[Input]) -> dict[str, Any]:
    """Return the JSON schema of a type of input. It is cached: it takes 0.3 ms, for each tool of each model call."""
    schema = simplify(model.model_json_schema())
    # That of the class is not for the model.
    schema.pop("description", None)
    return schema
