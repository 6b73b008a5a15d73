"""The command `mcp`: the MCP servers of a project, and which of them the user accepted."""

import os
import shutil
from typing import Any

import click

import crewboard as core
from crewboard import BadDataError, Team, UsageError, read_team
from crewboard_tui.cli.common import Session, as_json, note, say, say_json
from crewboard_tui.render import safe_line


@click.group(invoke_without_command=True)
@as_json
@click.pass_context
def mcp(context: click.Context, as_json: bool) -> None:
    """List the MCP servers of the project, their tools and which you accepted.

    Servers come from .mcp.json, in the form of Claude Code, and from the files of types (`mcp:`). Agents use a server
    of .mcp.json after `crewboard mcp approve`; approve it again after each change of its entry. A server of a type is
    accepted with the type. Tools are listed after an agent has started the server.
    """
    if context.invoked_subcommand is not None:
        return
    session: Session = context.obj
    found = _listed(session)
    if as_json:
        say_json(found)
        return
    for each in found:
        _say_server(session.team, each)
    if not found:
        note(f"no MCP servers; name them in {core.mcp_servers.FILE}")


def _say_server(team: Team, each: dict[str, Any]) -> None:
    name = each["name"]
    say(f"{safe_line(name):<12} {each['state']:<8} {safe_line(each['command'] or each['url'])}")
    lines = [f"env {variable}={value}" for variable, value in each["env"].items()]
    lines += [f"header {header}: {value}" for header, value in each["headers"].items()]
    if each["source"] != core.mcp_servers.FILE:
        lines.append(f"from: {each['source']}")
    if each["variables"]:
        lines.append(f"gets the values of: {', '.join(each['variables'])}")
    if each["changed"]:
        lines.append(f"changed since you accepted it: {', '.join(each['changed'])}")
    if each["state"] == "new":
        lines.append(f"not accepted: `{core.commands.command_for(team, f'mcp approve {name}')}`")
    if each["state"] == "gone":
        revoke = core.commands.command_for(team, f"mcp revoke {name}")
        lines.append(f"accepted, but not in {core.mcp_servers.FILE}: `{revoke}` takes that back")
    if each["why"]:
        lines.append(f"cannot be used: {each['why']}")
    if each["tools"]:
        lines.append(f"tools: {' '.join(each['tools'])}")
    lines += [f"left out: {text}" for text in each["left_out"]]
    lines += [f"{agent} works without it: {problem}" for agent, problem in each["problems"].items()]
    for line in lines:
        say(f"             {safe_line(line)}")


def _listed(session: Session) -> list[dict[str, Any]]:
    """Return all servers, as `mcp --json` prints them."""
    root = session.root
    try:
        project = core.mcp_servers.read(root)
    except BadDataError as error:
        project = core.mcp_servers.Found({}, {core.mcp_servers.FILE: str(error)})
    servers = list(project.servers.values())
    invalid = dict.fromkeys(project.invalid, core.mcp_servers.FILE)
    reasons = dict(project.invalid)
    for kind in core.type_files.find_all(root)[0].values():
        of_type = core.mcp_servers.of_type(kind)
        servers += of_type.servers.values()
        invalid |= dict.fromkeys(of_type.invalid, kind.file)
        reasons |= of_type.invalid
    agents = read_team(session.team.directory).agents if session.team.directory.exists() else ()
    return [
        *(_as_json(session, server, agents) for server in servers),
        *(_row(name, source, "invalid", why=reasons[name]) for name, source in invalid.items()),
        *(
            _row(name, core.mcp_servers.FILE, "gone")
            for name in core.mcp_servers.accepted_names(root, os.environ)
            if name not in project.servers and name not in project.invalid
        ),
    ]


def _as_json(
    session: Session, server: core.mcp_servers.McpServer, agents: tuple[core.AgentView, ...]
) -> dict[str, Any]:
    accepted = core.mcp_servers.is_accepted(server, session.root, os.environ)
    states = [
        (agent.name, state)
        for agent in agents
        for state in agent.mcp
        if (state.name, state.file) == (server.name, server.source)
    ]
    return _row(
        server.name,
        server.source,
        "type" if server.with_type else "accepted" if accepted else "new",
        command="" if server.url else server.shown,
        url=server.url,
        env=server.shown_env,
        headers=server.shown_headers,
        variables=server.variables,
        changed=[] if accepted else core.mcp_servers.changes(server, session.root, os.environ),
        tools=sorted({tool for _, state in states for tool in state.tools}),
        left_out=sorted({text for _, state in states for text in state.left_out}),
        problems={name: state.problem for name, state in states if state.problem and state.new != accepted},
    )


def _row(name: str, source: str, state: str, **known: object) -> dict[str, Any]:
    return {
        "name": name, "source": source, "state": state, "command": "", "url": "", "env": {}, "headers": {},
        "variables": [], "changed": [], "why": None,
        "tools": [], "left_out": [], "problems": {}, **known,
    }  # fmt: skip


@mcp.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "all_servers", is_flag=True, help="All servers of .mcp.json.")
@click.pass_obj
def approve(session: Session, names: tuple[str, ...], all_servers: bool) -> None:
    """Accept servers of .mcp.json, until their entries change.

    A server runs in the sandbox of its agent; one with an address is reached by agents hired with --network. Agents
    that run use it from their next assignment on.
    """
    if bool(names) == all_servers:
        raise UsageError("name the servers to accept, or use --all")
    chosen = core.mcp_servers.read(session.root).servers if all_servers else names
    for server in [core.mcp_servers.find(session.root, name) for name in chosen]:
        core.commands.hire.accept_server(session.team, server)
        gets = f", with the values of {', '.join(server.variables)}" if server.variables else ""
        say(safe_line(f"{server.name} is accepted until its entry changes: {server.shown}{gets}"))
        for line in server.settings:
            say(f"  {safe_line(line)}")
        if server.command and "${" not in server.command and not _is_found(server.command, session):
            what = f"{server.command} is not found: install it where the agent's commands find it"
            note(f"{server.name}: {safe_line(what)}")


def _is_found(command: str, session: Session) -> bool:
    """Return True if a program is on the PATH, or at its path as seen from the workspace."""
    # An absolute path stays as it is.
    named = str(session.root / command) if "/" in command else command
    return shutil.which(named, path=session.team.environment.get("PATH")) is not None


@mcp.command()
@click.argument("name")
@click.pass_obj
def revoke(session: Session, name: str) -> None:
    """Revoke the acceptance of the server NAME.

    It can also be one that .mcp.json no longer names. Agents that run lose it with their next assignment.
    """
    core.commands.hire.revoke_server(session.team, name)
    say(f"{name} is no longer accepted")
