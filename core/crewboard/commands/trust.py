"""Accept types, skills and MCP servers of a project for this user, and record that in the team."""

from crewboard import mcp_servers, skill_files, type_files
from crewboard.agent_types import AgentType
from crewboard.commands.context import Team
from crewboard.commands.messages import acknowledge_marks
from crewboard.errors import UsageError
from crewboard.mcp_servers import McpServer
from crewboard.records.team import mcp_mark
from crewboard.skill_files import ProjectSkill


def trust_type(team: Team, kind: AgentType) -> None:
    """Accept a project's own type for this user, until its file changes, and record that in the team.

    Raises:
        StorageError: It could not be recorded.
    """
    type_files.trust(kind, team.environment)
    if not team.directory.is_foreign():
        # A type is accepted before the first agent is hired, so before there is a team.
        team.ensure()
        team.note("trust", kind.name, f"{kind.file}, SHA-256 {kind.sha256[:12]}…")


def trust_skill(team: Team, skill: ProjectSkill) -> None:
    """Accept a skill of the project for this user, until one of its files changes, and record that in the team.

    Raises:
        StorageError: It could not be recorded.
    """
    skill_files.trust(skill, team.directory.root, team.environment)
    if not team.directory.is_foreign():
        team.ensure()
        team.note("trust", skill.name, f"skill, SHA-256 {skill.sha256[:12]}…")


def accept_server(team: Team, server: McpServer) -> None:
    """Accept an MCP server of the project for this user, until its entry changes. End the needs that waited for it.

    Raises:
        StorageError: It could not be recorded.
    """
    mcp_servers.accept(server, team.directory.root, team.environment)
    if team.directory.is_foreign():
        return
    # A server may be accepted before there is a team.
    team.ensure()
    team.note("mcp accept", server.name, f"{server.source}, SHA-256 {server.sha256(team.directory.root)[:12]}…")
    statuses = ((name, team.directory.agent(name).status.load()) for name in team.config.names)
    waiting = {
        mcp_mark(name, state.name): state.since
        for name, status in statuses
        if status is not None
        for state in status.mcp
        if state.new and state.name == server.name
    }
    acknowledge_marks(team, waiting)


def revoke_server(team: Team, name: str) -> None:
    """Revoke the acceptance of an MCP server, also of one that is no longer there.

    Raises:
        StorageError: It could not be recorded.
        UsageError: The user had not accepted it.
    """
    root = team.directory.root
    if not mcp_servers.revoke(name, root, team.environment):
        accepted = ", ".join(mcp_servers.accepted_names(root, team.environment)) or "none"
        raise UsageError(f"no MCP server {name!r} is accepted here; accepted: {accepted}")
    if team.directory.exists() and not team.directory.is_foreign():
        team.note("mcp revoke", name, mcp_servers.FILE)
