"""The built-in agent types: their tools, permissions, default models and system prompts."""

from dataclasses import dataclass

from crewboard.errors import UsageError

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
