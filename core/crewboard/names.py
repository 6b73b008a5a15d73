"""Names of agents, teams, mailboxes and a project's files: the rule for names, and who reads which mailbox.

The rule is checked in the command line, in tools and in each file that is read. `agents` are always the names on the
roster. While no agent is called `lead`, the operator reads the mailbox `lead`. If an agent with another name is the
lead, mail to `lead` goes to that agent.
"""

import posixpath
import re
from collections.abc import Collection

from crewboard.errors import UsageError

NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,31}\Z"

TEAMS_FOLDER = ".crewboard"
"""The folder of a workspace that holds its teams."""

PROJECT_FILES = ("CLAUDE.md", "AGENTS.md")
"""Files of a workspace; the first one that exists stands before the conversation of every agent."""

_IMPORT = re.compile(r"(?<![\w.`@/])@((?:~?/)?[\w.][\w./-]*\w)")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def imports_of(text: str, path: str) -> dict[str, str]:
    """Return the imports in a project's file (`@PATH`, not in code): each path from the root, with the path as written.

    `path` is that of the file. A path that leads out of the root stays as it is written.
    """
    folder = path.rpartition("/")[0]
    names = _IMPORT.findall(_CODE.sub("", text))
    # A path that leads out stays as it is: it is refused with the reason.
    return {
        each if each.startswith(("/", "~")) else posixpath.normpath(f"{folder or '.'}/{each}"): each for each in names
    }


OPERATOR = "operator"
LEAD = "lead"
SYSTEM = "system"
EVERYONE = "all"

RESERVED_AGENTS = frozenset({OPERATOR, LEAD, EVERYONE, SYSTEM})
RESERVED_TEAMS = frozenset({"agents"})

_NAME = re.compile(NAME_PATTERN)

NAME_RULE = "a name starts with a-z and has at most 32 of a-z 0-9 _ -"


def is_name(text: str) -> bool:
    """Return True if `text` has the form of a name. Reserved names have it too."""
    return _NAME.match(text) is not None


def check_agent(name: str, agent_type: str) -> str:
    """Return `name` if an agent of `agent_type` may have it.

    Raises:
        UsageError: The name breaks the rule or is reserved.
    """
    if not is_name(name):
        raise UsageError(f"{name!r} cannot name an agent: {NAME_RULE}")
    if name in RESERVED_AGENTS and not (name == LEAD and agent_type == LEAD):
        raise UsageError(f"{name!r} is reserved; choose another name for the agent")
    return name


def check_team(name: str, reserved: frozenset[str] = RESERVED_TEAMS) -> str:
    """Return `name` if a team may have it.

    Raises:
        UsageError: The name breaks the rule or is reserved.
    """
    if not is_name(name):
        raise UsageError(f"{name!r} cannot name a team: {NAME_RULE}")
    if name in reserved:
        raise UsageError(f"{name!r} is reserved; choose another name for the team")
    return name


def check_new_team(name: str) -> str:
    """Return `name` if a new team may have it. Existing teams keep a name that is reserved for agents.

    Raises:
        UsageError: The name breaks the rule or is reserved.
    """
    return check_team(name, RESERVED_TEAMS | RESERVED_AGENTS)


def mailboxes(agents: Collection[str]) -> list[str]:
    """Return every name that mail can be sent to: the operator, `lead`, and the agents."""
    return [OPERATOR, LEAD, *(name for name in agents if name != LEAD)]


def operator_mailboxes(agents: Collection[str]) -> frozenset[str]:
    """Return the mailboxes that the operator reads."""
    return frozenset({OPERATOR} if LEAD in agents else {OPERATOR, LEAD})


def is_operator_mailbox(name: str, agents: Collection[str]) -> bool:
    """Return True if the operator reads the mailbox `name`."""
    return name in operator_mailboxes(agents)


def require_recipient(name: str, agents: Collection[str]) -> str:
    """Return `name` if mail can be sent to it.

    Raises:
        UsageError: There is no such recipient; the message lists the names.
    """
    known = mailboxes(agents)
    if name not in known:
        raise UsageError(f"no agent of this team is called {name!r}; mail can go to {', '.join(known)}")
    return name
