"""The submit_plan tool: submit a plan, wait for the decision, open the plan gate of this assignment."""

from pydantic import Field, JsonValue

from crewboard.errors import UsageError
from crewboard.names import OPERATOR
from crewboard.protocol import approvals
from crewboard.records import Gate, Request
from crewboard.store import mailbox, roster
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome


class SubmitPlan(Input):
    plan: str = Field(description="the plan, in Markdown")
    files: list[str] = Field(default=[], description="files that the plan changes")
    commands: list[str] = Field(default=[], description="commands that the plan runs")
    risk: str = ""


def plan_request_id(name: str, assignment: str, revision: int) -> str:
    """Return the id of the nth plan of an assignment, the same one after a crash."""
    return f"plan-{mailbox.derived_id(name, assignment, revision)[:12]}"


def _approver(context: Context) -> str:
    """Return which agent, or the operator, reviews the plan. No agent reviews its own."""
    approver = roster.load(context.team).plan_approver
    return OPERATOR if approver == context.name else approver


async def _submit_plan(context: Context, given: SubmitPlan) -> Outcome:
    assignment = context.run_state.conversation.assignment
    if assignment is None or not given.plan.strip():
        raise UsageError("the plan is empty")
    revision = assignment.plans
    payload: dict[str, JsonValue] = {
        "plan": given.plan,
        "files": list(given.files),
        "commands": list(given.commands),
        "risk": given.risk,
        "revision": revision + 1,
    }
    request = approvals.ask(
        context.team,
        plan_request_id(context.name, assignment.id, revision),
        "plan_approval",
        context.name,
        _approver(context),
        payload,
        context.now(),
        supersedes=plan_request_id(context.name, assignment.id, revision - 1) if revision else None,
    )
    return _outcome(context, await context.wait_for_decision(request, "plan waits for approval"))


def _outcome(context: Context, request: Request) -> Outcome:
    feedback = f"\nFeedback: {request.feedback}" if request.feedback else ""
    consumed = (approvals.response_id(request),)
    if request.status == "approved":
        context.run_state.append(Gate(ts=context.now(), open=True, request_id=request.id))
        edited = f"\nThe plan was edited. Carry out this version:\n{request.edited}" if request.edited else ""
        text = f"The plan is approved by {request.decided_by}. Carry it out.{feedback}{edited}"
        return Outcome(text, consumed=consumed)
    if request.status == "rejected":
        return Outcome(
            f"The plan is rejected by {request.decided_by}.{feedback}\nRevise it and submit it again.",
            is_error=True,
            consumed=consumed,
        )
    return Outcome(f"The plan was {request.status}. Submit one again if you still need to.", is_error=True)


SUBMIT_PLAN: Tool[SubmitPlan] = Tool(
    "submit_plan",
    "Submit a plan and wait until it is approved or rejected. Where a plan is required, you cannot write files or run "
    "commands before one is approved.",
    SubmitPlan,
    _submit_plan,
    waits=True,
)

TOOLS = (SUBMIT_PLAN,)
