"""Plans: the plan gate, what an approved plan allows, its terms, and the tool that submits a plan."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from crewboard.agent_types import MCP_PREFIX, is_gated, kept_by_terms, type_of
from crewboard.errors import BadDataError, UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import collisions, requests
from crewboard.records.agents import Terms, TermsInForce
from crewboard.records.base import JsonValue
from crewboard.records.events import Gate
from crewboard.records.requests import Request, answers_in, how_to_answer
from crewboard.store import mailbox, roster
from crewboard.worker.conversation import ApprovedPlan, Assignment
from crewboard.worker.run_state import RunState
from crewboard.worker.tools.base import Context, Input, Outcome, tool
from crewboard.worker.tools.bash_reader import simple_command


def is_plan_required(run_state: RunState) -> bool:
    """Return True if the agent's hire or the present assignment requires an approved plan."""
    assignment = run_state.conversation.assignment
    return run_state.spec.flags.plan or bool(assignment and assignment.plan_wanted)


def is_gate_closed(run_state: RunState) -> bool:
    """Return True if the agent may not write or run anything, because its plan is not approved."""
    assignment = run_state.conversation.assignment
    return is_plan_required(run_state) and not (assignment and assignment.gate_open)


def may_write(run_state: RunState) -> bool:
    """Return True if the agent may change files now: by its type, and by its plan if it needs one."""
    spec = run_state.spec
    return type_of(spec.type, spec.definition).writes and not is_gate_closed(run_state)


def take_released(run_state: RunState) -> None:
    """Journal the newer terms of the approved plan if the operator has released steps that were held.

    A closed gate stays closed.
    """
    conversation = run_state.conversation
    assignment, terms = conversation.assignment, conversation.terms_in_force
    if assignment is None or terms is None or not (assignment.gate_open and terms.given.hold):
        return
    try:
        request = requests.load(run_state.team, terms.request)
    except BadDataError:
        # What is held stays held.
        return
    if request is not None and request.terms is not None and request.terms != terms.given:
        run_state.append(Gate(ts=run_state.now(), open=True, terms=terms.replace(given=request.terms)))


def expire_approval(run_state: RunState) -> Outcome | None:
    """Close the plan gate if the approval is older than the team's `approval_hours`.

    Return what the model is told then; None if the gate stays as it is.
    """
    assignment = run_state.conversation.assignment
    if assignment is None or assignment.plan is None or is_gate_closed(run_state) or not is_plan_required(run_state):
        return None
    hours = roster.load(run_state.team).approval_hours
    if hours is None or run_state.now() - assignment.plan.at <= hours * 3600:
        return None
    run_state.append(Gate(ts=run_state.now(), open=False))
    return Outcome(
        f"An approval holds for {hours:g} h, and your plan's is older. Submit the plan again with submit_plan.",
        is_error=True,
    )


def gate_refusal(run_state: RunState, tool: str) -> Outcome | None:
    """Return what the model is told if the plan gate or the terms of the approval refuse calls of a tool; else None."""
    if is_gate_closed(run_state) and is_gated(tool):
        return Outcome(
            f"{tool} is not allowed before your plan is approved. Submit one with submit_plan.", is_error=True
        )
    if is_gate_closed(run_state) and tool in ("review_plan", "accept_changes"):
        return Outcome(f"{tool} is not allowed before your own plan is approved.", is_error=True)
    terms = run_state.conversation.terms
    if terms is not None and not kept_by_terms(terms, tool):
        return Outcome(
            f"{tool} was not run: the terms of your plan's approval leave you only {', '.join(terms.tools or ())} of "
            "the tools of your type, until your result. Do not try to do it in another way; submit a new plan with "
            "submit_plan if you need it.",
            is_error=True,
        )
    return None


def deviates(run_state: RunState, tool: str, arguments: dict[str, Any]) -> bool:
    """Return True if the approved plan does not name this call of a tool that writes or runs something.

    It is False for all other tools. Without an approved plan, it is True only for an agent hired with `--strict-plan`.
    """
    assignment = run_state.conversation.assignment
    plan = assignment.plan if assignment else None
    if not is_gated(tool) or (plan is None and not run_state.spec.flags.strict_plan):
        return False
    if plan is None:
        return True
    return not names_call(plan, tool, arguments, str(run_state.workspace))


def names_call(plan: ApprovedPlan, tool: str, arguments: dict[str, Any], root: str) -> bool:
    """Return True if a plan names a command, or the file that a call changes.

    Only the plan's fields `files` and `commands` count, not its text. A listed folder includes everything in it. A
    listed command that is a single program also allows that program with more arguments. The name of a tool of an MCP
    server, listed as a command, allows all calls of that tool.
    """
    if tool.startswith(MCP_PREFIX):
        return any(each.split()[:1] == [tool] for each in plan.commands)
    if tool == "bash":
        command = str(arguments.get("command", "")).strip()
        called = simple_command(command)
        for named in filter(None, map(str.strip, plan.commands)):
            words = simple_command(named)
            if named == command or (words is not None and called is not None and called[: len(words)] == words):
                return True
        return False
    return any(collisions.names_file(each, str(arguments.get("path", "")), root) for each in plan.files)


def deviation_refusal(tool: str) -> Outcome:
    """Return what the model is told about a call that is refused because the approved plan does not name it."""
    runs = tool == "bash" or tool.startswith(MCP_PREFIX)
    field = "commands" if runs else "files"
    return Outcome(
        f"{tool} was not run: the approved plan does not name it. Submit a new plan with submit_plan; list in its "
        f"{field} all that you still want to {'run' if runs else 'change'}, and wait for the approval.",
        is_error=True,
    )


WAITS = "plan waits for approval"
"""The words in the status of an agent whose plan waits for approval."""


class SubmitPlan(Input):
    plan: str = Field(description="the plan, in Markdown")
    files: list[str] = Field(default=[], description="files, or folders, that the plan changes")
    commands: list[str] = Field(default=[], description="commands that the plan runs, as you will call them")
    risk: str = ""
    answers: dict[str, str] = Field(
        default={}, description="what you did about each note on the plan before, by the id of the note, such as n1"
    )


def plan_request_id(name: str, assignment: str, revision: int) -> str:
    """Return the id of the request for a plan of an assignment, the same one after a crash. Revisions begin with 0."""
    return f"plan-{mailbox.derived_id(name, assignment, revision)[:12]}"


def asked_plan(run_state: RunState) -> Request | None:
    """Return the request of a plan whose call has no result yet; None if there is none."""
    assignment = run_state.conversation.assignment
    if assignment is None:
        return None
    return requests.load(run_state.team, plan_request_id(run_state.name, assignment.id, assignment.plans))


@tool(waits=True)
async def submit_plan(context: Context, given: SubmitPlan) -> Outcome:
    """Submit a plan and wait until it is approved or rejected. Where a plan is required, you cannot write files or run
    commands before one is approved.
    """
    request = request_approval(context.run_state, given)
    outcome = plan_outcome(context.run_state, await context.interrupts.wait_for_decision(request, WAITS))
    await end_lent_network(context)
    return outcome


async def end_lent_network(context: Context) -> None:
    """End the background commands that have the network by an approval, unless the terms in force still give it."""
    assignment = context.run_state.conversation.assignment
    if assignment is None or assignment.terms is None or not (assignment.gate_open and assignment.terms.given.network):
        await context.file_tools.end_commands_with_lent_network()


def request_approval(run_state: RunState, given: SubmitPlan) -> Request:
    """Ask for approval of a plan that was submitted with the tool, and return the request.

    Raises:
        UsageError: The plan is empty, names files outside the workspace, or answers a note that does not exist.
    """
    assignment = run_state.conversation.assignment
    if assignment is None or not given.plan.strip():
        raise UsageError("the plan is empty")
    files: list[JsonValue] = []
    for entry in filter(str.strip, given.files):
        path = collisions.path_of_entry(entry, str(run_state.workspace))
        if path is None:
            raise UsageError(
                f"files: {entry!r} is refused; name paths below the workspace, without .. (. is all of it)"
            )
        files.append(path)
    payload: dict[str, JsonValue] = {
        "plan": given.plan,
        "files": files,
        "commands": list(given.commands),
        "risk": given.risk,
    }
    # An engine is told to answer notes in the text of its plan.
    in_text = run_state.spec.engine is not None and not given.answers
    return ask_for_plan(run_state, assignment, payload, None if in_text else given.answers)


def ask_for_plan(
    run_state: RunState, assignment: Assignment, payload: dict[str, JsonValue], answers: Mapping[str, str] | None = None
) -> Request:
    """Ask for approval of the next plan of an assignment, and return the request. It replaces that of the plan before.

    `payload` are the fields of the request. `answers` are the answers to the notes on the plan before, by id of the
    note; if None, they are looked for in the text of the plan. The gate is closed if it was open.

    Raises:
        UsageError: An answer is to a note that does not exist.
    """
    revision = assignment.plans
    earlier = (plan_request_id(run_state.name, assignment.id, each) for each in reversed(range(revision)))
    # A call that was refused counts as a revision, and asked nothing.
    before = next(filter(None, (requests.load(run_state.team, each) for each in earlier)), None)
    # A call that is refused changes nothing: the plan before stays approved.
    if answers is None:
        answers = answers_in(before, str(payload["plan"])) if before is not None else {}
    requests.require_notes(before, answers)
    if assignment.gate_open:
        # What was approved is not the plan any more.
        run_state.append(Gate(ts=run_state.now(), open=False))
    config = roster.load(run_state.team)
    # No agent reviews its own plan.
    is_reviewed_by_lead = config.lead != run_state.name and roster.lead_reviews(config, run_state.team)
    return requests.ask(
        run_state.team,
        plan_request_id(run_state.name, assignment.id, revision),
        "plan_approval",
        run_state.name,
        config.lead if is_reviewed_by_lead else OPERATOR,
        {**payload, "revision": revision + 1},
        run_state.now(),
        supersedes=before.id if before is not None else None,
        answers=answers,
    )


def _explain_terms(run_state: RunState) -> list[str]:
    """Return what the model is told about the terms in force, in lines; an empty list without terms."""
    terms = run_state.conversation.terms
    if terms is None:
        return []
    lines = ["These terms of the approval hold until your result:"]
    if terms.ask:
        lines.append("- The operator is asked before each of your writes and commands.")
    if terms.tools is not None:
        lines.append(f"- Of the tools of your type you have only these: {', '.join(terms.tools) or 'none'}.")
    if terms.network:
        lines.append("- Your commands reach the network.")
    if terms.budget:
        lines.append(f"- You may use {terms.budget} for it. The work ends when that is used up.")
    if terms.hold or terms.refused:
        engine = run_state.spec.has_own_tools
        more = "" if engine else "submit a plan of what is left with submit_plan, or "
        asks = ", where your permission is asked for it" if engine else ""
        refused = [f"- Refused to you{asks}, because only step {each.step} names it: {each}." for each in terms.denied]
        lines += [
            f"- {terms.explain_steps(f'{more}end with your result')}",
            *refused,
            "- All else about these steps is an instruction: nothing else enforces it.",
        ]
    return lines


def plan_outcome(run_state: RunState, request: Request) -> Outcome:
    """Open or close the plan gate by the decision about a request, and return what the agent is told.

    A request that was cancelled or has expired leaves the gate as it is.
    """
    feedback = f"\nFeedback: {request.said}" if request.said else ""
    consumed = (requests.response_id(request),)
    if request.status == "approved":
        terms = None
        # An agent's approval changes nothing about the terms in force.
        if request.decided_by == OPERATOR:
            spent = roster.spent(run_state.team, run_state.name, run_state.used())
            terms = TermsInForce(
                given=request.terms or Terms(), request=request.id, used_tokens=spent.tokens.total, used_usd=spent.usd
            )
        run_state.append(Gate(ts=run_state.now(), open=True, request_id=request.id, terms=terms))
        edited = f"\nThe plan was edited. Carry out this version:\n{request.edited}" if request.edited else ""
        text = f"The plan is approved by {request.decided_by}. Carry it out.{feedback}"
        return Outcome("\n".join([text, *_explain_terms(run_state)]) + edited, consumed=consumed)
    if request.status == "rejected":
        # For an agent that may act without a plan too: the answer to the one that it submitted is no.
        run_state.append(Gate(ts=run_state.now(), open=False, request_id=request.id))
        notes = how_to_answer(request, in_text=run_state.spec.engine is not None)
        return Outcome(
            f"The plan is rejected by {request.decided_by}.{feedback}\nRevise it and submit it again.{notes}",
            is_error=True,
            consumed=consumed,
        )
    return Outcome(f"The plan was {request.status}. Submit one again if you still need to.", is_error=True)
