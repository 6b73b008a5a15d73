"""Agent types: what an agent of a type may do, and the built-in types; `type_files.py` reads those of a project."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from crewboard import models
from crewboard.errors import UsageError
from crewboard.records.agents import VERDICTS, Definition, Effort, Terms, Thinking, ToolPattern
from crewboard.records.base import counted, pick
from crewboard.records.events import Answer
from crewboard.untrusted import on_one_line
from crewboard.web import TOOLS as WEB_TOOLS

READ_TOOLS = ("read_file", "glob", "grep", "list_dir")

WRITE_TOOLS = ("write_file", "edit_file")

TEAM_TOOLS = ("send_message", "read_inbox", "task_list", "task_claim", "task_update", "todo", "ask_operator")

LEAD_TOOLS = (
    "task_create", "create_team", "spawn_agent", "list_team", "broadcast", "request_shutdown", "request_plan",
    "review_plan", "list_changes", "read_diff", "accept_changes", "delete_team",
)  # fmt: skip
"""Tools that only a lead has."""

GATED_TOOLS = frozenset({"bash", *WRITE_TOOLS})
"""Tools that an agent with a plan gate may not use before its plan is approved. All tools of MCP servers are
gated as well.
"""

MCP_PREFIX = "mcp__"
"""The beginning of the names of tools of MCP servers: `mcp__server__tool`."""

ALL_MCP = f"{MCP_PREFIX}*"
"""The pattern of all tools of the project's MCP servers."""


def is_gated(tool: str) -> bool:
    """Return True for a tool that changes or runs something, to which the plan gate, rules and permissions apply."""
    return tool in GATED_TOOLS or tool.startswith(MCP_PREFIX)


SEND_EXPLORER = "send_explorer"
"""The tool with which an agent of type `code` hires an explorer. Custom types lack it: what they may read can be
limited, and an explorer may read everything.
"""

_KEPT = frozenset({
    *TEAM_TOOLS, "submit_plan", "review_task", "shutdown_response", "skill", "bash_output", "bash_kill", "find_tools",
    SEND_EXPLORER,
})  # fmt: skip


def kept_by_terms(terms: Terms | None, tool: str) -> bool:
    """Return True if an agent may use a tool under the terms of an approval; `terms` is None without an approval.

    True if the terms limit no tools, if they name the tool, and for the tools that no terms take: team tools, plans,
    skills, background commands and the like (`_KEPT`).
    """
    if terms is None or terms.tools is None or tool in terms.tools or tool in _KEPT:
        return True
    return tool.startswith(MCP_PREFIX) and may_use_tool(terms.tools, tool)


@dataclass(frozen=True)
class AgentType:
    """One agent type. `tools` are those of the type; every agent has the team tools in addition.

    - `worktree`: True if its agents get checkouts of their own; None leaves that to the team's setting.
    - `effort`, `thinking`: used where the model takes them and the hire names none; None leaves them to the model.
    - `web`, `allowed_domains`: what its agents get of the web where the hire does not say.
    - `mcp`: patterns of the tools of MCP servers that its agents may use or, with a `!` before them, may not use.

    The other fields are for custom types.

    - `plan`: a hire requires an approved plan. `max_turns` is the most model calls of an assignment.
    - `asks`: the operator approves each of its `commands`, or each write as well (`all`).
    - `only`: a tool with patterns here may be used only for calls that match one of them. `denied`: calls that are
      refused.
    - `skills`: loaded before the conversation. `mcp_servers`: the MCP servers that its file defines.
    - `engine`: the engine that does the work of its agents, where the hire names none.
    - `left_out`: tools that its file names and crewboard lacks. `not_understood`: other parts of it without effect.
    - `file`: its file, relative to `root`. `sha256`: the digest of the file. All three are empty for a built-in type.
    """

    name: str
    tools: tuple[str, ...]
    model: str
    summary: str
    prompt: str
    worktree: bool | None = None
    effort: Effort | None = None
    thinking: Thinking | None = None
    web: bool = False
    allowed_domains: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()
    mcp_servers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    plan: bool = False
    asks: Literal["", "commands", "all"] = ""
    max_turns: int | None = None
    only: tuple[ToolPattern, ...] = ()
    denied: tuple[ToolPattern, ...] = ()
    skills: tuple[str, ...] = ()
    engine: str = ""
    left_out: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    file: str = ""
    sha256: str = ""
    root: str = ""

    @property
    def writes(self) -> bool:
        """Return True if agents of the type may write files of the workspace."""
        return not {*WRITE_TOOLS}.isdisjoint(self.tools)

    @property
    def executes(self) -> bool:
        """Return True if agents of the type may run programs: commands, or MCP servers of the project."""
        return "bash" in self.tools or bool(self.mcp)


def nameable_tools(kind: AgentType, *, has_web: bool = False) -> tuple[str, ...]:
    """Return the tools of an agent that the terms of an approval can name.

    MCP tools are named by the patterns of the type. With `has_web`, the tools of the web are included.
    """
    patterns = (each for each in kind.mcp if not each.startswith("!"))
    return (*kind.tools, *patterns, *(WEB_TOOLS if has_web else ()))


def describe_terms(terms: Terms, kind: AgentType | None) -> str:
    """Return terms on one line, such as `ask · no bash · $2`; `kind` is the type of the agent, None if unknown."""
    words = ["ask"] if terms.ask else []
    if terms.tools is not None:
        without = [tool for tool in nameable_tools(kind) if not kept_by_terms(terms, tool)] if kind is not None else []
        few = 0 < len(without) <= max(2, len(terms.tools))
        words.append(f"no {', '.join(without)}" if few else f"tools {', '.join(terms.tools) or 'none'}")
    words += ["network"] if terms.network else []
    # A number alone counts tokens.
    words += [f"{terms.budget} tokens" if terms.budget.isdecimal() else terms.budget] if terms.budget else []
    for verdict, steps in terms.left_out.items():
        words += [f"{VERDICTS[verdict].in_terms} {', '.join(map(str, steps))}"] if steps else []
    words += [f"released {', '.join(map(str, terms.released))}"] if terms.released else []
    return " · ".join(words)


def describe_steps(terms: Terms) -> list[str]:
    """Return sentences about the steps that are not approved: what is refused, and what is only an instruction.

    Empty if all steps are approved.
    """
    words = [f"of step {each.step} refused: {each}" for each in terms.denied]
    if told := terms.not_enforced:
        they = "they" if len(told) > 1 else "it"
        words.append(f"{name_steps(told)}: an instruction only, nothing that {they} alone names can be refused")
    if terms.denied:
        words.append("what else belongs to a step, and what commands write, is an instruction only")
    return words


def name_steps(numbers: Sequence[int]) -> str:
    """Return numbers of steps in words: `step 3`, `steps 3, 4`."""
    return f"step{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def describe_ended_terms(answer: Answer) -> str:
    """Return a sentence that the terms of a plan ended with its result, with the steps that were held or refused.

    Empty if the answer has no terms that ended.
    """
    terms = answer.ended_terms
    if terms is None or terms.is_empty:
        return ""
    left = ""
    for numbers, what in ((terms.hold, "not approved and still open"), (terms.refused, "refused")):
        if numbers:
            left += f"; {name_steps(numbers)} of its plan {'are' if len(numbers) > 1 else 'is'} {what}"
    return f"The terms of its plan ended with this result{left}."


def tools_a_plan_lacks(terms: Terms | None, kind: AgentType, files: object, commands: object) -> str:
    """Return which tools a plan needs and the terms take from its agent, in words; empty if there are none.

    `files` and `commands` are those that the plan names, as in the payload of its request.
    """
    if terms is None or terms.tools is None:
        return ""
    lost = {tool for tool in kind.tools if not kept_by_terms(terms, tool)}
    runs = [each for each in commands if not str(each).startswith(MCP_PREFIX)] if isinstance(commands, list) else []
    writing = {*WRITE_TOOLS} & {*kind.tools}
    no_writer = bool(writing) and writing <= lost
    lacks = ["files to write, and the terms leave neither write_file nor edit_file"] if files and no_writer else []
    lacks += ["commands, and the terms leave no bash"] if runs and "bash" in lost else []
    return f"the plan names {'; it names '.join(lacks)}" if lacks else ""


_ALL = (
    AgentType(
        "explore",
        READ_TOOLS,
        model=models.ALIASES["haiku"],
        summary="reads the workspace; writes and runs nothing",
        prompt="You survey code and answer questions about it. You cannot write files or run commands. "
        "Search before you read, read what you need, then answer precisely, naming files and lines. Say what you did "
        "not find, and where you looked.",
        # Its work is to look and to quote. The API's documents say that a low effort stops early in long prompts.
        effort="medium",
    ),
    AgentType(
        "plan",
        (*READ_TOOLS, "submit_plan"),
        model=models.ALIASES["opus"],
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
        model=models.ALIASES["sonnet"],
        summary="reads, writes and runs in the workspace; no network",
        prompt="You change code. Read before you write, keep changes small, and check them by running the tests. "
        "If a test fails that your change has nothing to do with, say so and leave it.",
        # It decides between tool calls what their results mean. The model thinks only where it needs to.
        effort="high",
        thinking="adaptive",
        mcp=(ALL_MCP,),
    ),
    AgentType(
        "test",
        ("bash", *READ_TOOLS),
        model=models.ALIASES["sonnet"],
        summary="reads the workspace and runs commands; writes nothing in it",
        prompt="You run and judge tests. You do not change files of the workspace. "
        "Report which command you ran, what passed, what failed and why.",
        # To run a command takes little thought, to explain a failure some.
        effort="medium",
        thinking="adaptive",
        mcp=(ALL_MCP,),
    ),
    AgentType(
        "lead",
        ("bash", "read_file", "write_file", "edit_file", "glob", "grep", "list_dir", "submit_plan", *LEAD_TOOLS),
        model=models.ALIASES["opus"],
        summary="runs the team: hires, assigns, reviews and ends agents; may do what code may",
        prompt="You lead a team of agents for the operator. Split the work, hire agents of the type that fits (explore "
        "reads, plan designs, code changes, test runs), give each one clear prompt, and put tasks on the board. Their "
        "results reach you as mail; a foreground hire gives you its result at once. Check what they report before you "
        "report it. Ask the operator when a decision is theirs. End agents that are no longer needed.\n\n"
        "Do yourself what takes a few calls: an agent costs a start and knows nothing of what you know. Hire for work "
        "that is separate and takes longer, three to five agents at first, and never two that change the same files. "
        "A good prompt says what is wanted and why, which files matter, what is known already, what must not change, "
        "how to check the work, and what to report. Give further work on the same matter to the agent that knows it. "
        "Do not ask for news of agents that work: end your turn, and their mail wakes you.",
        # It splits the work and judges what comes back; a mistake costs the work of a whole team.
        effort="high",
        thinking="adaptive",
        mcp=(ALL_MCP,),
    ),
)

TYPES = {agent_type.name: agent_type for agent_type in _ALL}


def agent_type(name: str) -> AgentType:
    """Return the built-in type called `name`.

    Raises:
        UsageError: There is no such type; the message lists the types.
    """
    if name not in TYPES:
        raise UsageError(f"there is no agent type {name!r}; the types are {', '.join(TYPES)}")
    return TYPES[name]


def definition(own: AgentType) -> Definition | None:
    """Return the copy of a type that is kept in the spec of an agent; None for a built-in type.

    With the copy a worker needs no file of the workspace, which may change after the agent was hired.
    """
    if own.name in TYPES:
        return None
    return Definition(
        tools=list(own.tools), model=own.model, summary=own.summary, prompt=own.prompt,
        effort=own.effort, thinking=own.thinking, ask_commands=own.asks == "commands", skills=list(own.skills),
        only=list(own.only), denied=list(own.denied), mcp=list(own.mcp), mcp_servers=dict(own.mcp_servers),
    )  # fmt: skip


def type_of(name: str, carried: Definition | None) -> AgentType:
    """Return the type of an agent from the copy that its spec carries, else the built-in type called `name`.

    Raises:
        UsageError: The spec carries no copy, and there is no built-in type of that name.
    """
    if carried is None:
        return agent_type(name)
    return AgentType(
        name, tuple(carried.tools), carried.model, carried.summary, carried.prompt,
        effort=carried.effort, thinking=carried.thinking, asks="commands" if carried.ask_commands else "",
        skills=tuple(carried.skills), only=tuple(carried.only), denied=tuple(carried.denied), mcp=tuple(carried.mcp),
        mcp_servers=carried.mcp_servers,
    )  # fmt: skip


def known_type(name: str, carried: Definition | None) -> AgentType | None:
    """Return the type of an agent as `type_of` does; None if its spec carries no copy and the type is not built in."""
    return type_of(name, carried) if carried is not None or name in TYPES else None


def as_json(kind: AgentType, *, trusted: bool) -> dict[str, Any]:
    """Return a type in the form of `types --json`; `trusted` says whether the user accepted it."""
    names = (
        "name", "summary", "tools", "mcp", "team_tools", "writes", "executes", "model", "engine", "effort", "thinking",
        "web", "allowed_domains", "worktree", "plan", "asks", "max_turns", "only", "denied", "skills", "left_out",
        "not_understood", "file", "sha256", "trusted",
    )  # fmt: skip
    # An empty text says that there is none.
    nothing = {name: getattr(kind, name) or None for name in ("engine", "asks", "file", "sha256")}
    return pick(names, kind, team_tools=TEAM_TOOLS, trusted=trusted, **nothing)


def describe_powers(kind: AgentType) -> str:
    """Return on one line what agents of a custom type may do, and the limits of the type."""
    on = f" on {', '.join(kind.allowed_domains)}" if kind.allowed_domains else ""
    wanted = (("run commands", kind.executes), ("write files", kind.writes), (f"use the web{on}", kind.web))
    may = [word for word, is_wanted in wanted if is_wanted]
    tools = ", ".join((*kind.tools, *kind.mcp)) or "none"
    return on_one_line(
        f"it may {' and '.join(may) or 'only read'} (tools: {tools}), uses {kind.model}, and "
        f"its instructions ({counted(len(kind.prompt), 'character')}) become part of the system prompt"
        + "".join(f"; {limit}" for limit in describe_limits(kind))
    )


def describe_limits(kind: AgentType) -> list[str]:
    """Return what a custom type requires of each hire, and what its agents may not do, each on one line."""
    said = {
        "requires an approved plan": kind.plan,
        "asks before each command and each write": kind.asks == "all",
        "asks before each command": kind.asks == "commands",
        f"at most {kind.max_turns} model calls": kind.max_turns,
        "a checkout of its own": kind.worktree,
        f"only {', '.join(f'{each.tool} {each.pattern}' for each in kind.only)}": kind.only,
        f"never {', '.join(f'{each.tool} {each.pattern}' for each in kind.denied)}": kind.denied,
        f"loads the skills {', '.join(kind.skills)}": kind.skills,
        f"runs the engine `{kind.engine}` in place of a model": kind.engine,
        f"brings the MCP servers {', '.join(kind.mcp_servers)}": kind.mcp_servers,
    }
    return [on_one_line(text) for text, applies in said.items() if applies]


def may_use_server(patterns: Iterable[str], server: str) -> bool:
    """Return True if the patterns of a type (`AgentType.mcp`) may allow a tool of an MCP server."""
    allowing = [each for each in patterns if not each.startswith("!")]
    return any(fnmatchcase(server, each.removeprefix(MCP_PREFIX).partition("__")[0]) for each in allowing)


def may_use_tool(patterns: Iterable[str], tool: str) -> bool:
    """Return True if the patterns of a type (`AgentType.mcp`) allow a tool of an MCP server."""
    matching = [each for each in patterns if fnmatchcase(tool, each.removeprefix("!"))]
    return bool(matching) and not any(each.startswith("!") for each in matching)
