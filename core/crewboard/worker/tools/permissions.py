"""The permission for one tool call: by plan, rules and collision policy, and by the operator if one of them asks."""

import json
from dataclasses import replace
from typing import Any, NamedTuple

from crewboard import edits
from crewboard.agent_types import MCP_PREFIX, WRITE_TOOLS, is_gated, kept_by_terms
from crewboard.names import OPERATOR
from crewboard.protocol import collisions, requests
from crewboard.records.base import JsonValue, first_line
from crewboard.records.requests import Request
from crewboard.records.team import Rule
from crewboard.store import mailbox
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, Outcome
from crewboard.worker.tools.plans import deviates, deviation_refusal, expire_approval, is_gate_closed, take_released
from crewboard.worker.tools.rules import (
    Verdict,
    file_changed_by,
    is_executed,
    judge,
    refused_by_type,
    rule_refusal,
    scope_of,
    why_denied,
)


class Permit(NamedTuple):
    """The permission for a call.

    `consumed` has the id of the mail with the operator's answer, if the operator was asked: it need not enter the
    conversation. `rule` is the rule that allowed the call or because of which the operator was asked, if there is one.
    `deviates` is True if the approved plan does not name the call.
    """

    consumed: tuple[str, ...] = ()
    rule: Rule | None = None
    deviates: bool = False


async def seek_permit(context: Context, tool: str, arguments: dict[str, Any]) -> Permit | Outcome:
    """Return the permission for a call, or what the model is told if it is refused. Ask the operator if need be.

    Raises:
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    run_state = context.run_state
    take_released(run_state)
    beyond_plan = deviates(run_state, tool, arguments)
    verdict = judge(run_state, tool, arguments) if is_gated(tool) else None
    objection = _objection(context, tool, arguments)
    refused = (
        refused_by_type(run_state, tool, arguments)
        or (expire_approval(run_state) if is_gated(tool) else None)
        or (deviation_refusal(tool) if beyond_plan and run_state.spec.flags.strict_plan else None)
        or _refused(tool, verdict, objection)
    )
    if refused is not None:
        return refused
    rule = verdict.rule if verdict is not None else None
    must_ask = verdict is not None and verdict.effect == "ask"
    asks = is_gated(tool) and asks_first(run_state, tool)
    if objection is None and not must_ask and not (asks and verdict is None):
        # An agent that need not ask gains nothing by a rule that allows.
        return Permit(rule=rule if asks else None, deviates=beyond_plan)
    why = verdict.asks if verdict is not None else ""
    by_terms = asks and (terms := run_state.conversation.terms) is not None and terms.ask
    collision = objection.text if objection is not None else ""
    decided = await ask_permission(context, tool, arguments, why, collision, by_terms=by_terms)
    consumed = (requests.response_id(decided),)
    if decided.status != "approved":
        reason = f": {decided.feedback}" if decided.feedback else ""
        text = f"{tool} was not run: permission {decided.status} by {decided.decided_by}{reason}"
        return Outcome(text, is_error=True, consumed=consumed, rule=rule.id if rule is not None else None)
    # What was decided while the agent waited counts, too: a new rule, a plan of another agent.
    verdict, objection = judge(run_state, tool, arguments), _objection(context, tool, arguments)
    return _refused(tool, verdict, objection, consumed) or Permit(consumed, rule, beyond_plan)


def asks_first(run_state: RunState, tool: str) -> bool:
    """Return True if the operator is asked before each call of a tool that writes or runs something.

    That is so by the hire (`--ask`), for commands and tools of MCP servers by the agent's type, or by the terms of the
    approved plan.
    """
    spec, terms = run_state.spec, run_state.conversation.terms
    runs = tool == "bash" or tool.startswith(MCP_PREFIX)
    by_type = runs and spec.definition is not None and spec.definition.ask_commands
    return spec.flags.ask or by_type or (terms is not None and terms.ask)


def _refused(
    tool: str, verdict: Verdict | None, objection: collisions.Objection | None, consumed: tuple[str, ...] = ()
) -> Outcome | None:
    """Return what the model is told if a rule or the collision policy refuses a call; None if neither does.

    They do so even if the operator allowed the call. `consumed` goes into the outcome.
    """
    if verdict is not None and verdict.effect == "deny":
        return replace(rule_refusal(tool, verdict), consumed=consumed)
    if objection is not None and not objection.asks:
        return Outcome(f"{tool} was not run: {objection.text}", is_error=True, consumed=consumed)
    return None


def _objection(context: Context, tool: str, arguments: dict[str, Any]) -> collisions.Objection | None:
    """Return the objection of the team's collision policy to a call; None without one, or if it changes no file."""
    run_state = context.run_state
    file = file_changed_by(tool, arguments, str(run_state.workspace))
    if file is None:
        return None
    conversation = run_state.conversation
    last_change = conversation.last_changes.get(file)
    return collisions.find_objection(context.team, context.name, file, conversation.work, last_change)


async def ask_permission(
    context: Context, tool: str, arguments: dict[str, Any], why: str, collision: str, *, by_terms: bool
) -> Request:
    """Ask the operator to allow one call, wait, and return the decided request.

    `why` names the rule because of which the operator is asked, `collision` the work of other agents that the call
    collides with; either may be empty. `by_terms` is True if the terms of the approved plan ask before each call.

    Raises:
        Interrupted: The agent must read its mail.
        WorkerExit: The run ends.
    """
    summary = str(arguments.get("command") or arguments.get("path") or "")
    if tool.startswith(MCP_PREFIX):
        summary = json.dumps(arguments, ensure_ascii=False)
    diff = None
    if tool in WRITE_TOOLS:
        path = str(arguments.get("path", ""))
        old = await context.file_tools.ask("read_text", {"path": path})
        diff = edits.shown(path, arguments, None if old.is_error else old.content)
    payload: dict[str, JsonValue] = {
        "tool": tool,
        "input": arguments,
        "summary": first_line(summary),
        "diff": diff,
        # A rule that allows would change nothing where another one has the call asked for, or where none allows it.
        "scope": None if why or collision or is_executed(tool, arguments) else scope_of(tool, arguments),
        **({"rule": why} if why else {}),
        **({"collision": collision} if collision else {}),
        **({"why": "the terms of its approved plan ask before each call"} if by_terms else {}),
    }
    request = requests.ask(
        context.team,
        f"permission-{mailbox.derived_id(context.name, context.tool_use_id)[:12]}",
        "permission",
        context.name,
        OPERATOR,
        payload,
        context.now(),
    )
    return await context.interrupts.wait_for_decision(request, f"asks to use {tool}")


def answer_of_rules(run_state: RunState, tool: str, arguments: dict[str, Any]) -> tuple[bool | None, str]:
    """Return the answer to an engine that asks for a call, and the reason for it.

    The answer is True, False, or None if the operator must be asked. The reason is empty if there is none to tell; for
    None, it names the rule because of which the operator is asked.
    """
    take_released(run_state)
    terms = run_state.conversation.terms
    verdict = judge(run_state, tool, arguments) if is_gated(tool) else None
    if verdict is not None and verdict.effect == "deny":
        return False, why_denied(verdict)
    if terms is not None and is_gated(tool) and not kept_by_terms(terms, tool):
        return False, "the terms of your plan's approval do not leave you this tool"
    if verdict is not None and verdict.effect == "allow":
        return True, ""
    return None, verdict.asks if verdict is not None else ""


def ask_for_engine(
    run_state: RunState, number: int, tool: str, arguments: dict[str, Any], title: str, why: str, rule: str
) -> Request:
    """Ask the operator to allow a call of an engine, and return the pending request.

    `number` counts the questions of engines in this run. `title` is the engine's text for the call, used if there is no
    command or path. `why` says why the operator is asked, `rule` by which rule; empty if by none.
    """
    if is_gated(tool) and is_gate_closed(run_state):
        why += "; until its plan is approved it can change nothing, also with your yes"
    payload: dict[str, JsonValue] = {
        "tool": tool,
        "input": arguments,
        "summary": first_line(str(arguments.get("command") or arguments.get("path") or title)),
        "diff": None,
        "scope": None,
        "why": why,
        **({"rule": rule} if rule else {}),
    }
    ident = f"permission-{mailbox.derived_id(run_state.name, run_state.spec.run, f'ask {number}')[:12]}"
    return requests.ask(run_state.team, ident, "permission", run_state.name, OPERATOR, payload, run_state.now())
