"""Answers to requests, and the team's settings about them: who reviews plans, the budget, permission rules.

The first valid answer wins; an answer that changes nothing is an error that says why.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, Unpack

from crewboard import agent_types, endpoint, engines, models, pricing
from crewboard.agent_types import MCP_PREFIX
from crewboard.commands.context import Team, command_for
from crewboard.errors import BadDataError, CrewboardError, UsageError
from crewboard.executed_files import runs_on_your_machine
from crewboard.local_servers import LocalServer
from crewboard.names import OPERATOR
from crewboard.pricing import parse_budget
from crewboard.protocol import approvals, collisions, requests, reviews, supervisor_client
from crewboard.protocol.requests import Decision
from crewboard.records.agents import Spec, Terms, Tokens
from crewboard.records.requests import REQUEST_ID_RULE, NewNote, Request, RequestStatus, steps_of
from crewboard.records.team import Config, Rule, RuleEffect
from crewboard.store import agents, hosts, json_records, leases, mailbox, roster
from crewboard.store.layout import HOME
from crewboard.untrusted import as_run

REQUEST_ID = re.compile(REQUEST_ID_RULE)
"""Checked before an id becomes part of a path."""


_ACTS: dict[RequestStatus, str] = {"approved": "approve", "rejected": "reject", "answered": "answer"}

_MAX_COUNT = 10_000

_MAX_LISTED = 5
"""Ids that an error message lists at most."""


def find(team: Team, beginning: str) -> str:
    """Return the id of a request: `beginning` if there is such a request, else the one whose id begins with it.

    A pending request comes before those that are closed. Only the operator may abbreviate; a lead must give the whole
    id.

    Raises:
        UsageError: The id is empty.
        BadDataError: No request matches, or several do; the message lists them, or the pending ones.
    """
    if not beginning.strip():
        raise UsageError(f"the id of the request is empty; `{command_for(team, 'requests')}` lists the pending ones")
    if not REQUEST_ID.fullmatch(beginning) or not team.directory.exists():
        raise BadDataError(f"there is no request {beginning}; `{command_for(team, 'requests')}` lists the pending ones")
    if requests.load(team.directory, beginning) is not None:
        return beginning
    known = requests.load_all(team.directory)
    waiting = [request.id for request in known if request.status == "pending"]
    closed = [request.id for request in known if request.status != "pending"]
    matches = [[ident for ident in idents if ident.startswith(beginning)] for idents in (waiting, closed)]
    found = (matches[0] or matches[1]) if team.by == OPERATOR else []
    if len(found) > 1:
        raise BadDataError(f"{beginning} may be {_list_ids(found)}; give more characters of the id")
    if not found:
        raise BadDataError(f"there is no request {beginning}; pending: {_list_ids(waiting)}")
    return found[0]


def _list_ids(idents: list[str]) -> str:
    more = [f"{len(idents) - _MAX_LISTED} more"] if len(idents) > _MAX_LISTED else []
    return " or ".join([*idents[:_MAX_LISTED], *more]) or "none"


def approve(team: Team, request_id: str, **answer: Unpack[Decision]) -> Request:
    """Approve a plan, with `terms` that hold until the result, or a permission, a shutdown, or the work on a task.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: The terms do not fit the plan or its agent, a note is on lines that the plan does not have, or
            there are notes on a plan that is `edited`.
    """
    edited, terms = answer.get("edited"), answer.get("terms")
    if answer.get("notes") and edited is not None:
        raise UsageError("notes are on lines of the plan as it came: send them, or the edited plan, but not both")
    if terms is not None:
        request_id = find(team, request_id)
        answer["terms"] = None
    if terms is not None and not terms.is_empty:
        request = requests.load(team.directory, request_id)
        if request is None or request.type != "plan_approval":
            raise BadDataError(f"request {request_id} is no plan, and only a plan is approved with terms")
        if roster.is_attached(team.directory):
            raise BadDataError(
                f"request {request_id} is of Claude Code, which takes a plan with a yes or a no: approve it without "
                "terms, or reject it with what should be different; nothing was changed"
            )
        answer["terms"] = check_terms(team, request.from_, edited or str(request.payload.get("plan", "")), terms)
    return _respond(team, request_id, "approved", **answer)


def check_terms(team: Team, name: str, plan: str, terms: Terms) -> Terms | None:
    """Return terms for a `plan` of the agent `name`, tools and steps in their order; None if they change nothing.

    Raises:
        UsageError: They do not fit the plan or the agent, or an agent gives them.
    """
    if team.by != OPERATOR:
        raise UsageError("only the operator approves a plan with terms")
    spec = agents.spec(team.directory.agent(name))
    if spec is None:
        raise UsageError(f"{name} has no spec file, so terms for it cannot be checked; approve its plan without")
    if spec.engine is not None and (terms.ask or terms.tools is not None or terms.network):
        raise UsageError(
            f"{name} works with the engine {spec.engine.name}, which asks for what it wants itself: of terms only a "
            "budget and steps to hold can be given; nothing was changed"
        )
    kind = agent_types.type_of(spec.type, spec.definition)
    known = agent_types.nameable_tools(kind, has_web=spec.flags.web)
    tools = None if terms.tools is None else _narrowed(terms.tools, name, known)
    if terms.network and not kind.executes:
        raise UsageError(f"{name} is of type {kind.name}, which runs no commands: the network would change nothing")
    if terms.budget is not None:
        require_price(team, terms.budget, spec.model)
    checked = terms.replace(tools=tools, hold=_held_steps(plan, terms.hold))
    return None if checked.is_empty else checked


def _narrowed(tools: list[str], name: str, known: tuple[str, ...]) -> list[str] | None:
    """Return tools in the order of those of the agent; None if they are all of these."""
    unknown = [tool for tool in tools if tool not in known and not any(fnmatchcase(tool, pattern) for pattern in known)]
    if unknown or not tools:
        wrong = f"{name} has no tool {', '.join(unknown)}" if unknown else "no tool is named"
        raise UsageError(f"{wrong}: name those that it keeps, of {', '.join(known)}")
    kept = [tool for tool in known if tool in tools]
    return None if len(kept) == len(known) else [*kept, *(tool for tool in tools if tool not in known)]


def _held_steps(plan: str, hold: list[int]) -> list[int]:
    steps = steps_of(plan)
    if hold and not steps:
        raise UsageError(
            "the plan has no list of steps that is numbered from 1, so no step can be held; reject it "
            "with feedback, or approve it without --hold"
        )
    if unknown := [number for number in hold if number not in steps]:
        raise UsageError(f"the plan has no step {', '.join(map(str, unknown))}: its steps are 1 to {len(steps)}")
    if hold and len(set(hold)) == len(steps):
        raise UsageError("each step would be held: reject the plan, and say why")
    return sorted(set(hold))


def require_price(team: Team, budget: str | None, model: str) -> None:
    """Check a budget; refuse one in money for a model without a price, because it would never be reached.

    Raises:
        UsageError: It has another form than `parse_budget` reads, or the price is unknown.
    """
    if budget is None or parse_budget(budget).usd is None or team.offline:
        return
    if pricing.load(team.directory.root).cost(model, Tokens()) is None:
        raise UsageError(
            f"the price of {model} is unknown: give the budget in tokens, or add the price to .crewboard/models.toml"
        )


def plan_overlaps(team: Team, request: Request) -> list[str]:
    """Return sentences about plans of other agents that name files of this plan, with what follows from that."""
    if request.type != "plan_approval":
        return []
    statuses = {name: agents.status(team.directory.agent(name)) for name in team.config.names}
    works = {name: status.work for name, status in statuses.items() if status is not None}
    pending = requests.pending(team.directory)
    found = collisions.plan_overlaps(request, works, pending, str(team.directory.root))
    claimed = team.config.collisions == "claims"
    return [
        each.describe() + (f"; {each.agent} holds them until its result" if claimed and each.approved else "")
        for each in found
    ]


def _respond(team: Team, request_id: str, status: RequestStatus, **answer: Unpack[Decision]) -> Request:
    ident, now = find(team, request_id), team.now()
    asked = requests.load(team.directory, ident)
    if asked is not None and asked.answered_in is not None:
        raise BadDataError(f"request {ident} can be answered in Claude Code's own terminal only; nothing was changed")
    try:
        decided = approvals.respond(team.directory, ident, status, team.by, now, **answer)
    except BadDataError:
        # It may be decided without its effect, if the process that decided it was killed.
        reviews.reconcile(team.directory, now)
        raise
    reviews.settle(team.directory, decided, now)
    how = ", edited" if answer.get("edited") is not None else ""
    how += f", with {words}" if (words := words_of_terms(team, decided)) else ""
    team.note(_ACTS[status], decided.from_, decided.id + how)
    return decided


def words_of_terms(team: Team, request: Request) -> str:
    """Return the terms of an approval on one line; empty if it has none."""
    if request.terms is None:
        return ""
    spec = json_records.load_or_none(team.directory.agent(request.from_).spec, Spec)
    kind = agent_types.known_type(spec.type, spec.definition) if spec is not None else None
    return agent_types.describe_terms(request.terms, kind)


def tools_lacking(team: Team, request: Request) -> str:
    """Return a sentence about tools that an approved plan needs and its terms take; empty if there are none."""
    spec = json_records.load_or_none(team.directory.agent(request.from_).spec, Spec)
    kind = agent_types.known_type(spec.type, spec.definition) if spec is not None else None
    if request.terms is None or kind is None:
        return ""
    plan = request.payload
    return agent_types.tools_a_plan_lacks(request.terms, kind, plan.get("files"), plan.get("commands"))


def reject(
    team: Team, request_id: str, feedback: str, *, sha256: str | None = None, notes: Sequence[NewNote] = ()
) -> Request:
    """Reject a plan, a permission, a shutdown, or the work on a task, with a reason; a plan also with `notes` alone.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: There is neither feedback nor a note, or a note is on lines that the plan does not have.
    """
    if not (feedback.strip() or notes):
        raise UsageError("a rejection needs feedback: say what should be different")
    said = feedback if feedback.strip() else None
    return _respond(team, request_id, "rejected", feedback=said, sha256=sha256, notes=notes)


def review_plan(team: Team, request_id: str, *, approve: bool, feedback: str | None = None) -> Request:
    """Approve or reject a plan, with or without feedback.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: The request is not a plan.
    """
    request = requests.load(team.directory, find(team, request_id))
    if request is not None and request.type != "plan_approval":
        raise UsageError(f"request {request_id} is not a plan")
    return _respond(team, request_id, "approved" if approve else "rejected", feedback=feedback)


def answer(team: Team, request_id: str, text: str) -> Request:
    """Answer a question.

    Raises:
        BadDataError: The answer changed nothing; the message says why.
        UsageError: The answer is empty.
    """
    if not text.strip():
        raise UsageError("the answer is empty")
    return _respond(team, request_id, "answered", feedback=text)


def set_approver(team: Team, who: str) -> None:
    """Set who reviews plans from now on: `operator` or `lead`.

    Raises:
        UsageError: `who` is neither.
    """
    if who not in ("operator", "lead"):
        raise UsageError(f"{who!r} cannot review plans: choose operator or lead")

    def edit(config: Config) -> None:
        config.plan_approver = "lead" if who == "lead" else "operator"

    roster.change(team.directory, edit)
    team.note("approver", detail=who)


def set_budget(team: Team, amount: str | None) -> None:
    """Set the budget of the whole team, in a form that `parse_budget` reads; None removes it.

    Raises:
        UsageError: The amount has another form, or is money, and a model of the team's setting or of an agent
            that runs has no price.
    """
    roster.require_own_agents(team.directory)
    if amount is not None:
        parse_budget(amount)
        _require_prices(team, amount)

    def edit(config: Config) -> None:
        config.budget = amount

    roster.change(team.directory, edit)
    team.note("budget", detail=amount or "none")


def _require_prices(team: Team, amount: str) -> None:
    """Refuse a first budget in money if a model of the team has no price. One that there is can always be raised."""
    config = team.config
    before = pricing.budget_or_none(config.budget)
    if before is not None and before.usd is not None:
        return
    running = (each.model for each in config.members if leases.is_held(team.directory.agent(each.name).lease))
    for model in dict.fromkeys([*models.in_setting(config.model), *running]):
        if model:
            require_price(team, amount, models.resolve(model, team.worker_environment))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < _MAX_COUNT):
        raise UsageError(f"{text!r} is no number of agents: give 1 or more, or {NONE}")
    return int(text)


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < float("inf"):
        raise UsageError(f"{text!r} is no number of hours: give more than 0, as 1.5")
    return hours


def _command(text: str) -> str:
    if not text.strip():
        raise UsageError("give a command, such as 'make test'")
    return text


def _paths(text: str) -> list[str]:
    paths = text.split()
    wrong = [path for path in paths if path.startswith("/") or not {"..", ".git", HOME}.isdisjoint(path.split("/"))]
    if wrong or not paths:
        raise UsageError(f"{' '.join(wrong) or repr(text)}: give paths in the root, apart from .git and {HOME}")
    return paths


def _models(text: str) -> str:
    types = [word.rpartition("=")[0] for word in text.split()]
    if not types or not all(map(_MODEL_WORD.fullmatch, text.split())) or len({*types}) < len(types):
        raise UsageError(f"{text!r}: give one model, and exceptions for types: 'qwen3-coder explore=qwen3:8b'")
    return " ".join(text.split())


def _server(text: str) -> str:
    url = text.strip().rstrip("/")
    if (problem := endpoint.address_problem({endpoint.BASE_URL: url})) is not None:
        raise UsageError(problem.replace(endpoint.BASE_URL, "the address"))
    if not endpoint.is_private(url):
        raise UsageError(
            f"{url} is not on this machine or its network: set {endpoint.BASE_URL} and a key in the shell instead"
        )
    return url


def _engine(text: str) -> str:
    if text not in engines.KNOWN and not text.removeprefix(engines.OTHER).strip():
        raise UsageError(f"{text!r} names no command: write {engines.OTHER}COMMAND")
    if text not in engines.KNOWN and not text.startswith(engines.OTHER):
        raise UsageError(
            f"there is no engine {text!r}: name one of {', '.join(engines.KNOWN)}, or {engines.OTHER}COMMAND"
        )
    return text


def use_server(team: Team, server: LocalServer) -> None:
    """Let new agents of a team use a server of this machine, and the model of it that is proposed.

    Raises:
        UsageError: The agents of the team run on hosts.
    """
    change_setting(team, "server", server.url)
    change_setting(team, "model", server.best)


def _one_of(values: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text not in values:
            raise UsageError(f"{text!r} is none of {', '.join(values)}")
        return values[text]

    return read


CAPS: dict[str, Callable[[str], object]] = {
    "max_agents": _count,
    "max_working": _count,
    "min_free_memory": roster.parse_size,
}

SETTINGS: dict[str, Callable[[str], object]] = {
    **CAPS,
    "on_outage": _one_of({"wait": "wait", "fail": "fail"}),
    "outage_hours": _hours,
    "result_needs": _one_of({"on": True, "off": False}),
    "approval_hours": _hours,
    "worktree": _one_of({"always": "always", "never": "never"}),
    "check": _command,
    "lead_merges": _one_of({"on": True, "off": False}),
    "collisions": _one_of({"warn": "warn", "hold": "hold", "claims": "claims"}),
    "worktree_copy": _paths,
    "worktree_setup": _command,
    "model": _models,
    "server": _server,
    "engine": _engine,
}
"""The settings of a team, by their field in `config.json`, and how their values are read."""

OPTIONAL = (*CAPS, "approval_hours", "check", "worktree_copy", "worktree_setup", "model", "server", "engine")
"""The settings that can be removed, with the value `NONE`."""

NONE = "none"


def change_setting(team: Team, name: str, value: str) -> None:
    """Set a setting of the team, or remove it with `NONE`. Queued agents that may start now are started.

    Raises:
        UsageError: There is no such setting, or the value has another form.
    """
    roster.require_own_agents(team.directory)
    if name not in SETTINGS:
        raise UsageError(f"there is no setting {name!r}; settings: {', '.join(SETTINGS)}")
    if name == "server" and value != NONE and hosts.exist(team.directory):
        raise UsageError(f"agents of this team run on hosts: set {endpoint.BASE_URL} in the environment of each host")
    parsed = None if value == NONE and name in OPTIONAL else SETTINGS[name](value)
    roster.change(team.directory, lambda config: setattr(config, name, parsed))
    team.note("setting", detail=f"{name} {value}")
    if supervisor_client.is_alive(team.directory):
        supervisor_client.wake_supervisor(team.directory)


def scope_of(request: Request) -> str | None:
    """Return the scope of a rule for this request; None if no rule is offered."""
    scope = request.payload.get("scope")
    return scope if request.type == "permission" and isinstance(scope, str) else None


RuleFor = Literal["agent", "type", "all"]
"""For which agents a rule is that an approval adds: the one that asks, all of its type, or all agents."""

FILE_TOOLS = ("write_file", "edit_file", "files")

RULE_TOOLS = ("bash", *FILE_TOOLS)
"""The tools that a rule can be about, with those of MCP servers; `files` is every file tool that writes."""

_MCP_TOOLS = re.compile(rf"{MCP_PREFIX}[\w*?-]+", re.ASCII)
"""A tool of an MCP server, or a pattern of several."""

_MODEL_WORD = re.compile(r"([^\s=]+=)?[^\s=]+")

_ARGUMENT = re.compile(r"[\w.*?-]+=.*|\*", re.ASCII)

_MAX_PATTERN = 500


def covers(request: Request, scope: str, rule_for: RuleFor = "agent", agent_type: str = "") -> str:
    """Describe which further calls a rule of this scope allows."""
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
    """Return a rule as a sentence."""
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
    """Approve a permission request, and add the rule that it proposes.

    Raises:
        BadDataError: The answer changed nothing.
        UsageError: The request proposes no rule, or an agent asks for one.
    """
    roster.require_own_agents(team.directory)
    _require_operator(team)
    request_id = find(team, request_id)
    request = requests.load(team.directory, request_id)
    if request is None:
        raise BadDataError(f"request {request_id} cannot be read")
    if scope_of(request) is None:
        raise UsageError(f"request {request_id} proposes no rule; approve it without --rule")
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
        decided = approve(team, request_id, sha256=sha256)
    except (CrewboardError, OSError):
        roster.change(team.directory, lambda config: _remove(config, rule.id))
        raise
    _note_rule(team, rule)
    return decided, rule


def add_rule(
    team: Team, effect: RuleEffect, tool: str, pattern: str, *, agent: str | None = None, agent_type: str | None = None
) -> Rule:
    """Add a rule for an agent, for a type of agents, or without both for all agents.

    Raises:
        UsageError: The pattern can match nothing, there is no such agent or tool, or an agent adds the rule.
    """
    roster.require_own_agents(team.directory)
    _require_operator(team)
    if agent is not None:
        team.member(agent)
    if tool not in RULE_TOOLS and not _MCP_TOOLS.fullmatch(tool):
        known = f"{', '.join(RULE_TOOLS)}, and those of MCP servers, such as {MCP_PREFIX}SERVER__*"
        raise UsageError(f"there are no rules about {tool!r}; tools: {known}")
    _check_pattern(tool, pattern)
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


def _check_pattern(tool: str, pattern: str) -> None:
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


def _require_operator(team: Team) -> None:
    """Refuse an agent: a rule is the operator's decision.

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
    """Remove a rule.

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
