"""MCP servers of one run: started or connected when an assignment begins, their tools offered as the agent's own.

What a server sends is not trusted: names, descriptions and schemas are limited and checked, results are delimited as
those of all tools are, and a schema is never used in a way that may take much time. The package `mcp` takes half a
second to load, so it is loaded only for an agent that has a server.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import re
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from anyio import BrokenResourceError, EndOfStream
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from pydantic import ConfigDict, Field, ValidationError, model_validator

from crewboard import mcp_servers, media, redaction
from crewboard.agent_types import MCP_PREFIX, may_use_server, may_use_tool, type_of
from crewboard.errors import BadDataError, how_to_install
from crewboard.mcp_servers import McpServer, Resolved
from crewboard.records.agents import McpState
from crewboard.records.base import check_depth
from crewboard.sandbox import shell
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, FileToolClient, Input, NonBlank, Outcome, Tool, tool
from crewboard.worker.tools.schemas import MAX_SCHEMA, simplify, without_nulls

if TYPE_CHECKING:
    from mcp import ClientSession

START_TIMEOUT = 60.0
"""Seconds in which a server must say which tools it has. It may have to be downloaded and installed first."""

CALL_TIMEOUT = 120.0
"""Seconds after which a call of a server's tool is given up."""

LIST_TIMEOUT = 10.0
"""Seconds in which a running server must answer when it is asked for its tools again."""

EXIT_GRACE = 1.0
"""Seconds that a server has to end by itself, once its connection is closed."""

CLOSE_TIMEOUT = 5.0
"""Seconds that the end of a connection may take."""

_WRITE_TIMEOUT = 10.0
"""Seconds in which a server must read a message."""

MAX_TOOLS = 128
"""The most tools of all servers of an agent."""

MAX_DESCRIPTION = 2_000
"""Characters of the description of a tool that the model is shown."""

MOST_MESSAGES = 500
"""Messages of a server that are read in a second. If it sends more, they wait, so that it cannot block the worker."""

MAX_MESSAGE = 16 * 1024 * 1024
"""The most bytes of one message of a server."""

MAX_RESULT = 400_000
"""Characters of a result that are used here; the executor keeps fewer."""

_BYTECODE = {"PYTHONPYCACHEPREFIX": "", "PYTHONDONTWRITEBYTECODE": "1"}
"""Variables with which a server in Python reads bytecode files beside its modules, and writes none. With the run's own
cache, which commands use, a server would find no files, as it starts once in a run, and compile all its modules."""

_MAX_PAGES = 20
_MAX_LEFT_OUT = 20
_LOG_LINES = 5
_MOST_REFERENCES = 1_000
"""The most references that the check of one input follows: even a short schema can lead to very many."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

_NO_NETWORK = ". The agent has no network; if the server needs it, as uvx and npx do, hire the agent with --network"

_DOWNLOADERS = frozenset({"uvx", "npx", "uv", "npm", "pipx", "bunx", "pnpm", "yarn", "docker"})

FIND_TOOLS = "find_tools"

_WORD = re.compile(r"[^\W_]+")
_IN_NAME, _IN_PART = 4, 2
"""Weights in a search of a word that is a word of a tool's name, and of one that is part of such a word. A word of the
description has the weight 1."""


class McpServers:
    """The MCP servers of one run of an agent."""

    def __init__(self, run_state: RunState, file_tools: FileToolClient, environment: Mapping[str, str]) -> None:
        self._run_state = run_state
        self._file_tools = file_tools
        self._environment = environment
        self._type = type_of(run_state.spec.type, run_state.spec.definition)
        self._connections: dict[str, _Connection] = {}
        self._states: dict[str, McpState] = {}
        self._tools: dict[str, Tool[Any]] = {}

    def tools(self) -> dict[str, Tool[Any]]:
        """Return the tools that the agent has at the moment, by name, in a fixed order."""
        return self._tools

    def index(self) -> str:
        """Return the names of the agent's tools of MCP servers, one server a line; an empty text without any."""
        grouped = itertools.groupby(self._tools, lambda name: name.removeprefix(MCP_PREFIX).partition("__")[0])
        lines = [f"- {server}: {', '.join(names)}" for server, names in grouped]
        head = "Tools of MCP servers. Each can be called once find_tools has loaded it."
        return "\n".join([head, *lines]) if lines else ""

    async def set_up(self) -> list[str]:
        """Start and connect the servers that the agent should have, end the others, and learn their tools.

        Return notices for the agent about servers that are not available, and why, unless it was told already.
        """
        if not self._type.mcp:
            return []
        found, problems = await self._find()
        for name in [name for name in self._connections if name not in found]:
            await self._connections.pop(name).close()
        before, self._states = self._states, {}
        for name, text in problems.items():
            file = self._type.file if name in self._type.mcp_servers else mcp_servers.FILE
            self._note(McpState(name, file, problem=text))
        # A server may take half a minute, during which the agent seemed to do nothing.
        starting = [name for name, each in found.items() if name not in self._connections and not self._objection(each)]
        if starting:
            self._run_state.show("working", f"starts MCP server{'s' * (len(starting) > 1)} {', '.join(starting)}")
        await asyncio.gather(*(self._set_up(server) for server in found.values()))
        # A problem that is known stays known since then.
        known = {
            name for name, state in self._states.items() if name in before and before[name].problem == state.problem
        }
        self._states = {
            name: state.replace(since=before[name].since) if name in known else state
            for name, state in sorted(self._states.items())
        }
        self._offer()
        return [
            f"The MCP server {name} is not available: {state.problem}. Go on without it."
            for name, state in self._states.items()
            if state.problem and name not in known
        ]

    async def refresh(self) -> None:
        """Ask the servers that reported a change for their tools again."""
        changed = [each for each in self._connections.values() if each.changed]
        if changed:
            await asyncio.gather(*(each.learn_tools() for each in changed))
            self._offer()

    async def close(self) -> None:
        """End all servers."""
        await asyncio.gather(*(each.close() for each in self._connections.values()))
        self._connections.clear()

    async def _find(self) -> tuple[dict[str, McpServer], dict[str, str]]:
        """Return the servers that the agent's type may use, and why others cannot be used, each by name.

        They are declared in the workspace's `.mcp.json` or by the type itself. A file that cannot be read has its own
        name among the reasons.
        """
        found = mcp_servers.Found({}, {})
        # Without such a file, no file-tool server is started.
        if (self._run_state.workspace / mcp_servers.FILE).exists():
            read = await self._file_tools.ask("read_text", {"path": mcp_servers.FILE})
            try:
                if read.is_error:
                    raise BadDataError(read.content)
                found = mcp_servers.parse(read.content)
            except BadDataError as error:
                found.invalid[mcp_servers.FILE] = str(error)
        own = mcp_servers.of_type(self._type)
        patterns = self._type.mcp
        servers = {name: each for name, each in found.servers.items() if may_use_server(patterns, name)}
        invalid = {
            name: text
            for name, text in found.invalid.items()
            if name == mcp_servers.FILE or may_use_server(patterns, name)
        }
        return {**servers, **own.servers}, {**invalid, **own.invalid}

    async def _set_up(self, server: McpServer) -> None:
        """Start or connect one server, unless it runs as it is declared now, and note its state."""
        connection = self._connections.get(server.name)
        problem = self._objection(server)
        if problem is None and connection is not None and connection.server == server and connection.is_open:
            await connection.learn_tools()
        else:
            if connection is not None:
                await self._connections.pop(server.name).close()
            if problem is not None:
                return self._note(problem)
            try:
                resolved = mcp_servers.resolve(server, self._environment)
            except BadDataError as error:
                return self._note(McpState(server.name, server.source, problem=str(error)))
            try:
                import mcp.client.client  # noqa: F401  loaded here so that the error names what to do
            except ModuleNotFoundError as error:
                why = f"the package {error.name} is not installed: {how_to_install('mcp')}"
                return self._note(McpState(server.name, server.source, problem=why))
            # They log what servers say, without a limit.
            for name in ("mcp", "client"):
                logging.getLogger(name).setLevel(logging.CRITICAL + 1)
            redaction.register_values(resolved.secrets)
            pid = self._file_tools.pid
            connection = _Connection(server, resolved, self._file_tools, {pid} if pid else set())
            self._connections[server.name] = connection
            await connection.open(has_network=self._run_state.spec.flags.network)
        return self._note(McpState(server.name, server.source, problem=connection.problem))

    def _objection(self, server: McpServer) -> McpState | None:
        """Return the state of a server that must not be used, with the reason; None if it may be used."""
        run_state = self._run_state
        if not mcp_servers.is_accepted(server, run_state.team.root, self._environment):
            text = mcp_servers.describe_new(server, run_state.team.root, self._environment)
            return McpState(server.name, server.source, problem=text, new=True)
        if server.url and not run_state.spec.flags.network:
            text = "it is reached over the network, and the agent was hired without --network"
            return McpState(server.name, server.source, problem=text)
        return None

    def _note(self, state: McpState) -> None:
        problem = redaction.redact(state.problem)[:500] if state.problem else None
        self._states[state.name] = state.replace(problem=problem, since=self._run_state.now())

    def _offer(self) -> None:
        """Set which tools of servers the agent has, and write them in its status."""
        self._tools = {}
        for name, connection in sorted(self._connections.items()):
            tools, left_out = connection.offered(self._type.mcp, set(self._tools), MAX_TOOLS - len(self._tools))
            self._tools.update(tools)
            state = self._states.get(name) or McpState(name, connection.server.source)
            self._states[name] = state.replace(
                tools=list(tools), left_out=[redaction.redact(each)[:300] for each in left_out[:_MAX_LEFT_OUT]]
            )
        self._run_state.show_mcp(list(self._states.values()))


class FindTools(Input):
    query: NonBlank = Field(description="what the tool should do, in a few words, or the names of tools")
    limit: int = Field(default=5, ge=1, le=20, description="how many tools to load")


@tool(repeatable=True, reads=True)
async def find_tools(context: Context, given: FindTools) -> Outcome:
    """Load tools of MCP servers, whose names stand before the conversation, so that you can call them. A tool stays
    loaded; after a summary of the conversation, load it again.
    """
    found = search(context.of_servers, given.query)[: given.limit]
    if not found:
        return Outcome("no tool fits; try other words, or names from the list before the conversation")
    return Outcome(f"loaded: {', '.join(found)}", tools=tuple(found))


def search(tools: Mapping[str, Tool[Any]], query: str) -> list[str]:
    """Return the names of the tools that fit a query, the best first.

    If the query has names of tools, return these. Else its words are looked for in the names and descriptions of the
    tools and of their inputs.
    """
    if named := [name for name in dict.fromkeys(query.replace(",", " ").split()) if name in tools]:
        return named
    words = {word.lower() for word in _WORD.findall(query)}
    scores: dict[str, int] = {}
    for name, offered in tools.items():
        names = [word.lower() for word in _WORD.findall(name.removeprefix(MCP_PREFIX))]
        # The definition without its keywords says little else: names and descriptions of the inputs.
        about = {word.lower() for word in _WORD.findall(f"{offered.description} {json.dumps(offered.schema)}")}
        in_name = {
            word: _IN_NAME if word in names else _IN_PART * any(word in each for each in names) for word in words
        }
        scores[name] = sum(in_name[word] + (word in about) for word in words)
    return [name for name in sorted(scores, key=lambda each: (-scores[each], each)) if scores[name]]


class _Connection:
    """One server in use. One task holds its session: the SDK's scopes must be closed by the task that opened them.

    `keep` has pids that the cleanup after the server must spare. `problem` says why it cannot be used; None if it can.
    """

    def __init__(self, server: McpServer, resolved: Resolved, file_tools: FileToolClient, keep: set[int]) -> None:
        self.server = server
        self.problem: str | None = None
        self.changed = False
        """True if the server has said that its tools changed, until they are asked for again."""
        self._resolved = resolved
        self._file_tools = file_tools
        self._keep = keep
        self._service: shell.Service | None = None
        self._session: ClientSession | None = None
        self._listed: list[Any] = []
        self._unusable: list[tuple[str, str]] = []
        """Names of listed tools that the SDK does not take, each with the reason."""
        self._version: str | None = None
        """The version of the protocol by which listed tools are checked; None while no list is asked for."""
        self._has_answered = False
        """True if the program of the server did not end by itself, but gave an answer that cannot be used."""
        self._stop = asyncio.Event()
        self._ready = asyncio.Event()
        """Set once the server has said which tools it has, or it is known that it will not."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Return True if the server is connected, so that its tools can be called."""
        return self._session is not None

    async def open(self, *, has_network: bool) -> None:
        """Start or connect the server, and learn its tools. If that fails, `problem` says why."""
        self._stop.clear()
        self._ready.clear()
        self._task = asyncio.create_task(self._serve())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), START_TIMEOUT)
        if self.is_open:
            return
        reason = self.problem or f"it did not say within {START_TIMEOUT:g} s which tools it has"
        await self.close()
        if self._has_answered:
            # How the program ended says nothing: it was closed here.
            self.problem = f"{reason}{self._log_lines()}"
            return
        has_ended = self._service is not None and self._service.ending not in (None, "[ended]")
        if has_ended:
            reason = "it ended"
        missing = ""
        if self._service is not None and "[exit code 127]" in (self._service.ending or ""):
            # The shell in the sandbox may have said so.
            program = self._resolved.arguments[0]
            said = rf"^{re.escape(program)}: not found in the sandbox$"
            if re.search(said, self._service.log, re.MULTILINE):
                missing = f"the sandbox shows no {program}: install it where the agent's commands find it"
        downloads = self._service is not None and PurePath(self._resolved.arguments[0]).name in _DOWNLOADERS
        hint = _NO_NETWORK if not has_network and (has_ended or downloads) else ""
        self.problem = missing or f"{reason}{self._printed()}{hint}"

    async def _serve(self) -> None:
        from mcp.client.client import Client
        from mcp.shared.exceptions import MCPError
        from mcp_types import Implementation

        self.problem, self._has_answered = None, False
        about = Implementation(name="crewboard", version=version("crewboard"))
        transport = self._over_http() if self.server.url else self._over_stdio()
        try:
            client = Client(transport, cache=None, client_info=about, message_handler=self._on_message)
            async with client:
                await self._list(client.session)
                self._session = client.session
                self._ready.set()
                await self._stop.wait()
        # The SDK and what it uses raise many kinds of errors, some of them in groups. No server ends the run.
        except Exception as error:  # noqa: BLE001
            first = _first(error)
            # The server answered with an error, or with what the SDK does not take. RuntimeError is of a version of the
            # protocol that the SDK does not speak.
            is_answer = isinstance(first, ValidationError | RuntimeError | MCPError) and not _is_closed(first)
            self._has_answered = self._service is not None and is_answer
            self.problem = f"{'its answer cannot be used: ' * self._has_answered}{_describe(error)}"
        finally:
            self._session = None
            self._ready.set()

    @contextlib.asynccontextmanager
    async def _over_stdio(self) -> AsyncIterator[tuple["_Sifted", "_Writing"]]:
        label = f"mcp:{self.server.name}"
        sandbox = self._file_tools.sandbox
        variables = {**_BYTECODE, **self._resolved.env}
        self._service = shell.Service(label, self._resolved.arguments, variables, sandbox, self._keep)
        self._service.when_ended(self._stop.set)
        try:
            reader, writer = await self._service.connect(MAX_MESSAGE)
            try:
                yield _Sifted(_Reading(reader), self._sift), _Writing(writer)
            finally:
                # A server ends by itself when its connection is closed. How another one ended is known a moment later.
                writer.close()
                await self._service.wait(EXIT_GRACE)
        finally:
            await self._service.end()

    @contextlib.asynccontextmanager
    async def _over_http(self) -> AsyncIterator[Any]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        timeout = httpx2.Timeout(30, read=CALL_TIMEOUT)
        # How many bytes come out of packed ones is not known before.
        headers = {"Accept-Encoding": "identity", **self._resolved.headers}
        hooks = {"response": [_bound]}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as client,
            streamable_http_client(self._resolved.url, http_client=client) as (reading, writing),
        ):
            yield _Sifted(reading, self._sift), writing

    async def _on_message(self, message: Any) -> None:  # noqa: ANN401  any notification
        from mcp_types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.changed = True

    async def _list(self, session: "ClientSession") -> None:
        from mcp_types import PaginatedRequestParams

        listed: list[Any] = []
        cursor: str | None = None
        before, self._unusable = self._unusable, []
        self._version = session.protocol_version
        try:
            for _ in range(_MAX_PAGES):
                page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
                listed += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        except BaseException:
            self._unusable = before
            raise
        finally:
            self._version = None
        self._listed, self.changed = listed, False

    def _sift(self, message: Any) -> None:  # noqa: ANN401  a SessionMessage, or why it is none
        """Take the tools out of a list that the SDK does not take, and note them: it would refuse the whole list."""
        result = getattr(getattr(message, "message", None), "result", None)
        if self._version is None or not isinstance(result, dict) or not isinstance(result.get("tools"), list):
            return
        from mcp_types.methods import validate_server_result

        usable = []
        for listed in result["tools"]:
            try:
                validate_server_result("tools/list", self._version, {**result, "tools": [listed]})
                usable.append(listed)
            except ValueError as error:
                given = listed if isinstance(listed, dict) else {}
                try:
                    check_schema(given.get("inputSchema"))
                    why = f"its description is invalid: {_describe(error)}"
                except BadDataError as wrong:
                    why = str(wrong)
                self._unusable.append((str(given.get("name")), why))
        result["tools"] = usable

    async def learn_tools(self) -> None:
        """Ask a running server for its tools again. If it does not answer in time, those known before stay."""
        self.changed = False
        if self._session is None:
            return
        with contextlib.suppress(Exception):
            await _within(LIST_TIMEOUT, self._list(self._session))

    def offered(self, patterns: tuple[str, ...], taken: set[str], most: int) -> tuple[dict[str, Tool[Any]], list[str]]:
        """Return the tools of the server that match `patterns`, at most `most`, and texts that say why others are not.

        `taken` are names that tools of other servers have already.
        """
        tools: dict[str, Tool[Any]] = {}
        left_out = [
            f"{redaction.redact(own)[:64]}: {why}"
            for own, why in self._unusable
            if may_use_tool(patterns, self._name_of(own))
        ]
        for listed in self._listed:
            own = str(listed.name)
            name = self._name_of(own)
            if not may_use_tool(patterns, name):
                continue
            try:
                if not _NAME.fullmatch(name):
                    raise BadDataError("its name is too long")
                if name in tools or name in taken:
                    raise BadDataError(f"another tool is called {name}")
                if len(tools) >= most:
                    raise BadDataError(f"an agent has at most {MAX_TOOLS} tools of MCP servers")
                sent = check_schema(listed.input_schema)
                said = " ".join(str(listed.description or "").split())
                said = " ".join("".join(filter(str.isprintable, said)).split())
                said = said if len(said) <= MAX_DESCRIPTION else f"{said[:MAX_DESCRIPTION]} …"
                tools[name] = Tool(
                    name,
                    f"A tool of the MCP server {self.server.name}, which describes it as follows. {said}",
                    input_of(listed.input_schema, sent),
                    partial(self._call, own),
                    seconds=lambda _: CALL_TIMEOUT + START_TIMEOUT + CLOSE_TIMEOUT,
                    schema=sent,
                )
            except BadDataError as error:
                left_out.append(f"{redaction.redact(own)[:64]}: {error}")
        return tools, left_out

    def _name_of(self, own: str) -> str:
        """Return the name by which the agent calls the tool with the server's `own` name."""
        return f"{MCP_PREFIX}{self.server.name}__{_NOT_IN_NAMES.sub('_', own)}"

    async def _call(self, own: str, context: Context, given: Input) -> Outcome:
        """Call the tool with the server's `own` name for it, and return the outcome, also if it fails.

        Start the server again first if it has ended.
        """
        if self._session is None:
            await self.close()
            await self.open(has_network=context.run_state.spec.flags.network)
        session = self._session
        if session is None:
            text = f"the MCP server {self.server.name} has ended and does not start: {self.problem}"
            return Outcome(redaction.redact(text), is_error=True)
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

        request = CallToolRequest(params=CallToolRequestParams(name=own, arguments=dict(given.model_extra or {})))
        try:
            # Not `call_tool`, which checks results against a schema that the server chose.
            result = await _within(CALL_TIMEOUT, session.send_request(request, CallToolResult))
        except TimeoutError:
            return Outcome(
                f"{own} took longer than {CALL_TIMEOUT:g} s and was given up; it may still have an effect",
                is_error=True,
            )
        # As in `_serve`.
        except Exception as error:  # noqa: BLE001
            if _is_closed(error):
                # The end of the program is noticed a moment later, and the next call may come before that.
                self._session = None
            ended = self._printed() if self._service is not None and self._service.ending is not None else ""
            return Outcome(redaction.redact(f"{own} failed: {_describe(error)}{ended}"), is_error=True)
        return outcome_of(result)

    def _printed(self) -> str:
        """Return how the server's program ended and the last lines of its log, for an error; empty without either."""
        if self._service is None:
            return ""
        ending = self._service.ending
        how = f" {ending}" if ending not in (None, "[ended]") else ""
        return f"{how}{self._log_lines()}"

    def _log_lines(self) -> str:
        """Return the last lines of the log of the server's program, for an error; empty without any."""
        log = self._service.log if self._service is not None else ""
        lines = [line for line in log.splitlines() if line.strip()][-_LOG_LINES:]
        return f"; it printed: {' / '.join(lines)}" if lines else ""

    async def close(self) -> None:
        """End the server or the connection to it."""
        self._stop.set()
        task, self._task, self._session = self._task, None, None
        if task is None:
            return
        done, _ = await asyncio.wait({task}, timeout=CLOSE_TIMEOUT)
        if not done:
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT)
        if self._service is not None:
            await self._service.end()


async def _bound(response: Any) -> None:  # noqa: ANN401  of httpx2, which is loaded when it is used
    """Make the reading of an HTTP response fail after `MAX_MESSAGE` bytes.

    Raises:
        httpx2.ReadError: The response is compressed, although that was not asked for.
    """
    import httpx2

    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.ReadError("the server packs its answers, which is not allowed")
    whole = response.stream

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            room = MAX_MESSAGE
            async for part in whole:
                room -= len(part)
                if room < 0:
                    raise httpx2.ReadError(f"an answer of more than {MAX_MESSAGE} bytes")
                yield part

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Bounded()


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401  what the work returns
    """Return the result of `work`. After `seconds`, cancel it without waiting for its end: a server may not read.

    Raises:
        TimeoutError: The work took longer.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError
    return task.result()


class _Reading(ObjectReceiveStream[Any]):
    """The messages of a server, as the SDK reads them: one JSON value in each line."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._second, self._count = float("-inf"), 0

    async def receive(self) -> Any:  # noqa: ANN401  a message, or why it is none
        """Return the next message, or a ValueError if the line is not valid. Wait if too many came in this second.

        Raises:
            EndOfStream: The stream has ended, or a line is too long.
        """
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        # Other tasks run meanwhile, too: what is there is read without a pause.
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._count = now, 0
        self._count += 1
        await asyncio.sleep(0 if self._count <= MOST_MESSAGES else self._second + 1 - now)
        try:
            line = await self._reader.readline()
        # A line that is too long, or a connection that was cut.
        except (ValueError, OSError):
            line = b""
        if not line:
            raise EndOfStream
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            return error

    async def aclose(self) -> None:
        """Do nothing: the transport closes the stream."""


class _Sifted(ObjectReceiveStream[Any]):
    """The messages of a server, each given to `sift` first, which may change it."""

    def __init__(self, messages: Any, sift: Callable[[Any], None]) -> None:  # noqa: ANN401  a stream of the SDK
        self._messages = messages
        self._sift = sift

    async def receive(self) -> Any:  # noqa: ANN401  a message, or why it is none
        """Return the next message.

        Raises:
            EndOfStream: The stream has ended.
        """
        message = await self._messages.receive()
        self._sift(message)
        return message

    async def aclose(self) -> None:
        """Close the stream of the server."""
        await self._messages.aclose()


class _Writing(ObjectSendStream[Any]):
    """The messages to a server, as the SDK writes them."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, item: Any) -> None:  # noqa: ANN401  a SessionMessage
        """Write one message.

        Raises:
            BrokenResourceError: The server does not read any more.
        """
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT):
                self._writer.write(text.encode("utf-8", "replace") + b"\n")
                await self._writer.drain()
        except (OSError, TimeoutError) as error:
            self._writer.close()
            raise BrokenResourceError from error

    async def aclose(self) -> None:
        """Close the stream to the server."""
        self._writer.close()


def _first(error: BaseException) -> BaseException:
    """Return the error, or the first one of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_closed(error: BaseException) -> bool:
    """Return True if the SDK raised this error because the connection to a server was closed."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    # A server may use the same code for errors of its own.
    return isinstance(error, MCPError) and (error.code, error.message) == (CONNECTION_CLOSED, "Connection closed")


def _describe(error: BaseException) -> str:
    """Return the text of an error, or of the first one of a group, on one line and at most 300 characters long."""
    error = _first(error)
    text = str(error)
    if isinstance(error, ValidationError):
        # Its text has what was sent, shortened in the middle, so that a secret in it would not be recognised.
        wrong = error.errors(include_input=False, include_url=False)
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong)
    # Before it is cut, for the same reason.
    text = " ".join(redaction.redact(text).split()) or type(error).__name__
    return text[:300]


def outcome_of(result: Any) -> Outcome:  # noqa: ANN401  a CallToolResult
    """Return the outcome of a call from the server's result: its texts, one below the other, images and documents."""
    texts: list[str] = []
    found: list[tuple[str, str, bytes]] = []
    for number, block in enumerate(result.content, start=1):
        if block.type == "text":
            texts.append(block.text)
        elif block.type in ("image", "audio"):
            texts.append(_add_media(found, f"{block.type}-{number}", block.data))
        elif block.type == "resource":
            inner = block.resource
            blob = getattr(inner, "blob", None)
            texts.append(inner.text if blob is None else _add_media(found, str(inner.uri)[-100:], blob))
        elif block.type == "resource_link":
            texts.append(f"({block.name}: {block.uri})")
    if not any(texts) and not found and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    content = redaction.redact("\n".join(text for text in texts if text)[:MAX_RESULT])
    return Outcome(content, is_error=result.is_error, media=tuple(found))


def _add_media(found: list[tuple[str, str, bytes]], name: str, data: str) -> str:
    """Add an image or a document in base64 to `found`, and return its description, or the reason if it is left out."""
    try:
        content = b64decode(data)
    except ValueError:
        return f"({name}: left out, it is no base64)"
    kind = media.type_of(content)
    if kind is None:
        return f"({name}: left out, {len(content)} bytes of a type that the model does not take)"
    if (why := media.refusal(kind, content)) is not None:
        return f"({name}: left out, {why})"
    found.append((name, kind, content))
    return media.describe(name, kind, len(content))


def check_schema(schema: Any) -> dict[str, Any]:  # noqa: ANN401  of a server
    """Return a server's schema of an input in the form that is sent.

    It must be valid by draft 2020-12, whatever dialect it names: otherwise the API refuses each request.

    Raises:
        BadDataError: The schema is too large, no JSON schema, or in a form that the API does not take.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator

    try:
        size = len(json.dumps(schema, allow_nan=False))
        check_depth(schema)
        if size > MAX_SCHEMA:
            raise BadDataError(f"its schema has {size} characters, and the limit is {MAX_SCHEMA}")
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise BadDataError("its schema is not that of an object")
        Draft202012Validator.check_schema(schema)
        sent = without_nulls(simplify(schema))
        check_depth(sent)
        # A reference may lead to what is no schema.
        Draft202012Validator.check_schema(sent)
    except SchemaError as error:
        raise BadDataError(f"its schema is invalid: {redaction.redact(error.message)[:200]}") from error
    except (AttributeError, ValueError, TypeError, RecursionError) as error:
        raise BadDataError(f"its schema cannot be checked: {error}") from error
    if "anyOf" in sent or "allOf" in sent:
        raise BadDataError("its schema has anyOf, oneOf or allOf at the top, which the API does not take")
    if wrong := [name for name in sent.get("properties", {}) if not _PROPERTY.fullmatch(name)]:
        raise BadDataError(f"the API does not take the name of its input {redaction.redact(wrong[0])[:64]!r}")
    return sent


class _TooCostlyError(Exception):
    """The check of an input followed too many references."""


def input_of(schema: dict[str, Any], sent: dict[str, Any]) -> type[Input]:
    """Return the type of input of a tool with this `schema`, which takes any object that fits.

    `sent` is the schema that the model sees. A value that only `schema` requires is null if the model leaves it out.
    """
    find_mismatch = _checker(schema)
    nulls = dict.fromkeys(name for name in schema.get("required", ()) if name not in sent.get("required", ()))

    class Given(Input):
        model_config = ConfigDict(extra="allow")

        @model_validator(mode="before")
        @classmethod
        def _fits(cls, given: Any) -> Any:  # noqa: ANN401  whatever the model sent
            given = {**nulls, **given} if isinstance(given, dict) else given
            if (mismatch := find_mismatch(given)) is not None:
                raise ValueError(mismatch)
            return given

    return Given


def _checker(schema: dict[str, Any]) -> Callable[[Any], str | None]:
    """Return a function that returns what is wrong with an input by this schema; None if nothing is.

    Keywords by which a server could make the check last very long are left to the server, which checks its input, too.
    """
    from jsonschema.validators import Draft202012Validator, extend
    from referencing import Registry

    known = Draft202012Validator.VALIDATORS
    followed = 0

    def limited(keyword: Any) -> Any:  # noqa: ANN401  a keyword of jsonschema, which has no types
        def follow(*arguments: Any) -> Any:  # noqa: ANN401  as above
            nonlocal followed
            followed += 1
            if followed > _MOST_REFERENCES:
                raise _TooCostlyError
            yield from keyword(*arguments) or ()

        return follow

    def unless_patterns(validator: Any, value: Any, instance: Any, part: Any) -> Any:  # noqa: ANN401  as above
        if "patternProperties" not in part:
            yield from known["additionalProperties"](validator, value, instance, part) or ()

    unchecked = ("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "uniqueItems")
    keywords: dict[str, Any] = {name: lambda *_: () for name in unchecked}
    keywords |= {name: limited(known[name]) for name in ("$ref", "$dynamicRef")}
    keywords["additionalProperties"] = unless_patterns
    # With a registry of its own, no reference is loaded from elsewhere.
    validator = extend(Draft202012Validator, keywords)(_without_dialects(schema), registry=Registry())

    def find_mismatch(given: Any) -> str | None:  # noqa: ANN401  whatever the model sent
        nonlocal followed
        followed = 0
        try:
            errors = list(itertools.islice(validator.iter_errors(given), 5))
        except BaseException as error:
            # A schema with references to nowhere, or to itself. Where the stack ends in rpds, which is written in Rust,
            # it panics, and that is no `Exception`.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            return f"it cannot be checked: the schema of the server is unusable ({type(error).__name__})"
        said = [f"{'.'.join(map(str, each.absolute_path))}: {each.message[:200]}".lstrip(": ") for each in errors]
        return "; ".join(said) or None

    return find_mismatch


def _without_dialects(part: Any) -> Any:  # noqa: ANN401  any JSON value
    """Return a schema without `$schema` in any part: a part that names a dialect is checked with all its keywords."""
    if isinstance(part, dict):
        return {
            name: _without_dialects(each)
            for name, each in part.items()
            if name != "$schema" or not isinstance(each, str)
        }
    return [_without_dialects(each) for each in part] if isinstance(part, list) else part
