"""The MCP server by which an engine has crewboard's own tools: those of the team, and perhaps `WORK_TOOLS`.

The engine starts a relay as its MCP server: a few lines of Python that pass bytes to the worker and back. The engine's
sandbox allows no Unix sockets, because the engine could reach those of other programs. So there are named pipes in the
engine's home: one in which each relay announces itself, and two more for each relay. The worker answers calls by
running the tools that agents on the model have, too. These tools are called *ours* below.
"""

import asyncio
import contextlib
import json
import os
import re
import shlex
import stat
import sys
import tomllib
from base64 import b64encode
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from crewboard import mcp_servers
from crewboard.agent_types import LEAD_TOOLS, MCP_PREFIX, READ_TOOLS, WRITE_TOOLS, type_of
from crewboard.errors import BadDataError, CrewboardError, StorageError
from crewboard.names import LEAD
from crewboard.records.agents import Spec
from crewboard.sandbox.scratch import remove_tree
from crewboard.store import mailbox
from crewboard.worker.acp import Call, pruned
from crewboard.worker.tools.base import INPUT_ERRORS, Context, Outcome, failed_on_input
from crewboard.worker.tools.registry import TOOLS

SERVER = "crewboard"
"""The name under which the engine has the MCP server."""

OFFERED = ("send_message", "task_list", "task_claim", "task_update", "ask_operator", "submit_plan", "review_task")
"""The tools of the team that each engine has. None reads mail, which is sent to the engine as it comes."""

_FOR_LEADS = tuple(name for name in LEAD_TOOLS if name not in ("review_plan", "accept_changes"))
"""Further tools for the engine of a lead. Any program in its sandbox can call them, so none approves or merges."""

WORK_TOOLS = (*READ_TOOLS, *WRITE_TOOLS, "bash", "bash_output", "bash_kill", "todo")
"""The tools to work: an engine without tools of its own has those that its agent's type allows."""

RELAY = """\
import os, select, sys
os.chdir(sys.argv[1])
name = "team-%d" % os.getpid()
for end in (".up", ".down"):
    if os.path.lexists(name + end):
        os.unlink(name + end)
    os.mkfifo(name + end, 0o600)
up, down = (os.open(name + end, os.O_RDWR) for end in (".up", ".down"))
os.write(os.open("team", os.O_WRONLY | os.O_NONBLOCK), name.encode() + b"\\n")
while True:
    for source in select.select([0, down], [], [])[0]:
        data = os.read(source, 65536)
        if not data:
            sys.exit()
        while data:
            data = data[os.write(1 if source else up, data):]
"""
"""The program of a relay, with the engine's home as its argument.

It opens each of its pipes for reading and writing, so that it does not wait for the worker.
"""

LONGEST_CALL = 1 << 20
"""The most bytes of one line from an engine; a longer one ends its relay."""

_MOST_RELAYS = 8
"""The most relays at once: an engine may start one for each of its own agents."""

_MOST_UNREAD = 4 << 20
"""Bytes of unread answers to a relay above which further answers are dropped."""

_VERSIONS = ("2025-06-18", "2025-11-25", "2025-03-26", "2024-11-05")
"""Versions of the protocol that are accepted; the parts used here are the same in all."""

_CALL_ID_KEYS = ("claudecode/toolUseId", "callId")
"""Keys in the `_meta` of a call under which engines give their own id of the call."""

_CODEX_SETTINGS = ".codex/config.toml"
_CLAUDE_SETTINGS = ".claude.json"
_LARGEST_SETTINGS = 32 << 20
"""The most bytes of a settings file that is read. That of Claude Code is large, because it keeps a history there."""

_PREFIX = f"{MCP_PREFIX}{SERVER}__"
_MOST_OF_ID = 200
_ANNOUNCED = re.compile(rb"team-\d{1,9}")
_NO_METHOD = -32601

Json = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TeamCall:
    """A call of one of our tools by an engine.

    `id` is the engine's id of the call, or a made one. `name` is empty if the engine has no such tool. `answer` sends
    the outcome to the engine.
    """

    id: str
    name: str
    input: Json
    answer: Callable[[Outcome], None]


def offered_to(spec: Spec) -> tuple[str, ...]:
    """Return the names of crewboard's tools that an agent's engine has.

    They are the tools of the team and, for an engine without tools of its own, those of `WORK_TOOLS` that the agent's
    type allows.
    """
    of_team = (*OFFERED, *_FOR_LEADS) if spec.type == LEAD else OFFERED
    if spec.has_own_tools:
        return of_team
    has = {*type_of(spec.type, spec.definition).tools, "todo"}
    return (*of_team, *(name for name in WORK_TOOLS if name.partition("_")[0] in has or name in has))


def is_ours(name: str, *, own_tools: bool) -> bool:
    """Return True if a tool's name, as an engine tells it of a call, is that of one of our tools.

    The input is not looked at, because the model writes it. With `own_tools`, the engine has tools of its own, and so
    none of `WORK_TOOLS`.
    """
    known = (*OFFERED, *_FOR_LEADS, *(() if own_tools else WORK_TOOLS))
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in known


def as_ours(call: Call, workspace: Path) -> tuple[str, Json]:
    """Return name and input of an engine's call in the form of our tools, as rules, terms and views know them.

    A call that is like none of our tools keeps its own name, else its kind, and its own input, else its title.
    """
    given, root = call.input, os.path.realpath(workspace)
    if call.kind == SERVER:
        return call.name, given
    if call.kind == "execute" and (command := given.get("command")):
        text = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        folder = _first_text(given, "cwd", "workdir")
        if folder and os.path.realpath(folder) != root:
            text = f"cd {shlex.quote(folder)} && {text}"
        return "bash", {"command": text}

    def below_workspace(path: str) -> str:
        return os.path.relpath(path, root) if path.startswith(f"{root}{os.sep}") else path

    path = _first_text(given, "file_path", "filepath", "path", "abs_path")
    if call.kind == "edit" and (call.diff is not None or path):
        texts = (str(given.get("old_string") or ""), str(given.get("new_string") or given.get("content") or ""))
        where, old, new = call.diff or (path, *texts)
        if old or "old_string" in given:
            return "edit_file", {"path": below_workspace(where), "old_text": old, "new_text": new}
        return "write_file", {"path": below_workspace(where), "content": new}
    if call.kind == "read" and path:
        return "read_file", {"path": below_workspace(path)}
    return call.name or call.kind or "tool", given or {"title": call.title}


def _first_text(given: Json, *names: str) -> str:
    """Return the first of the inputs with these names that is a text; an empty text if none is."""
    return next((given[name] for name in names if isinstance(given.get(name), str)), "")


def find_declaration(workspace: Path, home: Path, own: Path | None = None) -> Path | None:
    """Return a settings file that declares an MCP server named `SERVER` for engines, or may; None if there is none.

    Calls of such a server would look like calls of ours. Looked at are the files in the workspace and the folders above
    it, in the `home` of the engine, and in its `own` folder if the user chose another one. All must be real paths. A
    file that cannot be read is returned, and so is one behind a link that the engine may have made.
    """
    files = [
        folder / name for folder in (workspace, *workspace.parents) for name in (mcp_servers.FILE, _CODEX_SETTINGS)
    ]
    files += [home / _CODEX_SETTINGS, home / _CLAUDE_SETTINGS]
    if own is not None:
        files += [own / Path(_CODEX_SETTINGS).name, own / _CLAUDE_SETTINGS]
    writable = [workspace, home, *filter(None, [own])]
    for path in files:
        follows = not any(path.is_relative_to(each) for each in writable)
        try:
            if SERVER in _servers_in(path, follows=follows):
                return path
        except (BadDataError, OSError, ValueError, RecursionError):
            return path
    return None


def _servers_in(path: Path, *, follows: bool) -> Collection[str]:
    """Return the names of the MCP servers that a settings file declares; none if there is no file.

    Raises:
        BadDataError: The path is no regular file, is too large, or is behind a link and not `follows`: in the sandbox
            the link may lead to another file. Or an `.mcp.json` is not valid.
        OSError: The file cannot be read.
        ValueError: The file is not valid JSON or TOML, or not UTF-8.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        if not follows and (path.is_symlink() or path.parent.is_symlink()):
            raise BadDataError(f"{path} is behind a link") from None
        return ()
    with os.fdopen(opened, "rb") as file:
        about = os.fstat(opened)
        is_linked = not follows and os.path.realpath(path) != str(path)
        if is_linked or not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_SETTINGS:
            raise BadDataError(f"{path} cannot be used")
        text = file.read().decode()
    if path.name == mcp_servers.FILE:
        found = mcp_servers.parse(text)
        return {*found.servers, *found.invalid}
    if path.name == _CLAUDE_SETTINGS:
        settings = _object(json.loads(text))
        parts = (settings, *_object(settings.get("projects")).values())
        return {name for each in parts for name in _object(_object(each).get("mcpServers"))}
    return _object(tomllib.loads(text).get("mcp_servers"))


def _object(value: Any) -> Json:  # noqa: ANN401  any value of a file
    return value if isinstance(value, dict) else {}


async def run(context: Context, name: str, arguments: Json) -> Outcome:
    """Run one of our tools and return its outcome, which is an error if the input is wrong or the tool refuses.

    Raises:
        StorageError: A file could not be written; the call may be half done.
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    tool = TOOLS[name]
    try:
        return await tool.run(context, tool.parse(arguments))
    except StorageError:
        raise
    except CrewboardError as error:
        return Outcome(str(error), is_error=True)
    except INPUT_ERRORS as error:
        return failed_on_input(name, error)


def remove(path: Path) -> None:
    """Remove a file, a folder with all in it, or a link itself, if there is one at this path.

    Raises:
        OSError: It cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


class TeamTools:
    """The worker's end of the MCP server for one running engine, with the pipes in the engine's `home`.

    `heard` is called with each call of a tool; `offered` are the names of the tools that the engine has.
    """

    def __init__(self, home: Path, heard: Callable[[TeamCall], None], offered: Collection[str] = OFFERED) -> None:
        """Make the pipe in which relays announce themselves, and listen to it.

        Raises:
            OSError: The pipe cannot be made.
        """
        self._heard = heard
        self._offered = offered
        self._home = home
        # The engine before may have left anything there.
        remove(home / "team")
        self._folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._relays: set[asyncio.Task[None]] = set()
        self.listed = asyncio.Event()
        """Set once the engine has asked which tools there are."""
        try:
            os.mkfifo("team", 0o600, dir_fd=self._folder)
            # Open at both ends, so that it has no end.
            self._calls = self._open("team", os.O_RDWR)
        except OSError:
            os.close(self._folder)
            raise
        asyncio.get_running_loop().add_reader(self._calls, self._take_announced)

    @property
    def server(self) -> Json:
        """Return the description of the MCP server with which an engine starts a relay."""
        return {"name": SERVER, "command": sys.executable, "args": ["-IS", "-c", RELAY, str(self._home)], "env": []}

    async def close(self) -> None:
        """Close the pipes, and take no more calls."""
        asyncio.get_running_loop().remove_reader(self._calls)
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)
        os.close(self._calls)
        os.close(self._folder)

    def _open(self, name: str, flags: int) -> int:
        """Open a pipe in the home of the engine, and return its descriptor.

        Raises:
            OSError: It cannot be opened, or is no pipe: the engine may put anything else in its place.
        """
        pipe = os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            os.close(pipe)
            raise OSError(f"{name} is no pipe")
        return pipe

    def _take_announced(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for name in os.read(self._calls, 4096).splitlines():
                if _ANNOUNCED.fullmatch(name) and len(self._relays) < _MOST_RELAYS:
                    relay = asyncio.ensure_future(self._serve(name.decode()))
                    self._relays.add(relay)
                    relay.add_done_callback(self._relays.discard)

    async def _serve(self, name: str) -> None:
        """Answer the relay with this name until it ends, or sends a line that is too long."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            # What is no pipe, or has ended, is left alone.
            stack.enter_context(contextlib.suppress(OSError))
            ends = []
            for end, flags, mode in ((".up", os.O_RDONLY, "rb"), (".down", os.O_WRONLY, "wb")):
                ends.append(stack.enter_context(os.fdopen(self._open(name + end, flags), mode, buffering=0)))
                os.unlink(name + end, dir_fd=self._folder)
            reader = asyncio.StreamReader(limit=LONGEST_CALL)
            up, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), ends[0])
            stack.callback(up.close)
            down, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, ends[1])

            def abort() -> None:
                # It is closed already if the relay was killed, and asyncio would fail.
                if not down.is_closing():
                    down.abort()

            stack.callback(abort)

            def send(message: Json) -> None:
                if down.get_write_buffer_size() < _MOST_UNREAD:
                    down.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

            # A line that is too long ends it.
            with contextlib.suppress(ValueError):
                while line := await reader.readline():
                    self._take(line, send)

    def _take(self, line: bytes, send: Callable[[Json], None]) -> None:
        try:
            message = pruned(json.loads(line))
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict) or "id" not in message or "method" not in message:
            return
        result: Json
        params = message["params"] if isinstance(message.get("params"), dict) else {}
        match message["method"]:
            case "initialize":
                asked = params.get("protocolVersion")
                about = {"name": SERVER, "version": metadata.version("crewboard")}
                version = asked if asked in _VERSIONS else _VERSIONS[0]
                result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
            case "ping":
                result = {}
            case "tools/list":
                defined = [TOOLS[name].definition() for name in self._offered]
                offered = [
                    {"name": each["name"], "description": each["description"], "inputSchema": each["input_schema"]}
                    for each in defined
                ]
                result = {"tools": offered}
                self.listed.set()
            case "tools/call":

                def answer(outcome: Outcome) -> None:
                    content = [{"type": "text", "text": outcome.content}]
                    for _, kind, data in outcome.media:
                        if kind.startswith("image/"):
                            content.append({"type": "image", "mimeType": kind, "data": b64encode(data).decode()})
                    send({"id": message["id"], "result": {"content": content, "isError": outcome.is_error}})

                meta = params["_meta"] if isinstance(params.get("_meta"), dict) else {}
                told = next((meta[key] for key in _CALL_ID_KEYS if isinstance(meta.get(key), str) and meta[key]), "")
                name = str(params.get("name"))
                given = params.get("arguments")
                # A call without an id of the engine's own is one of its own.
                self._heard(
                    TeamCall(
                        told[:_MOST_OF_ID] or f"team-{mailbox.new_id()}",
                        name if name in self._offered else "",
                        given if isinstance(given, dict) else {},
                        answer,
                    )
                )
                return
            case _:
                send({"id": message["id"], "error": {"code": _NO_METHOD, "message": "there is no such method"}})
                return
        send({"id": message["id"], "result": result})
