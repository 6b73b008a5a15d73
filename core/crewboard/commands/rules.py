"""Add, remove and describe rules, which allow or deny calls of agents, or have the operator asked first."""

import re
import shlex
from typing import Literal

from crewboard.agent_types import MCP_PREFIX, WRITE_TOOLS
from crewboard.commands import answers
from crewboard.commands.context import Team
from crewboard.errors import BadDataError, CrewboardError, UsageError
from crewboard.executed_files import runs_on_your_machine
from crewboard.names import OPERATOR
from crewboard.protocol import requests
from crewboard.records.requests import Request
from crewboard.records.team import Config, Rule, RuleEffect
from crewboard.store import mailbox, roster
from crewboard.untrusted import as_run


def scope_of(request: Request) -> str | None:
    """Return the scope of the rule that a permission request proposes; None if it proposes none."""
    scope = request.payload.get("scope")
    return scope if request.type == "permission" and isinstance(scope, str) else None


RuleFor = Literal["agent", "type", "all"]
"""The agents that a rule added with an approval is for: the one that asks, all of its type, or all agents."""

FILE_TOOLS = (*WRITE_TOOLS, "files")

RULE_TOOLS = ("bash", *FILE_TOOLS)
"""The tools that a rule can be about, apart from those of MCP servers; `files` is every file tool that writes."""

_MCP_TOOLS = re.compile(rf"{MCP_PREFIX}[\w*?-]+", re.ASCII)
"""A tool of an MCP server, or a pattern of several."""

_ARGUMENT = re.compile(r"[\w.*?-]+=.*|\*", re.ASCII)

_MAX_PATTERN = 500


def covers(request: Request, scope: str, rule_for: RuleFor = "agent", agent_type: str = "") -> str:
    """Return in words which further calls a rule of this scope allows.

    `rule_for` says for which agents the rule is; `agent_type` is the type, if it is for one.
    """
    who = request.from_ if rule_for == "agent" else _describe_agents(agent_type if rule_for == "type" else None)
    tool, scope = str(request.payload.get("tool", "")), as_run(scope)
    if tool == "bash":
        return f"any single command of {who} that starts {scope}"
    if tool.startswith(MCP_PREFIX):
        return f"every {tool} of {who}"
    folder = "the top folder" if scope in (".", "") else f"{scope}/"
    return f"every {tool} of {who} directly in {folder}"


def _describe_agents(agent_type: str | None) -> str:
    return "all agents" if agent_type is None else f"all agents of type {agent_type}"


def describe_rule(rule: Rule) -> str:
    """Return in words which agents may do what by a rule, may not, or must ask for."""
    who = rule.agent or _describe_agents(rule.agent_type)
    pattern = as_run(rule.pattern or rule.scope or "")
    if rule.effect == "ask":
        return f"{who} must ask before {rule.tool} for {pattern}"
    call = f"use {rule.tool} for {pattern}"
    if rule.effect == "allow":
        return f"{who} may {call} without asking"
    if rule.agent is not None:
        return f"{who} may not {call}"
    return f"no agent{who.removeprefix('all agents')} may {call}"


def approve_with_rule(
    team: Team, request_id: str, *, sha256: str | None = None, rule_for: RuleFor = "agent"
) -> tuple[Request, Rule]:
    """Approve a permission request, and add the rule that it proposes; return both. `sha256` is as in `approve`.

    Raises:
        BadDataError: The answer changed nothing, or the request cannot be read. No rule was added.
        UsageError: The request proposes no rule, or an agent gives the command.
    """
    roster.require_own_agents(team.directory)
    _require_operator(team)
    request_id = answers.find(team, request_id)
    request = requests.load(team.directory, request_id)
    if request is None:
        raise BadDataError(f"request {request_id} cannot be read")
    if scope_of(request) is None:
        # A rule that allows would change nothing.
        asks = request.payload.get("rule")
        why = f": {asks} each time, until it is removed" if asks else " proposes no rule"
        raise UsageError(f"request {request_id}{why}; approve it without --rule")
    rule = Rule(
        id=_new_rule_id(),
        agent=request.from_ if rule_for == "agent" else None,
        agent_type=team.member(request.from_).type if rule_for == "type" else None,
        tool=str(request.payload.get("tool")),
        scope=str(request.payload.get("scope")),
        at=team.now(),
        by=team.operator,
    )
    # Before the approval: the agent's next call may come at once.
    roster.change(team.directory, lambda config: config.rules.append(rule))
    try:
        decided = answers.approve(team, request_id, sha256=sha256)
    except (CrewboardError, OSError):
        roster.change(team.directory, lambda config: _remove(config, rule.id))
        raise
    _note_rule(team, rule)
    return decided, rule


def add_rule(
    team: Team, effect: RuleEffect, tool: str, pattern: str, *, agent: str | None = None, agent_type: str | None = None
) -> Rule:
    """Add a rule for an agent, for a type of agents, or without both for all agents; return it.

    Raises:
        UsageError: The pattern is not valid for the tool, there is no such agent or tool, the rule would allow writes
            of files that run on the user's machine, or an agent adds the rule.
        BadDataError: The agents of the team belong to another program.
    """
    roster.require_own_agents(team.directory)
    _require_operator(team)
    if agent is not None:
        team.member(agent)
    if tool not in RULE_TOOLS and not _MCP_TOOLS.fullmatch(tool):
        known = f"{', '.join(RULE_TOOLS)}, and those of MCP servers, such as {MCP_PREFIX}SERVER__*"
        raise UsageError(f"there are no rules about {tool!r}; tools: {known}")
    if not pattern.strip() or len(pattern) > _MAX_PATTERN or not pattern.isprintable():
        raise UsageError(f"a pattern has 1 to {_MAX_PATTERN} characters, without control characters")
    if tool == "bash":
        if found := re.search(r"[;&|<>$`]", pattern):
            raise UsageError(f"a pattern is for one command, without {found[0]}; make a rule for each command")
        try:
            shlex.split(pattern)
        except ValueError as error:
            raise UsageError(f"the pattern {pattern!r} cannot be read: {error}") from error
    elif tool.startswith(MCP_PREFIX):
        if not _ARGUMENT.fullmatch(pattern):
            raise UsageError(
                f"{pattern!r} is neither `*`, for every call, nor an argument such as 'url=https://docs.*'"
            )
    elif pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise UsageError(f"{pattern!r} is no path from the workspace's root, such as src/**")
    if effect == "allow" and tool in FILE_TOOLS and runs_on_your_machine(pattern):
        raise UsageError(f"no rule allows a write of {pattern!r}, which runs on your machine; each one is asked for")
    rule = Rule(
        id=_new_rule_id(),
        effect=effect,
        agent=agent,
        agent_type=agent_type,
        tool=tool,
        pattern=pattern,
        at=team.now(),
        by=team.operator,
    )
    roster.change(team.directory, lambda config: config.rules.append(rule))
    _note_rule(team, rule)
    return rule


def _require_operator(team: Team) -> None:
    """Check that the operator gives the command, because only the operator decides on rules.

    Raises:
        UsageError: An agent gives the command.
    """
    if team.by != OPERATOR:
        raise UsageError("only the operator adds and removes rules")


def _new_rule_id() -> str:
    return f"rule-{mailbox.new_id()[:8]}"


def _note_rule(team: Team, rule: Rule) -> None:
    effect = "" if rule.effect == "allow" else f"{rule.effect} "
    others = f", {_describe_agents(rule.agent_type)}" if rule.agent is None else ""
    team.note("rule", rule.agent or "", f"{rule.id}: {effect}{rule.tool} {rule.pattern or rule.scope}{others}")


def revoke(team: Team, rule_id: str) -> None:
    """Remove the rule with this id.

    Raises:
        UsageError: There is no such rule, or an agent gives the command.
    """
    _require_operator(team)
    roster.change(team.directory, lambda config: _remove(config, rule_id))
    team.note("revoke", detail=rule_id)


def _remove(config: Config, rule_id: str) -> None:
    left = [rule for rule in config.rules if rule.id != rule_id]
    if len(left) == len(config.rules):
        known = ", ".join(rule.id for rule in config.rules) or "none"
        raise UsageError(f"there is no rule {rule_id!r}; rules: {known}")
    config.rules = left
