"""MCP servers: programs and addresses that give agents more tools, named in `.mcp.json` and in files of types.

Both files can come with a cloned repository, and an agent can write them. So the user accepts each server of
`.mcp.json` once, by its content and for its workspace; those in a type's file are accepted with the type. Values of
variables come from the environment in which the agent was started; no file and no command line holds them.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, ValidationError, convert

from crewboard import consent, env
from crewboard.agent_types import AgentType
from crewboard.consent import Acceptance
from crewboard.errors import BadDataError, UsageError
from crewboard.records.base import check_depth, describe_invalid
from crewboard.redaction import hidden, is_secret, redact
from crewboard.type_files import open_folder, read_regular
from crewboard.untrusted import on_one_line

FILE = ".mcp.json"
"""The file of the servers of a project, in the form that Claude Code reads."""

MAX_TEXT = 100_000
"""Most characters of `.mcp.json`."""

MAX_SERVERS = 32
"""Most servers that one file may name."""

_NAME = re.compile(r"(?!.*__)[A-Za-z0-9-][A-Za-z0-9_-]{0,31}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_REMOTE = frozenset({"http", "streamable-http", "streamableHttp"})


class McpServer(Struct, frozen=True):
    """One server: a program with its arguments, or a `url`. Texts are as in the file, with `${VARIABLE}` in them.

    `source` is the file that names it. `with_type` says that it is from the file of the agent's type, and accepted with
    it.
    """

    name: str
    source: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}
    with_type: bool = False

    @property
    def shown(self) -> str:
        """Return the command line or the address, without the values of variables, on one line."""
        return on_one_line(self.url or shlex.join([self.command, *self.args]))

    @property
    def variables(self) -> list[str]:
        """Return the names of the variables that the texts of the entry refer to, sorted."""
        texts = [self.command, *self.args, self.url, *self.env.values(), *self.headers.values()]
        return sorted({found[1] for text in texts for found in _REFERENCE.finditer(text)})

    @property
    def shown_env(self) -> dict[str, str]:
        """Return the variables that the server gets, with values as in the file, without literal secrets."""
        return {name: _without_secrets(name, value) for name, value in self.env.items()}

    @property
    def shown_headers(self) -> dict[str, str]:
        """Return the headers sent to the server, with values as in the file, without literal secrets."""
        return {name: _without_secrets(name, value) for name, value in self.headers.items()}

    def settings(self, *, reveals: bool = False) -> list[str]:
        """Return the variables that the server gets and the headers sent to it, each on one line.

        Literal secrets are hidden unless `reveals`.
        """
        env, headers = (self.env, self.headers) if reveals else (self.shown_env, self.shown_headers)
        lines = [f"env {name}={value}" for name, value in env.items()]
        lines += [f"header {name}: {value}" for name, value in headers.items()]
        return [on_one_line(line) for line in lines]

    def sha256(self, root: Path) -> str:
        """Return a digest of this server's entry and its workspace, which changes with each of them."""
        texts = (self.name, self.command, self.args, dict(self.env), self.url, dict(self.headers))
        said = [os.path.realpath(root), *texts]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "replace")).hexdigest()


_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_SCHEME = re.compile(r"\s*(?:bearer|basic|token)?\s*", re.IGNORECASE)


def _without_secrets(name: str, value: str) -> str:
    """Return the value of a variable or header as in the file, without literal text if the name is that of a secret."""
    variable = name.replace("-", "_")
    if name.lower() in _SECRET_HEADERS or is_secret(variable) or is_secret(f"_{variable}"):
        if not _SCHEME.fullmatch(_REFERENCE.sub("", value)):
            return hidden(value)
        value = _REFERENCE.sub(lambda found: f"${{{found[1]}:-{hidden(found[2])}}}" if found[2] else found[0], value)
    return redact(value)


class _Entry(Struct):
    """The entry of a server in `.mcp.json`. Fields that only other programs use are passed over."""

    type: str | None = None
    command: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}


class Found(NamedTuple):
    """The servers of a file by name, and by name why other entries cannot be used."""

    servers: dict[str, McpServer]
    invalid: dict[str, str]


def read(root: Path) -> Found:
    """Return the servers of a workspace's `.mcp.json`; empty if there is no such file.

    Raises:
        BadDataError: The file cannot be read, is not valid JSON, has no object `mcpServers`, or is too large.
    """
    if not os.path.lexists(root / FILE):
        return Found({}, {})
    try:
        with open_folder(root, ".") as folder:
            return parse(read_regular(folder, FILE).decode("utf-8", "replace"))
    except OSError as error:
        raise BadDataError(f"{FILE}: {error.strerror}") from error


def parse(text: str) -> Found:
    """Return the servers that the text of `.mcp.json` names.

    Raises:
        BadDataError: The text is not valid JSON, has no object `mcpServers`, or is too large.
    """
    if len(text) > MAX_TEXT:
        raise BadDataError(f"{FILE} is longer than {MAX_TEXT} characters; remove servers")
    try:
        data = json.loads(text)
        check_depth(data)
        # Half of a character, as `\ud800`, can be neither stored nor shown.
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"{FILE} is no valid JSON: {error}") from error
    servers = data.get("mcpServers") if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise BadDataError(f'{FILE} has no object mcpServers: write {{"mcpServers": {{"NAME": {{"command": …}}}}}}')
    return servers_in(servers, FILE)


def servers_in(entries: Mapping[str, Any], source: str, *, with_type: bool = False) -> Found:
    """Return the servers in a mapping of names to entries; invalid entries are reported in the result.

    `source` is the file that has the entries. With `with_type`, it is the file of an agent's type.
    """
    found = Found({}, {})
    for number, (name, entry) in enumerate(entries.items()):
        try:
            if number >= MAX_SERVERS:
                raise BadDataError(f"{source} names more than {MAX_SERVERS} servers; remove some")
            found.servers[name] = _server(name, entry, source, with_type=with_type)
        except BadDataError as error:
            found.invalid[name[:64]] = str(error)
    return found


def _server(name: str, entry: Any, source: str, *, with_type: bool) -> McpServer:  # noqa: ANN401  whatever the file says
    """Return the server that an entry defines.

    Raises:
        BadDataError: The entry is invalid.
    """
    if not _NAME.fullmatch(name):
        raise BadDataError("a name has 1 to 32 of A-Z a-z 0-9 _ -, and no two underscores in a row")
    try:
        given = convert(entry, _Entry, strict=False)
    except ValidationError as error:
        raise BadDataError(describe_invalid(error, "it")[:300]) from error
    kind = given.type or ("http" if given.url else "stdio")
    if kind in _REMOTE:
        if not re.match(r"https?://", given.url):
            raise BadDataError("url: it does not begin with https:// or http://")
        if wrong := [key for key in given.headers if not _HEADER.fullmatch(key)]:
            raise BadDataError(f"headers: {wrong[0]!r} is no name of a header")
        return _checked(McpServer(name, source, url=given.url, headers=given.headers, with_type=with_type))
    if kind != "stdio":
        raise BadDataError(f"type {kind}: crewboard connects to servers of type stdio and http")
    if not given.command.strip():
        raise BadDataError("no command is given; write one, or a url")
    if wrong := [key for key in given.env if not _VARIABLE_NAME.fullmatch(key) or key.startswith(env.PREFIX)]:
        raise BadDataError(
            f"env: {wrong[0]!r} cannot name a variable of a server: use A-Z a-z 0-9 _, and begin with a letter, "
            f"not with {env.PREFIX}"
        )
    return _checked(McpServer(name, source, given.command, tuple(given.args), given.env, with_type=with_type))


def _checked(server: McpServer) -> McpServer:
    """Return a server whose variables may be used where they stand.

    Raises:
        BadDataError: One may not, whatever its value is.
    """
    shown = [server.command, *server.args, server.url]
    seen = {found[1] for text in shown for found in _REFERENCE.finditer(text)}
    for name in server.variables:
        if name.startswith((env.API_PREFIX, env.PREFIX)):
            raise BadDataError(f"${{{name}}}: no server gets the variables of crewboard and of its API")
        if name in seen and is_secret(name):
            raise BadDataError(
                f"${{{name}}} may hold a secret, so it cannot be in command, args or url; use env or headers"
            )
    return server


def of_type(kind: AgentType) -> Found:
    """Return the servers that the file of an agent's type defines."""
    return servers_in(kind.mcp_servers, kind.file or f"the type {kind.name}", with_type=True)


class Resolved(NamedTuple):
    """A server with the values of variables filled in; `secrets` are the values that must be redacted."""

    arguments: list[str]
    env: dict[str, str]
    url: str
    headers: dict[str, str]
    secrets: list[str]


def resolve(server: McpServer, environment: Mapping[str, str]) -> Resolved:
    """Return a server with the values of variables filled in.

    Raises:
        BadDataError: A variable is not set.
    """
    secrets: list[str] = []

    def fill(text: str, *, is_shown: bool = False) -> str:
        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            given = environment.get(name) or default
            if given is None:
                raise BadDataError(
                    f"the variable {name} is not set in the shell that started the agent; set it, then stop and resume "
                    f"the agent, or write a default: ${{{name}:-DEFAULT}}"
                )
            if name in environment and not is_shown:
                secrets.append(given)
            return given

        return _REFERENCE.sub(value, text)

    return Resolved(
        [fill(each, is_shown=True) for each in (server.command, *server.args)],
        {key: fill(each) for key, each in server.env.items()},
        fill(server.url, is_shown=True),
        {key: fill(each) for key, each in server.headers.items()},
        secrets,
    )


_RECORDS = "mcp"


def is_accepted(server: McpServer, root: Path, environment: Mapping[str, str]) -> bool:
    """Return True if the user accepted this server as it is now, or it is accepted with its type."""
    record = consent.find(_RECORDS, server.name, root, environment)
    return server.with_type or (record is not None and record.holds_for(server.sha256(root)))


def accept(server: McpServer, root: Path, environment: Mapping[str, str]) -> None:
    """Record that the user accepts a server of a workspace; it is new again once its entry changes.

    Raises:
        StorageError: It could not be recorded.
    """
    key = server.sha256(root)
    record = Acceptance(server.name, os.path.realpath(root), key, parts=_digests(server, key))
    consent.accept(_RECORDS, record, environment)


def _digests(server: McpServer, key: str) -> dict[str, str]:
    """Return a short digest of each part of an entry, by name. No value is kept, because one can be a secret."""
    parts: dict[str, Any] = {"command": server.command, "args": server.args, "url": server.url}
    parts |= {f"env {name}": value for name, value in server.env.items()}
    parts |= {f"header {name}": value for name, value in server.headers.items()}
    texts = {name: json.dumps([key, name, value]).encode("utf-8", "replace") for name, value in parts.items() if value}
    return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in texts.items()}


def accepted_names(root: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the names of the servers that the user accepted in a workspace, also of those no longer in its file."""
    return sorted(record.name for record in consent.find_all(_RECORDS, root, environment) if record.sha256)


def changes(server: McpServer, root: Path, environment: Mapping[str, str]) -> list[str]:
    """Return which parts of a server's entry changed since the user accepted it; empty if the user never did."""
    record = consent.find(_RECORDS, server.name, root, environment)
    if record is None or not record.sha256:
        return []
    now = _digests(server, record.sha256)
    return sorted(part for part in {*now, *record.parts} if now.get(part) != record.parts.get(part))


def describe_new(server: McpServer, root: Path, environment: Mapping[str, str]) -> str:
    """Return on one line why a server is not used before the user accepts it, and what it would run or call."""
    changed = changes(server, root, environment)
    why = f"changed since you accepted it ({', '.join(changed)})" if changed else "is new or changed"
    shows = f"`crewboard mcp` shows it, `crewboard mcp approve {server.name}` accepts it"
    # The settings first, because a long command line is cut.
    details = [*(_cut(each) for each in server.settings()), f"{'calls' if server.url else 'runs'} {_cut(server.shown)}"]
    return f"{server.source} {why}: {shows}; {'; '.join(details)}"


_MOST_SHOWN = 100


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def revoke(name: str, root: Path, environment: Mapping[str, str]) -> bool:
    """Revoke the acceptance of the server called `name`, so that agents lose it; return True if it was accepted.

    Raises:
        StorageError: It could not be recorded.
    """
    was_accepted = name in accepted_names(root, environment)
    if was_accepted:
        consent.accept(_RECORDS, Acceptance(name, os.path.realpath(root), ""), environment)
    return was_accepted


def find(root: Path, name: str) -> McpServer:
    """Return the server called `name` in a workspace's `.mcp.json`.

    Raises:
        BadDataError: The file cannot be read, or the entry is invalid.
        UsageError: There is no such server; the message lists the servers.
    """
    found = read(root)
    if name in found.invalid:
        raise BadDataError(f"the server {name} of {FILE} cannot be used: {found.invalid[name]}")
    if name not in found.servers:
        known = f"it names {', '.join(found.servers)}" if found.servers else "add it to the file"
        raise UsageError(f"{FILE} has no server {name!r}; {known}")
    return found.servers[name]
