"""Accept types, skills and MCP servers of a project for this user, and record that in the team."""

from crewboard import mcp_servers, skill_files, type_files
from crewboard.agent_types import AgentType
from crewboard.commands.context import Team
from crewboard.commands.messages import acknowledge_marks
from crewboard.errors import UsageError
from crewboard.mcp_servers import McpServer
from crewboard.records.team import mcp_mark
from crewboard.skill_files import ProjectSkill


def accept(team: Team, thing: AgentType | ProjectSkill | McpServer) -> None:
    """Accept a type, skill or MCP server of the project for this user, until it changes; record that in the team.

    Needs of agents that wait for an accepted server end. A team that the user has not adopted is not changed.

    Raises:
        StorageError: The acceptance could not be recorded.
    """
    root, environment = team.directory.root, team.environment
    if isinstance(thing, AgentType):
        type_files.accept(thing, environment)
        act, what, sha256 = "trust", thing.file, thing.sha256
    elif isinstance(thing, ProjectSkill):
        skill_files.accept(thing, root, environment)
        act, what, sha256 = "trust", "skill", thing.sha256
    else:
        mcp_servers.accept(thing, root, environment)
        act, what, sha256 = "mcp accept", thing.source, thing.sha256(root)
    if team.directory.is_foreign():
        return
    # Something may be accepted before the first agent is hired, so before there is a team.
    team.ensure()
    team.note(act, thing.name, f"{what}, SHA-256 {sha256[:12]}…")
    if not isinstance(thing, McpServer):
        return
    statuses = ((name, team.directory.agent(name).status.load_or_none()) for name in team.config.names)
    waiting = {
        mcp_mark(name, state.name): state.since
        for name, status in statuses
        if status is not None
        for state in status.mcp
        if state.new and state.name == thing.name
    }
    acknowledge_marks(team, waiting)


def revoke_server(team: Team, name: str) -> None:
    """Revoke the acceptance of an MCP server, also of one that the project no longer has.

    Raises:
        StorageError: The change could not be recorded.
        UsageError: The user had not accepted the server.
    """
    root = team.directory.root
    if not mcp_servers.revoke(name, root, team.environment):
        accepted = ", ".join(mcp_servers.accepted_names(root, team.environment)) or "none"
        raise UsageError(f"no MCP server {name!r} is accepted here; accepted: {accepted}")
    if team.directory.exists() and not team.directory.is_foreign():
        team.note("mcp revoke", name, mcp_servers.FILE)
