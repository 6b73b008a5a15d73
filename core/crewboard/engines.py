"""Engines: programs of others that do the work of an agent in place of the model, over the Agent Client Protocol.

The user has installed them and is logged in; crewboard finds them on PATH, and never installs, bundles or downloads
one. Those in `KNOWN` were tested. `acp:COMMAND` names any other one, which may not work.
"""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from crewboard.errors import UsageError
from crewboard.records.agents import Engine
from crewboard.unix import programs

OTHER = "acp:"
"""The beginning of the name of an engine that is not in `KNOWN`; its command follows."""

_MOST_FOLDERS = 4
"""Most folders above a program in which the description of its package is looked for."""

Setting = tuple[str, Mapping[str, str]]
"""A request that changes a setting of a session: its method and its parameters."""


class KnownEngine(Struct, frozen=True):
    """Facts about an engine: how it is started, which versions were tested, what it can do and lacks.

    - `program` is its command, `package` its npm package, `tested` its tested versions, the last one to be recommended.
    - `work` and `plan` are requests that set a session to work, or to plan only. One of them is sent after each start,
      because some engines forget it.
    - `variables` of the user's environment are passed to it. `set_variables` are set for it by crewboard.
    - `keys` are the variables with a key for its API. The address of the API is in the variable `address`, else `api`.
      `redirected` are variables that make it send its requests to `{url}`, where the worker adds the key.
    - `hosts` are those that it needs with a login. Without any, it reaches nothing unless its agent has the network.
    - `prefers_login` says that it uses a login even if there is a key. `folder` is its folder of files below the home,
      `folder_variable` the variable that names another one, `login` the file in it with the user's login, and `log_in`
      says how to log in.
    - `tells_cost`: it tells what a session has cost since its start. `asks`: it asks before some of its calls.
    - `loads`: it has replayed the whole session when it answers that the session is loaded.
    - `memory` is how many bytes its processes take; the default is an assumption.
    - `patience` is how many seconds it waits for a tool; None if it waits for hours.
    - `lacks` are sentences about what it cannot do.
    - `lost` are words of an error by which a program below it, and so its session, has ended.
    - `names_texts`: each text of its model has an id, so a text without an id is the engine's own. If that begins as in
      `remarks`, it does not matter to the turn; any other one is the error with which the turn ended.
    - `unavailable` are words of such an error after which its API may answer later.
    - `stored` is a pattern of the files in its folder that hold the session `{}`, if it may replay only a part of them.
    - `own_tools`: it works with tools of its own; False if with crewboard's alone.
    - `session` are more parameters with which its sessions are begun and loaded, such as those that switch off its own
      tools.
    """

    name: str
    title: str
    program: str = ""
    package: str = ""
    tested: tuple[str, ...] = ()
    work: tuple[Setting, ...] = ()
    plan: tuple[Setting, ...] = ()
    variables: tuple[str, ...] = ()
    set_variables: Mapping[str, str] = {}
    keys: tuple[str, ...] = ()
    address: str = ""
    api: str = ""
    redirected: Mapping[str, str] = {}
    hosts: tuple[str, ...] = ()
    prefers_login: bool = False
    folder: str = ""
    folder_variable: str = ""
    login: str = ""
    log_in: str = ""
    tells_cost: bool = False
    asks: bool = True
    loads: bool = True
    memory: int = 300 << 20
    patience: float | None = 60.0
    lacks: tuple[str, ...] = ()
    lost: tuple[str, ...] = ("process exited unexpectedly", "session has ended")
    names_texts: bool = False
    remarks: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    stored: str = ""
    own_tools: bool = True
    session: Mapping[str, Any] = {}

    @property
    def plans(self) -> bool:
        """Return True if the engine has a mode in which it plans and asks for approval of its plan."""
        return bool(self.plan)

    @property
    def works_with(self) -> str:
        """Return on one line which tools the engine works with, its own or crewboard's, and what follows."""
        if self.own_tools:
            return "its own tools: the sandbox limits them, and undo puts back its whole checkout"
        return "crewboard's tools: the plan gate and your rules decide each call, and undo puts back single files"

    def users_folder(self, home: Path, environment: Mapping[str, str]) -> Path:
        """Return the engine's folder of files for a user with this home and environment."""
        return home / (environment.get(self.folder_variable) or self.folder)

    def login_of(self, home: Path, environment: Mapping[str, str]) -> Path | None:
        """Return the file with the login of a user with this home and environment; None if there is no such file."""
        login = self.users_folder(home, environment) / self.login
        return login if self.login and login.is_file() else None


_CLAUDE = KnownEngine(
    name="claude",
    title="Claude Code",
    program="claude-agent-acp",
    package="@agentclientprotocol/claude-agent-acp",
    tested=("0.101.0",),
    # Its own first mode lets a model decide in the user's place.
    work=(("session/set_mode", {"modeId": "default"}),),
    plan=(("session/set_mode", {"modeId": "plan"}),),
    variables=("ANTHROPIC_BASE_URL", "CLAUDE_CODE_EXECUTABLE", "CLAUDE_CODE_OAUTH_TOKEN"),
    # It would ask for a next prompt of the user behind each turn, with the whole conversation.
    set_variables={"CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false"},
    keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    address="ANTHROPIC_BASE_URL",
    api="https://api.anthropic.com",
    redirected={"ANTHROPIC_BASE_URL": "{url}"},
    hosts=("api.anthropic.com",),
    folder=".claude",
    folder_variable="CLAUDE_CONFIG_DIR",
    login=".credentials.json",
    log_in="`claude`, then /login",
    tells_cost=True,
    patience=None,
)

_GATED = structs.replace(
    _CLAUDE,
    name="claude-gated",
    title="Claude Code with crewboard's tools",
    # Its plan mode ends by a tool of its own.
    plan=(),
    set_variables={
        **_CLAUDE.set_variables,
        # A result of our tools is longer than what it takes by itself; it would write the rest into a file.
        "MAX_MCP_OUTPUT_TOKENS": "100000",
        # It has no tool to look for tools, so it is shown all at once.
        "ENABLE_TOOL_SEARCH": "false",
    },
    # `createSession` in `dist/acp-agent.js` of claude-agent-acp 0.101.0 passes these on, and `sdk.d.ts` of the Claude
    # Agent SDK says what they mean: no tool that is built in, no settings with hooks or plugins, no server but ours.
    session={
        "systemPrompt": "You work with the tools of the MCP server crewboard; you have no other ones.",
        "claudeCode": {"options": {"tools": [], "settingSources": [], "strictMcpConfig": True}},
    },
    own_tools=False,
    lacks=("it has no plan mode: it submits plans with submit_plan", "it has no web, no skills and no MCP servers"),
)

_CODEX = KnownEngine(
    name="codex",
    title="Codex",
    program="codex-acp",
    package="@agentclientprotocol/codex-acp",
    tested=("2.6.0",),
    # Its own sandbox does not start inside of ours, which holds it.
    work=(
        ("session/set_mode", {"modeId": "agent-full-access"}),
        ("session/set_config_option", {"configId": "collaboration_mode", "value": "default"}),
    ),
    plan=(
        ("session/set_mode", {"modeId": "agent-full-access"}),
        ("session/set_config_option", {"configId": "collaboration_mode", "value": "plan"}),
    ),
    variables=("CODEX_PATH",),
    keys=("CODEX_API_KEY", "OPENAI_API_KEY"),
    address="OPENAI_BASE_URL",
    api="https://api.openai.com/v1",
    # It takes neither an address nor a key from its environment without these.
    redirected={
        "CODEX_CONFIG": '{"openai_base_url": "{url}"}', "DEFAULT_AUTH_REQUEST": '{"methodId": "api-key"}',
    },
    hosts=("chatgpt.com", "api.openai.com"),
    prefers_login=True,
    folder=".codex",
    folder_variable="CODEX_HOME",
    login="auth.json",
    log_in="`codex login`",
    memory=250 << 20,
    asks=False,
    lacks=(
        "it does not tell what it costs", "it never asks before a call: only the sandbox limits it",
        "its own shell cannot be switched off for certain, so there is no codex-gated",
    ),
    lost=("app-server", "Codex process"),
    names_texts=True,
    remarks=("Warning: ", "Config warning: ", "*Context compacted"),
    unavailable=(
        "stream disconnected", "exceeded retry limit", "error sending request", "at capacity", "high demand",
    ),
    # It replays from an index of these files, which may lack the end of one that was cut off.
    stored="sessions/*/*/*/rollout-*{}.jsonl",
)  # fmt: skip

KNOWN = {each.name: each for each in (_CLAUDE, _GATED, _CODEX)}
"""The engines that were tested, by name."""

_ANY = KnownEngine(
    name="acp",
    title="another engine",
    # Some go on to replay behind their answer: that would be taken for the next turn, and mail be missed in it.
    loads=False,
)


def known(name: str) -> KnownEngine:
    """Return the facts about the engine called `name` in a spec; general ones if it is not in `KNOWN`."""
    return KNOWN.get(name, _ANY)


def title_of(package: str, version: str) -> str:
    """Return an engine's title with its package and version, such as `Claude Code (claude-agent-acp 0.101.0)`.

    `package` and `version` are what the engine states at its start. Without a known title, they alone are returned.
    """
    said = f"{package} {version}".strip()
    title = next((each.title for each in KNOWN.values() if each.package == package), "")
    return f"{title} ({said.rpartition('/')[2]})" if title else said


class FoundEngine(Struct, frozen=True):
    """A known engine on this machine: the `path` of its program, None if it is missing, and its version.

    `version` is empty if its package does not state one.
    """

    engine: KnownEngine
    path: Path | None = None
    version: str = ""
    why_not: str = ""
    """Why the engine cannot be used; empty if it can."""

    @property
    def is_tested(self) -> bool:
        """Return True if the installed version was tested."""
        return self.version in self.engine.tested

    def describe(self) -> str:
        """Return on one line the installed version and whether it was tested, or why the engine cannot be used."""
        if self.path is None:
            return self.why_not
        version = self.version or "of an unknown version"
        return f"{version} ({'tested' if self.is_tested else f'not tested; tested is {self.engine.tested[-1]}'})"


def find_all(workspace: Path) -> list[FoundEngine]:
    """Return each known engine as it is on this machine. Programs in `workspace` are not used."""
    return [_find(each, workspace) for each in KNOWN.values()]


def _find(engine: KnownEngine, workspace: Path) -> FoundEngine:
    path = programs.find_program(engine.program, workspace)
    if path is None:
        why = programs.passed_over(engine.program) or f"{engine.program} is not on PATH"
        return FoundEngine(engine, why_not=why)
    # The version is that of its npm package, so that the program is not started.
    for folder in list(Path(os.path.realpath(path)).parents)[:_MOST_FOLDERS]:
        try:
            found: Any = json.loads((folder / "package.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found.get("name") == engine.package:
            return FoundEngine(engine, path, str(found.get("version") or ""))
    return FoundEngine(engine, path)


def _logins(engine: KnownEngine, home: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the names of variables and the path of the file with logins that an engine would use."""
    found = [name for name in engine.variables if name.endswith("_TOKEN") and environment.get(name)]
    has_key = any(environment.get(name) for name in engine.keys)
    login = engine.login_of(home, environment)
    if login is not None and (engine.prefers_login or not has_key):
        found.append(f"~/{login.relative_to(home)}" if login.is_relative_to(home) else str(login))
    return found


def describe_access(engine: KnownEngine, home: Path, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return `login` or `key`, by which a known engine gets access to its API, and a description of that access.

    The first text is empty if there is neither; the second one then says what to do.
    """
    if logins := _logins(engine, home, environment):
        return "login", f"your login, {' and '.join(logins)}"
    if keys := [name for name in engine.keys if environment.get(name)]:
        return "key", f"your key, {keys[0]}"
    return "", f"no login and no key: log in with {engine.log_in}, or set {engine.keys[0]}"


def lacks_access(engine: KnownEngine, environment: Mapping[str, str], home: Path | None = None) -> str:
    """Return what to do if a known engine has neither a login nor a key of the user; empty if nothing is missing."""
    kind, said = describe_access(engine, home or Path.home(), environment) if engine.keys else ("none", "")
    return "" if kind else said


def needed_login(engine: KnownEngine) -> str:
    """Return how to log in to an engine; empty if the engine has a login or a key of the user."""
    return "" if describe_access(engine, Path.home(), os.environ)[0] else engine.log_in


def describe_costs(text: str, home: Path, environment: Mapping[str, str], *, network: bool) -> str:
    """Return on one line how much memory an engine takes, what it sees and what it reaches, or what it lacks to work.

    `text` is the name of the engine. `network` says that its agent has the network.
    """
    engine = known(text)
    takes = f"takes about {engine.memory >> 20} MiB"
    if missing := lacks_access(engine, environment, home):
        return f"{takes}; it has {missing}"
    logins = _logins(engine, home, environment)
    sees = f"your login, {' and '.join(logins)}" if logins else "no key"
    reaches = "any address" if network else "its API alone" if engine.hosts else "no address"
    if not engine.own_tools:
        # Its commands are calls of crewboard, each in a sandbox of its own.
        theirs = "any address" if network else "nothing"
        return (
            f"{takes}; it sees {sees}, and reaches {reaches}; its commands see no login and no key, and reach {theirs}"
        )
    return f"{takes}; it and its commands see {sees}, and reach {reaches}"


def choose(text: str, workspace: Path | None) -> Engine:
    """Return the engine that a hire names: a known one, or `acp:COMMAND`.

    Without a `workspace` it has to be a known one; its host finds the program when the agent starts.

    Raises:
        UsageError: There is no such engine, or its program cannot be used here; the message says what to do.
    """
    if text.startswith(OTHER):
        if workspace is None:
            raise UsageError(f"the hosts of a team start no engine but these: {', '.join(KNOWN)}")
        try:
            words = shlex.split(text.removeprefix(OTHER))
        except ValueError as error:
            raise UsageError(f"the command of the engine {text!r} cannot be read: {error}") from None
        if not words:
            raise UsageError("acp: needs the command of an engine, such as 'acp:gemini --experimental-acp'")
        name = words[0]
        program = programs.find_user_program(name) if "/" in name else programs.find_program(name, workspace)
        if program is None:
            why = programs.passed_over(name) or f"there is no program {name}"
            raise UsageError(f"the engine {text!r} cannot be used: {why}")
        return Engine(name="acp", command=[str(program), *words[1:]], own_tools=known("acp").own_tools)
    engine = KNOWN.get(text)
    if engine is None:
        names = ", ".join(KNOWN)
        raise UsageError(f"there is no engine {text!r}; the engines are {names}, or any other one as acp:COMMAND")
    if workspace is None:
        return Engine(name=engine.name, command=[], own_tools=engine.own_tools)
    found = _find(engine, workspace)
    if found.path is None:
        install = f"npm install -g {engine.package}@{engine.tested[-1]}"
        raise UsageError(f"the engine {text} cannot be used: {found.why_not}; `{install}` installs it")
    return Engine(name=engine.name, command=[str(found.path)], own_tools=engine.own_tools)


def named(engine: Engine) -> str:
    """Return the text with which a hire names an engine."""
    return engine.name if engine.name in KNOWN else f"{OTHER}{shlex.join(engine.command)}"


def is_same(text: str, engine: Engine | None, workspace: Path) -> bool:
    """Return True if the engine that a hire names with `text` is the one that an agent has.

    Raises:
        UsageError: There is no such engine, or its program cannot be used here.
    """
    if text in KNOWN:
        # Its program may have moved since the agent was hired.
        return engine is not None and engine.name == text
    return choose(text, workspace) == engine
