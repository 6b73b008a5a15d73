"""Agent types: the tools, permissions, default model and system prompt of the built-in ones and of a project's own.

A project defines types in Markdown files with a front matter, in crewboard's or Claude Code's form.
`.crewboard/agents/*.md` takes precedence over `.claude/agents/*.md`. Tools are mapped by name. A tool that crewboard
does not have is left out, so that a type never may do more than its file says. A file without `tools` gets the tools of
`code`, because in Claude Code such a file means all tools. An invalid file is reported and skipped.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from crewboard.errors import BadDataError, UsageError
from crewboard.records import RESERVED_AGENTS, Definition, is_name

READ_TOOLS = ("read_file", "glob", "grep", "list_dir")
TEAM_TOOLS = ("send_message", "read_inbox", "task_list", "task_claim", "task_update", "ask_operator")
LEAD_TOOLS = (
    "task_create", "create_team", "spawn_agent", "list_team", "broadcast", "request_shutdown", "request_plan",
    "review_plan", "delete_team",
)  # fmt: skip
"""Tools that only a lead has."""

GATED_TOOLS = frozenset({"bash", "write_file", "edit_file"})
"""Tools that an agent with a plan gate may not use before its plan is approved."""


@dataclass(frozen=True)
class AgentType:
    """One agent type. `tools` are those of the type; every agent has the team tools in addition.

    `left_out` are tools that the type's file names and that crewboard does not have.
    """

    name: str
    tools: tuple[str, ...]
    writes: bool
    executes: bool
    model: str
    summary: str
    prompt: str
    left_out: tuple[str, ...] = ()


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
    ),
    AgentType(
        "code",
        ("bash", "read_file", "write_file", "edit_file", "glob", "grep", "list_dir", "submit_plan"),
        writes=True,
        executes=True,
        model="claude-sonnet-5-5",
        summary="reads, writes and runs in the workspace; no network",
        prompt="You change code. Read before you write, keep changes small, and check them by running the tests.",
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

_CLAUDE_CODE_TOOLS: dict[str, tuple[str, ...]] = {
    "Read": ("read_file",), "Write": ("write_file",), "Edit": ("edit_file",), "MultiEdit": ("edit_file",),
    "Bash": ("bash",), "Glob": ("glob",), "Grep": ("grep",), "LS": ("list_dir",),
}  # fmt: skip
"""Claude Code's tool names and the tools of crewboard that they stand for."""

_SUPPORTED_TOOLS = frozenset({*READ_TOOLS, "bash", "write_file", "edit_file", "submit_plan"})
_MODELS = {"opus": "claude-opus-5-5", "sonnet": "claude-sonnet-5-5", "haiku": "claude-haiku-5-5"}
_FRONT = re.compile(r"\A---\s*\n(.*?\n)---\s*\n?(.*)\Z", re.DOTALL)


class _Front(BaseModel):
    model_config = ConfigDict(extra="ignore")

    name: str
    description: str = Field(min_length=1)
    tools: list[str] | None = None
    model: str | None = None

    @field_validator("tools", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:  # noqa: ANN401  whatever the file says
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("name")
    @classmethod
    def _usable(cls, value: str) -> str:
        if not is_name(value) or value in RESERVED_AGENTS:
            raise ValueError(f"{value!r} cannot name a type")
        if value in TYPES:
            raise ValueError(f"{value!r} is a built-in type; choose another name")
        return value


@dataclass(frozen=True)
class InvalidFile:
    """A file that is skipped, and why."""

    path: Path
    why: str


def find_all(root: Path) -> tuple[dict[str, AgentType], list[InvalidFile]]:
    """Return every type available in this workspace, the built-in ones first, and the invalid files."""
    types, broken = dict(TYPES), []
    for path in [path for folder in FOLDERS for path in sorted((root / folder).glob("*.md"))]:
        try:
            own = _read(path)
        except BadDataError as error:
            broken.append(InvalidFile(path, str(error)))
            continue
        types.setdefault(own.name, own)
    return types, broken


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
    return Definition(tools=list(own.tools), model=own.model, summary=own.summary, prompt=own.prompt)


def type_of(name: str, carried: Definition | None) -> AgentType:
    """Return the type of an agent from the copy that its spec carries, else the built-in type called `name`.

    Raises:
        UsageError: The spec carries no copy, and there is no built-in type of that name.
    """
    if carried is None:
        return agent_type(name)
    return _make(name, tuple(carried.tools), carried.model, carried.summary, carried.prompt)


def _read(path: Path) -> AgentType:
    # Imported here because it is slow, and few projects define own types.
    import yaml

    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_SIZE:
            raise BadDataError(f"not a regular file, or larger than {MAX_FILE_SIZE} bytes")
        found = _FRONT.match(path.read_text(encoding="utf-8"))
        if found is None:
            raise BadDataError("no front matter between two lines of ---")
        front = _Front.model_validate(yaml.safe_load(found[1]))
    except OSError as error:
        raise BadDataError(str(error.strerror)) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadDataError(str(error).splitlines()[0]) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadDataError(f"{'.'.join(map(str, first['loc'])) or 'front matter'}: {first['msg']}") from error
    model = _MODELS.get(front.model or "", front.model) if front.model != "inherit" else None
    fallback = TYPES["code"]
    named = front.tools or []
    mapped = tuple(dict.fromkeys(ours for tool in named for ours in _map_tool(tool)))
    tools = fallback.tools if front.tools is None else mapped
    made = _make(front.name, tools, model or fallback.model, front.description, found[2].strip())
    return replace(made, left_out=tuple(tool for tool in named if not _map_tool(tool)))


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
