"""submit_plan: hand in a plan, wait for the decision, open the gate of this assignment."""

from pydantic import Field, JsonValue

from crewboard.names import OPERATOR
from crewboard.protocol import approvals
from crewboard.records import Gate, Request
from crewboard.store import mailbox, roster
from crewboard.worker.tools.base import Context, Input, Tool
from crewboard.worker.tools.outcome import Outcome
from crewboard.worker.tools.waiting import wait_for


class SubmitPlan(Input):
    plan: str = Field(description="markdown")
    files: list[str] = Field(default=[], description="files that it touches")
    commands: list[str] = Field(default=[], description="commands that it will run")
    risk: str = ""


def plan_request_id(name: str, assignment: str, revision: int) -> str:
    """The id of the nth plan of an assignment, the same after a crash."""
    return f"plan-{mailbox.derived_id(name, assignment, revision)[:12]}"


def _approver(context: Context) -> str:
    """Who decides: nobody decides about a plan of their own."""
    approver = roster.load(context.run_state.agent.team).plan_approver
    return OPERATOR if approver == context.name else approver


async def _submit_plan(context: Context, given: SubmitPlan) -> Outcome:
    run_state = context.run_state
    assignment = run_state.conversation.assignment
    if assignment is None or not given.plan.strip():
        return Outcome("the plan is empty", is_error=True)
    team = run_state.agent.team
    revision = assignment.plans
    payload: dict[str, JsonValue] = {
        "plan": given.plan,
        "files": list(given.files),
        "commands": list(given.commands),
        "risk": given.risk,
        "revision": revision + 1,
    }
    request = approvals.ask(
        team,
        plan_request_id(context.name, assignment.id, revision),
        "plan_approval",
        context.name,
        _approver(context),
        payload,
        run_state.now(),
        supersedes=plan_request_id(context.name, assignment.id, revision - 1) if revision else None,
    )
    decided = await wait_for(context, request, "plan waits for approval")
    return _decided(context, decided)


def _decided(context: Context, request: Request) -> Outcome:
    feedback = f"\nFeedback: {request.feedback}" if request.feedback else ""
    consumed = (approvals.response_id(request),)
    if request.status == "approved":
        context.run_state.append(Gate(ts=context.run_state.now(), open=True, request_id=request.id))
        edited = f"\nThe plan was changed; carry out this one:\n{request.edited}" if request.edited else ""
        words = f"The plan is approved by {request.decided_by}. Carry it out.{feedback}{edited}"
        return Outcome(words, consumed=consumed)
    if request.status == "rejected":
        return Outcome(
            f"The plan is rejected by {request.decided_by}.{feedback}\nRevise it and submit it again.",
            is_error=True,
            consumed=consumed,
        )
    return Outcome(f"The plan was {request.status}; submit one again if you still need to.", is_error=True)


SUBMIT_PLAN: Tool[SubmitPlan] = Tool(
    "submit_plan",
    "Hand in a plan and wait until it is approved or rejected. Where a plan is required, nothing can be written or run "
    "before one is approved.",
    SubmitPlan,
    _submit_plan,
    waits=True,
)

TOOLS = (SUBMIT_PLAN,)
