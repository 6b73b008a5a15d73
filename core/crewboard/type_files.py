"""Read, write and accept the files of custom agent types; the built-in types are in `agent_types.py`.

A project defines types in Markdown files with a front matter, in the form of crewboard or of Claude Code.
`.crewboard/agents/*.md` takes precedence over `.claude/agents/*.md`. Tools are mapped by name. A tool that crewboard
does not have is left out, so that a type never may do more than its file says. A file without `tools` gets the tools of
`code`, because in Claude Code such a file means all tools. A field chooses or narrows: none gives an agent more than
its hire does. An invalid file is reported and skipped; parts of a valid file that have no effect are reported.

The files can come with a cloned repository, and an agent can write them. So they are read with limits, no link is
followed, and the user has to accept each file, by its content, before an agent of its type is hired.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from msgspec import Meta, Struct, ValidationError, convert, field

from crewboard import consent, models
from crewboard.agent_types import (
    ALL_MCP,
    GATED_TOOLS,
    LEAD_TOOLS,
    MCP_PREFIX,
    READ_TOOLS,
    TEAM_TOOLS,
    TYPES,
    WRITE_TOOLS,
    AgentType,
    agent_type,
    describe_powers,
)
from crewboard.errors import BadDataError, StorageError, UntrustedError, UsageError
from crewboard.names import RESERVED_AGENTS, is_name
from crewboard.records.agents import Effort, Thinking, ToolPattern
from crewboard.records.base import describe_invalid
from crewboard.web import check_domains

FOLDERS = (".crewboard/agents", ".claude/agents")

SKILLS_FOLDER = ".claude/skills"
"""The folder of skills, in a project and in the user's home directory; each skill is in a folder of its own."""

SKILL_FILE = "SKILL.md"

MAX_FILE_SIZE = 256 * 1024
"""Most bytes of a file that is read."""

MAX_FRONT = 16 * 1024
"""Most characters of a front matter."""

MAX_DEPTH = 8
"""Most levels to which values in a front matter may be nested."""

MAX_FILES = 200
"""Most files of one folder that are read."""

_CLAUDE_CODE_TOOLS: dict[str, tuple[str, ...]] = {
    "Read": ("read_file",), "Write": ("write_file",), "Edit": ("edit_file",), "MultiEdit": ("edit_file",),
    "Bash": ("bash",), "Glob": ("glob",), "Grep": ("grep",), "LS": ("list_dir",), "ExitPlanMode": ("submit_plan",),
    "BashOutput": (), "KillBash": (), "KillShell": (), "TodoWrite": (), "Skill": (), "AskUserQuestion": (),
    "SendMessage": (), "TaskList": (), "TaskGet": (), "TaskUpdate": (),
}  # fmt: skip
"""Claude Code's tool names, with the tools of crewboard that they stand for; empty for a tool that every agent has."""

_SUPPORTED_TOOLS = frozenset({*READ_TOOLS, "bash", *WRITE_TOOLS, "submit_plan"})

_TOOL = re.compile(r"([^(]*)(?:\((.*)\))?", re.DOTALL)
"""A tool in a file: its name, and a pattern in parentheses if there is one."""

_TOOL_LIST = re.compile(r"(?:[^,(]|\([^)]*\)?)+")
"""One of the tools in a list on one line: a comma in parentheses belongs to a pattern."""

_COMMAND_PATTERN = re.compile(r"[\w./+-][\w ./:@%+=,-]{0,200}\*?", re.ASCII)
"""A pattern of commands, which is compared word by word; `*` at its end stands for more words."""

_PATH_PATTERN = re.compile(r"(?![/~])(?!.*\.\.)[\w./@+*-]{1,200}", re.ASCII)

_FRONT = re.compile(r"\A---[ \t]*\n(.*?\n)---[ \t]*(?:\n(.*))?\Z", re.DOTALL)

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
"""YAML's texts for no value. All scalars are read as texts, because dates and numbers can be malformed."""

_Worktree = Literal["always", "never"]

_Isolation = Literal["worktree"]

_Mode = Literal["default", "acceptEdits", "plan", "auto", "dontAsk", "bypassPermissions"]

_Turns = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,5}$")]

_MODES: dict[str, dict[str, Any]] = {
    "default": {"asks": "all"}, "dontAsk": {"asks": "all"}, "acceptEdits": {"asks": "commands"}, "plan": {"plan": True},
}  # fmt: skip
"""The fields of `AgentType` that each `permissionMode` sets. The other modes would allow more than the hire does."""

_NOT_OBEYED = "permissionMode: {} is never obeyed; the options of the hire decide what an agent may do"

_NO_EFFECT = {
    "background": "say --background when you hire it",
    "hooks": "no hooks of files are run",
    "initialPrompt": "the prompt of the hire is used",
    "memory": "put what it should know into its instructions",
}
"""Fields of Claude Code that have no effect here, with a sentence about each."""

_NOT_FOR_ENGINES = ("effort", "mcp", "mcpServers", "model", "skills", "thinking")
"""Fields that have no effect where an engine works: it has its own model, skills and MCP servers."""

_DECORATIVE = frozenset({"color"})
"""Fields of Claude Code that do not change what an agent does, and need no report."""

_LONGEST_ENGINE = 500
"""Most characters of an engine's command: all of it is shown before the file is accepted."""

_YES_NO = ("true", "false")


_Servers = dict[str, dict[str, Any]] | list[str | dict[str, dict[str, Any]]] | str
"""MCP servers: names, or definitions as in `.mcp.json`."""


class _Front(Struct, kw_only=True):
    name: str
    description: Annotated[str, Meta(min_length=1)]
    tools: list[str] | str | None = None
    disallowed: list[str] | str | None = field(name="disallowedTools", default=None)
    skills: list[str] | str | None = None
    model: str | None = None
    worktree: _Worktree | None = None
    isolation: _Isolation | None = None
    effort: Effort | None = None
    thinking: Thinking | None = None
    mode: _Mode | None = field(name="permissionMode", default=None)
    max_turns: _Turns | None = field(name="maxTurns", default=None)
    engine: Annotated[str, Meta(min_length=1, max_length=_LONGEST_ENGINE)] | None = None
    web: Literal["true", "false"] | None = None
    allowed_domains: list[str] | str | None = None
    mcp: _Servers | None = None
    mcp_servers: _Servers | None = field(name="mcpServers", default=None)

    def __post_init__(self) -> None:
        if not is_name(self.name) or self.name in RESERVED_AGENTS:
            raise ValueError(f"name: {self.name!r} cannot name a type")
        if self.name in TYPES:
            raise ValueError(f"name: {self.name!r} is a built-in type; choose another name")
        if self.worktree == "never" and self.isolation is not None:
            raise ValueError("isolation: worktree contradicts worktree: never; remove one of them")
        try:
            self.allowed_domains = check_domains(_listed(self.allowed_domains) or ())
        except UsageError as error:
            raise ValueError(f"allowed_domains: {error}") from error

    @property
    def has_worktree(self) -> bool | None:
        """Return True if its agents get checkouts of their own, False if not; None if the file does not say."""
        return True if self.isolation is not None else None if self.worktree is None else self.worktree == "always"

    @property
    def servers(self) -> list[str | dict[str, dict[str, Any]]] | None:
        """Return the MCP servers of the file, names and definitions; None if it does not say."""
        given = self.mcp if self.mcp is not None else self.mcp_servers
        if isinstance(given, str):
            return [part.strip() for part in given.split(",") if part.strip()]
        return [given] if isinstance(given, dict) else given

    @property
    def inline_servers(self) -> dict[str, dict[str, Any]]:
        """Return the definitions of MCP servers in the file, by name."""
        return {name: entry for each in self.servers or () if isinstance(each, dict) for name, entry in each.items()}


_NULLABLE = tuple(name for name in _Front.__struct_encode_fields__ if name not in ("name", "description"))

_CHOICES = {
    "worktree": get_args(_Worktree), "isolation": get_args(_Isolation), "permissionMode": get_args(_Mode),
    "effort": get_args(Effort), "thinking": get_args(Thinking), "web": _YES_NO,
}  # fmt: skip
"""The values of each field that has a fixed set of values."""


@dataclass(frozen=True)
class InvalidFile:
    """A file or folder that is skipped, and why."""

    path: Path
    why: str


def find_all(root: Path) -> tuple[dict[str, AgentType], list[InvalidFile]]:
    """Return every type of this workspace by name, the built-in ones first, and the invalid files."""
    types, broken = dict(TYPES), []
    for folder in FOLDERS:
        try:
            with open_folder(root, folder) as opened:
                names = sorted(entry for entry in os.listdir(opened) if entry.endswith(".md"))  # noqa: PTH208  a descriptor
                too_many = f"the folder has more than {MAX_FILES} types"
                broken += [InvalidFile(root / folder / name, too_many) for name in names[MAX_FILES:]]
                for name in names[:MAX_FILES]:
                    try:
                        own = _parse(read_regular(opened, name), f"{folder}/{name}")
                    except BadDataError as error:
                        broken.append(InvalidFile(root / folder / name, str(error)))
                    else:
                        types.setdefault(own.name, replace(_name_missing_skills(own, root), root=str(root)))
        except FileNotFoundError:
            continue
        except OSError as error:
            broken.append(InvalidFile(root / folder, _reason(error)))
    return types, broken


def _name_missing_skills(kind: AgentType, root: Path) -> AgentType:
    """Return a type whose `not_understood` also has the skills that neither the project nor the user has."""
    if not kind.skills:
        return kind
    folders = [root / SKILLS_FOLDER, Path("~", SKILLS_FOLDER).expanduser()]
    missing = [
        f"skills: {name[:_MOST_OF_NAME]} is not found in {SKILLS_FOLDER} or ~/{SKILLS_FOLDER}"
        for name in kind.skills
        # A name that no system takes is none.
        if not any(os.path.isfile(folder / name / SKILL_FILE) for folder in folders)  # noqa: PTH113  it raises nothing
    ]
    return replace(kind, not_understood=(*kind.not_understood, *missing))


@contextlib.contextmanager
def open_folder(root: Path, folder: str) -> Iterator[int]:
    """Open a folder below the root, and yield its file descriptor; no link is followed on the way.

    Raises:
        OSError: It cannot be opened, or a step of the way is a link (ENOTDIR).
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    opened = os.open(root, flags)
    try:
        for step in folder.split("/"):
            inner = os.open(step, flags | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def read_regular(folder: int, name: str) -> bytes:
    """Return the contents of the file `name` in an open folder.

    Raises:
        BadDataError: It cannot be read, is a link or not a regular file, has a hard link, or is too large.
    """
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise BadDataError("not a regular file, or one with a second name (a hard link)")
            data = os.read(opened, MAX_FILE_SIZE + 1)
        finally:
            os.close(opened)
    except OSError as error:
        raise BadDataError(_reason(error)) from error
    if len(data) > MAX_FILE_SIZE:
        raise BadDataError(f"larger than {MAX_FILE_SIZE} bytes")
    return data


def _reason(error: OSError) -> str:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a symbolic link, or no folder; links are not followed"
    return error.strerror or str(error)


def find(root: Path, name: str) -> AgentType:
    """Return the type called `name` in this workspace.

    Raises:
        UsageError: There is no such type; the message lists the types.
    """
    if name in TYPES:
        return agent_type(name)
    types, broken = find_all(root)
    if name not in types:
        # Of the files that were skipped, only the one that was meant matters here.
        meant = next((file for file in broken if file.path.stem == name), None)
        skipped = f"; {meant.path.name} was skipped: {meant.why}" if meant is not None else ""
        if broken and meant is None:
            skipped = "; `crewboard types` names the files that were skipped"
        raise UsageError(f"there is no agent type {name!r}; the types are {', '.join(types)}{skipped}")
    return types[name]


def _parse(data: bytes, file: str) -> AgentType:
    """Return the type that a file defines. `data` are its contents, `file` is its path from the root.

    Raises:
        BadDataError: It defines none; the message says what is wrong.
    """
    fields: Any = None
    try:
        found = _FRONT.match(data.decode().replace("\r\n", "\n"))
        if found is None:
            raise BadDataError("no front matter between two lines of ---")
        fields = _load_front(found[1])
        front = convert(_without_null(fields), _Front)
    except UnicodeDecodeError as error:
        raise BadDataError(str(error)) from error
    except ValidationError as error:
        raise BadDataError("; ".join(_name_problems(_without_null(fields), error))) from error
    model = models.ALIASES.get(front.model or "", front.model) if front.model != "inherit" else None
    tools = _read_tools(front)
    mcp, body = _mcp_patterns(front), (found[2] or "").strip()
    without_effect = [f"{name}: {why}" for name, why in _NO_EFFECT.items() if name in fields]
    if front.engine:
        given = [name for name in _NOT_FOR_ENGINES if name in fields]
        given += [
            f"tools: {each[:_MOST_OF_NAME]}" for each in _listed(front.tools) or () if each.startswith(MCP_PREFIX)
        ]
        without_effect += [f"{each}: not for an agent with an engine" for each in given[:_MOST_NAMED]]
    known = {*_Front.__struct_encode_fields__, *_NO_EFFECT, *_DECORATIVE}
    unknown = [f"{name[:_MOST_OF_NAME]}: there is no such field" for name in fields if name not in known]
    mode = [_NOT_OBEYED.format(front.mode)] if front.mode is not None and front.mode not in _MODES else []
    return AgentType(
        front.name, tools.names, model or TYPES["code"].model, " ".join(front.description.split()), body,
        worktree=front.has_worktree, effort=front.effort, thinking=front.thinking,
        web=front.web == "true" and not tools.denies_web, allowed_domains=tuple(front.allowed_domains or ()),
        mcp=mcp, mcp_servers=front.inline_servers,
        max_turns=int(front.max_turns) if front.max_turns is not None else None, only=tools.only, denied=tools.denied,
        skills=tuple(_listed(front.skills) or ())[:_MOST_NAMED], engine=front.engine or "", left_out=tools.left_out,
        not_understood=(*mode, *tools.ignored, *without_effect, *unknown[:_MOST_NAMED]),
        file=file, sha256=hashlib.sha256(data).hexdigest(), **_MODES.get(front.mode or "", {}),
    )  # fmt: skip


def _name_problems(fields: Any, error: ValidationError) -> list[str]:  # noqa: ANN401  whatever the file says
    """Return what is wrong with the fields of a front matter, at most three; `error` is about the first one."""
    found: list[str] = []
    left: ValidationError | None = error
    while left is not None and len(found) < _MOST_PROBLEMS:
        said = describe_invalid(left, "front matter", _CHOICES)
        name = said.partition(":")[0].partition(".")[0]
        given = fields.get(name) if isinstance(fields, dict) else None
        if name == "maxTurns":
            said = f"maxTurns: a whole number from 1 to 999999, not {str(given)[:_MOST_OF_NAME]!r}"
        if given is None and name not in _REQUIRED:
            return [*found, said[:_MOST_OF_PROBLEM]]
        found.append(said[:_MOST_OF_PROBLEM])
        # Without it, or with any other, what is wrong with the rest is found.
        rest = {key: value for key, value in fields.items() if key != name}
        fields = {**rest, name: _ANY_VALUE} if name in _REQUIRED else rest
        try:
            convert(fields, _Front)
        except ValidationError as another:
            left = another
        else:
            left = None
    return found


_REQUIRED = ("name", "description")

_ANY_VALUE = "x"

_MOST_PROBLEMS = 3
"""Most fields of one file that are reported as wrong."""

_MOST_OF_PROBLEM = 300

_MOST_NAMED = 20
"""Most fields, or skills, of one file that are named in a report."""

_MOST_OF_NAME = 40


def _listed(value: list[str] | str | None) -> list[str] | None:
    """Return the entries of a field that is a list or a text with commas; None if it does not say."""
    if isinstance(value, str):
        return [part.strip() for part in _TOOL_LIST.findall(value) if part.strip()]
    return value


class _Tools(NamedTuple):
    """The tools that a file gives, as in `AgentType`, and what of the file has no effect.

    `left_out` are entries of `tools` that crewboard lacks, `ignored` are sentences about `disallowedTools`.
    `denies_web` says that the file forbids the web.
    """

    names: tuple[str, ...]
    only: tuple[ToolPattern, ...]
    denied: tuple[ToolPattern, ...]
    left_out: tuple[str, ...]
    ignored: tuple[str, ...]
    denies_web: bool


def _read_tools(front: _Front) -> _Tools:
    """Return the tools of a file: those of `tools`, else those of `code`, without those of `disallowedTools`."""
    named = _listed(front.tools)
    whole: list[str] = list(TYPES["code"].tools) if named is None else []
    only: list[ToolPattern] = []
    left_out: list[str] = []
    for entry in named or ():
        if entry.startswith(MCP_PREFIX):
            continue
        name, pattern = _split(entry)
        ours = TYPES["code"].tools if name == "*" else _map_tool(name)
        limits = [_limit(tool, pattern) for tool in ours or ()] if pattern is not None else []
        if ours is None or None in limits:
            left_out.append(entry)
        elif pattern is None:
            whole += ours
        only += [limit for limit in limits if limit is not None and None not in limits]
    names = dict.fromkeys([*whole, *(each.tool for each in only)])
    denied: list[ToolPattern] = []
    ignored: list[str] = []
    disallowed = _listed(front.disallowed) or []
    for entry in disallowed:
        name, pattern = _split(entry)
        ours = tuple(names) if name == "*" else _map_tool(name)
        if not ours:
            # Without a counterpart, there is nothing to take away.
            ignored += [f"disallowedTools: every agent has {name}"] if ours is not None else []
        elif pattern is None:
            names = {tool: None for tool in names if tool not in ours}
        elif (limit := _denial(ours[0], pattern)) is not None:
            denied.append(limit)
        else:
            # What cannot be denied in part is denied as a whole. What may not be read may not be searched either.
            gone = {*ours, "grep"} if "read_file" in ours else {*ours}
            names = {tool: None for tool in names if tool not in gone}
            ignored.append(
                f"disallowedTools: {entry[:_MOST_OF_NAME]} cannot be applied, so {', '.join(sorted(gone))} is left out"
            )
    return _Tools(
        tuple(names), tuple(each for each in only if each.tool in names and each.tool not in whole), tuple(denied),
        tuple(left_out), tuple(ignored[:_MOST_NAMED]),
        denies_web=any(_split(entry)[0] in ("*", "WebFetch", "WebSearch") for entry in disallowed),
    )  # fmt: skip


def _split(entry: str) -> tuple[str, str | None]:
    """Return the name and the pattern of a tool in a file; the pattern is None if there is none, or if it is `*`."""
    found = _TOOL.fullmatch(entry.strip())
    if found is None:
        return entry, None
    pattern = found[2].strip() if found[2] is not None else None
    return found[1].strip(), None if pattern == "*" else pattern


def _limit(tool: str, pattern: str) -> ToolPattern | None:
    """Return the calls of a tool that a pattern of a file stands for; None if the pattern cannot be applied."""
    if tool == "bash":
        command = re.sub(r":\*$", " *", pattern)
        return ToolPattern(tool=tool, pattern=command) if _COMMAND_PATTERN.fullmatch(command) else None
    path = pattern.removeprefix("./")
    return ToolPattern(tool=tool, pattern=path) if tool in GATED_TOOLS and _PATH_PATTERN.fullmatch(path) else None


def _denial(tool: str, pattern: str) -> ToolPattern | None:
    """Return the calls that a denied pattern of a file stands for; None if the pattern cannot be applied.

    As in Claude Code, a pattern for a file tool is for all tools that write.
    """
    found = _limit(tool, pattern)
    if found is None or tool == "bash":
        return found
    # A name without a folder stands for such a file in every folder.
    path = found.pattern if "/" in found.pattern.rstrip("/") else f"**/{found.pattern}"
    return ToolPattern(tool="files", pattern=path)


def write_new(root: Path, name: str, like: AgentType, description: str) -> Path:
    """Write the file of a new custom type, with the settings of the type `like` and with comments; return its path.

    Raises:
        UsageError: The name cannot name a type, is in use, or `like` has tools that only a lead may have.
        StorageError: The file cannot be written, or a step of its path is a link.
    """
    if not is_name(name) or name in RESERVED_AGENTS:
        raise UsageError(f"{name!r} cannot name a type: a-z first, at most 32 of a-z 0-9 _ -")
    if (known := find_all(root)[0].get(name)) is not None:
        if not known.file:
            raise UsageError(f"{name} is a built-in type; choose another name")
        raise UsageError(f"there is a type {name} already: edit {known.file}, or choose another name")
    if only_leads := [tool for tool in like.tools if tool in LEAD_TOOLS]:
        raise UsageError(f"a type of your own cannot be like {like.name}: only a lead has {', '.join(only_leads)}")
    text = _template(name, like, description)
    path = root / FOLDERS[0] / f"{name}.md"
    try:
        # The file must be one that can be used.
        _parse(text.encode(), str(path))
        folder = FOLDERS[0]
        # Made if it is missing; no link is followed on the way.
        above, _, last = folder.rpartition("/")
        for parent, child in (("", above), (above, last)):
            with open_folder(root, parent or ".") as opened, contextlib.suppress(FileExistsError):
                os.mkdir(child, 0o700, dir_fd=opened)
        with open_folder(root, folder) as opened:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path.name, flags, 0o644, dir_fd=opened), "wb") as file:
                file.write(text.encode())
    except BadDataError as error:
        raise UsageError(f"no file was written for the type {name}: {error}") from error
    except FileExistsError as error:
        raise UsageError(f"{path} exists already; edit it, or choose another name") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {_reason(error)}") from error
    return path


def _template(name: str, like: AgentType, description: str) -> str:
    """Return the text of a type's file with the settings of the type `like`; settings that it lacks are comments."""
    patterns = [f"{each.tool}({each.pattern})" for each in like.only]
    limited = {each.tool for each in like.only}
    tools = ", ".join([*(tool for tool in like.tools if tool not in limited), *patterns])
    denied = ", ".join(f"{_DENIED_AS.get(each.tool, each.tool)}({each.pattern})" for each in like.denied)
    mode = "plan" if like.plan else {"all": "default", "commands": "acceptEdits"}.get(like.asks, "")
    alias = next((short for short, model in models.ALIASES.items() if model == like.model), like.model)
    names = [each.removeprefix(MCP_PREFIX).removesuffix("__*") for each in like.mcp]
    # The servers whose tools a type may use, all of them.
    servers = "" if any("!" in each or "__" in each for each in names) else ", ".join(names)
    return "\n".join([
        "---",
        f"name: {name}",
        f"description: {_quoted(description)}",
        "# Every agent has the tools of the team as well. A pattern narrows a tool: bash(git *), edit_file(docs/**).",
        f"tools: {_quoted(tools) if tools else '[]'}",
        _line("disallowedTools", denied, "bash(git push*)"),
        "# opus, sonnet, haiku, or the id of a model.",
        f"model: {_quoted(alias)}",
        _line("effort", like.effort, " | ".join(get_args(Effort))),
        _line("thinking", like.thinking, " | ".join(get_args(Thinking))),
        "# It searches and reads the web without asking, which is a way out for data.",
        _line("web", "true" if like.web else "", "true"),
        _line("allowed_domains", ", ".join(like.allowed_domains), "docs.python.org, pypi.org"),
        "# plan: an approved plan comes first. default: you are asked before each command and each write.",
        _line("permissionMode", mode, "plan | default | acceptEdits"),
        _line("engine", like.engine, "claude | claude-gated | codex | acp:COMMAND"),
        _line("maxTurns", str(like.max_turns or ""), "30"),
        _line("isolation", "worktree" if like.worktree else "", "worktree"),
        _line("mcp", servers, "names of MCP servers of .mcp.json; * for all"),
        _line("skills", ", ".join(like.skills), "names of .claude/skills, which it has from the beginning"),
        "---",
        f"{like.prompt}\n",
    ])  # fmt: skip


_DENIED_AS = {"files": "edit_file"}


def _line(name: str, value: str | None, example: str) -> str:
    """Return a line of a front matter; if `value` is empty, a comment with `example`."""
    return f"{name}: {_quoted(value)}" if value else f"# {name}: {example}"


def _quoted(text: str) -> str:
    """Return a text as a scalar of YAML, in quotes where it needs them."""
    return text if re.fullmatch(r"\w[\w ,()*./-]*", text) else json.dumps(text, ensure_ascii=False)


def front_matter(text: str, most: int = MAX_FRONT) -> tuple[dict[str, Any], str]:
    """Return the front matter of a Markdown file, with every scalar as a text, and the text behind it.

    Without a front matter, return an empty mapping and the whole text. `most` is how many characters a front matter may
    have.

    Raises:
        BadDataError: The front matter is not valid YAML, too long, too deep, or has aliases.
    """
    found = _FRONT.match(text.replace("\r\n", "\n"))
    front = _load_front(found[1], most) if found is not None else {}
    return (front if isinstance(front, dict) else {}), (found[2] or "").lstrip("\n") if found is not None else text


def _without_null(front: Any) -> Any:  # noqa: ANN401  whatever the file says
    if not isinstance(front, dict):
        return front
    return {
        key: value
        for key, value in front.items()
        if key not in _NULLABLE or not isinstance(value, str) or value not in _NULL
    }


def _load_front(text: str, most: int = MAX_FRONT) -> Any:  # noqa: ANN401  whatever the file says
    """Return the value of a front matter, with every scalar as a text.

    Raises:
        BadDataError: It is not YAML, too long, too deep, or has aliases: with them a short text can be huge.
    """
    # Imported here because it is slow, and few projects define own types.
    import yaml

    if len(text) > most:
        raise BadDataError(f"the front matter is longer than {most} characters")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
                raise BadDataError(f"the front matter has an alias, or is nested more than {MAX_DEPTH} deep")
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  it makes text, lists and maps only
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The front matter begins on the second line of the file.
        line = f" on line {mark.line + 2}" if mark is not None else ""
        what = ", ".join(part.splitlines()[0] for part in (error.context, error.problem) if part)
        raise BadDataError(f"no valid YAML{line}: {what}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDataError(str(error).splitlines()[0] if str(error) else "no YAML") from error


def is_accepted(kind: AgentType, environment: Mapping[str, str]) -> bool:
    """Return True if a type is built in, or if the user accepted its file as it is now and as it is understood now.

    Another version of crewboard may understand more of an accepted file, and allow its agents more.
    """
    if not kind.sha256:
        return True
    record = consent.find("types", kind.name, Path(kind.root), environment)
    if record is not None:
        return record.holds_for(kind.sha256, _powers(kind))
    try:
        # As older versions recorded it, for every workspace.
        return (consent.folder("types", environment) / kind.sha256).read_text() == _powers(kind)
    except (OSError, ValueError):
        return False


def accept(kind: AgentType, environment: Mapping[str, str]) -> None:
    """Record that the user accepts a custom type; it is new again once its file changes.

    Raises:
        StorageError: It could not be recorded.
    """
    record = consent.Acceptance(kind.name, os.path.realpath(kind.root), kind.sha256, _powers(kind))
    consent.accept("types", record, environment)


def _powers(kind: AgentType) -> str:
    """Return what agents of a type may do, as a text to compare with the one in the acceptance."""
    limits = [[each.tool, each.pattern] for each in (*kind.only, *kind.denied)]
    web = [kind.web, *kind.allowed_domains]
    servers = [kind.mcp, kind.mcp_servers]
    powers = [kind.tools, len(kind.only), limits, web, kind.plan, kind.asks, kind.max_turns, servers]
    # Only where there is one, so that files without it, which an older version accepted, stay so.
    return json.dumps([*powers, *([kind.engine] if kind.engine else [])])


def require_accepted(kind: AgentType, environment: Mapping[str, str], command: str) -> None:
    """Refuse a type that the user has not accepted; record the acceptance of an accepted one again.

    After that, an acceptance that an older version recorded for another text of this name no longer counts. `command`
    is the command line that accepts the type, for the message.

    Raises:
        UntrustedError: The user has not accepted the type.
    """
    if not is_accepted(kind, environment):
        raise UntrustedError(
            f"the type {kind.name} is defined by {kind.file}, which you have not accepted: {describe_powers(kind)}. "
            f"Read the file; `{command}` accepts it as it is now"
        )
    if kind.sha256:
        # From now on no other text of this name, also none that an older version recorded.
        with contextlib.suppress(StorageError):
            accept(kind, environment)


def _map_tool(tool: str) -> tuple[str, ...] | None:
    """Return crewboard's tools for a tool's name in a file: empty if every agent has it, None if it is unknown."""
    if tool in _CLAUDE_CODE_TOOLS:
        return _CLAUDE_CODE_TOOLS[tool]
    return (tool,) if tool in _SUPPORTED_TOOLS else () if tool in TEAM_TOOLS else None


def _mcp_patterns(front: _Front) -> tuple[str, ...]:
    """Return the patterns of the MCP tools that a type may use (`AgentType.mcp`).

    They are for the tools and servers that its file names, without those that it denies; for all if it names no
    servers, and either no tools or all.
    """
    named, denied = _listed(front.tools), _listed(front.disallowed) or []
    if "*" in denied:
        return ()
    all_named = named is None or "*" in named
    patterns = [_whole(each) for each in named or () if each.startswith(MCP_PREFIX)]
    if front.servers is not None:
        names = [each for each in front.servers if isinstance(each, str)] + list(front.inline_servers)
        patterns += [f"{MCP_PREFIX}{name}__*" for name in names]
    elif all_named:
        patterns = [ALL_MCP]
    return (*patterns, *(f"!{_whole(each)}" for each in denied if patterns and each.startswith(MCP_PREFIX)))


def _whole(name: str) -> str:
    """Return the pattern for an MCP tool that a file names; the name of a server alone stands for all of its tools."""
    return name if "__" in name.removeprefix(MCP_PREFIX) or name.endswith("*") else f"{name}__*"
