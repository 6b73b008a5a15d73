"""The permission for one tool call: by plan, rules and collision policy, and by the operator if one of them asks.

The rules are those of the operator and of types. A rule that allows covers one simple command, read as strictly as
possible. A rule that denies or asks also looks into compound commands (`bash_reader.py`). Where it is not certain how
bash reads a command, the operator is asked.
"""

import contextlib
import json
import os
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from crewboard import edits
from crewboard.agent_types import MCP_PREFIX, WRITE_TOOLS, is_gated, kept_by_terms
from crewboard.executed_files import runs_on_your_machine
from crewboard.names import OPERATOR
from crewboard.protocol import collisions, requests
from crewboard.records.agents import StepVerdict, Terms
from crewboard.records.base import JsonValue, first_line
from crewboard.records.requests import Request
from crewboard.records.team import Rule, RuleEffect, matches_path, matches_text
from crewboard.store import mailbox, roster
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, Outcome
from crewboard.worker.tools.bash_reader import UnclearCommandError, commands_in, simple_command
from crewboard.worker.tools.plans import deviates, deviation_refusal, expire_approval, is_gate_closed, take_released
from crewboard.worker.tools.workspace import unescape_name

_TYPE_RULE = "type "
"""The beginning of the id of a rule that comes from the file of a type, and not from the operator."""

_MOST_COMMANDS = 1000
"""The most commands in one call that are compared with each rule. More would block the worker for too long, so the
operator is asked."""


class StepRule(NamedTuple):
    """A rule that denies a file or a command named only by a step of the plan that was not approved.

    `verdict` is the decision about the step.
    """

    rule: Rule
    verdict: StepVerdict


class Verdict(NamedTuple):
    """The decision of the rules about a call, and the rule that decided.

    `asks` is the reason if the operator is to be asked, else empty. `step` is the decision about the step of the plan
    that the rule is for; None if it is a rule of the operator or of a type.
    """

    effect: RuleEffect
    rule: Rule
    asks: str = ""
    step: StepVerdict | None = None


class _Match(IntEnum):
    """The certainty that a rule applies to a call."""

    NO = 0
    MAYBE = 1
    YES = 2


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


# --------------------------------------------------------------------------------------------- rules


def judge(run_state: RunState, tool: str, arguments: dict[str, Any]) -> Verdict | None:
    """Return the verdict about a call by the rules of operator, type and plan; None if no rule applies."""
    spec = run_state.spec
    rules = roster.load(run_state.team).rules
    found = [rule for rule in rules if rule.applies_to(run_state.name, spec.type)]
    denied = spec.definition.denied if spec.definition is not None else []
    found += [
        Rule(id=f"{_TYPE_RULE}{spec.type}", effect="deny", tool=each.tool, pattern=each.pattern) for each in denied
    ]
    return judge_call(found, tool, arguments, str(run_state.workspace), run_state.conversation.terms)


def step_rules(terms: Terms | None) -> list[StepRule]:
    """Return rules that deny the files and commands named only by steps that an approval holds or refuses."""
    found = list[StepRule]()
    if terms is None:
        return found
    for each in terms.denied:
        verdict = terms.verdict(each.step)
        denies = [("files", file) for file in each.files]
        for command in each.commands:
            is_mcp = command.startswith(MCP_PREFIX)
            denies.append((command.split()[0], "") if is_mcp else ("bash", f"{command} *"))
        ident = f"{'held' if verdict == 'hold' else 'refused'} step {each.step}"
        found += [
            StepRule(Rule(id=ident, effect="deny", tool=tool, pattern=pattern), verdict) for tool, pattern in denies
        ]
    return found


def judge_call(
    rules: Sequence[Rule], tool: str, arguments: dict[str, Any], root: str, terms: Terms | None = None
) -> Verdict | None:
    """Return the verdict about a call by these rules and those of the `terms`' steps; None if none applies.

    Deny wins over ask, ask wins over allow. If a rule may deny the call, but not for certain, the operator is asked.
    No rule allows to write a file that runs on the user's machine. `root` is the workspace.
    """
    of_steps = step_rules(terms)
    rules = [*rules, *(each.rule for each in of_steps)]

    def verdict(effect: RuleEffect, rule: Rule, asks: str = "") -> Verdict:
        return Verdict(effect, rule, asks, next((each.verdict for each in of_steps if each.rule is rule), None))

    # A rule may be about a pattern of tools of MCP servers, or about all file tools.
    if tool.startswith(MCP_PREFIX):
        rules = [rule for rule in rules if rule.tool.startswith(MCP_PREFIX) and matches_text(rule.tool, tool)]
    else:
        rules = [rule for rule in rules if rule.tool == tool or (rule.tool == "files" and tool != "bash")]
    strict = _strict_matches([rule for rule in rules if rule.effect != "allow"], tool, arguments, root)
    for match, rule in strict:
        if match is _Match.YES and rule.effect == "deny":
            return verdict("deny", rule)
    for match, rule in strict:
        certain = f"{rule.id} asks before {rule.pattern}"
        possible = f"{rule.id} may be about it: {rule.effect} {rule.pattern}"
        return verdict("ask", rule, certain if match is _Match.YES else possible)
    if is_executed(tool, arguments):
        return None
    allowing = (rule for rule in rules if rule.effect == "allow" and _allows(rule, tool, arguments, root))
    return next((verdict("allow", rule) for rule in allowing), None)


def is_executed(tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if a call of a file tool is about a file that the user's programs run or take commands from."""
    if tool == "bash" or tool.startswith(MCP_PREFIX):
        return False
    return runs_on_your_machine(str(arguments.get("path", "")))


def _allows(rule: Rule, tool: str, arguments: dict[str, Any], root: str) -> bool:
    """Return True if a rule applies to a call for certain.

    A command must be a simple one, and a path must match as it is given and with all links resolved.
    """
    scope = scope_of(tool, arguments)
    if scope is None or not rule.pattern:
        return (rule.tool, rule.scope) == (tool, scope)
    if tool.startswith(MCP_PREFIX):
        return _match_arguments(rule.pattern, arguments)
    if tool == "bash":
        words, pattern = simple_command(str(arguments.get("command", ""))), _pattern_words(rule)
        return bool(words and pattern) and _match_words(pattern, words or [], any_folder=False) is _Match.YES
    return all(matches_path(rule.pattern, name) for name in _names_of(str(arguments.get("path", "")), root))


def _strict_matches(rules: list[Rule], tool: str, arguments: dict[str, Any], root: str) -> list[tuple[_Match, Rule]]:
    """Return the rules that apply or may apply to a call, also to a part of its command; certain ones first."""
    found: list[tuple[_Match, Rule]] = []
    if tool.startswith(MCP_PREFIX):
        return [(_Match.YES, rule) for rule in rules if not rule.pattern or _match_arguments(rule.pattern, arguments)]
    if tool == "bash":
        commands: list[list[str | None]] | None = None
        with contextlib.suppress(UnclearCommandError):
            commands = list(islice(commands_in(str(arguments.get("command", ""))), _MOST_COMMANDS + 1)) if rules else []
        if commands is not None and len(commands) > _MOST_COMMANDS:
            commands = None
        for rule in rules:
            pattern = _pattern_words(rule)
            clear = commands if pattern else None
            matches = [_Match.MAYBE] if clear is None else [_match_words(pattern, words) for words in clear]
            found.append((max(matches, default=_Match.NO), rule))
    else:
        names = _names_of(str(arguments.get("path", "")), root) if rules else []
        for rule in rules:
            matched = not rule.pattern or any(matches_path(rule.pattern, name, or_inside=True) for name in names)
            found.append((_Match.YES if matched else _Match.NO, rule))
    return sorted((each for each in found if each[0] is not _Match.NO), key=lambda each: -each[0])


def _pattern_words(rule: Rule) -> list[str]:
    """Return the words of a rule's pattern; an empty list if it cannot be read, as after an edit by hand."""
    try:
        return shlex.split(rule.pattern)
    except ValueError:
        return []


def _match_words(pattern: list[str], words: Sequence[str | None], *, any_folder: bool = True) -> _Match:
    """Compare the words of a command with a pattern; one that ends in `*` allows more words.

    A word of the command is None if it is not known. With `any_folder`, the program may be in any folder, and the match
    is MAYBE if it fails only because of options before a subcommand.
    """
    more = pattern[-1].endswith("*")
    if pattern[-1] == "*":
        pattern = pattern[:-1]
    for index, wanted in enumerate(pattern):
        word = words[index] if index < len(words) else ""
        if word is None:
            return _Match.MAYBE
        if index >= len(words):
            return _Match.NO
        name = posixpath.basename(word) if any_folder and index == 0 else word
        if matches_text(wanted, word) or matches_text(wanted, name):
            continue
        has_option = any_folder and index > 0 and word.startswith("-")
        # The words may still contain those of the pattern, in this order.
        left = iter(words[index:])
        fits = all(any(each is None or matches_text(further, each) for each in left) for further in pattern[index:])
        return _Match.MAYBE if has_option and fits else _Match.NO
    if more or len(words) == len(pattern):
        return _Match.YES
    return _Match.MAYBE if words[len(pattern)] is None else _Match.NO


def _match_arguments(pattern: str, arguments: dict[str, Any]) -> bool:
    """Return True if a pattern `name=text` matches an argument of a call; `*` matches every call."""
    texts = (value if isinstance(value, str) else json.dumps(value) for value in arguments.values())
    return pattern == "*" or any(
        matches_text(pattern, f"{name}={text}") for name, text in zip(arguments, texts, strict=True)
    )


def _names_of(path: str, root: str) -> list[str]:
    """Return the names of a path relative to the root, of which file tools may mean any.

    They are the path as it is given, with links resolved, and with `unescape_name` applied and links resolved.
    """
    real = [posixpath.realpath(posixpath.join(root, each)) for each in (path, unescape_name(path))]
    given = posixpath.relpath(posixpath.join(root, path), root)
    return [given, *(posixpath.relpath(each, posixpath.realpath(root)) for each in real)]


def file_changed_by(tool: str, arguments: dict[str, Any], root: str) -> str | None:
    """Return the path of the file that a call changes, from the root, with links resolved.

    None for a tool that writes no file, or a path that cannot be one.
    """
    if tool not in WRITE_TOOLS:
        return None
    try:
        return os.fsencode(_names_of(str(arguments.get("path", "")), root)[-1]).decode("utf-8", "replace")
    except ValueError:
        # No file has such a name; the tool says so.
        return None


def refused_by_type(run_state: RunState, tool: str, arguments: dict[str, Any]) -> Outcome | None:
    """Return the refusal of a call that no pattern of the agent's type for this tool allows, else None.

    A type that has the tool without patterns allows all its calls.
    """
    definition = run_state.spec.definition
    only = [each.pattern for each in definition.only if each.tool == tool] if definition is not None else []
    rules = [Rule(id="", tool=tool, pattern=pattern) for pattern in only]
    if not only or any(_allows(rule, tool, arguments, str(run_state.workspace)) for rule in rules):
        return None
    how = "one plain command that begins so" if tool == "bash" else "these files"
    text = f"{tool} was not run: an agent of type {run_state.spec.type} has it only for {', '.join(only)}"
    return Outcome(f"{text} ({how}).", is_error=True)


def why_denied(verdict: Verdict) -> str:
    """Return why a rule denies a call, as a clause for a sentence."""
    rule = verdict.rule
    if verdict.step is not None:
        about = (rule.pattern or rule.tool).removesuffix(" *")
        return f"{rule.id} of your plan is not approved, and only that step names {about}"
    about = rule.pattern
    if rule.tool.startswith(MCP_PREFIX):
        about = rule.tool if rule.pattern in ("", "*") else f"{rule.tool} with {rule.pattern}"
    whose = f"your {rule.id}" if rule.id.startswith(_TYPE_RULE) else f"the operator's rule {rule.id}"
    return f"{whose} denies {about}"


def rule_refusal(tool: str, verdict: Verdict) -> Outcome:
    """Return the outcome that tells the model that a rule denies a call."""
    told = "Do not try to do it in another way; ask the operator if you need it."
    if verdict.step is not None:
        way = "do it in another way" if verdict.step == "not" else "do it now, nor in another way"
        told = f"Do not {way}. Go on with the approved steps, or say in your result that you need it."
    text = f"{tool} was not run: {why_denied(verdict)}. {told}"
    return Outcome(text, is_error=True, rule=verdict.rule.id)


def scope_of(tool: str, arguments: dict[str, Any]) -> str | None:
    """Return what a rule would cover that allows calls like this one: a program for bash, a folder for file tools.

    It is `*` for a tool of an MCP server: all its calls. None if no such rule is offered.
    """
    if tool.startswith(MCP_PREFIX):
        return "*"
    if tool == "bash":
        words = simple_command(str(arguments.get("command", "")))
        return words[0] if words else None
    path = PurePosixPath(str(arguments.get("path", "")))
    return None if not path.name or path.is_absolute() or ".." in path.parts else str(path.parent)
