"""The command `mcp`: the MCP servers of a project, and which of them the user has accepted."""

import json
import os
import shlex
import shutil
from typing import Any

import click

import crewboard as core
from crewboard import BadDataError, UsageError, mcp_servers, read_team, redaction, type_files
from crewboard.commands import accept as commands_accept
from crewboard.commands.context import command_for
from crewboard.records.base import JsonValue
from crewboard.records.requests import payload_sha256
from crewboard.untrusted import on_one_line
from crewboard_tui.cli import common
from crewboard_tui.cli.common import Session, as_json, note, say, say_json
from crewboard_tui.render.sanitize import is_revealing, revealing, safe_line, safe_text


@click.group(cls=common.LazyGroup, invoke_without_command=True)
@click.option("--reveal", is_flag=True, help="Show the keys in command lines, variables and headers, too; not in JSON.")
@as_json
def mcp(session: Session, reveal: bool) -> None:
    """List the MCP servers of the project, their tools and which you accepted.

    Servers come from .mcp.json, in the form of Claude Code, and from the files of types (`mcp:`). Agents use a server
    of .mcp.json after `crewboard mcp approve`; approve it again after each change of its entry. A server of a type is
    accepted with the type. Tools are listed after an agent has started the server.
    """
    if not common.is_list(session):
        if reveal:
            raise UsageError("--reveal is for the list: `crewboard mcp --reveal`")
        return
    with revealing(wanted=reveal and not session.as_json):
        # All servers, as `mcp --json` prints them, each with what its file says, if that can be used.
        root = session.root
        try:
            project = mcp_servers.read(root)
        except BadDataError as error:
            project = mcp_servers.Found({}, {mcp_servers.FILE: str(error)})
        servers = list(project.servers.values())
        invalid = dict.fromkeys(project.invalid, mcp_servers.FILE)
        reasons = dict(project.invalid)
        for kind in type_files.find_all(root)[0].values():
            of_type = mcp_servers.of_type(kind)
            servers += of_type.servers.values()
            invalid |= dict.fromkeys(of_type.invalid, kind.file)
            reasons |= of_type.invalid
        agents = read_team(session.team.directory).agents if session.team.directory.exists() else ()
        listed = [
            *((_as_json(session, server, agents), server) for server in servers),
            *((_row(name, source, "invalid", why=reasons[name]), None) for name, source in invalid.items()),
            *(
                (_row(name, mcp_servers.FILE, "gone"), None)
                for name in mcp_servers.accepted_names(root, os.environ)
                if name not in project.servers and name not in project.invalid
            ),
        ]
        found = [row for row, _ in listed]
        if session.as_json:
            say_json(found)
            return
        for row, server in listed:
            _say_server(session, row, server)
        if not found:
            note(f"no MCP servers; name them in {mcp_servers.FILE}")
        texts = {each["name"]: redaction.redact(json.dumps(each, ensure_ascii=False)) for each in found}
        hiding = [name for name, text in texts.items() if redaction.MARK in text]
        if hiding and not is_revealing():
            reveals = command_for(session.team, "mcp --reveal")
            note(f"what looks like a key is hidden in {', '.join(hiding)}: `{reveals}` shows it")


def _say_server(session: Session, each: dict[str, Any], server: mcp_servers.McpServer | None) -> None:
    team, name = session.team, each["name"]
    say(f"{safe_line(name):<12} {each['state']:<8} {safe_text(on_one_line(each['command'] or each['url']))}")
    lines = [f"env {variable}={value}" for variable, value in each["env"].items()]
    lines += [f"header {header}: {value}" for header, value in each["headers"].items()]
    if each["source"] != mcp_servers.FILE:
        lines.append(f"from: {each['source']}")
    if each["variables"]:
        lines.append(f"gets the values of: {', '.join(each['variables'])}")
    if each["changed"]:
        lines.append(f"changed since you accepted it: {', '.join(each['changed'])}")
    if each["state"] == "new" and server is not None:
        lines.append(f"not accepted: `{_shown([server], session).yes(command_for(team, f'mcp approve {name}'))}`")
    if each["state"] == "gone":
        revoke = command_for(team, f"mcp revoke {name}")
        lines.append(f"accepted, but not in {mcp_servers.FILE}: `{revoke}` takes that back")
    if each["why"]:
        lines.append(f"cannot be used: {each['why']}")
    if each["tools"]:
        lines.append(f"tools: {' '.join(each['tools'])}")
    lines += [f"left out: {text}" for text in each["left_out"]]
    lines += [f"{agent} works without it: {problem}" for agent, problem in each["problems"].items()]
    say(*(f"             {safe_text(on_one_line(line))}" for line in lines))


def _as_json(session: Session, server: mcp_servers.McpServer, agents: tuple[core.AgentView, ...]) -> dict[str, Any]:
    accepted = mcp_servers.is_accepted(server, session.root, os.environ)
    states = [
        (agent.name, state)
        for agent in agents
        for state in agent.status.mcp
        if (state.name, state.file) == (server.name, server.source)
    ]
    return _row(
        server.name,
        server.source,
        "type" if server.with_type else "accepted" if accepted else "new",
        command="" if server.url else server.shown,
        url=server.url,
        env=dict(server.env) if is_revealing() else server.shown_env,
        headers=dict(server.headers) if is_revealing() else server.shown_headers,
        sha256=server.sha256(session.root),
        variables=server.variables,
        changed=[] if accepted else mcp_servers.changes(server, session.root, os.environ),
        tools=sorted({tool for _, state in states for tool in state.tools}),
        left_out=sorted({text for _, state in states for text in state.left_out}),
        problems={name: state.problem for name, state in states if state.problem and state.new != accepted},
    )


def _row(name: str, source: str, state: str, **known: object) -> dict[str, Any]:
    return {
        "name": name, "source": source, "state": state, "command": "", "url": "", "env": {}, "headers": {},
        "variables": [], "changed": [], "why": None, "sha256": None,
        "tools": [], "left_out": [], "problems": {}, **known,
    }  # fmt: skip


@mcp.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "all_servers", is_flag=True, help="All servers of .mcp.json.")
@common.sha256
@click.pass_obj
def approve(session: Session, names: tuple[str, ...], all_servers: bool, sha256: str | None, reveal: bool) -> None:
    """Accept servers of .mcp.json, until their entries change.

    `crewboard mcp` prints the command with the --sha256 of what it shows; of several servers it is that of all. Without
    it, a terminal shows the entries and asks, and a script is refused.

    A server runs in the sandbox of its agent; one with an address is reached by agents hired with --network. Agents
    that run use it from their next assignment on.
    """
    if bool(names) == all_servers:
        raise UsageError("name the servers to accept, or use --all" + (", not both" if names else ""))
    root = session.root
    chosen = mcp_servers.read(root).servers if all_servers else names
    servers = [mcp_servers.find(root, name) for name in sorted(set(chosen))]
    if not servers:
        raise UsageError(f"there is no server in {mcp_servers.FILE} to accept")
    accept = command_for(session.team, shlex.join(["mcp", "approve", *(["--all"] if all_servers else names)]))
    common.require_yes(sha256, _shown(servers, session), accept, reveal=reveal)
    for server in servers:
        commands_accept.accept(session.team, server)
    for server in servers:
        say(*_lines(server, " is accepted until its entry changes"))
        if not server.command or "${" in server.command:
            continue
        # As seen from the workspace, if it has a path; an absolute one stays as it is.
        named = str(session.root / server.command) if "/" in server.command else server.command
        if shutil.which(named, path=session.team.environment.get("PATH")) is None:
            what = f"{server.command} is not found: install it where the agent's commands find it"
            note(f"{server.name}: {safe_line(what)}")


def _shown(servers: list[mcp_servers.McpServer], session: Session) -> common.Shown:
    digests: list[JsonValue] = [server.sha256(session.root) for server in servers]
    # Of several servers, the digest of their digests.
    sha256 = servers[0].sha256(session.root) if len(servers) == 1 else payload_sha256({"servers": digests})
    what = f"{', '.join(server.name for server in servers)} of {mcp_servers.FILE}"
    look = f"look at it with `{command_for(session.team, 'mcp')}`"
    return common.Shown(what, sha256, look, lambda: [line for server in servers for line in _lines(server)])


def _lines(server: mcp_servers.McpServer, accepted: str = "") -> list[str]:
    """Return what accepting a server allows, as lines; `accepted` follows its name."""
    gets = f", with the values of {', '.join(server.variables)}" if server.variables else ""
    return [
        safe_text(f"{server.name}{accepted}: {server.shown}{gets}"),
        *(f"  {safe_text(x)}" for x in server.settings(reveals=is_revealing())),
    ]


@mcp.command()
@click.argument("name")
@click.pass_obj
def revoke(session: Session, name: str) -> None:
    """Revoke the acceptance of the server NAME.

    It can also be one that .mcp.json no longer names. Agents that run lose it with their next assignment.
    """
    commands_accept.revoke_server(session.team, name)
    say(f"{name} is no longer accepted")
