"""Agent types: the tools, permissions, default model and system prompt of the built-in ones and of a project's own.

A project defines types in Markdown files with a front matter, in crewboard's or Claude Code's form.
`.crewboard/agents/*.md` takes precedence over `.claude/agents/*.md`. Tools are mapped by name. A tool that crewboard
does not have is left out, so that a type never may do more than its file says. A file without `tools` gets the tools of
`code`, because in Claude Code such a file means all tools. An invalid file is reported and skipped.

The files can come with a cloned repository, and an agent can write them. So they are read with limits, no link is
followed, and the user accepts each one, by its content, before an agent of that type is hired.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, ValidationError, convert

from crewboard import env
from crewboard.records import (
    RESERVED_AGENTS,
    BadDataError,
    Definition,
    Effort,
    StorageError,
    Thinking,
    UntrustedError,
    UsageError,
    describe_invalid,
    is_name,
)

READ_TOOLS = ("read_file", "glob", "grep", "list_dir")
TEAM_TOOLS = ("send_message", "read_inbox", "task_list", "task_claim", "task_update", "todo", "ask_operator")
LEAD_TOOLS = (
    "task_create", "create_team", "spawn_agent", "list_team", "broadcast", "request_shutdown", "request_plan",
    "review_plan", "list_changes", "read_diff", "accept_changes", "delete_team",
)  # fmt: skip
"""Tools that only a lead has."""

GATED_TOOLS = frozenset({"bash", "write_file", "edit_file"})
"""Tools that an agent with a plan gate may not use before its plan is approved."""


@dataclass(frozen=True)
class AgentType:
    """One agent type. `tools` are those of the type; every agent has the team tools in addition.

    `left_out` are tools that the type's file names and that crewboard does not have. `worktree` says whether its agents
    get checkouts of their own; None leaves that to the team's setting. `effort` and `thinking` are used where the
    model takes them and the hire names none; None leaves them to the model. `file` is that file, relative to the root,
    and `sha256` its contents; both are empty for a built-in type.
    """

    name: str
    tools: tuple[str, ...]
    writes: bool
    executes: bool
    model: str
    summary: str
    prompt: str
    left_out: tuple[str, ...] = ()
    worktree: bool | None = None
    effort: Effort | None = None
    thinking: Thinking | None = None
    file: str = ""
    sha256: str = ""


_ALL = (
    AgentType(
        "explore",
        READ_TOOLS,
        writes=False,
        executes=False,
        model="claude-haiku-5-5",
        summary="reads the workspace; writes and runs nothing",
        prompt="You survey code and answer questions about it. You cannot write files or run commands. "
        "Read what you need, then answer precisely, naming files and lines.",
        # Its work is to look and to quote. A fast answer is worth more than a deep one.
        effort="low",
    ),
    AgentType(
        "plan",
        (*READ_TOOLS, "submit_plan"),
        writes=False,
        executes=False,
        model="claude-opus-5-5",
        summary="reads the workspace and submits plans for approval; writes and runs nothing",
        prompt="You design changes; you do not make them. Read what you need, then hand in a plan with submit_plan. "
        "If it is rejected, revise it by the feedback and hand it in again.",
        # All later work follows the plan, and there is one of it: this is where thinking pays most.
        effort="high",
        thinking="adaptive",
    ),
    AgentType(
        "code",
        ("bash", "read_file", "write_file", "edit_file", "glob", "grep", "list_dir", "submit_plan"),
        writes=True,
        executes=True,
        model="claude-sonnet-5-5",
        summary="reads, writes and runs in the workspace; no network",
        prompt="You change code. Read before you write, keep changes small, and check them by running the tests.",
        # It decides between tool calls what their results mean. The model thinks only where it needs to.
        effort="high",
        thinking="adaptive",
    ),
    AgentType(
        "test",
        ("bash", *READ_TOOLS),
        writes=False,
        executes=True,
        model="claude-sonnet-5-5",
        summary="reads the workspace and runs commands; writes nothing in it",
        prompt="You run and judge tests. You do not change files of the workspace. "
        "Report which command you ran, what passed, what failed and why.",
        # To run a command takes little thought, to explain a failure some.
        effort="medium",
        thinking="adaptive",
    ),
    AgentType(
        "lead",
        ("bash", "read_file", "write_file", "edit_file", "glob", "grep", "list_dir", "submit_plan", *LEAD_TOOLS),
        writes=True,
        executes=True,
        model="claude-opus-5-5",
        summary="runs the team: hires, assigns, reviews and ends agents; may do what code may",
        prompt="You lead a team of agents for the operator. Split the work, hire agents of the type that fits (explore "
        "reads, plan designs, code changes, test runs), give each one clear prompt, and put tasks on the board. Their "
        "results reach you as mail; a foreground hire gives you its result at once. Check what they report before you "
        "report it. Ask the operator when a decision is theirs. End agents that are no longer needed.",
        # It splits the work and judges what comes back; a mistake costs the work of a whole team.
        effort="high",
        thinking="adaptive",
    ),
)

TYPES = {agent_type.name: agent_type for agent_type in _ALL}


def agent_type(name: str) -> AgentType:
    """Return the type called `name`.

    Raises:
        UsageError: There is no such type; the message lists the types.
    """
    if name not in TYPES:
        raise UsageError(f"there is no agent type {name!r}; the types are {', '.join(TYPES)}")
    return TYPES[name]


FOLDERS = (".crewboard/agents", ".claude/agents")

MAX_FILE_SIZE = 256 * 1024
"""Size, in bytes, of the largest file that is accepted as a type."""

MAX_FRONT = 16 * 1024
"""Characters of the longest front matter."""

MAX_DEPTH = 8
"""How deep values in the front matter may be nested."""

MAX_FILES = 200
"""How many files of one folder are read."""

_CLAUDE_CODE_TOOLS: dict[str, tuple[str, ...]] = {
    "Read": ("read_file",), "Write": ("write_file",), "Edit": ("edit_file",), "MultiEdit": ("edit_file",),
    "Bash": ("bash",), "Glob": ("glob",), "Grep": ("grep",), "LS": ("list_dir",),
}  # fmt: skip
"""Claude Code's tool names and the tools of crewboard that they stand for."""

_SUPPORTED_TOOLS = frozenset({*READ_TOOLS, "bash", "write_file", "edit_file", "submit_plan"})
_MODELS = {"opus": "claude-opus-5-5", "sonnet": "claude-sonnet-5-5", "haiku": "claude-haiku-5-5"}
_FRONT = re.compile(r"\A---[ \t]*\n(.*?\n)---[ \t]*(?:\n(.*))?\Z", re.DOTALL)
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
"""How YAML writes that there is no value. Every scalar is read as text, because dates and numbers can be malformed."""


_Isolation = Literal["always", "never"]


class _Front(Struct, kw_only=True):
    name: str
    description: Annotated[str, Meta(min_length=1)]
    tools: list[str] | str | None = None
    model: str | None = None
    worktree: _Isolation | None = None
    effort: Effort | None = None
    thinking: Thinking | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name) or self.name in RESERVED_AGENTS:
            raise ValueError(f"name: {self.name!r} cannot name a type")
        if self.name in TYPES:
            raise ValueError(f"name: {self.name!r} is a built-in type; choose another name")

    @property
    def tool_names(self) -> list[str] | None:
        """Return the tools that the file names, in either form; None if it does not say."""
        if isinstance(self.tools, str):
            return [part.strip() for part in self.tools.split(",") if part.strip()]
        return self.tools


_NULLABLE = ("tools", "model", "worktree", "effort", "thinking")

_CHOICES = {"worktree": get_args(_Isolation), "effort": get_args(Effort), "thinking": get_args(Thinking)}
"""The values of each field that has a fixed set of them."""


@dataclass(frozen=True)
class InvalidFile:
    """A file that is skipped, and why."""

    path: Path
    why: str


def find_all(root: Path) -> tuple[dict[str, AgentType], list[InvalidFile]]:
    """Return every type available in this workspace, the built-in ones first, and the invalid files."""
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
                        types.setdefault(own.name, own)
        except FileNotFoundError:
            continue
        except OSError as error:
            broken.append(InvalidFile(root / folder, _reason(error)))
    return types, broken


@contextlib.contextmanager
def open_folder(root: Path, folder: str) -> Iterator[int]:
    """Open a folder below the root; follow no link on the way.

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
    """Return the contents of a file in an open folder.

    Raises:
        BadDataError: It cannot be read, is a link or no regular file, or is too large.
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
        # Name the file that was probably meant first.
        broken.sort(key=lambda file: file.path.stem != name)
        skipped = f"; {broken[0].path.name} was skipped: {broken[0].why}" if broken else ""
        raise UsageError(f"there is no agent type {name!r}; the types are {', '.join(types)}{skipped}")
    return types[name]


def definition(own: AgentType) -> Definition | None:
    """Return the copy of a type that a spec carries, None for a built-in type.

    With it a worker needs no file of the workspace, which may change after the agent was hired.
    """
    if own.name in TYPES:
        return None
    return Definition(
        tools=list(own.tools), model=own.model, summary=own.summary, prompt=own.prompt,
        effort=own.effort, thinking=own.thinking,
    )  # fmt: skip


def type_of(name: str, carried: Definition | None) -> AgentType:
    """Return the type of an agent from the copy that its spec carries, else the built-in type called `name`.

    Raises:
        UsageError: The spec carries no copy, and there is no built-in type of that name.
    """
    if carried is None:
        return agent_type(name)
    made = _make(name, tuple(carried.tools), carried.model, carried.summary, carried.prompt)
    return replace(made, effort=carried.effort, thinking=carried.thinking)


def _parse(data: bytes, file: str) -> AgentType:
    """Return the type that a file defines.

    Raises:
        BadDataError: It defines none.
    """
    try:
        found = _FRONT.match(data.decode().replace("\r\n", "\n"))
        if found is None:
            raise BadDataError("no front matter between two lines of ---")
        front = convert(_without_null(_load_front(found[1])), _Front)
    except UnicodeDecodeError as error:
        raise BadDataError(str(error)) from error
    except ValidationError as error:
        raise BadDataError(describe_invalid(error, "front matter", _CHOICES)[:300]) from error
    model = _MODELS.get(front.model or "", front.model) if front.model != "inherit" else None
    fallback = TYPES["code"]
    named = front.tool_names or []
    mapped = tuple(dict.fromkeys(ours for tool in named for ours in _map_tool(tool)))
    tools = fallback.tools if front.tool_names is None else mapped
    made = _make(front.name, tools, model or fallback.model, front.description, (found[2] or "").strip())
    left_out = tuple(tool for tool in named if not _map_tool(tool))
    worktree = None if front.worktree is None else front.worktree == "always"
    return replace(
        made, left_out=left_out, worktree=worktree, effort=front.effort, thinking=front.thinking,
        file=file, sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip


def front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Return the front matter of a Markdown file, with every scalar as text, and the rest; none if it has none.

    Raises:
        BadDataError: It is no valid YAML, or too large.
    """
    found = _FRONT.match(text.replace("\r\n", "\n"))
    front = _load_front(found[1]) if found is not None else {}
    return (front if isinstance(front, dict) else {}), (found[2] or "").lstrip("\n") if found is not None else text


def _without_null(front: Any) -> Any:  # noqa: ANN401  whatever the file says
    if not isinstance(front, dict):
        return front
    return {
        key: value
        for key, value in front.items()
        if key not in _NULLABLE or not isinstance(value, str) or value not in _NULL
    }


def _load_front(text: str) -> Any:  # noqa: ANN401  whatever the file says
    """Return the front matter with every scalar as text.

    Raises:
        BadDataError: It is no YAML, too long, too deep, or has aliases: with them a short text can be huge.
    """
    # Imported here because it is slow, and few projects define own types.
    import yaml

    if len(text) > MAX_FRONT:
        raise BadDataError(f"the front matter is longer than {MAX_FRONT} characters")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
                raise BadDataError(f"the front matter has an alias, or is nested more than {MAX_DEPTH} deep")
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  it makes text, lists and maps only
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadDataError(str(error).splitlines()[0] if str(error) else "no YAML") from error


def _accepted(environment: Mapping[str, str]) -> Path:
    return env.state_home(environment) / "accepted-types"


def is_trusted(kind: AgentType, environment: Mapping[str, str]) -> bool:
    """Return True if a type is built in, or the user accepted the file that defines it as it is now."""
    return not kind.sha256 or (_accepted(environment) / kind.sha256).exists()


def trust(kind: AgentType, environment: Mapping[str, str]) -> None:
    """Accept a project's own type for this user, as long as its file does not change.

    Raises:
        StorageError: It could not be recorded.
    """
    folder = _accepted(environment)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / kind.sha256).touch(mode=0o600)
    except OSError as error:
        raise StorageError(f"cannot record in {folder} that {kind.name} was accepted: {error.strerror}") from error


def describe_powers(kind: AgentType) -> str:
    """Return what a project's own type asks for, on one line."""
    may = [word for word, wanted in (("run commands", kind.executes), ("write files", kind.writes)) if wanted]
    return (
        f"it may {' and '.join(may) or 'only read'} (tools: {', '.join(kind.tools) or 'none'}), uses {kind.model}, and "
        f"its {len(kind.prompt)} characters of instructions become part of the system prompt"
    )


def require_trusted(kind: AgentType, environment: Mapping[str, str], command: str) -> None:
    """Refuse a type that the user has not accepted. `command` is the command line that accepts it.

    Raises:
        UntrustedError: The user has not accepted it.
    """
    if not is_trusted(kind, environment):
        raise UntrustedError(
            f"the type {kind.name} is defined by {kind.file}, which you have not accepted: {describe_powers(kind)}. "
            f"Read the file; `{command}` accepts it as it is now"
        )


def _map_tool(tool: str) -> tuple[str, ...]:
    """Return crewboard's tools for a tool name in a file.

    None for a restricted one such as `Bash(git *)`: crewboard cannot restrict a tool in that way.
    """
    return _CLAUDE_CODE_TOOLS.get(tool) or ((tool,) if tool in _SUPPORTED_TOOLS else ())


def _make(name: str, tools: tuple[str, ...], model: str, summary: str, prompt: str) -> AgentType:
    return AgentType(
        name,
        tools,
        writes=bool({"write_file", "edit_file"} & set(tools)),
        executes="bash" in tools,
        model=model,
        summary=" ".join(summary.split()),
        prompt=prompt,
    )
